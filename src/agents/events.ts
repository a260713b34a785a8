/** Owns what an agent tells of a turn: while it runs, and at its end. */
import type { ChatMessage, ToolCall, ToolChoice } from '../chat/message.js'
import type { EngineEvent, Finish, Timing } from '../engine/engine.js'
import type { LedgerEntry } from '../kv/ledger.js'

/** One call of a step and what came of it. */
export interface CallReport {
  readonly call: ToolCall
  /** Content of the tool message. */
  readonly text: string
  /** True when a context-modifying tool changed the conversation. */
  readonly modifies: boolean
  readonly failed: boolean
}

/** One step: one answer generated, and the calls in it carried out. */
export interface StepReport {
  readonly ledger: LedgerEntry
  /** Steps that the calls themselves took (summaries). */
  readonly side: readonly LedgerEntry[]
  readonly timing: Timing
  readonly finish: Finish
  /** Index of the message that the step added; where it would have stood if a cancelled one was not kept. */
  readonly message: number
  readonly calls: readonly CallReport[]
}

export type AgentEvent =
  | { readonly type: 'step'; readonly step: number; readonly toolChoice: ToolChoice }
  /** What the engine reports while it works: plan, prefill, tokens, text, reasoning, calls, rewrites. */
  | { readonly type: 'engine'; readonly step: number; readonly event: EngineEvent }
  /** The step's own entry, or one of a summary. */
  | { readonly type: 'ledger'; readonly step: number; readonly entry: LedgerEntry }
  /** A call is about to be carried out. */
  | { readonly type: 'call'; readonly step: number; readonly call: ToolCall }
  | ({ readonly type: 'result'; readonly step: number } & CallReport)

/** How a turn ended: by itself, with calls that somebody else carries out, cut off at the token limit, or cancelled. */
export type TurnEnd = Finish

export interface TurnOutcome {
  /** The last message's text; what there is of it when the turn was cancelled. */
  readonly answer: string
  readonly end: TurnEnd
  readonly steps: readonly StepReport[]
  /** Calls carried out. */
  readonly calls: number
  /** Calls of the last step that somebody else carries out, in order; the conversation cannot go on before their results are in it. */
  readonly external: readonly ToolCall[]
  /** Results of own calls that stand behind one of those in the last step, in order: to be added after it, with its result. */
  readonly held: readonly ChatMessage[]
  /** Calls refused because the turn had used up its calls. */
  readonly refusedCalls: number
  /** Entries of all steps and summaries, oldest first. */
  readonly ledger: readonly LedgerEntry[]
  /**
   * Tokens the context held at the end of the first step and of the last, everything counted: system message, tools,
   * transcript, what was generated.
   */
  readonly contextBefore: number
  readonly contextAfter: number
}
