/**
 * Reads and writes the logs of runs and episodes. Each line is checked when it is read and before it is written. A stopped run can resume
 * its log if the headers agree.
 */
import { readFile } from 'node:fs/promises'
import { isDeepStrictEqual } from 'node:util'
import { invariant, KvfoldError } from '../../runtime/core/errors.js'
import { inWords } from '../../runtime/core/schema.js'
import { readJson, writeJson } from '../../runtime/core/written-json.js'
import { episodeLog, type LogEntry, type LogHeader, type LogKind, type LogRecord, type Resumption, runLog } from '../log.js'
import { bad, type JsonLine, jsonLines, JsonLines } from './json-lines.js'
import { type ItemResult, resultOf } from './plan.js'

/** The fields that the headers of all kinds of logs have. */
type Heading = Omit<Resumption, 'kind'> & { readonly kind: string }
type Entry = { readonly kind: string }

/** Reads the complete lines of a run's log, the header first. @throws KvfoldError eval/bad-log that names file, line and field */
export const logLines = (path: string) => checkedLines(jsonLines(path), path, runLog)

/** Returns whether the file is an episode's log. @throws KvfoldError eval/bad-log when it cannot be read, or its first line is not JSON */
export async function isEpisodeLog(path: string): Promise<boolean> {
  for await (const { value } of jsonLines(path))
    return typeof value === 'object' && value !== null && 'kind' in value && value.kind === episodeLog.header
  return false
}

async function* checkedLines<Header extends Entry, Record extends Entry>(
  lines: AsyncIterable<JsonLine>,
  path: string,
  kind: LogKind<Header, Record>,
): AsyncGenerator<Omit<JsonLine, 'value'> & { readonly line: Header | Record | Resumption }> {
  for await (const { value, number, end } of lines) {
    const version = number === 1 ? (versionOf(value) ?? kind.version) : kind.version
    if (version !== kind.version)
      throw bad(path, `has version ${version}, but this kvfold reads version ${kind.version}; use the kvfold that wrote it`)
    const read = kind.read(value)
    if (!read.ok) throw bad(path, `has a line ${number} that is not a line of a ${kind.name} (${inWords(read.faults[0])})`)
    const isHeader = read.value.kind === kind.header
    if (number === 1 && !isHeader) throw bad(path, 'does not begin with a header')
    if (number > 1 && isHeader) throw bad(path, `has a second header in line ${number}`)
    yield { line: read.value, number, end }
  }
}

/** Returns the version of a value that may be a header; null if it has none, which the schema check reports later. */
function versionOf(value: unknown): number | null {
  const version = typeof value === 'object' && value !== null && 'version' in value ? value.version : null
  return typeof version === 'number' ? version : null
}

/** Returns a key that identifies an item of a run: a sample of a task, with an agent and a contract. */
export const nameOf = ({ task, agent, contract, index }: Pick<LogRecord, 'task' | 'agent' | 'contract' | 'index'>): string =>
  `${task} ${agent} ${contract} ${index}`

/** Returns the last record of each item. The items are in the order of their first records. */
export function latest<R extends Pick<LogRecord, 'task' | 'agent' | 'contract' | 'index'>>(records: readonly R[]): R[] {
  return [...new Map(records.map((record) => [nameOf(record), record])).values()]
}

/** A log that a run or an episode writes. @param before what `open` kept in memory of the earlier records */
export class LogFile<Record extends Entry, Kept> {
  private constructor(
    private readonly file: JsonLines,
    private readonly kind: LogKind<Heading, Record>,
    readonly before: readonly Kept[],
    /** When this process resumes a log: its own header, for the line `resumed` that is written before the first new record. Else null. */
    private occasion: Heading | null,
  ) {}

