/** Moves whole stores in PostgreSQL: fills an empty store completely or not at all, and reads a store as of one moment. */
import { isDeepStrictEqual } from 'node:util'
import { KvfoldError } from '../../runtime/core/errors.js'
import type { FoundThread } from '../../runtime/store/check.js'
import type { ThreadCard, ThreadHead, ThreadRecord } from '../../runtime/store/port.js'
import type { Database } from './database.js'
import type { RunStatement } from './schema.js'
import { Damaged, readThread, ThreadWriter } from './thread-rows.js'

/** Passes all threads to `each`, oldest first. Then runs `more`, whose reads see the same moment. */
export function readAll<T>(
  database: Database,
  each: (thread: FoundThread) => Promise<void> | void,
  more: (run: RunStatement) => Promise<T>,
): Promise<T> {
  return database.transaction(
    async (run) => {
      for (const { tenant, id } of await run('SELECT tenant, id FROM kvfold.threads ORDER BY number')) {
        const name = { tenant: tenant as string, id: id as string }
        await each({ ...name, ...(await found(run, name)) })
      }
      return more(run)
    },
    { reading: true },
  )
}

async function found(
  run: RunStatement,
  { tenant, id }: Pick<ThreadHead, 'tenant' | 'id'>,
): Promise<Pick<FoundThread, 'record' | 'damage'>> {
  try {
    const read = await readThread(run, tenant, id)
    return { record: read?.record ?? null, damage: null }
  } catch (error) {
    if (!(error instanceof Damaged)) throw error
    return { record: null, damage: { of: 'thread', kind: 'damaged', tenant, id, what: error.message } }
  }
}

/**
 * Writes the threads, and reads each one back to compare it. Then runs `more`, which writes the other records. Other servers of the
 * database wait meanwhile.
 * @throws KvfoldError store/not-empty if the database has threads, store/failed if a thread reads back differently; the database is then
 * unchanged
 */
export async function fill(
  database: Database,
  threads: Iterable<ThreadRecord>,
  cardOf: (thread: ThreadRecord) => ThreadCard,
  more: (run: RunStatement) => Promise<void>,
): Promise<void> {
  await database.transaction(async (run) => {
    await run('LOCK TABLE kvfold.threads IN EXCLUSIVE MODE')
    const there = await run('SELECT 1 FROM kvfold.threads LIMIT 1')
    if (there.length > 0)
      throw new KvfoldError(
        'store/not-empty',
        `The database ${database.address} has conversations already, so nothing was moved; give one that has none.`,
      )
    // Otherwise a server that reads an old deletion of one of these threads would drop the thread.
    await run('DELETE FROM kvfold.gone')
    const writer = new ThreadWriter(run)
    for (const thread of threads) {
      await writer.create(thread, cardOf(thread))
      const { record } = await found(run, thread)
      if (!isDeepStrictEqual(record, thread)) throw notSame('thread', thread.id, database.address)
    }
    await more(run)
  })
}

/** Returns the error for a record that reads back differently from what was written. */
export const notSame = (what: string, id: string, where: string): KvfoldError =>
  new KvfoldError(
    'store/failed',
    `The ${what} ${id} reads back from ${where} differently than it was written, so nothing was moved; the source is unchanged.`,
  )

/**
 * Refuses a database that servers use. @throws KvfoldError store/locked if other connections named kvfold use it (as far as this user may
 * see them)
 */
export async function refuseUsed(database: Database): Promise<void> {
  const [row] = await database.rows(
    `SELECT count(*) AS others FROM pg_stat_activity
     WHERE datname = current_database() AND application_name = 'kvfold' AND pid <> pg_backend_pid()`,
  )
  if (row?.['others'] !== 0)
    throw new KvfoldError('store/locked', `A server uses the database ${database.address}; stop it and try again.`)
}
