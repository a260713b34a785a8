/** The connection to a PostgreSQL database: pool, transactions, and errors when the database does not answer. */
import type { Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { invariant, KvfoldError, type ErrorCode } from '../../runtime/core/errors.js'
import type { StoredRow } from '../../runtime/store/row-kind.js'
import { migrate, type Parameter, type RunStatement } from './schema.js'

/** The pool's connections for queries. Claims use further connections. */
const CONNECTIONS = 10
/** Timeouts in milliseconds. */
export interface DatabasePatience {
  /** Limit for opening a connection, and for a probe (`SELECT 1`). */
  readonly connect: number
  /** Limit for the answer to a query. */
  readonly query: number
  /** A query that waits longer than this makes us probe the database. */
  readonly silent: number
}

/**
 * If the network to the database is cut, a query fails within `silent` + `silent` / 4 + `connect`: about 10 seconds. Later queries fail at
 * once.
 */
const PATIENCE: DatabasePatience = { connect: 5000, query: 30_000, silent: 4000 }
/**
 * With these settings the database notices within about 20 seconds that a server is cut off. It then frees the server's advisory locks
 * (claims) and the row locks of its open transaction.
 */
const WATCHED =
  'SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; SET tcp_user_timeout = 20000'
/** The first PostgreSQL version with 64-bit transaction ids (`xid8`). */
const OLDEST = 13
const DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
/** PostgreSQL's type id of bigint, which holds times and counts. Its values are read as numbers. */
const INT8 = 20

const types = new pg.TypeOverrides()
types.setTypeParser(INT8, Number)

/** A query whose answer has not arrived. */
interface PendingQuery {
  readonly client: pg.ClientBase
  readonly since: number
}

/** Whether PostgreSQL can store this text as a name. It refuses any text with a NUL character. */
export const canName = (text: string): boolean => !text.includes('\0')

export class Database {
  #pool: pg.Pool
  readonly #asked = new Set<PendingQuery>()
  /** Connections that `connect` opened for callers, outside the pool. */
  readonly #own = new Set<pg.Client>()
  #watch: NodeJS.Timeout | null = null
  /** The last error that showed the database to be unreachable; null once a probe succeeds. */
  #away: KvfoldError | null = null
  /** True after a probe that got no answer at all, not even a refusal. Queries then fail at once until a probe succeeds. */
  #isMute = false
  #probing: Promise<void> | null = null
  #isOpen = true

  private constructor(
    /** The name and host of the database, without a password. */
    readonly address: string,
    private readonly config: pg.ClientConfig,
    private readonly patience: DatabasePatience,
  ) {
    this.#pool = this.#pooled()
  }

  /** Why the database cannot be used at the moment; null if no problem is known. */
  get problem(): string | null {
    return this.#away?.message ?? null
  }

  /**
   * Opens the database, and migrates the tables of earlier releases.
   * @param url `postgres://user:password@host:port/name`, with libpq's options behind `?`
   * @throws KvfoldError store/unusable, store/unreachable, store/newer; the database is then unchanged
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

  /** Runs one statement outside a transaction. @throws KvfoldError store/* */
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

  /** Runs `work` in a transaction, which is rolled back if `work` throws. With `reading`, all reads see the database at one moment. */
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
      // If the rollback fails too, close the connection, which ends the transaction.
      const isClean = !isGone && (await run('ROLLBACK').then(yes, no))
      client.release(!isClean)
      throw error
    }
  }

  /** Opens a connection outside the pool for the caller. Queries on it (`ask`) have no time limit. */
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
   * Runs one statement on this connection. If the answer takes longer than `silent`, the database is probed: with a cut network, the
   * connection would otherwise stay open for many minutes. @throws KvfoldError store/*
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

  /** Closes the pool. Further calls do nothing. */
  async close(): Promise<void> {
    if (!this.#isOpen) return
    this.#isOpen = false
    if (this.#watch !== null) clearInterval(this.#watch)
    // A database that does not answer does not close its connections either, so limit the wait.
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

  /**
   * Makes sure that the database can be asked. After a failure, all callers wait for one shared probe. While probes get no answer at all,
   * callers fail at once.
   * @throws KvfoldError store/unreachable
   */
  async #reach(): Promise<void> {
    this.refuseClosed()
    if (this.#away === null) return
    if (this.#isMute) throw this.#away
    await this.#probe()
  }

  /**
   * Probes the database if a query has waited longer than `silent`, or if the last probe got no answer. After a successful probe, the query
   * goes on waiting.
   */
  #look(): void {
    const late = performance.now() - this.patience.silent
    const isLate = [...this.#asked].some(({ since }) => since < late)
    if (isLate || this.#isMute) this.#probe().catch(() => undefined)
  }

  #probe(): Promise<void> {
    return (this.#probing ??= this.#probed().finally(() => (this.#probing = null)))
  }

  /**
   * Probes the database. If the network gives no answer, breaks all connections that were open before: their queries have waited too long,
   * and idle ones would fail too.
   */
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
      // A refusal takes next to no time, a timeout at least `connect`. Half of it is the border, because timers can fire some milliseconds
      // early.
      const refusal = error instanceof pg.DatabaseError ? error : null
      this.#isMute = refusal === null && performance.now() - began >= this.patience.connect / 2
      // Too many connections: the database is up, so nothing is broken off.
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
      // Sets `synchronous_commit`, so that an acknowledged change survives a crash even if the database's default says otherwise. The pool
      // waits for this query.
      onConnect: (client) => client.query(`${WATCHED}; ${DURABLE}`) as unknown as undefined,
    })
    // Errors are handled elsewhere: a query reports them to its caller, and the pool replaces an idle connection.
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

  /** Returns kvfold's own errors unchanged, and any other error as one that says what happened and what to do. */
  told(error: unknown): unknown {
    if (error instanceof KvfoldError || !(error instanceof Error)) return error
    const { address } = this
    const say = (code: ErrorCode, message: string) => new KvfoldError(code, message, { cause: error })
    const state = error instanceof pg.DatabaseError ? (error.code ?? '') : null
    const what = error.message === '' && 'code' in error ? String(error.code) : error.message
    if (state === null || UNREACHABLE.test(state))
      return say(
        'store/unreachable',
        `The database ${address} of the conversations does not answer (${what}). Only acknowledged changes are saved. Try again when the database is back; its log has the reason.`,
      )
    if (state.startsWith('53'))
      return say(
        'store/full',
        `The database ${address} has no room (${what}), so this was not saved; free some space and try again.`,
      )
    if (/^(28|3D|3F|42501)/u.test(state))
      return say(
        'store/unusable',
        `The database ${address} cannot be used (${what}); give --store a database in which this user may create tables.`,
      )
    return say('store/failed', `The database ${address} could not be read or written (${state}: ${what}).`)
  }
}

const CROWDED = '53300'
/** SQLSTATE codes for: connection errors, too many connections, a server that starts or stops, a read-only server. */
const UNREACHABLE = /^(08|57P|53300|25006)/u

/** Destroying the socket is the only way to end a connection while the database does not answer. */
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
    // The cause is left out, because its text may contain the password.
    throw new KvfoldError(
      'cli/bad-usage',
      'The address of the database cannot be read; give --store postgres://user:password@host:port/name.',
    )
  }
}
