/** Owns what is kept of a whole thread so that a row which is missing, or one of an earlier time, is noticed though every row there is whole. */
import { crc32 } from 'node:zlib'
import type { ThreadHead } from './port.js'
import { rowKind } from './row-kind.js'

/** Tables with a row for each part of a thread; rows are added and never changed. */
export const PART_TABLES = ['messages', 'entries', 'events'] as const
export type PartTable = (typeof PART_TABLES)[number]

/** Rows, and the checksums of all of them, one after the other, in one. */
export type Chain = readonly [rows: number, sum: number]

/** Of a thread after its `revision`-th change. Name and model are here, too, for the case that the thread's own row is lost. */
export interface ThreadDigest
  extends Pick<ThreadHead, 'tenant' | 'id' | 'model' | 'created'>, Readonly<Record<PartTable, Chain>> {
  readonly revision: number
  /** Checksums of the rows that are replaced; null: there is none, and it will be made. */
  readonly head: number
  readonly edits: number
  readonly card: number | null
}

export const digestRows = rowKind<ThreadDigest>({
  table: 'digests',
  columns: { digest: 'text' },
  write: (digest) => [JSON.stringify(digest)],
  read: ({ digest }) => JSON.parse(digest as string) as ThreadDigest,
})

export const NO_ROWS: Chain = [0, 0]

/** With the checksums of more rows. */
export function chained([rows, sum]: Chain, sums: readonly number[]): Chain {
  const bytes = Buffer.alloc(4)
  const all = sums.reduce((before, each) => {
    bytes.writeUInt32LE(each)
    return crc32(bytes, before)
  }, sum)
  return [rows + sums.length, all]
}

export const isSame = (a: Chain, b: Chain): boolean => a[0] === b[0] && a[1] === b[1]
