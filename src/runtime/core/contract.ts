/** The contracts: the promises that an edit of the context makes about the cache (docs/contracts.md). */

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

/** Returns the contract that a step under this choice keeps. */
export const contractOfStep = (choice: ContractChoice): Contract => (choice === 'auto' ? 'splice' : choice)

/**
 * Says which tokens of the tail `blend` computes again. The tail is the text behind new holes, as far as it is approximate. Several fields
 * may be set; the tokens of all of them are computed. Without `echo`, `asked`, `first`, `ending`, `messages` and `spread` the default
 * applies (`BLEND_DEFAULT` in kv/plan/blend.ts); `most` and `decode` may be given beside it.
 */
export interface BlendChoice {
  /**
   * Echoes of the hidden text, and this many tokens on either side of each. An echo is a pair of tokens that occurs in the hidden text, but
   * not in the shown text before it. At an echo, a model that read the hidden text goes on with that text.
   */
  readonly echo?: number
  /**
   * Places in the tail that the prompt's ending asks about, and this many tokens on either side of each. Such a place is a pair of tokens
   * that also occurs in the last 24 tokens, and in at most two places before them.
   */
  readonly asked?: number
  /** How many tokens directly behind each hole. */
  readonly first?: number
  /** How many tokens at the end of the prompt, because the question is usually at the end. */
  readonly ending?: number
  /** The tokens of how many messages at the end. */
  readonly messages?: number
  /** This share (0..1) of the tail, in runs at even distances. It is for comparisons: equally much work at places without a reason. */
  readonly spread?: number
  /**
   * If the chosen tokens would take more than this share (0..1) of the time that the whole tail takes, the step is exact. Default: 1, and
   * 0.4 for the default choices.
   */
  readonly most?: number
  /**
   * How many tokens can be computed in the time that one more decode takes. Tokens between two chosen ones are computed, too, if that is
   * faster than another decode. Default: 8, which suits a CPU; an engine with a calibration uses its own rates.
   */
  readonly decode?: number
}
