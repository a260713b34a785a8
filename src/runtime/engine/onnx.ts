/** Vectors and scores by ONNX models, each model on a thread of its own. */
import type { Piscina } from 'piscina'
import { KvfoldError, PromptTooLong } from '../core/errors.js'
import { type Delivery, openThreads, received } from '../core/threads.js'
import { cut, type Embeddings, type EmbedOptions, type TextVectors } from './embedder.js'
import { BATCH } from './onnx-model.js'
import type { OnnxOrder } from './onnx-thread.js'
import type { Ranking, TextScores } from './reranker.js'

type Threads = Piscina<OnnxOrder, Delivery>

const done = async (threads: Threads, order: OnnxOrder): Promise<unknown> => received(await threads.run(order))

/** Starts a thread and opens the model there. Returns the thread, the model's name and the most tokens of a text. @throws as openVectors */
async function opened(use: 'vectors' | 'scores', model: string, tokens?: number): Promise<[Threads, string, number]> {
  const file = import.meta.url.replace(/onnx(?=\.[jt]s$)/, 'onnx-thread')
  const threads: Threads = await openThreads(file, { minThreads: 1, maxThreads: 1 })
  try {
    const order: OnnxOrder = { kind: 'open', use, model, tokens }
    const { name, most } = (await done(threads, order)) as { readonly name: string; readonly most: number }
    return [threads, name, most]
  } catch (error) {
    await threads.destroy()
    throw error
  }
}

/** A model that is open on its own thread. Calls may overlap; they are computed one after another. */
class OnnxModel {
  #disposed = false
  /** The orders that the thread has not finished yet. */
  readonly #orders = new Set<Promise<unknown>>()

  /** @internal */
  protected constructor(
    private readonly threads: Threads,
    readonly title: string,
    /** The most tokens of a text; for rankings, of query and document together. */
    readonly tokens: number,
  ) {}

  /** Ends the thread after its current batch, and frees the model. Running calls fail. Further calls do nothing. */
  async dispose(): Promise<void> {
    if (this.#disposed) return
    this.#disposed = true
    await Promise.allSettled(this.#orders)
    await this.threads.destroy()
  }

  /**
   * Sends an order to the thread, and returns its result.
   * @throws KvfoldError engine/disposed, engine/cancelled; native/failed
   * @internal
   */
  protected async ask(order: OnnxOrder, signal: AbortSignal | undefined): Promise<unknown> {
    if (this.#disposed) throw disposed()
    if (signal?.aborted === true) throw new KvfoldError('engine/cancelled', 'The request for embeddings or scores was cancelled.')
    const running = done(this.threads, order)
    this.#orders.add(running)
    try {
      const value = await running
      // `dispose` may have set it during the await, which the compiler does not see.
      if (this.#disposed as boolean) throw disposed()
      return value
    } finally {
      this.#orders.delete(running)
    }
  }

  /**
   * Returns the number of tokens of all texts, each counted with the query if there is one.
   * @param truncate whether texts that are too long count only up to the limit @throws PromptTooLong for the first text that is too long
   * @internal
   */
  protected async count(
    texts: readonly string[],
    query: string | undefined,
    signal: AbortSignal | undefined,
    truncate = false,
  ): Promise<number> {
    const whole = (await this.ask({ kind: 'lengths', texts, query }, signal)) as readonly number[]
    const lengths = truncate ? whole.map((length) => Math.min(length, this.tokens)) : whole
    for (const [index, length] of lengths.entries())
      if (length > this.tokens)
        throw new PromptTooLong(
          { tokens: length, atLeast: false, context: this.tokens },
          `Text ${index} has ${length} tokens, but only ${this.tokens} fit; shorten it or send its parts.`,
        )
    return lengths.reduce((sum, length) => sum + length, 0)
  }
}

const disposed = (): KvfoldError => new KvfoldError('engine/disposed', 'This ONNX model was disposed; open it again.')

/** Cuts the texts into batches. A request can be cancelled between two batches. */
function batches(texts: readonly string[]): readonly (readonly string[])[] {
  return Array.from({ length: Math.ceil(texts.length / BATCH) }, (_, at) => texts.slice(at * BATCH, (at + 1) * BATCH))
}

/** Makes vectors of texts with an ONNX model. Calls may overlap; they are computed one after another. */
export class OnnxEmbedder extends OnnxModel implements TextVectors {
  /**
   * Opens a model on a thread of its own: a folder with config.json, tokenizer.json and onnx/model.onnx, or a name on the hub.
   * @param tokens the longest text; the model's own limit also applies
   * @throws KvfoldError model/unsupported when Transformers.js is not installed; model/not-found when the model cannot be loaded
   */
  static async load(model: string, tokens?: number): Promise<OnnxEmbedder> {
    return new OnnxEmbedder(...(await opened('vectors', model, tokens)))
  }

  /** @throws KvfoldError context/full for a text that is too long; engine/bad-request for token ids; engine/cancelled, engine/disposed */
  async embed(
    texts: readonly (string | ArrayLike<number>)[],
    { dimensions, truncate = false, signal }: EmbedOptions = {},
  ): Promise<Embeddings> {
    const plain = texts.map((text, index) => {
      if (typeof text === 'string') return text
      throw new KvfoldError('engine/bad-request', `Text ${index} is a list of token ids; an ONNX model takes texts only.`)
    })
    const tokens = await this.count(plain, undefined, signal, truncate)
    const vectors: Float32Array[] = []
    for (const some of batches(plain))
      vectors.push(...((await this.ask({ kind: 'vectors', texts: some }, signal)) as readonly Float32Array[]))
    return { vectors: vectors.map((vector, index) => cut(vector, dimensions, index)), tokens }
  }
}

/** Scores documents with an ONNX model that reads query and document as a pair. Calls may overlap; they are computed one after another. */
export class OnnxReranker extends OnnxModel implements TextScores {
  /** @throws as OnnxEmbedder.load */
  static async load(model: string): Promise<OnnxReranker> {
    return new OnnxReranker(...(await opened('scores', model)))
  }

  /** @throws KvfoldError context/full for a document that is too long with the query; engine/cancelled, engine/disposed */
  async rank(query: string, documents: readonly string[], signal?: AbortSignal): Promise<Ranking> {
    const tokens = await this.count(documents, query, signal)
    const scores: number[] = []
    for (const some of batches(documents))
      scores.push(...((await this.ask({ kind: 'scores', query, documents: some }, signal)) as readonly number[]))
    return { scores, tokens }
  }
}
