/** The terms under which benchmarks carry out folds. */
import type { StepContract } from '../../../src/runtime/kv/plan/parts.js'

export const EXACT: StepContract = { contract: 'exact' }
export const SPLICE: StepContract = { contract: 'splice' }
