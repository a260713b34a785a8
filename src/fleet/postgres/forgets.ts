/**
 * Makes all servers of one database forget text. Each server learns which threads have text to forget, and reports when it has forgotten
 * it.
 */
import { randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import { setTimeout as delay } from 'node:timers/promises'
import type { ThreadHead, Unforgotten } from '../../runtime/store/port.js'
import type { Database } from './database.js'
import type { RunStatement } from './schema.js'

/** `left` asks this many milliseconds apart which servers have forgotten. */
const LOOK = 50
/** Seconds without a report after which a server counts as away; each server reports every second. */
const SILENT = 5
/** Milliseconds after which a server reports even without news. */
const SAYS = 1000

/**
 * Removes servers that can no longer serve old text. These are earlier servers of place $2, and servers that were silent for very long. Server
 * $1 itself stays. A killed server goes only after 10 seconds, which may be after its successor started.
 */
const REMOVE_ENDED = `DELETE FROM kvfold.servers WHERE id <> $1 AND (place = $2 AND (ended OR at < now() - interval '${2 * SILENT} seconds')
  OR place IS NULL AND at < now() - interval '1 hour' OR at < now() - interval '7 days')`

/**
 * A forget is a row that is written with the fold, in the same transaction. Each server reports up to which transaction it has read and
 * carried out all forgets. A server that was away has not reported. It carries the forgets out when it reads again. That is before it
 * serves anything, because every request reads first.
 */
export class Forgets {
  readonly #server = randomUUID()
  /** When this server last reported, by `performance.now`. */
  #said = -Infinity

  /** `place` with the host's name, because other hosts may have the same paths. */
  readonly #place: string | null

  /** @param place where this server saves cells that outlive it; null if it saves none */
  constructor(
    private readonly database: Database,
    place: string | null,
  ) {
    this.#place = place === null ? null : `${hostname()}:${place}`
  }

  /** Registers this server, in place of an earlier one that ended and saved cells in the same place. */
  async join(): Promise<void> {
    await this.#heard(0n)
  }

  /** Records a forget, within the fold's transaction. */
  async note(run: RunStatement, tenant: string, id: string): Promise<void> {
    await run(
      `INSERT INTO kvfold.forgets (tenant, thread, server, changed) VALUES ($1, $2, $3, pg_current_xact_id())
       ON CONFLICT (tenant, thread) DO UPDATE SET server = excluded.server, changed = excluded.changed`,
      [tenant, id, this.#server],
    )
  }

  /**
   * Returns the forgets that other servers (with `all`: any server) recorded in the given transaction or a later one. A forget may be
   * returned more than once.
   */
  async since(run: RunStatement, transaction: bigint, all: boolean): Promise<readonly Pick<ThreadHead, 'tenant' | 'id'>[]> {
    const rows = await run(
      'SELECT tenant, thread AS id FROM kvfold.forgets WHERE changed >= $1::text::xid8 AND ($2 OR server <> $3)',
      [String(transaction), all, this.#server],
    )
    return rows.map(({ tenant, id }) => ({ tenant: tenant as string, id: id as string }))
  }

  /** Reports that this server has carried out all forgets before this transaction. */
  async done(transaction: bigint, isNews: boolean): Promise<void> {
    if (!isNews && performance.now() < this.#said + SAYS) return
    this.#said = performance.now()
    await this.#heard(transaction)
  }

  /** Registers this server, or notes its news; another server may have removed it while the database was away. Removes ended servers. */
  async #heard(transaction: bigint): Promise<void> {
    const name = `${hostname()}, process ${process.pid}`
    const sql = `WITH removed AS (${REMOVE_ENDED}) INSERT INTO kvfold.servers (id, place, name, heard) VALUES ($1, $2, $3, $4::text::xid8)
       ON CONFLICT (id) DO UPDATE SET heard = excluded.heard, at = now()`
    await this.database.rows(sql, [this.#server, this.#place, name, String(transaction)])
  }

  /**
   * Returns the servers that have not forgotten the thread's text yet, after `patience` milliseconds or as soon as all of them are away.
   */
  async left(tenant: string, id: string, patience: number): Promise<readonly Unforgotten[]> {
    const until = performance.now() + patience
    for (;;) {
      const rows = await this.database.rows(
        `SELECT s.name, s.ended, extract(epoch FROM now() - s.at)::float AS silent FROM kvfold.servers s, kvfold.forgets f
         WHERE f.tenant = $1 AND f.thread = $2 AND s.id <> f.server AND s.heard <= f.changed ORDER BY s.name`,
        [tenant, id],
      )
      if (rows.every(({ ended, silent }) => ended === true || (silent as number) > SILENT) || performance.now() >= until)
        return rows.map(({ name, silent }) => ({ server: name as string, silentSeconds: Math.round(silent as number) }))
      await delay(LOOK)
    }
  }

  /** Ends this server. Its memory is gone, but its saved cells are not: with a place it stays registered, so its forgets remain due. */
  async leave(): Promise<void> {
    const sql = this.#place === null ? 'DELETE FROM kvfold.servers' : 'UPDATE kvfold.servers SET ended = true'
    await this.database.rows(`${sql} WHERE id = $1`, [this.#server])
  }
}
