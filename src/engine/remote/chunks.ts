/** Owns the way from a request to the chunks of its streamed answer. */
import { KvfoldError } from '../../core/errors.js'
import type { Endpoint } from './endpoint.js'
import { isRecord } from './json.js'
import { SseParser } from './sse.js'

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
  const parser = new SseParser()
  for await (const bytes of answer.body)
    for (const { data } of parser.push(bytes)) {
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
