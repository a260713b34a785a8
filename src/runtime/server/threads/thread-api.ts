/** Owns what programs and people may do with live conversations: look, fragment, fold, restore, summarise, search, export, delete. */
import type { AnswerMass } from '../../attention/answer-mass.js'
import type { ChatMessage } from '../../chat/message.js'
import type { FragmentOptions } from '../../context/conversation.js'
import type { CostlyFolds, FoldOptions, Fragment } from '../../context/fragment.js'
import type { Hit, SearchOptions, SearchResult } from '../../context/search.js'
import type { Contract, ContractChoice } from '../../core/contract.js'
import type { Tenant } from '../../core/ids.js'
import type { RefreshResult } from '../../engine/background-recompute.js'
import type { LedgerEntry, MessageCost } from '../../kv/ledger.js'
import type { Residency } from '../../kv/residency.js'
import type { Damage } from '../../store/damage.js'
import type { StoredMessage, ThreadEvent, ThreadRecord, Unforgotten } from '../../store/port.js'

/** A thread at a glance. */
export interface ThreadSummary {
  readonly id: string
  readonly model: string
  /** Beginning of the first user message, 80 characters at most. */
  readonly title: string
  /** Unix milliseconds. */
  readonly created: number
  readonly used: number
  readonly messages: number
  readonly fragments: { readonly open: number; readonly folded: number; readonly summarised: number }
  /** Tokens of the last step, of which `reused` were not computed; null before the first. */
  readonly last: { readonly shown: number; readonly reused: number } | null
  /** Where it was forked from. */
  readonly parent: string | null
  readonly running: boolean
  readonly contract: ContractChoice | null
}

/** A fragment with what the cache has of it. */
export interface ThreadFragment extends Fragment {
  /**
   * Where the cells of its text are: what restoring it would find. Left out when it is open, and when that is not known: the model is not
   * loaded, its engine has no cache here, or the template does not show the step that is under way.
   */
  readonly cells?: Residency
}

/** A message with what is shown of it. */
export interface ThreadMessage {
  readonly index: number
  readonly message: ChatMessage
  /** False: a call or result of ours that clients do not see, or a call of theirs beside it. */
  readonly visible: boolean
  /** Content as the model sees it. */
  readonly shown: string
  readonly fragments: readonly ThreadFragment[]
  /** What the last step's ledger says of it; null when it was not there yet. */
  readonly cost: MessageCost | null
}

export interface ThreadView extends ThreadSummary {
  readonly all: readonly ThreadMessage[]
  /** Entries of all steps, oldest first. */
  readonly ledger: readonly LedgerEntry[]
  /** What the server did to it by itself, oldest first. */
  readonly events: readonly ThreadEvent[]
  /** Names of the tools of the last request, ours included. */
  readonly tools: readonly string[]
  /** Tools that searches of `acm: memtool` found in it, in that order, and whether they are loaded now. */
  readonly found: readonly { readonly name: string; readonly loaded: boolean }[]
}

/** Where the last answer looked, seen in a replay: the cache of a live conversation cannot be looked into. */
export interface ThreadAttention extends AnswerMass {
  /** Index of the answer. */
  readonly message: number
  readonly replay: {
    /**
     * `prefill`: what the answer was shown, in one piece. `steps`: what was shown since nothing hidden had left a trace, one after the other.
     * `guess`: the same, but what was shown before is not known any more; taken for it: everything, and then the folds of now.
     */
    readonly kind: 'prefill' | 'steps' | 'guess'
    /** Of the last prompt. */
    readonly contract: Contract
    /** Prompts shown. */
    readonly prompts: number
    /** All that in a sentence. */
    readonly text: string
  }
}

/** What changed, for whoever watches. */
export interface ThreadChange {
  readonly tenant: Tenant
  readonly thread: string
  readonly kind: 'created' | 'message' | 'fragments' | 'ledger' | 'contract' | 'deleted' | 'running' | 'idle'
}

/**
 * Operations on one tenant's threads. Ids of others are unknown ids. What cannot be carried out changes nothing. Operations that change what
 * is shown count from the next step on; while an ask runs on the thread they wait for its end.
 *
 * @throws KvfoldError server/no-thread; tool/unknown-id, tool/refused, tool/costs-more and tool/bad-arguments from the conversation; what the engine throws
 */
