/** Owns the way of values into columns and back: every row has a checksum, as SQLite has none, and is read so that no damage can do harm. */
import { crc32 } from 'node:zlib'
import type { Value } from './store-file.js'

export type Row = Readonly<Record<string, unknown>>

type Column = 'text' | 'integer' | 'blob'

/** One kind of row: its columns with the checksum, and the way there and back. */
export interface RowKind<T> {
  readonly columns: readonly string[]
  /** What to select so that `read` can read it. */
  readonly selected: string
  /** By column. */
  write(value: T): readonly Value[]
  /** Null: not what was written. */
  read(row: Row): T | null
}

/** libsql ends the process when it reads text that is no UTF-8, and cuts it at a NUL: text is read as bytes, and every value as of its type. */
const CASTS: Readonly<Record<Column, string>> = { text: 'BLOB', blob: 'BLOB', integer: 'INTEGER' }

/** @param of how the values are made of a row's and back; they come back as they were written */
export function rowKind<T>(of: {
  readonly columns: Readonly<Record<string, Column>>
  write(value: T): readonly Value[]
  read(row: Row): T
}): RowKind<T> {
  const columns = Object.entries(of.columns)
  const casts = columns.map(([column, type]) => `CAST(${column} AS ${CASTS[type]}) AS ${column}`)
  return {
    columns: [...Object.keys(of.columns), 'sum'],
    selected: [...casts, 'CAST(sum AS INTEGER) AS sum'].join(', '),
    write: (value) => {
      const values = of.write(value)
      return [...values, sumOf(values)]
    },
    read: (row) => {
      const values = columns.map(([column, type]) => valueOf(row[column], type))
      if (row['sum'] !== sumOf(values)) return null
      return of.read(Object.fromEntries(columns.map(([column], index) => [column, values[index]])))
    },
  }
}

/** libsql hands out a buffer of its own for each blob. */
function valueOf(value: unknown, type: Column): Value {
  if (!(value instanceof ArrayBuffer)) return value as Value
  return type === 'text' ? Buffer.from(value).toString() : new Uint8Array(value)
}

/** CRC-32 over all values, each with its end. */
const sumOf = (values: readonly Value[]): number =>
  values.reduce<number>(
    (sum, value) => (value instanceof Uint8Array ? crc32(value, crc32('blob', sum)) : crc32(JSON.stringify(value), sum)),
    0,
  )
