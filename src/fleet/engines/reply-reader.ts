/** Reads the answer to one request: the chunks of a streamed chat completion, or one whole completion. */
import type { ToolCall } from '../../runtime/chat/message.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import type { EngineEvent, Finish, NamedLogprob, ShownTokens, TokenLogprob } from '../../runtime/engine/engine.js'
import { streamedError } from './failure.js'
import { countAt, fieldOf, integersIn, isRecord, listAt, numberAt, textAt } from '../../runtime/core/json.js'
import { readJson, writeJson } from '../../runtime/core/written-json.js'
import { setTimeout as delay } from 'node:timers/promises'
import { createParser, type EventSourceMessage } from 'eventsource-parser'
import type { Endpoint, Sending } from './endpoint.js'

/** Stands in for a token id where the endpoint gives only the token's text. */
export const UNNUMBERED = -1

/** A tool call whose chunks are still arriving. */
interface Draft {
  readonly index: number
  id: string
  name: string
  text: string
}

export class ReplyReader {
  content = ''
  reasoning = ''
  readonly calls: ToolCall[] = []
  readonly logprobs: TokenLogprob[] = []
  usage: EndpointUsage | null = null
  /** Token ids of the prompt, and of the answer with its end token. vLLM gives them on request. */
  readonly promptTokens: unknown[] = []
  readonly answerTokens: unknown[] = []
  /** Why the answer ended; null until the endpoint says it. */
  finish: Finish | null = null
  /** The stop string that ended the answer, if the endpoint names it (`stop_reason` of vLLM and kvfold, `matched_stop` of SGLang). */
  stop: string | null = null
  /** The prompt's tokens and how many of them were cached, from the endpoint's last progress report. */
  progress: { readonly total: number; readonly cached: number } | null = null
  #draft: Draft | null = null

  constructor(private readonly where: string) {}

  /**
   * Takes one chunk and returns its events.
   * @throws KvfoldError the error that the chunk reports; remote/refused when the content filter stopped the answer
   */
  push(chunk: unknown): EngineEvent[] {
    if (!isRecord(chunk)) throw new KvfoldError('remote/bad-answer', `${this.where} sent an event that is not a JSON object.`)
    const { error } = chunk
    if (error !== undefined && error !== null) throw streamedError(error, this.where)
    const events = this.#progressIn(chunk)
    this.usage = usageIn(chunk) ?? this.usage
    if (this.promptTokens.length === 0) this.promptTokens.push(...listAt(chunk, 'prompt_token_ids'))
    const choice = listAt(chunk, 'choices').find((one) => (countAt(one, 'index') ?? 0) === 0)
    if (choice === undefined) return events
    const delta = fieldOf(choice, 'delta') ?? fieldOf(choice, 'message')
    const reasoning = textAt(delta, 'reasoning_content') ?? textAt(delta, 'reasoning') ?? ''
    const text = textAt(delta, 'content') ?? textAt(delta, 'refusal') ?? ''
    const logprobs = listAt(fieldOf(choice, 'logprobs'), 'content').map(logprobOf)
    this.logprobs.push(...logprobs)
    this.answerTokens.push(...listAt(choice, 'token_ids'))
    const parts = listAt(delta, 'tool_calls')
    if (logprobs.length > 0 || reasoning + text !== '' || parts.length > 0) {
      const tokens = logprobs.map(({ token }) => token).filter((token) => token !== UNNUMBERED)
      events.push({ type: 'tokens', tokens, text: reasoning + text, ...(logprobs.length === 0 ? {} : { logprobs }) })
    }
    if (reasoning !== '') {
      this.reasoning += reasoning
      events.push({ type: 'reasoning', text: reasoning })
    }
    if (text !== '') {
      this.content += text
      events.push({ type: 'text', text })
    }
    // Without streaming, every tool call arrives complete, whatever its index and id.
    const isWhole = fieldOf(choice, 'delta') === undefined
    for (const part of parts) events.push(...(isWhole ? this.#complete() : []), ...this.#callPart(part))
    const reason = textAt(choice, 'finish_reason')
    if (reason !== null) {
      events.push(...this.#complete(reason === 'length'))
      this.finish = this.#finishOf(reason)
      this.stop = textAt(choice, 'stop_reason') ?? textAt(choice, 'matched_stop')
    }
    return events
  }

  /** Takes a chunk's part of a tool call. An engine may leave out the call's index, its id, or both. */
  #callPart(part: unknown): EngineEvent[] {
    const index = countAt(part, 'index')
    const id = textAt(part, 'id')
    const named = fieldOf(part, 'function')
    const name = textAt(named, 'name') ?? ''
    const given = fieldOf(named, 'arguments')
    const text = typeof given === 'string' ? given : isRecord(given) ? writeJson(given) : ''
    const draft = this.#draft
    // Some engines give every call the index 0. After complete arguments, a name with a different id starts a new call.
    const isNew = draft !== null && id !== null && id !== '' && id !== draft.id && name !== ''
    const isAnother = isNew && draft.text !== '' && argumentsIn(draft.text).malformed === undefined
    const goesOn =
      draft !== null && !isAnother && (index === null ? id === null || id === '' || id === draft.id : index === draft.index)
    if (goesOn) {
      draft.text += text
      if (draft.id === '') draft.id = id ?? ''
      // Some engines repeat the name in every chunk.
      if (draft.name === '') draft.name = name
      return []
    }
    const events = this.#complete()
    this.#draft = { index: index ?? this.calls.length, id: id ?? '', name, text }
    return events
  }

  /**
   * Ends the open tool call. `cut`: the answer hit its length limit. A call without arguments then counts as malformed, because the model
   * may have been about to write some.
   */
  #complete(cut = false): EngineEvent[] {
    const draft = this.#draft
    this.#draft = null
    if (draft === null || draft.name === '') return []
    const isTaken = draft.id === '' || this.calls.some(({ id }) => id === draft.id)
    const call: ToolCall = {
      id: isTaken ? `call_${this.calls.length + 1}` : draft.id,
      name: draft.name,
      ...(cut && draft.text === '' ? { arguments: {}, malformed: '' } : argumentsIn(draft.text)),
    }
    this.calls.push(call)
    return [{ type: 'call', call }]
  }

  #finishOf(reason: string): Finish {
    switch (reason) {
      case 'length':
        return 'length'
      case 'content_filter':
        throw new KvfoldError('remote/refused', `The content filter of ${this.where} stopped the answer.`)
      case 'abort':
      case 'error':
        throw new KvfoldError('remote/broken-stream', `${this.where} ended the answer itself (${reason}).`)
      default:
        // For `stop`, `tool_calls`, `function_call` and `eos`, only the answer itself tells whether it has tool calls.
        return this.calls.length > 0 ? 'tool-calls' : 'stop'
    }
  }

