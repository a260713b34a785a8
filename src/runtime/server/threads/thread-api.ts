/** What the operations on live conversations take and return (thread-operations.ts). */
import type { AnswerMass } from '../../attention/answer-mass.js'
import type { ChatMessage } from '../../chat/message.js'
import type { Fragment, Omission } from '../../context/fragment.js'
import type { Contract, ContractChoice } from '../../core/contract.js'
import type { Tenant } from '../../core/ids.js'
import type { LedgerEntry, MessageCost } from '../../kv/ledger.js'
import type { Residency } from '../../kv/residency.js'
import type { StoredMessage, ThreadEvent, ThreadRecord } from '../../store/port.js'

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

/** What of an answer's attention to compute. */
export interface LookOptions extends OperationRun {
  /** Default: all layers. */
  readonly layers?: readonly number[]
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
