/** Computes pooled vectors of whole texts in a small context of their own, for embeddings and scores. Arranges the texts in batches. */
import { KvfoldError, PromptTooLong } from '../core/errors.js'
import { isCausal } from '../native/context-options.js'
import { leastTokens } from './model-facts.js'
import type { Batch, ContextOptions, NativeContext, NativeModel, Pooling } from '../native/types.js'

export interface PooledTextsOptions extends Pick<ContextOptions, 'threads' | 'batchThreads'> {
  /**
   * Default: off. With it, rounding differs from batch to batch, so a text's vector depends on the texts beside it. The numbers differ by
   * up to 3e-4 (built-in model); without it by 5e-6.
   */
  readonly flashAttention?: 'auto' | 'on' | 'off'
  /** The most tokens of a text. Default: the trained context, at most 2048. */
  readonly tokens?: number
  /** Tokens computed at once. Default: 512. In models that are not causal it is always the longest text. */
  readonly ubatch?: number
}

const DEFAULT_TOKENS = 2048
const DEFAULT_UBATCH = 512
/** The most texts in one batch. */
const SEQUENCES = 32
/**
 * For models that are not causal: the most tokens of several texts that are computed together. With more tokens the batch takes longer,
 * because attention passes over the other texts, too.
 */
const TOGETHER = 128

/** Computes the pooled vectors of texts. Calls may overlap; they are computed one after another. */
export class PooledTexts {
  #line: Promise<unknown> = Promise.resolve()
  #disposed = false

  private constructor(
    readonly model: NativeModel,
    private readonly context: NativeContext,
    readonly pooling: Pooling,
    /** The most tokens of a text. */
    readonly tokens: number,
    private readonly ownsModel: boolean,
  ) {}

  /** @param ownsModel whether the model is disposed together with this @throws as NativeModel.createContext */
  static async on(
    model: NativeModel,
    pooling: Pooling,
    { tokens: asked = DEFAULT_TOKENS, ubatch: most = DEFAULT_UBATCH, ...rest }: PooledTextsOptions,
    ownsModel: boolean,
  ): Promise<PooledTexts> {
    const { trainedContext } = model.info
    const tokens = trainedContext > 0 ? Math.min(asked, trainedContext) : asked
    const least = isCausal(model.info) ? Math.min(most, tokens) : tokens
    const sequences = Math.min(SEQUENCES, least)
    const ubatch = Math.ceil(least / sequences) * sequences
    const context = await model.createContext({
      flashAttention: 'off',
      ...rest,
      embeddings: pooling,
      cells: tokens,
      sequences,
      ubatch,
      batch: ubatch,
    })
    return new PooledTexts(model, context, pooling, tokens, ownsModel)
  }

  /**
   * Refuses hopelessly long texts before they are tokenized.
   * @throws KvfoldError context/full for a text of more characters than the longest tokens could spell
   */
  refuseHopeless(texts: readonly (string | ArrayLike<number>)[]): void {
    for (const [index, text] of texts.entries()) {
      const least = typeof text === 'string' ? leastTokens(this.model.info, text.length) : 0
      if (least > this.tokens) throw this.#tooLong(index, least, true)
    }
  }

  /** Cuts a text that is certainly too long, so that its end is not tokenized in vain. */
  withoutHopelessEnd<T extends string | ArrayLike<number>>(text: T): T | string {
    const { info } = this.model
    return typeof text === 'string' && leastTokens(info, text.length) > this.tokens
      ? text.slice(0, this.tokens * info.longestToken)
      : text
  }

  /** Cuts tokens that are too many. If they end with EOS or SEP, the result does, too. */
  truncated(text: Int32Array): Int32Array {
    if (text.length <= this.tokens) return text
    const { eos, sep } = this.model.special
    const last = text.at(-1)!
    return last === eos || last === sep
      ? Int32Array.of(...text.subarray(0, this.tokens - 1), last)
      : text.subarray(0, this.tokens)
  }

  /**
   * Returns the pooled vector of each text, in order. It does not depend on the other texts.
   * @throws KvfoldError context/full for a text that is too long, engine/bad-request for an empty one or foreign tokens, each naming the
   * text; engine/cancelled, engine/disposed
   */
  async pooled(texts: readonly Int32Array[], signal?: AbortSignal): Promise<Float32Array[]> {
    for (const [index, text] of texts.entries()) this.#check(text, index)
    const work = this.#line.then(() => this.#compute(texts, signal))
    this.#line = work.catch(() => undefined)
    return work
  }

