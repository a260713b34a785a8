/** Owns the order of generated samples: through all cells first, then the next sample of each. */
import { KvfoldError } from '../../core/errors.js'
import type { Row } from '../data/json-rows.js'
import { openRows } from '../data/rows.js'

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

// Tasks whose cells are files of rows: one name for all of them, and the rows of each in turn.

export interface GridRow<C> {
  readonly cell: C
  /** In its file, from 0. */
  readonly number: number
  readonly row: Row
  /** For whoever looks for it. */
  readonly where: string
}

export interface RowGrid<C> {
  readonly size: number
  /** First rows of all files, then second ones. @throws KvfoldError eval/bad-data */
  at(index: number): Promise<GridRow<C>>
}

/**
 * `name`: a path or a name on the hub, in which {axis} stands for the cell's value of that axis. Every file gives as many rows
 * as the shortest has, up to `limit`.
 * @throws KvfoldError eval/bad-data when a file cannot be read, or the name is the same for two cells
 */
export async function openRowGrid<C extends Readonly<Record<string, string | number>>>(
  name: string,
  cells: readonly C[],
  limit = Infinity,
): Promise<RowGrid<C>> {
  const names = cells.map((cell) => name.replace(/\{(\w+)\}/gu, (slot, axis: string) => String(cell[axis] ?? slot)))
  if (new Set(names).size < names.length) {
    const axes = Object.keys(cells[0] ?? {}).map((axis) => `{${axis}}`)
    throw new KvfoldError(
      'eval/bad-data',
      `${name} is one file for several cells; write ${axes.join(' and ')} where their names differ, or ask for one of each.`,
    )
  }
  const files = await Promise.all(names.map((file) => openRows(file)))
  const places = cells.flatMap((cell, at) => files.slice(at, at + 1).map((rows) => ({ cell, rows })))
  const each = Math.min(limit, ...files.map(({ size }) => size))
  return {
    size: each * cells.length,
    async at(index) {
      const { cell: place, sample: number } = gridPlace(places, each, index)
      return { cell: place.cell, number, row: await place.rows.row(number), where: place.rows.where(number) }
    },
  }
}
