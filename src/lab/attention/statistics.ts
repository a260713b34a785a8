/** Owns the statistics of samples: what describes them, intervals by bootstrap over seeds, and the tests of a change. */
import { mean } from '../../runtime/core/mean.js'
import { createRequire } from 'node:module'
import { Random } from '../../runtime/core/random.js'

// Describing a sample: mean, median, range, and how far two samples agree.

export interface Description {
  readonly count: number
  readonly mean: number
  readonly median: number
  readonly least: number
  readonly most: number
  /** Sample standard deviation (n - 1); 0 for a single value. */
  readonly deviation: number
}

/** Null for no values: nothing can be said of them. */
export function describe(values: readonly number[]): Description | null {
  if (values.length === 0) return null
  const sorted = Float64Array.from(values).sort()
  return {
    count: values.length,
    mean: mean(values),
    median: middleOf(sorted),
    least: sorted[0]!,
    most: sorted.at(-1)!,
    deviation: deviation(values),
  }
}

/** Precondition: at least one value. */
export const median = (values: ArrayLike<number>): number => middleOf(Float64Array.from(values).sort())

/** Sample standard deviation; 0 for a single value. */
export function deviation(values: ArrayLike<number>): number {
  if (values.length < 2) return 0
  const centre = mean(values)
  let sum = 0
  for (let at = 0; at < values.length; at++) sum += (values[at]! - centre) ** 2
  return Math.sqrt(sum / (values.length - 1))
}

/** Everything that a correlation takes from some pairs; sums of several add up. */
export interface PairSums {
  readonly count: number
  readonly x: number
  readonly y: number
  readonly xx: number
  readonly yy: number
  readonly xy: number
}

/** `centre`: somewhere in the middle of all pairs that are to be added up, so that little is lost in differences. */
export function pairSums(pairs: readonly (readonly [number, number])[], centre: readonly [number, number]): PairSums {
  let [x, y, xx, yy, xy] = [0, 0, 0, 0, 0]
  for (const [left, right] of pairs) {
    const [a, b] = [left - centre[0], right - centre[1]]
    x += a
    y += b
    xx += a * a
    yy += b * b
    xy += a * b
  }
  return { count: pairs.length, x, y, xx, yy, xy }
}

/** Squared Pearson correlation of all pairs that were summed around one centre; null for fewer than two, or where one side never changes. */
export function squaredCorrelationOf(sums: readonly PairSums[]): number | null {
  let [count, x, y, xx, yy, xy] = [0, 0, 0, 0, 0, 0]
  for (const sum of sums) {
    count += sum.count
    x += sum.x
    y += sum.y
    xx += sum.xx
    yy += sum.yy
    xy += sum.xy
  }
  if (count < 2) return null
  const [sx, sy, s] = [xx - (x * x) / count, yy - (y * y) / count, xy - (x * y) / count]
  return sx <= 0 || sy <= 0 ? null : Math.min(1, s ** 2 / (sx * sy))
}

/** Squared Pearson correlation; null for fewer than two pairs or where one side never changes. */
export function squaredCorrelation(pairs: readonly (readonly [number, number])[]): number | null {
  if (pairs.length < 2) return null
  return squaredCorrelationOf([pairSums(pairs, [mean(pairs.map(([x]) => x)), mean(pairs.map(([, y]) => y))])])
}

function middleOf(sorted: Float64Array): number {
  const half = sorted.length >> 1
  return sorted.length % 2 === 1 ? sorted[half]! : (sorted[half - 1]! + sorted[half]!) / 2
}

// Intervals by bootstrap over seeds: pairs of one seed share a prompt, so seeds are drawn anew, never single pairs.

/** Both ends included. */
export type Interval = readonly [low: number, high: number]

export const RESAMPLES = 2000
const LEVEL = 0.95

/**
 * The 95 % percentile interval of a figure taken from some groups together; a group may be a summary of its items. Null for fewer than two
 * groups, or where most resamples have no such figure. With few groups it is a little too narrow. The same groups, figure and seed give the
 * same interval.
 */
export function bootstrap<Group>(
  groups: readonly Group[],
  figure: (drawn: readonly Group[]) => number | null,
  seed = 1,
): Interval | null {
  if (groups.length < 2) return null
  const random = new Random(seed, groups.length)
  const values: number[] = []
  for (let resample = 0; resample < RESAMPLES; resample++) {
    const value = figure(groups.map(() => groups[random.below(groups.length)]!))
    if (value !== null) values.push(value)
  }
  if (values.length < RESAMPLES / 2) return null
  const sorted = Float64Array.from(values).sort()
  const cut = Math.floor((sorted.length * (1 - LEVEL)) / 2)
  return [sorted[cut]!, sorted[sorted.length - 1 - cut]!]
}

// Student's t: the one-sample test. Distributions are Cephes', as in SciPy.

const require = createRequire(import.meta.url)
/** Loaded where the first p is asked for; its CommonJS build is ready at once, the other one has to be waited for. */
const cephes = () =>
  require('cephes') as {
    /** The regularised incomplete beta function I_x(a, b). */
    incbet(a: number, b: number, x: number): number
    /** The chance of a standard normal value below `x`. */
    ndtr(x: number): number
  }

export interface TTest {
  readonly t: number
  /** Degrees of freedom. */
  readonly df: number
  /** Two-sided. */
  readonly p: number
}

/** Whether the mean of independent values differs from 0; null for fewer than two values, or where all are the same. */
export function tTest(values: readonly number[]): TTest | null {
  const spread = deviation(values)
  if (values.length < 2 || spread === 0) return null
  const t = mean(values) / (spread / Math.sqrt(values.length))
  const df = values.length - 1
  return { t, df, p: twoSided(t, df) }
}

/** The chance that a t of `df` degrees of freedom is as far from 0 as this one. */
export const twoSided = (t: number, df: number): number => cephes().incbet(df / 2, 0.5, df / (df + t * t))

// Wilcoxon's signed-rank test: whether values lie to one side of 0, without asking how they are distributed.

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

/** Up to so many values the distribution is counted out, ties included; no package that was found does that. */
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
  return Math.min(1, 2 * cephes().ndtr((w - all / 2) / Math.sqrt(variance)))
}
