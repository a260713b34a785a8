/** Owns the folder of a report: page, tables, figures and summary, from logs. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { KvfoldError } from '../../core/errors.js'
import type { Baseline } from './compare.js'
import { gather, readForReport, type ReadLog } from './gather.js'
import { reportPage } from './page.js'
import { accuracyPictures } from './pictures/accuracy.js'
import { costPictures } from './pictures/cost.js'
import type { Drawn } from './pictures/picture.js'
import { usePictures } from './pictures/use.js'
import { summarise, type Made, type Summary } from './summary.js'
import { accuracyTables, costTables } from './tables/results.js'
import { paperTables } from './tables/paper.js'
import { csv, markdownFile, type DataTable } from './tables/data-table.js'
import { useTables } from './tables/tools.js'

/**
 * What the logs say; their order decides how groups are named.
 * @throws KvfoldError eval/bad-log for what is no log, and where no log has a sample yet
 */
export async function summaryOf(logs: readonly string[], baseline: Baseline, made: Made): Promise<Summary> {
  const read: ReadLog[] = []
  // One after the other: a log may be large.
  for (const path of logs) read.push(await readForReport(path))
  if (read.every(({ records }) => records.length === 0))
    throw new KvfoldError('eval/bad-log', `There is no sample yet in ${logs.join(', ')}; report the run when it has got further.`)
  return summarise(gather(read), baseline, made)
}

/** Writes the files into the folder, made where it is missing; those of an earlier report are overwritten. Returns the path of the page. */
export function publish(summary: Summary, folder: string): string {
  const [tables, drawn] = [tablesOf(summary), picturesOf(summary)]
  mkdirSync(folder, { recursive: true })
  const write = (name: string, content: string): string => {
    const path = join(folder, name)
    writeFileSync(path, content)
    return path
  }
  for (const table of tables) {
    write(`${table.name}.csv`, csv(table))
    write(`${table.name}.md`, markdownFile(table))
  }
  for (const picture of drawn) if ('svg' in picture) write(`${picture.name}.svg`, picture.svg)
  write('summary.json', `${JSON.stringify(summary, null, 2)}\n`)
  return write('report.html', reportPage(summary, tables, drawn))
}

export const tablesOf = (summary: Summary): DataTable[] => [
  ...accuracyTables(summary),
  ...costTables(summary),
  ...useTables(summary),
  ...paperTables(summary),
]

export const picturesOf = (summary: Summary): Drawn[] => [
  ...accuracyPictures(summary),
  ...costPictures(summary),
  ...usePictures(summary),
]
