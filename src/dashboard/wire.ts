/** Owns what comes over the wire: the server's own types, as JSON leaves them, and the events of a stream. */
import type { ChatMessage } from '../chat/message.js'
import type {
  ExportedThread,
  ThreadAttention,
  ThreadChange,
  ThreadMessage,
  ThreadSummary,
  ThreadView,
} from '../server/threads/thread-api.js'
import type { Damage } from '../store/damage.js'
import type { EventSourceMessage } from 'eventsource-parser'
import { EventSourceParserStream } from 'eventsource-parser/stream'

export type { Hit, SearchResult } from '../context/search.js'
export type { ContractChoice } from '../core/contract.js'
export type { LedgerEntry, MessageCost } from '../kv/ledger.js'
export type { Acm } from '../server/ask.js'
export type { ThreadFragment as Fragment, ThreadMessage, ThreadSummary } from '../server/threads/thread-api.js'
export type { ModelStatus, ServiceStatus, ToolServerStatus } from '../server/threads/status.js'

/** One that the store cannot give as it was. */
export type DamagedThread = Pick<Damage, 'id' | 'kind' | 'what'>

/** `GET /kvfold/threads`. */
export interface ThreadListing {
  readonly threads: ThreadSummary[]
  readonly damaged: readonly DamagedThread[]
}

/** `GET /kvfold/threads/:id`. */
export interface ThreadDetail extends Omit<ThreadView, 'all' | 'messages'> {
  readonly messages: readonly ThreadMessage[]
  readonly count: number
}

/** `GET /kvfold/threads/:id/attention`. */
export type Attention = ThreadAttention

/** An event of `/kvfold/events`. */
export type ChangeEvent = Pick<ThreadChange, 'thread' | 'kind'>

/** `GET /kvfold/threads/:id/export`. */
export type Export = ExportedThread

/** What a chat request says of a message. */
export type SentMessage = Readonly<Record<string, unknown>> & { readonly role: ChatMessage['role'] }

/** A chunk of a chat stream, as far as it is read here. */
export interface ChatChunk {
  readonly choices?: readonly {
    readonly delta: { readonly content?: string; readonly reasoning_content?: string }
    readonly finish_reason?: string | null
  }[]
  readonly usage?: {
    readonly prompt_tokens: number
    readonly completion_tokens: number
    readonly prompt_tokens_details?: { readonly cached_tokens: number }
  } | null
  /** An event, or at the end what the answer was. */
  readonly kvfold?: {
    readonly event?: ChatEvent
    readonly thread?: string
    readonly total_ms?: number
    readonly first_token_ms?: number
  }
  readonly error?: { readonly message: string; readonly code: string | null }
}

/** Those of the server's events that the chat tells of. */
export type ChatEvent =
  | { readonly type: 'queued'; readonly position: number }
  | { readonly type: 'started'; readonly thread: string }
  | { readonly type: 'plan'; readonly shown: number; readonly reused: number; readonly compute: number }
  | { readonly type: 'progress'; readonly done: number; readonly total: number }
  | { readonly type: 'acm'; readonly call: { readonly name: string; readonly arguments: unknown }; readonly failed: boolean }
  | { readonly type: 'policy'; readonly folded: readonly string[]; readonly saves: number }
  | { readonly type: 'rewrite'; readonly message: number; readonly reason: string }
  | { readonly type: 'search' }

/** An event that the stream breaks off in is left out. Not all browsers can iterate over a stream. */
export async function* eventsIn(bytes: ReadableStream<Uint8Array<ArrayBuffer>>): AsyncGenerator<EventSourceMessage> {
  const reader = bytes.pipeThrough(new TextDecoderStream()).pipeThrough(new EventSourceParserStream()).getReader()
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) yield next.value
  } finally {
    void reader.cancel().catch(() => undefined)
  }
}
