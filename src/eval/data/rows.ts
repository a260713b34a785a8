/** Owns reading data sets row by row: JSON Lines, a JSON array, TSV or CSV, or Parquet; from a path or from the hub, any row at any time. */
import { extname } from 'node:path'
import { KvfoldError } from '../../core/errors.js'
import { openJsonRows } from './json-rows.js'
import { openParquet } from './parquet.js'
import type { Rows } from './row.js'
import { fileOf, type SourceOptions } from './source.js'
import { openTable } from './table.js'

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
