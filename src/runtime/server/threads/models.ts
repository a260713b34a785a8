/** Loads models on demand, keeps them loaded for a while, and unloads one when another needs its memory. */
import type { ConversationPorts } from '../../context/conversation.js'
import { portsOf } from '../../context/ports.js'
import type { CostlyFolds } from '../../context/fragment.js'
import { invariant, KvfoldError } from '../../core/errors.js'
import { type ConversationId, conversationId, type Tenant } from '../../core/ids.js'
import { unlessAborted } from '../../core/signals.js'
import { definedFields } from '../../core/json.js'
import type { Embedder } from '../../engine/embedder.js'
import { type AdapterInfo, scalesOf } from '../../engine/adapters.js'
import type { AdapterScale, Engine } from '../../engine/engine.js'
import type { LlamaEngine } from '../../engine/llama.js'
import type { EnginesElsewhere } from '../../engine/elsewhere.js'
import { fileTypeOf } from '../../models/facts.js'
import type { ModelFile } from '../../models/folder.js'
import { closing } from '../ask.js'
import type { KnownModel, ModelNumbers, ModelStatus } from './status.js'
import type { Thread } from './thread.js'

/** An engine. The optional members exist only on some engines, such as the llama.cpp engine of this process. */
export type ServedEngine = Engine &
  Partial<
    Pick<
      LlamaEngine,
      | 'abilities'
      | 'cacheTotals'
      | 'chatTemplate'
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
  /** Other names that requests may use. `*` matches every name that no model has. Default: none. */
  readonly aliases?: readonly string[]
  /** The LoRA adapters that the model's engine loads. Requests may use an adapter's name as the model's name. Default: none. */
  readonly adapters?: readonly AdapterInfo[]
  /** How many steps the model's engine runs at once. */
  readonly slots: number
  /** Loads the model. @throws KvfoldError memory/insufficient when it does not fit beside the loaded models; it then holds no memory */
  load(): Promise<ServedEngine>
  /**
   * Loads another engine of the same model that captures attention. Default: attention of the model is unavailable.
   * @throws the errors of `load`; KvfoldError attention/unavailable
   */
  loadForAttention?(): Promise<ServedEngine>
  /** The model's files on this machine, if they are known before it is loaded. Default: unknown. */
  readonly file?: Pick<ModelFile, 'parts' | 'size' | 'modified'>
  /** Makes an embedder that uses the engine from `load`; it is disposed before that engine. Default: the model makes no embeddings. */
  embedder?(engine: ServedEngine): Promise<Embedder>
}

export interface ModelsOptions {
  /** Milliseconds that an unused model stays loaded. Default: forever. */
  readonly keepAliveMs?: number
  /**
   * Returns the models of a folder, which are served besides the given ones. Called about once a second, because files come and go. It must
   * return the same source object for a file that has not changed. Default: none.
   */
  readonly folder?: () => readonly ModelSource[]
  /**
   * The most models loaded at once. To load another, the model unused for longest is unloaded; while all are in use, the load waits.
   * Default: no limit.
   */
  readonly most?: number
  /** The same for models loaded to capture attention. Default: five minutes. */
  readonly attentionKeepAliveMs?: number
  /** Called before an engine is disposed. */
  readonly onLeave?: (engine: ServedEngine) => void
}

/** A loaded model in use. It stays loaded until `release` is called; calling that again does nothing. */
export interface Lease {
  readonly engine: ServedEngine
  release(): void
}

export interface LeaseOptions {
  /** Ends the wait for a model that cannot be loaded yet. */
  readonly signal?: AbortSignal
  /**
   * True: this request waits while another model waits for room, even if its own model is loaded. Otherwise a busy model could keep the
   * other out forever. A caller that already holds a lease must not set it: it would wait for itself. Default false.
   */
  readonly yields?: boolean
}

/** Milliseconds between two readings of the folder. */
const LOOK = 1000

const ATTENTION_KEEP_ALIVE = 5 * 60_000

