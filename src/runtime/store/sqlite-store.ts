/** Stores threads in one SQLite file, so that they survive a restart. A change is in the file before a client gets its acknowledgement. */
import { join } from 'node:path'
import type { EarlierTime } from '../core/clock.js'
import { keyOf } from '../core/ids.js'
import { KvfoldError } from '../core/errors.js'
import { weightOf } from '../core/json.js'
import { atOnce, inTurns, type Steps } from '../core/turns.js'
import { damageError, type Damage, UNNAMED } from './damage.js'
import { FetchedThreads } from './fetched-threads.js'
import { type StoredRow } from './row-kind.js'
import {
  cardRows,
  digestRows,
  digestSum,
  editRows,
  headRows,
  NO_ROWS,
  PART_TABLES,
  type ThreadDigest,
  ThreadRows,
} from './rows.js'
import { behind, type Listed, lost, Manifest } from './manifest.js'
import { migrations } from './migrations.js'
import { listedHead } from './port.js'
import type { ListedThread, SavedThreads, ThreadCard, ThreadHead, ThreadRecord, ThreadStore, ThreadUpdate } from './port.js'
import { now, StoreFile, type StoreFileOptions } from './store-file.js'

export interface SqliteStoreOptions extends Pick<StoreFileOptions, 'checkedBytes'> {
  /** The store's folder; created if missing. The store is its file `threads.db`. */
  readonly folder: string
  /** The cells that engines saved on disk. `deleteUnusedSince` deletes those of its threads, too. Default: none. */
  readonly cells?: SavedThreads
  /** How long to check threads when the store is opened, in milliseconds. Default 1000. */
  readonly patience?: number
}

export const THREADS_FILE = 'threads.db'
export const THREADS_MANIFEST = 'threads.manifest'

/** All tables but `threads` that have rows of a thread, under its number. */
const OTHER_TABLES = ['digests', 'edits', 'cards', ...PART_TABLES] as const

/** A change of at least this size (in characters and values) is written in several turns of the event loop. */
const LONG = 64 * 1024

/** How many rows are deleted in one statement. */
const AT_A_TIME = 128

/** A planned change of a thread. `steps` writes it; then `done` or `failed` is called. */
interface PlannedChange {
  readonly steps: () => Steps<ThreadDigest>
  readonly done: (digest: ThreadDigest) => void
  readonly failed?: (error: unknown) => void
}

/** A thread whose own row and digest are undamaged. */
interface KnownDigest {
  readonly number: number
  readonly digest: ThreadDigest
  readonly used: number
}

/** A fetched thread, and its digest at that time. */
interface FetchedThread {
  readonly known: KnownDigest
  readonly record: ThreadRecord
}

/**
 * A failed change leaves the stored thread as it was, while the caller has more in memory. So all later changes of that thread fail with
 * the same error, until the thread is read again or deleted.
 *
 * A thread that differs from its acknowledged state is neither listed nor read. `damage` reports it until it is deleted.
 */
export class SqliteStore implements ThreadStore {
  readonly #failed = new Map<string, unknown>()
  readonly #known = new Map<string, KnownDigest>()
  readonly #damage = new Map<string, Damage & { readonly number: number | null }>()
  readonly #notes: string[] = []
  readonly #rows: ThreadRows
  readonly #fetched = new FetchedThreads<FetchedThread | null>()
  /** The number for the next thread. Larger than any number in the file, so no two threads share one. */
  #next = 1
  /** The end of the queue of changes: fulfilled when the last change is written. Null when no change is being written in turns. */
  #last: Promise<void> | null = null

  private constructor(
    private readonly file: StoreFile,
    private readonly manifest: Manifest,
    private readonly cells: SavedThreads | undefined,
  ) {
    this.#rows = new ThreadRows(file)
  }

  /**
   * Opens the store, or creates it. @throws KvfoldError store/unusable, store/locked, store/damaged, store/older, store/newer; the file is
   * then unchanged
   */
  static open({ folder, cells, checkedBytes, patience = 1000 }: SqliteStoreOptions): SqliteStore {
    const first = ['threads', 'digests', 'cards', 'edits']
    const path = join(folder, THREADS_FILE)
    const file = StoreFile.open({ path, migrations, first, ...(checkedBytes === undefined ? {} : { checkedBytes }) })
    try {
      const store = new SqliteStore(file, Manifest.read(join(folder, THREADS_MANIFEST)), cells)
      store.#survey(patience)
      return store
    } catch (error) {
      file.close()
      throw error
    }
  }

