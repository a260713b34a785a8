/**
 * Threads in PostgreSQL, for several servers at the same time. A server's change to a thread is refused unless the server has read the
 * thread's latest revision.
 */
import { KvfoldError } from '../../runtime/core/errors.js'
import { keyOf } from '../../runtime/core/ids.js'
import type { Damage } from '../../runtime/store/damage.js'
import { FetchedThreads } from '../../runtime/store/fetched-threads.js'
import type {
  Claim,
  ListedThread,
  SavedThreads,
  SharedThreads,
  ThreadCard,
  ThreadChanges,
  ThreadHead,
  ThreadRecord,
  ThreadStore,
  ThreadUpdate,
} from '../../runtime/store/port.js'
import type { StoredRow } from '../../runtime/store/row-kind.js'
import { cardRows, editRows, headRows } from '../../runtime/store/rows.js'
import { Claims } from './claims.js'
import { canName, Database, type DatabasePatience } from './database.js'
import { Forgets } from './forgets.js'
import type { RunStatement } from './schema.js'
import { DAMAGED_HEAD, Damaged, lastPlaces, listedIn, type ListedRow, NAMED, readThread, ThreadWriter } from './thread-rows.js'

export interface PostgresStoreOptions {
  readonly url: string
  /**
   * The cells that engines saved on disk. At the start, the store deletes the saved cells of deleted threads and of threads with text to
   * forget. Default: none.
   */
  readonly cells?: SavedThreads
  /** This server's folder of saved cells. After a restart, the server is recognised by it. Default: none. */
  readonly place?: string
  /** Timeouts. With the defaults, a server notices within 10 seconds that it is cut off from the database. */
  readonly patience?: DatabasePatience
}

/**
 * How long the names of deleted threads are kept. Servers that still know such a thread read them, and so do stopped servers with cells on
 * disk.
 */
const REMEMBERED = '30 days'

/** A thread's number and revision when this server last read or wrote it. */
interface Version {
  readonly number: number
  readonly revision: number
}

type CardOf = (thread: ThreadRecord) => ThreadCard

type Fetched = { readonly record: ThreadRecord; readonly version: Version } | { readonly error: KvfoldError } | null

/**
 * As in the SQLite store, a failed write leaves the stored thread unchanged. Later changes to the thread fail with the same error until the
 * thread is read again or deleted. A row with a wrong checksum is never shown.
 */
export class PostgresStore implements ThreadStore {
  readonly shared: SharedThreads
  readonly #failed = new Map<string, unknown>()
  readonly #held = new Map<string, Version>()
  /** The latest revision of each thread that this server knows of, by `keyOf`. */
  readonly #heard = new Map<string, number>()
  readonly #damage = new Map<string, Damage>()
  /** Makes a thread's card if the stored one is missing or damaged. Set by `index`; null before. */
  #cardOf: CardOf | null = null
  readonly #claims: Claims
  /** A PostgreSQL transaction id. This server has read the changes of all earlier transactions; `#changes` reads from this one on. */
  #since = 0n
  readonly #fetched = new FetchedThreads<Fetched>()
  /** Whether this server has forgotten text since its last report by `#done`. */
  #news = false

  private constructor(
    readonly database: Database,
    private readonly cells: SavedThreads | undefined,
    private readonly forgets: Forgets,
  ) {
    this.#claims = new Claims(database)
    this.shared = {
      get problem() {
        return database.problem
      },
      changes: () => this.#changes(),
      claim: (tenant, id, wait) => this.#claim(tenant, id, wait),
      done: () => this.#done(),
      unforgotten: (...of) => this.forgets.left(...of),
    }
  }

  /** Opens a database's store. @throws KvfoldError store/unusable, store/unreachable, store/newer; the database is then unchanged */
  static async open({ url, cells, place, patience }: PostgresStoreOptions): Promise<PostgresStore> {
    const database = await Database.open(url, patience)
    try {
      await database.rows(`DELETE FROM kvfold.gone WHERE at < now() - interval '${REMEMBERED}'`)
      const gone = await database.rows('SELECT id FROM kvfold.gone')
      if (gone.length > 0) await cells?.drop(gone.map(({ id }) => id as string))
      const forgets = new Forgets(database, place ?? null)
      await forgets.join()
      return new PostgresStore(database, cells, forgets)
    } catch (error) {
      await database.close()
      throw error
    }
  }

