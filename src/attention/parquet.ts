/** Owns tables as Parquet files: pandas, Polars, DuckDB and Arrow read them. */
import { parquetWriteBuffer, type BasicType } from 'hyparquet-writer'

type Cell = string | number | null
export type Row = Readonly<Record<string, Cell>>

/** What a column holds; all may hold nulls. */
export type ColumnType = 'text' | 'integer' | 'real'

const TYPES: Readonly<Record<ColumnType, BasicType>> = { text: 'STRING', integer: 'INT32', real: 'DOUBLE' }

/** The rows as one Parquet file; `about` goes into its metadata. */
export function parquet(columns: Readonly<Record<string, ColumnType>>, rows: readonly Row[], about: string): Uint8Array {
  const buffer = parquetWriteBuffer({
    columnData: Object.entries(columns).map(([name, type]) => ({
      name,
      data: rows.map((row) => row[name] ?? null),
      type: TYPES[type],
    })),
    kvMetadata: [{ key: 'kvfold', value: about }],
    createdBy: 'kvfold',
  })
  return new Uint8Array(buffer)
}
