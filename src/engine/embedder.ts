/** Owns embeddings: texts in, one vector of length 1 for each, from a small context of its own. */
import { KvfoldError, PromptTooLong } from '../core/errors.js'
import { poolingOf, isCausal } from '../native/text-encoders.js'
import type { Batch, ContextOptions, ModelOptions, Native, NativeContext, NativeModel, Pooling } from '../native/types.js'

/** `rank` is no embedding, and `none` none of a text. */
export type TextPooling = Extract<Pooling, 'mean' | 'cls' | 'last'>

export interface EmbedderOptions extends Pick<ContextOptions, 'threads' | 'batchThreads'> {
  /**
   * Default: off. It rounds differently with every batch: a text's vector then depends on those beside it, by up to 3e-4 a number (built-in
   * model; 5e-6 without).
   */
  readonly flashAttention?: 'auto' | 'on' | 'off'
  /** Default: what the model was trained with, else `mean`: a model that generates text has no token that stands for all of it. */
  readonly pooling?: TextPooling
  /** The longest text, in tokens. Default: the trained context, at most 2048. */
  readonly tokens?: number
  /** Tokens computed at once. Default: 512, and all of a text where a token sees those after it. */
  readonly ubatch?: number
}

export interface EmbedOptions {
  /** The first so many numbers of each vector, made length 1 again; for models that were trained for it. Default: all. */
  readonly dimensions?: number
  readonly signal?: AbortSignal
}

export interface Embeddings {
  /** One for each text, of length 1. */
  readonly vectors: readonly Float32Array[]
  /** Of all texts, those that the model's vocabulary adds included. */
  readonly tokens: number
}

const DEFAULT_TOKENS = 2048
const DEFAULT_UBATCH = 512
/** Texts in one batch. */
const SEQUENCES = 32
/** Tokens of short texts computed together where every token sees all: what one text pays for the others' tokens grows with their number. */
const TOGETHER = 128

/** Calls may overlap: they are computed one after the other. */
export class Embedder {
  #line: Promise<unknown> = Promise.resolve()
  #disposed = false

  private constructor(
    readonly model: NativeModel,
    private readonly context: NativeContext,
    readonly pooling: TextPooling,
    /** The longest text, in tokens. */
    readonly tokens: number,
    private readonly ownsModel: boolean,
  ) {}

  /** A context on a model that stays its owner's; it ends with the model. @throws as NativeModel.createContext; model/unsupported for rerankers */
  static async on(model: NativeModel, options: EmbedderOptions = {}): Promise<Embedder> {
    return Embedder.#make(model, options, false)
  }

  /** Loads a model for embeddings alone. @throws as Native.loadModel and Embedder.on; what was taken is given back */
  static async load(
    native: Native,
    path: string,
    { model: modelOptions, ...options }: EmbedderOptions & { readonly model?: ModelOptions } = {},
  ): Promise<Embedder> {
    const model = await native.loadModel(path, modelOptions)
    try {
      return await Embedder.#make(model, options, true)
    } catch (error) {
      await model.dispose()
      throw error
    }
  }

