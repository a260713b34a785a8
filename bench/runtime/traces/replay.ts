/** Sends the requests of traces to a server, and divides the tokens that it computed by their causes. */
import { quantiles } from '../../statistics.js'
import { eventsOf } from '../serve/stream.js'
import type { Cause, ScriptMessage, ScriptRequest } from './script.js'

/** A server that takes chat requests in OpenAI's format. */
export interface Replayer {
  readonly url: string
  readonly model: string
  /** The logit bias that makes every answer repeat one word, by token. */
  readonly bias: Readonly<Record<string, number>>
}

/** A request. `ideal`: how many of its tokens a prefix cache without eviction computes. */
export interface Planned {
  readonly request: ScriptRequest
  /** Tokens of the prompt. */
  readonly prompt: number
  readonly ideal: number
}

/**
 * The computed tokens by cause. At most as many as a prefix cache without eviction computes count for the trace's own cause. The rest had
 * been computed before: `returned` if the conversation had paused for more than five minutes, else `evicted`.
 */
export type ByCause = Record<Cause | 'evicted' | 'returned', number>

export interface Replayed {
  /** Prompt tokens computed. */
  readonly computed: number
  readonly byCause: ByCause
  /** Approximate tokens in the prompts, summed over the requests; null if the server does not report them. */
  readonly approximate: number | null
  /** Milliseconds from a request to the first text of its answer. */
  readonly firstToken: { readonly p50: number; readonly p95: number }
  readonly seconds: number
}

/** Seconds after which a conversation counts as paused. */
const PAUSE = 300

/** Sends the requests one after another. @throws Error if the server refuses one, or counts a different number of prompt tokens */
export async function replay(server: Replayer, planned: Iterable<Planned>, progress: (done: number) => void): Promise<Replayed> {
  const byCause: ByCause = { append: 0, cold: 0, rewritten: 0, edit: 0, compaction: 0, evicted: 0, returned: 0 }
  const firstTokens: number[] = []
  let [computed, done]: [number, number] = [0, 0]
  let approximate: number | null = null
  const begun = performance.now()
  for (const { request, prompt, ideal } of planned) {
    const answer = await ask(server, request)
    if (answer.prompt !== prompt)
      throw new Error(
        `${request.session} at ${request.at} s: the server counts ${answer.prompt} tokens of a prompt of ${prompt}.`,
      )
    computed += answer.computed
    byCause[request.cause] += Math.min(answer.computed, ideal)
    byCause[request.pause > PAUSE ? 'returned' : 'evicted'] += Math.max(0, answer.computed - ideal)
    if (answer.approximate !== null) approximate = (approximate ?? 0) + answer.approximate
    firstTokens.push(answer.firstToken)
    progress(++done)
  }
  const { p50, p95 } = quantiles(firstTokens)
  return { computed, byCause, approximate, firstToken: { p50, p95 }, seconds: (performance.now() - begun) / 1000 }
}

interface Answer {
  readonly prompt: number
  readonly computed: number
  readonly approximate: number | null
  readonly firstToken: number
}

/** The fields that are read of a stream's chunks. */
interface Chunk {
  readonly choices?: readonly { readonly delta: { readonly content?: string | null } }[]
  readonly usage?: {
    readonly prompt_tokens: number
    readonly prompt_tokens_details?: { readonly cached_tokens?: number }
  } | null
  readonly kvfold?: { readonly edits?: { readonly approximate: number } | null }
  readonly error?: { readonly message: string }
}

async function ask({ url, model, bias }: Replayer, { messages, answer, session, at }: ScriptRequest): Promise<Answer> {
  const begun = performance.now()
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    // llama-server closes an idle kept-alive connection after some seconds, maybe just as it is used again.
    headers: { 'content-type': 'application/json', connection: 'close' },
    body: JSON.stringify(bodyOf(model, messages, answer, bias)),
  })
  if (!response.ok || response.body === null)
    throw new Error(`${session} at ${at} s: status ${response.status}: ${(await response.text()).slice(0, 400)}`)
  let firstToken = Number.NaN
  let usage: Chunk['usage'] = null
  let approximate: number | null = null
  for await (const data of eventsOf(response.body)) {
    if (data === '[DONE]') break
    const chunk = JSON.parse(data) as Chunk
    if (chunk.error !== undefined) throw new Error(`${session} at ${at} s: ${chunk.error.message}`)
    if (Number.isNaN(firstToken) && (chunk.choices?.[0]?.delta.content ?? '') !== '') firstToken = performance.now() - begun
    usage = chunk.usage ?? usage
    approximate = chunk.kvfold === undefined ? approximate : (chunk.kvfold.edits?.approximate ?? 0)
  }
  if (!usage) throw new Error(`${session} at ${at} s: the stream ended without usage.`)
  const { prompt_tokens: prompt, prompt_tokens_details: details } = usage
  return { prompt, computed: prompt - (details?.cached_tokens ?? 0), approximate, firstToken }
}

const bodyOf = (model: string, messages: readonly ScriptMessage[], answer: number, bias: Replayer['bias']): object => ({
  model,
  messages,
  max_tokens: answer,
  temperature: 0,
  stream: true,
  stream_options: { include_usage: true },
  logit_bias: bias,
})
