/** The interface of a store of threads. A change is stored before a client gets its acknowledgement. */
import type { ChatMessage, ToolDefinition } from '../chat/message.js'
import type { Fragment, Omission } from '../context/fragment.js'
import type { FoundPlace } from '../context/search.js'
import type { ContractChoice } from '../core/contract.js'
import type { KvfoldError } from '../core/errors.js'
import type { FragmentId } from '../core/ids.js'
import type { LedgerEntry } from '../kv/ledger.js'
import type { Damage } from './damage.js'

/** One message of a thread, and what clients see of it. */
export interface StoredMessage {
  readonly message: ChatMessage
  /**
   * What a client's own copy of the conversation has for this message. `same`: this message. `nothing`: it has none, because the message is
   * a step with calls of the server's tools, or a result of one. A message: that one, without calls of the server's tools and with the text
   * of such steps before it.
   */
  readonly seen: 'same' | 'nothing' | ChatMessage
}

/** A thread without its messages, edits, events and ledger entries. */
export interface ThreadHead {
  /** The tenant that the thread belongs to. */
  readonly tenant: string
  /** A digest of the tenant and of the cache salt in its requests (`saltDigest`). Absent when requests have no salt. */
  readonly salt?: string
  readonly id: string
  readonly model: string
  /** When the thread was created, in Unix milliseconds. `used`: when it was last used. */
  readonly created: number
  readonly used: number
  readonly parent: string | null
  readonly contract: ContractChoice | null
  /** The client's tools, as in its last request. */
  readonly tools: readonly ToolDefinition[]
  /**
   * Results of the server's tools that follow calls of the client's tools in the last answer. They are added after the client's results.
   */
  readonly held: readonly ChatMessage[]
}

/** The edits of a thread, and what later edits build on. */
export interface ThreadEdits {
  readonly fragments: readonly Fragment[]
  readonly searches: readonly FoundPlace[]
  /** How many candidate ids the conversation has computed (`IdMint.count`). */
  readonly ids: number
  /** What is hidden beside message contents: whole messages, reasoning, inputs of tool calls. Default: none. */
  readonly omissions?: readonly Omission[]
}

/**
 * Returns the edits after messages changed their indexes. @param placeOf returns a message's new index; undefined when it was removed, and
 * its edits with it
 */
export function movedEdits(
  { fragments, searches, ids, omissions = [] }: ThreadEdits,
  placeOf: (message: number) => number | undefined,
): ThreadEdits {
  const moved = <T extends { readonly message: number }>(each: T): T[] => {
    const place = placeOf(each.message)
    return place === undefined ? [] : [{ ...each, message: place }]
  }
  const omitted = omissions.flatMap(moved)
  return {
    ...{ fragments: fragments.flatMap(moved), searches: searches.flatMap(moved), ids },
    ...(omitted.length === 0 ? {} : { omissions: omitted }),
  }
}

/**
 * Something that changed a thread between its steps: a fold by the server's policy, a change by the client of messages that it had sent, or
 * an edit by a person or program.
 */
export interface ThreadEvent {
  readonly kind: 'policy' | 'client' | 'edit'
  /** When it happened, in Unix milliseconds. */
  readonly at: number
  /** How many ledger entries the thread had then. The event affects the steps after these. */
  readonly after: number
  /** The folded fragments. For an edit: the fragments that it changed. */
  readonly folded: readonly FragmentId[]
  /** For an edit: what it did to the fragments in `folded`. `named`: it changed the thread's title; `folded` is then empty. */
  readonly what?: 'cut' | 'folded' | 'restored' | 'summarised' | 'named'
  /** For `named`: the new title. Null: the title is again taken from the first user message. */
  readonly name?: string | null
  /** How many fewer tokens the prompt has after the event. Negative when it has more. */
  readonly saves: number
  /** Why it happened, in a sentence for people. */
  readonly reason: string
  /** Keys of messages that the client removed or replaced. A message that comes back is recognised by its key. */
  readonly hidden?: readonly string[]
}

/** A whole thread as plain data. Only `sampled.tokens` is not plain JSON (an Int32Array). */
export interface ThreadRecord extends ThreadHead {
  readonly messages: readonly StoredMessage[]
  readonly edits: ThreadEdits
  readonly ledger: readonly LedgerEntry[]
  readonly events: readonly ThreadEvent[]
}

/** A summary of a thread, for listing it and finding it without reading it. It is made from the thread and rewritten with every change. */
export interface ThreadCard {
  /** Identifies the thread's messages as clients see them, all together. Only the code that makes cards interprets the bytes. */
  readonly chain: Uint8Array
  /** Identifies the last messages, one key each. Absent in cards of earlier versions. */
  readonly ends?: readonly string[]
  readonly title: string
  readonly messages: number
  readonly fragments: { readonly open: number; readonly folded: number; readonly summarised: number }
  /** Tokens of the last step, and how many of them were reused; null before the first step. */
  readonly last: { readonly shown: number; readonly reused: number } | null
}

/** A thread as the index lists it, without its messages. */
export interface ListedThread extends Omit<ThreadHead, 'tools' | 'held'> {
  readonly card: ThreadCard
}

