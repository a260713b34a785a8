/** Owns writing what a study found into its folder: summary, tables, figures, report. */
import { parquet, type ColumnType, type Row } from './parquet.js'
import { picturesOf } from './pictures.js'
import type { StripRecord, StudyRecord } from './records.js'
import { report } from './report.js'
import type { RunFolder } from './run-folder.js'
import { summarise, type Summary, type SummaryInput } from './summary.js'
import { episodeTable, headTable, interferenceTable, pairTable } from './tables.js'

/** The summary, and where the report is. Files of an earlier run of the folder are overwritten. */
export function publish(folder: RunFolder, input: SummaryInput): { readonly summary: Summary; readonly report: string } {
  const { records } = input
  const summary = summarise(input)
  folder.write('summary.json', `${JSON.stringify(summary, null, 2)}\n`)
  const about = JSON.stringify({ schema: summary.schema, model: summary.model, options: summary.options })
  const save = (
    name: string,
    { columns, rows }: { readonly columns: Readonly<Record<string, ColumnType>>; readonly rows: readonly Row[] },
  ) => (rows.length === 0 ? null : folder.write(`${name}.parquet`, parquet(columns, rows, about)))
  save('pairs', pairTable(records))
  save('heads', headTable(records))
  save('interference', interferenceTable(summary.interference))
  save('episode', episodeTable(records))
  const pictures = picturesOf(summary, records)
  for (const { name, svg } of pictures) folder.write(`${name}.svg`, svg)
  const strip = records.find((record: StudyRecord): record is StripRecord => record.part === 'strip') ?? null
  return { summary, report: folder.write('report.html', report(summary, pictures, strip)) }
}
