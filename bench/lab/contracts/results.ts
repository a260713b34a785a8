/** Owns what a run of this bench leaves behind: raw figures, and on what they were measured. */
import type { Answer } from './accuracy.js'
import type { Fold, Noise } from './grid.js'
import type { Origin } from '../../record.js'

export interface Results extends Origin {
  /** Of the whole run. */
  readonly seconds: number
  /** Whether it was ended early, so that figures are missing. */
  readonly interrupted: boolean
  readonly folds: readonly Fold[]
  readonly noise: readonly Noise[]
  readonly answers: readonly Answer[]
  readonly notMeasured: readonly string[]
}

export const NOT_MEASURED = ['needle chains: the built-in model knows no chains yet']

/** Many records of one kind, with the names of their fields written once. */
interface Packed {
  readonly columns: readonly string[]
  readonly rows: readonly (readonly unknown[])[]
}

const LISTS = ['folds', 'noise', 'answers'] as const

/** As JSON, one record a line. */
export function written(results: Results): string {
  const packed = Object.fromEntries(LISTS.map((list) => [list, pack(results[list])]))
  const whole = JSON.stringify({ ...results, ...packed }, null, 2)
  // Arrays of plain values stand on one line each.
  return whole.replace(/\[\n\s+((?:[^[\]{}]|\n)*?)\n\s+\]/gu, (_, inner: string) => `[${inner.replace(/\n\s+/gu, ' ')}]`) + '\n'
}

/** What `written` wrote. */
export function readBack(text: string): Results {
  const whole = JSON.parse(text) as Omit<Results, (typeof LISTS)[number]> & Record<(typeof LISTS)[number], Packed>
  const { folds, noise, answers } = whole
  return {
    ...whole,
    folds: unpack(folds) as unknown as Fold[],
    noise: unpack(noise) as unknown as Noise[],
    answers: unpack(answers) as unknown as Answer[],
  }
}

function pack(records: readonly object[]): Packed {
  const columns = Object.keys(records[0] ?? {})
  return { columns, rows: records.map((record) => Object.values(record).map(rounded)) }
}

function unpack({ columns, rows }: Packed): Record<string, unknown>[] {
  return rows.map((row) => Object.fromEntries(columns.map((column, at) => [column, row[at]])))
}

/** Four significant digits are more than any of these measurements has. */
const rounded = (value: unknown): unknown =>
  typeof value === 'number' && !Number.isInteger(value) ? Number(value.toPrecision(4)) : value
