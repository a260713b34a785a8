/** A running mean for measured times. Noise only adds time, so the mean follows shorter times faster. */

/** Weight of the last measurement: RISING if it is above the mean, FALLING if below. */
const RISING = 0.3
const FALLING = 0.5
/** A measurement counts as at most this many times the mean. One long time, e.g. of a thread that lost its core, predicts nothing. */
const LARGEST_RISE = 2

/** Returns the mean updated by this measurement. @param mean null before the first */
export function followed(mean: number | null, value: number): number {
  if (mean === null) return value
  return value < mean ? mean + FALLING * (value - mean) : mean + RISING * (Math.min(value, mean * LARGEST_RISE) - mean)
}
