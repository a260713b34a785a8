/** The store of a server: opens the store that the options name, and deletes old threads. */
import { readFileSync, renameSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import type { Command } from 'commander'
import { SteadyClock, type EarlierTime } from '../core/clock.js'
import { KvfoldError } from '../core/errors.js'
import type { ThreadService } from '../server/service.js'
import { SavedToday } from '../server/threads/status.js'
import type { ResponseStore } from '../server/responses/responses.js'
import { damageLines } from '../store/damage.js'
import { stateFolder } from '../store/store-file.js'
import type { Database } from '../../fleet/postgres/database.js'
import type { PostgresStore, PostgresStoreOptions } from '../../fleet/postgres/postgres-store.js'
import type { SqliteStore } from '../store/sqlite-store.js'
import { decimal } from './options.js'
import type { SavedThreads, ThreadHead } from '../store/port.js'

export interface KeepingFlags {
  readonly store?: string
  /** Threads that were not used for this many days are deleted. */
  readonly retention: number
}

const DAY = 24 * 3_600_000

export function addKeepingOptions(command: Command): Command {
  return command
    .option(
      '--store <where>',
      'where kvfold saves conversations: a folder that only you can read, or postgres://user:password@host:port/name for several servers at once. `none` keeps them in memory (default: kvfold in the XDG state folder)',
    )
    .option('--retention <days>', 'how long unused conversations are kept', decimal(0.0001, 36_500), 30)
}

export const retentionMs = ({ retention }: KeepingFlags): number => retention * DAY

/** A store that outlives the server. */
export type LastingStore = SqliteStore | PostgresStore

export interface OpenStores {
  /** Threads that were too old at the start are deleted already. */
  readonly store: LastingStore
  readonly responses: ResponseStore
  readonly savedToday: SavedToday
  readonly clock: StoreClock
}

export const storeFolder = ({ store }: Pick<KeepingFlags, 'store'>): string => store ?? stateFolder()

/** Whether `--store` names a database. Such a URL may contain a password, so do not print it. */
export const isDatabase = (store: string | undefined): store is string => /^postgres(?:ql)?:\/\//iu.test(store ?? '')

/**
 * Opens the store. Returns null for `none`.
 * @param say called with each line about damage
 * @param saved the cells that engines saved on disk, and the folder of those that only this server uses
 * @throws KvfoldError store/*
 */
export async function openStore(
  flags: KeepingFlags,
  say: (line: string) => void,
  { folder: own, ...cells }: { readonly cells?: SavedThreads; readonly folder?: string } = {},
): Promise<OpenStores | null> {
  if (flags.store === 'none') return null
  if (isDatabase(flags.store)) {
    const store = await openPostgres(flags.store, { ...cells, ...(own === undefined ? {} : { place: resolve(own) }) })
    const clock = await StoreClock.ofDatabase(store, flags, say)
    await clock.deleteOld(store)
    const { PostgresResponses } = await import('../../fleet/postgres/postgres-responses.js')
    return {
      store,
      responses: new PostgresResponses(store.database),
      savedToday: new SavedToday(null, () => new Date(clock.now())),
      clock,
    }
  }
  const folder = storeFolder(flags)
  // Loaded late, so that other commands need not load SQLite, or have it at all.
  const load = () => Promise.all([import('../store/sqlite-store.js'), import('../server/responses/sqlite-responses.js')])
  const [{ SqliteStore }, { SqliteResponses }] = await load().catch((error: unknown) => {
    throw new KvfoldError('store/unusable', 'SQLite (the package libsql) cannot be loaded here; use --store none.', {
      cause: error,
    })
  })
  let store: SqliteStore | null = null
  try {
    store = SqliteStore.open({ folder, ...cells })
    const clock = StoreClock.ofFolder(folder, store, flags, say)
    await clock.deleteOld(store)
    const responses = SqliteResponses.open(folder)
    const damage = [...store.damage(), ...responses.damage()]
    const open = damage.filter(({ settled }) => settled !== true)
    for (const line of [...store.notes(), ...damageLines(open)]) say(line)
    if (open.length < damage.length)
      say(`${damage.length - open.length} threads and responses were left out by an earlier copy of the store`)
    if (open.length > 0) say(REMEDY)
    const savedToday = new SavedToday(join(folder, 'saved-today.json'), () => new Date(clock.now()))
    return { store, responses, savedToday, clock }
  } catch (error) {
    await store?.close()
    throw withRemedy(error)
  }
}

/** Opens a store in a PostgreSQL database. @throws KvfoldError store/* */
async function openPostgres(url: string, more: Pick<PostgresStoreOptions, 'cells' | 'place'>): Promise<PostgresStore> {
  // Loaded late, so that other commands need not load the client, or have it at all.
  const { PostgresStore } = await import('../../fleet/postgres/postgres-store.js').catch(noClient)
  return PostgresStore.open({ url, ...more })
}

/**
 * Opens a store's database without registering as a server. Registered servers wait for each other to forget text. @throws KvfoldError
 * store/*
 */
export async function openDatabase(url: string): Promise<Database> {
  const { Database } = await import('../../fleet/postgres/database.js').catch(noClient)
  return Database.open(url)
}

const noClient = (error: unknown): never => {
  throw new KvfoldError(
    'store/unusable',
    'The client of PostgreSQL (the package pg) cannot be loaded here; give --store a folder.',
    { cause: error },
  )
}

const REMEDY =
  'kvfold store check lists the damaged threads. kvfold store export writes the parts that can be read. kvfold store copy makes a new store of the undamaged threads'

/** Adds to the error of a damaged store what the user can do. Other errors are returned unchanged. */
const withRemedy = (error: unknown): unknown =>
  error instanceof KvfoldError && error.code === 'store/damaged'
    ? new KvfoldError(error.code, `${error.message} ${REMEDY}.`, { cause: error })
    : error

/** Starts to delete threads that become too old while the service runs. The caller must stop the returned object. */
export const keepRetention = (
  { store, clock }: Pick<OpenStores, 'store' | 'clock'>,
  service: Pick<ThreadService, 'threads'>,
  tell: (sentence: string) => void,
): Retention =>
  new Retention({
    ...{ store, clock, tell },
    remove: async (tenant, id, unusedSince) => {
      try {
        return await service.threads.delete(tenant, id, unusedSince)
      } catch (error) {
        // Another server has deleted it already.
        if (error instanceof KvfoldError && error.code === 'server/no-thread') return false
        throw error
      }
    },
  })

// The clock of a store. It decides which threads are too old.

const HOUR = 3_600_000
/** The file in the store's folder that says when the store was last in use. */
const CLOCK_FILE = 'clock.json'

export class StoreClock {
  private constructor(
    private readonly clock: SteadyClock,
    /** How many milliseconds an unused thread is kept. */
    private readonly keep: number,
    private readonly say: (line: string) => void,
    private readonly file: string | null,
    /** Returns the time of the database's clock; infinity for a folder. */
    private readonly elsewhere: () => Promise<number>,
  ) {}

  /**
   * Makes the clock of a folder. The machine's clock is believed if the store was last in use at most half the retention time ago, or an
   * hour if that is more. Then old threads are deleted at the start. Should that clock be wrong by as much, threads used in the other half
   * are still kept.
   */
  static ofFolder(
    folder: string,
    store: Pick<SqliteStore, 'lastUse'>,
    flags: KeepingFlags,
    say: (line: string) => void,
  ): StoreClock {
    const keep = retentionMs(flags)
    const file = join(folder, CLOCK_FILE)
    const earlier = earlierIn(file) ?? store.lastUse(Date.now() + HOUR)
    const clock = new SteadyClock({ tell: say, gap: Math.max(HOUR, keep / 2), ...(earlier === null ? {} : { earlier }) })
    const kept = new StoreClock(clock, keep, say, file, () => Promise.resolve(Infinity))
    kept.note()
    return kept
  }

  /** Makes the clock of a database. A thread counts as too old only if the database's clock agrees. */
  static async ofDatabase(
    store: Pick<PostgresStore, 'time'>,
    flags: KeepingFlags,
    say: (line: string) => void,
  ): Promise<StoreClock> {
    const earlier = { seen: await store.time(), ran: 0, isNow: true } as const
    return new StoreClock(new SteadyClock({ tell: say, earlier }), retentionMs(flags), say, null, () => store.time())
  }

  /** Returns the current time in Unix milliseconds. */
  now(): number {
    return this.clock.now()
  }

  /** Returns a time in Unix milliseconds: threads last used before it are too old. @throws KvfoldError store/unreachable */
  async oldest(): Promise<number> {
    return Math.min(this.clock.aged(), await this.elsewhere()) - this.keep
  }

  /** Deletes threads that are too old at the start. Call it before any thread is loaded into memory. */
  async deleteOld(store: LastingStore): Promise<void> {
    const count = await store.deleteUnusedSince(await this.oldest())
    if (count > 0) this.say(deleted(count))
  }

  /** Saves the current time, so that a later start knows when the store was last in use. */
  note(): void {
    if (this.file === null) return
    try {
      writeFileSync(`${this.file}.new`, JSON.stringify(this.clock.left), { mode: 0o600 })
      renameSync(`${this.file}.new`, this.file)
    } catch {
      // The disk may be full. Then the time saved earlier stays, with which no thread is deleted too early.
    }
  }
}

function earlierIn(file: string): EarlierTime | null {
  try {
    const { seen, ran } = JSON.parse(readFileSync(file, 'utf8')) as Partial<Record<keyof EarlierTime, unknown>>
    return Number.isFinite(seen) && Number.isFinite(ran) ? { seen: seen as number, ran: ran as number } : null
  } catch {
    // The file does not exist, or kvfold did not write it.
    return null
  }
}

const deleted = (count: number): string =>
  count === 1
    ? 'deleted a conversation that was unused for longer than --retention allows'
    : `deleted ${count} conversations that were unused for longer than --retention allows`

// Deleting old threads while the server runs.

type NamedThread = Pick<ThreadHead, 'tenant' | 'id'>

interface AgingStore {
  /** Returns the threads last used before this time (Unix milliseconds), least recently used first. */
  unusedSince(time: number): readonly NamedThread[] | Promise<readonly NamedThread[]>
}

interface RetentionOptions {
  readonly store: AgingStore
  readonly clock: Pick<StoreClock, 'oldest' | 'note'>
  /** Deletes a thread from memory, engine and store, unless it was used at or after `unusedSince`. Resolves to whether it was deleted. */
  readonly remove: (tenant: string, id: string, unusedSince: number) => Promise<boolean>
  /** Called with a line about deleted threads, and about each thread that could not be deleted. The next round tries that one again. */
  readonly tell: (line: string) => void
  /** How many milliseconds lie between rounds. Default: an hour. */
  readonly every?: number
}

/**
 * Deletes old threads while the server runs, also those of tenants that never come back. Threads that are too old at the start are the task
 * of `deleteUnusedSince`.
 */
export class Retention {
  readonly #timer: NodeJS.Timeout
  #round: Promise<void> = Promise.resolve()

  constructor(private readonly options: RetentionOptions) {
    this.#timer = setInterval(() => {
      this.#round = this.#round.then(() => this.sweep())
    }, options.every ?? HOUR)
    this.#timer.unref()
  }

  /** Deletes the threads that are too old at the moment. */
  async sweep(): Promise<void> {
    const { store, clock, remove, tell } = this.options
    const failed = (error: unknown) => {
      tell(`an old conversation could not be deleted: ${error instanceof Error ? error.message : String(error)}`)
      return false
    }
    try {
      let count = 0
      const oldest = await clock.oldest()
      for (const { tenant, id } of await store.unusedSince(oldest)) if (await remove(tenant, id, oldest).catch(failed)) count++
      if (count > 0) tell(deleted(count))
    } catch (error) {
      failed(error)
    }
    clock.note()
  }

  /** Stops once the current round has ended. */
  async stop(): Promise<void> {
    clearInterval(this.#timer)
    await this.#round
    this.options.clock.note()
  }
}
