/** Reads and compares the predictions of engines and contexts. */
import type { TokenLogprob } from '../../src/runtime/engine/engine.js'
import type { NativeContext } from '../../src/runtime/native/types.js'

/** Returns the log-probabilities of an answer's first token, by token. The request must ask for as many as the vocabulary has. */
export function firstPrediction(logprobs: readonly Pick<TokenLogprob, 'top'>[] | undefined, vocabulary: number): Float32Array {
  const next = new Float32Array(vocabulary)
  for (const { token, logprob } of logprobs?.[0]?.top ?? []) next[token] = logprob
  return next
}

export const largestDifference = (a: Float32Array, b: Float32Array): number =>
  a.reduce((most, value, at) => Math.max(most, Math.abs(value - b[at]!)), 0)

export function logSoftmax(logits: Float32Array): Float32Array {
  const max = logits.reduce((a, b) => Math.max(a, b))
  const sum = logits.reduce((total, logit) => total + Math.exp(logit - max), 0)
  return logits.map((logit) => logit - max - Math.log(sum))
}

/** Decodes these tokens at a position of a sequence, and requests the logits of the last one. */
export async function decodeInto(context: NativeContext, sequence: number, start: number, tokens: Int32Array): Promise<void> {
  const outputs = new Uint8Array(tokens.length).fill(1, tokens.length - 1)
  const positions = Int32Array.from(tokens, (_, offset) => start + offset)
  const sequences = new Int32Array(tokens.length).fill(sequence)
  const ended = await context.decode({ tokens, positions, sequences, outputs })
  if (ended !== 'done') throw new Error(`a decode ended ${ended}`)
}

/**
 * Returns the log-probabilities of the next token after a fresh prefill. With `beside`, a chunk of this many tokens of another sequence
 * lies between its cells, as other conversations' cells do in the engine's cache. Without flash attention that changes the order of sums
 * far more than chunking does.
 */
export async function freshPrediction(context: NativeContext, tokens: Int32Array, beside = 0): Promise<Float32Array> {
  context.clear()
  let part = tokens
  for (let start = 0, chunk = 0; start < tokens.length; start += context.batch, chunk++) {
    if (beside > 0) await decodeInto(context, 1, chunk * beside, new Int32Array(beside).fill(1 + chunk))
    part = tokens.slice(start, start + context.batch)
    await decodeInto(context, 0, start, part)
  }
  return logSoftmax(context.logits(part.length - 1))
}
