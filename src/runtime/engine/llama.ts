/** The engine over llama.cpp. It renders messages, makes the cache hold their tokens, generates the answer, and writes the ledger. */
import { freemem } from 'node:os'
import type { ChatFormat, Rendered, RenderRequest } from '../chat/format.js'
import { assistantMessage, type ChatMessage, type ToolDefinition } from '../chat/message.js'
import { ContinuationFilter, withoutHeld, type ReplyEvent } from '../chat/parser.js'
import type { ConversationId } from '../core/ids.js'
import { KvfoldError } from '../core/errors.js'
import { definedFields, weightOf } from '../core/json.js'
import type { Span } from '../core/span.js'
import { inTurns, type Steps } from '../core/turns.js'
import { OffloadTiers } from '../kv/offload.js'
import { KvCache } from '../kv/cache.js'
import { type CostModel, type TierRates, tierRatesOf } from '../kv/cost-model.js'
import { explained, type LedgerEntry } from '../kv/ledger.js'
import { CheckpointCache } from '../kv/checkpoint-cache.js'
import type { StepCache } from '../kv/step-cache.js'
import { CacheSalts } from '../kv/tenant-salts.js'
import type { CacheTotals, Residency } from '../kv/residency.js'
import type {
  FitReason,
  MemoryFigures,
  ModelInfo,
  Native,
  NativeContext,
  NativeGrammar,
  NativeModel,
  SamplerOptions,
} from '../native/types.js'
import {
  type Engine,
  type EngineInfo,
  type EngineReply,
  type EngineRequest,
  type EventStream,
  type Generation,
  generationOf,
  type Sampling,
} from './engine.js'
import { AdaptedConversations, type AdapterInfo, Adapters } from './adapters.js'
import { AttentionWatch } from './attention-capture.js'
import {
  ClientEdits,
  compiled,
  allowedTools,
  formGrammar,
  heldTo,
  isClosed,
  OwnAnswers,
  refuseBadForm,
  refuseForeign,
  wholeOf,
} from './client-request.js'
import { samplingDefaultsOf } from './sampling-defaults.js'
import { type Abilities, abilitiesOf, refusalOf, refuseHopeless } from './model-facts.js'
import { BlockWatch } from './block-watch.js'
import { BackgroundRecompute, refresh, shadowOf, type RefreshOptions, type RefreshResult } from './background-recompute.js'
import {
  bareTools,
  cannotSpeculate,
  cellsNote,
  chatFormatOf,
  type Completion,
  contextOptions,
  DEFAULT_SLOTS,
  draftsOf,
  isGuarded,
  type LlamaEngineOptions,
  NO_DRAFT_MODEL,
  recomputesInBackground,
  samplerOptions,
  termsOf,
} from './llama-options.js'
import { deviceRates } from './tier-rates.js'
import { CellPublisher, openSavedCells, type OpenCellPlaces } from './saved-cells.js'
import { DraftModel } from './draft-model.js'
import { cancelledBeforeBegin, Job, type JobRequest, type JobResult } from './job.js'
import { Scheduler } from './scheduler.js'
import { WindowGuard } from './window-guard.js'

export type { Completion, LlamaEngineOptions } from './llama-options.js'

/** Messages, tools, edits and variables of a prompt. */
type CountArguments = Parameters<Engine['count']>

/** Limits of a short prompt: characters of its texts, and messages plus tools. It is rendered in one go, which takes a few milliseconds. */
const SHORT = { characters: 16 * 1024, parts: 256 }
/** The assumed mean length of a value in a call's arguments, in characters, because `weightOf` counts each number as 1. */
const VALUE = 4

function isLong(messages: readonly ChatMessage[], tools: readonly ToolDefinition[]): boolean {
  if (messages.length + tools.length > SHORT.parts) return true
  let characters = 0
  for (const { content, reasoning = '', toolCalls } of messages) {
    characters +=
      content.length + reasoning.length + (toolCalls === undefined ? 0 : VALUE * weightOf(toolCalls, SHORT.characters))
    if (characters >= SHORT.characters) return true
  }
  return weightOf(tools, SHORT.characters) >= SHORT.characters
}

/** Returns the texts of messages that every template shows: contents and the arguments of calls. */
function* shownIn(messages: readonly ChatMessage[]): Steps<string[]> {
  const texts: string[] = []
  for (const { content, toolCalls = [] } of messages) {
    texts.push(content)
    for (const { arguments: args, malformed } of toolCalls) {
      texts.push(malformed ?? JSON.stringify(args))
      yield
    }
  }
  return texts
}

