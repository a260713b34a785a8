/**
 * Defines the operations on live conversations for programs and people: look, fragment, fold, restore, summarise, search, export, delete.
 */
import type { AnswerMass } from '../../attention/answer-mass.js'
import type { ChatMessage } from '../../chat/message.js'
import type { FragmentOptions } from '../../context/conversation.js'
import type { CostlyFolds, FoldOptions, Fragment, Omission } from '../../context/fragment.js'
import type { Hit, SearchOptions, SearchResult } from '../../context/search.js'
import type { Contract, ContractChoice } from '../../core/contract.js'
import type { Tenant } from '../../core/ids.js'
import type { RefreshResult } from '../../engine/background-recompute.js'
import type { LedgerEntry, MessageCost } from '../../kv/ledger.js'
import type { Residency } from '../../kv/residency.js'
import type { Damage } from '../../store/damage.js'
import type { StoredMessage, ThreadEvent, ThreadRecord, Unforgotten } from '../../store/port.js'

/** The summary of a thread in a list. */
export interface ThreadSummary {
  readonly id: string
  readonly model: string
  /** The title that `rename` set, or else the beginning of the first user message; at most 80 characters. */
  readonly title: string
  /** When the thread was created and last used, in Unix milliseconds. */
  readonly created: number
  readonly used: number
  readonly messages: number
  readonly fragments: { readonly open: number; readonly folded: number; readonly summarised: number }
  /** Tokens of the last step, of which `reused` were not computed; null before the first step. */
  readonly last: { readonly shown: number; readonly reused: number } | null
  /** The thread that it was forked from. */
  readonly parent: string | null
  readonly running: boolean
  readonly contract: ContractChoice | null
}

/** A fragment, and where its cells are. */
export interface ThreadFragment extends Fragment {
  /**
   * Where the cells of its hidden text are now; a restore would use them. Left out when the fragment is open, or when the place is unknown:
   * the model is not loaded, its engine has no cache here, or the template refuses the step in progress.
   */
  readonly cells?: Residency
}

/** A message, and the text of it that the model sees. */
export interface ThreadMessage {
  readonly index: number
  readonly message: ChatMessage
  /**
   * False: clients do not see the message. It is a step with calls of the server's tools, a result of one, or part of a turn that has not
   * ended.
   */
  readonly visible: boolean
  /** The content as the model sees it. */
  readonly shown: string
  readonly fragments: readonly ThreadFragment[]
  /** The parts of the message beside its content that the model does not see. */
  readonly omitted: readonly Omission[]
  /** The message's entry in the last step's ledger; null when the message was not there yet. */
  readonly cost: MessageCost | null
  /**
   * How many tokens the model sampled for the message. Absent when they are unknown: another client wrote it, or it did not end by itself.
   */
  readonly generated?: number
}

export interface ThreadView extends ThreadSummary {
  readonly all: readonly ThreadMessage[]
  /** Ledger entries of all steps, oldest first. */
  readonly ledger: readonly LedgerEntry[]
  /** Folds by the server, and edits by the client, people or programs, oldest first. */
  readonly events: readonly ThreadEvent[]
  /** Names of the client's tools in the last request. */
  readonly tools: readonly string[]
  /** Tools that searches of `acm: memtool` found in the thread, in that order, and whether each is loaded now. */
  readonly found: readonly { readonly name: string; readonly loaded: boolean }[]
  /** Whether only requests with the thread's own salt (`Ask.cacheSalt`) may continue it. */
  readonly salted: boolean
}

/**
 * How much attention the last answer paid to earlier text. A replay computes it, because the cache of a live conversation keeps no
 * attention weights.
 */
export interface ThreadAttention extends AnswerMass {
  /** Index of the answer. */
  readonly message: number
  readonly replay: {
    /**
     * `prefill`: the answer's prompt, in one prefill. `steps`: all prompts since the cells were last exact, one after the other. `guess`:
     * the earlier prompts are unknown or have forgotten text, so the prompt is shown with the present folds. If hidden text left a trace,
     * the prompt is shown before it with only the folds that forget.
     */
    readonly kind: 'prefill' | 'steps' | 'guess'
    /** The contract of the last prompt. */
    readonly contract: Contract
    /** How many prompts were replayed. */
    readonly prompts: number
    /** The replay described in a sentence. */
    readonly text: string
  }
}

export interface ThreadSearch {
  /** The words to find: at most 1000 characters, and not only white space. */
  readonly query: string
  /** The most threads in the answer. Default 20. */
  readonly maxThreads?: number
}

export interface ThreadsFound {
  readonly threads: readonly ThreadFound[]
  /** False: there may be more threads than these. */
  readonly all: boolean
}

/** A thread whose title or text has the words. */
export interface ThreadFound {
  readonly id: string
  readonly title: string
  /** How many messages have the words; 0 when only the title has them. */
  readonly messages: number
  /** For each of the first three messages that have the words: the first place in it, with the text around it. */
  readonly places: readonly {
    /** Index of the message. */
    readonly message: number
    readonly role: ChatMessage['role']
    readonly before: string
    readonly words: string
    readonly after: string
  }[]
}

/** A change of a thread, as `watch` reports it. */
export interface ThreadChange {
  readonly tenant: Tenant
  readonly thread: string
  readonly kind: 'created' | 'message' | 'fragments' | 'ledger' | 'contract' | 'title' | 'deleted' | 'running' | 'idle'
}

/** The part of an operation's caller while it runs. */
export interface OperationRun {
  readonly signal?: AbortSignal
  /** Called with the ledger entries of the model's steps, also where the operation then fails. */
  readonly onSpent?: (entries: readonly LedgerEntry[]) => void
}