/** Returns the fields of a thread that the index lists beside its card. */
export const listedHead = ({
  tenant,
  salt,
  id,
  model,
  created,
  used,
  parent,
  contract,
}: ThreadHead): Omit<ListedThread, 'card'> => ({
  ...{ tenant, id, model, created, used, parent, contract },
  ...(salt === undefined ? {} : { salt }),
})

/** A change of a thread. `messages`, `ledger` and `events` are appended; other fields replace what is stored; absent fields stay. */
export interface ThreadUpdate extends Partial<Pick<ThreadRecord, 'messages' | 'edits' | 'ledger' | 'events'>> {
  /** If set, `messages` replace all stored ones from this index on. */
  readonly from?: number
  /** If set, `events` replace all stored ones from this index on. */
  readonly eventsFrom?: number
  readonly head?: ThreadHead
  readonly card: ThreadCard
  /** Whether text of the thread must be forgotten. Other servers learn of it together with the change. */
  readonly forgets?: boolean
}

/** Deletes the cells of these threads that engines saved on disk, whether or not an engine is loaded. */
export interface SavedThreads {
  drop(threads: readonly string[]): Promise<unknown>
}

/**
 * A store of threads. Once a call's promise is fulfilled, the change survives the end of the process, even a crash. Calls for one thread
 * are carried out in the order in which they were made.
 */
export interface ThreadStore {
  /** Returns all threads that are not known to be damaged, in any order. For a thread without a card, `cardOf` makes one. */
  index(cardOf: (thread: ThreadRecord) => ThreadCard): Promise<readonly ListedThread[]>
  /**
   * Returns the thread as stored; null when the store does not have it. Synchronous, so that the caller can decide before anything changes.
   * After a failed change, returns the state that later changes build on.
   * On a shared store, call it only within `reading`. On other stores it may be called anywhere, but a long thread then blocks the event
   * loop.
   * @throws KvfoldError store/damaged-thread, store/lost-thread, store/failed
   */
  read(tenant: string, id: string): ThreadRecord | null
  /**
   * Runs `work`, which calls `read`. Threads are fetched first, from elsewhere or in turns of the event loop: when `work` reads a thread
   * that is not fetched, it is stopped and runs again after the fetch. So `work` must change nothing before its last read. Absent in a
   * store in memory. @throws what `work` throws; KvfoldError store/unreachable, as of `read`
   */
  reading?<T>(work: () => T): Promise<T>
  /** Stores a new thread. A fork comes with its first messages and edits. */
  create(thread: ThreadRecord, card: ThreadCard): Promise<void>
  /** Applies the change as a whole, or not at all. */
  update(tenant: string, id: string, update: ThreadUpdate): Promise<void>
  delete(tenant: string, id: string): Promise<void>
  /** Returns all threads that are known to differ from their acknowledged state, each once. Later reads may find more. */
  damage(): readonly Damage[]
  close(): Promise<void>
  /**
   * Why the store cannot write at the moment; null when no problem is known. Absent in a store in memory, and in a shared one, which has
   * `SharedThreads.problem`.
   */
  readonly problem?: KvfoldError | null
  /** Present only in a store that several servers share. */
  readonly shared?: SharedThreads
}

// How servers that share a store coordinate.

export interface SharedThreads {
  /** Why the store cannot be read or written at the moment; null when no problem is known. */
  readonly problem: string | null
  /**
   * Returns what other servers (and perhaps this one) changed since the last call, or since `index`. @throws KvfoldError store/unreachable
   */
  changes(): Promise<ThreadChanges>
  /** Confirms that this server has erased all that the last `changes` asked it to forget. @throws KvfoldError store/unreachable */
  done(): Promise<void>
  /**
   * Returns the other servers that may still hold text which the thread's last change with `forgets` hid. Waits up to `patience`
   * milliseconds for running servers to confirm (`done`). @throws KvfoldError store/unreachable
   */
  unforgotten(tenant: string, id: string, patience: number): Promise<readonly Unforgotten[]>
  /**
   * Claims the thread: no other server can claim it until this one releases it or dies. Several claims by one server share the thread. If
   * another server has it, waits with `wait`, else returns null. @throws KvfoldError store/unreachable
   */
  claim(tenant: string, id: string, wait: boolean): Promise<Claim | null>
}

export interface Claim {
  /** Whether the thread is unchanged since this server last read or wrote it. */
  readonly isCurrent: boolean
  /** Gives the claim back. Calling it again does nothing. */
  release(): Promise<void>
}

export interface ThreadChanges {
  /** New threads, and threads that changed since this server last read or wrote them. */
  readonly changed: readonly ListedThread[]
  readonly deleted: readonly Pick<ThreadHead, 'tenant' | 'id'>[]
  /** Threads whose cells must all be deleted. A thread may occur more than once. */
  readonly forgotten: readonly Pick<ThreadHead, 'tenant' | 'id'>[]
}

/** A server that may still hold text to be forgotten. It forgets the text before it serves again. */
export interface Unforgotten {
  readonly server: string
  /** How many seconds ago the server last reported that it runs. */
  readonly silentSeconds: number
}
