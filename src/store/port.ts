/** Owns what a store of threads must be able to do; every change is with the store before anybody is told that it was made. */
import type { ChatMessage, ToolDefinition } from '../chat/message.js'
import type { Fragment } from '../context/fragment.js'
import type { Found } from '../context/search.js'
import type { ContractChoice } from '../core/contract.js'
import type { LedgerEntry } from '../kv/ledger.js'

/** One message of a thread. */
export interface StoredMessage {
  readonly message: ChatMessage
  /**
   * What clients know in its place: the same; nothing (steps that called our tools, and the results); or another message, with the text of
   * such steps before it and without calls of ours.
   */
  readonly seen: 'same' | 'nothing' | ChatMessage
}

/** Everything about a thread that is not a message or a ledger entry. */
export interface ThreadHead {
  /** Whose keys sent its requests. */
  readonly tenant: string
  readonly id: string
  readonly model: string
  /** Unix milliseconds. */
  readonly created: number
  readonly used: number
  readonly parent: string | null
  readonly contract: ContractChoice | null
  /** Of the last request, the client's. */
  readonly tools: readonly ToolDefinition[]
  /** Results of our tools that stand behind calls of the client's in the last answer, and wait for those results. */
  readonly held: readonly ChatMessage[]
}

/** What operations have made of a thread. */
export interface ThreadEdits {
  readonly fragments: readonly Fragment[]
  readonly searches: readonly Found[]
  /** Ids made so far. */
  readonly ids: number
}

/** A whole thread as plain data (`sampled.tokens` is an Int32Array). */
export interface ThreadRecord extends ThreadHead {
  readonly messages: readonly StoredMessage[]
  readonly edits: ThreadEdits
  readonly ledger: readonly LedgerEntry[]
}

/**
 * A store of threads. When a call's promise is fulfilled, what it wrote survives the end of the process, however it ends. Calls for one thread
 * come one after another, in the order of what happened; `append` and `account` only ever add at the end.
 */
export interface ThreadStore {
  /** All threads, any order. */
  load(): Promise<readonly ThreadRecord[]>
  /** The thread as it is stored, null when it is not. After a change that failed, later ones are made to this. */
  read(tenant: string, id: string): Promise<ThreadRecord | null>
  /** A new thread; a fork comes with all that it starts with. */
  create(thread: ThreadRecord): Promise<void>
  append(tenant: string, id: string, messages: readonly StoredMessage[]): Promise<void>
  /** Replaces what was there. */
  edit(tenant: string, id: string, edits: ThreadEdits): Promise<void>
  account(tenant: string, id: string, entries: readonly LedgerEntry[]): Promise<void>
  /** Replaces what was there. */
  touch(head: ThreadHead): Promise<void>
  delete(tenant: string, id: string): Promise<void>
  close(): Promise<void>
}