/**
 * Operations on one tenant's threads. Ids of other tenants are unknown ids. An operation that fails changes nothing. Edits take effect
 * from the next step; while an ask runs on the thread, they wait for its end. An aborted `signal` ends the wait for a model, with
 * engine/cancelled; summaries, refreshes, searches over threads and looks at attention also end while they run.
 *
 * @throws KvfoldError server/no-thread; tool/unknown-id, tool/refused, tool/costs-more and tool/bad-arguments from the conversation; what
 * the engine throws
 */
export interface ThreadApi {
  /**
   * Runs `work`, which may call `list`, `damage`, `get`, `view`, `hasSalt` and `export`. They see all changes that other servers of a
   * shared store made before. With a shared store, call these six methods only within `reading`. `work` may run more than once.
   * @throws the errors of `work`; KvfoldError store/unreachable
   */
  reading<T>(work: () => T): Promise<T>
  /** The tenant's threads, most recently used first. */
  list(tenant: Tenant): readonly ThreadSummary[]
  /** The tenant's threads that the store cannot read as they were written. Operations on them fail with this damage, except `delete`. */
  damage(tenant: Tenant): readonly Damage[]
  get(tenant: Tenant, id: string): ThreadView
  /** Returns the messages as the thread's clients know them, oldest first. */
  view(tenant: Tenant, id: string): readonly ChatMessage[]
  /** Whether requests with this salt (`Ask.cacheSalt`) may continue the thread. @throws KvfoldError as `view` */
  hasSalt(tenant: Tenant, id: string, cacheSalt: string | undefined): boolean
  fragment(tenant: Tenant, id: string, options: FragmentOptions, signal?: AbortSignal): Promise<readonly Fragment[]>
  fold(
    tenant: Tenant,
    id: string,
    fragment: string,
    how?: FoldOptions,
    costly?: CostlyFolds,
    signal?: AbortSignal,
  ): Promise<Fragment>
  /**
   * Returns the servers that may still hold the text that the thread's last fold with `forget` hid. Waits a few seconds for them. They
   * forget it before they serve again.
   */
  unforgotten(tenant: Tenant, id: string): Promise<readonly Unforgotten[]>
  /** Shows a fragment or an omitted part of a message again. For an omitted part the returned fragment has an empty span. */
  restore(tenant: Tenant, id: string, fragment: string, signal?: AbortSignal): Promise<Fragment>
  summarize(
    tenant: Tenant,
    id: string,
    fragment: string,
    focus: string,
    run?: OperationRun,
    costly?: CostlyFolds,
  ): Promise<{ readonly fragment: Fragment; readonly ledger: readonly LedgerEntry[] }>
  search(tenant: Tenant, id: string, options: SearchOptions, signal?: AbortSignal): Promise<SearchResult>
  detail(
    tenant: Tenant,
    id: string,
    hit: string,
    extendedContext?: number,
    signal?: AbortSignal,
  ): Promise<{ readonly hit: Hit; readonly text: string }>
  /**
   * Searches titles and original texts of the tenant's threads, most recently used first. Upper and lower case are equal, and so is all
   * white space. Reads threads without changing them, and passes over damaged ones.
   * @throws KvfoldError engine/cancelled
   */
  find(tenant: Tenant, options: ThreadSearch, signal?: AbortSignal): Promise<ThreadsFound>
  /** Sets the contract of later steps, unless a request names one; null: the server's default. */
  contract(tenant: Tenant, id: string, contract: ContractChoice | null): Promise<void>
  /** Sets the title, of which lists show 80 characters; null: the beginning of the first user message. */
  rename(tenant: Tenant, id: string, title: string | null): Promise<void>
  /** Recomputes approximate cells of the thread now. If there are none, returns `exact` with an empty ledger. */
  refresh(tenant: Tenant, id: string, run?: OperationRun): Promise<RefreshResult>
  /**
   * Returns how much attention the thread's last answer paid to earlier text. Replays the answer on another context of its model, one
   * replay at a time. `layers` default: all.
   * @throws KvfoldError attention/unavailable, attention/bad-request, memory/insufficient, context/full, engine/cancelled
   */
  attention(
    tenant: Tenant,
    id: string,
    options?: OperationRun & { readonly layers?: readonly number[] },
  ): Promise<ThreadAttention>
  /** Returns the whole thread as plain JSON. */
  export(tenant: Tenant, id: string): ExportedThread
  /**
   * Deletes the thread from every tier, the store and memory; cancels its running step. Returns whether it did.
   * @param unusedSince keeps the thread if it is in use, or was used at or after this time (Unix milliseconds)
   */
  delete(tenant: Tenant, id: string, unusedSince?: number): Promise<boolean>
  /**
   * Calls `listener` after every change until the returned function is called. If `tenant` is null, it hears the changes of all tenants.
   */
  watch(tenant: Tenant | null, listener: (change: ThreadChange) => void): () => void
}

// The exported form of a thread: plain JSON, with a version.

/** A message with its sampled tokens as an array of numbers. */
export type ExportedMessage = Omit<ChatMessage, 'sampled'> & {
  readonly sampled?: { readonly text: string; readonly tokens: readonly number[] }
}

export interface ExportedThread extends Omit<ThreadRecord, 'messages' | 'tenant' | 'salt'> {
  readonly format: 'kvfold-thread/1'
  readonly messages: readonly { readonly message: ExportedMessage; readonly seen: StoredMessage['seen'] }[]
}

export function exported({ tenant: _, salt: _salt, messages, ...rest }: ThreadRecord): ExportedThread {
  return {
    format: 'kvfold-thread/1',
    ...rest,
    messages: messages.map(({ message: { sampled, ...message }, seen }) => ({
      message: sampled === undefined ? message : { ...message, sampled: { ...sampled, tokens: [...sampled.tokens] } },
      seen,
    })),
  }
}
