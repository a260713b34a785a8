/** Owns the ways of carrying out a fold that are compared. */
import type { BlendChoice, Terms } from '../../../src/runtime/kv/plan/parts.js'

export const EXACT: Terms = { contract: 'exact' }
export const SPLICE: Terms = { contract: 'splice' }
const blend = (choice: BlendChoice): Terms => ({ contract: 'blend', blend: choice })

/** Folds of the grid that differ in their contract alone. */
export const FOLDS = {
  exact: EXACT,
  splice: SPLICE,
  'blend, first 64': blend({ first: 64 }),
  'blend 0.1': blend({ ratio: 0.1 }),
  'blend 0.3': blend({ ratio: 0.3 }),
} as const satisfies Record<string, Terms>

/** All that the grid measures: the folds, a fold whose gap is closed, and folds that are restored after a tool result. */
export const VARIANTS = [
  ...(Object.keys(FOLDS) as (keyof typeof FOLDS)[]),
  'splice, gaps closed',
  'splice, restored',
  'exact, restored',
] as const
export type Variant = (typeof VARIANTS)[number]

/** How folds are carried out while a task is solved. */
export interface Way {
  readonly terms: Terms
  /** Whether the gaps that a splice leaves in the positions are closed before the model goes on. */
  readonly closing: boolean
}

const way = (terms: Terms, closing = false): Way => ({ terms, closing })

/** When the model folds by itself. */
export const BY_MODEL: Readonly<Record<string, Way>> = {
  exact: way(EXACT),
  splice: way(SPLICE),
  'splice, gaps closed': way(SPLICE, true),
  'blend 0.2': way(blend({ ratio: 0.2 })),
}

/** When a program folds for it; null: nothing is folded. */
export const BY_PROGRAM: Readonly<Record<string, Way | null>> = {
  whole: null,
  exact: way(EXACT),
  splice: way(SPLICE),
  'splice, gaps closed': way(SPLICE, true),
  'blend 0.1': way(FOLDS['blend 0.1']),
  'blend 0.3': way(FOLDS['blend 0.3']),
}
