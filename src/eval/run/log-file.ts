/** Owns reading logs of runs: line by line, each checked, so that a damaged file is told with the line that is wrong. */
import { createReadStream } from 'node:fs'
import type { z } from 'zod'
import { KvfoldError } from '../../core/errors.js'
import { LOG_VERSION, LogLine, type LogHeader, type LogRecord, type Resumption } from '../log.js'

/** All of a log. */
export interface Log {
  readonly header: LogHeader
  /** In the order in which they were written; of one sample the last one counts (`latest`). */
  readonly records: readonly LogRecord[]
  /** Where the run went on after a stop. */
  readonly resumed: readonly Resumption[]
}

/** A line as it stands in the file. */
export interface ReadLine {
  readonly line: LogLine
  /** From 1. */
  readonly number: number
  /** Bytes of the file up to the end of this line. */
  readonly end: number
}

/** A log that someone else wrote, or that may still be written to: a last line without an end is not looked at. @throws KvfoldError eval/bad-log naming file, line and field */
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

/** Tells the samples of a run apart: one of a task, an agent and a contract. */
export const nameOf = ({ task, agent, contract, index }: Pick<LogRecord, 'task' | 'agent' | 'contract' | 'index'>): string =>
  `${task} ${agent} ${contract} ${index}`

/** The last record of every sample, in the order of the first ones. */
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
    value = JSON.parse(text)
  } catch (cause) {
    throw bad(path, `is damaged: line ${number} is not JSON`, cause)
  }
  const version = number === 1 ? versionOf(value) : LOG_VERSION
  if (version !== LOG_VERSION)
    throw bad(path, `is of version ${version}, and this kvfold reads version ${LOG_VERSION}; use the kvfold that wrote it`)
  const checked = LogLine.safeParse(value)
  if (checked.success) return checked.data
  throw bad(path, `has a line ${number} that is no line of a log (${complaint(checked.error)})`, checked.error)
}

/** Of something that may be a header; what has none is told by the schema. */
function versionOf(value: unknown): number {
  const version = typeof value === 'object' && value !== null && 'version' in value ? value.version : LOG_VERSION
  return typeof version === 'number' ? version : LOG_VERSION
}

/** The first thing that is wrong, with its place. */
export function complaint(error: z.ZodError | undefined): string {
  const first = error?.issues[0]
  if (first === undefined) return 'unknown'
  const place = first.path.map(String).join('.')
  return place === '' ? first.message : `${place}: ${first.message}`
}

export const bad = (path: string, what: string, cause?: unknown): KvfoldError =>
  new KvfoldError('eval/bad-log', `The log ${path} ${what}.`, cause === undefined ? {} : { cause })

export const codeOf = (error: unknown): string => (error instanceof Error && 'code' in error ? String(error.code) : String(error))

const NEWLINE = 0x0a
