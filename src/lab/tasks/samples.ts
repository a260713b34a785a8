/** What the tasks share: checks of options and rows, with readable errors for the user, and the order of samples by cell. */
import Type, { type Static, type TSchema } from 'typebox'
import { KvfoldError } from '../../runtime/core/errors.js'
import { allInWords, checked } from '../../runtime/core/schema.js'
import { openRows, type Row } from '../data/rows.js'
import type { TaskSpec } from '../task.js'

/** Returns the options with defaults filled in. @throws KvfoldError eval/bad-data that names every wrong option */
export function readOptions<T extends TSchema>(schema: T, { task, options }: TaskSpec): Static<T> {
  const read = checked(schema, options)
  if (read.ok) return read.value
  throw new KvfoldError('eval/bad-data', `${task} cannot use these options: ${allInWords(read.faults, 'options')}.`)
}

/** Makes the schema of an option that lists the values of one axis: distinct whole numbers. `fallback`: the default. */
export const Axis = (least: number, most: number, fallback: readonly number[]) =>
  Type.Array(Type.Integer({ minimum: least, maximum: most }), { minItems: 1, uniqueItems: true, default: fallback })

/** The schema of an option that is a whole number of at least 1. */
export const Count = Type.Integer({ minimum: 1 })

/** The options that all generated tasks share. */
export const generation = {
  /** Samples per cell. */
  samples: Type.Integer({ minimum: 1, maximum: 100_000, default: 20 }),
  seed: Type.Integer({ minimum: Number.MIN_SAFE_INTEGER, maximum: Number.MAX_SAFE_INTEGER, default: 0 }),
} as const

/** How many characters count as one token. Lengths are given in tokens, but tasks have no tokenizer. */
export const charsPerToken = Type.Number({ minimum: 0.5, maximum: 16, default: 4 })

/** The schema of a message in rows that hold conversations. */
export const RowMessage = Type.Object({ role: Type.Enum(['system', 'user', 'assistant']), content: Type.String() })

/**
 * Returns the fields of a data file's row, checked against the schema.
 * @param numbers names of numeric fields that some files store as text; text that is not a number stays unchanged
 * @throws KvfoldError eval/bad-data that says which row and which fields are wrong
 */
export function readFields<T extends TSchema>(schema: T, row: Row, where: string, numbers: readonly string[] = []): Static<T> {
  const asNumbers = numbers.flatMap((name) => {
    const number = row[name] === undefined ? NaN : Number(row[name])
    return Number.isNaN(number) ? [] : [[name, number] as const]
  })
  const read = checked(schema, { ...row, ...Object.fromEntries(asNumbers) })
  if (read.ok) return read.value
  throw new KvfoldError('eval/bad-data', `${where} is not a row of this task: ${allInWords(read.faults, 'row')}.`)
}

// Below: the order of generated samples: the first sample of every cell, then the second sample of every cell, and so on.

export interface GridPlace<C> {
  readonly cell: C
  /** The index of the sample in its cell, from 0. */
  readonly sample: number
}

/** Returns the cell of the sample with this index, and its index in the cell. @throws KvfoldError eval/bad-data for too large an index */
export function gridPlace<C>(cells: readonly C[], samples: number, index: number): GridPlace<C> {
  const cell = cells[index % cells.length]
  refuseBeyond(index, cells.length * samples)
  if (cell === undefined) throw new KvfoldError('eval/bad-data', 'There are no cells.')
  return { cell, sample: Math.floor(index / cells.length) }
}

/** @throws KvfoldError eval/bad-data if there is no sample with this index. `size`: how many there are */
export function refuseBeyond(index: number, size: number): void {
  if (!Number.isSafeInteger(index) || index < 0 || index >= size)
    throw new KvfoldError('eval/bad-data', `Sample ${index} does not exist; this task has ${size}, counted from 0.`)
}

/** Returns each combination of a value of the first list with a value of the second. The second value changes fastest. */
export const crossed = <A, B>(first: readonly A[], second: readonly B[]): (readonly [A, B])[] =>
  first.flatMap((one) => second.map((other) => [one, other] as const))

// Below: for tasks with one data file per cell. A pattern names the files, and the samples take a row from each file in turn.

export interface GridRow<C> {
  readonly cell: C
  /** The index of the row in its file, from 0. */
  readonly number: number
  readonly row: Row
  /** The file's name, and the row's line or number in it, for error messages. */
  readonly where: string
}

export interface RowGrid<C> {
  readonly size: number
  /** Returns the row with this index: the first rows of all files come first, then the second rows. @throws KvfoldError eval/bad-data */
  at(index: number): Promise<GridRow<C>>
}

/**
 * Opens one file per cell. `name`: the pattern of their names, a path or a name on the hub, in which `{axis}` is replaced by the cell's
 * value on that axis. All files give the same number of rows: as many as the shortest has, and at most `limit`.
 * @throws KvfoldError eval/bad-data when a file cannot be read, or when two cells would have the same file
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
      `${name} names one file for several cells. Write ${axes.join(' and ')} where the names of the files differ, or ask for one value of each.`,
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
