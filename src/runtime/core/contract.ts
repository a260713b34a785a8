/** The contracts: what an edit of the context promises about the cache (docs/contracts.md). */

/**
 * `exact`: the cache equals a fresh prefill of the shown tokens. `splice`: hidden tokens cannot be attended to, and the text after them
 * keeps its old values, which carry the hidden text's trace. `blend`: a splice, after which chosen spans of that text are computed again.
 */
export const CONTRACTS = ['exact', 'splice', 'blend'] as const
export type Contract = (typeof CONTRACTS)[number]

/** `auto`: a splice at once, which is made exact again while the engine is idle. */
export type ContractChoice = Contract | 'auto'

export const CONTRACT_CHOICES = [...CONTRACTS, 'auto'] as const satisfies readonly ContractChoice[]

/** Replaces every token of a forgotten text in an unedited prompt. No sequence that holds the text then matches the prompt. */
export const FORGOTTEN = -1

/** The contract that a step under this choice keeps. */
export const contractOfStep = (choice: ContractChoice): Contract => (choice === 'auto' ? 'splice' : choice)

/**
 * Which tokens of the tail `blend` computes again; the tail is the text behind new holes, as far as it is approximate. The choices add up.
 * Without any of them the default counts (`BLEND_DEFAULT` in kv/plan/blend.ts); `most` and `decode` may be given beside it.
 */
export interface BlendChoice {
  /**
   * Echoes of the hidden text, and this many tokens on either side of each. An echo is a pair of tokens that the hidden text has and that
   * the shown text before it has not. A model that read the hidden text continued it there.
   */
  readonly echo?: number
  /**
   * Places in the tail that the ending asks about, and this many tokens on either side of each: pairs of tokens of the last 24 that stand
   * nowhere else, or in two places at most.
   */
  readonly asked?: number
  /** The first this many tokens behind each hole. */
  readonly first?: number
  /** The last this many tokens of the prompt; the question usually stands there. */
  readonly ending?: number
  /** The tokens of the last this many messages. */
  readonly messages?: number
  /** This share (0..1) of the tail, in runs at even distances. For comparisons: the same work without a reason for the place. */
  readonly spread?: number
  /**
   * If this would take more than this share (0..1) of the time that the whole tail takes, the step is exact. Default: 1, and 0.4 for the
   * default choices.
   */
  readonly most?: number
  /**
   * How many tokens can be computed in the time that one more decode takes. Tokens between two chosen ones are computed, too, where that is
   * faster than another decode. Default: 8, as a CPU needs; an engine with a calibration takes its rates.
   */
  readonly decode?: number
}
