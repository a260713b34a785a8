/** The connection to a PostgreSQL database: pool, transactions, and errors when the database does not answer. */
import type { Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { invariant, KvfoldError, type ErrorCode } from '../../runtime/core/errors.js'
import type { StoredRow } from '../../runtime/store/row-kind.js'
import { migrate, type Parameter, type RunStatement } from './schema.js'

/** How many connections the pool has for queries. Claims have further connections. */
const CONNECTIONS = 10
/** Timeouts in milliseconds. */
export interface DatabasePatience {
  /** Limit for making a connection, and for a probe of the database. */
  readonly connect: number
  /** Limit for the answer to a query. */
  readonly query: number
  /** When a query has waited this long, the database is probed. */
  readonly silent: number
}

/** A query of a server that is cut off fails within `silent` + `silent` / 4 + `connect`, some 10 seconds. Later queries fail at once. */
const PATIENCE: DatabasePatience = { connect: 5000, query: 30_000, silent: 4000 }
/**
 * With these settings the database notices within some 20 seconds that a server is cut off. It then frees the server's locks: its claims of
 * threads, and its locks on rows that an unfinished transaction changed.
 */
const WATCHED =
  'SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; SET tcp_user_timeout = 20000'
/** The first version with transaction ids of 64 bits. */
const OLDEST = 13
const DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
/** The type of 64-bit integers, which we use for times and counts; they are read as numbers. */
const INT8 = 20

const types = new pg.TypeOverrides()
types.setTypeParser(INT8, Number)

/** A query that waits for its answer. */
interface PendingQuery {
  readonly client: pg.ClientBase
  readonly since: number
}

/** Whether PostgreSQL can have this text as a name. It has no text with a NUL, and refuses a query that asks for one. */
export const canName = (text: string): boolean => !text.includes('\0')

export class Database {
  #pool: pg.Pool
  readonly #asked = new Set<PendingQuery>()
  /** Connections that `connect` opened for a caller, outside of the pool. */
  readonly #own = new Set<pg.Client>()
  #watch: NodeJS.Timeout | null = null
  /** The last error that showed the database to be unreachable; null if it answers. */
  #away: KvfoldError | null = null
  /** Whether the last probe got no answer at all, not even a refusal. Then queries fail at once until a probe succeeds. */
  #isMute = false
  #probing: Promise<void> | null = null
  #isOpen = true

  private constructor(
    /** The database and its host, without a password. */
    readonly address: string,
    private readonly config: pg.ClientConfig,
    private readonly patience: DatabasePatience,
  ) {
    this.#pool = this.#pooled()
  }

  /** Why the database cannot be used now; null if no problem is known. */
  get problem(): string | null {
    return this.#away?.message ?? null
  }

  /**
   * Opens the database, and migrates tables of earlier versions to the current one.
   * @param url `postgres://user:password@host:port/name`, with libpq's options behind `?`
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

  /** Runs one statement by itself. @throws KvfoldError store/* */
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

  /**
   * Runs `work` in a transaction: all its changes are kept, or none if it throws. With `reading`, all its reads see the database at one
   * moment.
   */
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
      // If even the rollback fails, the connection is closed, which ends the transaction.
      const isClean = !isGone && (await run('ROLLBACK').then(yes, no))
      client.release(!isClean)
      throw error
    }
  }

  /** Makes a connection of the caller's own, on which an answer may take any time (`ask`). */
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
   * Runs one statement on this connection. While it waits for the answer, the database is probed, because a database that is cut off sends
   * nothing. A connection to it would stay open for many minutes. @throws KvfoldError store/*
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

  /** Closes all connections. Further calls do nothing. */
  async close(): Promise<void> {
    if (!this.#isOpen) return
    this.#isOpen = false
    if (this.#watch !== null) clearInterval(this.#watch)
    // A database that does not answer does not close its connections either, so do not wait longer than for a connection.
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
   * After a failure, all callers wait for one probe before they use the database. While probes get no answer at all, the callers fail at
   * once.
   * @throws KvfoldError store/unreachable
   */
  async #reach(): Promise<void> {
    this.refuseClosed()
    if (this.#away === null) return
    if (this.#isMute) throw this.#away
    await this.#probe()
  }

  /** Probes the database if a query has waited longer than `silent`. If the probe succeeds, the query continues to wait. */
  #look(): void {
    const late = performance.now() - this.patience.silent
    const isLate = [...this.#asked].some(({ since }) => since < late)
    if (isLate || this.#isMute) this.#probe().catch(() => undefined)
  }

  #probe(): Promise<void> {
    return (this.#probing ??= this.#probed().finally(() => (this.#probing = null)))
  }

  /**
   * Probes the database. If there is no answer, breaks off all connections: their queries have waited long enough, and unused ones would
   * fail too.
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
      // Half the timeout, because timers fire some milliseconds early after a long turn. A refusal takes next to no time.
      const refusal = error instanceof pg.DatabaseError ? error : null
      this.#isMute = refusal === null && performance.now() - began >= this.patience.connect / 2
      // The database answers, but has no free connection.
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
      // Makes acknowledged changes durable, even if the database's default is different. The pool waits for this query.
      onConnect: (client) => client.query(`${WATCHED}; ${DURABLE}`) as unknown as undefined,
    })
    // The error is ignored here: the user of a connection gets it from a query, and the pool replaces an idle connection.
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

  /** Returns kvfold's own errors unchanged. Turns any other error into one that says what happened and what to do. */
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
/** PostgreSQL's codes for connection errors, too many connections, and a server that starts, stops or only allows reads. */
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
    // Leave the cause out: its text may contain a password.
    throw new KvfoldError(
      'cli/bad-usage',
      'The address of the database cannot be read; give --store postgres://user:password@host:port/name.',
    )
  }
}
