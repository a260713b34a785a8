/**
 * Makes all servers of one database forget a text. Each server reads which threads have text to forget, and reports when it has forgotten
 * it.
 */
import { randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import { setTimeout as delay } from 'node:timers/promises'
import type { ThreadHead, Unforgotten } from '../../runtime/store/port.js'
import type { Database } from './database.js'
import type { RunStatement } from './schema.js'

/** Milliseconds between two checks of `left` which servers have not forgotten yet. */
const LOOK = 50
/** A server that has not reported for this many seconds counts as away. Each server reports every second. */
const SILENT = 5
/** Milliseconds after which a server reports even if it has forgotten nothing. */
const SAYS = 1000

/**
 * Removes the rows of servers that cannot serve old text any more. These are the servers that this one ($1, at place $2) replaces, and
 * those that were silent for very long. A killed server's row goes after 10 seconds of silence, which may be after its successor has
 * started.
 */
const REMOVE_ENDED = `DELETE FROM kvfold.servers WHERE id <> $1 AND (place = $2 AND (ended OR at < now() - interval '${2 * SILENT} seconds')
  OR place IS NULL AND at < now() - interval '1 hour' OR at < now() - interval '7 days')`

/**
 * A forget is a row that the fold's own transaction writes. Each server reports up to which transaction id it has read and carried out the
 * forgets. A server that was away carries them out when it reads the changes again, which every request does before it serves anything.
 */
export class Forgets {
  readonly #server = randomUUID()
  /** The time of this server's last report, by `performance.now`. */
  #said = -Infinity

  /** `place` behind the host's name, because two hosts may have the same path. */
  readonly #place: string | null

  /** @param place the folder in which this server saves cells that outlive it; null if it saves none */
  constructor(
    private readonly database: Database,
    place: string | null,
  ) {
    this.#place = place === null ? null : `${hostname()}:${place}`
  }

  /** Registers this server. Removes an earlier one that ended and saved cells in the same place. */
  async join(): Promise<void> {
    await this.#heard(0n)
  }

  /** Records that a thread has text to forget. Runs in the fold's transaction. */
  async note(run: RunStatement, tenant: string, id: string): Promise<void> {
    await run(
      `INSERT INTO kvfold.forgets (tenant, thread, server, changed) VALUES ($1, $2, $3, pg_current_xact_id())
       ON CONFLICT (tenant, thread) DO UPDATE SET server = excluded.server, changed = excluded.changed`,
      [tenant, id, this.#server],
    )
  }

  /**
   * Returns the threads with forgets recorded in the given transaction or a later one. Only those of other servers, unless `all`. A later
   * call may return the same thread again.
   */
  async since(run: RunStatement, transaction: bigint, all: boolean): Promise<readonly Pick<ThreadHead, 'tenant' | 'id'>[]> {
    const rows = await run(
      'SELECT tenant, thread AS id FROM kvfold.forgets WHERE changed >= $1::text::xid8 AND ($2 OR server <> $3)',
      [String(transaction), all, this.#server],
    )
    return rows.map(({ tenant, id }) => ({ tenant: tenant as string, id: id as string }))
  }

  /**
   * Reports that this server has carried out all forgets of earlier transactions than this one. Without news, reports at most once a
   * second.
   */
  async done(transaction: bigint, isNews: boolean): Promise<void> {
    if (!isNews && performance.now() < this.#said + SAYS) return
    this.#said = performance.now()
    await this.#heard(transaction)
  }

  /**
   * Writes this server's row and its report, and removes ended servers. The row may be missing: another server may have removed it while
   * this one was away.
   */
  async #heard(transaction: bigint): Promise<void> {
    const name = `${hostname()}, process ${process.pid}`
    const sql = `WITH removed AS (${REMOVE_ENDED}) INSERT INTO kvfold.servers (id, place, name, heard) VALUES ($1, $2, $3, $4::text::xid8)
       ON CONFLICT (id) DO UPDATE SET heard = excluded.heard, at = now()`
    await this.database.rows(sql, [this.#server, this.#place, name, String(transaction)])
  }

  /**
   * Returns the servers that have not forgotten the thread's text yet. Waits up to `patience` milliseconds for them, but not for servers
   * that are away.
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

  /** Unregisters this server. If it saves cells, its row stays and is marked as ended: the saved cells must still forget. */
  async leave(): Promise<void> {
    const sql = this.#place === null ? 'DELETE FROM kvfold.servers' : 'UPDATE kvfold.servers SET ended = true'
    await this.database.rows(`${sql} WHERE id = $1`, [this.#server])
  }
}