  damage(): readonly Damage[] {
    return [...this.#damage.values()]
  }

  get problem(): KvfoldError | null {
    return this.file.problem
  }

  notes(): readonly string[] {
    return this.#notes
  }

  index(cardOf: (thread: ThreadRecord) => ThreadCard): Promise<readonly ListedThread[]> {
    return now(() => {
      const rows = this.file.rows(`SELECT thread, ${cardRows.selected} FROM cards`)
      const cards = new Map(rows.map((row) => [row['thread'], row] as const))
      const heads = this.#heads('ORDER BY number')
      const made = this.#makeCards(
        heads.filter(({ number }) => !cards.has(number) || this.#cardIn(cards.get(number)!, number) === null),
        cardOf,
      )
      return heads.flatMap(({ number, head }) => {
        const card = made.get(number) ?? (cards.has(number) ? this.#cardIn(cards.get(number)!, number) : null)
        return card === null ? [] : [{ ...listedHead(head), card }]
      })
    })
  }

  read(tenant: string, id: string): ThreadRecord | null {
    const key = keyOf(tenant, id)
    const known = this.#known.get(key)
    if (known === undefined) {
      const damage = this.#damage.get(key)
      if (damage !== undefined) throw damageError(damage)
      return null
    }
    const record = this.#fetched.isReading
      ? this.#fetched.of(tenant, id, (fetched) => fetched?.known === known)!.record
      : this.#record(this.#latest(known))
    this.#failed.delete(key)
    return record
  }

  reading<T>(work: () => T): Promise<T> {
    return this.#fetched.reading(work, (tenant, id) => this.#fetch(tenant, id))
  }

  /** Reads a thread in turns of the event loop, while no change is written. Returns null when the thread is missing or damaged. */
  async #fetch(tenant: string, id: string): Promise<FetchedThread | null> {
    let fetched: FetchedThread | null = null
    await this.#inOrder(async () => {
      const there = this.#known.get(keyOf(tenant, id))
      if (there === undefined) return
      const known = this.#latest(there)
      const read = await inTurns(this.#rows.readSteps(known.number, known.digest))
      if ('record' in read) fetched = { known, record: read.record }
      else this.#damaged(known.digest, known.number, read.damage)
    })
    return fetched
  }

