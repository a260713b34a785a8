/** The port of a store of threads. Every change is in the store before a client gets an acknowledgement. */
import type { ChatMessage, ToolDefinition } from '../chat/message.js'
import type { Fragment, Omission } from '../context/fragment.js'
import type { FoundPlace } from '../context/search.js'
import type { ContractChoice } from '../core/contract.js'
import type { KvfoldError } from '../core/errors.js'
import type { FragmentId } from '../core/ids.js'
import type { LedgerEntry } from '../kv/ledger.js'
import type { Damage } from './damage.js'

/** One message of a thread. */
export interface StoredMessage {
  readonly message: ChatMessage
  /**
   * The form in which clients know the message. `same`: the same message. `nothing`: clients know nothing of it, because it is a step with
   * calls of the server's tools, or a result of one. Else a different message: it has the text of such steps before it, and no calls of the
   * server's tools.
   */
  readonly seen: 'same' | 'nothing' | ChatMessage
}

/** The facts of a thread besides its messages, edits, events and ledger entries. */
export interface ThreadHead {
  /** The tenant whose keys sent its requests. */
  readonly tenant: string
  /** A digest of its tenant and of the salt of its requests (`saltDigest`). Absent when they have no salt. */
  readonly salt?: string
  readonly id: string
  readonly model: string
  /** When the thread was created and last used, in Unix milliseconds. */
  readonly created: number
  readonly used: number
  readonly parent: string | null
  readonly contract: ContractChoice | null
  /** The client's tools, as its last request gave them. */
  readonly tools: readonly ToolDefinition[]
  /** Results of the server's tools that follow calls of the client's in the last answer. They wait for the client's results. */
  readonly held: readonly ChatMessage[]
}

/** The edits of a thread, and the state that later edits build on. */
export interface ThreadEdits {
  readonly fragments: readonly Fragment[]
  readonly searches: readonly FoundPlace[]
  /** How many ids were made so far. */
  readonly ids: number
  /** The parts of messages, beside their contents, that are not shown. Default: none. */
  readonly omissions?: readonly Omission[]
}

/**
 * Returns the edits of a thread whose messages moved to other indexes. @param placeOf a message's new index; undefined when the message and
 * its edits are gone
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
 * An event outside a thread's steps. The server's policy folded, or the client changed messages that it had sent before, or a person or a
 * program edited the thread.
 */
export interface ThreadEvent {
  readonly kind: 'policy' | 'client' | 'edit'
  /** When the event happened, in Unix milliseconds. */
  readonly at: number
  /** How many ledger entries the thread had at the time. The event affects the steps after them. */
  readonly after: number
  /** The folded fragments; for an edit, the fragments that it changed. */
  readonly folded: readonly FragmentId[]
  /** For an edit: the operation on the fragments in `folded`. `named`: the thread got another title; `folded` is then empty. */
  readonly what?: 'cut' | 'folded' | 'restored' | 'summarised' | 'named'
  /** For `named`: the new title. Null: the title is the beginning of the first user message again. */
  readonly name?: string | null
  /** How many fewer tokens are shown after the event. Negative when more are shown. */
  readonly saves: number
  /** Why it happened: a sentence for people. */
  readonly reason: string
  /** Keys of messages that the client removed or replaced; they recognise a message that returns. */
  readonly hidden?: readonly string[]
}

/** A whole thread as plain data (`sampled.tokens` is an Int32Array). */
export interface ThreadRecord extends ThreadHead {
  readonly messages: readonly StoredMessage[]
  readonly edits: ThreadEdits
  readonly ledger: readonly LedgerEntry[]
  /** The thread's events, oldest first. */
  readonly events: readonly ThreadEvent[]
}

/** A summary that lists and finds a thread without reading it. It is derived from the thread, and written with every change. */
export interface ThreadCard {
  /** Identifies all messages that clients know. Only the maker of cards interprets these bytes. */
  readonly chain: Uint8Array
  /** Identifies the last messages, one key each. Absent in cards of earlier versions. */
  readonly ends?: readonly string[]
  readonly title: string
  readonly messages: number
  readonly fragments: { readonly open: number; readonly folded: number; readonly summarised: number }
  /** Tokens of the last step, of which `reused` were not computed; null before the first step. */
  readonly last: { readonly shown: number; readonly reused: number } | null
}

/** A thread in the store's index, without its messages. */
export interface ListedThread extends Omit<ThreadHead, 'tools' | 'held'> {
  readonly card: ThreadCard
}

/** Returns the facts of a thread that the index lists beside its card. */
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

