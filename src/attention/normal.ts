/** Owns the upper tail of the normal distribution, right to the smallest numbers. */

/** From here on the continued fraction of the tail is better than the series around 0. */
const TAIL = 3

/** The chance of a standard normal value above `z`; relative error below 1e-12. */
export function upperTail(z: number): number {
  if (z < 0) return 1 - upperTail(-z)
  const density = Math.exp((-z * z) / 2) / Math.sqrt(2 * Math.PI)
  if (z < TAIL) {
    let term = z
    let sum = z
    for (let k = 3; Math.abs(term) > 1e-18 * sum; k += 2) sum += term *= (z * z) / k
    return 0.5 - density * sum
  }
  let rest = z
  for (let k = 200; k >= 1; k--) rest = z + k / rest
  return density / rest
}
