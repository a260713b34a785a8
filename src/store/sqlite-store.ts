/** Owns the threads that survive a restart: one SQLite file, changed before anybody is told that something is done. */
import { join } from 'node:path'
import { KvfoldError } from '../core/errors.js'
import { damaged } from './failure.js'
import type { ListedThread, ThreadCard, ThreadHead, ThreadRecord, ThreadStore, ThreadUpdate } from './port.js'
import type { Row, RowKind } from './row-kind.js'
import { cardRows, editRows, entryRows, eventRows, headRows, messageRows } from './rows.js'
import { SavedCells } from './saved-cells.js'
import { StoreFile, type Value } from './store-file.js'

export interface SqliteStoreOptions {
  /** Made when it is missing; the store is the file `threads.db` in it. */
  readonly folder: string
  /** The disk tier of the engines (`--disk-cache`): what they saved of a thread is deleted with it. Default: there is none. */
  readonly diskCache?: string
}

/** Tables with a row for each part of a thread. */
const PARTS = { messages: messageRows, entries: entryRows, events: eventRows } as const

/**
 * A change that could not be written leaves the thread as it was, here; whoever made it has more in memory than is stored, so every later change
 * of that thread is refused with the same error until the thread is read again or deleted.
 */
export class SqliteStore implements ThreadStore {
  readonly #saved: SavedCells | null
  readonly #failed = new Map<string, unknown>()

  private constructor(
    private readonly file: StoreFile,
    diskCache: string | undefined,
  ) {
    this.#saved = diskCache === undefined ? null : new SavedCells(diskCache)
  }

  /** @throws KvfoldError store/unusable, store/locked, store/damaged, store/newer; nothing was changed then */
  static open({ folder, diskCache }: SqliteStoreOptions): SqliteStore {
    return new SqliteStore(StoreFile.open({ path: join(folder, 'threads.db') }), diskCache)
  }

  index(cardOf: (thread: ThreadRecord) => ThreadCard): Promise<readonly ListedThread[]> {
    return now(() => {
      const cards = new Map(
        this.file.rows(`SELECT thread, ${cardRows.selected} FROM cards`).map((row) => [row['thread'], row] as const),
      )
      const heads = this.file.rows(`SELECT number, ${headRows.selected} FROM threads ORDER BY number`)
      const bare = heads.filter(({ number }) => !cards.has(number))
      const made = new Map(bare.length === 0 ? [] : this.#makeCards(bare, cardOf))
      return heads.map((row) => {
        const { tenant, id, model, created, used, parent, contract } = this.#head(row)
        const card = made.get(row['number']) ?? this.#read(cardRows, cards.get(row['number'])!, `the card of thread ${id}`)
        return { tenant, id, model, created, used, parent, contract, card }
      })
    })
  }

  read(tenant: string, id: string): ThreadRecord | null {
    const [row] = this.file.rows(`SELECT number, ${headRows.selected} FROM threads WHERE tenant = ? AND id = ?`, tenant, id)
    const record = row === undefined ? null : this.#record(row)
    this.#failed.delete(keyOf(tenant, id))
    return record
  }

  create(thread: ThreadRecord, card: ThreadCard): Promise<void> {
    const { tenant, id, messages, edits, ledger, events } = thread
    // One that could not be made is not there: there is nothing to go on from.
    return now(() => {
      this.file.write(() => {
        this.#insert('threads', headRows, thread)
        const number = this.#numberOf(tenant, id)
        this.#insert('edits', editRows, edits, { thread: number })
        this.#insert('cards', cardRows, card, { thread: number })
        this.#add('messages', number, messages)
        this.#add('entries', number, ledger)
        this.#add('events', number, events)
      })
    })
  }

  update(tenant: string, id: string, update: ThreadUpdate): Promise<void> {
    const { head, messages = [], edits, ledger = [], events = [], card } = update
    return now(() => {
      const key = keyOf(tenant, id)
      if (this.#failed.has(key)) throw this.#failed.get(key)
      try {
        this.file.write(() => {
          const thread = this.#numberOf(tenant, id)
          if (head !== undefined) this.#replace('threads', headRows, head, { number: thread })
          if (edits !== undefined) this.#replace('edits', editRows, edits, { thread })
          this.#replace('cards', cardRows, card, { thread })
          this.#add('messages', thread, messages)
          this.#add('entries', thread, ledger)
          this.#add('events', thread, events)
        })
      } catch (error) {
        this.#failed.set(key, error)
        throw error
      }
    })
  }

  /** Out of the file, the WAL and the disk tier. Deleting what is not there is no error. */
  async delete(tenant: string, id: string): Promise<void> {
    this.file.erase(() => this.file.run('DELETE FROM threads WHERE tenant = ? AND id = ?', tenant, id))
    this.#failed.delete(keyOf(tenant, id))
    await this.#saved?.drop([id])
  }

  /** Threads last used before then (Unix milliseconds), longest unused first. */
  unusedSince(time: number): readonly Pick<ThreadHead, 'tenant' | 'id'>[] {
    const rows = this.file.rows(`SELECT number, ${headRows.selected} FROM threads WHERE used < ? ORDER BY used`, time)
    return rows.map((row) => this.#head(row))
  }

  /** Deletes the threads last used before then, from every tier; says how many. For the time before anybody has them in memory. */
  async deleteUnusedSince(time: number): Promise<number> {
    const unused = this.unusedSince(time)
    if (unused.length === 0) return 0
    this.file.erase(() => this.file.run('DELETE FROM threads WHERE used < ?', time))
    await this.#saved?.drop(unused.map(({ id }) => id))
    return unused.length
  }

  /** Idempotent. */
  close(): Promise<void> {
    return now(() => {
      this.file.close()
    })
  }

  /** All or none: the next start makes what is missing then. */
  #makeCards(heads: readonly Row[], cardOf: (thread: ThreadRecord) => ThreadCard): [unknown, ThreadCard][] {
    return this.file.write(() =>
      heads.map((row) => {
        const card = cardOf(this.#record(row))
        this.#insert('cards', cardRows, card, { thread: row['number'] as number })
        return [row['number'], card]
      }),
    )
  }

  #numberOf(tenant: string, id: string): number {
    const [row] = this.file.rows('SELECT number FROM threads WHERE tenant = ? AND id = ?', tenant, id)
    if (row === undefined)
      throw new KvfoldError('store/failed', `Thread ${id} is not in the store ${this.file.path}; it was deleted.`)
    return row['number'] as number
  }

  #add<K extends keyof typeof PARTS>(table: K, thread: number, parts: readonly Part<K>[]): void {
    if (parts.length === 0) return
    const [row] = this.file.rows(`SELECT count(*) AS count FROM ${table} WHERE thread = ?`, thread)
    const count = row!['count'] as number
    parts.forEach((part, index) => {
      this.#insert(table, PARTS[table] as unknown as RowKind<Part<K>>, part, { thread, place: count + index })
    })
  }

  #insert<T>(table: string, kind: RowKind<T>, value: T, keys: Readonly<Record<string, number>> = {}): void {
    const columns = [...Object.keys(keys), ...kind.columns]
    const marks = columns.map(() => '?').join(', ')
    this.file.run(`INSERT INTO ${table} (${columns.join(', ')}) VALUES (${marks})`, ...Object.values(keys), ...kind.write(value))
  }

