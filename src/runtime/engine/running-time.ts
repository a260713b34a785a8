/** A running mean for measured times, in which noise only ever adds time. */

/** Weight of the last measurement: `RISING` if it took longer than the mean, `FALLING` if less. */
const RISING = 0.3
const FALLING = 0.5
/**
 * One measurement raises a mean at most as if it had taken this many times as long. A thread that lost its core says nothing about the next
 * one.
 */
const LARGEST_RISE = 2

/** Returns the mean with this measurement. @param mean null before the first */
export function followed(mean: number | null, value: number): number {
  if (mean === null) return value
  return value < mean ? mean + FALLING * (value - mean) : mean + RISING * (Math.min(value, mean * LARGEST_RISE) - mean)
}
