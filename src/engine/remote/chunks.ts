/** Owns the way from a request to the chunks of its streamed answer: server-sent events with a JSON object each. */
import { createParser, type EventSourceMessage } from 'eventsource-parser'
import { KvfoldError } from '../../core/errors.js'
import type { Endpoint } from './endpoint.js'
import { isRecord } from './json.js'

/** Characters one line, or the data of one event, may have: more is no event of a chat, and must not fill the memory. */
const LONGEST = 16 * 2 ** 20

/**
 * Takes the bytes of a stream as they come, cut anywhere, and gives the events that they complete. What is not ended by a blank line is none.
 * @throws KvfoldError remote/bad-answer when an event grows beyond all measure
 */
export function eventReader(): (bytes: Uint8Array) => EventSourceMessage[] {
  const decoder = new TextDecoder()
  let events: EventSourceMessage[] = []
  const parser = createParser({
    maxBufferSize: LONGEST,
    onEvent: (event) => events.push(event),
    onError: ({ type }) => {
      if (type === 'max-buffer-size-exceeded')
        throw new KvfoldError('remote/bad-answer', `The endpoint sent an event of more than ${LONGEST} characters.`)
    },
  })
  return (bytes) => {
    events = []
    parser.feed(decoder.decode(bytes, { stream: true }))
    return events
  }
}

/**
 * What the endpoint sends, parsed; endpoints that do not stream send one whole answer. Whoever stops iterating closes the connection.
 * @throws KvfoldError remote/*, context/full, model/not-found; the reason of `signal` when it was aborted
 */
export async function* chunksOf(endpoint: Endpoint, body: object, signal: AbortSignal): AsyncGenerator {
  const answer = await endpoint.open('/v1/chat/completions', body, signal)
  if (!answer.type.includes('text/event-stream')) {
    yield await endpoint.json(answer)
    return
  }
  const eventsIn = eventReader()
  for await (const bytes of answer.body)
    for (const { data } of eventsIn(bytes)) {
      // The stream goes on to its end, so that the connection can be kept.
      if (data !== '[DONE]') yield parsed(data, endpoint.name)
    }
}

function parsed(data: string, where: string): unknown {
  try {
    const value = JSON.parse(data) as unknown
    if (isRecord(value)) return value
  } catch {
    // Said below, without the text: it may be anything.
  }
  throw new KvfoldError('remote/bad-answer', `${where} sent an event that is no JSON object; is the address right?`)
}
