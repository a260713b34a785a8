/** Reports where the cells of a text are: on the device, in lower tiers, or nowhere. Also totals of the cache. */
import { length, type Span } from '../core/span.js'
import type { OffloadTiers, OffloadTotals } from './offload.js'
import type { SharedCounts } from './ports.js'
import { commonPrefix, tokenSource } from './prompt.js'
import type { SequenceTable } from './sequence-table.js'
import type { HeldSequence } from './sequence.js'

/**
 * Where the cells of a text are. All fields count tokens. A token with several cells counts once, in the first of these fields that
 * applies: `live` + `parked` + `host` + `disk` + `gone` = `tokens`.
 */
export interface Residency {
  readonly tokens: number
  /** In the conversation's live sequence. For hidden text this means that no step has carried out the fold yet. */
  readonly live: number
  /** In a parked version on the device. */
  readonly parked: number
  readonly host: number
  readonly disk: number
  /** In no tier. They would be computed again, unless another conversation has the same beginning. */
  readonly gone: number
}

const PLACES = ['live', 'parked', 'host', 'disk'] as const

export type CellPlace = (typeof PLACES)[number]

/**
 * Counts, for each span, where its tokens' cells are. Changes nothing.
 * @param base an unedited prompt of the conversation
 * @param stretches spans of it
 * @param held the conversation's sequences, and where they are
 */
export function residencyOf(
  base: Int32Array,
  stretches: readonly Span[],
  held: readonly { readonly holder: HeldSequence; readonly where: CellPlace }[],
): Residency[] {
  /** For each token of `base`: 1 plus the smallest index in PLACES among the sequences that hold its cell; 0 if none does. */
  const best = new Uint8Array(base.length)
  for (const { holder, where } of held) {
    const rank = 1 + PLACES.indexOf(where)
    const agrees = commonPrefix(holder.unedited, base)
    for (const { start, end } of stretches) {
      const { sourceIds: keys, tokens } = holder
      for (let place = start, entry = holder.atKey(tokenSource(start)); place < Math.min(end, agrees); place++) {
        while (entry < holder.held && keys[entry]! < tokenSource(place)) entry++
        if (keys[entry] !== tokenSource(place) || entry >= holder.held || tokens[entry] !== base[place]) continue
        if (best[place] === 0 || best[place]! > rank) best[place] = rank
      }
    }
  }
  return stretches.map((stretch) => {
    const counts = { gone: 0, live: 0, parked: 0, host: 0, disk: 0 }
    for (let place = stretch.start; place < stretch.end; place++) counts[PLACES[best[place]! - 1] ?? 'gone']++
    return { tokens: length(stretch), ...counts }
  })
}

// Totals of the cache.

/** Totals of the cache. Fields count cells unless they say otherwise; used + free = cells. */
export interface CacheTotals {
  readonly cells: number
  readonly used: number
  readonly free: number
  /** Cells that only parked versions hold. They can be freed without touching a live sequence. */
  readonly parked: number
  /** Attention runs over at most this many cells (CellTable). */
  readonly reach: number
  /** Number of sequence ids. */
  readonly sequences: { readonly used: number; readonly total: number }
  /** Number of parked versions. */
  readonly versions: number
  /** Counts of sequences that were moved off the device. */
  readonly tiers: OffloadTotals
  /** Blocks sent to other engines and received from them; absent without a shared tier. */
  readonly shared?: SharedCounts
}

/** Returns the totals of the cache. Visits every held cell, so it is too slow for inner loops. */
export function totalsOf(table: SequenceTable, offload: OffloadTiers, shared?: SharedCounts): CacheTotals {
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
    ...(shared === undefined ? {} : { shared }),
  }
}