/** Loads the draft model of the options; null if they name none. Its context has as many cells, and the same threads and types. */
async function draftModelOf(
  native: Native,
  model: NativeModel,
  { cells }: NativeContext,
  options: LlamaEngineOptions,
): Promise<DraftModel | null> {
  const {
    draft,
    slots = DEFAULT_SLOTS,
    threads,
    batchThreads,
    flashAttention,
    keyType,
    valueType,
    tell = () => undefined,
  } = options
  if (draft === undefined) return null
  const own = {
    cells,
    sequences: slots,
    batch: 512,
    ...definedFields({ threads, batchThreads, flashAttention, keyType, valueType }),
  }
  return DraftModel.load(native, model, draft, own, tell)
}

const NO_BLOCKS = 'This model keeps states instead of cells, so no KV events tell of its blocks.'

export class LlamaEngine implements Engine {
  readonly info: EngineInfo
  /** The contracts that this model's edits can have. Its `notes` name the missing ones and the reasons. */
  readonly abilities: Abilities
  /** Sentences for the user: missing abilities of the model, problems of its disk cache, and an unusual number of cells. */
  readonly notes: readonly string[]
  readonly #scheduler: Scheduler
  readonly #cache: StepCache
  readonly #offload: OffloadTiers
  readonly #salts: CacheSalts
  readonly #lastRendered = new Map<ConversationId, Rendered>()
  readonly #ownAnswers: OwnAnswers
  readonly #clientEdits: ClientEdits
  readonly #adapted: AdaptedConversations
  #format: ChatFormat | null = null
  /** The measurements of this machine; null until `useCosts` and `useTierRates` set them. */
  readonly #costs: { model: CostModel | null; rates: TierRates | null } = { model: null, rates: null }
  /** Tokens that were submitted while the engine was loaded, to measure the device. `submitted` leaves them out. */
  readonly #submittedBefore: number
  /** Long prompts that are being rendered in slices. `forgotten` becomes true if `forget` is called for the conversation meanwhile. */
  readonly #rendering = new Set<{ readonly conversation: ConversationId; forgotten: boolean }>()
  readonly #recompute: BackgroundRecompute
  readonly #publisher: CellPublisher | null
  readonly #watch: BlockWatch | null
  readonly #adapters: Adapters
  #disposed = false
  /** Whether the cache was freed, so that nothing is left to forget. */
  #freed = false

  private constructor(
    private readonly native: Native,
    readonly model: NativeModel,
    private readonly context: NativeContext,
    private readonly options: LlamaEngineOptions,
    private readonly saved: OpenCellPlaces,
    adapters: Adapters,
    private readonly draft: DraftModel | null,
    /** Why the cache has another number of cells than usual (`LlamaEngineOptions.fits`); null if it has the usual number. */
    readonly sizedBy: FitReason | null,
  ) {
    const { disk, shared } = saved
    this.#adapters = adapters
    this.#submittedBefore = context.submitted
    const { trainedContext, slidingWindow } = model.info
    const hostBytes = options.hostBytes ?? Math.floor(freemem() / 4)
    this.#offload = new OffloadTiers({ hostBytes, ...(disk === null ? {} : { disk }) })
    this.#salts = new CacheSalts(options.shared?.secret ?? disk?.secret)
    this.abilities = abilitiesOf(model.info, options)
    const unseen = options.blocks === undefined || this.abilities.refusal === null ? [] : [NO_BLOCKS]
    this.notes = [
      ...this.abilities.notes,
      ...adapters.notes,
      ...(disk?.notes ?? []),
      ...unseen,
      ...(sizedBy === null ? [] : [cellsNote(context.cells, sizedBy)]),
    ]
    this.#adapted = new AdaptedConversations(() => this.#offload.all.map(({ conversation }) => conversation), adapters.set())
    this.#ownAnswers = new OwnAnswers(model)
    const { refusal } = this.abilities
    const guard = isGuarded(model.info, this.abilities) ? new WindowGuard(context, slidingWindow) : null
    this.#cache =
      refusal === null
        ? new KvCache(guard ?? context, {
            offload: this.#offload,
            costs: this.#costs,
            ...(shared === null ? {} : { shared: { tier: shared, mostBytes: () => freemem() / 2 } }),
            ...(trainedContext > 0 ? { positions: trainedContext } : {}),
          })
        : new CheckpointCache(context, { offload: this.#offload, refusal })
    this.#clientEdits = new ClientEdits(this.#cache)
    this.#scheduler = new Scheduler(model, context, this.#cache, {
      slots: options.slots ?? DEFAULT_SLOTS,
      adapters: adapters.set(),
      ...(options.maxGap === undefined ? {} : { maxGap: options.maxGap }),
      ...(guard === null ? {} : { decode: (batch, watched) => guard.decode(batch, watched) }),
      ...(draft === null ? {} : { draft }),
    })
    this.#publisher =
      shared === null
        ? null
        : new CellPublisher(async (of) => this.#cache.publish?.(of, (errand) => this.#scheduler.between(errand)))
    this.#watch =
      options.blocks === undefined || refusal !== null
        ? null
        : new BlockWatch(this.#cache, (errand) => this.#scheduler.between(errand), options.blocks, this.adapterKey)
    this.#recompute = new BackgroundRecompute({
      refresh: (name, signal) => this.#refresh(name, { when: 'idle', signal }),
      compact: (name) => this.#compact(name),
      totals: () => this.#cache.totals,
    })
    const base = model.info.metadata['general.name'] ?? model.info.description
    this.info = {
      model: [base, ...adapters.applied].join(' + '),
      ...(adapters.applied.length === 0 ? {} : { base }),
      engine: 'llama',
      release: native.backend.release,
      context: context.cells,
      ...(trainedContext > 0 ? { trained: trainedContext } : {}),
    }
  }

