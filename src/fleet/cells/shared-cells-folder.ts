/**
 * Shares KV cells between engines on several machines through a folder. Each block of cells is one file; its name is an HMAC of the block's
 * identity. A file is used only after its checksums, and its HMAC under the shared secret, were verified.
 */
import { createHmac, randomBytes } from 'node:crypto'
import { type FileHandle, link, mkdir, open, readdir, readFile, rename, rm, stat, utimes } from 'node:fs/promises'
import { join } from 'node:path'
import { steady } from '../../runtime/core/clock.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import type { ConversationId } from '../../runtime/core/ids.js'
import { WORDS } from '../../runtime/kv/cell-hash.js'
import type { OffloadRecord, SharedCounts, SharedTier, WantedBlock } from '../../runtime/kv/ports.js'
import {
  BLOCK_FILE,
  checksum,
  headAt,
  headOf,
  identityIn,
  isOf,
  isOfSystem,
  isUnder,
  readHead,
  READING,
  readState,
  recordOf,
  sumIn,
  writeCells,
} from '../../runtime/engine/disk-tier-file.js'
import type { IdentifiedCells, SharedCells } from '../../runtime/engine/saved-cells.js'

export interface SharedPlace {
  /** kvfold creates the folder, readable by this user only, if it is missing. It leaves files alone that it did not name. */
  readonly folder: string
  /** The most bytes that the blocks of all models in the folder may take together. */
  readonly bytes: number
  /** Must be the same for all engines that share the folder, and unknown to everyone else (see `sharedSecret`). */
  readonly secret: Buffer
}

/** Returns the shared folder as the value of an engine's `sharedCells` option. */
export const sharedCells = (place: SharedPlace): SharedCells => ({
  secret: place.secret,
  open: (identified) => SharedCellsFolder.open({ ...place, ...identified }),
})

/** Returns an error handler that answers ENOENT (no such file) with `otherwise`. @throws every other error */
const unlessGone =
  <T>(otherwise: T) =>
  (error: unknown): T => {
    if (isOfSystem(error) && error.code === 'ENOENT') return otherwise
    throw error
  }

export type SharedFolderOptions = SharedPlace & IdentifiedCells

const ITEM = new RegExp(`^[0-9a-f]{32}\\${BLOCK_FILE}$`, 'u')
const TEMPORARY = /^kvfold-[0-9a-f]{64}\.tmp$/u
/** The name of the file that says which secret the folder belongs to. */
const MARK = 'kvfold.shared'
/** Milliseconds until a temporary file counts as abandoned. Its writer needs only seconds. */
const ABANDONED = 3_600_000
/** Milliseconds. A block's use is recorded only if its last recorded use is longer ago than this. */
const TOUCHED = 60_000
/**
 * `SLICE`: the share of the budget that one engine may write before it lists the folder again. `FREED`: the largest share of the budget
 * that one block may have. An eviction leaves room for two blocks of that size.
 */
const SLICE = 1 / 64
const FREED = 1 / 16

/**
 * A folder of shared cells. NFS or another network file system suffices, because we rely on three rules only:
 * - A rename within the folder replaces a file at once and as a whole.
 * - Only one engine can create a given link, or a given file with O_EXCL.
 * - A reader that opens a file gets all that was written before the writer closed it.
 * There are no locks, no file watching, and no assumed order between two file names. A listing may be out of date: the engine computes
 * blocks that the listing lacks, and blocks that are listed but gone.
 *
 * A block gets its final name only when it is complete and on the file system (temporary name, fsync, rename). Two engines that write the
 * same block write the same content. The file name is an HMAC of the identity and the last cell hash. A listing therefore shows no cell
 * hash, and a reader without the secret finds nothing.
 *
 * The modification time of a file is the block's last use, which orders the eviction. A block gets a time one millisecond earlier than the
 * block before it in the text. So the end of a text is evicted first. If the machines' clocks differ, only the order of eviction changes.
 */
export class SharedCellsFolder implements SharedTier {
  readonly #counts = { read: 0, written: 0, refused: 0, evicted: 0, failed: 0 }
  readonly #told = new Set<string>()
  /**
   * `#used`: bytes of all blocks at the last listing; null before the first listing. `#since`: bytes that this engine has written since
   * then.
   */
  #used: number | null = null
  #since = 0
  #changes: Promise<unknown> = Promise.resolve()
  #closed = false

  private constructor(private readonly options: SharedFolderOptions) {}

  /** Opens the folder. @throws KvfoldError engine/bad-request when the folder cannot be used, or belongs to another secret */
  static async open(options: SharedFolderOptions): Promise<SharedCellsFolder> {
    const { folder } = options
    try {
      await mkdir(folder, { recursive: true, mode: 0o700 })
      const shared = new SharedCellsFolder(options)
      await shared.#checkSecret()
      return shared
    } catch (error) {
      if (!isOfSystem(error)) throw error
      const message = `The folder of shared cells, ${folder}, cannot be used: ${error.message}.`
      throw new KvfoldError('engine/bad-request', message, { cause: error })
    }
  }

