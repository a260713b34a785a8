/** Owns vectors of texts that are longer than an embedder takes: those of their parts, put together. */
import { invariant } from '../../core/errors.js'
import { halvesOf } from './sentences.js'

export interface PartEmbedder {
  /** Tokens of a text, those included that are added at its ends. */
  readonly length: (text: string) => number
  /** Tokens that a text may have. */
  readonly most: number
  /** One vector for each, of length 1. */
  readonly embed: (parts: readonly string[]) => Promise<readonly Float32Array[]>
}

/**
 * One vector for each text, of length 1. A text that is too long is cut in halves until its parts are not; its vector is the mean of theirs,
 * each counted by its tokens.
 * @throws what `embed` throws
 */
export async function embedWhole(
  texts: readonly string[],
  { length, most, embed }: PartEmbedder,
): Promise<readonly Float32Array[]> {
  const parts = texts.flatMap((text, index) => partsOf(text, length, most).map((part) => ({ ...part, index })))
  const vectors = await embed(parts.map(({ text }) => text))
  invariant(vectors.length === parts.length, `${vectors.length} vectors came of ${parts.length} texts.`)
  return texts.map((_, index) => {
    const own = parts.flatMap((part, at) => (part.index === index ? [{ weight: part.tokens, vector: vectors[at]! }] : []))
    return own.length === 1 ? own[0]!.vector : meanOf(own)
  })
}

function partsOf(text: string, length: PartEmbedder['length'], most: number): { text: string; tokens: number }[] {
  const tokens = length(text)
  const halves = tokens > most ? halvesOf(text) : null
  return halves === null ? [{ text, tokens }] : halves.flatMap((half) => partsOf(half, length, most))
}

function meanOf(parts: readonly { readonly weight: number; readonly vector: Float32Array }[]): Float32Array {
  const sums = new Float64Array(parts[0]!.vector.length)
  for (const { weight, vector } of parts) vector.forEach((value, place) => (sums[place]! += weight * value))
  const size = Math.sqrt(sums.reduce((sum, value) => sum + value * value, 0))
  return Float32Array.from(sums, (value) => (size === 0 ? 0 : value / size))
}