/** The changes of a thread: `messages`, `ledger` and `events` are appended, other fields replace the stored ones, absent fields stay. */
export interface ThreadUpdate extends Partial<Pick<ThreadRecord, 'messages' | 'edits' | 'ledger' | 'events'>> {
  /** `messages` replace all stored ones from this index on. */
  readonly from?: number
  /** `events` replace all stored ones from this index on. */
  readonly eventsFrom?: number
  readonly head?: ThreadHead
  readonly card: ThreadCard
  /** True: text of the thread must be forgotten. Other servers learn this together with the change itself. */
  readonly forgets?: boolean
}

/** Deletes the cells that engines saved on disk for the given threads, even if no engine is loaded. */
export interface SavedThreads {
  drop(threads: readonly string[]): Promise<unknown>
}

/**
 * A store of threads. When a call's promise is fulfilled, its change survives the end of the process, even a crash. Calls for one thread
 * are made one after another, in the order of events.
 */
export interface ThreadStore {
  /** Returns all threads that are not known to be damaged, in any order. A thread without a card gets the one that `cardOf` makes. */
  index(cardOf: (thread: ThreadRecord) => ThreadCard): Promise<readonly ListedThread[]>
  /**
   * Returns the thread as stored; null when the store does not have it. Synchronous, so that a caller decides on the thread's present
   * state. After a failed change, `read` gives the state that later changes apply to. On a shared store, call it only within `reading`. On
   * other stores, a long thread that is read outside of `reading` holds the event loop.
   * @throws KvfoldError store/damaged-thread, store/lost-thread, store/failed
   */
  read(tenant: string, id: string): ThreadRecord | null
  /**
   * Runs `work`, which reads threads that the store first fetches, in turns of the event loop or from elsewhere. When `work` reads a thread
   * that is not fetched yet, `work` is stopped, the thread is fetched, and `work` is started again. So `work` must change nothing before
   * its last read. Absent in a store in memory. @throws what `work` throws; KvfoldError store/unreachable, as of `read`
   */
  reading?<T>(work: () => T): Promise<T>
  /** Stores a new thread; a fork has its first messages and edits already. */
  create(thread: ThreadRecord, card: ThreadCard): Promise<void>
  /** Applies the whole change, or none of it. */
  update(tenant: string, id: string, update: ThreadUpdate): Promise<void>
  delete(tenant: string, id: string): Promise<void>
  /** Threads that differ from their acknowledged state, as far as is known now. A later read may find more. Each thread is listed once. */
  damage(): readonly Damage[]
  close(): Promise<void>
  /**
   * Why the store cannot write now; null when no problem is known. Absent in a store in memory, and in a shared one
   * (`SharedThreads.problem`).
   */
  readonly problem?: KvfoldError | null
  /** Present only in a store that several servers use at the same time. */
  readonly shared?: SharedThreads
}

// The operations by which servers with one store coordinate.

export interface SharedThreads {
  /** Why the store cannot be read or written now; null when no problem is known. */
  readonly problem: string | null
  /**
   * Returns the changes since the last call or `index`, by other servers and possibly by this one. @throws KvfoldError store/unreachable
   */
  changes(): Promise<ThreadChanges>
  /** Confirms the last `changes`: this server has erased everything that had to be forgotten. @throws KvfoldError store/unreachable */
  done(): Promise<void>
  /**
   * Returns the other servers that may still hold text which the thread's last change with `forgets` hid. Waits up to `patience`
   * milliseconds until every running one has confirmed (`done`). @throws KvfoldError store/unreachable
   */
  unforgotten(tenant: string, id: string, patience: number): Promise<readonly Unforgotten[]>
  /**
   * Claims the thread: no other server may claim it until this one releases it or dies. Several claims by one server share the thread.
   * When another server has the thread, waits for it with `wait`, else returns null. @throws KvfoldError store/unreachable
   */
  claim(tenant: string, id: string, wait: boolean): Promise<Claim | null>
}

export interface Claim {
  /** Whether the thread is still as this server last read or wrote it. */
  readonly isCurrent: boolean
  /** Gives the claim back. Further calls do nothing. */
  release(): Promise<void>
}

export interface ThreadChanges {
  /** New threads, and threads that changed since this server last read or wrote them. */
  readonly changed: readonly ListedThread[]
  readonly deleted: readonly Pick<ThreadHead, 'tenant' | 'id'>[]
  /** Threads whose computed cells must all be deleted. The list may name a thread more than once. */
  readonly forgotten: readonly Pick<ThreadHead, 'tenant' | 'id'>[]
}

/** A server that may still hold text that must be forgotten. It forgets the text before it serves again. */
export interface Unforgotten {
  readonly server: string
  /** Seconds since the server last reported that it runs. */
  readonly silentSeconds: number
}