  static async #make(model: NativeModel, options: EmbedderOptions, ownsModel: boolean): Promise<Embedder> {
    const { trainedContext } = model.info
    const { tokens: asked = DEFAULT_TOKENS, ...rest } = options
    const tokens = trainedContext > 0 ? Math.min(asked, trainedContext) : asked
    const pooling = options.pooling ?? ownPooling(model)
    const least = isCausal(model.info) ? Math.min(options.ubatch ?? DEFAULT_UBATCH, tokens) : tokens
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
    return new Embedder(model, context, pooling, tokens, ownsModel)
  }

  /**
   * The texts' vectors in their order; a text's vector does not depend on the others. A string is tokenized with what the vocabulary adds at
   * its ends, and control tokens in it are text; tokens are taken as they are.
   * @throws KvfoldError context/full for a text that is too long, engine/bad-request for an empty one, foreign tokens or more dimensions than
   * there are, each naming the text; engine/cancelled, engine/disposed
   */
  async embed(texts: readonly (string | ArrayLike<number>)[], { dimensions, signal }: EmbedOptions = {}): Promise<Embeddings> {
    const lists = texts.map((text, index) => this.#tokensOf(text, index))
    const work = this.#line.then(() => this.#compute(lists, signal))
    this.#line = work.catch(() => undefined)
    const vectors = await work
    return {
      vectors: vectors.map((vector, index) => normal(cut(vector, dimensions), index)),
      tokens: lists.reduce((sum, { length }) => sum + length, 0),
    }
  }

  /** Gives the context back, and the model if it is its own; what runs is cancelled. Idempotent. */
  async dispose(): Promise<void> {
    if (this.#disposed) return
    this.#disposed = true
    this.context.abort()
    await this.#line
    await (this.ownsModel ? this.model.dispose() : this.context.dispose())
  }

  #tokensOf(text: string | ArrayLike<number>, index: number): Int32Array {
    const tokens = typeof text === 'string' ? this.model.tokenize(text, { addSpecial: true }) : Int32Array.from(text)
    const { vocabulary } = this.model.info
    const foreign = tokens.findIndex((token) => token < 0 || token >= vocabulary)
    if (foreign >= 0)
      throw bad(`Token ${tokens[foreign]} at place ${foreign} of text ${index} is not in the vocabulary of ${vocabulary}.`)
    if (tokens.length === 0) throw bad(`Text ${index} is empty; there is nothing to embed.`)
    if (tokens.length > this.tokens)
      throw new PromptTooLong(
        { tokens: tokens.length, atLeast: false, context: this.tokens },
        `Text ${index} has ${tokens.length} tokens, and ${this.tokens} fit an embedding; shorten it or embed its parts.`,
      )
    return tokens
  }

  async #compute(lists: readonly Int32Array[], signal: AbortSignal | undefined): Promise<Float32Array[]> {
    const { context, pooling } = this
    // Where a token sees those after it, a group is one batch; a text of any length is a group of its own.
    const tokens = isCausal(this.model.info) ? context.cells : Math.min(TOGETHER, context.batch)
    const limits = { tokens, sequences: context.sequences, batch: context.batch }
    const stop = () => {
      context.abort()
    }
    signal?.addEventListener('abort', stop)
    try {
      const vectors: Float32Array[] = []
      for (const group of slicesOf(lists, limits)) {
        const pools = new Map<number, Pool>()
        this.#refuseEnded(signal)
        context.clear()
        for (const slice of group) {
          await this.#decode(slice, signal)
          for (const { text, sequence, count } of slice.parts) {
            const pool = pools.get(text) ?? new Pool(pooling)
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
    throw new KvfoldError('native/failed', `llama.cpp did not embed a batch of ${batch.tokens.length} tokens (${status}).`)
  }

  #refuseEnded(signal: AbortSignal | undefined): void {
    if (this.#disposed) throw new KvfoldError('engine/disposed', 'The embedder was disposed; make another.')
    if (signal?.aborted === true) throw new KvfoldError('engine/cancelled', 'The embedding was cancelled.')
  }
}

function ownPooling({ info }: NativeModel): TextPooling {
  const pooling = poolingOf(info)
  if (pooling === 'rank')
    throw new KvfoldError('model/unsupported', `${info.path} is a reranker: it scores texts and makes no embeddings of them.`)
  return pooling === null || pooling === 'none' ? 'mean' : pooling
}

function cut(vector: Float32Array, dimensions = vector.length): Float32Array {
  if (!Number.isSafeInteger(dimensions) || dimensions < 1 || dimensions > vector.length)
    throw bad(`dimensions is ${dimensions}; vectors of this model have 1 to ${vector.length}.`)
  return vector.subarray(0, dimensions)
}

/** In double precision: squares of large numbers leave the range of single. */
function normal(vector: Float32Array, index: number): Float32Array {
  const length = Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0))
  if (!Number.isFinite(length) || length === 0)
    throw new KvfoldError('native/failed', `The model's vector of text ${index} has the length ${length}; it cannot be used.`)
  return vector.map((value) => value / length)
}

const bad = (sentence: string): KvfoldError => new KvfoldError('engine/bad-request', sentence)

// How texts are laid out for embedding: groups that fit the cache, cut into batches, and the parts' vectors put together again.

export interface SliceLimits {
  /** Of a group of several texts; one text alone may have more. */
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

/** Groups to be computed one after the other on an empty cache; each text is in one of them, in order. */
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
