/** Arithmetic on embeddings. */

/** Returns the cosine of two vectors of length 1, which is their dot product. */
export function cosine(one: Float32Array, other: Float32Array): number {
  let sum = 0
  for (let at = 0; at < one.length; at++) sum += one[at]! * other[at]!
  return sum
}