  get counts(): SharedCounts {
    return { ...this.#counts }
  }

  put(record: OffloadRecord, state: Uint8Array, isWanted: () => boolean): Promise<boolean> {
    const head = headOf(record, this.options.identity, state.length)
    const bytes = head.length + state.length
    return this.#afterOthers(async () => {
      if (this.#closed) return false
      if (bytes > this.options.bytes * FREED) {
        this.#tell(
          `A block of cells takes ${Math.ceil(bytes / 2 ** 20)} MiB, so kvfold did not share it. The folder of shared cells needs a size of ${Math.ceil(bytes / FREED / 2 ** 20)} MiB at least.`,
        )
        return false
      }
      const path = this.#path(record)
      try {
        if (await this.renew(record)) return true
        await this.#makeRoom(bytes)
        await checksum(head, state, this.options.secret)
        const isKept = await this.#write(path, head, state, isWanted)
        if (isKept) this.#counts.written++
        return isKept
      } catch (error) {
        if (!isOfSystem(error)) throw error
        this.#failed(error, 'written')
        return false
      }
    })
  }

  async renew(wanted: WantedBlock): Promise<boolean> {
    const path = this.#path(wanted)
    const found = await stat(path).catch(() => null)
    if (found === null) return false
    const now = steady.now()
    const used = usedAt(wanted.positions, now) / 1000
    // The recorded use may be in the future, because the clock that set it may have been ahead.
    if (Math.abs(now - found.mtimeMs) > TOUCHED) await utimes(path, used, used).catch(() => undefined)
    return true
  }

  async take(wanted: WantedBlock): Promise<Uint8Array | null> {
    if (this.#closed) return null
    const path = this.#path(wanted)
    try {
      const file = await open(path, READING)
      try {
        const state = await this.#read(file, wanted)
        if (state === null) await this.#refuse(path)
        else this.#counts.read++
        return state
      } finally {
        await file.close()
      }
    } catch (error) {
      if (!isOfSystem(error)) throw error
      // These two errors say that another engine deleted the file. They are not failures.
      if (error.code !== 'ENOENT' && error.code !== 'ESTALE') this.#failed(error, 'read')
      return null
    }
  }

  forget(conversation: ConversationId, keeps: (record: OffloadRecord) => boolean = () => false): Promise<void> {
    return this.#afterOthers(async () => {
      // If the folder cannot be read, nothing was forgotten: the promise rejects and the caller must try again.
      const names = await readdir(this.options.folder).catch(unlessGone([]))
      for (const name of names.filter((name) => ITEM.test(name))) {
        const path = join(this.options.folder, name)
        const head = await headAt(path).catch(unlessGone(null))
        if (head === null || !isOf(conversation, recordOf(head).conversation)) continue
        const isOurs = identityIn(head).equals(this.options.identity) && isUnder(this.options.secret, head)
        if (!isOurs || !keeps(recordOf(head))) await rm(path, { force: true })
      }
    })
  }

  async close(): Promise<void> {
    await this.#changes
    this.#closed = true
  }

  #afterOthers<T>(change: () => Promise<T>): Promise<T> {
    const done = this.#changes.then(change)
    this.#changes = done.catch(() => undefined)
    return done
  }

  #path({ hashes }: Pick<OffloadRecord, 'hashes'>): string {
    const last = hashes.subarray(hashes.length - WORDS)
    const name = createHmac('sha256', this.options.secret)
      .update('kvfold shared block:')
      .update(this.options.identity)
      .update(Buffer.from(last.buffer, last.byteOffset, last.byteLength))
      .digest('hex')
    return join(this.options.folder, name.slice(0, 32) + BLOCK_FILE)
  }

  /**
   * Returns the block's state. Returns null unless the file is complete, was made under our secret, and holds exactly the wanted tokens,
   * positions and hashes.
   */
  async #read(file: FileHandle, { tokens, positions, hashes }: WantedBlock): Promise<Uint8Array | null> {
    const head = await readHead(file)
    const { identity, secret } = this.options
    if (head === 'refused' || !isUnder(secret, head) || !identity.equals(identityIn(head))) return null
    const found = recordOf(head)
    if (!isSame(found.tokens, tokens) || !isSame(found.positions, positions) || !isSame(found.hashes, hashes)) return null
    const state = await readState(file, sumIn(head))
    if (state === 'refused') return null
    const now = steady.now()
    const used = usedAt(positions, now) / 1000
    // The recorded use may be in the future, because the clock that set it may have been ahead.
    if (Math.abs(now - (await file.stat()).mtimeMs) > TOUCHED) await file.utimes(used, used).catch(() => undefined)
    return state
  }

  async #refuse(path: string): Promise<void> {
    this.#counts.refused++
    this.#tell(
      `The folder of shared cells, ${this.options.folder}, has damaged blocks. kvfold deletes them and computes their tokens. It only counts further ones.`,
    )
    await rm(path, { force: true }).catch(() => undefined)
  }

  /** Writes the complete block under its final name, or leaves no file. Returns false if `isWanted` returned false in the meantime. */
  async #write(path: string, head: Buffer, state: Uint8Array, isWanted: () => boolean): Promise<boolean> {
    const temporary = join(this.options.folder, `kvfold-${randomBytes(32).toString('hex')}.tmp`)
    try {
      await writeCells(temporary, head, state, usedAt(recordOf(head).positions, steady.now()))
      if (isWanted()) {
        await rename(temporary, path)
        if (isWanted()) return true
        await rm(path, { force: true })
      }
      await rm(temporary, { force: true })
      return false
    } catch (error) {
      await rm(temporary, { force: true }).catch(() => undefined)
      throw error
    }
  }

  /** Deletes the least recently used blocks if the folder would exceed its budget with `bytes` more. */
  async #makeRoom(bytes: number): Promise<void> {
    const { bytes: budget } = this.options
    this.#since += bytes
    if (this.#used === null || this.#since > budget * SLICE || this.#used + this.#since > budget) {
      const all = await this.#look()
      this.#used = all.reduce((sum, each) => sum + each.bytes, 0)
      this.#since = bytes
      // Keep extra room: another engine may add a block of the largest size at the same moment.
      if (this.#used + bytes > budget * (1 - FREED - 2 * SLICE))
        for (const { path, bytes: size } of all.sort((a, b) => a.used - b.used)) {
          if (this.#used + bytes <= budget * (1 - 2 * FREED)) break
          await rm(path, { force: true })
          this.#used -= size
          this.#counts.evicted++
        }
    }
  }

  async #look(): Promise<{ readonly path: string; readonly bytes: number; readonly used: number }[]> {
    const found: { readonly path: string; readonly bytes: number; readonly used: number }[] = []
    const names = await readdir(this.options.folder).catch(() => [])
    for (const name of names.filter((name) => ITEM.test(name) || TEMPORARY.test(name))) {
      const path = join(this.options.folder, name)
      const about = await stat(path).catch(() => null)
      if (about?.isFile() !== true) continue
      if (ITEM.test(name)) found.push({ path, bytes: about.size, used: about.mtimeMs })
      else if (about.mtimeMs < steady.now() - ABANDONED) await rm(path, { force: true })
    }
    return found
  }

  /**
   * Compares the folder's secret with ours, or marks a new folder with ours. All engines of a folder need the same secret, because an
   * engine with another secret would take the blocks for damaged and delete them.
   * @throws KvfoldError engine/bad-request when the folder belongs to another secret
   */
  async #checkSecret(): Promise<void> {
    const { folder, secret } = this.options
    const path = join(folder, MARK)
    const mark = createHmac('sha256', secret).update('kvfold shared folder').digest('hex')
    const temporary = join(folder, `kvfold-${randomBytes(32).toString('hex')}.tmp`)
    try {
      const file = await open(temporary, 'wx', 0o600)
      await file.writeFile(mark)
      await file.sync()
      await file.close()
      await link(temporary, path)
    } catch (error) {
      // On a file system without hard links, several engines may write their mark at the same time. The last mark remains, and the other
      // engines are refused when they read it below.
      if (isOfSystem(error) && error.code !== 'EEXIST' && !(await isThere(path))) await rename(temporary, path)
    } finally {
      await rm(temporary, { force: true })
    }
    if ((await readFile(path, 'utf8')) === mark) return
    throw new KvfoldError(
      'engine/bad-request',
      `The folder of shared cells, ${folder}, belongs to another secret; give all machines that share it the same secret, or name an empty folder.`,
    )
  }

  #failed(error: NodeJS.ErrnoException, what: 'read' | 'written'): void {
    this.#counts.failed++
    this.#tell(
      `Shared cells could not be ${what} in ${this.options.folder} (${error.code ?? error.message}). kvfold computes their tokens. It only counts further failures of this kind.`,
    )
  }

  #tell(sentence: string): void {
    if (this.#told.has(sentence)) return
    this.#told.add(sentence)
    this.options.tell?.(sentence)
  }
}

const isSame = (a: Int32Array, b: Int32Array): boolean => a.length === b.length && a.every((each, at) => each === b[at])

/** Returns the time, in milliseconds, to record as a block's use: `now` less one millisecond for each block before it in its text. */
const usedAt = (positions: Int32Array, now: number): number => now - positions[0]! / positions.length

const isThere = (path: string): Promise<boolean> =>
  stat(path).then(
    () => true,
    () => false,
  )
