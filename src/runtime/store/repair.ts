/** Owns the looking through of a store that nobody uses, and the making of a whole one of what is whole in it. */
import { copyFileSync, existsSync, linkSync, mkdtempSync, renameSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import type { Damage } from './damage.js'
import { Manifest, type Listed } from './manifest.js'
import { migrations } from './migrations.js'
import { Salvage, type Salvaged } from './salvage.js'
import { SqliteStore, THREADS_FILE, THREADS_MANIFEST } from './sqlite-store.js'
import { StoreFile, syncFolder } from './store-file.js'

export interface FileCheck {
  readonly path: string
  /** What SQLite says is wrong with the file; null: nothing. Rows may be read all the same. */
  readonly file: string | null
  /** Lines of the manifest that were damaged: what only they told is not known. */
  readonly unreadable: number
}

export interface ThreadsCheck extends FileCheck {
  readonly threads: readonly Salvaged[]
  /** Ends the reading of threads. */
  close(): void
}

/**
 * Null when there is no store. `isRefused`: SQLite has said what it finds wrong, and is not asked again.
 * @throws KvfoldError store/locked, store/newer, store/unusable
 */
export function checkThreads(folder: string, isRefused = false): ThreadsCheck | null {
  const path = join(folder, THREADS_FILE)
  const manifest = Manifest.read(join(folder, THREADS_MANIFEST))
  const { unreadable } = manifest
  if (!existsSync(path)) {
    if (!manifest.found) return null
    return { path, file: 'it is not there', unreadable, threads: [...manifest.listed].map(missing), close: () => undefined }
  }
  const salvage = new Salvage(path, manifest)
  const close = () => {
    salvage.close()
  }
  try {
    // Before SQLite looks, which takes the WAL away.
    const threads = salvage.threads()
    return { path, file: isRefused ? null : StoreFile.inspect({ path, migrations }), unreadable, threads, close }
  } catch (error) {
    close()
    throw error
  }
}

const NONE = { found: 0, of: null } as const
const missing = (listed: Listed): Salvaged => ({
  ...{ tenant: listed.tenant, id: listed.id, listed, record: null, dropped: listed.dropped !== undefined },
  damage: [listed.dropped ?? 'the file of the store is not there'],
  rows: { messages: NONE, entries: NONE, events: NONE },
})

/** As the server would say it; null: the thread is what was acknowledged. */
export function damageOf({ tenant, id, damage, record, dropped }: Salvaged): Damage | null {
  if (damage.length === 0) return null
  const settled = dropped ? { settled: true as const } : {}
  return { of: 'thread', kind: record === null ? 'lost' : 'damaged', tenant, id, what: damage.join('; '), ...settled }
}

export interface Repaired {
  /** Where the damaged files are now. */
  readonly backup: string
  readonly whole: number
  /** Threads of which the beginning was kept, and those that were left out, with why. */
  readonly cut: readonly { readonly damage: Damage; readonly rows: Salvaged['rows'] }[]
  readonly dropped: readonly Damage[]
}

/**
 * Writes a store of what is whole beside the old one, and puts it in its place; the old one stays as `backup`. What it leaves out is in the new
 * manifest: who asks for it is told.
 */
export async function repairThreads(folder: string, { path, threads }: ThreadsCheck): Promise<Repaired> {
  const stamp = new Date().toISOString().replace(/[:.]/gu, '-')
  const place = mkdtempSync(join(folder, 'repair-'))
  try {
    const store = SqliteStore.open({ folder: place })
    const cut: { damage: Damage; rows: Salvaged['rows'] }[] = []
    const dropped: Damage[] = []
    const left: Listed[] = []
    let whole = 0
    for (const thread of threads) {
      const damage = damageOf(thread)
      if (thread.record !== null) await store.create(thread.record(), null)
      if (damage === null) whole++
      else if (thread.record !== null) cut.push({ damage, rows: thread.rows })
      else {
        if (damage.settled !== true) dropped.push(damage)
        const { tenant, id, listed } = thread
        // Nobody can ask for what has lost its name.
        if (thread.listed === null) continue
        const why = listed?.dropped ?? `left out by the repair of ${stamp.slice(0, 10)}, as ${damage.what}`
        left.push({ tenant, id, revision: listed?.revision ?? 0, sum: 0, used: listed?.used ?? Date.now(), dropped: why })
      }
    }
    await store.close()
    const manifest = Manifest.read(join(place, THREADS_MANIFEST))
    manifest.begin(left)
    manifest.close()
    const backup = putInPlace({ folder, place, path, name: THREADS_FILE, manifest: THREADS_MANIFEST, stamp })
    return { backup, whole, cut, dropped }
  } finally {
    rmSync(place, { recursive: true, force: true })
  }
}

/** The file of `place` instead of the one at `path`, which gets another name. Killed in the midst of it, one of the two is whole under some name. */
export function putInPlace(of: {
  readonly folder: string
  readonly place: string
  readonly path: string
  readonly name: string
  readonly manifest: string
  readonly stamp: string
}): string {
  const { folder, place, path, name, manifest, stamp } = of
  const backup = `${path}.damaged-${stamp}`
  const list = join(folder, manifest)
  twice(path, backup)
  twice(list, `${backup}-manifest`)
  // Before the new file is there: a WAL of another one would be its ruin.
  for (const end of ['-wal', '-journal']) if (existsSync(`${path}${end}`)) renameSync(`${path}${end}`, `${backup}${end}`)
  renameSync(join(place, name), path)
  renameSync(join(place, manifest), list)
  syncFolder(folder)
  return backup
}

/** Under another name, too. */
function twice(path: string, name: string): void {
  if (!existsSync(path)) return
  try {
    linkSync(path, name)
  } catch {
    // Not every file system has links.
    copyFileSync(path, name)
  }
}
