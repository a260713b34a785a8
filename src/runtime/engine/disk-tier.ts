/** The disk tier: a folder of saved sequences, one file each. A file is used only after its checksums were verified. */
import { randomBytes } from 'node:crypto'
import { type FileHandle, mkdir, open, readdir, rm, stat, utimes } from 'node:fs/promises'
import { join } from 'node:path'
import { isRunning, processSpace } from '../core/processes.js'
import { steady } from '../core/clock.js'
import { invariant, KvfoldError } from '../core/errors.js'
import { writeWhole } from '../core/whole-file.js'
import { WORDS } from '../kv/cell-hash.js'
import type { DiskCounts, DiskItem, DiskTier, OffloadRecord } from '../kv/ports.js'
import { type Kept, surplus } from '../kv/tier-policy.js'
import { type CacheSecret, openSecret } from './cache-secret.js'
import {
  checksum,
  headOf,
  IDENTITY_BYTES,
  identityIn,
  isOfSystem,
  isUnder,
  readHead,
  READING,
  readState,
  recordOf,
  stateBytes,
  sumIn,
  tokensIn,
  writeCells,
} from './disk-tier-file.js'

const ITEM = /^([0-9a-f]{32})\.kvshelf$/
const TEMPORARY = /^kvshelf-(?:([0-9a-f]{8})-)?([1-9][0-9]{0,9})-([0-9a-f]{8})-[0-9a-f]{32}\.tmp$/
/** A random number of this process in its file names. Process ids repeat, above all in containers. */
const RUN = randomBytes(4).toString('hex')
/** Milliseconds after which a temporary file counts as abandoned, even if a process with the id in its name is running. */
const ABANDONED = 600_000

export interface DiskShelfOptions {
  /** The folder. It is created, for this user only, if it is missing. Files whose names are not kvfold's are left alone. */
  readonly folder: string
  /** The most bytes of all items in the folder, those of other models included. */
  readonly budget: number
  /** SHA-256 of everything on which a state depends: model, llama.cpp release, cache types and layout, RoPE settings. */
  readonly identity: Buffer
  /** The secret that keys the hashes of all cells in the folder. Default: the folder's own secret. */
  readonly secret?: Buffer
  /** Returns the present time, in milliseconds since 1970. Default: the clock of this program. */
  readonly clock?: () => number
  /** Called with a sentence for the user when saved sequences are lost after the opening. Losses during the opening are in `notes`. */
  readonly tell?: (sentence: string) => void
}

/** kvfold's record of a file. `record` is null if the file has another identity. */
interface Entry extends Kept {
  readonly id: string
  readonly record: OffloadRecord | null
  /** Checksums of the head. */
  readonly sum: Buffer
  lastUse: number
}

/**
 * A folder of saved sequences as a disk tier.
 *
 * A file gets its final name only when it is complete and synced (temporary name, fsync, rename). So the process may be killed at any
 * point; the next opening deletes the file that it was writing, by the process id in the name. A power cut may lose the last items. A file
 * that it leaves incomplete is detected like any other damage. A file's time of modification is its last use.
 *
 * Items of another identity belong to another model. They are never listed, and never deleted for being foreign. They count toward the same
 * budget, because the user gave a size to the folder; when room is short, all items compete by benefit. No engine can use items that are
 * damaged, of another format or under another secret, so they are deleted when they are seen.
 *
 * Several processes may share a folder. There is no lock, because a lock would outlive a killed process. Each step is atomic, and its
 * failure harmless. The next `put` records the items of other processes. A file that another process deleted is gone, and its cells are
 * computed again. The budget may be exceeded by what other processes write at the same time.
 *
 * Changes of the folder run one after another; reads do not wait for them.
 */
export class DiskTierFolder implements DiskTier {
  readonly #entries = new Map<string, Entry>()
  /** Ids of all files that were in the folder when it was last read. A file in it is not recorded again while it is being deleted. */
  #seen = new Set<string>()
  readonly #counts = { refused: 0, unreadable: 0, gone: 0, evicted: 0, failed: 0 }
  readonly #notes: string[]
  /** Causes of failed writes that the user was told. A full disk would otherwise be reported for every sequence. */
  readonly #toldFailures = new Set<string>()
  #changes: Promise<unknown> = Promise.resolve()
  #opened = false
  #closed = false

  private constructor(
    private readonly options: DiskShelfOptions,
    private readonly kept: CacheSecret,
  ) {
    this.#notes = kept.note === null ? [] : [kept.note]
  }

