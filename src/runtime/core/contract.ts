/** The contracts: what an edit of the context promises about the cache (docs/contracts.md). */

/**
 * `exact`: the cells equal those of a fresh prefill of the shown tokens. `splice`: hidden tokens cannot be attended to, but the text after
 * them keeps its old cells, which carry a trace of the hidden text. `blend`: a splice, after which chosen tokens of that text are computed
 * again.
 */
export const CONTRACTS = ['exact', 'splice', 'blend'] as const
export type Contract = (typeof CONTRACTS)[number]

/** `auto`: a splice at once, which the background recompute makes exact while the engine is idle. */
export type ContractChoice = Contract | 'auto'

export const CONTRACT_CHOICES = [...CONTRACTS, 'auto'] as const satisfies readonly ContractChoice[]

/** Stands for every token of forgotten text in an unedited prompt. So no sequence that holds the text matches the prompt. */
export const FORGOTTEN = -1

/** Returns the contract that a step under this choice keeps. */
export const contractOfStep = (choice: ContractChoice): Contract => (choice === 'auto' ? 'splice' : choice)

/**
 * Chooses which tokens of the tail `blend` computes again. The tail is the approximate text behind new holes. Several fields may be set; a
 * token is computed if any of them chooses it. Without `echo`, `asked`, `first`, `ending`, `messages` and `spread` the default applies
 * (`BLEND_DEFAULT` in kv/plan/blend.ts); `most` and `decode` may be set beside it.
 */
export interface BlendChoice {
  /**
   * Chooses each echo of the hidden text, and this many tokens on either side of it. An echo is a pair of tokens that occurs in the hidden
   * text, but not in the shown text before it. There, a model that has read the hidden text tends to go on with that text.
   */
  readonly echo?: number
  /**
   * Chooses what the end of the prompt asks about, and this many tokens on either side. That is a pair of tokens that also occurs in the
   * last 24 tokens, and at most twice before them.
   */
  readonly asked?: number
  /** Chooses this many tokens directly behind each hole. */
  readonly first?: number
  /** Chooses this many tokens at the end of the prompt, where the question usually is. */
  readonly ending?: number
  /** Chooses the tokens of this many messages at the end. */
  readonly messages?: number
  /** Chooses this share (0..1) of the tail, in runs at even distances. For comparisons: as much work, but at no particular tokens. */
  readonly spread?: number
  /**
   * The step is exact if computing the chosen tokens would take more than this share (0..1) of the time for the whole tail. Default: 1; 0.4
   * for the default choices.
   */
  readonly most?: number
  /**
   * How many tokens can be computed in the time that one more decode costs. Tokens between two chosen ones are computed, too, if that is
   * faster than another decode. Default: 8, which suits a CPU; a calibrated engine uses its own rates.
   */
  readonly decode?: number
}
