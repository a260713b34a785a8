/** Owns Wilcoxon's signed-rank test: whether values lie to one side of 0, without asking how they are distributed. */
import { upperTail } from './normal.js'

export interface Wilcoxon {
  /** The smaller of the rank sums of positive and of negative values. */
  readonly w: number
  /** Values that count: zeros are left out. */
  readonly count: number
  /** Two-sided. */
  readonly p: number
  /** `exact`: all signs tried; `normal`: approximated, with the variance corrected for ties. */
  readonly method: 'exact' | 'normal'
}

/** Up to so many values the distribution is counted out, ties included. */
const EXACT = 25

/** Null where all values are 0. */
export function wilcoxon(values: readonly number[]): Wilcoxon | null {
  const ranked = ranks(values.filter((value) => value !== 0))
  if (ranked.length === 0) return null
  const all = ranked.reduce((sum, { rank }) => sum + rank, 0)
  const positive = ranked.reduce((sum, { value, rank }) => sum + (value > 0 ? rank : 0), 0)
  const w = Math.min(positive, all - positive)
  const exact = ranked.length <= EXACT
  return {
    w,
    count: ranked.length,
    p: exact ? counted(w, ranked, all) : approximated(w, ranked, all),
    method: exact ? 'exact' : 'normal',
  }
}

interface Ranked {
  readonly value: number
  /** By size without sign, from 1; equals share the mean of their ranks. */
  readonly rank: number
}

function ranks(values: readonly number[]): Ranked[] {
  const sorted = [...values].sort((a, b) => Math.abs(a) - Math.abs(b))
  return sorted.map((value) => {
    const size = Math.abs(value)
    const first = sorted.findIndex((other) => Math.abs(other) === size)
    const last = sorted.findLastIndex((other) => Math.abs(other) === size)
    return { value, rank: (first + last) / 2 + 1 }
  })
}

/** Every way of giving signs is equally likely: how many of them have a rank sum so far from the middle. Ranks are doubled to be whole. */
function counted(w: number, ranked: readonly Ranked[], all: number): number {
  let ways = new Float64Array(2 * all + 1)
  ways[0] = 1
  for (const { rank } of ranked) {
    const next = Float64Array.from(ways)
    for (let sum = 2 * rank; sum < ways.length; sum++) next[sum]! += ways[sum - 2 * rank]!
    ways = next
  }
  const below = ways.subarray(0, 2 * w + 1).reduce((sum, count) => sum + count, 0)
  return Math.min(1, (2 * below) / 2 ** ranked.length)
}

function approximated(w: number, ranked: readonly Ranked[], all: number): number {
  // The sum of squared ranks is the variance times 4, ties included.
  const variance = ranked.reduce((sum, { rank }) => sum + rank ** 2, 0) / 4
  return Math.min(1, 2 * upperTail((all / 2 - w) / Math.sqrt(variance)))
}
