/** Loads models on demand, keeps them for a while, and unloads them when another needs their memory. */
import type { ConversationPorts } from '../../context/conversation.js'
import { portsOf } from '../../context/ports.js'
import type { CostlyFolds } from '../../context/fragment.js'
import { invariant, KvfoldError } from '../../core/errors.js'
import { type ConversationId, conversationId } from '../../core/ids.js'
import { definedFields } from '../../core/json.js'
import type { Embedder } from '../../engine/embedder.js'
import { type AdapterInfo, scalesOf } from '../../engine/adapters.js'
import type { AdapterScale, Engine } from '../../engine/engine.js'
import type { LlamaEngine } from '../../engine/llama.js'
import type { EnginesElsewhere } from '../../engine/elsewhere.js'
import { closing } from '../ask.js'
import type { ModelStatus } from './status.js'
import type { Thread } from './thread.js'

/** An engine, with members that only some engines have. */
export type ServedEngine = Engine &
  Partial<
    Pick<
      LlamaEngine,
      | 'abilities'
      | 'cacheTotals'
      | 'closeGaps'
      | 'complete'
      | 'erase'
      | 'forgetHidden'
      | 'format'
      | 'ledger'
      | 'model'
      | 'refresh'
      | 'submitted'
      | 'residency'
    > &
      EnginesElsewhere
  >

export interface ModelSource {
  /** The name that requests use. */
  readonly name: string
  /** Further names that requests may use; `*` matches every name that no model has. Default: none. */
  readonly aliases?: readonly string[]
  /** The adapters that its engine loads. Requests may use their names as names of models. Default: none. */
  readonly adapters?: readonly AdapterInfo[]
  /** How many steps its engine runs at once. */
  readonly slots: number
  /** @throws KvfoldError memory/insufficient when the model does not fit beside the loaded ones; then no memory stays taken */
  load(): Promise<ServedEngine>
  /**
   * Loads another engine of the same model that captures attention. Default: attention of the model is unavailable. @throws as `load`,
   * attention/unavailable
   */
  loadForAttention?(): Promise<ServedEngine>
  /** Makes an embedder on the engine that `load` returned; it is disposed before the engine. Default: the model makes no embeddings. */
  embedder?(engine: ServedEngine): Promise<Embedder>
}

export interface ModelsOptions {
  /** Milliseconds that an unused model stays loaded. Default: forever. */
  readonly keepAliveMs?: number
  /** The same for models loaded to capture attention. Default: five minutes. */
  readonly attentionKeepAliveMs?: number
  /** Called before an engine is disposed. */
  readonly onLeave?: (engine: ServedEngine) => void
}

/** A loaded model in use: it stays loaded until `release`, of which only the first call counts. */
export interface Lease {
  readonly engine: ServedEngine
  release(): void
}

const ATTENTION_KEEP_ALIVE = 5 * 60_000

export class Models {
  readonly #models: readonly ServedModel[]
  /** For each model, the one that captures its attention; requests cannot ask it. */
  readonly #attentionModels: ReadonlyMap<ServedModel, ServedModel>
  #loading: Promise<unknown> = Promise.resolve()
  #closed = false

