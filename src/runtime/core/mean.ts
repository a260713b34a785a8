/** Returns the arithmetic mean. `values` must not be empty. */
export const mean = (values: ArrayLike<number>): number => {
  let sum = 0
  for (let at = 0; at < values.length; at++) sum += values[at]!
  return sum / values.length
}
