/** Owns describing a sample: mean, median, range, and how far two samples agree. */

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
export const mean = (values: ArrayLike<number>): number => {
  let sum = 0
  for (let at = 0; at < values.length; at++) sum += values[at]!
  return sum / values.length
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
