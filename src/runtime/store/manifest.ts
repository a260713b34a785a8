/** Owns the list beside a store's file of what is in it: a file that was cut, deleted or put back cannot say what it has lost. */
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
import type { Damage } from './damage.js'
import { syncFolder } from './store-file.js'

/** What was acknowledged last of something in the store. */
export interface Listed {
  readonly tenant: string
  readonly id: string
  /** Changes so far; the store's own is never smaller. */
  readonly revision: number
  /** Checksum of its row that stands for all of it. */
  readonly sum: number
  /** Last use, Unix milliseconds. */
  readonly used: number
  /** What it belongs to, if it goes with that. */
  readonly of?: string
  /** Why a copy of the store, or a repair by an earlier version, has left it out. */
  readonly dropped?: string
}

const FORMAT = 'kvfold-manifest/1'
/** Lines that may be there for nothing. */
const SLACK = 2000

/**
 * A line for each change, with a checksum, after the change is in the store; of something deleted, before it is deleted there. So it may lag
 * behind the store, and is never ahead of it: a process may end anywhere. Only deletions wait for the medium: what a power cut takes of the
 * rest makes the list lag. It holds ids and checksums, and no text.
 */
export class Manifest {
  readonly #listed = new Map<string, Listed>()
  #file: number | null = null
  #follows = false
  #lines = 0

  private constructor(
    readonly path: string,
    /** Lines that were not to be read. */
    readonly unreadable: number,
    /** Whether there was one. */
    readonly found: boolean,
  ) {}

  /** Changes nothing. A torn last line is what a process leaves that was killed, and counts as none. */
  static read(path: string): Manifest {
    const found = existsSync(path)
    const lines = found ? readFileSync(path, 'utf8').split('\n') : []
    const read = lines.map(lineOf)
    // The last piece is empty, or was cut.
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

  /** From now on the list follows. */
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

  /** On the medium when it returns. */
  forget(gone: readonly Pick<Listed, 'tenant' | 'id'>[]): void {
    const there = gone.filter(({ tenant, id }) => this.#listed.delete(keyOf(tenant, id)))
    if (there.length === 0) return
    this.#append(there.map(({ tenant, id }) => ({ tenant, id, revision: null })))
    if (this.#file !== null) fsyncSync(this.#file)
  }

  /** Idempotent. */
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
    // The store is what counts: a list that cannot be written keeps nobody from changing it.
    try {
      if (this.#file === null || this.#lines > 2 * this.#listed.size + SLACK) this.#rewrite()
      else appendFileSync(this.#file, lines.map(textOf).join(''))
    } catch {
      // No room: the list lags, until it is written anew.
      this.#lines = Infinity
    }
  }

  /** All of it, or none. */
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

/** Null: not what was written. */
function lineOf(text: string): ManifestLine | null {
  const json = text.slice(9)
  return text.startsWith(`${crc32(json).toString(16).padStart(8, '0')} `) ? (JSON.parse(json) as ManifestLine) : null
}

export const keyOf = (tenant: string, id: string): string => JSON.stringify([tenant, id])

// What the list says of the store.

/** What is wrong with something that reads as after its `revision`-th change, with this checksum; null: it is what was acknowledged last, or newer. */
export function behind(listed: Listed, revision: number, sum: number): string | null {
  if (revision < listed.revision) return `it is as it was after ${revision} of ${listed.revision} changes`
  return revision === listed.revision && sum !== listed.sum ? 'it is not what was acknowledged' : null
}

/** Of something that is not there. @param what has become of it, if that is known and no earlier copy has left it out */
export const lost = (of: Damage['of'], { tenant, id, revision, dropped }: Listed, what?: string): Damage => ({
  ...{ of, kind: 'lost', tenant, id },
  what: dropped ?? what ?? `after ${revision} changes there is nothing left of it`,
  ...(dropped === undefined ? {} : { settled: true }),
})
