/** Reranking: scores how well documents answer a query. The model reads query and document together. */
import { Encoder } from '../chat/tokens/encoder.js'
import { Tracked } from '../chat/tracked.js'
import { KvfoldError } from '../core/errors.js'
import type { ModelOptions, Native, NativeModel } from '../native/types.js'
import { titleOf } from './embedder.js'
import { PooledTexts, type PooledTextsOptions } from './pooled-texts.js'

export interface Ranking {
  /** One score per document, in order; higher is better. They are the model head's raw numbers and have no fixed range. */
  readonly scores: readonly number[]
  /** Number of tokens of all documents, each counted with the query. */
  readonly tokens: number
}

/**
 * Metadata key of the prompt template with query and document. llama.cpp's converter writes it for rerankers that are generating models.
 */
const TEMPLATE = 'tokenizer.chat_template.rerank'
const PLACES = /(\{query\}|\{document\})/

/** Scores documents, with a GGUF model (`Reranker`) or an ONNX model (`OnnxReranker`). */
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

  /** The most tokens of query and document together, including those that the model adds. */
  get tokens(): number {
    return this.texts.tokens
  }

  /**
   * Makes a reranker on a model that the caller owns. Its context is disposed with the reranker or the model, whichever comes first.
   * @throws as NativeModel.createContext; model/unsupported for other models
   */
  static async on(model: NativeModel, options: PooledTextsOptions = {}): Promise<Reranker> {
    return new Reranker(await PooledTexts.on(model, 'rank', options, false))
  }

  /**
   * Loads a model only for reranking. The model is disposed with the reranker, or at once if the reranker cannot be made.
   * @throws as Native.loadModel and Reranker.on
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
   * Scores the documents. A score does not depend on the other documents. Control tokens in query and documents are plain text. Of a model
   * with several labels, the first label's score counts.
   * @throws KvfoldError as PooledTexts.pooled; a text there is a document with the query
   */
  async rank(query: string, documents: readonly string[], signal?: AbortSignal): Promise<Ranking> {
    this.texts.refuseHopeless(documents.map((document) => query + document))
    const prompts = await this.#promptsOf(query, documents)
    const scores = (await this.texts.pooled(prompts, signal)).map(([score = NaN], index) => {
      if (Number.isFinite(score)) return score
      throw new KvfoldError('native/failed', `The model's score of document ${index} is ${score}; it cannot be used.`)
    })
    return { scores, tokens: prompts.reduce((sum, { length }) => sum + length, 0) }
  }

  /** Cancels running calls, and frees the context; also frees the model if `load` made the reranker. Further calls do nothing. */
  dispose(): Promise<void> {
    return this.texts.dispose()
  }

  /**
   * Makes the prompts with the template in the model's file. Without one, a prompt is query and document, each with the tokens that the
   * vocabulary adds (llama.cpp, server-common.cpp, format_prompt_rerank).
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