  /** Reads a progress report: `prompt_progress` of llama-server, or the events `plan` and `progress` of kvfold. */
  #progressIn(chunk: unknown): EngineEvent[] {
    const progress = fieldOf(chunk, 'prompt_progress')
    const total = countAt(progress, 'total')
    const done = countAt(progress, 'processed')
    if (total !== null && done !== null) {
      const cached = Math.min(total, countAt(progress, 'cache') ?? 0)
      return [...this.#planned(total, cached), prefill(done - cached, total - cached)]
    }
    const event = fieldOf(fieldOf(chunk, 'kvfold'), 'event')
    const shown = countAt(event, 'shown')
    if (textAt(event, 'type') === 'plan' && shown !== null)
      return this.#planned(shown, Math.min(shown, countAt(event, 'reused') ?? 0))
    const all = countAt(event, 'total')
    return textAt(event, 'type') === 'progress' && all !== null ? [prefill(countAt(event, 'done') ?? 0, all)] : []
  }

  #planned(shown: number, reused: number): EngineEvent[] {
    if (this.progress !== null) return []
    this.progress = { total: shown, cached: reused }
    return [{ type: 'plan', shown, reused, compute: Math.max(1, shown - reused), contract: 'exact', fallback: null }]
  }
}

/**
 * Returns the token ids of prompt and answer, or a phrase that says why they are unknown. `prompt`: the prompt's token ids from a separate
 * request; null: take them from the reader.
 */
export function tokensIn(
  { logprobs, usage, promptTokens, answerTokens }: ReplyReader,
  prompt: readonly number[] | null,
): ShownTokens | string {
  const before = prompt ?? integersIn(promptTokens)
  const said = integersIn(
    answerTokens.length > 0 ? answerTokens : logprobs.map(({ token }) => (token === UNNUMBERED ? null : token)),
  )
  if (before === null || said === null) return 'gives no token numbers'
  // The endpoint may count the end token without giving its id, so one missing id is allowed.
  const isWhole = usage === null || (before.length === usage.prompt && [0, 1].includes(usage.generated - said.length))
  return isWhole ? { prompt: Int32Array.from(before), completion: Int32Array.from(said) } : 'counts other tokens than it names'
}

const prefill = (done: number, total: number): EngineEvent => ({
  type: 'prefill',
  done: Math.min(total, Math.max(0, done)),
  total,
})

function argumentsIn(text: string): Pick<ToolCall, 'arguments' | 'malformed'> {
  if (text.trim() === '') return { arguments: {} }
  try {
    const value = readJson(text)
    if (isRecord(value)) return { arguments: value }
  } catch {
    // Keep the malformed text: the model gets to see it.
  }
  return { arguments: {}, malformed: text }
}

/** Returns the bytes of a token that holds only part of a UTF-8 character; the token's text then has U+FFFD. */
function bytesIn(of: unknown): Pick<NamedLogprob, 'bytes'> {
  const said = listAt(of, 'bytes')
  const bytes = said.filter((byte): byte is number => Number.isInteger(byte) && Number(byte) >= 0 && Number(byte) < 256)
  const isWhole = bytes.length > 0 && bytes.length === said.length
  return isWhole && textAt(of, 'token')?.includes('\ufffd') === true ? { bytes } : {}
}

