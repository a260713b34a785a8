/** What the harness tells the worker, and what that says: plain data, so that a history can be printed and replayed. */
import type { Contract, ContractChoice, LedgerEntry } from '../../src/index.js'

/** How keys and values are kept. */
export type CacheType = 'f32' | 'f16' | 'q8_0'

/** How an engine is opened. */
export interface Opening {
  readonly model: string
  readonly cells: number
  readonly sequences: number
  readonly slots: number
  readonly ubatch: number
  readonly flashAttention: 'on' | 'off'
  readonly keyType: CacheType
  readonly valueType: CacheType
  readonly hostBytes: number
  /** A folder for the disk tier. */
  readonly disk: string | null
  /** A second engine gets the same steps under `exact`. */
  readonly twin: boolean
}

export interface StepOp {
  readonly op: 'step'
  readonly talk: string
  readonly contract: ContractChoice
  /** The client may have sent other messages before. */
  readonly clientEdits?: ContractChoice
  readonly maxTokens?: number
  /** Every token of the answer is this one; default: sampled. */
  readonly bias?: number
  /** The answer becomes a message. */
  readonly keep: boolean
  readonly cancel?: { readonly milliseconds: number; readonly tokens: number }
}

/** What a client does to its list of messages. `again`: one of all that it ever sent takes the place of one, or comes between. */
export interface MessageEdit {
  readonly kind: 'replace' | 'shorten' | 'empty' | 'remove' | 'insert' | 'summarise' | 'again'
  readonly pick: number
  readonly content: string
}

/** `pick` chooses among what there is, modulo its number, so that a history with operations left out still runs. */
export type Op =
  | { readonly op: 'open'; readonly setting: Opening }
  | { readonly op: 'reopen' | 'check' | 'close' }
  | { readonly op: 'begin'; readonly talk: string; readonly tenant: string }
  | { readonly op: 'add'; readonly talk: string; readonly role: 'system' | 'user' | 'tool'; readonly content: string }
  /** `start` and `share`: of the message's length. */
  | {
      readonly op: 'fragment'
      readonly talk: string
      readonly pick: number
      readonly start: number
      readonly share: number
      readonly pieces: number
    }
  | { readonly op: 'fold'; readonly talk: string; readonly pick: number; readonly contract?: Contract }
  | { readonly op: 'restore' | 'summarise'; readonly talk: string; readonly pick: number }
  | { readonly op: 'search'; readonly talk: string; readonly query: string }
  | { readonly op: 'refresh' | 'compact' | 'closeGaps' | 'forget'; readonly talk: string }
  | { readonly op: 'rewrite'; readonly talk: string; readonly edits: readonly MessageEdit[] }
  /** The last user message is another one, which only ends as it did; what came behind it is left out. */
  | { readonly op: 'other'; readonly talk: string; readonly content: string }
  /** To what one of its steps was asked. */
  | { readonly op: 'back'; readonly talk: string; readonly pick: number }
  | { readonly op: 'fork'; readonly talk: string; readonly from: string }
  | StepOp
  | { readonly op: 'together'; readonly steps: readonly StepOp[] }

export interface StepSaid {
  readonly talk: string
  readonly tenant: string
  /** What the library says it shows. */
  readonly prompt: readonly number[]
  /** Original contents, and what is hidden of them. */
  readonly contents: readonly string[]
  readonly fragments: readonly {
    readonly message: number
    readonly span: { readonly start: number; readonly end: number }
    readonly kind: 'open' | 'folded' | 'summarised'
    /** The text shown in its place, if the model wrote it: a real model repeats what it read. */
    readonly summary?: string
  }[]
  /** How it ended, or the code of its error. */
  readonly outcome: string
  readonly generated: readonly number[]
  /** Per generated token all log-probabilities, as base64 of 32-bit floats. */
  readonly rows: readonly string[]
  /** Instead of `rows`: the largest ones, largest first. */
  readonly tops?: readonly (readonly number[])[]
  /** Entries that the step added. */
  readonly ledger: readonly LedgerEntry[]
  readonly twin: LedgerEntry | null
}

export interface WorkerSaid {
  readonly error?: string
  readonly refused?: string
  readonly edits?: 'tags' | 'checkpoints'
  readonly steps?: readonly StepSaid[]
  readonly ledger?: readonly LedgerEntry[]
  /** Tokens of summaries so far. */
  readonly aside?: number
  /** Tokens that the engine says it submitted since it was opened. */
  readonly submitted?: number
}