  /**
   * Reads the heads of all files, deletes damaged ones and the remains of killed processes, and deletes items until the budget holds.
   * @throws KvfoldError engine/bad-request when the folder cannot be used
   */
  static async open(options: DiskShelfOptions): Promise<DiskTierFolder> {
    invariant(options.identity.length === IDENTITY_BYTES, 'the identity of a disk tier has 32 bytes')
    const { folder } = options
    try {
      await mkdir(folder, { recursive: true, mode: 0o700 })
      const secret =
        options.secret === undefined
          ? await openSecret(folder, temporaryIn(folder, randomBytes(16).toString('hex')))
          : { secret: options.secret, note: null }
      const disk = new DiskTierFolder(options, secret)
      await disk.#look()
      await disk.#shrink(options.budget)
      disk.#opened = true
      return disk
    } catch (error) {
      if (!isOfSystem(error)) throw error
      const message = `The folder for saved sequences, ${folder}, cannot be used: ${error.message}.`
      throw new KvfoldError('engine/bad-request', message, { cause: error })
    }
  }

  /** The secret that keys the hashes of all cells in the folder (CacheSalts). */
  get secret(): Buffer {
    return this.kept.secret
  }

  /** Sentences for the user about problems during the opening. */
  get notes(): readonly string[] {
    return this.#notes
  }

  get items(): readonly DiskItem[] {
    return this.#closed ? [] : [...this.#entries.values()].filter(isItem)
  }