  /** Cancels running calls, and frees the context; also frees the model if `ownsModel`. Further calls do nothing. */
  async dispose(): Promise<void> {
    if (this.#disposed) return
    this.#disposed = true
    this.context.abort()
    await this.#line
    await (this.ownsModel ? this.model.dispose() : this.context.dispose())
  }

  #check(text: Int32Array, index: number): void {
    const { vocabulary } = this.model.info
    const foreign = text.findIndex((token) => token < 0 || token >= vocabulary)
    if (foreign >= 0)
      throw bad(`Token ${text[foreign]} at place ${foreign} of text ${index} is not in the vocabulary of ${vocabulary}.`)
    if (text.length === 0) throw bad(`Text ${index} is empty; give at least one token.`)
    if (text.length > this.tokens) throw this.#tooLong(index, text.length, false)
  }

  #tooLong(index: number, tokens: number, atLeast: boolean): PromptTooLong {
    return new PromptTooLong(
      { tokens, atLeast, context: this.tokens },
      `Text ${index} has ${atLeast ? 'at least ' : ''}${tokens} tokens, but only ${this.tokens} fit; shorten it or send its parts.`,
    )
  }

  async #compute(lists: readonly Int32Array[], signal: AbortSignal | undefined): Promise<Float32Array[]> {
    const { context, pooling } = this
    // In a model that is not causal, a text must be in one batch. So a group of texts must fit into a batch, or be a single text.
    const tokens = isCausal(this.model.info) ? context.cells : Math.min(TOGETHER, context.batch)
    const limits = { tokens, sequences: context.sequences, batch: context.batch }
    const stop = () => {
      context.abort()
    }
    signal?.addEventListener('abort', stop)
    try {
      const vectors: Float32Array[] = []
      for (const group of slicesOf(lists, limits)) {
        const pools = new Map<number, PooledVector>()
        this.#refuseEnded(signal)
        context.clear()
        for (const slice of group) {
          await this.#decode(slice, signal)
          for (const { text, sequence, count } of slice.parts) {
            const pool = pools.get(text) ?? new PooledVector(pooling)
            pools.set(text, pool)
            pool.add(context.embedding(sequence), count)
          }
        }
        for (const pool of pools.values()) vectors.push(pool.vector)
      }
      return vectors
    } finally {
      signal?.removeEventListener('abort', stop)
    }
  }

  async #decode({ batch }: Slice, signal: AbortSignal | undefined): Promise<void> {
    this.#refuseEnded(signal)
    const status = await this.context.decode(batch)
    if (status === 'done') return
    this.#refuseEnded(signal)
    throw new KvfoldError('native/failed', `llama.cpp did not decode a batch of ${batch.tokens.length} tokens (${status}).`)
  }

  #refuseEnded(signal: AbortSignal | undefined): void {
    if (this.#disposed) throw new KvfoldError('engine/disposed', 'This embedder or reranker was disposed; create a new one.')
    if (signal?.aborted === true) throw new KvfoldError('engine/cancelled', 'The request for embeddings or scores was cancelled.')
  }
}

const bad = (sentence: string): KvfoldError => new KvfoldError('engine/bad-request', sentence)

// The layout of texts: groups that fit into the cache are cut into batches, and the vectors of a text's parts are joined again.

interface SliceLimits {
  /** The most tokens of a group of several texts; a single text may have more. */
  readonly tokens: number
  /** The most texts of a group. */
  readonly sequences: number
  /** The most tokens of a slice. */
  readonly batch: number
}

/** The tokens of one decode. */
interface Slice {
  readonly batch: Batch
  /** The texts with tokens in the slice, in order: index of the text, its sequence, and the number of its tokens in the slice. */
  readonly parts: readonly { readonly text: number; readonly sequence: number; readonly count: number }[]
}

/** Yields groups of texts, in order. Each group is computed on an empty cache. */
function* slicesOf(texts: readonly Int32Array[], limits: SliceLimits): Generator<readonly Slice[]> {
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

/** Puts the texts [start, end) one after another, and starts a new slice wherever a batch is full. */
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

/** Joins the vectors of a text's slices. llama.cpp pools each slice separately. */
class PooledVector {
  #sum: Float64Array | null = null
  #count = 0

  constructor(private readonly pooling: Pooling) {}

  /** Adds the next slice's vector, pooled over `count` tokens. */
  add(vector: Float32Array, count: number): void {
    if (this.pooling === 'mean') {
      this.#sum ??= new Float64Array(vector.length)
      for (const [index, value] of vector.entries()) this.#sum[index]! += value * count
      this.#count += count
    } else if (this.pooling === 'last' || this.pooling === 'rank' || this.#sum === null) {
      this.#sum = Float64Array.from(vector)
      this.#count = 1
    }
  }

  get vector(): Float32Array {
    return Float32Array.from(this.#sum ?? [], (value) => value / this.#count)
  }
}
