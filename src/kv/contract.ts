/** What a step is asked to keep to. */
import type { Contract } from '../core/contract.js'

/** Which tokens after new holes `blend` computes again; all given choices together. */
export interface BlendChoice {
  /** The first this many tokens after each hole. */
  readonly first?: number
  /** Those of the last this many messages. */
  readonly messages?: number
  /** This share (0..1) of all approximate tokens: those with the highest attention scores, or, without scores, the first ones after the holes. */
  readonly ratio?: number
}

/** What a step is asked to keep to. */
export interface Terms {
  readonly contract: Contract
  /** For `blend`; default: a ratio of 0.2. */
  readonly blend?: BlendChoice
  /** The shown tokens from this place on are computed, whoever holds them: somebody wants to watch. Default: none of them. */
  readonly anew?: number
}

export const EXACT: Terms = { contract: 'exact' }

/** The one that promises more: `exact` before `blend` before `splice`. */
export const stricter = (a: Contract, b: Contract): Contract => {
  const rank = (of: Contract) => ['splice', 'blend', 'exact'].indexOf(of)
  return rank(a) >= rank(b) ? a : b
}
