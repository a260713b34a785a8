/** Embeddings: turns each text into one vector of length 1. */
import { KvfoldError } from '../core/errors.js'
import { poolingOf } from '../native/context-options.js'
import type { ModelOptions, Native, NativeModel, Pooling } from '../native/types.js'
import { PooledTexts, type PooledTextsOptions } from './pooled-texts.js'

/** Poolings that give one embedding per text. Of the other two, `rank` gives a score, and `none` one vector per token. */
export type TextPooling = Extract<Pooling, 'mean' | 'cls' | 'last'>

export interface EmbedderOptions extends PooledTextsOptions {
  /**
   * Default: the pooling that the model was trained with, else `mean`, because in a generating model no single token represents the text.
   */
  readonly pooling?: TextPooling
}

export interface EmbedOptions {
  /** Keeps only this many numbers from the start of each vector, and scales it to length 1. For models trained for that. Default: all. */
  readonly dimensions?: number
  /** Whether a text that is too long is cut at its end. Default false: it is refused. */
  readonly truncate?: boolean
  readonly signal?: AbortSignal
}

export interface Embeddings {
  /** One vector of length 1 for each text. */
  readonly vectors: readonly Float32Array[]
  /** Number of tokens of all texts, including those that the vocabulary adds. */
  readonly tokens: number
}

/** Makes vectors of texts, with a GGUF model (`Embedder`) or an ONNX model (`OnnxEmbedder`). */
export interface TextVectors {
  /** The model's own name. */
  readonly title: string
  /** The most tokens of a text. */
  readonly tokens: number
  /** The model, for its vocabulary. Absent if `embed` takes only strings. */
  readonly model?: NativeModel
  embed(texts: readonly (string | ArrayLike<number>)[], options?: EmbedOptions): Promise<Embeddings>
  dispose(): Promise<void>
}

/** Makes vectors of texts with a GGUF model. Calls may overlap; they are computed one after another. */
export class Embedder implements TextVectors {
  private constructor(
    private readonly texts: PooledTexts,
    readonly pooling: TextPooling,
  ) {}

  get model(): NativeModel {
    return this.texts.model
  }

  get title(): string {
    return titleOf(this.model)
  }

  /** The most tokens of a text. */
  get tokens(): number {
    return this.texts.tokens
  }

  /**
   * Makes an embedder on a model that the caller owns. Its context is disposed with the embedder or the model, whichever comes first.
   * @throws as NativeModel.createContext; model/unsupported for rerankers
   */
  static async on(model: NativeModel, options: EmbedderOptions = {}): Promise<Embedder> {
    return Embedder.#make(model, options, false)
  }

  /**
   * Loads a model only for embeddings. The model is disposed with the embedder, or at once if the embedder cannot be made.
   * @throws as Native.loadModel and Embedder.on
   */
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

  static async #make(
    model: NativeModel,
    { pooling = ownPooling(model), ...options }: EmbedderOptions,
    ownsModel: boolean,
  ): Promise<Embedder> {
    return new Embedder(await PooledTexts.on(model, pooling, options, ownsModel), pooling)
  }

  /**
   * Returns the texts' vectors in order. A text's vector does not depend on the other texts. Strings are tokenized with the special tokens
   * that the vocabulary adds at their ends; control tokens in them are plain text. Lists of tokens are used as they are.
   * @throws KvfoldError as PooledTexts.pooled; engine/bad-request for more dimensions than the vectors have
   */
  async embed(
    given: readonly (string | ArrayLike<number>)[],
    { dimensions, truncate = false, signal }: EmbedOptions = {},
  ): Promise<Embeddings> {
    const texts = truncate ? given.map((text) => this.texts.withoutHopelessEnd(text)) : given
    const strings = texts.filter((text) => typeof text === 'string')
    this.texts.refuseHopeless(texts)
    const tokenized = (await this.model.tokenizeAll(strings, { addSpecial: true })).values()
    const whole = texts.map((text) => (typeof text === 'string' ? tokenized.next().value! : Int32Array.from(text)))
    const lists = truncate ? whole.map((list) => this.texts.truncated(list)) : whole
    const vectors = await this.texts.pooled(lists, signal)
    return {
      vectors: vectors.map((vector, index) => cut(vector, dimensions, index)),
      tokens: lists.reduce((sum, { length }) => sum + length, 0),
    }
  }

  /** Cancels running calls, and frees the context; also frees the model if `load` made the embedder. Further calls do nothing. */
  dispose(): Promise<void> {
    return this.texts.dispose()
  }
}

function ownPooling({ info }: NativeModel): TextPooling {
  const pooling = poolingOf(info)
  if (pooling === 'rank')
    throw new KvfoldError('model/unsupported', `${info.path} is a reranker: it scores texts and makes no embeddings.`)
  return pooling === null || pooling === 'none' ? 'mean' : pooling
}

/** Returns the model's name from its file, else llama.cpp's description. */
export const titleOf = ({ info }: NativeModel): string => info.metadata['general.name'] ?? info.description

/** Returns the first numbers of a vector, scaled to length 1. @throws KvfoldError engine/bad-request, native/failed */
export function cut(vector: Float32Array, dimensions = vector.length, index = 0): Float32Array {
  if (!Number.isSafeInteger(dimensions) || dimensions < 1 || dimensions > vector.length)
    throw new KvfoldError('engine/bad-request', `dimensions is ${dimensions}; vectors of this model have 1 to ${vector.length}.`)
  return normal(vector.subarray(0, dimensions), index)
}

/**
 * Returns the vector scaled to length 1. `index` is the text's, for the error. Sums in double precision, because squares may overflow
 * floats.
 */
function normal(vector: Float32Array, index: number): Float32Array {
  const length = Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0))
  if (!Number.isFinite(length) || length === 0)
    throw new KvfoldError('native/failed', `The model's vector of text ${index} has the length ${length}; it cannot be used.`)
  return vector.map((value) => value / length)
}
