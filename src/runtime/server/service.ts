/** The service behind every route. It takes a request through the queue to a model and a thread, and returns the answer. */
import type { ChatFormat, RenderRequest } from '../chat/format.js'
import type { ChatMessage, ToolDefinition } from '../chat/message.js'
import type { CostlyFolds } from '../context/fragment.js'
import { Feed } from '../core/feed.js'
import { conversationId } from '../core/ids.js'
import { definedFields } from '../core/json.js'
import { KvfoldError } from '../core/errors.js'
import { joined } from '../core/signals.js'
import { atOnce, inTurns, type Steps, turn } from '../core/turns.js'
import type { AdapterInfo } from '../engine/adapters.js'
import type { AdapterScale, Finish } from '../engine/engine.js'
import {
  closing,
  isRefusal,
  late,
  Overloaded,
  type Answer,
  type Ask,
  type Asked,
  type AskEvent,
  type CompletionAnswer,
  type CompletionAsk,
  type CompletionAsked,
  type EmbedAnswer,
  type EmbedAsk,
  type PromptAsk,
  type RerankAnswer,
  type RerankAsk,
  type ScoreAsk,
  type SideModelStatus,
  variablesOf,
  type ServedFile,
} from './ask.js'
import { digestOf, factsOf } from '../models/facts.js'
import { refuseUnfoldable } from '../engine/model-facts.js'
import { MemoryResponses, Responses, type ResponseStore } from './responses/responses.js'
import { answer, checkAsk, several, sharingPrompt, type AskDefaults } from './threads/answering.js'
import { saltDigest } from './threads/cache-salt.js'
import { countCleared } from './threads/context-edits.js'
import type { OperatorTools } from './threads/server-tools.js'
import { ThreadManager, type ThreadManagerOptions } from './threads/thread-manager.js'
import { complete, RecentCompletions, refuseForeign, type Slot, vocabularyOf } from './threads/completing.js'
import { MemoryStore } from './threads/memory-store.js'
import { livePorts, type ServedModel, Models, type ModelsOptions, type ModelSource, type ServedEngine } from './threads/models.js'
import { Operations } from './threads/thread-operations.js'
import { Queue, QueueFull } from './threads/queue.js'
import { SideModels, type SideModelsOptions } from './side-model.js'
import { type KnownModel, type ModelStatus, SavedToday, type ServiceStatus, storeStatus } from './threads/status.js'
import type { Damage } from '../store/damage.js'
import type { SavedThreads, ThreadStore } from '../store/port.js'

export interface ServiceOptions
  extends
    SideModelsOptions,
    Omit<ModelsOptions, 'onLeave'>,
    Omit<ThreadManagerOptions, 'store' | 'portsOf' | 'forget' | 'erase'> {
  /** The models to serve; requests without a model name get the first. At least one, unless there is a `folder`. */
  readonly models: readonly ModelSource[]
  /** Where threads are kept. Default: in memory. */
  readonly store?: ThreadStore
  /** The cells that engines saved on disk. A thread's cells are deleted with it, even while its model is not loaded. Default: none. */
  readonly cells?: SavedThreads
  /** Where responses are kept. Default: in memory. */
  readonly responses?: ResponseStore
  /** How many requests may wait for a slot, per model. Default 128. */
  readonly queueLimit?: number
  /** Time limit in milliseconds for requests that set none. Default: no limit. */
  readonly timeoutMs?: number
  /** Settings for requests that leave them out. Default: acm off, overflow refuse, client edits exact. */
  readonly defaults?: Partial<AskDefaults>
  /** Tools of the operator's MCP servers. Requests with `acm: memtool` can use them besides their own. Default: none. */
  readonly operatorTools?: OperatorTools
  /** Counts the tokens saved today. Default: a counter that starts with this process. */
  readonly savedToday?: SavedToday
  /**
   * Whether folds and summaries are allowed that take at least as many tokens as the text they hide, by the model, people or programs.
   * Requests may override it. Default `refuse`.
   */
  readonly costlyFolds?: CostlyFolds
}

type Commons = Pick<Ask, 'tenant' | 'model' | 'lora' | 'priority' | 'timeoutMs' | 'signal' | 'follows'>

/** Default of `queueLimit`. */
const QUEUE_LIMIT = 128
/** Weight of the latest request in the running mean `#mean`. */
const RECENT = 0.2

/**
 * The operations behind every route. Methods that name a model load it if necessary, unless their comment says otherwise.
 * @throws KvfoldError model/not-found for unknown names
 */
