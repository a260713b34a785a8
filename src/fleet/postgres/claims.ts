/**
 * Claims of threads: only one server of a database works on a thread at a time. A claim is an advisory lock of PostgreSQL, which ends with
 * its connection.
 */
import { createHash } from 'node:crypto'
import type pg from 'pg'
import type { Database } from './database.js'

interface HeldClient {
  readonly client: pg.Client
  /** How many claims of this server share the lock. */
  users: number
  /** Settles when the lock is released; null while no release is running. */
  ending: Promise<void> | null
}

/**
 * Takes and releases the advisory locks. One shared connection holds all locks that were free at the first try. A claim that waits for its
 * lock uses a connection of its own. If a lock's connection breaks, the lock is lost. A write without it is still safe:
 * `PostgresStore.update` refuses it if another server wrote in between.
 */
export class Claims {
  readonly #held = new Map<string, HeldClient>()
  #session: Promise<pg.Client> | null = null

  constructor(private readonly database: Database) {}

  /**
   * Claims a thread. Returns a function that releases the claim. Returns null if another server has the thread and `wait` is false.
   * @throws KvfoldError store/unreachable
   */
  async take(tenant: string, id: string, wait: boolean): Promise<(() => Promise<void>) | null> {
    const key = numberOf(tenant, id)
    const shared = await this.#shared(key)
    if (shared !== null) return shared
    const session = await this.#connected()
    if (await this.#asked(session, 'SELECT pg_try_advisory_lock($1) AS got', key)) return this.#taken(key, session)
    if (!wait) return null
    const own = await this.#connect()
    try {
      await this.#asked(own, 'SELECT pg_advisory_lock($1) IS NOT NULL AS got', key)
    } catch (error) {
      await own.end().catch(() => undefined)
      throw error
    }
    return this.#taken(key, own)
  }

  async close(): Promise<void> {
    const clients = new Set([...this.#held.values()].map(({ client }) => client))
    const session = await this.#session?.catch(() => null)
    if (session != null) clients.add(session)
    this.#held.clear()
    await Promise.all([...clients].map((client) => client.end().catch(() => undefined)))
  }

  async #shared(key: string): Promise<(() => Promise<void>) | null> {
    for (;;) {
      const held = this.#held.get(key)
      if (held === undefined) return null
      if (held.ending === null) {
        held.users++
        return this.#release(key, held)
      }
      await held.ending
    }
  }

  /** Records that `client` holds the lock. If another claim of this server took the same lock meanwhile, both claims share it. */
  #taken(key: string, client: pg.Client): () => Promise<void> {
    const other = this.#held.get(key)
    if (other !== undefined && other.client === client && other.ending === null) {
      void this.#unlock(client, key)
      other.users++
      return this.#release(key, other)
    }
    const held: HeldClient = { client, users: 1, ending: null }
    this.#held.set(key, held)
    return this.#release(key, held)
  }

  #release(key: string, held: HeldClient): () => Promise<void> {
    let done = false
    return async () => {
      if (done) return
      done = true
      held.users--
      if (held.users > 0 || this.#held.get(key) !== held) return
      held.ending = this.#unlock(held.client, key)
      await held.ending
      if (this.#held.get(key) === held) this.#held.delete(key)
    }
  }

  /** Releases the lock. If that fails, PostgreSQL releases it when the connection ends. */
  async #unlock(client: pg.Client, key: string): Promise<void> {
    const session = await this.#session?.catch(() => null)
    await this.database.ask(client, 'SELECT pg_advisory_unlock($1)', [key]).catch(() => undefined)
    if (client !== session) await client.end().catch(() => undefined)
  }

  async #asked(client: pg.Client, sql: string, key: string): Promise<boolean> {
    const { rows } = await this.database.ask<{ got: boolean }>(client, sql, [key])
    return rows[0]?.got === true
  }

  #connected(): Promise<pg.Client> {
    if (this.#session !== null) return this.#session
    const session = this.#connect()
    this.#session = session
    const forget = () => {
      if (this.#session === session) this.#session = null
    }
    session.then((client) => client.once('error', forget).once('end', forget), forget)
    return session
  }

  async #connect(): Promise<pg.Client> {
    const client = await this.database.connect()
    const lost = () => {
      for (const [key, held] of this.#held) if (held.client === client) this.#held.delete(key)
    }
    client.once('end', lost)
    // After an error the connection takes no more queries, but it may take a while to end.
    client.once('error', () => {
      lost()
      void client.end().catch(() => undefined)
    })
    return client
  }
}

/** Hashes a thread's tenant and id to the 64-bit number of its advisory lock. Two threads with the same number only wait for each other. */
const numberOf = (tenant: string, id: string): string =>
  createHash('sha256')
    .update(JSON.stringify(['kvfold', tenant, id]))
    .digest()
    .readBigInt64BE()
    .toString()