  /**
   * Loads the model and its adapters, and makes one context with a unified KV cache for all conversations. Frees the model's memory if that
   * fails.
   * @throws KvfoldError model/*, memory/insufficient, native/*; engine/bad-request for adapters of one name, or a missing draft model
   */
  static async load(native: Native, path: string, options: LlamaEngineOptions = {}): Promise<LlamaEngine> {
    if (options.speculate === 'draft' && options.draft === undefined) throw new KvfoldError('engine/bad-request', NO_DRAFT_MODEL)
    const model = await native.loadModel(path, options.model)
    let draft: DraftModel | null = null
    try {
      const refusal = refusalOf(model.info)
      if (refusal !== null) throw new KvfoldError('model/unsupported', refusal)
      const abilities = abilitiesOf(model.info, options)
      const isDrafting = options.speculate === 'ngram' || options.draft !== undefined
      if (isDrafting && abilities.refusal !== null) throw new KvfoldError('model/unsupported', cannotSpeculate(abilities.refusal))
      const adapters = await Adapters.load(model, options.lora)
      const { shape, sizedBy } = contextOptions(model, abilities, options)
      const context = await model.createContext(shape)
      context.useAdapters(adapters.set().applied)
      const rates = await deviceRates(native, model.info, context, options)
      const saved = await openSavedCells(model, context, options)
      draft = await draftModelOf(native, model, context, options)
      const engine = new LlamaEngine(native, model, context, options, saved, adapters, draft, sizedBy)
      engine.useTierRates(rates)
      return engine
    } catch (error) {
      await draft?.dispose()
      await model.dispose()
      throw error
    }
  }

  /** The adapters that requests may apply (`RequestScope.lora`). */
  get adapters(): readonly AdapterInfo[] {
    return this.#adapters.all
  }

  /** The key of the adapters that requests apply by default (AdapterSet.key); empty if there are none. */
  get adapterKey(): string {
    return this.#adapters.set().key
  }

  get modelInfo(): ModelInfo {
    return this.model.info
  }

  /**
   * Makes ledger entries contain the predicted time of each later step, and cells leave the device when this cost model says that it pays.
   * `kvfold calibrate` makes the cost model.
   */
  useCosts(model: CostModel): void {
    this.#costs.model = model
    this.useTierRates(tierRatesOf(model))
  }

  /** Makes cells leave the device when these rates say that it pays. Null: they leave only when others need their room. */
  useTierRates(rates: TierRates | null): void {
    this.#costs.rates = rates
  }

  get memory(): MemoryFigures {
    return this.context.memory
  }

  /** How many tokens the addon has submitted to decode since the engine was loaded. */
  get submitted(): number {
    return this.context.submitted - this.#submittedBefore
  }

