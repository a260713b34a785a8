/** Runs the models for embeddings and rankings. The first request loads such a model; each serves one request at a time. */
import { definedFields } from '../core/json.js'
import { KvfoldError } from '../core/errors.js'
import { PUBLIC, type Tenant } from '../core/ids.js'
import { cosine } from '../core/vectors.js'
import type { TextVectors } from '../engine/embedder.js'
import type { TextScores } from '../engine/reranker.js'
import {
  type EmbedAnswer,
  type EmbedAsk,
  Overloaded,
  type RerankAnswer,
  type RerankAsk,
  type ScoreAsk,
  type SideModelStatus,
} from './ask.js'
import type { Embed } from '../context/meaning.js'
import type { ToolEmbedder } from '../tools/catalogue.js'
import { cutting, RecentVectors } from './text-vectors.js'
import { tokensOf } from './threads/completing.js'
import type { Models } from './threads/models.js'
import { Queue, QueueFull } from './threads/queue.js'

/** A loaded model for embeddings or rankings. */
type TextReader = TextVectors | TextScores

export interface SideModelSource<T extends TextReader> {
  /** The name that requests use. */
  readonly name: string
  load(): Promise<T>
}

class SideModel<T extends TextReader> {
  readonly #since = Math.floor(Date.now() / 1000)
  #loading: Promise<T> | null = null
  #loaded: T | null = null

  constructor(
    private readonly source: SideModelSource<T>,
    private readonly use: SideModelStatus['use'],
  ) {}

  get status(): SideModelStatus {
    const { source, use } = this
    const loaded = this.#loaded
    return {
      name: source.name,
      use,
      state: loaded !== null ? 'loaded' : this.#loading === null ? 'unloaded' : 'loading',
      since: this.#since,
      loaded: loaded === null ? null : { title: loaded.title, tokens: loaded.tokens },
    }
  }

  /**
   * Runs `work` with the loaded model, which the first call loads.
   * @param asked the model name in the request, if any
   * @throws KvfoldError model/not-found for another name; the errors of loading and of `work`
   */
  async with<R>(asked: string | undefined, work: (reader: T, name: string) => Promise<R>): Promise<R> {
    const { name } = this.source
    if (asked !== undefined && asked !== name)
      throw new KvfoldError('model/not-found', `${JSON.stringify(asked)} makes no ${this.use} here; ${name} does.`)
    this.#loading ??= this.source.load()
    try {
      this.#loaded = await this.#loading
      return await work(this.#loaded, name)
    } catch (error) {
      // Forget a failed load: a later request may find more free memory.
      await this.#loading.catch(() => (this.#loading = null))
      throw error
    }
  }

  async close(): Promise<void> {
    const loaded = await this.#loading?.catch(() => null)
    this.#loading = this.#loaded = null
    await loaded?.dispose()
  }
}

/** The queue of one model. Two requests at once would not be faster, so it has one slot. */
class SideQueue {
  readonly #queue: Queue

  constructor(
    limit: number,
    private readonly use: SideModelStatus['use'],
  ) {
    this.#queue = new Queue({ slots: 1, limit })
  }

  /** Runs `work` when its turn comes. @throws Overloaded; the errors of Queue.enter and `work` */
  async run<R>(tenant: Tenant, signal: AbortSignal, work: () => Promise<R>): Promise<R> {
    const leave = await this.#queue.enter({ tenant, priority: 0, signal }).catch((error: unknown) => {
      throw error instanceof QueueFull
        ? new Overloaded(`The queue for ${this.use} is full with ${error.waiting} requests; try again soon.`, 1)
        : error
    })
    try {
      return await work()
    } finally {
      leave()
    }
  }

  /** Rejects all waiting requests with this error. */
  refuseAll(error: unknown): void {
    this.#queue.refuseAll(error)
  }
}

// All models for embeddings and rankings. Without an own model for embeddings, the served model that the request names makes them. Only the
// reranker makes rankings.

export interface SideModelsOptions {
  /** The model for embeddings. Default: served models that offer an embedder. */
  readonly embeddings?: SideModelSource<TextVectors>
  /** The model for rankings. Default: none; requests for rankings are refused. */
  readonly reranker?: SideModelSource<TextScores>
}

const NEVER = new AbortController().signal

export class SideModels {
  /** Makes embeddings for the search of tools by meaning; null without an own model for embeddings. */
  readonly toolEmbedder: ToolEmbedder | null
  readonly #embedder: SideModel<TextVectors> | null
  readonly #reranker: SideModel<TextScores> | null
  readonly #embeddings: SideQueue
  readonly #rankings: SideQueue

  /** @param limit the most waiting requests for embeddings, and the same for rankings */
  constructor(
    private readonly models: Models,
    limit: number,
    { embeddings, reranker }: SideModelsOptions,
  ) {
    this.#embedder = embeddings === undefined ? null : new SideModel(embeddings, 'embeddings')
    this.#reranker = reranker === undefined ? null : new SideModel(reranker, 'rankings')
    this.#embeddings = new SideQueue(limit, 'embeddings')
    this.toolEmbedder = embeddings === undefined ? null : new RecentVectors(embeddings.name, this.embedderOf(PUBLIC)!)
    this.#rankings = new SideQueue(limit, 'rankings')
  }

