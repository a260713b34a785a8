/** Owns a model beside the served ones, that reads texts and generates none: loaded for the first who asks, for one after the other. */
import { KvfoldError } from '../core/errors.js'
import type { Tenant } from '../core/ids.js'
import type { Embedder } from '../engine/embedder.js'
import type { NativeModel } from '../native/types.js'
import type { Reranker } from '../engine/reranker.js'
import { type EmbedAnswer, type EmbedAsk, Overloaded, type RerankAnswer, type RerankAsk, type SideModelStatus } from './ask.js'
import type { Models } from './threads/models.js'
import { Queue, QueueFull } from './threads/queue.js'

/** What a side model is once loaded. */
export interface TextReader {
  readonly model: NativeModel
  /** The longest text. */
  readonly tokens: number
  dispose(): Promise<void>
}

export interface SideModelSource<T extends TextReader> {
  /** What requests call it. */
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
    const info = loaded?.model.info
    return {
      name: source.name,
      use,
      state: loaded !== null ? 'loaded' : this.#loading === null ? 'unloaded' : 'loading',
      since: this.#since,
      loaded:
        loaded === null || info === undefined
          ? null
          : { title: info.metadata['general.name'] ?? info.description, tokens: loaded.tokens },
    }
  }

  /** @param asked for, if any was named @throws KvfoldError model/not-found for another name; as loading and `work` */
  async with<R>(asked: string | undefined, work: (reader: T, name: string) => Promise<R>): Promise<R> {
    const { name } = this.source
    if (asked !== undefined && asked !== name)
      throw new KvfoldError('model/not-found', `${JSON.stringify(asked)} makes no ${this.use} here; ${name} does.`)
    this.#loading ??= this.source.load()
    try {
      this.#loaded = await this.#loading
      return await work(this.#loaded, name)
    } catch (error) {
      // A load that failed may succeed when there is more memory.
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

/** Who waits for one: it is no faster with two. */
class SideQueue {
  readonly #queue: Queue

  constructor(
    limit: number,
    private readonly use: SideModelStatus['use'],
  ) {
    this.#queue = new Queue({ slots: 1, limit })
  }

  /** @throws Overloaded; as Queue.enter and `work` */
  async run<R>(tenant: Tenant, signal: AbortSignal, work: () => Promise<R>): Promise<R> {
    const leave = await this.#queue.enter({ tenant, priority: 0, signal }).catch((error: unknown) => {
      throw error instanceof QueueFull
        ? new Overloaded(`${error.waiting} requests for ${this.use} wait already, as many as may; try again soon.`, 1)
        : error
    })
    try {
      return await work()
    } finally {
      leave()
    }
  }

  /** Nobody who waits begins any more. */
  refuseAll(error: unknown): void {
    this.#queue.refuseAll(error)
  }
}

// All of them: who embeds (a model of its own where there is one, else the served model that is asked for), and who ranks.

export interface SideModelsOptions {
  /** Embeds instead of the served models. Default: those do that offer an embedder. */
  readonly embeddings?: SideModelSource<Embedder>
  /** Default: none, and nobody ranks documents. */
  readonly reranker?: SideModelSource<Reranker>
}

export class SideModels {
  readonly #embedder: SideModel<Embedder> | null
  readonly #reranker: SideModel<Reranker> | null
  readonly #embeddings: SideQueue
  readonly #rankings: SideQueue

  /** @param limit requests that may wait for each use */
  constructor(
    private readonly models: Models,
    limit: number,
    { embeddings, reranker }: SideModelsOptions,
  ) {
    this.#embedder = embeddings === undefined ? null : new SideModel(embeddings, 'embeddings')
    this.#reranker = reranker === undefined ? null : new SideModel(reranker, 'rankings')
    this.#embeddings = new SideQueue(limit, 'embeddings')
    this.#rankings = new SideQueue(limit, 'rankings')
  }

  /** Of those that are not served besides. */
  get status(): readonly SideModelStatus[] {
    return [this.#embedder, this.#reranker].flatMap((side) => (side === null ? [] : [side.status]))
  }

  /** @throws KvfoldError as Service.embed, Embedder.embed and Queue.enter; Overloaded */
  embed(ask: EmbedAsk, signal: AbortSignal): Promise<EmbedAnswer> {
    return this.#embeddings.run(ask.tenant, signal, () =>
      this.#embedder === null
        ? this.#embedByServed(ask, signal)
        : this.#embedder.with(ask.model, (embedder, name) => embedBy(embedder, name, ask, signal)),
    )
  }

  /** @throws KvfoldError as Service.rerank, Reranker.rank and Queue.enter; Overloaded */
  async rerank({ tenant, model, query, documents }: RerankAsk, signal: AbortSignal): Promise<RerankAnswer> {
    const reranker = this.#reranker
    if (reranker === null)
      throw new KvfoldError('model/unsupported', 'No model ranks documents here; start the server with --reranking MODEL.')
    return this.#rankings.run(tenant, signal, () =>
      reranker.with(model, async (reader, name) => ({ model: name, ...(await reader.rank(query, documents, signal)) })),
    )
  }

  /** Nobody who waits begins any more. */
  refuseAll(error: unknown): void {
    for (const queue of [this.#embeddings, this.#rankings]) queue.refuseAll(error)
  }

  /** Gives the side models back; served ones are `Models`'. */
  async close(): Promise<void> {
    await this.#embedder?.close()
    await this.#reranker?.close()
  }

  async #embedByServed(ask: EmbedAsk, signal: AbortSignal): Promise<EmbedAnswer> {
    const model = this.models.pick(ask.model)
    const lease = await this.models.lease(model)
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

async function embedBy(embedder: Embedder, model: string, ask: EmbedAsk, signal: AbortSignal): Promise<EmbedAnswer> {
  const { inputs, dimensions } = ask
  return { model, ...(await embedder.embed(inputs, { signal, ...(dimensions === undefined ? {} : { dimensions }) })) }
}
