/** The statistics of the study: descriptions of a sample, intervals by bootstrap over seeds, and tests whether values differ from 0. */
import { mean } from '../../runtime/core/mean.js'
import { createRequire } from 'node:module'
import { Random } from '../../runtime/core/random.js'

// Descriptions of a sample: mean, median, range, and the correlation of two samples.

export interface Description {
  readonly count: number
  readonly mean: number
  readonly median: number
  readonly least: number
  readonly most: number
  /** Sample standard deviation (n - 1); 0 for a single value. */
  readonly deviation: number
}

/** Describes the values by their mean, median, range and deviation. Returns null when there are no values. */
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

/** Returns the median. Precondition: at least one value. */
export const median = (values: ArrayLike<number>): number => middleOf(Float64Array.from(values).sort())

/** Returns the sample standard deviation; 0 for a single value. */
export function deviation(values: ArrayLike<number>): number {
  if (values.length < 2) return 0
  const centre = mean(values)
  let sum = 0
  for (let at = 0; at < values.length; at++) sum += (values[at]! - centre) ** 2
  return Math.sqrt(sum / (values.length - 1))
}

/** The sums from which a correlation is computed. Sums of several groups of pairs can be added. */
export interface PairSums {
  readonly count: number
  readonly x: number
  readonly y: number
  readonly xx: number
  readonly yy: number
  readonly xy: number
}

/** Sums one group of pairs, after `centre` is subtracted from each. A centre near the middle of all groups keeps the sums precise. */
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

/** Returns the squared Pearson correlation of all summed pairs. Null for fewer than two pairs, or when one side never changes. */
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

/** Returns the squared Pearson correlation of the pairs. Null for fewer than two pairs, or when one side never changes. */
export function squaredCorrelation(pairs: readonly (readonly [number, number])[]): number | null {
  if (pairs.length < 2) return null
  return squaredCorrelationOf([pairSums(pairs, [mean(pairs.map(([x]) => x)), mean(pairs.map(([, y]) => y))])])
}

function middleOf(sorted: Float64Array): number {
  const half = sorted.length >> 1
  return sorted.length % 2 === 1 ? sorted[half]! : (sorted[half - 1]! + sorted[half]!) / 2
}

// The interval of a share.

/**
 * Returns the 95 % Wilson score interval of the proportion `right / asked`; [0, 1] when `asked` is 0. `right` may be a sum of points
 * between 0 and 1. They vary less than right and wrong, so the interval is then rather too wide.
 */
export function wilson(right: number, asked: number): [low: number, high: number] {
  if (asked === 0) return [0, 1]
  const z = 1.959964
  const share = right / asked
  const scale = 1 + (z * z) / asked
  const middle = (share + (z * z) / (2 * asked)) / scale
  // Rounding may make `right` slightly larger than `asked`, and the product negative.
  const variance = Math.max(0, share * (1 - share)) / asked
  const half = (z * Math.sqrt(variance + (z * z) / (4 * asked * asked))) / scale
  return [Math.max(0, middle - half), Math.min(1, middle + half)]
}

// Intervals by bootstrap over seeds. Pairs of one seed share a prompt, so whole seeds are drawn, never single pairs.

/** An interval that includes both ends. */
export type Interval = readonly [low: number, high: number]

export const RESAMPLES = 2000
const LEVEL = 0.95

/**
 * Draws groups again and again, and computes `figure` from each draw. Returns the interval that holds the middle 95 % of the results.
 * Returns null for fewer than two groups, or when `figure` returns null for more than half of the resamples.
 * With few groups the interval is a little too narrow. The same groups, figure and seed give the same interval.
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

// Student's one-sample t-test. The distributions come from Cephes, as in SciPy.

const require = createRequire(import.meta.url)
/** Loads Cephes when the first p value is computed. It takes the CommonJS build, because the other build must be awaited. */
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
  /** The two-sided p value. */
  readonly p: number
}

/** Tests whether the mean of independent values differs from 0. Returns null for fewer than two values or when all are equal. */
export function tTest(values: readonly number[]): TTest | null {
  const spread = deviation(values)
  if (values.length < 2 || spread === 0) return null
  const t = mean(values) / (spread / Math.sqrt(values.length))
  const df = values.length - 1
  return { t, df, p: twoSided(t, df) }
}

/** Returns the chance that a t with `df` degrees of freedom is at least as far from 0 as `t`. */
export const twoSided = (t: number, df: number): number => cephes().incbet(df / 2, 0.5, df / (df + t * t))

// Wilcoxon's signed-rank test: do values lie to one side of 0? It assumes no particular distribution.

export interface Wilcoxon {
  /** The rank sum of the positive or of the negative values, whichever is smaller. */
  readonly w: number
  /** Number of values other than 0. The test leaves zeros out. */
  readonly count: number
  /** The two-sided p value. */
  readonly p: number
  /** How p was computed. `exact`: counted over all signs. `normal`: by the normal approximation, with its variance corrected for ties. */
  readonly method: 'exact' | 'normal'
}

/** With up to this many values, the test counts the exact distribution, ties included. We found no package that does this. */
const EXACT = 25

/** Tests whether the values lie to one side of 0. Returns null when there are no values other than 0. */
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
  /** The rank by absolute value, from 1. Equal values share the mean of their ranks. */
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

/** Returns the exact p: the share of all signs whose rank sum is at least as far from the middle as `w`. Doubled ranks are whole. */
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
  // The variance is a quarter of the sum of squared ranks, also with ties.
  const variance = ranked.reduce((sum, { rank }) => sum + rank ** 2, 0) / 4
  return Math.min(1, 2 * cephes().ndtr((w - all / 2) / Math.sqrt(variance)))
}