export class Models {
  readonly #models: ServedModel[]
  /** For each served model, the model that captures attention on it. Requests cannot name these. */
  readonly #attentionModels = new Map<ServedModel, ServedModel>()
  /** The served models that came from the folder. */
  readonly #ofFolder = new Set<ServedModel>()
  #looked = -Infinity
  /** The model that waits until a loaded one is unused and can be unloaded. `fed` resolves when the wait is over. */
  #hungry: { readonly model: ServedModel; readonly fed: Promise<void> } | null = null
  /** Called when a model loses its last user, and when all models are closed. */
  readonly #idle = new Set<() => void>()
  readonly #watchers = new Set<(model: ModelStatus) => void>()
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
    if (sources.length === 0 && options.folder === undefined)
      throw new KvfoldError('engine/bad-request', 'There is no model to serve.')
    if (twice !== undefined) {
      const isAdapter = sources.some(({ adapters = [] }) => adapters.some((adapter) => adapter.name === twice))
      const what = isAdapter
        ? `A model and an adapter are called ${twice}; give the model another name, as --model name=file.`
        : `Two models are called ${twice}.`
      throw new KvfoldError('engine/bad-request', what)
    }
    this.#models = sources.map((source) => this.#made(source))
  }

  /** All served models: first the given ones, then those of the folder, read again if a second has passed. */
  get all(): readonly ServedModel[] {
    this.#look()
    return this.#models
  }

  /** Calls `listener` when a model begins to load, is loaded, fails to load or is unloaded. Returns a function that stops this. */
  watch(listener: (model: ModelStatus) => void): () => void {
    this.#watchers.add(listener)
    return () => this.#watchers.delete(listener)
  }

  /** Whether the models of a folder are served. */
  get hasFolder(): boolean {
    return this.options.folder !== undefined
  }

  /** All served models, and the models that capture attention on them. */
  get #everyModel(): readonly ServedModel[] {
    return [...this.#models, ...this.#attentionModels.values()]
  }

  #made(source: ModelSource): ServedModel {
    const model = new ServedModel(source, this.options.onLeave, () => {
      for (const heard of this.#watchers) heard(model.status)
    })
    if (source.loadForAttention !== undefined)
      this.#attentionModels.set(
        model,
        new ServedModel({ name: source.name, slots: 1, load: () => model.source.loadForAttention!() }),
      )
    return model
  }

  /** Adds models whose files appeared in the folder, and removes models whose files are gone. A loaded model stays until it is unloaded. */
  #look(now = false): void {
    const { folder } = this.options
    if (folder === undefined || (!now && performance.now() - this.#looked < LOOK)) return
    this.#looked = performance.now()
    const sources = folder()
    for (const model of [...this.#ofFolder]) {
      const source = sources.find(({ name }) => name === model.name)
      if (source !== undefined) model.source = source
      else if (model.engine === null && model.leaving === null && model.users === 0) {
        this.#ofFolder.delete(model)
        this.#attentionModels.delete(model)
        this.#models.splice(this.#models.indexOf(model), 1)
      }
    }
    for (const source of sources) {
      if (this.#models.some(({ name }) => name === source.name)) continue
      const model = this.#made(source)
      this.#ofFolder.add(model)
      this.#models.push(model)
    }
  }

  /**
   * Returns the model with this name. A model's own name counts before aliases, and these before adapter names. Without a name, returns the
   * first model; if that is from the folder, the most recently used loaded one.
   * @throws KvfoldError model/not-found
   */
  pick(name?: string): ServedModel {
    const model = this.#picked(name) ?? (this.#look(true), this.#picked(name))
    if (model !== undefined) return model
    throw this.#missing(name)
  }

  #picked(name?: string): ServedModel | undefined {
    const { all } = this
    const called = (alias: string) => all.find(({ aliases }) => aliases.includes(alias))
    const adapted = (adapter: string) => all.find(({ adapters }) => adapters.some((each) => each.name === adapter))
    if (name !== undefined) return all.find((each) => each.name === name) ?? called(name) ?? adapted(name) ?? called('*')
    const [first] = all
    if (first === undefined || !this.#ofFolder.has(first)) return first
    // Any model of the folder will do, and a loaded one answers at once.
    return all.filter(({ engine }) => engine !== null).sort((a, b) => b.idleSince - a.idleSince)[0] ?? first
  }

  /** Returns the model whose own name this is. Threads store own names, so aliases do not count. @throws KvfoldError model/not-found */
  named(name: string): ServedModel {
    const model = this.all.find((each) => each.name === name)
    if (model !== undefined) return model
    throw this.#missing(name)
  }

  #missing(name: string | undefined): KvfoldError {
    const names = this.#models
      .flatMap((each) => [each.name, ...each.aliases, ...each.adapters.map((adapter) => adapter.name)])
      .join(', ')
    const there = names === '' ? 'the folder of models is empty' : `the models are: ${names}`
    const what = name === undefined ? 'There is no model here' : `There is no model ${JSON.stringify(name)} here`
    return new KvfoldError('model/not-found', `${what}; ${there}.`)
  }

  /** Returns the model to lease for capturing attention on this one. @throws KvfoldError attention/unavailable when there is none */
  attentionModelOf(model: ServedModel): ServedModel {
    const attentionModel = this.#attentionModels.get(model)
    if (attentionModel !== undefined) return attentionModel
    throw new KvfoldError(
      'attention/unavailable',
      `No attention of ${model.name} can be seen here: another server computes it, or this one was started with --attention off.`,
    )
  }

  /**
   * Returns the model's engine, loaded if necessary. Waits while `most` models are loaded and all are in use.
   * @throws KvfoldError the error of the load when unloading others did not help; engine/cancelled when the signal is aborted
   */
  async lease(model: ServedModel, { signal, yields = false }: LeaseOptions = {}): Promise<Lease> {
    while (yields && model.engine !== null && this.#hungry !== null && this.#hungry.model !== model)
      await unlessCancelled(this.#hungry.fed, signal)
    model.users++
    model.stopClock()
    let released = false
    const release = () => {
      if (released) return
      released = true
      model.users--
      model.idleSince = performance.now()
      if (model.users > 0) return
      this.#startClock(model)
      for (const heard of [...this.#idle]) heard()
    }
    try {
      while (model.engine === null)
        try {
          await unlessCancelled((model.pending ??= this.#queuedLoad(model)), signal)
          break
        } catch (error) {
          // All users of this load had left, so it was given up just when this user came. It is tried again.
          if (error !== UNWANTED) throw error
        }
      if (model.engine === null) throw closing()
      return { engine: model.engine, release }
    } catch (error) {
      release()
      throw error
    }
  }

  /** Unloads the model. Returns false when it was not loaded. @throws KvfoldError model/busy while requests use it */
  async unload(model: ServedModel): Promise<boolean> {
    if (model.engine === null) {
      // A keep-alive that was set before, such as 0, must not end the model's next use.
      if (model.users === 0) model.keepAliveMs = null
      return false
    }
    if (model.users > 0)
      throw new KvfoldError('model/busy', `${model.name} answers ${model.users} requests; unload it when they have ended.`)
    await model.unload()
    return true
  }

  /**
   * Sets how long the model stays loaded after its last use, in milliseconds or Infinity, until it is unloaded. 0 takes effect after the
   * next use.
   */
  keep(model: ServedModel, milliseconds: number): void {
    model.keepAliveMs = milliseconds
    if (model.users === 0 && milliseconds > 0) this.#startClock(model)
  }

  /**
   * Makes all loaded engines forget the conversation, and waits for engines that are being unloaded. Then no engine holds it in memory. An
   * engine that was unloaded may have saved cells of it on disk.
   */
  async erase(conversation: ConversationId): Promise<void> {
    const erased = this.#everyModel.map(async ({ engine }) => {
      if (engine?.erase === undefined) engine?.forget(conversation)
      else await engine.erase(conversation)
    })
    await Promise.all([...erased, this.#left()])
  }

  /** Unloads all models, also those in use. */
  async close(): Promise<void> {
    this.#closed = true
    for (const heard of [...this.#idle]) heard()
    await this.#loading.catch(() => undefined)
    await Promise.all(this.#everyModel.map((model) => model.unload()))
  }

  /**
   * Queues a load. Only one model loads at a time, because free memory is known only after a load. All users of a model wait for the same
   * load.
   */
  #queuedLoad(model: ServedModel): Promise<void> {
    const load = () => this.#load(model)
    const loading = this.#loading.then(load, load)
    this.#loading = loading
    return loading.finally(() => {
      model.pending = null
    })
  }

  async #load(model: ServedModel): Promise<void> {
    try {
      await this.#loadWithRoom(model)
    } catch (error) {
      // `UNWANTED`: the users left, so the load did not fail.
      model.failed(error !== UNWANTED)
      throw error
    }
  }

  async #loadWithRoom(model: ServedModel): Promise<void> {
    for (;;) {
      if (model.engine !== null) return
      await this.#makePlace(model)
      await this.#left()
      if (this.#closed) throw closing()
      if (model.users === 0) throw UNWANTED
      const loaded = this.#loaded
      try {
        await model.load()
        // All its users may have left during the load, so no release starts the keep-alive timer.
        if (model.users === 0) this.#startClock(model)
        return
      } catch (error) {
        const short = error instanceof KvfoldError && error.code === 'memory/insufficient'
        // Another model was unloaded during this load, so there may be room after all.
        if (short && this.#loaded < loaded) continue
        const victim = short ? this.#victimFor(model) : undefined
        if (victim === undefined) throw error
        await victim.unload()
      }
    }
  }

  /** How many engines are loaded, without those being unloaded. */
  get #loaded(): number {
    return this.#everyModel.filter(({ engine }) => engine !== null).length
  }

  /** Resolves when no model is being unloaded. Until then its memory is still taken. */
  async #left(): Promise<void> {
    while (this.#everyModel.some(({ leaving }) => leaving !== null))
      await Promise.allSettled(this.#everyModel.flatMap(({ leaving }) => leaving ?? []))
  }

  /** Unloads unused models until fewer than `most` are loaded. Waits while all of them are in use. */
  async #makePlace(model: ServedModel): Promise<void> {
    if (model.users === 0) throw UNWANTED
    const { most } = this.options
    if (most === undefined || !this.#models.includes(model)) return
    const isFull = () => this.#models.filter(({ engine }) => engine !== null).length >= most
    if (!isFull()) return
    let feed = (): void => undefined
    const fed = new Promise<void>((resolve) => (feed = resolve))
    this.#hungry = { model, fed }
    try {
      while (isFull() && !this.#closed) {
        const victim = longestUnused(this.#models)
        if (victim !== undefined) await victim.unload()
        else await this.#nextIdle()
        if (model.users === 0) throw UNWANTED
      }
    } finally {
      this.#hungry = null
      feed()
    }
  }

  #nextIdle(): Promise<void> {
    return new Promise((resolve) => {
      const heard = () => {
        this.#idle.delete(heard)
        resolve()
      }
      this.#idle.add(heard)
    })
  }

  /**
   * Returns an unused model to unload when memory for this one is short; undefined when there is none. Models for attention go first; they
   * never displace a served model.
   */
  #victimFor(model: ServedModel): ServedModel | undefined {
    return (
      longestUnused([...this.#attentionModels.values()]) ??
      (this.#models.includes(model) ? longestUnused(this.#models) : undefined)
    )
  }

  #startClock(model: ServedModel): void {
    const { keepAliveMs, attentionKeepAliveMs = ATTENTION_KEEP_ALIVE } = this.options
    const limit = model.keepAliveMs ?? (this.#models.includes(model) ? keepAliveMs : attentionKeepAliveMs)
    if (model.engine === null) return
    if (limit === undefined || limit === Infinity) model.stopClock()
    else model.startClock(limit)
  }
}

const cancelled = (): KvfoldError =>
  new KvfoldError('engine/cancelled', 'The request was cancelled while its model waited to be loaded.')
/** The error that ends a load when all users of the model have left. */
const UNWANTED = cancelled()

/** Waits for the promise. @throws KvfoldError engine/cancelled when the signal is aborted first */
const unlessCancelled = <T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> =>
  unlessAborted(promise, signal).catch((error: unknown) => {
    throw signal?.aborted === true ? cancelled() : error
  })

/** Returns the loaded model without users whose last use is longest ago. */
const longestUnused = (models: readonly ServedModel[]): ServedModel | undefined =>
  models.filter(({ engine, users }) => engine !== null && users === 0).sort((a, b) => a.idleSince - b.idleSince)[0]

/** The longest timeout of Node, in milliseconds. A longer one would fire at once. */
const LONGEST = 2 ** 31 - 1

export class ServedModel {
  engine: ServedEngine | null = null
  users = 0
  /** When the last use ended, by `performance.now`. */
  idleSince = performance.now()
  /** The keep-alive that `Models.keep` set, in milliseconds; null: that of `ModelsOptions`. Unloading resets it to null. */
  keepAliveMs: number | null = null
  /** The running load, shared by all users. */
  pending: Promise<void> | null = null
  /** Resolves when the engine that `unload` removed has freed its memory; null when none is ending. */
  leaving: Promise<void> | null = null
  #failed = false
  /** When the keep-alive ends, in Unix milliseconds; null while the model is in use or stays loaded. */
  #until: number | null = null
  readonly #since = Math.floor(Date.now() / 1000)
  #state: ModelStatus['state'] = 'unloaded'
  #clock: NodeJS.Timeout | null = null
  #embedder: Promise<Embedder> | null = null
  /** The facts of the latest load; they outlive an unload. */
  #known: KnownModel | null = null
  /** The current scales of the adapters, indexed by adapter id. */
  #scales: readonly number[]

  constructor(
    public source: ModelSource,
    private readonly onLeave?: (engine: ServedEngine) => void,
    private readonly onState?: () => void,
  ) {
    this.#scales = (source.adapters ?? []).map(({ scale }) => scale)
  }

  get name(): string {
    return this.source.name
  }

  get aliases(): readonly string[] {
    return this.source.aliases ?? []
  }

  /** The adapters with their current scales. */
  get adapters(): readonly AdapterInfo[] {
    return (this.source.adapters ?? []).map((adapter) => ({ ...adapter, scale: this.#scales[adapter.id]! }))
  }

  /** Sets the scales of the adapters. Adapters that the list leaves out get 0. @throws KvfoldError engine/bad-request */
  scaleAdapters(scales: readonly AdapterScale[]): void {
    const named = scalesOf(scales, this.adapters)
    this.#scales = this.adapters.map(({ id }) => named.find((each) => each.id === id)?.scale ?? 0)
  }

  /**
   * Returns the adapters for a request: those of `lora`, else the adapter called `name` at scale 1, else all at their current scales.
   * Undefined for a model without adapters.
   * @throws KvfoldError engine/bad-request
   */
  adaptersFor(name: string | undefined, lora: readonly AdapterScale[] | undefined): readonly AdapterScale[] | undefined {
    const { adapters } = this
    if (lora !== undefined) return scalesOf(lora, adapters)
    if (adapters.length === 0) return undefined
    const named = this.adapterCalled(name)
    return (named === undefined ? adapters : [{ ...named, scale: 1 }]).map(({ id, scale }) => ({ id, scale }))
  }

  /** Returns the adapter with this name; undefined when the name is the model's own, or no adapter has it. */
  adapterCalled(name: string | undefined): AdapterInfo | undefined {
    return name === this.name ? undefined : this.adapters.find((adapter) => adapter.name === name)
  }

  get slots(): number {
    return this.source.slots
  }

  get status(): ModelStatus {
    const { engine, name, aliases, adapters, users } = this
    return {
      name,
      aliases,
      adapters: adapters.map((adapter) => adapter.name),
      state: this.#state,
      failed: this.#failed,
      bytes: this.source.file?.size ?? null,
      until: this.#until,
      since: this.#since,
      running: users,
      idleMs: users > 0 ? 0 : Math.round(performance.now() - this.idleSince),
      loaded:
        engine === null
          ? null
          : {
              ...this.#factsOf(engine),
              engine: engine.info.engine,
              cache: engine.cacheTotals ?? null,
              abilities: engine.abilities ?? null,
              boundsReasoning: engine.boundsReasoning === true,
              submitted: engine.submitted ?? null,
              engines: engine.engines ?? null,
              enginesProblem: engine.enginesProblem ?? null,
            },
    }
  }

  /** Facts of the loaded model, or of its latest load; null before the first load. */
  get facts(): KnownModel | null {
    const { engine } = this
    if (engine === null) return this.#known
    return { ...this.#factsOf(engine), chatTemplate: engine.chatTemplate ?? null }
  }

  #factsOf(engine: ServedEngine): Omit<KnownModel, 'chatTemplate'> {
    return {
      title: engine.info.base ?? engine.info.model,
      release: engine.info.release,
      context: engine.info.context,
      slots: this.slots,
      ends: endsOf(engine),
      numbers: numbersOf(engine),
      sampling: engine.samplingDefaults ?? null,
    }
  }

  /** Returns the embedder, made at the first call; null when the model makes no embeddings. The caller must hold a lease. */
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

  /** Loads the engine. The previous engine must be gone. After an error, call `load` again or `failed`. */
  async load(): Promise<void> {
    this.#become('loading')
    this.engine = await this.source.load()
    this.#known = this.facts
    this.#become('loaded', false)
  }

  /** Ends a load that did not succeed. @param told false: the load was given up, and does not count as a failure */
  failed(told: boolean): void {
    if (this.#state === 'loading') this.#become('unloaded', told || this.#failed)
  }

  #become(state: ModelStatus['state'], failed = this.#failed): void {
    const isNew = state !== this.#state
    this.#state = state
    this.#failed = failed
    if (isNew) this.onState?.()
  }

  async unload(): Promise<void> {
    this.stopClock()
    const { engine } = this
    const embedder = this.#embedder
    this.engine = this.#embedder = this.keepAliveMs = null
    this.#become('unloaded')
    if (engine !== null)
      this.leaving = this.#leave(engine, embedder).finally(() => {
        this.leaving = null
      })
    await this.leaving
  }

  async #leave(engine: ServedEngine, embedder: Promise<Embedder> | null): Promise<void> {
    await (await embedder?.catch(() => null))?.dispose()
    this.onLeave?.(engine)
    await engine.dispose()
  }

  startClock(milliseconds: number): void {
    this.stopClock()
    this.#until = Date.now() + milliseconds
    this.#clock = setTimeout(
      () => {
        if (milliseconds > LONGEST) this.startClock(milliseconds - LONGEST)
        // If the engine fails to end, its memory stays taken, and a later load that lacks memory reports it.
        else if (this.users === 0) void this.unload().catch(() => undefined)
      },
      Math.min(milliseconds, LONGEST),
    ).unref()
  }

  stopClock(): void {
    if (this.#clock !== null) clearTimeout(this.#clock)
    this.#clock = this.#until = null
  }
}

// Gives threads access to an engine that may be loaded and unloaded in between.

/**
 * Returns a function that makes a thread's ports: the engine functions that its conversation calls, such as counting tokens. Each call uses
 * the engine that the model has at that moment, so the caller must hold a lease. `embedderOf` returns the embedding function of a tenant's
 * searches.
 */
export function livePorts(
  models: Models,
  costlyFolds: CostlyFolds,
  embedderOf: (tenant: Tenant) => ConversationPorts['embed'],
): (thread: Thread) => ConversationPorts {
  return (thread) => {
    let known: (Thread['prompted'] & { readonly engine: ServedEngine; readonly ports: ConversationPorts }) | null = null
    const live = (): ConversationPorts => {
      const { engine } = models.named(thread.model)
      invariant(engine !== null, `model ${thread.model} was used while it was not loaded`)
      const { tools, variables, lora } = thread.prompted
      // Ports cache token counts, so they are kept until the engine or the head of the prompt changes.
      const head = { tools, variables, ...definedFields({ lora }) }
      if (known?.engine !== engine || known.tools !== tools || known.variables !== variables || known.lora !== lora) {
        const ports = portsOf(engine, conversationId(thread.id), tools, { ...head, tenant: thread.engineTenant })
        known = { ...head, engine, ports }
      }
      return known.ports
    }
    return {
      snap: (...asked) => live().snap!(...asked),
      count: (...asked) => live().count!(...asked),
      costlyFolds,
      ...definedFields({ embed: embedderOf(thread.tenant) }),
      get estimates() {
        return live().estimates ?? false
      },
      summarize: (...asked) => live().summarize!(...asked),
    }
  }
}

function numbersOf({ model }: ServedEngine): ModelNumbers | null {
  if (model === undefined) return null
  const { parameters, size: bytes, embedding, trainedContext, vocabulary, vocabType, metadata } = model.info
  const quantization = fileTypeOf(metadata['general.file_type'])
  return { parameters, bytes, embedding, trainedContext, vocabulary, vocabType, quantization }
}

/** Returns the texts of the model's BOS and EOS tokens; null when the vocabulary is in another process. */
function endsOf({ model }: ServedEngine): NonNullable<ModelStatus['loaded']>['ends'] {
  if (model === undefined) return null
  const { bos, eos } = model.special
  const text = (token: number | null) => (token === null ? null : model.detokenize([token], true))
  return { bos: text(bos), eos: text(eos) }
}
