/** Statistics of benchmarks: an interval for the mean of a few independent measurements, and the tail of many. */
import { wilson } from '../src/lab/attention/statistics.js'
import { Random } from '../src/runtime/core/random.js'

/** An interval; both ends are included. */
export type Interval = readonly [low: number, high: number]

const RESAMPLES = 10_000
const LEVEL = 0.95

/** The values that half, 95 and 99 percent of the measurements do not exceed. */
export interface Quantiles {
  readonly p50: number
  readonly p95: number
  readonly p99: number
}

/** @param none the result if there are no values */
export function quantiles(values: readonly number[], none = Number.NaN): Quantiles {
  const sorted = [...values].sort((a, b) => a - b)
  const at = (share: number) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? none
  return { p50: at(0.5), p95: at(0.95), p99: at(0.99) }
}

export const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length

/**
 * Returns a 95 % percentile bootstrap interval of the mean. There must be at least one value, and the values must be independent (streams,
 * for example, and not the questions about one stream). With few values the interval is a little too narrow. The same values and seed give
 * the same interval.
 */
export function bootstrap(values: readonly number[], seed = 1): Interval {
  const random = new Random(seed, values.length)
  const means = Float64Array.from({ length: RESAMPLES }, () => {
    let sum = 0
    for (let draw = 0; draw < values.length; draw++) sum += values[random.below(values.length)]!
    return sum / values.length
  }).sort()
  const cut = Math.floor((RESAMPLES * (1 - LEVEL)) / 2)
  return [means[cut]!, means[RESAMPLES - 1 - cut]!]
}

/**
 * Returns a 95 % interval of the mean of shares, one share per independent sample: a bootstrap. For equal shares a bootstrap has no width.
 * Then it is Wilson's interval with one question per sample, which is wide (as in `estimate`).
 */
export const shareInterval = (shares: readonly number[]): Interval =>
  shares.every((share) => share === shares[0]) ? wilson(mean(shares) * shares.length, shares.length) : bootstrap(shares)

/** Returns the rank correlation of pairs (Spearman): 1 if one value grows with the other, about 0 if they are unrelated. */
export function rankCorrelation(pairs: readonly (readonly [number, number])[]): number {
  const [a, b] = [ranks(pairs.map(([x]) => x)), ranks(pairs.map(([, y]) => y))]
  const [meanA, meanB] = [mean(a), mean(b)]
  const sum = (of: (at: number) => number) => a.reduce((total, _, at) => total + of(at), 0)
  const covariance = sum((at) => (a[at]! - meanA) * (b[at]! - meanB))
  return covariance / Math.sqrt(sum((at) => (a[at]! - meanA) ** 2) * sum((at) => (b[at]! - meanB) ** 2))
}

/** Returns the rank of each value. Equal values share the mean of their ranks. */
function ranks(values: readonly number[]): number[] {
  const sorted = [...values].sort((x, y) => x - y)
  return values.map((value) => (sorted.indexOf(value) + sorted.lastIndexOf(value)) / 2)
}
