/** The ways to carry out a fold that benches compare. */
import type { StepContract } from '../../../src/runtime/kv/plan/parts.js'

export const EXACT: StepContract = { contract: 'exact' }
export const SPLICE: StepContract = { contract: 'splice' }
