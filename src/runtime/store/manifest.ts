/** Keeps a list of the store's contents beside its file, because a file that was cut, deleted or replaced cannot report its losses. */
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

/** The last acknowledged state of an item in the store. */
export interface Listed {
  readonly tenant: string
  readonly id: string
  /** How many changes the item had. An intact store never counts fewer. */
  readonly revision: number
  /** The checksum of the row that represents the whole item. */
  readonly sum: number
  /** When the item was last used, in Unix milliseconds. */
  readonly used: number
  /** The id of the item that it belongs to and is deleted with, if any. */
  readonly of?: string
  /** Why a copy of the store, or a repair by an earlier version, left the item out. */
  readonly dropped?: string
}

const FORMAT = 'kvfold-manifest/1'
/** How many outdated lines the file may have before it is rewritten. */
const SLACK = 2000

/**
 * The manifest gets a line with a checksum after each change in the store, and before each deletion from it. So it may lag behind the
 * store, but is never ahead, even if the process is killed. Only deletions wait for the medium: if a power cut loses other lines, the
 * manifest lags. It holds ids and checksums, but no text.
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
    /** Whether the file existed. */
    readonly found: boolean,
  ) {}

  /** Reads the file and changes nothing. A torn last line, as a killed process leaves, is ignored. */
  static read(path: string): Manifest {
    const found = existsSync(path)
    const lines = found ? readFileSync(path, 'utf8').split('\n') : []
    const read = lines.map(lineOf)
    // The last piece is empty or torn.
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

  /** Starts to follow the store. Takes the given items as the store's contents, and writes later changes to the file. */
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

  /** Removes items from the list. The removal is on the medium when the call returns. */
  forget(gone: readonly Pick<Listed, 'tenant' | 'id'>[]): void {
    const there = gone.filter(({ tenant, id }) => this.#listed.delete(keyOf(tenant, id)))
    if (there.length === 0) return
    this.#append(there.map(({ tenant, id }) => ({ tenant, id, revision: null })))
    if (this.#file !== null) fsyncSync(this.#file)
  }

  /** Stops following the store and closes the file. Further calls do nothing. */
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
    // The store has priority: changes continue even if the manifest cannot be written.
    try {
      if (this.#file === null || this.#lines > 2 * this.#listed.size + SLACK) this.#rewrite()
      else appendFileSync(this.#file, lines.map(textOf).join(''))
    } catch {
      // The disk is full: the manifest lags until it is rewritten.
      this.#lines = Infinity
    }
  }

  /** Replaces the whole file, or leaves it as it was. */
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

/** Parses a line. Returns null when its checksum does not match. */
function lineOf(text: string): ManifestLine | null {
  const json = text.slice(9)
  return text.startsWith(`${crc32(json).toString(16).padStart(8, '0')} `) ? (JSON.parse(json) as ManifestLine) : null
}

// Comparing the list with the store.

/**
 * Compares an item's stored revision and checksum with the list. Returns the fault; null when the item is as last acknowledged, or newer.
 */
export function behind(listed: Listed, revision: number, sum: number): string | null {
  if (revision < listed.revision) return `it has only the first ${revision} of ${listed.revision} changes`
  return revision === listed.revision && sum !== listed.sum ? 'it differs from the version that was acknowledged' : null
}

/** Describes an item that is missing. @param what the reason, if known; a reason in the list has priority */
export const lost = (of: Damage['of'], { tenant, id, revision, dropped }: Listed, what?: string): Damage => ({
  ...{ of, kind: 'lost', tenant, id },
  what: dropped ?? what ?? `nothing is left of it, after ${revision} changes`,
  ...(dropped === undefined ? {} : { settled: true }),
})
