/** Owns reading data sets row by row: JSON Lines, a JSON array, TSV or CSV, or Parquet; from a path or from the hub, any row at any time. */
import { readFile } from 'node:fs/promises'
import { extname } from 'node:path'
import { parse } from 'csv-parse/sync'
import { asyncBufferFromFile, parquetMetadataAsync, parquetReadObjects } from 'hyparquet'
import { KvfoldError } from '../../core/errors.js'
import { openJsonRows, type Row, type Rows } from './json-rows.js'
import { fileOf, type SourceOptions } from './source.js'

/** By the end of the name; `hf:` names count, too. */
const readers: Readonly<Record<string, (file: string, name: string) => Promise<Rows>>> = {
  '.jsonl': openJsonRows,
  '.ndjson': openJsonRows,
  '.json': openJsonRows,
  '.tsv': (file, name) => openTable(file, name, '\t'),
  '.csv': (file, name) => openTable(file, name, ','),
  '.parquet': openParquet,
}

const endOf = (source: string): string => extname(source.replace(/#.*$/u, '')).toLowerCase()

/** True for names that `openRows` takes for a file of rows. */
export const isRowsFile = (source: string): boolean => Object.hasOwn(readers, endOf(source))

/**
 * `source`: a path, or `hf:datasets/owner/name/path/of/file.parquet`, `#revision` behind it if it is not `main`.
 * @throws KvfoldError eval/bad-data when it is no such file, cannot be read or cannot be downloaded; engine/cancelled
 */
export async function openRows(source: string, options: SourceOptions = {}): Promise<Rows> {
  const read = readers[endOf(source)]
  if (read === undefined)
    throw new KvfoldError(
      'eval/bad-data',
      `${source} is no file of rows; its name must end in ${Object.keys(readers).join(', ')}.`,
    )
  const file = await fileOf(source, options)
  try {
    return await read(file, source)
  } catch (cause) {
    if (cause instanceof KvfoldError) throw cause
    throw new KvfoldError('eval/bad-data', `Cannot read ${source}: ${cause instanceof Error ? cause.message : String(cause)}`, {
      cause,
    })
  }
}

// Rows of a table in text: values between tabs or commas, the first line their names.

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

// Rows of Parquet files: read by row groups, of which one is kept.

/** Uncompressed and Snappy, which hyparquet reads by itself. */
export async function openParquet(file: string, name: string): Promise<Rows> {
  const buffer = await asyncBufferFromFile(file)
  const metadata = await parquetMetadataAsync(buffer)
  let counted = 0
  // Rows up to the end of each group.
  const ends = metadata.row_groups.map((group) => (counted += Number(group.num_rows)))
  const size = ends.at(-1) ?? 0
  let kept: { start: number; rows: Promise<Row[]> } | undefined
  const where = (index: number) => `${name}, row ${index}`
  return {
    size,
    where,
    async row(index) {
      const group = ends.findIndex((end) => index < end)
      if (group < 0 || index < 0) throw new KvfoldError('eval/bad-data', `${name} has no row ${index}; it has ${size}.`)
      const start = ends[group - 1] ?? 0
      if (kept?.start !== start)
        kept = { start, rows: parquetReadObjects({ file: buffer, metadata, rowStart: start, rowEnd: ends[group] ?? size }) }
      try {
        return plain((await kept.rows)[index - start] ?? {})
      } catch (cause) {
        kept = undefined
        throw new KvfoldError(
          'eval/bad-data',
          `Cannot read ${where(index)}: ${cause instanceof Error ? cause.message : String(cause)}`,
          {
            cause,
          },
        )
      }
    },
  }
}

/** Large integers as numbers, as JSON has them. */
const plain = (row: Row): Row =>
  Object.fromEntries(Object.entries(row).map(([key, value]) => [key, typeof value === 'bigint' ? Number(value) : value]))
