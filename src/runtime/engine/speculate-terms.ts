/** The options of a request or an engine for speculative decoding (speculation.ts). */
import { KvfoldError } from '../core/errors.js'

/**
 * `ngram`: drafts whenever the last tokens occurred before. `draft`: always drafts with the draft model. `auto`: drafts from both, as many
 * tokens as pay by measured hits and times, often none. `off`: drafts nothing.
 */
export type SpeculateKind = 'auto' | 'off' | 'ngram' | 'draft'

export const SPECULATE_KINDS: readonly SpeculateKind[] = ['auto', 'off', 'ngram', 'draft']

/** How the tokens of an answer are drafted. An unset field has the engine's value. */
export interface SpeculateOptions {
  readonly kind?: SpeculateKind
  /** The most tokens drafted at once, 0 to `MOST_DRAFTED`. Default 32. */
  readonly most?: number
  /** Fewer tokens than this are not drafted. Default 1. */
  readonly least?: number
}

/** The most tokens that a request may draft at once. */
export const MOST_DRAFTED = 64
const DEFAULT_MOST = 32

/**
 * Fills in the defaults of the options, and checks their numbers.
 * @throws KvfoldError engine/bad-request for numbers out of bounds
 */
export function speculateTerms(asked: SpeculateOptions | undefined, kind: SpeculateKind): Required<SpeculateOptions> {
  const terms = { kind, most: DEFAULT_MOST, least: 1, ...asked }
  const { most, least } = terms
  if (!Number.isInteger(most) || most < 0 || most > MOST_DRAFTED)
    throw new KvfoldError('engine/bad-request', `speculate.most is ${most}; give a whole number from 0 to ${MOST_DRAFTED}.`)
  if (!Number.isInteger(least) || least < 0 || least > MOST_DRAFTED)
    throw new KvfoldError('engine/bad-request', `speculate.least is ${least}; give a whole number from 0 to ${MOST_DRAFTED}.`)
  return most === 0 ? { ...terms, kind: 'off' } : terms
}