  get counts(): DiskCounts {
    return { ...this.#counts }
  }

  /** Bytes of all items in the folder, those of other models included. */
  get used(): number {
    return [...this.#entries.values()].reduce((sum, { bytes }) => sum + bytes, 0)
  }

  put(record: OffloadRecord, state: Uint8Array): Promise<DiskItem | null> {
    const { tokens, sourceIds: keys, positions, hashes } = record
    const alike = [keys.length, positions.length, hashes.length / WORDS].every((length) => length === tokens.length)
    invariant(alike, 'the arrays of a saved record have equally many entries')
    if (this.#closed) return Promise.resolve(null)
    const head = headOf(record, this.options.identity, state.length)
    return this.#afterOthers(async () => {
      const bytes = head.length + state.length
      if (bytes > this.options.budget) return null
      try {
        await this.#look()
        await this.#shrink(this.options.budget - bytes)
        await checksum(head, state, this.secret)
        const lastUse = this.#now()
        const entry = entryOf(randomBytes(16).toString('hex'), head, recordOf(head), lastUse)
        await this.#write(entry, head, state)
        this.#entries.set(entry.id, entry)
        return entry
      } catch (error) {
        if (!isOfSystem(error)) throw error
        this.#failed(error)
        return null
      }
    })
  }

  async take(id: string): Promise<Uint8Array | null> {
    const entry = this.#closed ? undefined : this.#entries.get(id)
    if (entry === undefined || !isItem(entry)) return null
    const state = await reading(this.#path(id), (file) => readState(file, entry.sum))
    if (state instanceof Uint8Array) {
      this.touch(id)
      return state
    }
    if (this.#entries.delete(id)) this.#lost([state])
    if (state === 'refused') await this.#afterOthers(() => this.#delete(id))
    return null
  }

  drop(id: string): Promise<void> {
    if (this.#closed || !this.#entries.delete(id)) return Promise.resolve()
    return this.#afterOthers(() => this.#delete(id))
  }

  touch(id: string): void {
    const entry = this.#entries.get(id)
    if (entry === undefined || this.#closed) return
    entry.lastUse = this.#now()
    const time = entry.lastUse / 1000
    void this.#afterOthers(() => utimes(this.#path(id), time, time).catch(() => undefined))
  }

  async close(): Promise<void> {
    this.#closed = true
    await this.#changes
  }

  #path(id: string): string {
    return join(this.options.folder, `${id}.kvshelf`)
  }

  #now(): number {
    return this.options.clock?.() ?? steady.now()
  }

  #afterOthers<T>(change: () => Promise<T>): Promise<T> {
    const done = this.#changes.then(change)
    this.#changes = done.catch(() => undefined)
    return done
  }

  /** Updates kvfold's records from the files in the folder. */
  async #look(): Promise<void> {
    const { folder } = this.options
    const found = new Set<string>()
    for (const file of await readdir(folder, { withFileTypes: true })) {
      if (!file.isFile()) continue
      const [, id] = ITEM.exec(file.name) ?? []
      if (id !== undefined) found.add(id)
      else if (await isAbandoned(join(folder, file.name), file.name)) await rm(join(folder, file.name), { force: true })
    }
    const losses: Loss[] = []
    for (const id of found)
      if (!this.#seen.has(id)) {
        const loss = await this.#enter(id)
        if (loss !== null && loss !== 'gone') losses.push(loss)
      }
    for (const id of this.#entries.keys()) if (!found.has(id) && this.#entries.delete(id)) losses.push('gone')
    this.#lost(losses)
    this.#seen = found
  }

  /**
   * Records a new file, or deletes it if it is damaged. Returns the kind of loss, or null. `gone`: another process had deleted the file.
   */
  async #enter(id: string): Promise<Loss | null> {
    const read = await reading(this.#path(id), async (file) => {
      const [head, { mtimeMs }] = [await readHead(file), await file.stat()]
      return head === 'refused' || !isUnder(this.secret, head) ? 'refused' : { head, mtimeMs }
    })
    if (read === 'refused') await this.#delete(id)
    if (typeof read === 'string') return read
    const { head, mtimeMs } = read
    const ours = this.options.identity.equals(identityIn(head))
    const lastUse = Math.min(Math.round(mtimeMs), this.#now())
    this.#entries.set(id, entryOf(id, head, ours ? recordOf(head) : null, lastUse))
    return null
  }

  /** Counts the losses. Tells the user about those that were not deliberate deletions. */
  #lost(losses: readonly Loss[]): void {
    for (const loss of losses) this.#counts[loss]++
    for (const [loss, what] of Object.entries(TOLD)) {
      const count = losses.filter((each) => each === loss).length
      if (count > 0)
        this.#tell(
          `Disk cache ${this.options.folder}: ${count} saved ${count === 1 ? 'sequence' : 'sequences'} ${what} kvfold computes missing cells again.`,
        )
    }
  }

  #failed(error: NodeJS.ErrnoException): void {
    this.#counts.failed++
    const why = error.code ?? error.message
    if (this.#toldFailures.has(why)) return
    this.#toldFailures.add(why)
    this.#tell(
      `kvfold could not save a sequence in the disk cache ${this.options.folder} (${why}) and will compute it again. It only counts further failures of this kind.`,
    )
  }

  #tell(sentence: string): void {
    if (this.#opened) this.options.tell?.(sentence)
    else this.#notes.push(sentence)
  }

  /** Deletes items, those of least benefit first, until the rest takes at most `budget` bytes. */
  async #shrink(budget: number): Promise<void> {
    for (const { id } of surplus([...this.#entries.values()], budget, this.#now())) {
      this.#entries.delete(id)
      this.#counts.evicted++
      await rm(this.#path(id), { force: true })
    }
  }

  /** Writes the file, completely or not at all. */
  async #write({ id, lastUse }: Entry, head: Buffer, state: Uint8Array): Promise<void> {
    const write = (temporary: string) => writeCells(temporary, head, state, lastUse)
    await writeWhole(this.#path(id), write, temporaryIn(this.options.folder, id))
    this.#seen.add(id)
  }

  /** Deletes the file of an item. A failure is ignored, because a file in `#seen` is not recorded again. */
  async #delete(id: string): Promise<void> {
    await rm(this.#path(id), { force: true }).catch(() => undefined)
  }
}

const temporaryIn = (folder: string, id: string): string =>
  join(folder, `kvshelf-${processSpace()}-${process.pid}-${RUN}-${id}.tmp`)

/**
 * Why an item was lost. `refused`: its file is damaged or not ours. `unreadable`: the system did not let us read it. `gone`: another
 * process deleted it.
 */
type Loss = 'refused' | 'unreadable' | 'gone'

/** The losses that the user is told. Not `gone`: another process evicted that file on purpose. */
const TOLD = {
  refused: 'deleted (damaged, of another format or under another secret).',
  unreadable: 'skipped, because the system did not let kvfold read them.',
} as const

const entryOf = <R extends OffloadRecord | null>(id: string, head: Buffer, record: R, lastUse: number) => ({
  id,
  record,
  sum: Buffer.from(sumIn(head)),
  bytes: head.length + stateBytes(head),
  tokens: tokensIn(head),
  lastUse,
})

const isItem = (entry: Entry): entry is Entry & DiskItem => entry.record !== null

/**
 * Opens a file and runs `read`. Returns `unreadable` if memory is too short for it, or if the system does not let us read it; such a file is
 * not deleted.
 */
async function reading<T>(path: string, read: (file: FileHandle) => Promise<T>): Promise<T | Loss> {
  try {
    const file = await open(path, READING)
    try {
      return await read(file)
    } finally {
      await file.close()
    }
  } catch (error) {
    if (error instanceof RangeError) return 'unreadable'
    if (!isOfSystem(error)) throw error
    return error.code === 'ENOENT' ? 'gone' : 'unreadable'
  }
}

/**
 * Whether this is the temporary file of a writer that has ended or hangs. The process id in the name says nothing if it comes from another
 * machine or container, or if an earlier version of kvfold wrote it. Such a file counts as abandoned when it is old.
 */
async function isAbandoned(path: string, name: string): Promise<boolean> {
  const [, space, pid, run] = TEMPORARY.exec(name) ?? []
  if (pid === undefined || run === RUN) return false
  if (space === processSpace() && (Number(pid) === process.pid || !isRunning(Number(pid)))) return true
  const { mtimeMs } = await stat(path).catch(() => ({ mtimeMs: 0 }))
  return mtimeMs < steady.now() - ABANDONED
}

// Where an engine keeps its disk tier.

export interface ShelfPlace {
  readonly folder: string
  /** The most bytes of all items in the folder. */
  readonly bytes: number
}
