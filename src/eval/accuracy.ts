/** Owns the accuracy of samples taken together, and how sure one may be of it. */
import { bootstrap } from '../attention/statistics.js'
import type { Score } from './task.js'
import { wilson, type Proportion } from './proportion.js'

export interface Accuracy extends Proportion {
  /** How the interval was come by. */
  readonly by: 'wilson' | 'bootstrap'
}

/**
 * The mean of the samples' points with its 95 % interval, within [0, 1]. Wilson's, where every sample was right or wrong once. Where a
 * sample's points lie between (many questions about one text are not independent; similarity), by bootstrap over samples. Where that says
 * nothing: of one sample Wilson's as if it were one question, which is wide; of samples that are all alike, Wilson's over all their questions, as
 * nothing shows that those of a sample hang together. Null without samples.
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
  if (scores.length === 1) return { accuracy, interval: wilson(total, 1), by: 'wilson' }
  if (points.every((one) => one === points[0])) return { accuracy, interval: wilson(accuracy * asked, asked), by: 'wilson' }
  const drawn = bootstrap(points, (some) => some.reduce((sum, one) => sum + one, 0) / some.length)
  const [low, high] = drawn ?? wilson(total, scores.length)
  return { accuracy, interval: [Math.max(0, low), Math.min(1, high)], by: drawn === null ? 'wilson' : 'bootstrap' }
}