function logprobOf(entry: unknown): TokenLogprob {
  const one = (of: unknown) => ({
    token: countAt(of, 'id') ?? UNNUMBERED,
    text: textAt(of, 'token') ?? '',
    ...bytesIn(of),
    logprob: numberAt(of, 'logprob') ?? Number.NEGATIVE_INFINITY,
  })
  return { ...one(entry), top: listAt(entry, 'top_logprobs').map(one) }
}

// Below: the usage figures of an endpoint, under each engine's field names.

/** The token counts of a step as the endpoint reports them. Null: not reported. */
export interface EndpointUsage {
  readonly prompt: number
  /** Tokens of the prompt that this step did not compute. */
  readonly cached: number | null
  readonly generated: number
  /** AKV's report: `skipped` tokens belong to dropped messages, and the cells of `moved` tokens changed position. Absent without drops. */
  readonly dropped?: { readonly skipped: number; readonly moved: number }
  /** Milliseconds of prefill and decode. Only llama-server reports them. */
  readonly milliseconds: { readonly prefill: number; readonly decode: number } | null
}

/**
 * Returns the figures of a chunk or of a whole answer; null if it has none.
 *
 * Cached tokens come from `usage.prompt_tokens_details.cached_tokens` (OpenAI, llama-server, kvfold, vLLM with
 * --enable-prompt-tokens-details, SGLang with --enable-cache-report), `usage.prompt_cache_hit_tokens` (DeepSeek), `usage.cached_tokens`
 * (Moonshot), or `timings.cache_n` (llama-server). We do not use llama-server's `tokens_cached`: it counts all tokens in the slot
 * afterwards, generated ones included.
 */
export function usageIn(chunk: unknown): EndpointUsage | null {
  const usage = fieldOf(chunk, 'usage')
  const timings = fieldOf(chunk, 'timings')
  const cached =
    countAt(fieldOf(usage, 'prompt_tokens_details'), 'cached_tokens') ??
    countAt(usage, 'prompt_cache_hit_tokens') ??
    countAt(usage, 'cached_tokens') ??
    countAt(timings, 'cache_n')
  const computed = countAt(timings, 'prompt_n')
  const prompt = countAt(usage, 'prompt_tokens') ?? (computed === null ? null : computed + (cached ?? 0))
  if (prompt === null) return null
  const skipped = countAt(fieldOf(usage, 'prompt_tokens_details'), 'drop_skipped_tokens')
  const moved = countAt(fieldOf(usage, 'prompt_tokens_details'), 'repos_tokens') ?? 0
  const prefill = numberAt(timings, 'prompt_ms')
  const decode = numberAt(timings, 'predicted_ms')
  return {
    prompt,
    cached: cached === null ? null : Math.min(cached, prompt),
    generated: countAt(usage, 'completion_tokens') ?? countAt(timings, 'predicted_n') ?? 0,
    ...(skipped === null ? {} : { dropped: { skipped, moved } }),
    milliseconds: prefill === null || decode === null ? null : { prefill, decode },
  }
}

// Below: the chunks of a streamed answer, which are SSE events with one JSON object each.

/** The most characters of an SSE line, or of one event's data. Real events are far shorter; the limit protects the memory. */
const LONGEST = 16 * 2 ** 20

/**
 * Returns a function that takes the next bytes of an SSE stream, cut anywhere, and returns the events that they complete. A blank line
 * completes an event.
 * @throws KvfoldError remote/bad-answer when an event is too long
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
 * Sends the request and yields the parsed chunks. If the endpoint does not stream, yields its one whole answer. Ending the iteration early
 * closes the connection.
 * @throws KvfoldError remote/*, context/full, model/not-found; the reason of `signal` when it was aborted
 */
export async function* chunksOf(endpoint: Endpoint, body: object, signal: AbortSignal, sending: Sending = {}): AsyncGenerator {
  const answer = await endpoint.open('/v1/chat/completions', body, signal, sending)
  if (!answer.type.includes('text/event-stream')) {
    yield await endpoint.json(answer)
    return
  }
  const eventsIn = eventReader()
  const chunks = answer.body[Symbol.asyncIterator]()
  let isDone = false
  try {
    for (;;) {
      const next = await chunks.next()
      if (next.done === true) return
      for (const { data } of eventsIn(next.value)) {
        if (data !== '[DONE]') yield parsed(data, endpoint.name)
        else isDone = true
      }
      if (isDone) break
    }
    // The answer is complete. Read to the end of the stream so that the connection can be kept alive; errors here do not matter.
    await Promise.race([drained(chunks), delay(LONGEST_END, undefined, { ref: false })])
  } finally {
    if (!isDone) await chunks.return?.()
  }
}

/** Milliseconds that a stream may stay open after its last event. Then the answer counts as ended. */
const LONGEST_END = 1000

async function drained(chunks: AsyncIterator<Uint8Array>): Promise<void> {
  try {
    while ((await chunks.next()).done !== true);
  } catch {
    // The connection failed after the answer was complete.
  }
}

function parsed(data: string, where: string): unknown {
  try {
    const value = readJson(data)
    if (isRecord(value)) return value
  } catch {
    // The error below does not quote the text, because it may contain anything.
  }
  throw new KvfoldError('remote/bad-answer', `${where} sent an event that is not a JSON object; check its address.`)
}
