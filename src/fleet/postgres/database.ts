/** Owns the way to a PostgreSQL database: connections, transactions, and what is said when nobody answers there. */
import type { Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { invariant, KvfoldError, type ErrorCode } from '../../runtime/core/errors.js'
import type { StoredRow } from '../../runtime/store/row-kind.js'
import { migrate, type Parameter, type RunStatement } from './schema.js'

/** Connections for queries; claims have others. */
const CONNECTIONS = 10
/** Milliseconds. */
export interface DatabasePatience {
  /** For a connection, and for a look whether anybody is there. */
  readonly connect: number
  /** For the answer to a query. */
  readonly query: number
  /** Without an answer until it is looked at whether anybody is there. */
  readonly silent: number
}

/** Whoever is cut off is told within `silent` + `silent` / 4 + `connect`, some 10 seconds, and whoever comes then at once. */
const PATIENCE: DatabasePatience = { connect: 5000, query: 30_000, silent: 4000 }
/**
 * The database notices within some 20 seconds that a server is cut off from it, and gives its locks to others: those of threads, and those of rows of a
 * change that it will not end.
 */
const WATCHED =
  'SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; SET tcp_user_timeout = 20000'
/** The first that has transaction ids of 64 bits. */
const OLDEST = 13
const DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
/** 64-bit integers of ours are times and counts. */
const INT8 = 20

const types = new pg.TypeOverrides()
types.setTypeParser(INT8, Number)

/** An answer that is waited for. */
interface PendingQuery {
  readonly client: pg.ClientBase
  readonly since: number
}

export class Database {
  #pool: pg.Pool
  readonly #asked = new Set<PendingQuery>()
  /** Connections that callers have for themselves. */
  readonly #own = new Set<pg.Client>()
  #watch: NodeJS.Timeout | null = null
  /** What whoever asked last was told of it; null: somebody is there. */
  #away: KvfoldError | null = null
  /** Nobody says so either: whoever comes is told at once, until looks find somebody. */
  #isMute = false
  #probing: Promise<void> | null = null
  #isOpen = true

  private constructor(
    /** Where it is, without a password. */
    readonly address: string,
    private readonly config: pg.ClientConfig,
    private readonly patience: DatabasePatience,
  ) {
    this.#pool = this.#pooled()
  }

  /** Why it cannot be used now; null: nothing is known against it. */
  get problem(): string | null {
    return this.#away?.message ?? null
  }

  /**
   * Brings what an earlier version wrote to ours.
   * @param url `postgres://user:password@host:port/name`, with what libpq takes behind `?`
   * @throws KvfoldError store/unusable, store/unreachable, store/newer; nothing was changed then
   */
  static async open(url: string, patience = PATIENCE): Promise<Database> {
    const database = new Database(...configOf(url, patience), patience)
    try {
      const [row] = await database.rows('SHOW server_version_num')
      const version = Math.floor(Number(row?.['server_version_num']) / 10_000)
      if (version < OLDEST)
        throw new KvfoldError(
          'store/unusable',
          `The database ${database.address} is PostgreSQL ${version}; kvfold needs ${OLDEST} or later.`,
        )
      await database.transaction((run) => migrate(run, database.address))
      return database
    } catch (error) {
      await database.close()
      throw error
    }
  }

  /** One statement, by itself. @throws KvfoldError store/* */
  async rows(sql: string, values: readonly Parameter[] = []): Promise<readonly StoredRow[]> {
    const client = await this.#client()
    try {
      const { rows } = await this.ask<StoredRow>(client, sql, values)
      client.release()
      return rows
    } catch (error) {
      client.release(error instanceof KvfoldError && error.code === 'store/unreachable')
      throw error
    }
  }

  /** All that `work` does, or nothing when it throws. With `reading` all that it reads is of one moment. */
  async transaction<T>(work: (run: RunStatement) => Promise<T>, { reading = false } = {}): Promise<T> {
    const client = await this.#client()
    const run: RunStatement = async (sql, values = []) => (await this.ask<StoredRow>(client, sql, values)).rows
    try {
      await run(reading ? 'BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY' : 'BEGIN')
      const done = await work(run)
      await run('COMMIT')
      client.release()
      return done
    } catch (error) {
      const isGone = error instanceof KvfoldError && error.code === 'store/unreachable'
      // A connection that cannot say so either is closed, which ends what it began.
      const isClean = !isGone && (await run('ROLLBACK').then(yes, no))
      client.release(!isClean)
      throw error
    }
  }

  /** A connection of the caller's own, on which an answer may take as long as it takes (`ask`). */
  async connect(): Promise<pg.Client> {
    await this.#reach()
    const client = new pg.Client(this.config)
    client.on('error', () => undefined)
    client.once('end', () => this.#own.delete(client))
    try {
      await client.connect()
      this.#own.add(client)
      await this.ask(client, WATCHED, [])
      return client
    } catch (error) {
      throw this.#noted(error)
    }
  }

  /**
   * One statement on this connection. While its answer is waited for, it is looked at whether anybody is there at all: a database that is cut off says
   * nothing, and a connection to it stays open for many minutes. @throws KvfoldError store/*
   */
  async ask<R extends pg.QueryResultRow>(
    client: pg.ClientBase,
    sql: string,
    values: readonly Parameter[],
  ): Promise<pg.QueryResult<R>> {
    const asked: PendingQuery = { client, since: performance.now() }
    this.#asked.add(asked)
    this.#watch ??= setInterval(() => {
      this.#look()
    }, this.patience.silent / 4).unref()
    try {
      return await client.query<R>(sql, [...values])
    } catch (error) {
      throw this.#noted(error)
    } finally {
      this.#asked.delete(asked)
    }
  }

  /** Idempotent. */
  async close(): Promise<void> {
    if (!this.#isOpen) return
    this.#isOpen = false
    if (this.#watch !== null) clearInterval(this.#watch)
    // A database that does not answer does not say goodbye either.
    await Promise.race([this.#pool.end(), delay(this.patience.connect, undefined, { ref: false })])
  }

  async #client(): Promise<pg.PoolClient> {
    await this.#reach()
    try {
      return await this.#pool.connect()
    } catch (error) {
      throw this.#noted(error)
    }
  }

  /** Once nobody was found there, all who come wait for one look whether somebody is again, where that takes no time. @throws KvfoldError store/unreachable */
  async #reach(): Promise<void> {
    this.refuseClosed()
    if (this.#away === null) return
    if (this.#isMute) throw this.#away
    await this.#probe()
  }

  /** Whoever waits for long has it looked at whether anybody is there; what is slow is waited for. */
  #look(): void {
    const late = performance.now() - this.patience.silent
    const isLate = [...this.#asked].some(({ since }) => since < late)
    if (isLate || this.#isMute) this.#probe().catch(() => undefined)
  }

  #probe(): Promise<void> {
    return (this.#probing ??= this.#probed().finally(() => (this.#probing = null)))
  }

  /** Where no word comes back, all connections are broken off: those that wait have waited enough, and the others lead nowhere either. */
  async #probed(): Promise<void> {
    const probe = new pg.Client({ ...this.config, query_timeout: this.patience.connect })
    probe.on('error', () => undefined)
    const began = performance.now()
    try {
      await probe.connect()
      await probe.query('SELECT 1')
      void probe.end().catch(() => undefined)
      this.#away = null
      this.#isMute = false
    } catch (error) {
      socketOf(probe).destroy()
      // Timers fire some milliseconds early where the turn that set them was long; a refusal takes next to no time.
      const refusal = error instanceof pg.DatabaseError ? error : null
      this.#isMute = refusal === null && performance.now() - began >= this.patience.connect / 2
      // Somebody is there, and has no connection left.
      if (refusal?.code === CROWDED) return
      if (refusal === null) {
        for (const { client, since } of this.#asked) if (since < began) socketOf(client).destroy(error as Error)
        for (const client of this.#own) socketOf(client).destroy()
        void this.#pool.end().catch(() => undefined)
        this.#pool = this.#pooled()
      }
      throw this.#noted(error)
    }
  }

  #pooled(): pg.Pool {
    const pool = new pg.Pool({
      ...{ ...this.config, max: CONNECTIONS, query_timeout: this.patience.query },
      // What is acknowledged is on the medium, whatever the database does for others. The pool waits for it.
      onConnect: (client) => client.query(`${WATCHED}; ${DURABLE}`) as unknown as undefined,
    })
    // Whoever uses the connection is told by what it asks; one that nobody uses is replaced.
    pool.on('error', () => undefined)
    pool.on('connect', (client) => {
      client.on('error', () => undefined)
    })
    return pool
  }

  #noted(error: unknown): unknown {
    const told = this.told(error)
    if (told instanceof KvfoldError && told.code === 'store/unreachable') this.#away = told
    return told
  }

  refuseClosed(): void {
    invariant(this.#isOpen, 'the store was used after it was closed')
  }

  /** Keeps errors of ours as they are, and says of others what happened and what to do. */
  told(error: unknown): unknown {
    if (error instanceof KvfoldError || !(error instanceof Error)) return error
    const { address } = this
    const say = (code: ErrorCode, message: string) => new KvfoldError(code, message, { cause: error })
    const state = error instanceof pg.DatabaseError ? (error.code ?? '') : null
    const what = error.message === '' && 'code' in error ? String(error.code) : error.message
    if (state === null || UNREACHABLE.test(state))
      return say(
        'store/unreachable',
        `The database ${address} that conversations are kept in does not answer (${what}); nothing of this was kept unless it was acknowledged. Try again when it is back; whoever runs it finds the reason in its log.`,
      )
    if (state.startsWith('53'))
      return say('store/full', `The database ${address} has no room (${what}), so this was not kept; make room and try again.`)
    if (/^(28|3D|3F|42501)/u.test(state))
      return say(
        'store/unusable',
        `The database ${address} cannot be used (${what}); give one that this user may make tables in with --store.`,
      )
    return say('store/failed', `The database ${address} could not be read or written (${state}: ${what}).`)
  }
}

const CROWDED = '53300'
/** Connection errors, too many connections, a server that starts, stops or only reads. */
const UNREACHABLE = /^(08|57P|53300|25006)/u

/** It has no other way to be ended while nobody answers. */
const socketOf = (client: pg.ClientBase): Socket => (client as unknown as { connection: { stream: Socket } }).connection.stream

const yes = (): boolean => true
const no = (): boolean => false

function configOf(url: string, { connect }: DatabasePatience): [address: string, pg.ClientConfig] {
  const config: pg.ClientConfig = {
    ...{ connectionString: url, types, application_name: 'kvfold' },
    ...{ connectionTimeoutMillis: connect, keepAlive: true, keepAliveInitialDelayMillis: 5000 },
  }
  try {
    const { database = 'postgres', host, port } = new pg.Client(config)
    return [`${database} at ${host}:${port}`, config]
  } catch {
    // Whatever is wrong with it, there may be a password in what says so.
    throw new KvfoldError(
      'cli/bad-usage',
      'The address of the database cannot be read; give --store postgres://user:password@host:port/name.',
    )
  }
}
