/** Converts values to columns and back. Every row has a checksum, because SQLite has none, and is read in a way that tolerates damage. */
import { crc32 } from 'node:zlib'

/** A value of a column, as SQLite takes it. */
export type StoredValue = string | number | null | Uint8Array

export type StoredRow = Readonly<Record<string, unknown>>

type StoredColumn = 'text' | 'integer' | 'blob'

/**
 * One kind of row: its columns, including the checksum, and the conversions. `keys` give the place of a row, for example its thread and
 * its place in the thread.
 */
export interface RowKind<T> {
  readonly columns: readonly string[]
  /** The SELECT list that `read` needs. */
  readonly selected: string
  /** Returns the values by column; the checksum is the last. */
  write(value: T, keys?: readonly number[]): readonly StoredValue[]
  /**
   * Returns null when the row is not what was written, or not at its place. `keys` null: the row is from a version whose checksums did
   * not cover keys.
   */
  read(row: StoredRow, keys?: readonly number[] | null): T | null
  /** Like `read`, with the values in the order of columns. */
  parse(values: readonly StoredValue[], keys: readonly number[] | null): T | null
}

/**
 * libsql ends the process when it reads text that is not UTF-8, and cuts text at a NUL. So text is read as bytes, and every value is cast
 * to its type.
 */
const CASTS: Readonly<Record<StoredColumn, string>> = { text: 'BLOB', blob: 'BLOB', integer: 'INTEGER' }

/**
 * @param of the conversions between a value and a row's values; `read` must return what was given to `write`. With a table, the checksum
 * also covers the table's name and the keys, so that no row passes for another.
 */
export function rowKind<T>(of: {
  readonly table?: string
  readonly columns: Readonly<Record<string, StoredColumn>>
  write(value: T): readonly StoredValue[]
  read(row: StoredRow): T
}): RowKind<T> {
  const { table } = of
  const columns = Object.entries(of.columns)
  const casts = columns.map(([column, type]) => `CAST(${column} AS ${CASTS[type]}) AS ${column}`)
  const sum = (values: readonly StoredValue[], keys: readonly number[]): number =>
    sumOf(table === undefined ? values : [table, ...keys, ...values])
  const parse = (values: readonly StoredValue[], keys: readonly number[] | null): T | null => {
    const written = values.slice(0, -1)
    if (values.at(-1) !== (keys === null ? sumOf(written) : sum(written, keys))) return null
    return of.read(Object.fromEntries(columns.map(([column], index) => [column, written[index]])))
  }
  return {
    columns: [...Object.keys(of.columns), 'sum'],
    selected: [...casts, 'CAST(sum AS INTEGER) AS sum'].join(', '),
    write: (value, keys = []) => {
      const values = of.write(value)
      return [...values, sum(values, keys)]
    },
    read: (row, keys = []) =>
      parse([...columns.map(([column, type]) => valueOf(row[column], type)), row['sum'] as StoredValue], keys),
    parse,
  }
}

/** libsql returns a buffer of its own for each blob. */
function valueOf(value: unknown, type: StoredColumn): StoredValue {
  if (!(value instanceof ArrayBuffer)) return value as StoredValue
  return type === 'text' ? Buffer.from(value).toString() : new Uint8Array(value)
}

/** Returns the CRC-32 over all values, each delimited. */
const sumOf = (values: readonly StoredValue[]): number =>
  values.reduce<number>(
    (sum, value) => (value instanceof Uint8Array ? crc32(value, crc32('blob', sum)) : crc32(JSON.stringify(value), sum)),
    0,
  )
