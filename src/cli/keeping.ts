/** Owns what the server keeps when it ends: from the options to an open store, and how long things stay in it. */
import type { Command } from 'commander'
import { KvfoldError } from '../core/errors.js'
import type { Service } from '../server/ask.js'
import type { SqliteResponses } from '../server/responses/sqlite-responses.js'
import { stateFolder } from '../store/folder.js'
import { Retention } from '../store/retention.js'
import type { SqliteStore } from '../store/sqlite-store.js'
import { decimal } from './options.js'

export interface KeepingFlags {
  readonly store?: string
  /** Days. */
  readonly retention: number
}

const DAY = 24 * 3_600_000

export function addKeepingOptions(command: Command): Command {
  return command
    .option(
      '--store <folder>',
      'where conversations outlive the server, readable by you only; `none` keeps them in memory (default: kvfold in the XDG state folder)',
    )
    .option('--retention <days>', 'how long conversations that nobody uses are kept', decimal(0.0001, 36_500), 30)
}

export const retentionMs = ({ retention }: KeepingFlags): number => retention * DAY

export interface Kept {
  /** Without what is too old. */
  readonly store: SqliteStore
  readonly responses: SqliteResponses
}

/** Null for `none`. @throws KvfoldError store/* */
export async function openStore(flags: KeepingFlags, diskCache?: string): Promise<Kept | null> {
  if (flags.store === 'none') return null
  const folder = flags.store ?? stateFolder()
  // Only now: other commands should not wait for SQLite, nor need it.
  const load = () => Promise.all([import('../store/sqlite-store.js'), import('../server/responses/sqlite-responses.js')])
  const [{ SqliteStore }, { SqliteResponses }] = await load().catch((error: unknown) => {
    throw new KvfoldError('store/unusable', 'SQLite (the package libsql) cannot be loaded here; use --store none.', {
      cause: error,
    })
  })
  const store = SqliteStore.open({ folder, ...(diskCache === undefined ? {} : { diskCache }) })
  await store.deleteUnusedSince(Date.now() - retentionMs(flags))
  return { store, responses: SqliteResponses.open(folder) }
}

/** Deletes what becomes too old while the service runs, until it is stopped. */
export const keepRetention = (
  store: SqliteStore,
  service: Pick<Service, 'threads'>,
  flags: KeepingFlags,
  onError: (error: unknown) => void,
): Retention =>
  new Retention({ store, keep: retentionMs(flags), remove: (tenant, id) => service.threads.delete(tenant, id), onError })
