/** Owns the alternatives of a turn: go on with the long context, or fold it under a contract. */
import { CONTRACTS, type Contract } from '../../core/contract.js'
import { EXACT, type Terms } from '../../kv/contract.js'

/** `keep`: nothing is folded, and all of it is cached. */
export type Way = 'keep' | Contract

export const WAYS: readonly Way[] = ['keep', ...CONTRACTS]

/** `blend`: the share of what follows the fold that it computes again. */
export function termsOf(way: Way, blend: number): Terms {
  if (way === 'keep') return EXACT
  return way === 'blend' ? { contract: way, blend: { ratio: blend } } : { contract: way }
}
