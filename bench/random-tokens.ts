/** Random tokens, and the tokens that end an answer, for models with random weights. */
import type { NativeModel } from '../src/runtime/native/types.js'

/** Returns ordinary vocabulary tokens. Different salts give different tokens from the first one on. */
export function randomTokens(size: number, salt: number, vocabulary: number): Int32Array {
  let state = salt * 2654435761
  return Int32Array.from({ length: size }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return 300 + (state % (vocabulary - 400))
  })
}

/**
 * Returns the tokens that end an answer. Random weights may sample one at any time, so benchmarks ban them to get answers of a known
 * length.
 */
export const endsOfGeneration = (model: Pick<NativeModel, 'info' | 'isEndOfGeneration'>): number[] =>
  Array.from({ length: model.info.vocabulary }, (_, token) => token).filter((token) => model.isEndOfGeneration(token))

/** Returns the same bans as the `logitBias` of a request. */
export const neverEnding = (model: Pick<NativeModel, 'info' | 'isEndOfGeneration'>): { token: number; bias: number }[] =>
  endsOfGeneration(model).map((token) => ({ token, bias: -Infinity }))

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  return (sorted[Math.floor((sorted.length - 1) / 2)]! + sorted[Math.ceil((sorted.length - 1) / 2)]!) / 2
}
