/** Owns embeddings: texts in, one vector of length 1 for each. */
import { KvfoldError } from '../core/errors.js'
import { poolingOf } from '../native/context-options.js'
import type { ModelOptions, Native, NativeModel, Pooling } from '../native/types.js'
import { PooledTexts, type PooledTextsOptions } from './pooled-texts.js'

/** `rank` is no embedding, and `none` none of a text. */
export type TextPooling = Extract<Pooling, 'mean' | 'cls' | 'last'>

export interface EmbedderOptions extends PooledTextsOptions {
  /** Default: what the model was trained with, else `mean`: a model that generates text has no token that stands for all of it. */
  readonly pooling?: TextPooling
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

/** Calls may overlap: they are computed one after the other. */
export class Embedder {
  private constructor(
    private readonly texts: PooledTexts,
    readonly pooling: TextPooling,
  ) {}

  get model(): NativeModel {
    return this.texts.model
  }

  /** The longest text, in tokens. */
  get tokens(): number {
    return this.texts.tokens
  }

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

  static async #make(
    model: NativeModel,
    { pooling = ownPooling(model), ...options }: EmbedderOptions,
    ownsModel: boolean,
  ): Promise<Embedder> {
    return new Embedder(await PooledTexts.on(model, pooling, options, ownsModel), pooling)
  }

  /**
   * The texts' vectors in their order; a text's vector does not depend on the others. A string is tokenized with what the vocabulary adds at
   * its ends, and control tokens in it are text; tokens are taken as they are.
   * @throws KvfoldError as PooledTexts.pooled; engine/bad-request for more dimensions than there are
   */
  async embed(texts: readonly (string | ArrayLike<number>)[], { dimensions, signal }: EmbedOptions = {}): Promise<Embeddings> {
    const strings = texts.filter((text) => typeof text === 'string')
    this.texts.refuseHopeless(texts)
    const tokenized = (await this.model.tokenizeAll(strings, { addSpecial: true })).values()
    const lists = texts.map((text) => (typeof text === 'string' ? tokenized.next().value! : Int32Array.from(text)))
    const vectors = await this.texts.pooled(lists, signal)
    return {
      vectors: vectors.map((vector, index) => normal(cut(vector, dimensions), index)),
      tokens: lists.reduce((sum, { length }) => sum + length, 0),
    }
  }

  /** Gives the context back, and the model if it is its own; what runs is cancelled. Idempotent. */
  dispose(): Promise<void> {
    return this.texts.dispose()
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
    throw new KvfoldError('engine/bad-request', `dimensions is ${dimensions}; vectors of this model have 1 to ${vector.length}.`)
  return vector.subarray(0, dimensions)
}

/** In double precision: squares of large numbers leave the range of single. */
function normal(vector: Float32Array, index: number): Float32Array {
  const length = Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0))
  if (!Number.isFinite(length) || length === 0)
    throw new KvfoldError('native/failed', `The model's vector of text ${index} has the length ${length}; it cannot be used.`)
  return vector.map((value) => value / length)
}
