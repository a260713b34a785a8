/** The data from the server: its own types as JSON, the events of a chat stream, and samples of its figures. */
import type { ChatMessage } from '../chat/message.js'
import type {
  ExportedThread,
  ThreadAttention,
  ThreadChange,
  ThreadMessage,
  ThreadSummary,
  ThreadView,
} from '../server/threads/thread-api.js'
import type { ServiceStatus } from '../server/threads/status.js'
import type { Damage } from '../store/damage.js'
import type { EventSourceMessage } from 'eventsource-parser'
import { EventSourceParserStream } from 'eventsource-parser/stream'

export type { Hit, SearchResult } from '../context/search.js'
export type { ContractChoice } from '../core/contract.js'
export type { LedgerEntry, MessageCost } from '../kv/ledger.js'
export type { Acm } from '../server/ask.js'
export type { ThreadFragment as Fragment, ThreadMessage, ThreadsFound, ThreadSummary } from '../server/threads/thread-api.js'
export type { ModelStatus, ServiceStatus, ToolServerStatus } from '../server/threads/status.js'

/** A thread that the store cannot return. */
export type DamagedThread = Pick<Damage, 'id' | 'kind' | 'what'>

/** The answer to `GET /kvfold/threads`. */
export interface ThreadListing {
  readonly threads: ThreadSummary[]
  readonly damaged: readonly DamagedThread[]
}

/** The answer to `GET /kvfold/threads/:id`. */
export interface ThreadDetail extends Omit<ThreadView, 'all' | 'messages'> {
  readonly messages: readonly ThreadMessage[]
  readonly count: number
}

/** The answer to `GET /kvfold/threads/:id/attention`. */
export type Attention = ThreadAttention

export type ChangeEvent = Pick<ThreadChange, 'thread' | 'kind'>

/** The answer to `GET /kvfold/threads/:id/export`. */
export type Export = ExportedThread

/** A message in a chat request. */
export type SentMessage = Readonly<Record<string, unknown>> & { readonly role: ChatMessage['role'] }

/** A chunk of a chat stream, with only the fields that the page reads. */
export interface ChatChunk {
  readonly id?: string
  readonly choices?: readonly {
    readonly delta: { readonly content?: string; readonly reasoning_content?: string }
    readonly finish_reason?: string | null
  }[]
  readonly usage?: {
    readonly prompt_tokens: number
    readonly completion_tokens: number
    readonly prompt_tokens_details?: { readonly cached_tokens: number }
  } | null
  /** kvfold's own data: an event; in the last chunk, facts about the answer. */
  readonly kvfold?: {
    readonly event?: ChatEvent
    readonly thread?: string
    readonly total_ms?: number
    readonly first_token_ms?: number
  }
  readonly error?: { readonly message: string; readonly code: string | null }
}

/** Those events of the server that the chat shows. */
export type ChatEvent =
  | { readonly type: 'queued'; readonly position: number }
  | { readonly type: 'started'; readonly thread: string }
  | { readonly type: 'plan'; readonly shown: number; readonly reused: number; readonly compute: number }
  | { readonly type: 'progress'; readonly done: number; readonly total: number }
  | { readonly type: 'acm'; readonly call: { readonly name: string; readonly arguments: unknown }; readonly failed: boolean }
  | { readonly type: 'bare-call'; readonly name: string; readonly form: string }
  | { readonly type: 'policy'; readonly folded: readonly string[]; readonly saves: number }
  | { readonly type: 'rewrite'; readonly message: number; readonly reason: string }
  | { readonly type: 'search' }

/**
 * Yields the SSE events of a stream. An event that the end of the stream cuts off is dropped. Reads through a reader, because not all
 * browsers can iterate over a stream.
 */
export async function* eventsIn(bytes: ReadableStream<Uint8Array<ArrayBuffer>>): AsyncGenerator<EventSourceMessage> {
  const reader = bytes.pipeThrough(new TextDecoderStream()).pipeThrough(new EventSourceParserStream()).getReader()
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) yield next.value
  } finally {
    void reader.cancel().catch(() => undefined)
  }
}

// Figures over time: samples of the server, and rates between them. Pure.

/** The figures of the server at one moment. Counters count from its start. Null: the server does not report the figure. */
export interface ServerSample {
  /** When the sample was taken, in milliseconds. Only the difference to other samples has a meaning. */
  readonly at: number
  readonly running: number
  readonly waiting: number
  /** Tokens submitted to decode, summed over the loaded models. */
  readonly submitted: number | null
  readonly generated: number | null
  readonly prompt: number | null
  readonly cached: number | null
  /** Cells of all loaded models. `used`: those in use; `parked`: those parked. */
  readonly cells: number
  readonly used: number
  readonly parked: number
  /** Bytes of offloaded sequences in host memory; `disk`: on disk. */
  readonly host: number
  readonly disk: number
  /** The server process's memory, in bytes. */
  readonly resident: number | null
}

/** Returns the sum over a metric's series in Prometheus' text format; null when there is none. */
export function metricIn(text: string, name: string): number | null {
  let sum: number | null = null
  for (const line of text.split('\n')) {
    if (!line.startsWith(name)) continue
    const [, value] = /^(?:\{.*\})? (\S+)/.exec(line.slice(name.length)) ?? []
    if (value !== undefined) sum = (sum ?? 0) + Number(value)
  }
  return sum
}

/** Makes a sample of the server's figures. @param metrics the text of `/metrics` */
export function sampleOf(at: number, { models, running, queue }: ServiceStatus, metrics: string): ServerSample {
  const loaded = models.map((model) => model.loaded).filter((each) => each !== null)
  const caches = loaded.map(({ cache }) => cache).filter((cache) => cache !== null)
  const total = (figures: readonly number[]) => figures.reduce((sum, figure) => sum + figure, 0)
  const counted = loaded.map(({ submitted }) => submitted).filter((count) => count !== null)
  return {
    at,
    running,
    waiting: queue.waiting,
    submitted: counted.length === 0 ? null : total(counted),
    generated: metricIn(metrics, 'kvfold_generation_tokens_total'),
    prompt: metricIn(metrics, 'kvfold_prompt_tokens_total'),
    cached: metricIn(metrics, 'kvfold_prompt_tokens_cached_total'),
    cells: total(caches.map(({ cells }) => cells)),
    used: total(caches.map(({ used }) => used)),
    parked: total(caches.map(({ parked }) => parked)),
    host: total(caches.map(({ tiers }) => tiers.host.bytes)),
    disk: total(caches.map(({ tiers }) => tiers.disk.bytes)),
    resident: metricIn(metrics, 'process_resident_memory_bytes'),
  }
}

/** Returns the rates per second between consecutive samples, one fewer than samples. 0 where the counter was reset or is missing. */
export function rates(samples: readonly ServerSample[], counter: (sample: ServerSample) => number | null): number[] {
  return samples.slice(1).map((sample, at) => {
    const before = samples[at]!
    const [from, to] = [counter(before), counter(sample)]
    const seconds = (sample.at - before.at) / 1000
    return from === null || to === null || to < from || seconds <= 0 ? 0 : (to - from) / seconds
  })
}