  #replace<T>(table: string, kind: RowKind<T>, value: T, key: Readonly<Record<string, number>>): void {
    const sets = kind.columns.map((column) => `${column} = ?`).join(', ')
    const [[column, is] = ['', 0]] = Object.entries(key)
    this.file.run(`UPDATE ${table} SET ${sets} WHERE ${column} = ?`, ...kind.write(value), is satisfies Value)
  }

  #head(row: Row): ThreadHead {
    return this.#read(headRows, row, `thread number ${String(row['number'])}`)
  }

  #record(row: Row): ThreadRecord {
    const thread = row['number'] as number
    const head = this.#head(row)
    const whose = `thread ${head.id}`
    const [edits] = this.file.rows(`SELECT ${editRows.selected} FROM edits WHERE thread = ?`, thread)
    return {
      ...head,
      messages: this.#parts('messages', messageRows, thread, whose),
      edits: this.#read(editRows, edits ?? {}, `what was folded in ${whose}`),
      ledger: this.#parts('entries', entryRows, thread, whose),
      events: this.#parts('events', eventRows, thread, whose),
    }
  }

  #parts<T>(table: keyof typeof PARTS, kind: RowKind<T>, thread: number, whose: string): readonly T[] {
    const rows = this.file.rows(`SELECT place, ${kind.selected} FROM ${table} WHERE thread = ? ORDER BY place`, thread)
    return rows.map((row, index) => {
      const what = `row ${index} of the ${table} of ${whose}`
      if (row['place'] !== index) throw damaged(this.file.path, `${what} is missing`)
      return this.#read(kind, row, what)
    })
  }

  #read<T>(kind: RowKind<T>, row: Row, what: string): T {
    const value = kind.read(row)
    if (value === null) throw damaged(this.file.path, `${what} is not what was written`)
    return value
  }
}

type Part<K extends keyof typeof PARTS> = (typeof PARTS)[K] extends RowKind<infer T> ? T : never

const keyOf = (tenant: string, id: string): string => JSON.stringify([tenant, id])

/** What `work` returns or throws, as a promise. */
const now = <T>(work: () => T): Promise<T> =>
  new Promise((resolve) => {
    resolve(work())
  })