  constructor(
    sources: readonly ModelSource[],
    private readonly options: ModelsOptions = {},
  ) {
    const names = sources.flatMap(({ name, aliases = [], adapters = [] }) => [
      ...[name, ...aliases],
      ...adapters.map((adapter) => adapter.name),
    ])
    const twice = names.find((name, at) => names.indexOf(name) < at)
    if (sources.length === 0) throw new KvfoldError('engine/bad-request', 'There is no model to serve.')
    if (twice !== undefined) {
      const isAdapter = sources.some(({ adapters = [] }) => adapters.some((adapter) => adapter.name === twice))
      const what = isAdapter
        ? `A model and an adapter are called ${twice}; give the model another name, as --model name=file.`
        : `Two models are called ${twice}.`
      throw new KvfoldError('engine/bad-request', what)
    }
    this.#models = sources.map((source) => new ServedModel(source, options.onLeave))
    this.#attentionModels = new Map(
      sources.flatMap((source, at) => {
        if (source.loadForAttention === undefined) return []
        const attentionModel = new ServedModel({ name: source.name, slots: 1, load: () => source.loadForAttention!() })
        return [[this.#models[at]!, attentionModel] as const]
      }),
    )
  }

  get all(): readonly ServedModel[] {
    return this.#models
  }

  /**
   * Returns the model of that name, or the one that has an adapter of that name. Without a name, returns the first. @throws KvfoldError
   * model/not-found
   */
  pick(name?: string): ServedModel {
    const called = (alias: string) => this.#models.find(({ aliases }) => aliases.includes(alias))
    const adapted = (adapter: string) => this.#models.find(({ adapters }) => adapters.some((each) => each.name === adapter))
    const model =
      name === undefined
        ? this.#models[0]
        : (this.#models.find((each) => each.name === name) ?? called(name) ?? adapted(name) ?? called('*'))
    if (model !== undefined) return model
    throw this.#missing(name)
  }

  /** Returns the model whose own name this is. Threads store that name, so aliases do not count. @throws KvfoldError model/not-found */
  named(name: string): ServedModel {
    const model = this.#models.find((each) => each.name === name)
    if (model !== undefined) return model
    throw this.#missing(name)
  }

  #missing(name: string | undefined): KvfoldError {
    const names = this.#models
      .flatMap((each) => [each.name, ...each.aliases, ...each.adapters.map((adapter) => adapter.name)])
      .join(', ')
    return new KvfoldError('model/not-found', `There is no model ${JSON.stringify(name)} here; the models are: ${names}.`)
  }

  /** Returns the model that captures attention for this one, to be leased. @throws KvfoldError attention/unavailable */
  attentionModelOf(model: ServedModel): ServedModel {
    const attentionModel = this.#attentionModels.get(model)
    if (attentionModel !== undefined) return attentionModel
    throw new KvfoldError(
      'attention/unavailable',
      `No attention of ${model.name} can be seen here: another server computes it, or this one was started with --attention off.`,
    )
  }

  /**
   * Returns the model's engine, loaded if necessary. @throws KvfoldError what loading throws, when no other model can be unloaded to make
   * room
   */
  async lease(model: ServedModel): Promise<Lease> {
    model.users++
    model.stopClock()
    let released = false
    const release = () => {
      if (released) return
      released = true
      model.users--
      model.idleSince = performance.now()
      if (model.users === 0) this.#startClock(model)
    }
    try {
      // Load one at a time: whether a model fits is known only after the one before it is loaded.
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

  /** Makes every loaded engine forget the conversation. Resolves when none of their tiers holds any of it. */
  async erase(conversation: ConversationId): Promise<void> {
    const engines = [...this.#models, ...this.#attentionModels.values()].flatMap(({ engine }) =>
      engine === null ? [] : [engine],
    )
    await Promise.all(
      engines.map(async (engine) => {
        if (engine.erase === undefined) engine.forget(conversation)
        else await engine.erase(conversation)
      }),
    )
  }

  /** Unloads all models, which ends all leases. */
  async close(): Promise<void> {
    this.#closed = true
    await this.#loading.catch(() => undefined)
    await Promise.all([...this.#models, ...this.#attentionModels.values()].map((model) => model.unload()))
  }

  async #load(model: ServedModel): Promise<void> {
    for (;;) {
      if (this.#closed) throw closing()
      if (model.engine !== null) return
      try {
        await model.load()
        return
      } catch (error) {
        const short = error instanceof KvfoldError && error.code === 'memory/insufficient'
        const victim = short ? this.#victimFor(model) : undefined
        if (victim === undefined) throw error
        await victim.unload()
      }
    }
  }

  /** Models for attention are unloaded first; a served model is unloaded only for another served model. */
  #victimFor(model: ServedModel): ServedModel | undefined {
    const idle = (of: readonly ServedModel[]) =>
      of.filter(({ engine, users }) => engine !== null && users === 0).sort((a, b) => a.idleSince - b.idleSince)[0]
    return idle([...this.#attentionModels.values()]) ?? (this.#models.includes(model) ? idle(this.#models) : undefined)
  }

  #startClock(model: ServedModel): void {
    const { keepAliveMs, attentionKeepAliveMs = ATTENTION_KEEP_ALIVE } = this.options
    const limit = this.#models.includes(model) ? keepAliveMs : attentionKeepAliveMs
    if (limit !== undefined && model.engine !== null) model.startClock(limit)
  }
}

export class ServedModel {
  engine: ServedEngine | null = null
  users = 0
  /** On the clock of `performance.now`. */
  idleSince = performance.now()
  readonly #since = Math.floor(Date.now() / 1000)
  #state: ModelStatus['state'] = 'unloaded'
  #clock: NodeJS.Timeout | null = null
  #embedder: Promise<Embedder> | null = null
  /** The scales of its adapters, by id. */
  #scales: readonly number[]
  #leaving: Promise<void> = Promise.resolve()

  constructor(
    private readonly source: ModelSource,
    private readonly onLeave?: (engine: ServedEngine) => void,
  ) {
    this.#scales = (source.adapters ?? []).map(({ scale }) => scale)
  }

  get name(): string {
    return this.source.name
  }

  get aliases(): readonly string[] {
    return this.source.aliases ?? []
  }

  /** Its adapters with their present scales. */
  get adapters(): readonly AdapterInfo[] {
    return (this.source.adapters ?? []).map((adapter) => ({ ...adapter, scale: this.#scales[adapter.id]! }))
  }

  /** Sets the scales of its adapters; those that are not named get 0. @throws KvfoldError engine/bad-request */
  scaleAdapters(scales: readonly AdapterScale[]): void {
    const named = scalesOf(scales, this.adapters)
    this.#scales = this.adapters.map(({ id }) => named.find((each) => each.id === id)?.scale ?? 0)
  }

  /**
   * Returns the adapters that a request applies: those of `lora`, else the one that `name` names, else all at their present scales.
   * Undefined for a model without adapters. @throws KvfoldError engine/bad-request
   */
  adaptersFor(name: string | undefined, lora: readonly AdapterScale[] | undefined): readonly AdapterScale[] | undefined {
    const { adapters } = this
    if (lora !== undefined) return scalesOf(lora, adapters)
    if (adapters.length === 0) return undefined
    const named = this.adapterCalled(name)
    return (named === undefined ? adapters : [{ ...named, scale: 1 }]).map(({ id, scale }) => ({ id, scale }))
  }

  /** Returns the adapter that this name of a model means. */
  adapterCalled(name: string | undefined): AdapterInfo | undefined {
    return name === this.name ? undefined : this.adapters.find((adapter) => adapter.name === name)
  }

  get slots(): number {
    return this.source.slots
  }

  get status(): ModelStatus {
    const { engine, name, aliases, adapters, slots, users } = this
    return {
      name,
      aliases,
      adapters: adapters.map((adapter) => adapter.name),
      state: this.#state,
      since: this.#since,
      running: users,
      idleMs: users > 0 ? 0 : Math.round(performance.now() - this.idleSince),
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
              ends: endsOf(engine),
              sampling: engine.samplingDefaults ?? null,
              engines: engine.engines ?? null,
              enginesProblem: engine.enginesProblem ?? null,
            },
    }
  }

  /** Returns the embedder, made at the first call; null when the model has none. The caller must hold a lease. */
  async embedder(): Promise<Embedder | null> {
    if (this.engine === null || this.source.embedder === undefined) return null
    this.#embedder ??= this.source.embedder(this.engine)
    try {
      return await this.#embedder
    } catch (error) {
      this.#embedder = null
      throw error
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
    const embedder = this.#embedder
    this.engine = this.#embedder = null
    this.#state = 'unloaded'
    if (engine !== null)
      this.#leaving = this.#leaving.then(async () => {
        await (await embedder?.catch(() => null))?.dispose()
        this.onLeave?.(engine)
        await engine.dispose()
      })
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

// Connects threads to engines that are loaded and unloaded.

/** Returns ports to the engine that the thread's model has at the time of the call. The caller must hold a lease on the model. */
export function livePorts(models: Models, costlyFolds: CostlyFolds): (thread: Thread) => ConversationPorts {
  return (thread) => {
    let known: (Thread['prompted'] & { readonly engine: ServedEngine; readonly ports: ConversationPorts }) | null = null
    const live = (): ConversationPorts => {
      const { engine } = models.named(thread.model)
      invariant(engine !== null, `model ${thread.model} was used while it was not loaded`)
      const { tools, variables, lora } = thread.prompted
      // Keep the ports: they cache token counts.
      const head = { tools, variables, ...definedFields({ lora }) }
      if (known?.engine !== engine || known.tools !== tools || known.variables !== variables || known.lora !== lora) {
        const ports = portsOf(engine, conversationId(thread.id), tools, { ...head, tenant: thread.tenant })
        known = { ...head, engine, ports }
      }
      return known.ports
    }
    return {
      snap: (...asked) => live().snap!(...asked),
      count: (...asked) => live().count!(...asked),
      costlyFolds,
      get estimates() {
        return live().estimates ?? false
      },
      summarize: (...asked) => live().summarize!(...asked),
    }
  }
}

/** Returns the texts of the tokens that the model's texts begin and end with. */
function endsOf({ model }: ServedEngine): NonNullable<ModelStatus['loaded']>['ends'] {
  if (model === undefined) return null
  const { bos, eos } = model.special
  const text = (token: number | null) => (token === null ? null : model.detokenize([token], true))
  return { bos: text(bos), eos: text(eos) }
}