export interface ThreadApi {
  /**
   * Lets `work` look at threads by `list`, `damage`, `get`, `view` and `export`, which see what other servers that share the store did up to then.
   * Of such a store they are to be called within it only; `work` may be begun more than once. @throws what `work` throws; KvfoldError store/unreachable
   */
  reading<T>(work: () => T): Promise<T>
  /** Most recently used first. */
  list(tenant: Tenant): readonly ThreadSummary[]
  /** Those that the store cannot give as they were; whatever is asked of them is refused with this. They can be deleted. */
  damage(tenant: Tenant): readonly Damage[]
  get(tenant: Tenant, id: string): ThreadView
  /** What the thread's clients were told, and told it, oldest first. */
  view(tenant: Tenant, id: string): readonly ChatMessage[]
  fragment(tenant: Tenant, id: string, options: FragmentOptions): Promise<readonly Fragment[]>
  fold(tenant: Tenant, id: string, fragment: string, how?: FoldOptions, costly?: CostlyFolds): Promise<Fragment>
  /** Other servers that may still have something of what the thread's last fold had forgotten, after a few seconds; they forget it before they serve again. */
  unforgotten(tenant: Tenant, id: string): Promise<readonly Unforgotten[]>
  restore(tenant: Tenant, id: string, fragment: string): Promise<Fragment>
  summarize(
    tenant: Tenant,
    id: string,
    fragment: string,
    focus: string,
    signal?: AbortSignal,
    costly?: CostlyFolds,
  ): Promise<{ readonly fragment: Fragment; readonly ledger: readonly LedgerEntry[] }>
  search(tenant: Tenant, id: string, options: SearchOptions): Promise<SearchResult>
  detail(tenant: Tenant, id: string, hit: string, extendedContext?: number): Promise<{ readonly hit: Hit; readonly text: string }>
  /** What later steps of the thread keep to unless a request says otherwise; null: the server's default. */
  contract(tenant: Tenant, id: string, contract: ContractChoice | null): Promise<void>
  /** Makes a spliced thread exact now. Nothing to do: exact, with an empty ledger. */
  refresh(tenant: Tenant, id: string, signal?: AbortSignal): Promise<RefreshResult>
  /**
   * Where the thread's last answer looked; shown again on another context of its model, one at a time. `layers` default: all.
   * @throws KvfoldError attention/unavailable, attention/bad-request, memory/insufficient, context/full, engine/cancelled
   */
  attention(
    tenant: Tenant,
    id: string,
    options?: { readonly layers?: readonly number[]; readonly signal?: AbortSignal },
  ): Promise<ThreadAttention>
  /** Everything, as JSON can hold it. */
  export(tenant: Tenant, id: string): ExportedThread
  /** Out of every tier, the store and memory; what runs is cancelled. */
  delete(tenant: Tenant, id: string): Promise<void>
  /** Calls `listener` after every change until the returned function is called. `tenant` null: of everybody. */
  watch(tenant: Tenant | null, listener: (change: ThreadChange) => void): () => void
}

// How a thread is written out for others: plain JSON, with a version.

/** A message whose sampled tokens are a list of numbers. */
export type ExportedMessage = Omit<ChatMessage, 'sampled'> & {
  readonly sampled?: { readonly text: string; readonly tokens: readonly number[] }
}

export interface ExportedThread extends Omit<ThreadRecord, 'messages' | 'tenant'> {
  readonly format: 'kvfold-thread/1'
  readonly messages: readonly { readonly message: ExportedMessage; readonly seen: StoredMessage['seen'] }[]
}

export function exported({ tenant: _, messages, ...rest }: ThreadRecord): ExportedThread {
  return {
    format: 'kvfold-thread/1',
    ...rest,
    messages: messages.map(({ message: { sampled, ...message }, seen }) => ({
      message: sampled === undefined ? message : { ...message, sampled: { ...sampled, tokens: [...sampled.tokens] } },
      seen,
    })),
  }
}
