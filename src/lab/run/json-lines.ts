/**
 * Reads and writes JSON Lines files, which hold the records of runs, episodes, studies and collected trajectories. Only one process writes
 * a file at a time. Wherever it stops, a later process can continue the file.
 */
import { createReadStream } from 'node:fs'
import { type FileHandle, mkdir, open, stat, truncate } from 'node:fs/promises'
import { dirname } from 'node:path'
import { KvfoldError } from '../../runtime/core/errors.js'
import { lockHolder, takeLock } from '../../runtime/core/lock-file.js'
import { readJson, writeJson } from '../../runtime/core/written-json.js'

export interface JsonLine {
  readonly value: unknown
  /** Line number, from 1. */
  readonly number: number
  /** Bytes from the start of the file to the end of this line, including its line break. */
  readonly end: number
}

/**
 * Reads a file's complete lines, and ignores an incomplete last one. So another process may be writing the file meanwhile.
 * @throws KvfoldError eval/bad-log that names the file and the line
 */
export async function* jsonLines(path: string): AsyncGenerator<JsonLine> {
  let open: Buffer[] = []
  let [number, end] = [0, 0]
  try {
    for await (const chunk of createReadStream(path) as AsyncIterable<Buffer>) {
      let from = 0
      for (let at = chunk.indexOf(NEWLINE); at >= 0; at = chunk.indexOf(NEWLINE, from)) {
        const line = Buffer.concat([...open, chunk.subarray(from, at)])
        open = []
        from = at + 1
        end += line.length + 1
        yield { value: parsed(line.toString('utf8'), path, ++number), number, end }
      }
      open.push(chunk.subarray(from))
    }
  } catch (cause) {
    if (cause instanceof KvfoldError) throw cause
    throw bad(path, `cannot be read (${codeOf(cause)})`, cause)
  }
}

function parsed(text: string, path: string, number: number): unknown {
  try {
    return readJson(text)
  } catch (cause) {
    throw bad(path, `is damaged: line ${number} is not JSON`, cause)
  }
}

export const bad = (path: string, what: string, cause?: unknown): KvfoldError =>
  new KvfoldError('eval/bad-log', `The log ${path} ${what}.`, cause === undefined ? {} : { cause })

export const codeOf = (error: unknown): string => (error instanceof Error && 'code' in error ? String(error.code) : String(error))

const NEWLINE = 0x0a

/**
 * Milliseconds after the last sync (fsync) from which on a write syncs again. A crash of the machine may lose the records since the last
 * sync; a crash of this process loses none.
 */
const SYNC_AFTER = 2000

export class JsonLines {
  #line: Promise<unknown> = Promise.resolve()
  #synced = performance.now()
  #closed = false
  /** The first failed write. It may have left half a line in the file, so every later write fails too. */
  #failure: Error | null = null

  private constructor(
    readonly path: string,
    private readonly file: FileHandle,
    private readonly release: () => void,
    /** Whether `open` cut off the end of the file, such as an incomplete last line. */
    readonly torn: boolean,
  ) {}

  /**
   * Creates a file, or opens it to continue it. No other process can open it until `close`.
   * @param read reads the existing lines, and returns how many bytes of the file to keep (up to the end of a line)
   * @throws KvfoldError eval/log-busy; eval/bad-log when the file cannot be read or written; any error of `read`, which leaves the file
   * unchanged
   */
  static async open(path: string, read: (lines: AsyncIterable<JsonLine>) => Promise<number>): Promise<JsonLines> {
    await mkdir(dirname(path), { recursive: true }).catch((cause: unknown) => {
      throw bad(path, `cannot be written (${codeOf(cause)})`, cause)
    })
    const release = await take(path)
    try {
      const size = await sizeOf(path)
      const kept = size === 0 ? 0 : await read(jsonLines(path))
      if (kept < size) await truncate(path, kept)
      return new JsonLines(path, await open(path, 'a'), release, kept < size)
    } catch (error) {
      release()
      throw error instanceof Error && 'syscall' in error ? bad(path, `cannot be written (${codeOf(error)})`, error) : error
    }
  }

  /**
   * Appends each value as a line. Resolves when the operating system has the lines. Calls may overlap.
   * @throws KvfoldError eval/bad-log when the lines cannot be written
   */
  async add(...values: readonly unknown[]): Promise<void> {
    const text = values.map((value) => `${writeJson(value)}\n`).join('')
    const written = this.#line.then(() => this.#write(text))
    this.#line = written.catch(() => undefined)
    await written
  }

  /** Resolves when all added lines are on disk. Idempotent. */
  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    await this.#line
    try {
      await this.file.sync().catch(() => undefined)
      await this.file.close()
    } finally {
      this.release()
    }
  }

  async #write(text: string): Promise<void> {
    if (this.#failure !== null) throw this.#failure
    try {
      await this.file.appendFile(text)
      if (performance.now() - this.#synced < SYNC_AFTER) return
      await this.file.datasync()
      this.#synced = performance.now()
    } catch (cause) {
      this.#failure = bad(this.path, `cannot be written (${codeOf(cause)})`, cause)
      throw this.#failure
    }
  }
}

const sizeOf = (path: string): Promise<number> =>
  stat(path).then(
    ({ size }) => size,
    () => 0,
  )

// Below: a lock file beside the data file, so that only one process writes it at a time.

export const lockOf = (path: string): string => `${path}.lock`

/** Locks the file for this process, and returns the function that unlocks it. @throws KvfoldError eval/log-busy, eval/bad-log */
async function take(path: string): Promise<() => void> {
  const taken = await takeLock(lockOf(path)).catch((cause: unknown) => {
    throw bad(path, `cannot be written (${codeOf(cause)})`, cause)
  })
  if (typeof taken === 'function') return taken
  throw new KvfoldError('eval/log-busy', `${taken.name} writes to ${path}; wait for it, or name another file.${taken.advice}`)
}

/** Returns whether a living process has locked the file, and so may be writing it. */
export const isTaken = (path: string): boolean => lockHolder(lockOf(path)) !== null
