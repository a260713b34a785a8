/** Converts values to columns and back. Every row has a checksum, because SQLite has none, and is read in a way that tolerates damage. */
import { crc32 } from 'node:zlib'
import { atOnce, type Steps } from '../core/turns.js'

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
  /** Returns the values in the order of the columns. The checksum is the last one. */
  write(value: T, keys?: readonly number[]): readonly StoredValue[]
  /** Does the same as `write`, in steps, for long values. */
  writeSteps(value: T, keys?: readonly number[]): Steps<readonly StoredValue[]>
  /** Returns the row's value; null when the row differs from the written one or is not at its place. */
  read(row: StoredRow, keys?: readonly number[]): T | null
  /** Does the same as `read`, in steps, for long values. */
  readSteps(row: StoredRow, keys?: readonly number[]): Steps<T | null>
  /** Does the same as `read`, but takes a list of values in the order of the columns. */
  parse(values: readonly StoredValue[], keys: readonly number[]): T | null
}

/**
 * libsql ends the process when it reads text that is not UTF-8, and cuts text at a NUL. So text is read as bytes, and every value is cast
 * to its type.
 */
const CASTS: Readonly<Record<StoredColumn, string>> = { text: 'BLOB', blob: 'BLOB', integer: 'INTEGER' }

/**
 * @param of the conversions between a value and a row's values; `read` must return the value that was given to `write`. With a table, the
 * checksum also covers the table's name and the keys, so that no row passes for another.
 */
export function rowKind<T>(of: {
  readonly table?: string
  readonly columns: Readonly<Record<string, StoredColumn>>
  write(value: T): readonly StoredValue[] | Steps<readonly StoredValue[]>
  read(row: StoredRow): T
}): RowKind<T> {
  const { table } = of
  const columns = Object.entries(of.columns)
  const casts = columns.map(([column, type]) => `CAST(${column} AS ${CASTS[type]}) AS ${column}`)
  const covered = (values: readonly StoredValue[], keys: readonly number[]): readonly StoredValue[] =>
    table === undefined ? values : [table, ...keys, ...values]
  function* writeSteps(value: T, keys: readonly number[] = []): Steps<readonly StoredValue[]> {
    const made = of.write(value)
    const values = 'next' in made ? yield* made : made
    yield
    return [...values, yield* sumSteps(covered(values, keys))]
  }
  function* parseSteps(values: readonly StoredValue[], keys: readonly number[]): Steps<T | null> {
    const written = values.slice(0, -1)
    if (values.at(-1) !== (yield* sumSteps(covered(written, keys)))) return null
    return of.read(Object.fromEntries(columns.map(([column], index) => [column, written[index]])))
  }
  function* readSteps(row: StoredRow, keys: readonly number[] = []): Steps<T | null> {
    const values = columns.map(([column, type]) => valueOf(row[column], type))
    return yield* parseSteps([...values, row['sum'] as StoredValue], keys)
  }
  return {
    columns: [...Object.keys(of.columns), 'sum'],
    selected: [...casts, 'CAST(sum AS INTEGER) AS sum'].join(', '),
    write: (value, keys) => atOnce(writeSteps(value, keys)),
    writeSteps,
    read: (row, keys) => atOnce(readSteps(row, keys)),
    readSteps,
    parse: (values, keys) => atOnce(parseSteps(values, keys)),
  }
}

/** Converts a value that libsql read. Blobs come as buffers of their own, and texts come as blobs. */
function valueOf(value: unknown, type: StoredColumn): StoredValue {
  if (!(value instanceof ArrayBuffer)) return value as StoredValue
  return type === 'text' ? Buffer.from(value).toString() : new Uint8Array(value)
}

/** Characters of a text that are summed between two yields. */
const PART = 256 * 1024

/** Computes the CRC-32 over all values. Texts and numbers count as JSON, so that the end of each value is clear. */
function* sumSteps(values: readonly StoredValue[]): Steps<number> {
  let sum = 0
  for (const value of values) {
    if (value instanceof Uint8Array) sum = crc32(value, crc32('blob', sum))
    else if (typeof value !== 'string' || value.length <= PART) sum = crc32(JSON.stringify(value), sum)
    else {
      sum = crc32('"', sum)
      for (let at = 0; at < value.length;) {
        // A part must not end between the halves of a surrogate pair.
        const last = value.charCodeAt(at + PART - 1)
        const end = last >= 0xd800 && last <= 0xdbff ? at + PART + 1 : at + PART
        sum = crc32(JSON.stringify(value.slice(at, end)).slice(1, -1), sum)
        at = end
        yield
      }
      sum = crc32('"', sum)
    }
  }
  return sum
}
