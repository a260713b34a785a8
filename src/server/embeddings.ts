/** Owns who embeds: a model of its own where there is one, else the served model that is asked for; and who waits for it. */
import { KvfoldError } from '../core/errors.js'
import type { Embedder } from '../engine/embedder.js'
import { Overloaded, type EmbedAnswer, type EmbedAsk, type EmbeddingModelStatus } from './ask.js'
import type { Models } from './threads/models.js'
import { Queue, QueueFull } from './threads/queue.js'

/** A model that does nothing but embed. */
export interface EmbeddingModel {
  /** What requests call it. */
  readonly name: string
  load(): Promise<Embedder>
}

export interface EmbeddingsOptions {
  /** Default: none, and served models embed that offer an embedder. */
  readonly own?: EmbeddingModel
  /** Requests that may wait. */
  readonly limit: number
}

export class Embeddings {
  /** One at a time: an embedder is no faster with two. */
  readonly #queue: Queue
  readonly #since = Math.floor(Date.now() / 1000)
  #own: Promise<Embedder> | null = null
  #loaded: Embedder | null = null

  constructor(
    private readonly models: Models,
    private readonly options: EmbeddingsOptions,
  ) {
    this.#queue = new Queue({ slots: 1, limit: options.limit })
  }

  /** Of the own model; null without one. */
  get status(): EmbeddingModelStatus | null {
    const { own } = this.options
    if (own === undefined) return null
    const loaded = this.#loaded
    const info = loaded?.model.info
    return {
      name: own.name,
      state: loaded !== null ? 'loaded' : this.#own === null ? 'unloaded' : 'loading',
      since: this.#since,
      loaded:
        loaded === null || info === undefined
          ? null
          : { title: info.metadata['general.name'] ?? info.description, tokens: loaded.tokens },
    }
  }

  /** @throws KvfoldError as Service.embed, Embedder.embed and Queue.enter; Overloaded */
  async embed(ask: EmbedAsk, signal: AbortSignal): Promise<EmbedAnswer> {
    const { tenant } = ask
    const leave = await this.#queue.enter({ tenant, priority: 0, signal }).catch((error: unknown) => {
      throw error instanceof QueueFull ? overloaded(error.waiting) : error
    })
    try {
      return await (this.options.own === undefined ? this.#byServed(ask, signal) : this.#byOwn(ask, this.options.own, signal))
    } finally {
      leave()
    }
  }

  /** Nobody who waits begins any more. */
  refuseAll(error: unknown): void {
    this.#queue.refuseAll(error)
  }

  /** Gives the own model back; served ones are `Models`'. */
  async close(): Promise<void> {
    const own = await this.#own?.catch(() => null)
    this.#own = this.#loaded = null
    await own?.dispose()
  }

  async #byServed(ask: EmbedAsk, signal: AbortSignal): Promise<EmbedAnswer> {
    const model = this.models.pick(ask.model)
    const lease = await this.models.lease(model)
    try {
      const embedder = await model.embedder()
      if (embedder === null)
        throw new KvfoldError(
          'model/unsupported',
          `${model.name} makes no embeddings here; start the server with --embeddings, or ask another server.`,
        )
      return await answer(embedder, model.name, ask, signal)
    } finally {
      lease.release()
    }
  }

  async #byOwn(ask: EmbedAsk, own: EmbeddingModel, signal: AbortSignal): Promise<EmbedAnswer> {
    if (ask.model !== undefined && ask.model !== own.name)
      throw new KvfoldError('model/not-found', `${JSON.stringify(ask.model)} makes no embeddings here; ${own.name} does.`)
    this.#own ??= own.load()
    try {
      this.#loaded = await this.#own
      return await answer(this.#loaded, own.name, ask, signal)
    } catch (error) {
      // A load that failed may succeed when there is more memory.
      await this.#own.catch(() => (this.#own = null))
      throw error
    }
  }
}

async function answer(embedder: Embedder, model: string, ask: EmbedAsk, signal: AbortSignal): Promise<EmbedAnswer> {
  const { inputs, dimensions } = ask
  return { model, ...(await embedder.embed(inputs, { signal, ...(dimensions === undefined ? {} : { dimensions }) })) }
}

const overloaded = (waiting: number): Overloaded =>
  new Overloaded(`${waiting} requests for embeddings wait already, as many as may; try again soon.`, 1)
