/** Owns the order of generated samples: through all cells first, then the next sample of each. */
import { KvfoldError } from '../../core/errors.js'

export interface GridPlace<C> {
  readonly cell: C
  /** Which sample of the cell, from 0. */
  readonly sample: number
}

/** Where the sample of this index stands. @throws KvfoldError eval/bad-data beyond cells x samples */
export function gridPlace<C>(cells: readonly C[], samples: number, index: number): GridPlace<C> {
  const cell = cells[index % cells.length]
  refuseBeyond(index, cells.length * samples)
  if (cell === undefined) throw new KvfoldError('eval/bad-data', 'There are no cells.')
  return { cell, sample: Math.floor(index / cells.length) }
}

/** @throws KvfoldError eval/bad-data */
export function refuseBeyond(index: number, size: number): void {
  if (!Number.isSafeInteger(index) || index < 0 || index >= size)
    throw new KvfoldError('eval/bad-data', `There is no sample ${index}; this task has ${size}, from 0.`)
}

/** Every combination of two axes, the second one running fastest. */
export const crossed = <A, B>(first: readonly A[], second: readonly B[]): (readonly [A, B])[] =>
  first.flatMap((one) => second.map((other) => [one, other] as const))
