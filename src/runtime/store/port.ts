/** Owns what a store of threads must be able to do; every change is with the store before anybody is told that it was made. */
import type { ChatMessage, ToolDefinition } from '../chat/message.js'
import type { Fragment } from '../context/fragment.js'
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
   * What clients know in its place: the same; nothing (steps that called our tools, and the results); or another message, with the text of
   * such steps before it and without calls of ours.
   */
  readonly seen: 'same' | 'nothing' | ChatMessage
}

/** Everything about a thread that is not a message, an edit, an event or a ledger entry. */
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
  readonly searches: readonly FoundPlace[]
  /** Ids made so far. */
  readonly ids: number
}

/** What happened to a thread beside its steps: the server's policy folded, its client changed messages that it had sent before, or a person or a program edited it. */
export interface ThreadEvent {
  readonly kind: 'policy' | 'client' | 'edit'
  /** Unix milliseconds. */
  readonly at: number
  /** Ledger entries that there were: it counts from the next step on. */
  readonly after: number
  /** Fragments folded; of an edit those that it is about. */
  readonly folded: readonly FragmentId[]
  /** Of an edit: what was done to them. */
  readonly what?: 'cut' | 'folded' | 'restored' | 'summarised'
  /** Tokens that are shown less; negative: more. */
  readonly saves: number
  /** For people. */
  readonly reason: string
  /** What the client took out or replaced, as whoever recognises it again knows it. */
  readonly hidden?: readonly string[]
}

/** A whole thread as plain data (`sampled.tokens` is an Int32Array). */
export interface ThreadRecord extends ThreadHead {
  readonly messages: readonly StoredMessage[]
  readonly edits: ThreadEdits
  readonly ledger: readonly LedgerEntry[]
  /** Oldest first. */
  readonly events: readonly ThreadEvent[]
}

/** What can be said of a thread without reading it. It follows from the thread, and is written with every change. */
export interface ThreadCard {
  /** Stands for the messages that clients know; whoever makes cards knows how. */
  readonly chain: Uint8Array
  /** Stands for the last of them, each by itself. Absent in cards of earlier versions. */
  readonly ends?: readonly string[]
  readonly title: string
  readonly messages: number
  readonly fragments: { readonly open: number; readonly folded: number; readonly summarised: number }
  /** Tokens of the last step, of which `reused` were not computed; null before the first. */
  readonly last: { readonly shown: number; readonly reused: number } | null
}

/** A thread as it stands in the index. */
export interface ListedThread extends Omit<ThreadHead, 'tools' | 'held'> {
  readonly card: ThreadCard
}

/** What is new in a thread: `messages`, `ledger` and `events` go behind what is there, the rest replaces it; what is left out stays. */
export interface ThreadUpdate extends Partial<Pick<ThreadRecord, 'messages' | 'edits' | 'ledger' | 'events'>> {
  /** `messages` take the place of all from this index on. */
  readonly from?: number
  readonly head?: ThreadHead
  readonly card: ThreadCard
  /** Text of it is to be forgotten: other servers are told, with this change or not at all. */
  readonly forgets?: boolean
}

/**
 * A store of threads. When a call's promise is fulfilled, what it wrote survives the end of the process, however it ends. Calls for one thread
 * come one after another, in the order of what happened.
 */
export interface ThreadStore {
  /** All threads that are not known to be damaged, any order. One without a card gets what `cardOf` makes of it. */
  index(cardOf: (thread: ThreadRecord) => ThreadCard): Promise<readonly ListedThread[]>
  /**
   * The thread as it is stored, null when it is not. At once, so that whoever decides about a thread does so on what it is. After a change
   * that failed, later ones are made to this. Of a store that is shared: within `reading` only.
   * @throws KvfoldError store/damaged-thread, store/lost-thread, store/failed
   */
  read(tenant: string, id: string): ThreadRecord | null
  /** A new thread; a fork comes with all that it starts with. */
  create(thread: ThreadRecord, card: ThreadCard): Promise<void>
  /** All of it, or nothing. */
  update(tenant: string, id: string, update: ThreadUpdate): Promise<void>
  delete(tenant: string, id: string): Promise<void>
  /** Threads that are not what was acknowledged, as far as is known now: a damaged one may be found when it is read. None twice. */
  damage(): readonly Damage[]
  close(): Promise<void>
  /** Why nothing can be kept now; null: nothing is known against it. Absent of a store that is in memory, or shared (`SharedThreads.problem`). */
  readonly problem?: KvfoldError | null
  /** Of a store that other servers use at the same time; absent where there are none. */
  readonly shared?: SharedThreads
}

// What servers that use one store at the same time must be able to say to each other.

export interface SharedThreads {
  /** Why nothing can be read or written now; null: nothing is known against it. */
  readonly problem: string | null
  /**
   * Lets `work` read threads, which are elsewhere: whenever it reads one that is not here yet, it is ended, the thread is fetched, and it is begun
   * again. So it must change nothing before it has read its last one. @throws what `work` throws; KvfoldError store/unreachable
   */
  reading<T>(work: () => T): Promise<T>
  /** What other servers did since the last call or `index`; this one's own changes may be among it. @throws KvfoldError store/unreachable */
  changes(): Promise<ThreadChanges>
  /** What the last `changes` said is done here: nothing is left of what was to be forgotten. @throws KvfoldError store/unreachable */
  done(): Promise<void>
  /**
   * Servers that may still have something of the text that the thread's last change had forgotten. Waits up to `patience` milliseconds for those that
   * are there. @throws KvfoldError store/unreachable
   */
  unforgotten(tenant: string, id: string, patience: number): Promise<readonly Unforgotten[]>
  /**
   * From then on no other server may claim the thread, until this one releases it or dies; claims of one server share it. With `wait` it waits for
   * the other server, else: null, another one has it. @throws KvfoldError store/unreachable
   */
  claim(tenant: string, id: string, wait: boolean): Promise<Claim | null>
}

export interface Claim {
  /** Whether what this server last read or wrote of the thread is what it is. */
  readonly isCurrent: boolean
  /** Idempotent. */
  release(): Promise<void>
}

export interface ThreadChanges {
  /** New ones and others that are not what this server knew of them. */
  readonly changed: readonly ListedThread[]
  readonly deleted: readonly Pick<ThreadHead, 'tenant' | 'id'>[]
  /** Of these nothing that was computed may stay; some are told more than once. */
  readonly forgotten: readonly Pick<ThreadHead, 'tenant' | 'id'>[]
}

/** A server that may still have something of a text that is to be forgotten; it forgets it before it serves again. */
export interface Unforgotten {
  readonly server: string
  /** How long nothing was heard from it. */
  readonly silentSeconds: number
}
