/** Reads what an engine or a context predicts, and compares it. */
import type { TokenLogprob } from '../../src/engine/engine.js'

/** Log-probabilities of the first token of an answer, by token. Ask for as many as the vocabulary has. */
export function firstPrediction(logprobs: readonly Pick<TokenLogprob, 'top'>[] | undefined, vocabulary: number): Float32Array {
  const next = new Float32Array(vocabulary)
  for (const { token, logprob } of logprobs?.[0]?.top ?? []) next[token] = logprob
  return next
}

export const largestDifference = (a: Float32Array, b: Float32Array): number =>
  a.reduce((most, value, at) => Math.max(most, Math.abs(value - b[at]!)), 0)
