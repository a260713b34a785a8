/** Owns what a row of a data set is, and rows of which any can be read at any time. */

export type Row = Readonly<Record<string, unknown>>

/** The rows of one file. Nothing is kept open between calls. */
export interface Rows {
  readonly size: number
  /** Read when it is asked for. @throws KvfoldError eval/bad-data that says where */
  row(index: number): Promise<Row>
  /** Where the row stands, for whoever looks for it: file and line or number. */
  where(index: number): string
}
