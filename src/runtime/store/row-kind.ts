/** Owns the way of values into columns and back: every row has a checksum, as SQLite has none, and is read so that no damage can do harm. */
import { crc32 } from 'node:zlib'

/** A value of a column, as SQLite takes it. */
export type StoredValue = string | number | null | Uint8Array

export type StoredRow = Readonly<Record<string, unknown>>

type StoredColumn = 'text' | 'integer' | 'blob'

/** One kind of row: its columns with the checksum, and the way there and back. `keys` say where a row stands, for instance its thread and its place in it. */
export interface RowKind<T> {
  readonly columns: readonly string[]
  /** What to select so that `read` can read it. */
  readonly selected: string
  /** By column; the checksum is the last. */
  write(value: T, keys?: readonly number[]): readonly StoredValue[]
  /** Null: not what was written, or not where it was written. `keys` null: a row of a time when checksums knew nothing of keys. */
  read(row: StoredRow, keys?: readonly number[] | null): T | null
  /** As `read`, of values by column. */
  parse(values: readonly StoredValue[], keys: readonly number[] | null): T | null
}

/** libsql ends the process when it reads text that is no UTF-8, and cuts it at a NUL: text is read as bytes, and every value as of its type. */
const CASTS: Readonly<Record<StoredColumn, string>> = { text: 'BLOB', blob: 'BLOB', integer: 'INTEGER' }

/**
 * @param of how the values are made of a row's and back; they come back as they were written. With a table, the checksum also covers its name and
 * the keys, so that no row passes for another one.
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

/** libsql hands out a buffer of its own for each blob. */
function valueOf(value: unknown, type: StoredColumn): StoredValue {
  if (!(value instanceof ArrayBuffer)) return value as StoredValue
  return type === 'text' ? Buffer.from(value).toString() : new Uint8Array(value)
}

/** CRC-32 over all values, each with its end. */
const sumOf = (values: readonly StoredValue[]): number =>
  values.reduce<number>(
    (sum, value) => (value instanceof Uint8Array ? crc32(value, crc32('blob', sum)) : crc32(JSON.stringify(value), sum)),
    0,
  )
