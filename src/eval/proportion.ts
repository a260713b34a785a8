/** Owns shares of answers that are right or wrong: their interval, and whether two of them differ. */

/** A share and its interval; both ends included. */
export interface Proportion {
  /** 0..1. */
  readonly accuracy: number
  readonly interval: readonly [low: number, high: number]
}

/** The 95 % Wilson score interval of a proportion; [0, 1] when nothing was asked. `right` may be a sum of points between 0 and 1, which vary less than right and wrong do. */
export function wilson(right: number, asked: number): [low: number, high: number] {
  if (asked === 0) return [0, 1]
  const z = 1.959964
  const share = right / asked
  const scale = 1 + (z * z) / asked
  const middle = (share + (z * z) / (2 * asked)) / scale
  // A sum of points may be a little more than their number.
  const variance = Math.max(0, share * (1 - share)) / asked
  const half = (z * Math.sqrt(variance + (z * z) / (4 * asked * asked))) / scale
  return [Math.max(0, middle - half), Math.min(1, middle + half)]
}

/** Whether two accuracies differ at the 95 % level (Newcombe 1998, method 10: from the Wilson intervals of both). */
export function differ(a: Proportion, b: Proportion): boolean {
  const [low, high] = a.accuracy < b.accuracy ? [a, b] : [b, a]
  const least = high.accuracy - low.accuracy - Math.hypot(high.accuracy - high.interval[0], low.interval[1] - low.accuracy)
  return least > 0
}
