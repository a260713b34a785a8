/** Owns how texts are laid out for embedding: groups that fit the cache, cut into batches, and the parts' vectors put together again. */
import type { Batch, Pooling } from '../native/types.js'

export interface SliceLimits {
  /** Of a group. */
  readonly tokens: number
  /** Texts of a group. */
  readonly sequences: number
  /** Tokens of a slice. */
  readonly batch: number
}

/** What one decode computes. */
export interface Slice {
  readonly batch: Batch
  /** The texts that have tokens in it, in order: index of the text, its sequence, and how many of its tokens. */
  readonly parts: readonly { readonly text: number; readonly sequence: number; readonly count: number }[]
}

/** Groups to be computed one after the other on an empty cache; each text is in one of them, in order. No text is longer than a group. */
export function* slicesOf(texts: readonly Int32Array[], limits: SliceLimits): Generator<readonly Slice[]> {
  for (let start = 0; start < texts.length;) {
    let end = start
    let tokens = 0
    while (end < texts.length && end - start < limits.sequences) {
      const more = texts[end]!.length
      if (end > start && tokens + more > limits.tokens) break
      tokens += more
      end++
    }
    yield group(texts, start, end, limits.batch)
    start = end
  }
}

/** The texts [start, end) behind each other, cut wherever a batch is full. */
function group(texts: readonly Int32Array[], start: number, end: number, most: number): Slice[] {
  const entries = texts
    .slice(start, end)
    .flatMap((tokens, sequence) => Array.from(tokens, (token, position) => ({ token, position, sequence })))
  return Array.from({ length: Math.ceil(entries.length / most) }, (_, index) => {
    const part = entries.slice(index * most, (index + 1) * most)
    const counts = new Map<number, number>()
    for (const { sequence } of part) counts.set(sequence, (counts.get(sequence) ?? 0) + 1)
    return {
      batch: {
        tokens: Int32Array.from(part, ({ token }) => token),
        positions: Int32Array.from(part, ({ position }) => position),
        sequences: Int32Array.from(part, ({ sequence }) => sequence),
        outputs: new Uint8Array(part.length).fill(1),
      },
      parts: [...counts].map(([sequence, count]) => ({ text: start + sequence, sequence, count })),
    }
  })
}

/** The vector of a text out of those of its slices, which llama.cpp pools each for itself. */
export class Pool {
  #sum: Float64Array | null = null
  #count = 0

  constructor(private readonly pooling: Pooling) {}

  /** The next slice's vector, over `count` tokens. */
  add(vector: Float32Array, count: number): void {
    if (this.pooling === 'mean') {
      this.#sum ??= new Float64Array(vector.length)
      for (const [index, value] of vector.entries()) this.#sum[index]! += value * count
      this.#count += count
    } else if (this.pooling === 'last' || this.#sum === null) {
      this.#sum = Float64Array.from(vector)
      this.#count = 1
    }
  }

  get vector(): Float32Array {
    return Float32Array.from(this.#sum ?? [], (value) => value / this.#count)
  }
}
