/** The study's statistics: descriptions of a sample, bootstrap intervals over seeds, and tests whether values differ from 0. */
import { mean } from '../../runtime/core/mean.js'
import { createRequire } from 'node:module'
import { Random } from '../../runtime/core/random.js'

export interface Description {
  readonly count: number
  readonly mean: number
  readonly median: number
  readonly least: number
  readonly most: number
  /** Sample standard deviation (n - 1); 0 for a single value. */
  readonly deviation: number
}

/** Returns the values' mean, median, range and deviation; null without values. */
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

/** Returns the median. There must be at least one value. */
export const median = (values: ArrayLike<number>): number => middleOf(Float64Array.from(values).sort())

/** Returns the sample standard deviation; 0 for a single value. */
export function deviation(values: ArrayLike<number>): number {
  if (values.length < 2) return 0
  const centre = mean(values)
  let sum = 0
  for (let at = 0; at < values.length; at++) sum += (values[at]! - centre) ** 2
  return Math.sqrt(sum / (values.length - 1))
}

/** The sums from which a correlation is computed. The sums of several groups of pairs can be added up. */
export interface PairSums {
  readonly count: number
  readonly x: number
  readonly y: number
  readonly xx: number
  readonly yy: number
  readonly xy: number
}

/**
 * Sums one group of pairs, less `centre` each. All groups need the same centre; one near the middle of all pairs keeps the sums precise.
 */
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

/** Returns the squared Pearson correlation of all summed pairs. Null for fewer than two pairs, or if one side is constant. */
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

/** Returns the squared Pearson correlation of the pairs. Null for fewer than two pairs, or if one side is constant. */
export function squaredCorrelation(pairs: readonly (readonly [number, number])[]): number | null {
  if (pairs.length < 2) return null
  return squaredCorrelationOf([pairSums(pairs, [mean(pairs.map(([x]) => x)), mean(pairs.map(([, y]) => y))])])
}

function middleOf(sorted: Float64Array): number {
  const half = sorted.length >> 1
  return sorted.length % 2 === 1 ? sorted[half]! : (sorted[half - 1]! + sorted[half]!) / 2
}

/**
 * Returns the 95 % Wilson score interval of the proportion `right / asked`; [0, 1] if `asked` is 0. `right` may be a sum of points between
 * 0 and 1. Such points vary less than right-or-wrong answers, so the interval is then too wide rather than too narrow.
 */
export function wilson(right: number, asked: number): [low: number, high: number] {
  if (asked === 0) return [0, 1]
  const z = 1.959964
  const share = right / asked
  const scale = 1 + (z * z) / asked
  const middle = (share + (z * z) / (2 * asked)) / scale
  // Rounding may make `right` slightly larger than `asked`, and so the product negative.
  const variance = Math.max(0, share * (1 - share)) / asked
  const half = (z * Math.sqrt(variance + (z * z) / (4 * asked * asked))) / scale
  return [Math.max(0, middle - half), Math.min(1, middle + half)]
}

// Below: bootstrap intervals. Pairs of one seed come from one prompt, so whole seeds are drawn, never single pairs.

/** An interval; both ends belong to it. */
export type Interval = readonly [low: number, high: number]

export const RESAMPLES = 2000
const LEVEL = 0.95

/**
 * Draws as many groups as there are, with replacement, RESAMPLES times, and computes `figure` from each draw. Returns the interval of the
 * middle 95 % of the results. Null for fewer than two groups, or if `figure` returns null for more than half of the draws.
 * With few groups the interval is a little too narrow. Equal groups, figure and seed give the same interval.
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

// Below: Student's one-sample t-test. The distribution functions come from Cephes, as in SciPy.

const require = createRequire(import.meta.url)
/** Loads Cephes at the first p value. We take its CommonJS build, because the other build has to be awaited. */
const cephes = () =>
  require('cephes') as {
    /** The regularised incomplete beta function I_x(a, b). */
    incbet(a: number, b: number, x: number): number
    /** The probability that a standard normal value is below `x`. */
    ndtr(x: number): number
  }

export interface TTest {
  readonly t: number
  /** Degrees of freedom. */
  readonly df: number
  /** The two-sided p value. */
  readonly p: number
}

/** Tests whether the mean of independent values differs from 0. Null for fewer than two values, or if all are equal. */
export function tTest(values: readonly number[]): TTest | null {
  const spread = deviation(values)
  if (values.length < 2 || spread === 0) return null
  const t = mean(values) / (spread / Math.sqrt(values.length))
  const df = values.length - 1
  return { t, df, p: twoSided(t, df) }
}

/** Returns the probability that |T| ≥ |t| for a T with `df` degrees of freedom. */
export const twoSided = (t: number, df: number): number => cephes().incbet(df / 2, 0.5, df / (df + t * t))

// Below: Wilcoxon's signed-rank test, whether values lie to one side of 0. It assumes only a symmetric distribution.

export interface Wilcoxon {
  /** The smaller one of the rank sums of positive and of negative values. */
  readonly w: number
  /** Number of values that are not 0. The test ignores zeros. */
  readonly count: number
  /** The two-sided p value. */
  readonly p: number
  /**
   * How p was computed. `exact`: by counting all combinations of signs. `normal`: by the normal approximation, with a variance corrected
   * for ties.
   */
  readonly method: 'exact' | 'normal'
}

/** Up to this many values, p is exact, with ties too. We found no package that does this. */
const EXACT = 25

/** Tests whether the values lie to one side of 0. Null if there are no values other than 0. */
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
  /** The rank by absolute value, from 1. Equal absolute values share the mean of their ranks. */
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

/**
 * Returns the exact p: the share of sign combinations whose rank sum is at least as far from the middle as `w`. Ranks are doubled, which
 * makes tied ranks integers.
 */
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
  // The variance is a quarter of the sum of the squared ranks; this holds with ties too.
  const variance = ranked.reduce((sum, { rank }) => sum + rank ** 2, 0) / 4
  return Math.min(1, 2 * cephes().ndtr((w - all / 2) / Math.sqrt(variance)))
}
