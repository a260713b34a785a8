/**
 * Checks a store while no server uses it. Finds the threads that are stored as the server acknowledged them, and what can be read of the
 * others.
 */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { keyOf } from '../core/ids.js'
import { type Damage, UNNAMED } from './damage.js'
import { behind, type Listed, lost, Manifest } from './manifest.js'
import { migrations } from './migrations.js'
import type { ThreadHead, ThreadRecord } from './port.js'
import {
  asFarAsRead,
  digestRows,
  digestSum,
  headRows,
  PART_TABLES,
  PARTS,
  type PartRows,
  type PartTable,
  type ThreadDigest,
  ThreadRows,
  UNREADABLE,
} from './rows.js'
import { THREADS_FILE, THREADS_MANIFEST } from './sqlite-store.js'
import { StoreFile } from './store-file.js'

/** What the check found of one thread. */
export interface FoundThread extends Pick<ThreadHead, 'tenant' | 'id'> {
  /** The thread. Of a damaged thread, only the messages before the damage; null when there are none. */
  readonly record: ThreadRecord | null
  /** Null when the thread is stored exactly as the server acknowledged it. */
  readonly damage: Damage | null
}

export interface FileCheck {
  readonly path: string
  /** What SQLite reports about the file; null when it finds no damage. Some rows may still be readable. */
  readonly file: string | null
  /** How many lines of the manifest are damaged and so unknown. */
  readonly unreadable: number
}

export interface ThreadsCheck extends FileCheck {
  /** Reads the threads one by one: first those in the file, then those that the file has lost. */
  threads(): Iterable<FoundThread>
  /** Closes the store's file. */
  close(): void
}

/** Opens the check. Returns null when there is no store. @throws KvfoldError store/locked, store/older, store/newer */
export function checkThreads(folder: string): ThreadsCheck | null {
  const path = join(folder, THREADS_FILE)
  const manifest = Manifest.read(join(folder, THREADS_MANIFEST))
  const { unreadable } = manifest
  if (!existsSync(path)) {
    if (!manifest.found) return null
    const threads = () => missing(manifest, new Set(), 'the store file is missing')
    return { path, file: 'it is missing', unreadable, threads, close: () => undefined }
  }
  const { file, wrong, close } = StoreFile.look({ path, migrations })
  const threads = () =>
    file === null ? missing(manifest, new Set(), wrong ?? 'the store file is empty') : found(file, wrong === null, manifest)
  return { path, file: wrong, unreadable, threads, close }
}

function* found(file: StoreFile, isSound: boolean, manifest: Manifest): Generator<FoundThread> {
  const rows = new ThreadRows(file, isSound ? undefined : placesIn(file))
  const digests = new Map<number, ThreadDigest>()
  for (const row of file.readable('digests', 'thread', digestRows.selected)) {
    const digest = digestRows.read(row, [row['key'] as number])
    if (digest !== null) digests.set(row['key'] as number, digest)
  }
  const numbers = new Set<number>()
  const names = new Set<string>()
  const told = (number: number, head: ThreadHead | null): FoundThread => {
    const thread = judged(rows, number, head, digests.get(number) ?? null, manifest)
    numbers.add(number)
    names.add(keyOf(thread.tenant, thread.id))
    return thread
  }
  for (const row of file.readable('threads', 'number', headRows.selected))
    yield told(row['key'] as number, headRows.read(row, [row['key'] as number]))
  for (const number of digests.keys()) if (!numbers.has(number)) yield told(number, null)
  const selected = 'CAST(thread AS INTEGER) AS thread'
  for (const table of ['edits', ...PART_TABLES])
    for (const { thread } of isSound
      ? file.rows(`SELECT DISTINCT ${selected} FROM ${table}`)
      : file.readable(table, 'rowid', selected))
      if (!numbers.has(thread as number)) yield told(thread as number, null)
  yield* missing(manifest, names)
}

function judged(
  rows: ThreadRows,
  number: number,
  head: ThreadHead | null,
  digest: ThreadDigest | null,
  manifest: Manifest,
): FoundThread {
  const { tenant, id } = head ?? digest ?? { tenant: UNNAMED, id: `number ${number}` }
  const listed = manifest.of(tenant, id)
  const damaged = (what: string): FoundThread => ({
    ...{ tenant, id, damage: { of: 'thread', kind: 'damaged', tenant, id, what } },
    record: head === null && digest === null ? null : rows.beginning(number, head ?? headOf(digest!, listed)),
  })
  if (digest === null) return damaged('its row of checksums is missing or damaged')
  const read = asFarAsRead(() => rows.read(number, digest)) ?? { damage: UNREADABLE }
  if ('damage' in read) return damaged(read.damage)
  const what = listed === undefined ? null : behind(listed, digest.revision, digestSum(digest, number))
  return what === null ? { tenant, id, record: read.record, damage: null } : damaged(what)
}

/** Yields the threads that the manifest lists and the file does not have. `what`: the reason, if known. */
function* missing(manifest: Manifest, there: ReadonlySet<string>, what?: string): Generator<FoundThread> {
  for (const listed of manifest.listed) {
    const { tenant, id } = listed
    if (!there.has(keyOf(tenant, id))) yield { tenant, id, record: null, damage: lost('thread', listed, what) }
  }
}

/** Returns what the digest and the manifest know of a thread whose own row is lost. */
const headOf = ({ tenant, id, model, created }: ThreadDigest, listed: Listed | undefined): ThreadHead => ({
  ...{ tenant, id, model, created, used: listed?.used ?? created },
  ...{ parent: null, contract: null, tools: [], held: [] },
})

/** Finds the rows of each thread in a damaged file. Scans the tables, because indexes may be damaged. */
function placesIn(file: StoreFile): PartRows {
  const tables = new Map<PartTable, Map<number, { readonly place: number; readonly row: number }[]>>()
  for (const table of PART_TABLES) {
    const threads = new Map<number, { readonly place: number; readonly row: number }[]>()
    const selected = 'CAST(thread AS INTEGER) AS thread, CAST(place AS INTEGER) AS place'
    for (const { key, thread, place } of file.readable(table, 'rowid', selected)) {
      const found = { place: place as number, row: key as number }
      const others = threads.get(thread as number)
      if (others === undefined) threads.set(thread as number, [found])
      else others.push(found)
    }
    for (const places of threads.values()) places.sort((a, b) => a.place - b.place)
    tables.set(table, threads)
  }
  return function* (table, thread) {
    for (const { row } of tables.get(table)?.get(thread) ?? [])
      yield* file.rows(`SELECT place, ${PARTS[table].selected} FROM ${table} WHERE rowid = ?`, row)
  }
}
