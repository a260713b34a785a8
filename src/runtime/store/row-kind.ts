/** Converts values to table rows and back. SQLite has no checksums, so each row gets its own, and reading tolerates damaged rows. */
import { crc32 } from 'node:zlib'
import { atOnce, type Steps } from '../core/turns.js'

/** A column's value, in a type that SQLite takes. */
export type StoredValue = string | number | null | Uint8Array

export type StoredRow = Readonly<Record<string, unknown>>

type StoredColumn = 'text' | 'integer' | 'blob'

/**
 * One kind of row: its columns (the checksum is one of them) and the conversions. `keys`: integers that say where the row belongs, for
 * example its thread and its index there.
 */
export interface RowKind<T> {
  readonly columns: readonly string[]
  /** The SELECT list that `read` needs. */
  readonly selected: string
  /** Returns the values in the order of `columns`. The last one is the checksum. */
  write(value: T, keys?: readonly number[]): readonly StoredValue[]
  /** Like `write`, but a generator that yields to the event loop, for long values. */
  writeSteps(value: T, keys?: readonly number[]): Steps<readonly StoredValue[]>
  /** Returns the row's value; null when the row is damaged or belongs to other keys. */
  read(row: StoredRow, keys?: readonly number[]): T | null
  /** Like `read`, but a generator that yields to the event loop, for long values. */
  readSteps(row: StoredRow, keys?: readonly number[]): Steps<T | null>
  /** Like `read`, for a list of values in the order of `columns`. */
  parse(values: readonly StoredValue[], keys: readonly number[]): T | null
}

/**
 * libsql ends the process when it reads text that is not UTF-8, and cuts text at a NUL. So text is read as bytes, and each column is cast
 * to the type that we expect.
 */
const CASTS: Readonly<Record<StoredColumn, string>> = { text: 'BLOB', blob: 'BLOB', integer: 'INTEGER' }

/**
 * Makes a kind of row. With `table`, the checksum also covers the table's name and the keys, so that a row in the wrong place counts as
 * damaged.
 * @param of the columns and conversions; `read` must invert `write`
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

/** Converts a value as libsql returns it: blobs and texts come as `ArrayBuffer`. */
function valueOf(value: unknown, type: StoredColumn): StoredValue {
  if (!(value instanceof ArrayBuffer)) return value as StoredValue
  return type === 'text' ? Buffer.from(value).toString() : new Uint8Array(value)
}

/** How many characters of a text are summed between two yields to the event loop. */
const PART = 256 * 1024

/** Computes the CRC-32 over all values. Texts and numbers are summed as JSON, so that the sum shows where a value ends. */
function* sumSteps(values: readonly StoredValue[]): Steps<number> {
  let sum = 0
  for (const value of values) {
    if (value instanceof Uint8Array) sum = crc32(value, crc32('blob', sum))
    else if (typeof value !== 'string' || value.length <= PART) sum = crc32(JSON.stringify(value), sum)
    else {
      sum = crc32('"', sum)
      for (let at = 0; at < value.length;) {
        // Do not cut between the halves of a surrogate pair.
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
