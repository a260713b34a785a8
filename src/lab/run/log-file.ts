/**
 * Reads and writes the file of a run's log. Reading checks every line and reports damage with its line number. Writing reaches the disk
 * soon, and a writer can continue a log that stopped at any place.
 */
import { createReadStream, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { type FileHandle, mkdir, open, readFile, stat, truncate } from 'node:fs/promises'
import { dirname } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { invariant, KvfoldError } from '../../runtime/core/errors.js'
import { inWords } from '../../runtime/core/schema.js'
import { readJson, writeJson } from '../../runtime/core/written-json.js'
import { checkedLine, LOG_VERSION, type LogHeader, type LogLine, type LogRecord, type Resumption } from '../log.js'
import { type ItemResult, resultOf } from './plan.js'

/** The whole contents of a log. */
export interface Log {
  readonly header: LogHeader
  /** In the order of the file. When a sample has several records the last one counts (`latest`). */
  readonly records: readonly LogRecord[]
  /** The places where a stopped run continued. */
  readonly resumed: readonly Resumption[]
}

/** A parsed line and its place in the file. */
export interface ReadLine {
  readonly line: LogLine
  /** Line number, from 1. */
  readonly number: number
  /** Bytes from the beginning of the file to the end of this line. */
  readonly end: number
}

/**
 * Reads a log, also one that another process is still writing: an incomplete last line is ignored.
 * @throws KvfoldError eval/bad-log naming file, line and field
 */
export async function readLog(path: string): Promise<Log> {
  let header: LogHeader | null = null
  const records: LogRecord[] = []
  const resumed: Resumption[] = []
  for await (const { line } of logLines(path)) {
    if (line.kind === 'header') header = line
    else if (line.kind === 'resumed') resumed.push(line)
    else records.push(line)
  }
  if (header === null) throw bad(path, 'is empty')
  return { header, records, resumed }
}

/** Identifies a sample of a run: one index of a task, with an agent and a contract. */
export const nameOf = ({ task, agent, contract, index }: Pick<LogRecord, 'task' | 'agent' | 'contract' | 'index'>): string =>
  `${task} ${agent} ${contract} ${index}`

/** The last record of every sample, ordered by the first record of each. */
export function latest<R extends Pick<LogRecord, 'task' | 'agent' | 'contract' | 'index'>>(records: readonly R[]): R[] {
  return [...new Map(records.map((record) => [nameOf(record), record])).values()]
}

/** The complete lines of a log; the first is the header. @throws KvfoldError eval/bad-log */
export async function* logLines(path: string): AsyncGenerator<ReadLine> {
  let number = 0
  for await (const { text, end } of textLines(path)) {
    number++
    const line = parsed(text, path, number)
    if (number === 1 && line.kind !== 'header') throw bad(path, 'does not begin with a header')
    if (number > 1 && line.kind === 'header') throw bad(path, `has a second header in line ${number}`)
    yield { line, number, end }
  }
}

async function* textLines(path: string): AsyncGenerator<{ readonly text: string; readonly end: number }> {
  let open: Buffer[] = []
  let end = 0
  try {
    for await (const chunk of createReadStream(path) as AsyncIterable<Buffer>) {
      let from = 0
      for (let at = chunk.indexOf(NEWLINE); at >= 0; at = chunk.indexOf(NEWLINE, from)) {
        const line = Buffer.concat([...open, chunk.subarray(from, at)])
        open = []
        from = at + 1
        end += line.length + 1
        yield { text: line.toString('utf8'), end }
      }
      open.push(chunk.subarray(from))
    }
  } catch (cause) {
    if (cause instanceof KvfoldError) throw cause
    throw bad(path, `cannot be read (${codeOf(cause)})`, cause)
  }
}

function parsed(text: string, path: string, number: number): LogLine {
  let value: unknown
  try {
    value = readJson(text)
  } catch (cause) {
    throw bad(path, `is damaged: line ${number} is not JSON`, cause)
  }
  const version = number === 1 ? versionOf(value) : LOG_VERSION
  if (version !== LOG_VERSION)
    throw bad(path, `is of version ${version}, and this kvfold reads version ${LOG_VERSION}; use the kvfold that wrote it`)
  const read = checkedLine(value)
  if (read.ok) return read.value
  throw bad(path, `has a line ${number} that is no line of a log (${inWords(read.faults[0])})`)
}

/** The version in a value that may be a header; the current version when it has none, so that the schema reports the fault. */
function versionOf(value: unknown): number {
  const version = typeof value === 'object' && value !== null && 'version' in value ? value.version : LOG_VERSION
  return typeof version === 'number' ? version : LOG_VERSION
}

export const bad = (path: string, what: string, cause?: unknown): KvfoldError =>
  new KvfoldError('eval/bad-log', `The log ${path} ${what}.`, cause === undefined ? {} : { cause })

export const codeOf = (error: unknown): string => (error instanceof Error && 'code' in error ? String(error.code) : String(error))

const NEWLINE = 0x0a

// Writing a log: line by line, soon on disk, and able to continue after a stop at any place.

/**
 * Milliseconds between syncs: a write syncs the file when the last sync is older. A crash of the machine may lose the records since the
 * last sync; a crash of this process loses none.
 */
const SYNC_AFTER = 2000

export class LogWriter {
  #line: Promise<unknown> = Promise.resolve()
  #synced = performance.now()
  #closed = false
  /** The first failure of a write. It may have left half a line, so no line may follow. */
  #failure: Error | null = null
  /** The header of this process when it continues a log. The line `resumed` takes its fields from it before the first new record. */
  #occasion: LogHeader | null = null

  private constructor(
    readonly path: string,
    private readonly file: FileHandle,
    private readonly release: () => void,
    /** The last result of every sample that the log held when it was opened. */
    readonly before: readonly ItemResult[],
    /** Whether the log ended in an incomplete line, which was then cut off. */
    readonly torn: boolean,
  ) {}

  /**
   * Creates a log, or continues one of the same run; a line `resumed` then precedes the first new record.
   * @throws KvfoldError eval/other-run, eval/log-busy; eval/bad-log when the file cannot be read or written, or is no log
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

  /**
   * Resolves when the operating system has the record. Calls may overlap.
   * @throws KvfoldError eval/bad-log when the record cannot be written
   */
  add(record: LogRecord): Promise<void> {
    if (this.#occasion !== null) {
      const { kvfold, commit, date, command, machine } = this.#occasion
      this.#occasion = null
      void this.#add({ kind: 'resumed', kvfold, commit, date, command, machine }).catch(() => undefined)
    }
    return this.#add(record)
  }

  /** Resolves when all added records are on disk. Idempotent. */
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
    const text = `${writeJson(line)}\n`
    // An unreadable line would make the log unusable, so each line is checked before it is written.
    const read = checkedLine(readJson(text))
    invariant(read.ok, `A record of kind ${line.kind} is not as the log has it: ${read.ok ? '' : inWords(read.faults[0])}.`)
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
  const results: ItemResult[] = []
  if (size > 0)
    for await (const { line, end: at } of logLines(path)) {
      end = at
      if (line.kind === 'header') found = line
      else if (line.kind !== 'resumed') results.push(resultOf(line))
    }
  // An incomplete header comes from a stopped run of ours. Any other file without a header is no log and stays as it is.
  if (found === null && size > 0 && !(await readFile(path, 'utf8')).startsWith('{"kind":"header"'))
    throw bad(path, 'is no log; it was left as it is')
  return { found, end, size, results: latest(results) }
}

// Lets only one process at a time write a log. A lock file beside the log holds that process's id.

export const lockOf = (path: string): string => `${path}.lock`

/**
 * Takes the log for this process; takes over the lock of a dead process. Returns the function that releases it.
 * @throws KvfoldError eval/log-busy, eval/bad-log
 */
export function takeLog(path: string): () => void {
  const lock = lockOf(path)
  for (let attempt = 0; ; attempt++) {
    try {
      writeFileSync(lock, `${process.pid}\n`, { flag: 'wx' })
      break
    } catch (cause) {
      if (codeOf(cause) !== 'EEXIST') throw bad(path, `cannot be written (${codeOf(cause)})`, cause)
      const owner = ownerOf(lock)
      if (owner !== null || attempt > 2)
        throw new KvfoldError(
          'eval/log-busy',
          `Another process${owner === null ? '' : ` (${owner})`} writes to ${path}; wait for it, or name another --log.`,
          { cause },
        )
      rmSync(lock, { force: true })
    }
  }
  return () => {
    rmSync(lock, { force: true })
  }
}

/** Whether a living process holds the log's lock. */
export const isTaken = (path: string): boolean => ownerOf(lockOf(path)) !== null

/** The id of the living process that holds the lock; null when there is none. */
function ownerOf(lock: string): number | null {
  let pid: number
  try {
    pid = Number(readFileSync(lock, 'utf8').trim())
  } catch {
    return null
  }
  if (!Number.isSafeInteger(pid) || pid <= 0) return null
  try {
    process.kill(pid, 0)
    return pid
  } catch (error) {
    return codeOf(error) === 'EPERM' ? pid : null
  }
}

// The fields of a header that must agree before a run may continue a log: everything that answers depend on.

const FIELDS = ['model', 'engine', 'embedder', 'judge', 'seed', 'sampling', 'contracts', 'tasks', 'agents'] as const

/**
 * The part of a header that two headers of the same run share; plain JSON. Date, machine, command and commit may differ; the lines
 * `resumed` of the log record them.
 */
export function essence(header: LogHeader): Readonly<Record<string, unknown>> {
  const chosen = Object.fromEntries(FIELDS.map((field) => [field, header[field]]))
  return JSON.parse(JSON.stringify(chosen)) as Readonly<Record<string, unknown>>
}

/** @throws KvfoldError eval/other-run naming the first field that differs */
export function refuseOther(path: string, there: LogHeader, now: LogHeader): void {
  const found = difference(essence(there), essence(now), '')
  if (found === null) return
  throw new KvfoldError(
    'eval/other-run',
    `${path} holds another run (${found.field}: ${said(found.there)} there, ${said(found.now)} now); name another --log, or delete this one.`,
  )
}

interface HeaderDifference {
  readonly field: string
  readonly there: unknown
  readonly now: unknown
}

/** The first place where two JSON values differ; null when they are equal. */
function difference(there: unknown, now: unknown, field: string): HeaderDifference | null {
  if (isDeepStrictEqual(there, now)) return null
  if (!isObject(there) || !isObject(now) || Array.isArray(there) !== Array.isArray(now)) return { field, there, now }
  for (const key of new Set([...Object.keys(there), ...Object.keys(now)])) {
    const place = Array.isArray(there) ? `${field}[${key}]` : field === '' ? key : `${field}.${key}`
    const found = difference(there[key], now[key], place)
    if (found !== null) return found
  }
  return null
}

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === 'object' && value !== null

const LONGEST = 80

function said(value: unknown): string {
  if (value === undefined) return 'nothing'
  const text = JSON.stringify(value)
  return text.length > LONGEST ? `${text.slice(0, LONGEST)}...` : text
}
