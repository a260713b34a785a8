/** Types of the operations on threads (`thread-operations.ts`): their options and results. */
import type { AnswerMass } from '../../attention/answer-mass.js'
import type { ChatMessage } from '../../chat/message.js'
import type { Fragment, Omission } from '../../context/fragment.js'
import type { Contract, ContractChoice } from '../../core/contract.js'
import type { Tenant } from '../../core/ids.js'
import type { LedgerEntry, MessageCost } from '../../kv/ledger.js'
import type { Residency } from '../../kv/residency.js'
import type { StoredMessage, ThreadEvent, ThreadRecord } from '../../store/port.js'

/** A thread as a list of threads shows it. */
export interface ThreadSummary {
  readonly id: string
  readonly model: string
  /** The title that `rename` set, else the beginning of the first user message; at most 80 characters. */
  readonly title: string
  /** When the thread was created and last used, in Unix milliseconds. */
  readonly created: number
  readonly used: number
  readonly messages: number
  readonly fragments: { readonly open: number; readonly folded: number; readonly summarised: number }
  /** Prompt tokens of the last answer's step, and how many of them came from the cache; null before the first answer. */
  readonly last: { readonly shown: number; readonly reused: number } | null
  /** The thread that it was forked from. */
  readonly parent: string | null
  readonly running: boolean
  readonly contract: ContractChoice | null
}

/** A fragment, with the residency of its hidden cells. */
export interface ThreadFragment extends Fragment {
  /**
   * Where the cells of the hidden text are now; a restore uses them. Absent for an open fragment, and when unknown: the model is not
   * loaded, its cache is in another process, or the template refuses the present messages.
   */
  readonly cells?: Residency
}

/** A message with its fragments and costs. */
export interface ThreadMessage {
  readonly index: number
  readonly message: ChatMessage
  /**
   * False: clients do not see the message. It is a call of the server's own tools, a result of one, a compacted message, or part of an
   * unfinished turn.
   */
  readonly visible: boolean
  /** The content as the prompt shows it. */
  readonly shown: string
  readonly fragments: readonly ThreadFragment[]
  /** Parts of the message that the prompt leaves out, such as its reasoning. */
  readonly omitted: readonly Omission[]
  /** The message's costs in the ledger of the last answer; null when that prompt did not have the message. */
  readonly cost: MessageCost | null
  /** Tokens that the model sampled for the message. Absent when unknown: the client wrote the message, or it did not end by itself. */
  readonly generated?: number
}

export interface ThreadView extends ThreadSummary {
  readonly all: readonly ThreadMessage[]
  /** Ledger entries of all steps, oldest first. */
  readonly ledger: readonly LedgerEntry[]
  /** Folds by the server and edits by the client, people or programs, oldest first. */
  readonly events: readonly ThreadEvent[]
  /** Names of the client's tools in its last request. */
  readonly tools: readonly string[]
  /** Tools that the model found with `acm: memtool`, in order, and whether each is still loaded. */
  readonly found: readonly { readonly name: string; readonly loaded: boolean }[]
  /** True: only requests with the thread's own salt (`Ask.cacheSalt`) may continue it. */
  readonly salted: boolean
}

/**
 * How much attention the last answer paid to earlier text. Computed by a replay, because the cache of a live conversation keeps no
 * attention weights.
 */
export interface ThreadAttention extends AnswerMass {
  /** Index of the answer among all messages of the thread. */
  readonly message: number
  readonly replay: {
    /**
     * How the answer's prompt was computed again. `prefill`: exactly that prompt, in one prefill. `steps`: all prompts since the cells were
     * last exact, so that traces of hidden text are there. `guess`: those prompts are unknown or show text that was forgotten since, so the
     * prompt is shown with today's folds. If hidden text left traces, the replay first shows that text again, except what is forgotten.
     */
    readonly kind: 'prefill' | 'steps' | 'guess'
    /** Contract of the answer's prompt. */
    readonly contract: Contract
    /** How many prompts were replayed. */
    readonly prompts: number
    /** A sentence for people that describes the replay. */
    readonly text: string
  }
}

export interface ThreadSearch {
  /** The words to find, at most 1000 characters. */
  readonly query: string
  /** The most threads to return. Default 20. */
  readonly maxThreads?: number
}

export interface ThreadsFound {
  readonly threads: readonly ThreadFound[]
  /** False: the search stopped at `maxThreads`, and more threads may match. */
  readonly all: boolean
}

/** A thread with the words in its title or text. */
export interface ThreadFound {
  readonly id: string
  readonly title: string
  /** How many messages contain the words; 0 when only the title does. */
  readonly messages: number
  /** The first match in each of the first three messages that contain the words, with the text around it. */
  readonly places: readonly {
    /** Index of the message among all messages of the thread. */
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

/** How a caller cancels an operation and learns its costs. */
export interface OperationRun {
  readonly signal?: AbortSignal
  /** Receives the ledger entries of the model's steps, even if the operation fails afterwards. */
  readonly onSpent?: (entries: readonly LedgerEntry[]) => void
}

/** Options of `Operations.attention`. */
export interface LookOptions extends OperationRun {
  /** Indexes of the layers whose attention is measured. Default: all. */
  readonly layers?: readonly number[]
}

// The export format of a thread: plain JSON with a version.

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
