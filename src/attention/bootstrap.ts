/** Owns intervals by bootstrap over seeds: pairs of one seed share a prompt, so seeds are drawn anew, never single pairs. */
import { Random } from '../core/random.js'

/** Both ends included. */
export type Interval = readonly [low: number, high: number]

export const RESAMPLES = 2000
const LEVEL = 0.95

/**
 * The 95 % percentile interval of a figure taken from some groups together; a group may be a summary of its items. Null for fewer than two
 * groups, or where most resamples have no such figure. With few groups it is a little too narrow. The same groups, figure and seed give the
 * same interval.
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
