/** Owns the accuracy of samples taken together, and how sure one may be of it. */
import { bootstrap } from '../attention/statistics.js'
import type { Score } from './task.js'

export interface Accuracy extends Proportion {
  /** How the interval was come by. */
  readonly by: 'wilson' | 'bootstrap'
}

/**
 * The mean of the samples' points with its 95 % interval, within [0, 1]. Wilson's, where every sample was right or wrong once. Where a
 * sample's points lie between (many questions about one text are not independent; similarity), by bootstrap over samples. Where that says
 * nothing, of one sample or of samples that are all alike: Wilson's as if each were one question, which is wide. Null without samples.
 */
export function accuracyOf(scores: readonly Pick<Score, 'points' | 'details'>[]): Accuracy | null {
  if (scores.length === 0) return null
  const points = scores.map((score) => score.points)
  const total = points.reduce((sum, one) => sum + one, 0)
  const accuracy = total / scores.length
  const questions = scores.map(({ details }) => Math.max(1, details['asked'] ?? 1))
  const asked = questions.reduce((sum, one) => sum + one, 0)
  if (asked === scores.length && points.every((one) => one === 0 || one === 1))
    return { accuracy, interval: wilson(total, scores.length), by: 'wilson' }
  if (points.every((one) => one === points[0])) return { accuracy, interval: wilson(total, scores.length), by: 'wilson' }
  const drawn = bootstrap(points, (some) => some.reduce((sum, one) => sum + one, 0) / some.length)
  const [low, high] = drawn ?? wilson(total, scores.length)
  return { accuracy, interval: [Math.max(0, low), Math.min(1, high)], by: drawn === null ? 'wilson' : 'bootstrap' }
}

// Shares of answers that are right or wrong: their interval, and whether two of them differ.

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
