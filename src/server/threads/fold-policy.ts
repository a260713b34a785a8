/** Owns what a client or the server may set about folding without a model's decision. */

/** When `auto-policy` folds tool results, oldest first; all of it is reversible. */
export interface FoldPolicy {
  /** Share of the model's context that must be shown before anything is folded, 0 to 1. Default 0.5. */
  readonly threshold?: number
  /** Answers of the model after which a tool result counts as old. Default 3. Results that it has not answered yet are never folded. */
  readonly olderThanTurns?: number
  /** Tokens from which a tool result counts as large, whatever its age. Default 2000. */
  readonly largerThanTokens?: number
  /** Tokens that must be saved; less is not worth losing the cache for. Default 0. */
  readonly clearAtLeast?: number
}

/** What a conversation that does not fit is answered: an error that says by how much, or tool results folded until it fits (an error if that is not enough). */
export type Overflow = 'refuse' | 'fold-tool-results'

/** `off`: the model answers in one step. `tools`: it has the six context tools besides the client's. `auto-policy`: the server folds by its policy. */
export type Acm = 'off' | 'tools' | 'auto-policy'
