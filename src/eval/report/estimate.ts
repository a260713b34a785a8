/** Owns what some answers say of all that could have been asked: accuracy and differences, each with a 95 % interval. */
import { bootstrap, type Interval, mean } from '../../attention/statistics.js'
import { accuracyOf } from '../accuracy.js'
import type { Score } from '../task.js'

export interface Estimate {
  /** 0..1: mean points. */
  readonly value: number
  readonly interval: Interval
  readonly method: 'wilson' | 'bootstrap'
}

/** As `kvfold eval` has it (accuracyOf). Null for none. */
export function estimate(scores: readonly Pick<Score, 'points' | 'details'>[]): Estimate | null {
  const found = accuracyOf(scores)
  return found === null ? null : { value: found.accuracy, interval: found.interval, method: found.by }
}

export interface Difference {
  readonly value: number
  /** By bootstrap over pairs; null where all differences are the same. */
  readonly interval: Interval | null
}

/** Of points in pairs (ours, theirs): ours less theirs. Null for none. */
export function difference(pairs: readonly (readonly [number, number])[]): Difference | null {
  if (pairs.length === 0) return null
  const apart = pairs.map(([ours, theirs]) => ours - theirs)
  const same = apart.every((one) => Math.abs(one - apart[0]!) < 1e-12)
  return { value: mean(apart), interval: same ? null : bootstrap(apart, (some) => mean(some)) }
}