export class ThreadService {
  /** Operations on threads, for programs and people. */
  readonly threads: Operations
  /** Stored answers of `/v1/responses`, which clients can fetch again. */
  readonly responses: Responses
  readonly #manager: ThreadManager
  readonly #models: Models
  readonly #queues = new Map<ServedModel, Queue>()
  readonly #completions: RecentCompletions
  readonly #side: SideModels
  readonly #store: ThreadStore
  readonly #defaults: AskDefaults
  readonly #running = new Set<Promise<unknown>>()
  readonly #ending = new AbortController()
  readonly #asks = { done: 0, failed: 0, cancelled: 0, refused: 0 }
  /** Running mean of the milliseconds that a request holds its slot, for `Retry-After`. */
  #mean = 1000
  #closing: Promise<void> | null = null

  private constructor(
    private readonly options: ServiceOptions & { readonly savedToday: SavedToday },
    parts: {
      readonly store: ThreadStore
      readonly models: Models
      readonly side: SideModels
      readonly manager: ThreadManager
      readonly completions: RecentCompletions
    },
  ) {
    this.#store = parts.store
    this.#models = parts.models
    this.#manager = parts.manager
    this.#completions = parts.completions
    this.threads = new Operations(parts.manager, parts.models)
    this.responses = new Responses(options.responses ?? new MemoryResponses(), this.threads, options.tell)
    this.#side = parts.side
    this.#defaults = {
      acm: 'off',
      memToolMode: 'hybrid',
      policy: {},
      overflow: 'refuse',
      clientEdits: 'exact',
      ...options.defaults,
    }
  }

  /**
   * Reads the store, but loads no model. @throws KvfoldError engine/bad-request without models and folder, or when two models have one name
   */
  static async open(options: ServiceOptions): Promise<ThreadService> {
    const store = options.store ?? new MemoryStore()
    const completions = new RecentCompletions()
    const onLeave = (engine: ServedEngine) => {
      completions.drop(engine)
    }
    const models = new Models(options.models, { ...options, onLeave })
    const side = new SideModels(models, options.queueLimit ?? QUEUE_LIMIT, options)
    const manager = await ThreadManager.open({
      ...options,
      store,
      portsOf: livePorts(models, options.costlyFolds ?? 'refuse', (tenant) => side.embedderOf(tenant)),
      forget: ({ id, model }) => models.all.find(({ name }) => name === model)?.engine?.forget(conversationId(id)),
      erase: async (ids) => {
        await Promise.all(ids.map((id) => models.erase(conversationId(id))))
        // Drop them last: an engine that was being unloaded may have saved cells until now.
        await options.cells?.drop(ids)
      },
    })
    return new ThreadService({ savedToday: new SavedToday(), ...options }, { store, models, side, manager, completions })
  }

  /**
   * Starts a request. Errors come through `Asked`: server/overloaded, server/timeout, server/no-thread, context/full, engine/*, chat/*,
   * memory/insufficient.
   */
  ask(ask: Ask): Asked {
    return new Feed<AskEvent, Answer>((emit) => this.#ask(ask, emit))
  }

  /** Starts `n` answers (1 to 16) to the same messages, each in its own thread. The prompt is computed once. */
  several(ask: Ask, n: number): readonly Asked[] {
    const { appended = false, thread, tenant } = ask
    const view =
      appended && thread !== undefined && n > 1
        ? this.threads.reading(() => [...this.threads.view(tenant, thread)])
        : Promise.resolve(null)
    return several(ask, n, view, (each, emit) => this.#ask(each, emit))
  }

  complete(ask: CompletionAsk): CompletionAsked {
    return new Feed<AskEvent, CompletionAnswer>((emit) => this.#complete(ask, emit))
  }

  /**
   * Starts the completions of one request: `each` answers to a prompt, then those to the next prompt. Each prompt is computed once,
   * unless its log-probabilities are wanted.
   */
  completeAll(asks: readonly CompletionAsk[], each: number): readonly CompletionAsked[] {
    const all = asks.map((ask, at) => () => Promise.resolve({ ...ask, follows: at > 0 }))
    return Array.from({ length: Math.ceil(all.length / each) }, (_, prompt) =>
      sharingPrompt(all.slice(prompt * each, (prompt + 1) * each), (ask: CompletionAsk, emit) => this.#complete(ask, emit)),
    ).flat()
  }

  #complete(ask: CompletionAsk, emit: (event: AskEvent) => void): Promise<CompletionAnswer> {
    return this.#run(ask, emit, (slot) =>
      complete({ ...ask, ...definedFields({ lora: slot.lora }) }, slot, this.#completions, emit),
    )
  }

  #queueOf(model: ServedModel): Queue {
    const queue = this.#queues.get(model) ?? new Queue({ slots: model.slots, limit: this.options.queueLimit ?? QUEUE_LIMIT })
    this.#queues.set(model, queue)
    return queue
  }

  /** Whether a folder of models is served, whose models are loaded when a request names them. */
  get loadsOnDemand(): boolean {
    return this.#models.hasFolder
  }

  /** Unloads the model; its threads stay. Returns false when it was not loaded. @throws KvfoldError model/busy while it is used */
  async unload(name?: string): Promise<boolean> {
    return this.#models.unload(this.#pick(name))
  }

  /**
   * Sets how long the model stays loaded after its last use, in milliseconds or Infinity, until it is unloaded. 0 unloads it after its next
   * use.
   */
  keep(name: string | undefined, milliseconds: number): void {
    this.#models.keep(this.#pick(name), milliseconds)
  }

  /** Returns the model's files and their facts without loading the model; null when the files are unknown. */
  async file(name: string | undefined): Promise<ServedFile | null> {
    const { file } = this.#pick(name).source
    if (file === undefined) return null
    const { parts, size, modified } = file
    // Facts are null if the header cannot be read. Loading the model then reports why.
    const facts = await factsOf(parts).catch(() => null)
    return { size, modified, facts, digest: digestOf(parts).catch(() => '') }
  }

  /** The adapters of a model (default: the first) with their current scales, without loading the model. */
  adapters(model?: string): readonly AdapterInfo[] {
    return this.#pick(model).adapters
  }

  /**
   * Sets the scales for requests that name no adapters. Adapters that `scales` leaves out get 0.
   * @throws KvfoldError engine/bad-request for an unknown adapter id
   */
  scaleAdapters(model: string | undefined, scales: readonly AdapterScale[]): void {
    this.#pick(model).scaleAdapters(scales)
  }

  /** The models in order of preference, without loading any. */
  models(): readonly ModelStatus[] {
    return this.#models.all.map((model) => ({ ...model.status, running: this.#queues.get(model)?.running ?? 0 }))
  }

  /**
   * The status of the model with this name, alias or adapter name (default: the first), without loading it. @throws KvfoldError
   * model/not-found
   */
  model(name?: string): ModelStatus {
    const picked = this.#pick(name)
    return this.models().find((model) => model.name === picked.name)!
  }

  /** Calls `listener` when a model begins to load, is loaded, fails to load or is unloaded. Returns a function that stops this. */
  watchModels = (listener: (model: ModelStatus) => void): (() => void) => this.#models.watch(listener)

  /**
   * Loads the model (default: the first) and returns its status. Here and in the methods below, an aborted `signal` ends the wait for the
   * model with engine/cancelled.
   */
  load = (name?: string, signal?: AbortSignal): Promise<ModelStatus> => this.#using(name, signal, () => this.model(name))

  /**
   * Returns the tokens of a text. `special`: control tokens written in the text become single tokens. `bos`: the vocabulary's begin tokens
   * (BOS) are added.
   */
  tokenize(
    model: string | undefined,
    text: string,
    of: { readonly special?: boolean; readonly bos?: boolean; readonly signal?: AbortSignal } = {},
  ): Promise<Int32Array> {
    const options = { parseSpecial: of.special ?? false, addSpecial: of.bos ?? false }
    return this.#using(model, of.signal, async (engine) => (await vocabularyOf(engine).tokenizeAll([text], options))[0]!)
  }

  async detokenize(model: string | undefined, tokens: ArrayLike<number>, signal?: AbortSignal): Promise<string> {
    const pieces = await this.pieces(model, tokens, signal)
    const texts: Buffer[] = []
    for (let at = 0; at < pieces.length; at += STEP) {
      texts.push(Buffer.concat(pieces.slice(at, at + STEP)))
      if (pieces.length > STEP) await turn()
    }
    return Buffer.concat(texts).toString()
  }

  /** Returns the bytes of each token. */
  pieces(model: string | undefined, tokens: ArrayLike<number>, signal?: AbortSignal): Promise<readonly Buffer[]> {
    return this.#using(model, signal, (engine) => {
      const vocabulary = vocabularyOf(engine)
      refuseForeign(tokens, vocabulary.info.vocabulary)
      const steps = piecesInSteps(tokens, (token) => Buffer.from(vocabulary.piece(token, true)))
      return tokens.length <= STEP ? atOnce(steps) : inTurns(steps)
    })
  }

  /** Facts of a model (default: the first): of the loaded model, or of its latest load. Null before the first load. */
  facts = (model?: string): KnownModel | null => this.#pick(model).facts

  /**
   * Returns the prompt text that the model's chat template makes of these messages.
   * @throws KvfoldError model/unsupported when another server has the template
   */
  prompt(ask: PromptAsk): Promise<string> {
    return this.#using(ask.model, ask.signal, (engine) => formatFor(ask, engine).textInTurns(promptOf(ask)))
  }

  /** Returns the tokens of that prompt. @throws KvfoldError model/unsupported as `prompt` */
  promptTokens(ask: PromptAsk): Promise<Int32Array> {
    return this.#using(
      ask.model,
      ask.signal,
      async (engine) => (await formatFor(ask, engine).renderInTurns(promptOf(ask))).tokens,
    )
  }

  /** Counts the prompt's tokens for these messages and template variables, after `clear` was applied as in a new thread. */
  count(
    model: string | undefined,
    messages: readonly ChatMessage[],
    tools: readonly ToolDefinition[],
    { clear, template, signal }: Pick<Ask, 'clear' | 'template' | 'signal'> = {},
  ): Promise<number> {
    const variables = variablesOf(template)
    return this.#using(model, signal, async (engine) => {
      await engine.prepare?.(messages, tools, [], variables)
      return clear === undefined
        ? engine.count(messages, tools, [], variables)
        : inTurns(countCleared(engine, messages, tools, clear, variables))
    })
  }

  /** The models that make embeddings or rankings and no text, without loading any. */
  sideModels(): readonly SideModelStatus[] {
    return this.#side.status
  }

  /** Returns one embedding vector of length 1 per input. @throws KvfoldError model/unsupported when the model makes no embeddings */
  embed(ask: EmbedAsk): Promise<EmbedAnswer> {
    return this.#aside(ask.signal, (signal) => this.#side.embed(ask, signal))
  }

  /** Scores how well each document answers the query. @throws KvfoldError model/unsupported without a reranker */
  rerank(ask: RerankAsk): Promise<RerankAnswer> {
    return this.#aside(ask.signal, (signal) => this.#side.rerank(ask, signal))
  }

  /**
   * Scores how well the two texts of each pair fit: by the reranker, or without one by the cosine of their embeddings.
   * @throws KvfoldError model/unsupported when there is neither
   */
  score(ask: ScoreAsk): Promise<RerankAnswer> {
    return this.#aside(ask.signal, (signal) => this.#side.score(ask, signal))
  }

  /** Runs work without a thread, within the server's time limit. The work ends early when the server closes. */
  async #aside<R>(given: AbortSignal | undefined, begin: (signal: AbortSignal) => Promise<R>): Promise<R> {
    if (this.#closing !== null) throw closing()
    const { timeoutMs } = this.options
    const limit = timeoutMs === undefined ? null : AbortSignal.timeout(timeoutMs)
    const { signal, release } = joined([given, limit, this.#ending.signal])
    const running = begin(signal)
    this.#running.add(running)
    try {
      return await running
    } catch (error) {
      if (limit?.aborted === true) throw late(timeoutMs)
      if (this.#ending.signal.aborted) throw closing()
      throw error
    } finally {
      release()
      this.#running.delete(running)
    }
  }

  /** A snapshot for health, metrics and the dashboard. Cheap enough for polling. */
  status(): ServiceStatus {
    const queues = [...this.#queues.values()]
    const servers = this.options.operatorTools?.servers ?? []
    return {
      models: this.models(),
      toolServers: servers.map(({ name, state, problem, tools }) => ({ name, state, problem, tools: tools.length })),
      running: queues.reduce((sum, { running }) => sum + running, 0),
      queue: { waiting: queues.reduce((sum, { waiting }) => sum + waiting, 0), limit: this.options.queueLimit ?? 128 },
      threads: this.#manager.size,
      loaded: this.#manager.loaded,
      damaged: { threads: open(this.#store.damage()), responses: open(this.responses.damage()) },
      ...storeStatus(this.#store),
      savedToday: this.options.savedToday.tokens,
      asks: { ...this.#asks },
      closing: this.#closing !== null,
    }
  }

  /**
   * Accepts no more requests, waits `graceMs` for the running ones, cancels the others, and unloads the models. Calling it again does
   * nothing more.
   */
  close = (graceMs = 0): Promise<void> => (this.#closing ??= this.#close(graceMs))

  async #close(graceMs: number): Promise<void> {
    for (const queue of [...this.#queues.values(), this.#side]) queue.refuseAll(closing())
    const cut = setTimeout(() => {
      this.#ending.abort()
    }, graceMs)
    await Promise.allSettled(this.#running)
    clearTimeout(cut)
    await this.#side.close()
    await this.#models.close()
    this.#manager.close()
    this.responses.close()
    await this.#store.close()
  }

  async #ask(given: Ask, emit: (event: AskEvent) => void): Promise<Answer> {
    const leftOut = await checkAsk({ ...given, acm: given.acm ?? this.#defaults.acm })
    return this.#run(given, emit, async ({ model, called, lora, engine, signal, waited }) => {
      const ask = { ...given, ...definedFields({ lora }) }
      refuseUnfoldable(ask.messages, engine.info.context, engine.model?.info ?? null)
      const taken = await this.#manager.take({ ...ask, salt: saltDigest(ask.tenant, ask.cacheSalt), model: model.name }, signal)
      try {
        emit({ type: 'started', thread: taken.thread.id, model: called })
        const save = () => taken.thread.alone(() => this.#manager.save(taken.thread, 'message'))
        const { operatorTools = null } = this.options
        const told = { compaction: false }
        const telling = (event: AskEvent) => {
          told.compaction ||= event.type === 'compaction' && event.content !== null
          emit(event)
        }
        try {
          const ports = { operatorTools, embedder: this.#side.toolEmbedder }
          const options = { ask, taken, engine, defaults: this.#defaults, ...ports, signal, emit: telling, leftOut, save }
          const done = await answer(options)
          this.options.savedToday.add(done.usage.saved?.tokens ?? 0)
          // With `maxTokens: 0` only the prompt was computed. A cut answer that the client sent back as `beginning` stays the thread's last
          // message.
          if (ask.maxTokens === 0 && ask.beginning !== undefined && taken.before !== null)
            await this.#manager.refused(taken, true)
          // The client got no whole answer, so its next request will still have the messages, or the response id, from before the
          // compaction.
          if (told.compaction && done.finish === 'cancelled') {
            await this.#manager.refused(taken, true)
            // The thread does not keep this cancelled text, so the message must not be marked `cut`.
            return { ...done, message: uncut(done.message), model: called, waited }
          }
          return { ...done, model: called, waited }
        } catch (error) {
          // `take` may have removed a cut answer that the client sent back as `beginning`; restoring the thread brings it back.
          const gaveUp = told.compaction || (ask.beginning !== undefined && taken.before !== null)
          if (isRefusal(error) || gaveUp) await this.#manager.refused(taken, gaveUp)
          throw error
        } finally {
          await save()
        }
      } finally {
        await this.#manager.give(taken.thread)
      }
    })
  }

  /** Runs `work` with a slot and a loaded model, within the time limit, and counts how it ended. */
  #run<A extends { readonly finish: Finish }>(
    ask: Commons,
    emit: (event: AskEvent) => void,
    work: (slot: Slot) => Promise<A>,
  ): Promise<A> {
    const running = this.#limited(ask, emit, work)
    this.#running.add(running)
    const counted = (how: keyof ServiceStatus['asks']) => {
      this.#asks[how]++
      this.#running.delete(running)
    }
    running.then(
      ({ finish }) => {
        counted(finish === 'cancelled' ? 'cancelled' : 'done')
      },
      (error: unknown) => {
        const code = error instanceof KvfoldError ? error.code : null
        counted(code === 'server/overloaded' ? 'refused' : code === 'engine/cancelled' ? 'cancelled' : 'failed')
      },
    )
    return running
  }

  async #limited<A extends { readonly finish: Finish }>(
    {
      tenant,
      model: name,
      lora: adapters,
      priority = 0,
      timeoutMs = this.options.timeoutMs,
      signal: client,
      follows = false,
    }: Commons,
    emit: (event: AskEvent) => void,
    work: (slot: Slot) => Promise<A>,
  ): Promise<A> {
    if (this.#closing !== null) throw closing()
    const model = this.#pick(name)
    const lora = model.adaptersFor(name, adapters)
    const called = model.adapterCalled(name)?.name ?? model.name
    const queue = this.#queueOf(model)
    const limit = timeoutMs === undefined ? null : AbortSignal.timeout(timeoutMs)
    const { signal, release } = joined([client, limit, this.#ending.signal])
    const asked = performance.now()
    let leave = (): void => undefined
    try {
      const onPosition = (position: number) => {
        emit({ type: 'queued', position })
      }
      leave = await queue.enter({ tenant, priority, signal, follows, onPosition }).catch((error: unknown) => {
        throw error instanceof QueueFull ? this.#overloaded(error.waiting, model) : error
      })
      const lease = await this.#models.lease(model, { signal, yields: true })
      const began = performance.now()
      try {
        signal.throwIfAborted()
        const done = await work({ model, called, lora, engine: lease.engine, signal, waited: began - asked })
        if (done.finish === 'cancelled' && limit?.aborted === true) throw late(timeoutMs)
        return done
      } finally {
        lease.release()
        this.#mean += RECENT * (performance.now() - began - this.#mean)
      }
    } catch (error) {
      if (limit?.aborted === true) throw late(timeoutMs)
      if (this.#ending.signal.aborted && !(error instanceof KvfoldError && error.code !== 'engine/cancelled')) throw closing()
      if (client?.aborted === true && !(error instanceof KvfoldError))
        throw new KvfoldError('engine/cancelled', 'The request was cancelled before it began.')
      throw error
    } finally {
      release()
      leave()
    }
  }

  /**
   * Returns the model with this name or alias; without a name, the first.
   * @throws KvfoldError model/not-found; model/unsupported for a model that makes only embeddings or rankings
   */
  #pick(name: string | undefined): ServedModel {
    const isServed = name === undefined || this.#models.all.some((model) => model.name === name)
    const side = isServed ? undefined : this.sideModels().find((model) => model.name === name)
    if (side !== undefined) throw new KvfoldError('model/unsupported', `${side.name} makes only ${side.use}; ask another model.`)
    return this.#models.pick(name)
  }

  #overloaded(waiting: number, { name, slots }: ServedModel): Overloaded {
    const seconds = Math.max(1, Math.ceil((waiting * this.#mean) / slots / 1000))
    return new Overloaded(
      `The queue of ${name} is full with ${waiting} requests; try again in about ${seconds} s, or start the server with a longer queue.`,
      seconds,
    )
  }

  /** Runs work that needs a loaded model but no slot. `signal` ends the wait for the model. */
  async #using<T>(
    name: string | undefined,
    signal: AbortSignal | undefined,
    work: (engine: ServedEngine) => T | Promise<T>,
  ): Promise<T> {
    if (this.#closing !== null) throw closing()
    const lease = await this.#models.lease(this.#pick(name), definedFields({ signal }))
    try {
      return await work(lease.engine)
    } finally {
      lease.release()
    }
  }
}

/** Tokens processed between two yields to the event loop. */
const STEP = 4096

function* piecesInSteps(tokens: ArrayLike<number>, piece: (token: number) => Buffer): Steps<Buffer[]> {
  const pieces: Buffer[] = []
  for (let at = 0; at < tokens.length; at++) {
    if (at % STEP === STEP - 1) yield
    pieces.push(piece(tokens[at]!))
  }
  return pieces
}

/** Returns the chat format for a prompt. @throws KvfoldError model/unsupported where another server has the template */
function formatFor({ template }: PromptAsk, { format, info }: ServedEngine): ChatFormat {
  if (format !== undefined) return format.with(variablesOf(template))
  throw new KvfoldError('model/unsupported', `Another server has the chat template of ${info.model}; ask it for the prompt.`)
}

function promptOf({ messages, tools, beginning, generationPrompt }: PromptAsk): Omit<RenderRequest, 'edits'> {
  if (beginning === undefined) return { messages, tools, ...definedFields({ generationPrompt }) }
  return { messages: [...messages, { role: 'assistant', content: beginning }], tools, continues: true }
}

/** Counts damage that was not settled. Damage is settled once a copy of the store left the damaged item out and reported it. */
const open = (damage: readonly Damage[]): number => damage.filter(({ settled }) => settled !== true).length

/** Returns the message without the mark `cut`. */
const uncut = ({ cut: _, ...message }: ChatMessage): ChatMessage => message
