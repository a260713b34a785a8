/** Owns Student's t: the one-sample test, and the distribution it needs. */
import { deviation, mean } from './moments.js'

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
export const twoSided = (t: number, df: number): number => incompleteBeta(df / (df + t * t), df / 2, 0.5)

/**
 * The regularised incomplete beta function I_x(a, b), by its continued fraction (Numerical Recipes, 6.4, evaluated with Lentz's method).
 * Preconditions: 0 <= x <= 1, a > 0, b > 0.
 */
export function incompleteBeta(x: number, a: number, b: number): number {
  if (x <= 0) return 0
  if (x >= 1) return 1
  const front = Math.exp(logGamma(a + b) - logGamma(a) - logGamma(b) + a * Math.log(x) + b * Math.log1p(-x))
  // The fraction converges fast on this side only; the other side is its mirror image.
  return x < (a + 1) / (a + b + 2) ? (front * fraction(x, a, b)) / a : 1 - (front * fraction(1 - x, b, a)) / b
}

const TERMS = 10_000
const ENOUGH = 1e-15
/** In the place of zero, so that nothing is divided by it. */
const TINY = 1e-300

function fraction(x: number, a: number, b: number): number {
  let c = 1
  let d = 1 / away(1 - ((a + b) * x) / (a + 1))
  let value = d
  for (let m = 1; m <= TERMS; m++) {
    const even = (m * (b - m) * x) / ((a + 2 * m - 1) * (a + 2 * m))
    const odd = (-(a + m) * (a + b + m) * x) / ((a + 2 * m) * (a + 2 * m + 1))
    let factor = 1
    for (const term of [even, odd]) {
      d = 1 / away(1 + term * d)
      c = away(1 + term / c)
      factor = c * d
      value *= factor
    }
    if (Math.abs(factor - 1) < ENOUGH) break
  }
  return value
}

const away = (value: number): number => (Math.abs(value) < TINY ? TINY : value)

/** Coefficients of Lanczos' approximation for g = 7 (Godfrey); relative error below 1e-14. */
const LANCZOS = [
  0.9999999999998099, 676.5203681218851, -1259.1392167224028, 771.3234287776531, -176.6150291621406, 12.507343278686905,
  -0.13857109526572012, 9.984369578019572e-6, 1.5056327351493116e-7,
] as const

/** ln of the gamma function, for x > 0. */
export function logGamma(x: number): number {
  if (x < 0.5) return Math.log(Math.PI / Math.sin(Math.PI * x)) - logGamma(1 - x)
  const base = x + 6.5
  const sum = LANCZOS.reduce(
    (total, coefficient, index) => total + (index === 0 ? coefficient : coefficient / (x - 1 + index)),
    0,
  )
  return 0.5 * Math.log(2 * Math.PI) + (x - 0.5) * Math.log(base) - base + Math.log(sum)
}
