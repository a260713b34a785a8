/** Owns rows of a table in text: values between tabs or commas, the first line their names. */
import { readFile } from 'node:fs/promises'
import { parse } from 'csv-parse/sync'
import { KvfoldError } from '../../core/errors.js'
import type { Row, Rows } from './row.js'

/** Held in memory, all of it: such tables are small. Values are text. */
export async function openTable(file: string, name: string, delimiter: '\t' | ','): Promise<Rows> {
  const records = recordsOf(await readFile(file, 'utf8'), name, delimiter)
  const where = (index: number) => `${name}, line ${records[index]?.line ?? 0}`
  return {
    size: records.length,
    where,
    row(index) {
      const record = records[index]
      return record === undefined
        ? Promise.reject(new KvfoldError('eval/bad-data', `${name} has no row ${index}; it has ${records.length}.`))
        : Promise.resolve(record.row)
    },
  }
}

function recordsOf(text: string, name: string, delimiter: string): { row: Row; line: number }[] {
  try {
    const parsed: unknown = parse(text, {
      delimiter,
      columns: true,
      bom: true,
      info: true,
      skip_empty_lines: true,
      relax_quotes: true,
    })
    return (parsed as { record: Row; info: { lines: number } }[]).map(({ record, info }) => ({ row: record, line: info.lines }))
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause)
    throw new KvfoldError('eval/bad-data', `Cannot read ${name} as a table: ${reason}`, { cause })
  }
}
