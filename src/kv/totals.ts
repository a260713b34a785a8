/** What the cache holds at a moment, in numbers. */
import type { OffloadTiers, OffloadTotals } from './attic.js'
import type { SequenceTable } from './holdings.js'

/** In cells unless said otherwise. used + free = cells. */
export interface CacheTotals {
  readonly cells: number
  readonly used: number
  readonly free: number
  /** Held by parked versions alone: what can be had without any conversation losing its place. */
  readonly parked: number
  /** Attention runs over at most this many cells (Cells). */
  readonly reach: number
  /** Sequence ids. */
  readonly sequences: { readonly used: number; readonly total: number }
  /** Number of parked versions. */
  readonly versions: number
  /** What was moved off the device. */
  readonly tiers: OffloadTotals
}

/** Looks at every held cell: not for inner loops. */
export function totalsOf(table: SequenceTable, offload: OffloadTiers): CacheTotals {
  const { cells, sequences } = table
  return {
    cells: cells.total,
    used: cells.used,
    free: cells.free,
    reach: cells.reach,
    parked: cells.used - table.cellsOf(({ state }) => state !== 'parked'),
    sequences: { used: sequences.used, total: sequences.total },
    versions: table.all.filter(({ state }) => state === 'parked').length,
    tiers: offload.totals,
  }
}
