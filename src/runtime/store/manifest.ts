/**
 * The manifest: a list of the store's contents in a second file. A database file that was truncated, deleted or replaced cannot tell what
 * it lost.
 */
import {
  appendFileSync,
  closeSync,
  existsSync,
  fsyncSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { dirname } from 'node:path'
import { crc32 } from 'node:zlib'
import { keyOf } from '../core/ids.js'
import type { Damage } from './damage.js'
import { syncFolder } from './store-file.js'

/** An item of the store (a thread or response) in the state last acknowledged to a client. */
export interface Listed {
  readonly tenant: string
  readonly id: string
  /** How many changes the item had. In an intact store the number never goes down. */
  readonly revision: number
  /** The checksum of the row that stands for the whole item. */
  readonly sum: number
  /** When the item was last used, in Unix milliseconds. */
  readonly used: number
  /** The id of the item that this one belongs to. The two are deleted together. */
  readonly of?: string
  /** Why the item is missing on purpose: a copy of the store, or a repair by an earlier version, left it out. */
  readonly dropped?: string
}

const FORMAT = 'kvfold-manifest/1'
/** The file is rewritten when it has this many more lines than twice the number of items. */
const SLACK = 2000

/**
 * A line with a checksum is appended after each change of the store, and before each deletion. So the manifest may lag behind the store but
 * never runs ahead of it, even if the process is killed. Lines of changes are not synced to disk: after a power cut the manifest may lag
 * further. It contains ids and checksums, no text.
 */
export class Manifest {
  readonly #listed = new Map<string, Listed>()
  #file: number | null = null
  #follows = false
  #lines = 0

  private constructor(
    readonly path: string,
    /** How many lines of the file are damaged. */
    readonly unreadable: number,
    readonly found: boolean,
  ) {}

  /** Reads the file without changing it. A torn last line, which a killed process leaves, is ignored. */
  static read(path: string): Manifest {
    const found = existsSync(path)
    const lines = found ? readFileSync(path, 'utf8').split('\n') : []
    const read = lines.map(lineOf)
    // After the last line break there is an empty string or a torn line. It does not count as damaged.
    const manifest = new Manifest(path, read.slice(0, -1).filter((line) => line === null).length, found)
    for (const line of read) if (line !== null) manifest.#take(line)
    manifest.#lines = lines.length
    return manifest
  }

  get listed(): Iterable<Listed> {
    return this.#listed.values()
  }

  of(tenant: string, id: string): Listed | undefined {
    return this.#listed.get(keyOf(tenant, id))
  }

  /** Takes these items as the contents of the store, and from here on writes all changes to the file. */
  begin(listed: Iterable<Listed>): void {
    for (const each of listed) this.#listed.set(keyOf(each.tenant, each.id), each)
    this.#follows = true
    this.#lines = Infinity
    this.#append([])
  }

  note(listed: Listed): void {
    this.#listed.set(keyOf(listed.tenant, listed.id), listed)
    this.#append([listed])
  }

  /** Removes items from the list. When the call returns, the removal is synced to disk. */
  forget(gone: readonly Pick<Listed, 'tenant' | 'id'>[]): void {
    const there = gone.filter(({ tenant, id }) => this.#listed.delete(keyOf(tenant, id)))
    if (there.length === 0) return
    this.#append(there.map(({ tenant, id }) => ({ tenant, id, revision: null })))
    if (this.#file !== null) fsyncSync(this.#file)
  }

  /** Closes the file. Later changes are not written to it. */
  close(): void {
    this.#follows = false
    this.#leave()
  }

  #take(line: ManifestLine): void {
    if ('format' in line) return
    if (line.revision === null) this.#listed.delete(keyOf(line.tenant, line.id))
    else this.#listed.set(keyOf(line.tenant, line.id), line)
  }

  #append(lines: readonly ManifestLine[]): void {
    if (!this.#follows) return
    this.#lines += lines.length
    // The store matters more: if the manifest cannot be written, changes of the store go on.
    try {
      if (this.#file === null || this.#lines > 2 * this.#listed.size + SLACK) this.#rewrite()
      else appendFileSync(this.#file, lines.map(textOf).join(''))
    } catch {
      // The disk may be full. The manifest lags until a later change rewrites it.
      this.#lines = Infinity
    }
  }

  /** Replaces the file atomically. */
  #rewrite(): void {
    const lines = [{ format: FORMAT } as const, ...this.#listed.values()]
    const temporary = `${this.path}.tmp`
    rmSync(temporary, { force: true })
    writeFileSync(temporary, lines.map(textOf).join(''), { mode: 0o600, flush: true })
    renameSync(temporary, this.path)
    syncFolder(dirname(this.path))
    this.#leave()
    this.#file = openSync(this.path, 'a')
    this.#lines = lines.length
  }

  #leave(): void {
    if (this.#file !== null) closeSync(this.#file)
    this.#file = null
  }
}

type ManifestLine =
  Listed | { readonly tenant: string; readonly id: string; readonly revision: null } | { readonly format: string }

function textOf(line: ManifestLine): string {
  const json = JSON.stringify(line)
  return `${crc32(json).toString(16).padStart(8, '0')} ${json}\n`
}

function lineOf(text: string): ManifestLine | null {
  const json = text.slice(9)
  return text.startsWith(`${crc32(json).toString(16).padStart(8, '0')} `) ? (JSON.parse(json) as ManifestLine) : null
}

// Comparing the manifest with the store.

/** Compares an item in the store with the manifest. Returns what is wrong; null when the item is as acknowledged, or newer. */
export function behind(listed: Listed, revision: number, sum: number): string | null {
  if (revision < listed.revision) return `it has only the first ${revision} of ${listed.revision} changes`
  return revision === listed.revision && sum !== listed.sum ? 'it differs from the version that was acknowledged' : null
}

/** Makes the damage report of a missing item. @param what the reason, if known; a reason in the manifest has priority */
export const lost = (of: Damage['of'], { tenant, id, revision, dropped }: Listed, what?: string): Damage => ({
  ...{ of, kind: 'lost', tenant, id },
  what: dropped ?? what ?? `nothing is left of it, after ${revision} changes`,
  ...(dropped === undefined ? {} : { settled: true }),
})
