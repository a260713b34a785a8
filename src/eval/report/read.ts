/** Owns reading logs for a report: of every record what tables and figures need, so that transcripts stay on the disk. */
import { createHash } from 'node:crypto'
import { stat } from 'node:fs/promises'
import { basename } from 'node:path'
import type { ErrorRecord, LogHeader, LogLine, Resumption } from '../log.js'
import { bad, logLines } from '../run/log-file.js'
import { resultOf, type Answer } from '../run/result.js'
import { canonical } from './canonical.js'

/** An answer, and what tells its sample from others with the same id: a print of what the scorer compared with. */
export type PrintedAnswer = Answer & { readonly print: string }

export interface ReadLog {
  /** As the report names it: without folders. */
  readonly name: string
  readonly header: LogHeader
  readonly resumed: readonly Resumption[]
  /** In the order in which they were written. */
  readonly records: readonly (PrintedAnswer | ErrorRecord)[]
  /** The last line was not written to its end, and is left out. */
  readonly torn: boolean
}

/** @throws KvfoldError eval/bad-log naming the file and the line */
export async function readForReport(path: string): Promise<ReadLog> {
  const records: (PrintedAnswer | ErrorRecord)[] = []
  const resumed: Resumption[] = []
  let header: LogHeader | null = null
  let whole = 0
  for await (const { line, number, end } of logLines(path)) {
    whole = end
    if (line.kind === 'header') header = line
    else if (line.kind === 'resumed') resumed.push(line)
    else if (header !== null) records.push(recordOf(line, header, path, number))
  }
  if (header === null) throw bad(path, 'is empty; `kvfold eval` writes logs')
  return { name: basename(path), header, resumed, records, torn: (await stat(path)).size > whole }
}

type RecordLine = Extract<LogLine, { readonly kind: 'sample' | 'error' }>

function recordOf(line: RecordLine, { tasks, agents }: LogHeader, path: string, number: number): PrintedAnswer | ErrorRecord {
  if (tasks[line.task] === undefined)
    throw bad(path, `has a line ${number} of task ${line.task}, and its header has ${tasks.length} tasks`)
  if (!agents.some(({ agent }) => agent === line.agent))
    throw bad(path, `has a line ${number} of the agent ${line.agent}, which its header does not have`)
  const result = resultOf(line)
  if (result.kind === 'error') return result
  const truth = line.kind === 'sample' ? line.truth : null
  return {
    ...result,
    print: createHash('sha256')
      .update(canonical(truth ?? null))
      .digest('base64url')
      .slice(0, 16),
  }
}