  damage(): readonly Damage[] {
    return [...this.#damage.values()]
  }

  notes(): readonly string[] {
    return []
  }

  async index(cardOf: CardOf | null = null): Promise<readonly ListedThread[]> {
    this.#cardOf = cardOf
    this.#heard.clear()
    this.#since = 0n
    const { changed } = await this.#changes()
    await this.#done()
    return changed
  }

  /** Runs work that reads threads; see `ThreadStore.reading`. @throws what `work` throws; KvfoldError store/unreachable */
  reading<T>(work: () => T): Promise<T> {
    return this.#fetched.reading(work, (tenant, id) => this.#fetch(tenant, id))
  }

  read(tenant: string, id: string): ThreadRecord | null {
    const key = keyOf(tenant, id)
    // The fetched copy may be out of date: this server or another one may have changed the thread since.
    const fetched = this.#fetched.of(
      tenant,
      id,
      (read) => read === null || 'error' in read || read.version.revision >= (this.#heard.get(key) ?? 0),
    )
    if (fetched === null) return null
    if ('error' in fetched) throw fetched.error
    this.#failed.delete(key)
    this.#note(key, fetched.version)
    return fetched.record
  }

  async create(thread: ThreadRecord, card: ThreadCard): Promise<void> {
    const { tenant, id } = thread
    try {
      const number = await this.database.transaction((run) => new ThreadWriter(run).create(thread, card))
      this.#note(keyOf(tenant, id), { number, revision: 1 })
    } catch (error) {
      throw isTaken(error)
        ? new KvfoldError('store/failed', `Thread ${id} is in the database ${this.database.address} already.`, { cause: error })
        : error
    }
  }

  async update(tenant: string, id: string, update: ThreadUpdate): Promise<void> {
    const key = keyOf(tenant, id)
    if (this.#failed.has(key)) throw this.#failed.get(key)
    try {
      this.#note(key, await this.database.transaction((run) => this.#change(run, tenant, id, update)))
    } catch (error) {
      this.#failed.set(key, error)
      throw error
    }
  }

  /** Deletes the thread from the database, if it is there. */
  async delete(tenant: string, id: string): Promise<void> {
    await this.#erase('tenant = $1 AND id = $2', [tenant, id])
    // Keep the thread in `#heard`: this server may just have read another server's last change to it. The next `#changes` then reports the
    // deletion.
    for (const map of [this.#held, this.#failed, this.#damage]) map.delete(keyOf(tenant, id))
  }

  async time(): Promise<number> {
    const [row] = await this.database.rows('SELECT floor(extract(epoch FROM now()) * 1000)::bigint AS time')
    return row?.['time'] as number
  }

  /** Returns the threads last used before `time` (Unix milliseconds), the longest unused first. */
  async unusedSince(time: number): Promise<readonly Pick<ThreadHead, 'tenant' | 'id'>[]> {
    const rows = await this.database.rows('SELECT tenant, id FROM kvfold.threads WHERE used < $1 ORDER BY used', [time])
    return rows.map(named)
  }

  /** Deletes the threads last used before `time` (Unix milliseconds) and their saved cells. Returns the number of threads. */
  async deleteUnusedSince(time: number): Promise<number> {
    const erased = await this.#erase('used < $1', [time])
    if (erased.length > 0) await this.cells?.drop(erased.map(({ id }) => id))
    return erased.length
  }

  /** Closes the store. Further calls do nothing. */
  async close(): Promise<void> {
    await this.forgets.leave().catch(() => undefined)
    await this.#claims.close()
    await this.database.close()
  }

  async #change(run: RunStatement, tenant: string, id: string, update: ThreadUpdate): Promise<Version> {
    const { head, messages = [], edits, ledger = [], events = [], card, from, eventsFrom, forgets = false } = update
    const [row] = await run(`SELECT number, revision FROM kvfold.threads WHERE ${NAMED} FOR UPDATE`, [tenant, id])
    const held = this.#held.get(keyOf(tenant, id))
    if (row === undefined)
      throw held === undefined
        ? new KvfoldError('store/failed', `Thread ${id} is not in the database ${this.database.address}; it was deleted.`)
        : new KvfoldError(
            'store/overtaken',
            `Another server deleted thread ${id} at the same time, so this change was not saved.`,
          )
    const { number, revision } = row as unknown as Version
    if (held !== undefined && held.revision !== revision)
      throw new KvfoldError(
        'store/overtaken',
        `Another server changed thread ${id} at the same time, so this change was not saved; ask again, and the request continues from that change.`,
      )
    const writer = new ThreadWriter(run)
    await run('UPDATE kvfold.threads SET revision = revision + 1, changed = pg_current_xact_id() WHERE number = $1', [number])
    if (forgets) await this.forgets.note(run, tenant, id)
    if (head !== undefined) await writer.replace('threads', headRows, head, number)
    if (edits !== undefined) await writer.replace('edits', editRows, edits, number)
    await writer.replace('cards', cardRows, card, number)
    if (from !== undefined) await run('DELETE FROM kvfold.messages WHERE thread = $1 AND place >= $2', [number, from])
    if (eventsFrom !== undefined) await run('DELETE FROM kvfold.events WHERE thread = $1 AND place >= $2', [number, eventsFrom])
    if (messages.length + ledger.length + events.length > 0)
      await writer.add(number, await lastPlaces(run, number), { messages, entries: ledger, events })
    return { number, revision: revision + 1 }
  }

  async #erase(where: string, values: readonly (string | number)[]): Promise<readonly Pick<ThreadHead, 'tenant' | 'id'>[]> {
    const rows = await this.database.rows(
      `WITH erased AS (DELETE FROM kvfold.threads WHERE ${where} RETURNING tenant, id)
       INSERT INTO kvfold.gone (tenant, id, changed) SELECT tenant, id, pg_current_xact_id() FROM erased
       ON CONFLICT (tenant, id) DO UPDATE SET changed = excluded.changed, at = now() RETURNING tenant, id`,
      values,
    )
    return rows.map(named)
  }

  async #fetch(tenant: string, id: string): Promise<Fetched> {
    try {
      const read = await this.database.transaction((run) => readThread(run, tenant, id), { reading: true })
      this.#damage.delete(keyOf(tenant, id))
      return read === null ? null : { record: read.record, version: read }
    } catch (error) {
      if (!(error instanceof Damaged)) throw error
      this.#damaged(tenant, id, error.message)
      return {
        error: new KvfoldError(
          'store/damaged-thread',
          `The thread ${id} is damaged in the database ${this.database.address}: ${error.message}. kvfold does not show it; restore a backup of the database, or delete the thread.`,
        ),
      }
    }
  }

  #damaged(tenant: string, id: string, what: string): void {
    this.#damage.set(keyOf(tenant, id), { of: 'thread', kind: 'damaged', tenant, id, what })
  }

