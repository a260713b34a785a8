/** What the cache holds at a moment, in numbers. */
import type { Attic, AtticTotals } from './attic.js'
import type { Holdings } from './holdings.js'

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
  readonly tiers: AtticTotals
}

/** Looks at every held cell: not for inner loops. */
export function totalsOf(holdings: Holdings, attic: Attic): CacheTotals {
  const { cells, sequences } = holdings
  return {
    cells: cells.total,
    used: cells.used,
    free: cells.free,
    reach: cells.reach,
    parked: cells.used - holdings.cellsOf(({ state }) => state !== 'parked'),
    sequences: { used: sequences.used, total: sequences.total },
    versions: holdings.all.filter(({ state }) => state === 'parked').length,
    tiers: attic.totals,
  }
}