  /** Returns a function that makes embeddings for a tenant's searches and keeps none; undefined without an own model for embeddings. */
  embedderOf(tenant: Tenant): Embed | undefined {
    if (this.#embedder === null) return undefined
    return cutting(async (inputs, signal = NEVER) => (await this.embed({ tenant, inputs }, signal)).vectors)
  }

  /** The status of the own models for embeddings and rankings. */
  get status(): readonly SideModelStatus[] {
    return [this.#embedder, this.#reranker].flatMap((side) => (side === null ? [] : [side.status]))
  }

  /**
   * Makes embeddings, by the own model for them or else by the served model that the request names.
   * @throws KvfoldError model/not-found, context/full, engine/bad-request, engine/cancelled, errors of loading; Overloaded when the queue
   * is full
   */
  embed(ask: EmbedAsk, signal: AbortSignal): Promise<EmbedAnswer> {
    return this.#embeddings.run(ask.tenant, signal, () =>
      this.#embedder === null
        ? this.#embedByServed(ask, signal)
        : this.#embedder.with(ask.model, (embedder, name) => embedBy(embedder, name, ask, signal)),
    )
  }

  /**
   * Scores documents with the reranker.
   * @throws KvfoldError model/unsupported without a reranker; model/not-found, context/full, engine/bad-request, engine/cancelled, errors
   * of loading; Overloaded when the queue is full
   */
  async rerank({ tenant, model, query, documents }: RerankAsk, signal: AbortSignal): Promise<RerankAnswer> {
    const reranker = this.#reranker
    if (reranker === null)
      throw new KvfoldError('model/unsupported', 'No model ranks documents here; start the server with --reranking MODEL.')
    return this.#rankings.run(tenant, signal, () =>
      reranker.with(model, async (reader, name) => ({ model: name, ...(await reader.rank(query, documents, signal)) })),
    )
  }

  /**
   * Scores pairs of texts, by the reranker or else by the cosine of their embeddings.
   * @throws KvfoldError the errors of `rerank` and `embed`
   */
  async score({ pairs, ...asked }: ScoreAsk, signal: AbortSignal): Promise<RerankAnswer> {
    if (this.#reranker === null) return this.#byEmbeddings(pairs, asked, signal)
    let [model, tokens] = ['', 0]
    const scores: number[] = []
    // Pairs with the same first text go to the reranker as one query.
    for (const [query, documents] of byFirst(pairs)) {
      const answer = await this.rerank({ ...asked, query, documents: documents.map(({ text }) => text) }, signal)
      answer.scores.forEach((score, at) => (scores[documents[at]!.index] = score))
      model = answer.model
      tokens += answer.tokens
    }
    return { model, scores, tokens }
  }

  async #byEmbeddings(pairs: ScoreAsk['pairs'], asked: Omit<ScoreAsk, 'pairs'>, signal: AbortSignal): Promise<RerankAnswer> {
    const inputs = [...new Set(pairs.flat())]
    const { model, vectors, tokens } = await this.embed({ ...asked, inputs }, signal).catch((error: unknown) => {
      throw error instanceof KvfoldError && error.code === 'model/unsupported'
        ? new KvfoldError(error.code, `No reranker is here to score with (--reranking MODEL). ${error.message}`, { cause: error })
        : error
    })
    const vectorOf = new Map(inputs.map((text, index) => [text, vectors[index]!]))
    return { model, scores: pairs.map(([one, other]) => cosine(vectorOf.get(one)!, vectorOf.get(other)!)), tokens }
  }

  /** Rejects all waiting requests with this error. */
  refuseAll(error: unknown): void {
    for (const queue of [this.#embeddings, this.#rankings]) queue.refuseAll(error)
  }

  /** Unloads the own models. `Models` unloads the served ones. */
  async close(): Promise<void> {
    await this.#embedder?.close()
    await this.#reranker?.close()
  }

  async #embedByServed(ask: EmbedAsk, signal: AbortSignal): Promise<EmbedAnswer> {
    const model = this.models.pick(ask.model)
    if (model.adapterCalled(ask.model) !== undefined)
      throw new KvfoldError(
        'model/unsupported',
        `${ask.model!} is an adapter, and embeddings apply none; ask for those of ${model.name}.`,
      )
    const lease = await this.models.lease(model, { signal })
    try {
      const embedder = await model.embedder()
      if (embedder === null)
        throw new KvfoldError(
          'model/unsupported',
          `${model.name} makes no embeddings here; start the server with --embeddings, or ask another server.`,
        )
      return await embedBy(embedder, model.name, ask, signal)
    } finally {
      lease.release()
    }
  }
}

async function embedBy(embedder: TextVectors, model: string, ask: EmbedAsk, signal: AbortSignal): Promise<EmbedAnswer> {
  const { dimensions, truncate } = ask
  const inputs = await Promise.all(ask.inputs.map((input) => plainInput(input, embedder)))
  return { model, ...(await embedder.embed(inputs, { signal, ...definedFields({ dimensions, truncate }) })) }
}

/** Returns an input as the model can read it: a text and token ids stay, a mixture becomes token ids. */
async function plainInput(
  input: EmbedAsk['inputs'][number],
  { model, tokens }: TextVectors,
): Promise<string | ArrayLike<number>> {
  if (typeof input === 'string' || isTokens(input)) return input
  if (model !== undefined) return tokensOf(input, model, tokens)
  throw new KvfoldError('engine/bad-request', 'A text has token ids between its words; this model takes texts only.')
}

const isTokens = (parts: readonly (number | string)[]): parts is readonly number[] =>
  !parts.some((part) => typeof part === 'string')

/** Groups pairs by their first text. The values are the second texts, with the index of their pair. */
function byFirst(pairs: ScoreAsk['pairs']): ReadonlyMap<string, readonly { readonly text: string; readonly index: number }[]> {
  const groups = new Map<string, { readonly text: string; readonly index: number }[]>()
  for (const [index, [first, text]] of pairs.entries()) groups.set(first, [...(groups.get(first) ?? []), { text, index }])
  return groups
}
