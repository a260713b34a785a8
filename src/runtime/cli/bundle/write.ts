/** Writes a bundle to disk, as a folder or as an archive in parts: completely or not at all. */
import { createHash, type Hash } from 'node:crypto'
import { createWriteStream } from 'node:fs'
import { chmod, type FileHandle, mkdir, open, readdir, rename, rm, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { Readable, Writable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { createGzip } from 'node:zlib'
import { pack } from 'tar-stream'
import { KvfoldError } from '../../core/errors.js'
import { checksumEntry, CHECKSUMS, contents, type BundleEntry, sizeOf, unpacker } from './entries.js'

export interface Written {
  readonly files: number
  /** The number of bytes written to disk. */
  readonly bytes: number
}

const UNPACK = 'unpack.sh'

/**
 * Writes a bundle as a folder. The folder must not exist or must be empty. @throws KvfoldError cli/bad-usage, bundle/unsuitable,
 * engine/cancelled
 */
export function writeFolder(folder: string, entries: readonly BundleEntry[], signal: AbortSignal): Promise<Written> {
  return whole(folder, async (at) => {
    const sums = new Map<string, string>()
    let bytes = 0
    const write = async (entry: BundleEntry): Promise<void> => {
      const path = join(at, entry.path)
      await mkdir(dirname(path), { recursive: true })
      const file = createWriteStream(path, { mode: entry.executable ? 0o755 : 0o644 })
      await pipeline(Readable.from(contents(entry, sums), { objectMode: true }), file, { signal })
      // Other users may run the bundle, so its permissions must not depend on the umask of the user who makes it.
      await chmod(path, entry.executable ? 0o755 : 0o644)
      bytes += file.bytesWritten
    }
    for (const entry of entries) await write(entry)
    await write(checksumEntry(sums))
    return { files: entries.length + 1, bytes }
  })
}

/**
 * Writes a bundle as a tar.gz in parts of at most `partBytes`, with a script that checks, joins and unpacks them. Conditions and errors are
 * those of `writeFolder`.
 */
export function writeArchive(
  folder: string,
  name: string,
  entries: readonly BundleEntry[],
  partBytes: number,
  signal: AbortSignal,
): Promise<Written> {
  return whole(folder, async (at) => {
    const parts = new ArchiveParts(at, `${name}.tar.gz`, partBytes)
    await pipeline(Readable.from(tarOf(name, entries), { objectMode: true }), createGzip(), parts, { signal })
    await writeFile(join(at, UNPACK), unpacker(name, CHECKSUMS, CHECKSUMS), { mode: 0o755 })
    await writeFile(join(at, CHECKSUMS), parts.sums.join(''))
    return { files: parts.sums.length + 2, bytes: parts.bytes }
  })
}

interface ArchivePart {
  readonly name: string
  readonly file: FileHandle
  readonly hash: Hash
  /** How many bytes still fit in this part. */
  left: number
}

/** Splits a stream into files of a given size: `name.00001`, `name.00002` and so on. */
class ArchiveParts extends Writable {
  readonly sums: string[] = []
  bytes = 0
  #part: ArchivePart | null = null

  constructor(
    private readonly folder: string,
    private readonly name: string,
    private readonly size: number,
  ) {
    super()
  }

  override _write(piece: Buffer, _: unknown, done: (error?: Error | null) => void): void {
    this.#take(piece).then(() => {
      done()
    }, done)
  }

  override _final(done: (error?: Error | null) => void): void {
    this.#end().then(() => {
      done()
    }, done)
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.#end().then(() => {
      done(error)
    }, done)
  }

  async #take(piece: Buffer): Promise<void> {
    for (let at = 0; at < piece.length;) {
      this.#part ??= await this.#begin()
      const part = this.#part
      const bytes = piece.subarray(at, at + part.left)
      await part.file.writeFile(bytes)
      part.hash.update(bytes)
      part.left -= bytes.length
      this.bytes += bytes.length
      at += bytes.length
      if (part.left === 0) await this.#end()
    }
  }

  async #begin(): Promise<ArchivePart> {
    const name = `${this.name}.${String(this.sums.length + 1).padStart(5, '0')}`
    return { name, file: await open(join(this.folder, name), 'w'), hash: createHash('sha256'), left: this.size }
  }

  async #end(): Promise<void> {
    const part = this.#part
    if (part === null) return
    this.#part = null
    await part.file.close()
    this.sums.push(`${part.hash.digest('hex')}  ${part.name}\n`)
  }
}

/** Lets `write` fill a temporary folder beside `folder`. Renames it to `folder` at the end; on failure, deletes it. */
async function whole(folder: string, write: (at: string) => Promise<Written>): Promise<Written> {
  const there = await readdir(folder).catch((error: unknown) => {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return []
    throw unwritable(folder, error as NodeJS.ErrnoException)
  })
  if (there.length > 0) throw new KvfoldError('cli/bad-usage', `The folder ${folder} is not empty; name a new one.`)
  const unfinished = `${folder}.unfinished-${process.pid}`
  try {
    await mkdir(unfinished, { recursive: true })
    const written = await write(unfinished)
    await rename(unfinished, folder)
    return written
  } catch (error) {
    await rm(unfinished, { recursive: true, force: true })
    if (!(error instanceof Error) || error instanceof KvfoldError) throw error
    if (error.name === 'AbortError') throw new KvfoldError('engine/cancelled', 'The bundle was cancelled.', { cause: error })
    throw 'syscall' in error ? unwritable(folder, error as NodeJS.ErrnoException) : error
  }
}

function unwritable(folder: string, error: NodeJS.ErrnoException): KvfoldError {
  const reason = error.code === 'ENOSPC' || error.code === 'EDQUOT' ? 'the disk is full' : (error.code ?? error.message)
  return new KvfoldError('cli/bad-usage', `The bundle cannot be written to ${folder}: ${reason}.`, { cause: error })
}

// Tar archives. The same files give the same bytes, because times and owners are left out.

/** Yields an archive of the entries, all below the folder `name`. Its last file has the checksums. */
export async function* tarOf(name: string, entries: readonly BundleEntry[]): AsyncGenerator<Buffer> {
  const archive = pack()
  const put = async (entry: BundleEntry, sums: Map<string, string>): Promise<void> => {
    const mode = entry.executable ? 0o755 : 0o644
    const member = archive.entry({ name: `${name}/${entry.path}`, size: sizeOf(entry), mode, mtime: new Date(0) })
    await pipeline(Readable.from(contents(entry, sums)), member)
  }
  const filling = (async () => {
    const sums = new Map<string, string>()
    for (const entry of entries) await put(entry, sums)
    await put(checksumEntry(sums), new Map())
    archive.finalize()
  })()
  // An error becomes an error of the stream, so that the reader of the archive gets it.
  filling.catch((error: unknown) => {
    archive.destroy(error as Error)
  })
  yield* archive as AsyncIterable<Buffer>
  await filling
}