  /**
   * Creates a log, or resumes one of the same run. In a resumed log, a line `resumed` precedes the first new record.
   * @param keep returns what stays in memory of a record; null for nothing
   * @param most the number of records after which the existing log is cut off
   * @throws KvfoldError eval/other-run, eval/log-busy; eval/bad-log when the file cannot be read or written, or is not a log of this kind
   */
  static async open<Header extends Heading, Record extends Entry, Kept>(
    path: string,
    header: Header,
    kind: LogKind<Header, Record>,
    keep: (record: Record) => Kept | null,
    most = Infinity,
  ): Promise<LogFile<Record, Kept>> {
    const headers: Header[] = []
    const before: Kept[] = []
    const file = await JsonLines.open(path, async (lines) => {
      let kept = 0
      for await (const { line, end } of checkedLines(lines, path, kind)) {
        if (line.kind === kind.header) headers.push(line as Header)
        else if (before.length === most) break
        else if (line.kind !== 'resumed') {
          const one = keep(line as Record)
          if (one !== null) before.push(one)
        }
        kept = end
      }
      const [found] = headers
      if (found !== undefined) refuseOther(path, kind.essence(found), kind.essence(header))
      // An incomplete header is left by a killed run. Any other file without a header is no log, and must stay unchanged.
      else if (!(await readFile(path, 'utf8')).startsWith(`{"kind":"${kind.header}"`))
        throw bad(path, `is not a ${kind.name}; kvfold left it unchanged`)
      return kept
    })
    const log = new LogFile(file, kind as unknown as LogKind<Heading, Record>, before, headers.length === 0 ? null : header)
    if (headers.length === 0) await log.#add(header)
    return log
  }

  get path(): string {
    return this.file.path
  }

  /** Whether the log ended with an incomplete line, which `open` cut off. */
  get torn(): boolean {
    return this.file.torn
  }

  /**
   * Appends a record. Resolves when the operating system has it. Calls may overlap.
   * @throws KvfoldError eval/bad-log when the record cannot be written
   */
  async add(record: Record): Promise<void> {
    const { occasion } = this
    this.occasion = null
    if (occasion === null) return this.#add(record)
    const { kvfold, commit, date, command, machine } = occasion
    await this.#add({ kind: 'resumed', kvfold, commit, date, command, machine }, record)
  }

  /** Resolves when all added records are on disk. Idempotent. */
  close(): Promise<void> {
    return this.file.close()
  }

  async #add(...lines: readonly (Heading | Record)[]): Promise<void> {
    // A line that cannot be read back would make the log unusable, so check each line before it is written.
    for (const line of lines) {
      const read = this.kind.read(readJson(writeJson(line)))
      invariant(
        read.ok,
        `A record of kind ${line.kind} does not match the schema of the log: ${read.ok ? '' : inWords(read.faults[0])}.`,
      )
    }
    await this.file.add(...lines)
  }
}

export type RunLogFile = LogFile<LogEntry, ItemResult>

/** Opens a run's log. Its `before` has the results of all records so far. @throws the errors of LogFile.open */
export const openRunLog = (path: string, header: LogHeader): Promise<RunLogFile> =>
  LogFile.open(path, header, runLog, (entry) => (entry.kind === 'step' ? null : resultOf(entry)))

/**
 * Refuses to continue a log or folder whose run differs from this one. `there`, `now`: descriptions of the two runs.
 * @param place the option with which the user can name a different path
 * @throws KvfoldError eval/other-run that names the first field that differs
 */
export function refuseOther(path: string, there: object, now: object, place = '--out'): void {
  const found = difference(there, JSON.parse(JSON.stringify(now)), '')
  if (found === null) return
  throw new KvfoldError(
    'eval/other-run',
    `${path} holds another run (${found.field}: ${said(found.there)} there, ${said(found.now)} now); name another ${place}, or delete this one.`,
  )
}

interface HeaderDifference {
  readonly field: string
  readonly there: unknown
  readonly now: unknown
}

/** Returns the first field in which two JSON values differ; null if they are equal. `field`: the path of the values themselves. */
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
