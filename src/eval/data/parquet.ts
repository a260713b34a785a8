/** Owns rows of Parquet files: read by row groups, of which one is kept. */
import { asyncBufferFromFile, parquetMetadataAsync, parquetReadObjects } from 'hyparquet'
import { KvfoldError } from '../../core/errors.js'
import type { Row, Rows } from './row.js'

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
