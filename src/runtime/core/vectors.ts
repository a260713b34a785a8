/** Arrays of numbers: the arithmetic of embeddings, and lists of token ids that are joined. */

/** Returns the cosine of two vectors of length 1, which is their dot product. */
export function cosine(one: Float32Array, other: Float32Array): number {
  let sum = 0
  for (let at = 0; at < one.length; at++) sum += one[at]! * other[at]!
  return sum
}

/** Returns a new array with the arrays one behind the other. */
export function joined(parts: readonly Int32Array[]): Int32Array {
  const whole = new Int32Array(parts.reduce((sum, { length }) => sum + length, 0))
  let at = 0
  for (const part of parts) {
    whole.set(part, at)
    at += part.length
  }
  return whole
}
