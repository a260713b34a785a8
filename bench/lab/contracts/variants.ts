/** Owns the ways of carrying out a fold that benches compare. */
import type { Terms } from '../../../src/runtime/kv/plan/parts.js'

export const EXACT: Terms = { contract: 'exact' }
export const SPLICE: Terms = { contract: 'splice' }