  /** Stores a new thread. If `card` is null, the next `index` makes it. */
  create(thread: ThreadRecord, card: ThreadCard | null): Promise<void> {
    const { tenant, id, used, messages, edits, ledger, events } = thread
    const rows = this.#rows
    function* written(number: number): Steps<ThreadDigest> {
      const begun: ThreadDigest = {
        ...{ tenant, id, model: thread.model, created: thread.created, revision: 1 },
        head: rows.insert('threads', headRows, thread, { number }),
        edits: rows.insert('edits', editRows, edits, { thread: number }),
        card: card === null ? null : rows.insert('cards', cardRows, card, { thread: number }),
        ...{ messages: NO_ROWS, entries: NO_ROWS, events: NO_ROWS },
      }
      const whole = yield* rows.added(number, begun, { messages, entries: ledger, events })
      rows.insert('digests', digestRows, whole, { thread: number })
      return whole
    }
    // If this fails, the thread does not exist, so there are no later changes to refuse.
    return this.#changed(thread, () => {
      const number = this.#next
      return {
        steps: () => written(number),
        done: (digest) => {
          this.#next = number + 1
          this.#acknowledged({ number, digest, used })
        },
      }
    })
  }

  update(tenant: string, id: string, update: ThreadUpdate): Promise<void> {
    const { head, messages = [], edits, ledger = [], events = [], card, from, eventsFrom } = update
    const rows = this.#rows
    function* written({ number, digest }: KnownDigest): Steps<ThreadDigest> {
      const replaced: ThreadDigest = {
        ...digest,
        ...(from === undefined ? {} : rows.cut(number, 'messages', from)),
        ...(eventsFrom === undefined ? {} : rows.cut(number, 'events', eventsFrom)),
        revision: digest.revision + 1,
        ...(head === undefined ? {} : { head: rows.replace('threads', headRows, head, 'number', number) }),
        ...(edits === undefined ? {} : { edits: rows.replace('edits', editRows, edits, 'thread', number) }),
        card: rows.replace('cards', cardRows, card, 'thread', number),
      }
      const whole = yield* rows.added(number, replaced, { messages, entries: ledger, events })
      rows.replace('digests', digestRows, whole, 'thread', number)
      return whole
    }
    const key = keyOf(tenant, id)
    const changing = this.#changed(update, () => {
      if (this.#failed.has(key)) throw this.#failed.get(key)
      const known = this.#known.get(key)
      if (known === undefined) throw this.#missing(tenant, id)
      return {
        steps: () => written(known),
        done: (digest) => {
          this.#acknowledged({ number: known.number, digest, used: head?.used ?? known.used })
        },
        failed: (error) => {
          this.#failed.set(key, error)
        },
      }
    })
    return changing
  }

  /** Writes a change of a thread; a long one in turns of the event loop. @param plan called once all earlier changes are written */
  #changed(change: Pick<ThreadUpdate, 'messages' | 'ledger'>, plan: () => PlannedChange): Promise<void> {
    const isLong = weightOf([change.messages, change.ledger], LONG) >= LONG
    return this.#inOrder(() => {
      const { steps, done, failed } = plan()
      const fail = (error: unknown) => {
        failed?.(error)
        throw error
      }
      if (isLong) return this.file.writeInTurns(steps).then(done, fail)
      try {
        done(this.file.write(() => atOnce(steps())))
      } catch (error) {
        fail(error)
      }
    })
  }

  /** Runs work after all earlier work: at once, unless a change is being written in turns. */
  #inOrder(work: () => void | Promise<void>): Promise<void> {
    if (this.#last !== null) return this.#follow(this.#last.then(work))
    try {
      const done = work()
      return done === undefined ? Promise.resolve() : this.#follow(done)
    } catch (error) {
      return Promise.reject(error instanceof Error ? error : new Error(String(error)))
    }
  }

  #follow(done: Promise<void>): Promise<void> {
    const settled: Promise<void> = done
      .catch(() => undefined)
      .then(() => {
        if (this.#last === settled) this.#last = null
      })
    this.#last = settled
    return done
  }

  /**
   * Deletes a thread from the file and the WAL; does nothing when it does not exist. If it was damaged or lost, that is not reported any
   * more.
   */
  async delete(tenant: string, id: string): Promise<void> {
    const key = keyOf(tenant, id)
    await this.#inOrder(async () => {
      const number = this.#known.get(key)?.number ?? this.#damage.get(key)?.number ?? null
      this.manifest.forget([{ tenant, id }])
      await this.file.eraseInTurns(() => this.#forgetting([{ number }]))
      this.#unlist([{ tenant, id }])
    })
  }

  /**
   * Returns the latest use before `before` (both in Unix milliseconds). If all uses are later, returns the latest of all; null without
   * threads.
   */
  lastUse(before: number): EarlierTime | null {
    const uses = [...this.#known.values()].map(({ used }) => used)
    const latest = (of: readonly number[]) => of.reduce((last, used) => Math.max(last, used), -Infinity)
    const past = uses.filter((used) => used < before)
    return uses.length === 0 ? null : { seen: latest(past.length > 0 ? past : uses), ran: 0 }
  }

  /** Returns the threads last used before `time` (Unix milliseconds), least recently used first. */
  unusedSince(time: number): readonly Pick<ThreadHead, 'tenant' | 'id'>[] {
    return this.#heads('WHERE used < ? ORDER BY used', time).map(({ head }) => head)
  }

  /**
   * Deletes the threads last used before `time` from every tier. Returns their number. Call it before any of them is loaded into memory.
   */
  async deleteUnusedSince(time: number): Promise<number> {
    const unused = this.#heads('WHERE used < ? ORDER BY used', time)
    const lost = [...this.#damage.values()].filter(
      ({ kind, tenant, id }) => kind === 'lost' && (this.manifest.of(tenant, id)?.used ?? time) < time,
    )
    if (unused.length + lost.length === 0) return 0
    this.#forget([...unused.map(({ number, head: { tenant, id } }) => ({ number, tenant, id })), ...lost])
    await this.cells?.drop([...unused.map(({ head }) => head), ...lost].map(({ id }) => id))
    return unused.length
  }

  /** Closes the store once all pending changes are written. Calling it again does nothing. */
  close(): Promise<void> {
    return this.#inOrder(() => {
      this.manifest.close()
      this.file.close()
    })
  }

  /** Compares the rows in the file with each other and with the manifest. */
  #survey(patience: number): void {
    const { manifest } = this
    for (const table of OTHER_TABLES) this.#count(`SELECT max(thread) AS max FROM ${table}`)
    this.#count('SELECT max(number) AS max FROM threads')
    const digests = new Map(
      this.file
        .rows(`SELECT thread, ${digestRows.selected} FROM digests`)
        .map((row) => [row['thread'], digestRows.read(row, [row['thread'] as number])] as const),
    )
    const numbers = new Set<unknown>()
    for (const row of this.file.rows(`SELECT number, ${headRows.selected} FROM threads`)) {
      const number = row['number'] as number
      numbers.add(number)
      this.#meet(number, headRows.read(row, [number]), digests.get(number) ?? null)
    }
    for (const table of OTHER_TABLES)
      for (const { thread } of this.file.rows(`SELECT DISTINCT thread FROM ${table}`))
        if (!numbers.has(thread)) {
          numbers.add(thread)
          this.#meet(thread as number, null, digests.get(thread) ?? null)
        }
    this.#compare()
    this.#verify(patience)
    if (manifest.unreadable > 0)
      this.#notes.push(`${manifest.unreadable} lines of ${manifest.path} were damaged; kvfold wrote them again from the store`)
    // A damaged thread keeps its old line in the manifest, so that it is still reported after the next start.
    manifest.begin([...this.#known.values()].map(listedOf))
  }

  #count(sql: string): void {
    const [row] = this.file.rows(sql)
    this.#next = Math.max(this.#next, Number(row?.['max'] ?? 0) + 1)
  }

  #meet(number: number, head: ThreadHead | null, digest: ThreadDigest | null): void {
    const name = head ?? digest
    const whose = name ?? { tenant: UNNAMED, id: `number ${number}` }
    if (head === null) this.#damaged(whose, number, 'its own row is missing or damaged')
    else if (digest === null) this.#damaged(whose, number, 'its row of checksums is missing or damaged')
    else this.#known.set(keyOf(head.tenant, head.id), { number, digest, used: head.used })
  }

  /** Reports the threads that the manifest lists but the file lost, or has in an older or different state. */
  #compare(): void {
    for (const listed of this.manifest.listed) {
      const key = keyOf(listed.tenant, listed.id)
      const known = this.#known.get(key)
      const what = known === undefined ? null : behind(listed, known.digest.revision, digestSum(known.digest, known.number))
      if (known === undefined) {
        if (!this.#damage.has(key)) this.#damage.set(key, { ...lost('thread', listed), number: null })
      } else if (what !== null) this.#damaged(known.digest, known.number, what)
    }
  }

  /** Checks threads for up to `patience` milliseconds, most recently used first. The rest is checked when read. */
  #verify(patience: number): void {
    const end = performance.now() + patience
    const all = [...this.#known.values()].sort((a, b) => b.used - a.used)
    const left = all.findIndex((known) => {
      if (performance.now() > end) return true
      try {
        this.#record(known)
      } catch (error) {
        if (!(error instanceof KvfoldError)) throw error
      }
      return false
    })
    if (left >= 0 || !this.file.checked)
      this.#notes.push(
        `the store is large. kvfold checked ${left < 0 ? `all ${all.length} threads` : `${left} of ${all.length} threads, and checks the others when they are used`}${this.file.checked ? '' : '. It did not check the whole file'}; kvfold store check reads everything`,
      )
  }

  /** Counts the thread as damaged from here on, and returns the error for it. */
  #damaged({ tenant, id }: Pick<ThreadHead, 'tenant' | 'id'>, number: number, what: string): KvfoldError {
    const key = keyOf(tenant, id)
    const damage: Damage = { of: 'thread', kind: 'damaged', tenant, id, what }
    this.#known.delete(key)
    this.#damage.set(key, { ...damage, number })
    return damageError(damage)
  }

  #acknowledged(known: KnownDigest): void {
    this.#known.set(keyOf(known.digest.tenant, known.digest.id), known)
    this.manifest.note(listedOf(known))
  }

  #forget(all: readonly { readonly tenant: string; readonly id: string; readonly number: number | null }[]): void {
    this.manifest.forget(all)
    this.file.erase(() => {
      atOnce(this.#forgetting(all))
    })
    this.#unlist(all)
  }

  *#forgetting(all: readonly { readonly number: number | null }[]): Steps<void> {
    for (const { number } of all) {
      if (number === null) continue
      // The own row of a damaged thread may be missing. Then no delete cascades, so each table is emptied explicitly.
      for (const table of OTHER_TABLES) {
        const some = `DELETE FROM ${table} WHERE rowid IN (SELECT rowid FROM ${table} WHERE thread = ? LIMIT ${AT_A_TIME})`
        while (this.file.run(some, number) === AT_A_TIME) yield
      }
      this.file.run('DELETE FROM threads WHERE number = ?', number)
    }
  }

  #unlist(all: readonly Pick<ThreadHead, 'tenant' | 'id'>[]): void {
    for (const { tenant, id } of all) for (const map of [this.#known, this.#damage, this.#failed]) map.delete(keyOf(tenant, id))
  }

  /** Returns the threads that are not known to be damaged, without their messages. */
  #heads(rest: string, ...values: number[]): readonly { readonly number: number; readonly head: ThreadHead }[] {
    return this.file.rows(`SELECT number, ${headRows.selected} FROM threads ${rest}`, ...values).flatMap((row) => {
      const number = row['number'] as number
      const head = headRows.read(row, [number])
      return head !== null && this.#known.get(keyOf(head.tenant, head.id))?.number === number ? [{ number, head }] : []
    })
  }

  #cardIn(row: StoredRow, number: number): ThreadCard | null {
    return cardRows.read(row, [number])
  }

  /**
   * Makes all missing cards in one transaction. If it fails, the next start tries again. A damaged card loses nothing, because cards are
   * made from threads.
   */
  #makeCards(
    heads: readonly { readonly number: number; readonly head: ThreadHead }[],
    cardOf: (thread: ThreadRecord) => ThreadCard,
  ): ReadonlyMap<number, ThreadCard> {
    const made = new Map<number, ThreadCard>()
    const changed: KnownDigest[] = []
    if (heads.length === 0) return made
    this.file.write(() => {
      for (const { number, head } of heads) {
        const known = this.#known.get(keyOf(head.tenant, head.id))!
        let card: ThreadCard
        try {
          card = cardOf(this.#record(known))
        } catch (error) {
          // `#record` has already counted the thread as damaged.
          if (error instanceof KvfoldError && error.code === 'store/damaged-thread') continue
          throw error
        }
        if (known.digest.card !== null)
          this.#notes.push(`the summary of thread ${head.id} was damaged; kvfold made it again from the thread`)
        this.file.run('DELETE FROM cards WHERE thread = ?', number)
        const digest = {
          ...known.digest,
          revision: known.digest.revision + 1,
          card: this.#rows.insert('cards', cardRows, card, { thread: number }),
        }
        this.#rows.replace('digests', digestRows, digest, 'thread', number)
        made.set(number, card)
        changed.push({ ...known, digest })
      }
    })
    for (const known of changed) this.#acknowledged(known)
    return made
  }

  /** Reads a thread. @throws KvfoldError store/damaged-thread, after which the thread counts as damaged; store/failed */
  #record({ number, digest }: KnownDigest): ThreadRecord {
    const read = this.#rows.read(number, digest)
    if ('record' in read) return read.record
    throw this.#damaged(digest, number, read.damage)
  }

  /** Returns the thread's digest. After a failed change, reads it from the file again. */
  #latest(known: KnownDigest): KnownDigest {
    const { tenant, id } = known.digest
    if (!this.#failed.has(keyOf(tenant, id))) return known
    const [row] = this.file.rows(`SELECT ${digestRows.selected} FROM digests WHERE thread = ?`, known.number)
    const digest = row === undefined ? null : digestRows.read(row, [known.number])
    const latest = digest === null ? known : { ...known, digest }
    this.#known.set(keyOf(tenant, id), latest)
    return latest
  }

  #missing(tenant: string, id: string): KvfoldError {
    const damage = this.#damage.get(keyOf(tenant, id))
    if (damage !== undefined) return damageError(damage)
    return new KvfoldError('store/failed', `Thread ${id} is not in the store ${this.file.path}; it was deleted.`)
  }
}

const listedOf = (known: KnownDigest): Listed => {
  const { tenant, id, revision } = known.digest
  return { tenant, id, revision, sum: digestSum(known.digest, known.number), used: known.used }
}