  get cacheTotals(): CacheTotals {
    return this.#cache.totals
  }

  /** The source of the model's chat template; null when it has none. */
  get chatTemplate(): string | null {
    return this.options.chatTemplate ?? this.model.info.chatTemplate
  }

  /** The model's chat format. @throws KvfoldError model/no-chat-template, chat/template-failed */
  get format(): ChatFormat {
    return (this.#format ??= chatFormatOf(this.model, this.options))
  }

  respond(request: EngineRequest): Generation {
    return generationOf((stream) => this.#respond(request, stream))
  }

  /** Generates after exactly these tokens, without a template. Shares the cache with all conversations. */
  async complete(asked: Completion): Promise<JobResult> {
    this.#refuseDisposed()
    const adapters = this.#adapters.set(asked.lora)
    const request = this.#adapted.entered(asked, adapters)
    const { tokens, origin, terms } = request
    refuseForeign(tokens, this.model.info)
    const made = formGrammar(request)
    const form = made instanceof Promise ? await made : made
    const sampling = this.#samplerOf(request)
    const sampler = sampling instanceof Promise ? await sampling : sampling
    const held = form.grammar === undefined ? {} : { grammar: await compiled(this.model, form.grammar, request.signal) }
    const messages = [{ index: 0, role: 'text', span: { start: 0, end: tokens.length } }]
    return this.#submit({
      ...{ asked: request, listener: request, adapters, salt: this.#salts.of(request.tenant, adapters.key) },
      prompt: { tokens, messages, ...(origin === undefined ? {} : { origin }) },
      ...(terms === undefined ? {} : { terms }),
      sampler: { ...sampler, ...held },
    })
  }

  snap(...[messages, tools, message, chars, variables]: Parameters<Engine['snap']>): Span {
    return this.format.with(variables).snap({ messages: this.#ownAnswers.of(messages), tools, message, chars })
  }

  reads(variable: string): boolean {
    return this.format.reads(variable)
  }

  /** The sampling that the model's file recommends; llama-server's defaults if the file recommends none. */
  get samplingDefaults(): Sampling {
    return samplingDefaultsOf(this.model.info.metadata, this.context.cells)
  }

  get boundsReasoning(): boolean {
    return this.format.syntax.reasoning !== null
  }

  count(...[messages, tools, edits = [], variables]: CountArguments): number {
    return this.format.with(variables).count({ messages: this.#ownAnswers.of(messages), tools, edits })
  }

  async prepare(...[messages, tools, edits = [], variables, snaps]: Parameters<NonNullable<Engine['prepare']>>): Promise<void> {
    if (isLong(messages, tools))
      await this.format.with(variables).prepareInTurns({ messages: this.#ownAnswers.of(messages), tools, edits }, snaps)
  }

  /**
   * Returns, for each edit, in which tiers the cells of its hidden text are. Null if the template does not show all of the hidden texts.
   */
  residency(conversation: ConversationId, ...shown: CountArguments): readonly Residency[] | null {
    const { base, holes } = this.#render(...shown).origin
    if (holes.length !== (shown[2] ?? []).length) return null
    const stretches = holes.map(({ span }) => span)
    return this.#cache.residency(this.#adapted.latest(conversation), base, stretches)
  }

  /**
   * Drops, in every tier, the cells that depend on text that these edits forget. If it is not called, the next step with these edits does
   * it.
   */
  async forgetHidden(conversation: ConversationId, ...shown: CountArguments): Promise<void> {
    const rendered = this.#render(...shown)
    await Promise.all(this.#adapted.names(conversation).map((name) => this.#forgetHidden(name, rendered)))
  }

  async #forgetHidden(name: ConversationId, { tokens, origin }: Rendered): Promise<void> {
    this.#drop(shadowOf(name))
    // A running refresh computes from the old prompt, so it would compute the forgotten text again.
    this.#scheduler.cancel(name, 'refresh')
    await this.#scheduler.between(() => {
      this.draft?.forget(name)
      return this.#cache.forgetHidden(name, { tokens, messages: [], origin })
    })
  }

  /** Returns the messages as this engine shows them: without sampled tokens that are not from its vocabulary. */
  ownMessages(messages: readonly ChatMessage[]): readonly ChatMessage[] {
    return this.#ownAnswers.of(messages)
  }

  /** The conversation's ledger so far, oldest first. If the conversation changed its adapters, entries are grouped by set of adapters. */
  ledger(conversation: ConversationId): readonly LedgerEntry[] {
    return this.#adapted.names(conversation).flatMap((name) => this.#cache.ledger(name))
  }

  /**
   * Makes a spliced conversation exact: computes its approximate cells again, in slices. Other requests run between slices, even those of
   * the same conversation. Resolves without an error when it is interrupted. A conversation that changed its adapters has cells under each
   * set; this method, `compact`, `closeGaps` and `residency` use those of the latest set.
   */
  refresh(conversation: ConversationId, options: RefreshOptions = {}): Promise<RefreshResult> {
    return this.#refresh(this.#adapted.latest(conversation), options)
  }

  /** @param name the conversation's name in the cache */
  #refresh(name: ConversationId, options: RefreshOptions): Promise<RefreshResult> {
    this.#refuseDisposed()
    const adapters = this.#adapted.setOf(name)
    const ports = {
      cache: this.#cache,
      ubatch: this.context.ubatch,
      idle: () => this.#scheduler.idle(),
      submit: (request: JobRequest) => this.#submit({ ...request, adapters }),
      forget: (of: ConversationId) => {
        this.#drop(of)
      },
    }
    return refresh(name, ports, options)
  }

  /** Moves the cells that only this idle conversation holds next to each other. Returns how many cells were moved (KvCache.compact). */
  compact(conversation: ConversationId): Promise<number> {
    return this.#compact(this.#adapted.latest(conversation))
  }

  #compact(name: ConversationId): Promise<number> {
    return this.#scheduler.between(() => this.#cache.compact(name))
  }

  /**
   * Closes the gaps in an idle conversation's positions, which makes cells approximate. Returns by how many positions it became shorter
   * (KvCache.closeGaps); 0 if the model's cells cannot be shifted.
   */
  closeGaps(conversation: ConversationId): Promise<number> {
    const name = this.#adapted.latest(conversation)
    return this.#scheduler.between(() => (this.abilities.shift ? (this.#cache.closeGaps?.(name) ?? 0) : 0))
  }

  forget(conversation: ConversationId): void {
    void this.#forgetAll(conversation, this.#cache.forget.bind(this.#cache))
  }

  /** Does what `forget` does, and also deletes the conversation's cells that engines share. Resolves when no file of them is left. */
  async erase(conversation: ConversationId): Promise<void> {
    await Promise.all(await this.#forgetAll(conversation, (name) => this.#cache.erase(name)))
  }

  /** Resolves when all exact cells computed so far are published in the tier that engines share. */
  async published(): Promise<void> {
    await this.#publisher?.settle()
  }

  async #forgetAll<T>(conversation: ConversationId, how: (name: ConversationId) => T): Promise<readonly T[]> {
    const names = this.#adapted.names(conversation)
    this.#adapted.forget(conversation)
    return (await Promise.all(names.map((name) => this.#forget(name, how)))).flat()
  }

  /** Forgets the conversation with this name in the cache, and its shadow (background-recompute.ts). */
  #drop(name: ConversationId): void {
    void this.#forget(name, this.#cache.forget.bind(this.#cache))
  }

  #forget<T>(name: ConversationId, how: (each: ConversationId) => T): Promise<readonly T[]> {
    if (this.#freed) return Promise.resolve([])
    this.#lastRendered.delete(name)
    this.#clientEdits.forget(name)
    for (const rendering of this.#rendering) if (rendering.conversation === name) rendering.forgotten = true
    const both = [name, shadowOf(name)]
    for (const each of both) this.#scheduler.cancel(each)
    return this.#scheduler.between(() => {
      for (const each of both) this.draft?.forget(each)
      return both.map(how)
    })
  }

  /** Compares the cache's records with llama.cpp's cells, between two decodes. `full` copies the whole cache. @throws internal/invariant */
  check(level: 'books' | 'positions' | 'full'): Promise<void> {
    return this.#scheduler.between(() => {
      this.#cache.check(level)
    })
  }

  /** Cancels running steps, waits for them to end, and frees the memory. Further calls do nothing. */
  async dispose(): Promise<void> {
    if (this.#disposed) return
    this.#disposed = true
    this.#recompute.end()
    await this.published()
    await this.#watch?.end()
    await this.#scheduler.close()
    if (this.options.disk !== undefined) await this.#cache.leave()
    await Promise.all([this.#offload.close(), this.saved.shared?.close()])
    this.#freed = true
    try {
      await this.draft?.dispose()
    } finally {
      await this.model.dispose()
    }
  }

  async #respond(given: EngineRequest, stream: EventStream): Promise<EngineReply> {
    this.#refuseDisposed()
    const adapters = this.#adapters.set(given.lora)
    const request = this.#adapted.entered(given, adapters)
    const format = this.format.with(request.variables)
    const { tools = [], edits = [], continues = false } = request
    const messages = this.#ownAnswers.of(request.messages)
    refuseBadForm(request)
    const bare = bareTools(request, this.options)
    const sampling = this.#samplerOf(request)
    const sampler = sampling instanceof Promise ? await sampling : sampling
    const shown = { messages, tools, edits, continues }
    let [answers, own] = [format, format]
    let held: SamplerOptions
    let rendered: Rendered
    let made = null as { readonly text: string; readonly grammar: NativeGrammar } | null
    // The grammar is made before rendering, because there must be no await between the rendered prompt and the scheduler. It depends on the
    // generation prompt: if these messages have another one than usual, it is made again.
    do {
      answers = own
      const holding = heldTo(answers, this.model, request, bare.length > 0)
      const { grammar: text, ...rest } = holding instanceof Promise ? await holding : holding
      if (text !== undefined && text !== made?.text) made = { text, grammar: await compiled(this.model, text, request.signal) }
      held = text === undefined || made === null ? rest : { ...rest, grammar: made.grammar }
      const prompt = isLong(messages, tools)
        ? await this.#renderedInTurns(request.conversation, format, shown)
        : { rendered: format.render(shown), forgotten: false }
      if (prompt.forgotten) throw cancelledBeforeBegin()
      rendered = prompt.rendered
      own = continues ? answers : answers.behind(format.promptOf(rendered))
    } while (own !== answers)
    const beginning = continues ? format.beginningOf(rendered) : null
    const before = this.#lastRendered.get(request.conversation) ?? this.#lastRendered.get(request.parent ?? request.conversation)
    const rewrite = before === undefined ? null : format.check(before, rendered)
    if (rewrite !== null) stream.push({ type: 'rewrite', message: rewrite.message, reason: rewrite.reason })
    this.#lastRendered.set(request.conversation, rendered)
    // The step itself drops forgotten cells from its own sequences only. Refreshes, drafts and other adapters need an extra call.
    const names = edits.some(({ forget }) => forget) ? this.#adapted.names(given.conversation) : []
    const forgetting = Promise.all(names.map((name) => this.#forgetHidden(name, rendered)))
    // If the step fails, its error is reported instead of this one.
    forgetting.catch(() => undefined)

    const allowed = allowedTools(request)
    const news = new ContinuationFilter(beginning?.text ?? '', () => answers.parser(allowed, beginning?.prompt, bare))
    const { parser } = news
    const forward = (events: readonly ReplyEvent[]) => {
      for (const event of news.of(events)) if (event.type !== 'call-start') stream.push(event)
    }
    const cut = { early: false }
    const result = await this.#submit({
      asked: request,
      adapters,
      ...this.#clientEdits.asked(
        request,
        rendered,
        this.#salts.of(request.tenant, adapters.key),
        termsOf(request, this.options, this.#costs.model),
      ),
      sampler: { ...sampler, ...held },
      listener: {
        ahead: request.endsWith === undefined,
        onPlan: (plan) => {
          stream.push({ type: 'plan', ...plan })
        },
        onPrefill: (done, total) => {
          stream.push({ type: 'prefill', done, total })
        },
        onText: (text, tokens, logprobs) => {
          if (tokens.length > 0 || text !== '')
            stream.push({ type: 'tokens', tokens, text, ...(request.logprobs === undefined ? {} : { logprobs }) })
          const events = text === '' ? [] : parser.push(text)
          forward(events)
          return (cut.early ||= events.some((event) => event.type === 'call' && request.endsWith?.(event.call) === true))
        },
      },
    })
    await forgetting
    if (recomputesInBackground(request, this.options) && this.#isSpliced(request.conversation, result))
      this.#recompute.later(request.conversation)
    const isForced = request.toolChoice === 'required' && (result.finish === 'length' || result.finish === 'stop-string')
    const parsed = isForced ? withoutHeld(parser.finish()) : parser.finish()
    forward(parsed.events)
    const said = assistantMessage(parsed)
    const { text, tokens } = wholeOf(result, beginning)
    const isWhole = result.finish === 'stop' || result.finish === 'length'
    const isSampled =
      isWhole &&
      (!cut.early ||
        (parsed.isBareClosed ??
          isClosed(format, this.model, {
            messages: continues ? messages.slice(0, -1) : messages,
            tools,
            answer: said,
            sampled: text,
          })))
    const prompt = beginning?.prompt ?? answers.ownPrompt
    const sampled = { text, tokens, ...(prompt === undefined ? {} : { prompt }) }
    const message: ChatMessage = isSampled ? { ...said, sampled } : said
    const finish = result.finish === 'stop-string' ? 'stop' : result.finish
    return {
      message,
      finish: finish === 'stop' && parsed.toolCalls.length > 0 ? 'tool-calls' : finish,
      ...(result.stop === undefined ? {} : { stop: result.stop }),
      ledger: explained(result.ledger, rewrite),
      timing: result.timing,
      ...(request.logprobs === undefined ? {} : { logprobs: result.logprobs }),
      promptTokens: rendered.tokens,
      ...definedFields({ endLogprob: result.endLogprob, promptLogprobs: result.promptLogprobs }),
      ...(result.attention === undefined ? {} : { attention: result.attention }),
    }
  }

  /** Whether the step left approximate cells. For a stopped answer the ledger entry counts none, so the sequence is checked. */
  #isSpliced(name: ConversationId, { finish, tokens, ledger }: JobResult): boolean {
    if (finish !== 'cancelled') return ledger.approximate > 0
    const live = this.#cache.live(name)
    return tokens.length > 0 && live !== null && live.exact < live.held
  }

  /**
   * Renders a long prompt in slices, so that the event loop stays free. The result says whether the conversation was `forgotten` meanwhile.
   * @throws KvfoldError context/full for a prompt that cannot fit, before all of it is tokenized; engine/disposed
   */
  async #renderedInTurns(
    conversation: ConversationId,
    format: ChatFormat,
    shown: Required<Pick<RenderRequest, 'messages' | 'tools' | 'edits' | 'continues'>>,
  ): Promise<{ readonly rendered: Rendered; readonly forgotten: boolean }> {
    const { messages, edits } = shown
    const rendering = { conversation, forgotten: false }
    this.#rendering.add(rendering)
    try {
      const edited = new Set(edits.map(({ message }) => message))
      const whole = messages.filter((_, index) => !edited.has(index))
      await refuseHopeless(this.model, this.context.cells, await inTurns(shownIn(whole)))
      const rendered = await format.renderInTurns(shown)
      this.#refuseDisposed()
      return { rendered, forgotten: rendering.forgotten }
    } finally {
      this.#rendering.delete(rendering)
    }
  }

  #render(...[messages, tools, edits = [], variables]: CountArguments): Rendered {
    return this.format.with(variables).render({ messages: this.#ownAnswers.of(messages), tools, edits })
  }

  #samplerOf(request: Pick<EngineRequest, 'sampling' | 'limits'>): SamplerOptions | Promise<SamplerOptions> {
    return samplerOptions(this.model, request, this.context.cells)
  }

  #submit(request: JobRequest): Promise<JobResult> {
    const { attention, conversation, kind = 'answer', maxTokens = Infinity } = request.asked
    const step = { shown: request.prompt.tokens.length, maxTokens }
    const watch = attention === undefined ? null : new AttentionWatch(this.context, this.modelInfo, attention, step)
    const speculate = draftsOf(request.asked, this.abilities, this.options)
    const job = new Job({ ...request, speculate }, this.model, performance.now(), watch)
    try {
      const result = this.#scheduler.submit(job)
      if (this.#watch !== null) void result.finally(() => this.#watch?.later()).catch(() => undefined)
      if (kind === 'answer') void result.then(() => this.#publisher?.later(conversation)).catch(() => undefined)
      return result
    } catch (error) {
      // The scheduler did not accept the job, so it will not dispose it.
      job.dispose()
      throw error
    }
  }

  #refuseDisposed(): void {
    if (this.#disposed) throw new KvfoldError('engine/disposed', 'The engine was disposed; create a new one.')
  }
}
