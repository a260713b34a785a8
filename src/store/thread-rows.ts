/** Owns the rows of one thread in the store's file: how they are written, and that what is read is all that was written. */
import { KvfoldError } from '../core/errors.js'
import { chained, isSame, NO_ROWS, type PartTable, type ThreadDigest } from './digest.js'
import type { ThreadEdits, ThreadHead, ThreadRecord } from './port.js'
import type { RowKind, Value } from './row-kind.js'
import { editRows, headRows, PARTS } from './rows.js'
import type { StoreFile } from './store-file.js'

export type Part<K extends PartTable> = (typeof PARTS)[K] extends RowKind<infer T> ? T : never

/** Ends the reading of a thread; never leaves `ThreadRows.read`. */
class Damaged extends Error {}

/** All that writes wants to be within a transaction of the file. */
export class ThreadRows {
  constructor(private readonly file: StoreFile) {}

  /** Writes new parts behind those that are there; says the digest with them. */
  added(thread: number, digest: ThreadDigest, parts: { readonly [T in PartTable]: readonly Part<T>[] }): ThreadDigest {
    const add = (table: PartTable) => {
      const [before] = digest[table]
      const kind = PARTS[table] as RowKind<unknown>
      const sums = parts[table].map((part, index) => this.insert(table, kind, part, { thread, place: before + index }))
      return chained(digest[table], sums)
    }
    return { ...digest, messages: add('messages'), entries: add('entries'), events: add('events') }
  }

  /** Takes out the parts from this place on; says the digest without them. */
  cut(thread: number, digest: ThreadDigest, table: PartTable, from: number): ThreadDigest {
    this.file.run(`DELETE FROM ${table} WHERE thread = ? AND place >= ?`, thread, from)
    const left = this.file.rows(`SELECT sum FROM ${table} WHERE thread = ? ORDER BY place`, thread)
    const sums = left.map(({ sum }) => sum as number)
    return { ...digest, [table]: chained(NO_ROWS, sums) }
  }

  /** Says the row's checksum. */
  insert<T>(table: string, kind: RowKind<T>, value: T, keys: Readonly<Record<string, number>>): number {
    const columns = [...Object.keys(keys), ...kind.columns]
    const marks = columns.map(() => '?').join(', ')
    const values = kind.write(value, Object.values(keys))
    this.file.run(`INSERT INTO ${table} (${columns.join(', ')}) VALUES (${marks})`, ...Object.values(keys), ...values)
    return values.at(-1) as number
  }

  /** Says the row's checksum. */
  replace<T>(table: string, kind: RowKind<T>, value: T, key: 'number' | 'thread', is: number): number {
    const sets = kind.columns.map((column) => `${column} = ?`).join(', ')
    const values = kind.write(value, [is])
    this.file.run(`UPDATE ${table} SET ${sets} WHERE ${key} = ?`, ...values, is satisfies Value)
    return values.at(-1) as number
  }

  /** The thread if it is what the digest is of, else what is wrong with it. @throws KvfoldError store/failed */
  read(number: number, digest: ThreadDigest): { readonly record: ThreadRecord } | { readonly damage: string } {
    try {
      const head = this.#single('threads', headRows, 'number', number, digest.head, 'its own row')
      const edits = this.#single('edits', editRows, 'thread', number, digest.edits, 'what was folded in it')
      const parts = <T extends PartTable>(table: T) => this.#parts(table, number, digest)
      return { record: { ...head, messages: parts('messages'), edits, ledger: parts('entries'), events: parts('events') } }
    } catch (error) {
      if (error instanceof Damaged) return { damage: error.message }
      // A file that was too long to be checked as a whole.
      if (error instanceof KvfoldError && error.code === 'store/damaged')
        return { damage: 'the part of the file that it is in cannot be read' }
      throw error
    }
  }

  #single<T extends ThreadHead | ThreadEdits>(
    ...[table, kind, key, is, sum, what]: [string, RowKind<T>, 'number' | 'thread', number, number, string]
  ): T {
    const [row] = this.file.rows(`SELECT ${kind.selected} FROM ${table} WHERE ${key} = ?`, is)
    if (row === undefined) throw new Damaged(`${what} is missing`)
    const value = kind.read(row, [is])
    if (value === null) throw new Damaged(`${what} is not what was written`)
    if (row['sum'] !== sum) throw new Damaged(`${what} is not what was written last`)
    return value
  }

  #parts<T extends PartTable>(table: T, number: number, digest: ThreadDigest): readonly Part<T>[] {
    const kind = PARTS[table] as unknown as RowKind<Part<T>>
    const rows = this.file.rows(`SELECT place, ${kind.selected} FROM ${table} WHERE thread = ? ORDER BY place`, number)
    const values = rows.map((row, index) => {
      if (row['place'] !== index) throw new Damaged(`row ${index} of its ${table} is missing`)
      const value = kind.read(row, [number, index])
      if (value === null) throw new Damaged(`row ${index} of its ${table} is not what was written`)
      return value
    })
    const [wanted] = digest[table]
    if (rows.length !== wanted) throw new Damaged(`it has ${rows.length} of ${wanted} rows of its ${table}`)
    const sums = rows.map((row) => row['sum'] as number)
    if (!isSame(chained(NO_ROWS, sums), digest[table])) throw new Damaged(`its ${table} are not those that were written`)
    return values
  }
}
