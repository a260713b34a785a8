/** Reads the whole log of a run, as no program needs it: with every message. */
import type { LogHeader, LogRecord, Resumption } from '../../../src/lab/log.js'
import { logLines } from '../../../src/lab/run/log-file.js'

export interface Log {
  readonly header: LogHeader
  /** In the order of the file. */
  readonly records: readonly LogRecord[]
  readonly resumed: readonly Resumption[]
}

export async function readLog(path: string): Promise<Log> {
  const records: LogRecord[] = []
  const resumed: Resumption[] = []
  let header: LogHeader | null = null
  for await (const { line } of logLines(path)) {
    if (line.kind === 'header') header = line
    else if (line.kind === 'resumed') resumed.push(line)
    else if (line.kind !== 'step') records.push(line)
  }
  if (header === null) throw new Error(`${path} is empty`)
  return { header, records, resumed }
}
