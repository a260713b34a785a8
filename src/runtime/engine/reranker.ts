/** Owns reranking: how well documents answer a query, by a model that reads each of them together with it. */
import { Encoder } from '../chat/tokens/encoder.js'
import { Tracked } from '../chat/tracked.js'
import { KvfoldError } from '../core/errors.js'
import type { ModelOptions, Native, NativeModel } from '../native/types.js'
import { PooledTexts, type PooledTextsOptions } from './pooled-texts.js'

export interface Ranking {
  /** One for each document, in their order; a higher one answers better. As the model's head gives them: of no fixed range. */
  readonly scores: readonly number[]
  /** Of all documents, each with the query. */
  readonly tokens: number
}

/** Where a file says how query and document are shown; llama.cpp's converter writes it for rerankers that generate text. */
const TEMPLATE = 'tokenizer.chat_template.rerank'
const PLACES = /(\{query\}|\{document\})/

/** Calls may overlap: they are computed one after the other. */
export class Reranker {
  readonly #encoder: Encoder

  private constructor(private readonly texts: PooledTexts) {
    this.#encoder = new Encoder(texts.model)
  }

  get model(): NativeModel {
    return this.texts.model
  }

  /** The longest query and document, in tokens, what the model puts around them included. */
  get tokens(): number {
    return this.texts.tokens
  }

  /** A context on a model that stays its owner's; it ends with the model. @throws as NativeModel.createContext; model/unsupported for other models */
  static async on(model: NativeModel, options: PooledTextsOptions = {}): Promise<Reranker> {
    return new Reranker(await PooledTexts.on(model, 'rank', options, false))
  }

  /** @throws as Native.loadModel and Reranker.on; what was taken is given back */
  static async load(
    native: Native,
    path: string,
    { model: modelOptions, ...options }: PooledTextsOptions & { readonly model?: ModelOptions } = {},
  ): Promise<Reranker> {
    const model = await native.loadModel(path, modelOptions)
    try {
      return new Reranker(await PooledTexts.on(model, 'rank', options, true))
    } catch (error) {
      await model.dispose()
      throw error
    }
  }

  /**
   * A document's score does not depend on the others, and control tokens in query and documents are text. A model with several labels scores by its first.
   * @throws KvfoldError as PooledTexts.pooled, a text being a document with the query
   */
  async rank(query: string, documents: readonly string[], signal?: AbortSignal): Promise<Ranking> {
    this.texts.refuseHopeless([query, ...documents])
    const prompts = await this.#promptsOf(query, documents)
    const scores = (await this.texts.pooled(prompts, signal)).map(([score = NaN], index) => {
      if (Number.isFinite(score)) return score
      throw new KvfoldError('native/failed', `The model's score of document ${index} is ${score}; it cannot be used.`)
    })
    return { scores, tokens: prompts.reduce((sum, { length }) => sum + length, 0) }
  }

  /** Gives the context back, and the model if it is its own; what runs is cancelled. Idempotent. */
  dispose(): Promise<void> {
    return this.texts.dispose()
  }

  /** As the file's template says, else both texts, between the tokens that the vocabulary adds (llama.cpp, server-common.cpp, format_prompt_rerank). */
  async #promptsOf(query: string, documents: readonly string[]): Promise<readonly Int32Array[]> {
    const { special, info } = this.model
    const template = info.metadata[TEMPLATE]
    if (template !== undefined) {
      const prompts: Int32Array[] = []
      for (const document of documents) {
        const parts = template.split(PLACES).map((part) => {
          if (part === '{query}') return Tracked.of(query, 'unknown')
          return part === '{document}' ? Tracked.of(document, 'unknown') : Tracked.of(part, 'template')
        })
        prompts.push((await this.#encoder.encodeInTurns(Tracked.join(parts))).tokens)
      }
      return prompts
    }
    const { bos, sep, addBos, addEos, addSep } = special
    const end = addEos ? [special.eos ?? sep] : []
    const [asked, ...texts] = await this.model.tokenizeAll([query, ...documents])
    const tokens = [addBos ? bos : null, ...asked!, ...end, addSep ? sep : null]
    return texts.map((text) => Int32Array.from([...tokens, ...text, ...end].filter((token) => token !== null)))
  }
}