  #isNews({ tenant, id }: Pick<ThreadHead, 'tenant' | 'id'>, revision: number): boolean {
    return revision > (this.#heard.get(keyOf(tenant, id)) ?? 0)
  }

  /** Returns the listed threads whose revision is new to this server, each with its card. Records damaged threads. */
  async #listed(rows: readonly ListedRow[]): Promise<readonly { readonly revision: number; readonly listed: ListedThread }[]> {
    const all: { readonly revision: number; readonly listed: ListedThread }[] = []
    for (const { tenant, id, revision, head, ...row } of rows) {
      if (head === null) this.#damaged(tenant, id, DAMAGED_HEAD)
      else if (this.#isNews(head, revision)) {
        const card = row.card ?? (await this.#makeCard(tenant, id))
        if (card !== null) all.push({ revision, listed: { ...head, card } })
      }
    }
    return all
  }

  /** Makes a thread's card and saves it. Returns null if the thread is damaged or deleted. */
  async #makeCard(tenant: string, id: string): Promise<ThreadCard | null> {
    const cardOf = this.#cardOf
    if (cardOf === null) return null
    try {
      return await this.database.transaction(async (run) => {
        await run(`SELECT 1 FROM kvfold.threads WHERE ${NAMED} FOR UPDATE`, [tenant, id])
        const read = await readThread(run, tenant, id)
        if (read === null) return null
        const card = cardOf(read.record)
        await run('DELETE FROM kvfold.cards WHERE thread = $1', [read.number])
        await new ThreadWriter(run).addCard(read.number, card)
        return card
      })
    } catch (error) {
      if (!(error instanceof Damaged)) throw error
      this.#damaged(tenant, id, error.message)
      return null
    }
  }

  /**
   * Returns the changes since the last call. A transaction that was open at the last call may have a smaller id than changes that were
   * already read. So each call starts at the oldest transaction that was still open at the one before.
   */
  async #changes(): Promise<ThreadChanges> {
    this.database.refuseClosed()
    const since = this.#since
    const [threads, gone, forgotten, next] = await this.database.transaction(
      async (run) =>
        [
          await listedIn(run, since),
          since === 0n ? [] : await run('SELECT tenant, id FROM kvfold.gone WHERE changed >= $1::text::xid8', [String(since)]),
          await this.forgets.since(run, since, since === 0n),
          await run('SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS next'),
        ] as const,
      { reading: true },
    )
    const listed = await this.#listed(threads)
    const erased = gone.map(named).filter(({ tenant, id }) => this.#heard.has(keyOf(tenant, id)))
    // At the first call this server's memory is empty, but its saved cells may be older than the forgets. If the drop fails, `#since`
    // stays, and the next call repeats everything.
    if (since === 0n && forgotten.length > 0) await this.cells?.drop(forgotten.map(({ id }) => id))
    this.#news ||= forgotten.length > 0
    const oldest = BigInt(next[0]?.['next'] as string)
    if (oldest > this.#since) this.#since = oldest
    const changed = listed.filter(({ revision, listed: thread }) => {
      if (!this.#isNews(thread, revision)) return false
      this.#heard.set(keyOf(thread.tenant, thread.id), revision)
      return true
    })
    for (const { tenant, id } of gone.map(named))
      for (const map of [this.#held, this.#heard, this.#damage]) map.delete(keyOf(tenant, id))
    return { changed: changed.map((each) => each.listed), deleted: erased, forgotten: since === 0n ? [] : forgotten }
  }

  async #done(): Promise<void> {
    await this.forgets.done(this.#since, this.#news)
    this.#news = false
  }

  async #claim(tenant: string, id: string, wait: boolean): Promise<Claim | null> {
    const release = await this.#claims.take(tenant, id, wait)
    if (release === null) return null
    try {
      const sql = `SELECT revision FROM kvfold.threads WHERE ${NAMED}`
      const [row] = canName(id) ? await this.database.rows(sql, [tenant, id]) : []
      return { isCurrent: row?.['revision'] === this.#held.get(keyOf(tenant, id))?.revision, release }
    } catch (error) {
      await release()
      throw error
    }
  }

  #note(key: string, version: Version): void {
    this.#held.set(key, version)
    if (version.revision > (this.#heard.get(key) ?? 0)) this.#heard.set(key, version.revision)
  }
}

const named = (row: StoredRow): Pick<ThreadHead, 'tenant' | 'id'> => ({
  tenant: row['tenant'] as string,
  id: row['id'] as string,
})

/** Whether the error is PostgreSQL's unique violation: a row with this key exists. */
const isTaken = (error: unknown): boolean =>
  error instanceof KvfoldError && error.cause instanceof Error && 'code' in error.cause && error.cause.code === '23505'
