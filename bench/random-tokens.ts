/** Tokens without meaning, for benches on models with random weights. */

/** Plain vocabulary tokens, different for every salt from the first on. */
export function randomTokens(size: number, salt: number, vocabulary: number): Int32Array {
  let state = salt * 2654435761
  return Int32Array.from({ length: size }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return 300 + (state % (vocabulary - 400))
  })
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  return (sorted[Math.floor((sorted.length - 1) / 2)]! + sorted[Math.ceil((sorted.length - 1) / 2)]!) / 2
}
