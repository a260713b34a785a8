/** Owns which models are loaded: on demand, kept for a while, given up when another needs their memory. */
import { KvfoldError } from '../../core/errors.js'
import type { Engine } from '../../engine/engine.js'
import type { LlamaEngine } from '../../engine/llama.js'
import type { ModelStatus } from './status.js'

/** An engine with what only some have. */
export type ServedEngine = Engine &
  Partial<Pick<LlamaEngine, 'abilities' | 'cacheTotals' | 'complete' | 'ledger' | 'model' | 'refresh' | 'submitted'>>

export interface ModelSource {
  /** What requests call it. */
  readonly name: string
  /** Steps that its engine runs at once. */
  readonly slots: number
  /** @throws KvfoldError memory/insufficient when it would not fit beside what is loaded; nothing was taken then */
  load(): Promise<ServedEngine>
}

export interface ModelsOptions {
  /** Milliseconds that a model nobody uses stays loaded. Default: for ever. */
  readonly keepAliveMs?: number
}

/** A loaded model in somebody's use: it stays loaded until `release`, which counts once. */
export interface Lease {
  readonly engine: ServedEngine
  release(): void
}

export class Models {
  readonly #models: readonly Model[]
  #loading: Promise<unknown> = Promise.resolve()
  #closed = false

  constructor(
    sources: readonly ModelSource[],
    private readonly options: ModelsOptions = {},
  ) {
    const names = sources.map(({ name }) => name)
    const twice = names.find((name, at) => names.indexOf(name) < at)
    if (twice !== undefined || sources.length === 0)
      throw new KvfoldError(
        'engine/bad-request',
        twice === undefined ? 'There is no model to serve.' : `Two models are called ${twice}.`,
      )
    this.#models = sources.map((source) => new Model(source))
  }

  get all(): readonly Model[] {
    return this.#models
  }

  /** The model of that name, or the first. @throws KvfoldError model/not-found */
  pick(name?: string): Model {
    const model = name === undefined ? this.#models[0] : this.#models.find((each) => each.name === name)
    if (model !== undefined) return model
    const names = this.#models.map((each) => each.name).join(', ')
    throw new KvfoldError('model/not-found', `There is no model ${JSON.stringify(name)} here; the models are: ${names}.`)
  }

  /** The model's engine, loaded if need be. @throws KvfoldError what loading throws, when nothing more can be given up for it */
  async lease(model: Model): Promise<Lease> {
    model.users++
    model.stopClock()
    let released = false
    const release = () => {
      if (released) return
      released = true
      model.users--
      model.idleSince = Date.now()
      if (model.users === 0) this.#startClock(model)
    }
    try {
      // One at a time: whether a model fits is known only when the one before it is in.
      const loading =
        model.engine === null
          ? (this.#loading = this.#loading.then(
              () => this.#load(model),
              () => this.#load(model),
            ))
          : null
      await loading
      if (model.engine === null) throw closing()
      return { engine: model.engine, release }
    } catch (error) {
      release()
      throw error
    }
  }

  /** Gives all models back. Leases end with it. */
  async close(): Promise<void> {
    this.#closed = true
    await this.#loading.catch(() => undefined)
    await Promise.all(this.#models.map((model) => model.unload()))
  }

  async #load(model: Model): Promise<void> {
    for (;;) {
      if (this.#closed) throw closing()
      if (model.engine !== null) return
      try {
        await model.load()
        return
      } catch (error) {
        const short = error instanceof KvfoldError && error.code === 'memory/insufficient'
        const victim = short ? this.#longestIdle() : undefined
        if (victim === undefined) throw error
        await victim.unload()
      }
    }
  }

  #longestIdle(): Model | undefined {
    const idle = this.#models.filter(({ engine, users }) => engine !== null && users === 0)
    return idle.sort((a, b) => a.idleSince - b.idleSince)[0]
  }

  #startClock(model: Model): void {
    const { keepAliveMs } = this.options
    if (keepAliveMs !== undefined && model.engine !== null) model.startClock(keepAliveMs)
  }
}

export class Model {
  engine: ServedEngine | null = null
  users = 0
  idleSince = Date.now()
  readonly #since = Math.floor(Date.now() / 1000)
  #state: ModelStatus['state'] = 'unloaded'
  #clock: NodeJS.Timeout | null = null
  #leaving: Promise<void> = Promise.resolve()

  constructor(private readonly source: ModelSource) {}

  get name(): string {
    return this.source.name
  }

  get slots(): number {
    return this.source.slots
  }

  get status(): ModelStatus {
    const { engine, name, slots, users } = this
    return {
      name,
      state: this.#state,
      since: this.#since,
      running: users,
      idleMs: users > 0 ? 0 : Date.now() - this.idleSince,
      loaded:
        engine === null
          ? null
          : {
              title: engine.info.model,
              engine: engine.info.engine,
              release: engine.info.release,
              context: engine.info.context,
              slots,
              cache: engine.cacheTotals ?? null,
              abilities: engine.abilities ?? null,
              submitted: engine.submitted ?? null,
            },
    }
  }

  async load(): Promise<void> {
    this.#state = 'loading'
    try {
      await this.#leaving
      this.engine = await this.source.load()
      this.#state = 'loaded'
    } catch (error) {
      this.#state = 'unloaded'
      throw error
    }
  }

  async unload(): Promise<void> {
    this.stopClock()
    const { engine } = this
    this.engine = null
    this.#state = 'unloaded'
    if (engine !== null) this.#leaving = this.#leaving.then(() => engine.dispose())
    await this.#leaving
  }

  startClock(milliseconds: number): void {
    this.stopClock()
    this.#clock = setTimeout(() => {
      if (this.users === 0) void this.unload()
    }, milliseconds).unref()
  }

  stopClock(): void {
    if (this.#clock !== null) clearTimeout(this.#clock)
    this.#clock = null
  }
}

const closing = (): KvfoldError => new KvfoldError('server/closing', 'The server is going down and takes no more requests.')
