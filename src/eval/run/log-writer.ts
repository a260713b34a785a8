/** Owns writing a log: one line after another, on disk soon, and going on after a stop at any place. */
import { mkdir, open, readFile, stat, truncate, type FileHandle } from 'node:fs/promises'
import { dirname } from 'node:path'
import { invariant } from '../../core/errors.js'
import { LogLine, type LogHeader, type LogRecord } from '../log.js'
import { bad, codeOf, complaint, latest, logLines } from './log-file.js'
import { takeLog } from './log-lock.js'
import { resultOf, type Result } from './result.js'
import { refuseOther } from './same-run.js'

/** What a crash of the machine may cost, in milliseconds; a crash of ours costs nothing. */
const SYNC_AFTER = 2000

export class LogWriter {
  #line: Promise<unknown> = Promise.resolve()
  #synced = performance.now()
  #closed = false
  /** What went wrong: nothing may follow half a line. */
  #failure: Error | null = null
  /** Said before the first record, where a run goes on. */
  #occasion: LogHeader | null = null

  private constructor(
    readonly path: string,
    private readonly file: FileHandle,
    private readonly release: () => void,
    /** The last of every sample that the log held when it was opened. */
    readonly before: readonly Result[],
    /** A last line that was not written to its end was taken off. */
    readonly torn: boolean,
  ) {}

  /**
   * Makes a log, or goes on in one that has the same run; a line that says so comes before the first new record.
   * @throws KvfoldError eval/other-run, eval/log-busy; eval/bad-log when it cannot be read or written, or is something else
   */
  static async open(path: string, header: LogHeader): Promise<LogWriter> {
    await mkdir(dirname(path), { recursive: true }).catch((cause: unknown) => {
      throw bad(path, `cannot be written (${codeOf(cause)})`, cause)
    })
    const release = takeLog(path)
    try {
      const { found, end, size, results } = await contents(path)
      if (found !== null) refuseOther(path, found, header)
      const torn = end < size
      if (torn) await truncate(path, end)
      const writer = new LogWriter(path, await open(path, 'a'), release, results, torn)
      if (found === null) await writer.#add(header)
      else writer.#occasion = header
      return writer
    } catch (error) {
      release()
      throw error instanceof Error && 'syscall' in error ? bad(path, `cannot be written (${codeOf(error)})`, error) : error
    }
  }

  /** Resolves when the system has the record. Calls may overlap. @throws KvfoldError eval/bad-log when there is no room */
  add(record: LogRecord): Promise<void> {
    if (this.#occasion !== null) {
      const { kvfold, commit, date, command, machine } = this.#occasion
      this.#occasion = null
      void this.#add({ kind: 'resumed', kvfold, commit, date, command, machine }).catch(() => undefined)
    }
    return this.#add(record)
  }

  /** All that was added is on disk then. Idempotent. */
  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    await this.#line.catch(() => undefined)
    try {
      await this.file.sync().catch(() => undefined)
      await this.file.close()
    } finally {
      this.release()
    }
  }

  async #add(line: LogLine): Promise<void> {
    const text = `${JSON.stringify(line)}\n`
    // What could not be read again would be the end of the log.
    const { success, error } = LogLine.safeParse(JSON.parse(text))
    invariant(success, `A record of kind ${line.kind} is not as the log has it: ${complaint(error)}.`)
    const written = this.#line.then(() => this.#write(text))
    this.#line = written.catch(() => undefined)
    await written
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

async function contents(path: string) {
  const size = await stat(path).then(
    (file) => file.size,
    () => 0,
  )
  let found: LogHeader | null = null
  let end = 0
  const results: Result[] = []
  if (size > 0)
    for await (const { line, end: at } of logLines(path)) {
      end = at
      if (line.kind === 'header') found = line
      else if (line.kind !== 'resumed') results.push(resultOf(line))
    }
  // Half a header is ours; anything else is somebody's.
  if (found === null && size > 0 && !(await readFile(path, 'utf8')).startsWith('{"kind":"header"'))
    throw bad(path, 'is no log; it was left as it is')
  return { found, end, size, results: latest(results) }
}
