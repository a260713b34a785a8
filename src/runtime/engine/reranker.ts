/** Reranking: scores how well documents answer a query. The model reads each document together with the query. */
import { Encoder } from '../chat/tokens/encoder.js'
import { Tracked } from '../chat/tracked.js'
import { KvfoldError } from '../core/errors.js'
import type { ModelOptions, Native, NativeModel } from '../native/types.js'
import { titleOf } from './embedder.js'
import { PooledTexts, type PooledTextsOptions } from './pooled-texts.js'

export interface Ranking {
  /**
   * One score for each document, in order; a higher one answers better. Scores come straight from the model's head and have no fixed range.
   */
  readonly scores: readonly number[]
  /** Number of tokens of all documents, each counted together with the query. */
  readonly tokens: number
}

/** The metadata key of the template that shows query and document; llama.cpp's converter writes it for rerankers that generate text. */
const TEMPLATE = 'tokenizer.chat_template.rerank'
const PLACES = /(\{query\}|\{document\})/

/** Scores documents, by a GGUF model (`Reranker`) or by an ONNX model (`OnnxReranker`). */
export interface TextScores {
  /** The model's own name. */
  readonly title: string
  /** The most tokens of query and document together. */
  readonly tokens: number
  rank(query: string, documents: readonly string[], signal?: AbortSignal): Promise<Ranking>
  dispose(): Promise<void>
}

/** Scores documents with a GGUF model. Calls may overlap; they are computed one after another. */
export class Reranker implements TextScores {
  readonly #encoder: Encoder

  private constructor(private readonly texts: PooledTexts) {
    this.#encoder = new Encoder(texts.model)
  }

  get model(): NativeModel {
    return this.texts.model
  }

  get title(): string {
    return titleOf(this.model)
  }

  /** The most tokens of query and document together, with those that the model adds around them. */
  get tokens(): number {
    return this.texts.tokens
  }

  /**
   * Makes a reranker with a context on a model of the caller's. The context ends with the model. @throws as NativeModel.createContext;
   * model/unsupported for other models
   */
  static async on(model: NativeModel, options: PooledTextsOptions = {}): Promise<Reranker> {
    return new Reranker(await PooledTexts.on(model, 'rank', options, false))
  }

  /**
   * Loads a model for reranking alone. If the reranker cannot be made, the model is disposed. @throws as Native.loadModel and Reranker.on
   */
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
   * Scores the documents. A document's score does not depend on the other documents; control tokens in query and documents are plain text.
   * A model with several labels scores by its first.
   * @throws KvfoldError as PooledTexts.pooled; here each text is a document with the query
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

  /** Cancels running calls, and frees the context; frees the model too if `load` made it. Further calls do nothing. */
  dispose(): Promise<void> {
    return this.texts.dispose()
  }

  /**
   * Makes the prompts with the file's template. Without one, a prompt has both texts between the tokens that the vocabulary adds
   * (llama.cpp, server-common.cpp, format_prompt_rerank).
   */
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
