/** The engine over llama.cpp: renders messages, keeps the cache in step with them, generates, and accounts for it. */
import { freemem } from 'node:os'
import type { ChatFormat, Rendered, RenderRequest } from '../chat/format.js'
import { assistantMessage, type ChatMessage, type ToolDefinition } from '../chat/message.js'
import { News, withoutHeld, type ReplyEvent } from '../chat/parser.js'
import type { ConversationId } from '../core/ids.js'
import { KvfoldError } from '../core/errors.js'
import { weightOf } from '../core/json.js'
import type { Span } from '../core/span.js'
import { OffloadTiers } from '../kv/offload.js'
import { KvCache } from '../kv/cache.js'
import type { CostModel } from '../kv/cost-model.js'
import { explained, type LedgerEntry } from '../kv/ledger.js'
import { CheckpointCache } from '../kv/checkpoint-cache.js'
import type { StepCache } from '../kv/step-cache.js'
import { CacheSalts } from '../kv/tenant-salts.js'
import type { CacheTotals, Residency } from '../kv/residency.js'
import type { MemoryFigures, ModelInfo, Native, NativeContext, NativeModel } from '../native/types.js'
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
import { AttentionWatch } from './attention-capture.js'
import {
  ClientEdits,
  compiled,
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
import { BackgroundRecompute, refresh, shadowOf, type RefreshOptions, type RefreshResult } from './background-recompute.js'
import {
  chatFormatOf,
  type Completion,
  contextOptions,
  DEFAULT_SLOTS,
  isGuarded,
  type LlamaEngineOptions,
  recomputesInBackground,
  samplerOptions,
  termsOf,
} from './llama-options.js'
import { CellPublisher, openSavedCells, type OpenCellPlaces } from './saved-cells.js'
import { Job, type JobRequest, type JobResult } from './job.js'
import { Scheduler } from './scheduler.js'
import { WindowGuard } from './window-guard.js'

export type { Completion, LlamaEngineOptions } from './llama-options.js'

/** Messages, tools, edits and variables of a prompt. */
type CountArguments = Parameters<Engine['count']>

/** Characters of texts, and messages and tools, up to which a prompt is rendered at once: it takes some milliseconds. */
const SHORT = { characters: 16 * 1024, parts: 256 }

function isLong(messages: readonly ChatMessage[], tools: readonly ToolDefinition[]): boolean {
  if (messages.length + tools.length > SHORT.parts) return true
  let characters = 0
  for (const { content, reasoning = '', toolCalls } of messages) {
    characters += content.length + reasoning.length + (toolCalls === undefined ? 0 : weightOf(toolCalls, SHORT.characters))
    if (characters >= SHORT.characters) return true
  }
  return weightOf(tools, SHORT.characters) >= SHORT.characters
}

/** What a template shows of a message whatever it looks like, as texts. */
const shownOf = ({ content, toolCalls = [] }: ChatMessage): string[] => [
  content,
  ...toolCalls.map(({ arguments: args, malformed }) => malformed ?? JSON.stringify(args)),
]

export class LlamaEngine implements Engine {
  readonly info: EngineInfo
  /** What edits can keep to; what is not available, and why, in `notes`. */
  readonly abilities: Abilities
  /** What to tell the user, one sentence each: what the model cannot do, and what befell its disk cache. */
  readonly notes: readonly string[]
  readonly #scheduler: Scheduler
  readonly #cache: StepCache
  readonly #offload: OffloadTiers
  readonly #salts: CacheSalts
  readonly #lastRendered = new Map<ConversationId, Rendered>()
  readonly #ownAnswers: OwnAnswers
  readonly #clientEdits: ClientEdits
  #format: ChatFormat | null = null
  /** What computing costs on this machine, for predictions on the ledger. */
  readonly #costs: { model: CostModel | null } = { model: null }
  /** Prompts that are rendered in turns; `forgotten`: their conversation was meanwhile. */
  readonly #rendering = new Set<{ readonly conversation: ConversationId; forgotten: boolean }>()
  readonly #recompute: BackgroundRecompute
  readonly #publisher: CellPublisher | null
  #disposed = false

  private constructor(
    private readonly native: Native,
    readonly model: NativeModel,
    private readonly context: NativeContext,
    private readonly options: LlamaEngineOptions,
    private readonly saved: OpenCellPlaces,
  ) {
    const { disk, shared } = saved
    const { trainedContext, slidingWindow } = model.info
    const hostBytes = options.hostBytes ?? Math.floor(freemem() / 4)
    this.#offload = new OffloadTiers({ hostBytes, ...(disk === null ? {} : { disk }) })
    this.#salts = new CacheSalts(options.shared?.secret ?? disk?.secret)
    this.abilities = abilitiesOf(model.info, options)
    this.notes = [...this.abilities.notes, ...(disk?.notes ?? [])]
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
      ...(options.maxGap === undefined ? {} : { maxGap: options.maxGap }),
      ...(guard === null ? {} : { decode: (batch, watched) => guard.decode(batch, watched) }),
    })
    this.#publisher =
      shared === null
        ? null
        : new CellPublisher(async (of) => this.#cache.publish?.(of, (errand) => this.#scheduler.between(errand)))
    this.#recompute = new BackgroundRecompute({
      refresh: (conversation, signal) => this.refresh(conversation, { when: 'idle', signal }),
      compact: (conversation) => this.compact(conversation),
      totals: () => this.#cache.totals,
    })
    this.info = {
      model: model.info.metadata['general.name'] ?? model.info.description,
      engine: 'llama',
      release: native.backend.release,
      context: context.cells,
    }
  }

  /**
   * Loads the model and makes one context with a unified cache for all conversations.
   * @throws KvfoldError model/*, memory/insufficient, native/*; what was taken is given back.
   */
  static async load(native: Native, path: string, options: LlamaEngineOptions = {}): Promise<LlamaEngine> {
    const model = await native.loadModel(path, options.model)
    try {
      const refusal = refusalOf(model.info)
      if (refusal !== null) throw new KvfoldError('model/unsupported', refusal)
      const abilities = abilitiesOf(model.info, options)
      const context = await model.createContext(contextOptions(model.info, abilities, options))
      return new LlamaEngine(native, model, context, options, await openSavedCells(model, context, options))
    } catch (error) {
      await model.dispose()
      throw error
    }
  }

  get modelInfo(): ModelInfo {
    return this.model.info
  }

  /** From now on ledger entries say what was expected of each step (`kvfold calibrate` makes the model). */
  useCosts(model: CostModel): void {
    this.#costs.model = model
  }

  get memory(): MemoryFigures {
    return this.context.memory
  }

  /** Tokens the addon has submitted to decode since the engine was loaded. */
  get submitted(): number {
    return this.context.submitted
  }

  get cacheTotals(): CacheTotals {
    return this.#cache.totals
  }

  /** The model's chat format. @throws KvfoldError model/no-chat-template, chat/template-failed */
  get format(): ChatFormat {
    return (this.#format ??= chatFormatOf(this.model, this.options))
  }

  respond(request: EngineRequest): Generation {
    return generationOf((stream) => this.#respond(request, stream))
  }

  /** Generates after exactly these tokens; the cache is shared with all conversations. */
  async complete(request: Completion): Promise<JobResult> {
    const { tokens, origin, sampling, grammar, schema, loose, tenant, ...rest } = request
    this.#refuseDisposed()
    refuseForeign(tokens, this.model.info)
    const made = formGrammar({ grammar, schema, loose })
    const form = made instanceof Promise ? await made : made
    const held = form.grammar === undefined ? {} : { grammar: await compiled(this.model, form.grammar, request.signal) }
    const messages = [{ index: 0, role: 'text', span: { start: 0, end: tokens.length } }]
    return this.#submit({
      ...rest,
      salt: this.#salts.of(tenant),
      prompt: { tokens, messages, ...(origin === undefined ? {} : { origin }) },
      sampler: { ...samplerOptions(sampling), ...held },
    })
  }

  snap(...[messages, tools, message, chars, variables]: Parameters<Engine['snap']>): Span {
    return this.format.with(variables).snap({ messages: this.#ownAnswers.of(messages), tools, message, chars })
  }

  reads(variable: string): boolean {
    return this.format.reads(variable)
  }

  /** As the model's file says, else llama-server's. */
  get samplingDefaults(): Sampling {
    return samplingDefaultsOf(this.model.info.metadata, this.context.cells)
  }

  get boundsReasoning(): boolean {
    return this.format.syntax.reasoning !== null
  }

  count(...shown: CountArguments): number {
    return this.#render(...shown).tokens.length
  }

  async prepare(...[messages, tools, variables]: Parameters<NonNullable<Engine['prepare']>>): Promise<void> {
    if (isLong(messages, tools))
      await this.format.with(variables).renderInTurns({ messages: this.#ownAnswers.of(messages), tools })
  }

  /** Where the cells of the text are that these edits hide, by edit; null where the template shows not all of it. */
  residency(conversation: ConversationId, ...shown: CountArguments): readonly Residency[] | null {
    const { base, holes } = this.#render(...shown).origin
    if (holes.length !== (shown[2] ?? []).length) return null
    const stretches = holes.map(({ span }) => span)
    return this.#cache.residency(conversation, base, stretches)
  }

  /** Drops what the cache has of text that these edits forget, in every tier; else the next step that shows them does. */
  async forgetHidden(conversation: ConversationId, ...shown: CountArguments): Promise<void> {
    const { tokens, origin } = this.#render(...shown)
    this.forget(shadowOf(conversation))
    await this.#scheduler.between(() => this.#cache.forgetHidden(conversation, { tokens, messages: [], origin }))
  }

  /** The conversation's ledger so far, oldest first. */
  ledger(conversation: ConversationId): readonly LedgerEntry[] {
    return this.#cache.ledger(conversation)
  }

  /**
   * Makes a conversation exact that was spliced: computes again what carries the trace of hidden text. Other requests run between its slices,
   * those of the same conversation included. Resolves without an error when interrupted.
   */
  refresh(conversation: ConversationId, options: RefreshOptions = {}): Promise<RefreshResult> {
    this.#refuseDisposed()
    const ports = {
      cache: this.#cache,
      ubatch: this.context.ubatch,
      idle: () => this.#scheduler.idle(),
      submit: (request: JobRequest) => this.#submit(request),
      forget: (of: ConversationId) => {
        this.forget(of)
      },
    }
    return refresh(conversation, ports, options)
  }

  /** Rewrites an idle conversation's cells next to each other; says how many (KvCache.compact). */
  compact(conversation: ConversationId): Promise<number> {
    return this.#scheduler.between(() => this.#cache.compact(conversation))
  }

  /** Closes the gaps in an idle conversation's positions, an approximation; says by how many (KvCache.closeGaps): 0 where none can be shifted. */
  closeGaps(conversation: ConversationId): Promise<number> {
    return this.#scheduler.between(() => (this.abilities.shift ? (this.#cache.closeGaps?.(conversation) ?? 0) : 0))
  }

  forget(conversation: ConversationId): void {
    void this.#forget(conversation, this.#cache.forget.bind(this.#cache))
  }

  /** As `forget`, and nothing of it stays where other engines find it: resolves when no file of it is left. */
  async erase(conversation: ConversationId): Promise<void> {
    await Promise.all(await this.#forget(conversation, (each) => this.#cache.erase(each)))
  }

  /** Resolves when what was computed so far is where other engines find it. */
  async published(): Promise<void> {
    await this.#publisher?.settle()
  }

  #forget<T>(conversation: ConversationId, how: (each: ConversationId) => T): Promise<readonly T[]> {
    this.#lastRendered.delete(conversation)
    this.#clientEdits.forget(conversation)
    for (const rendering of this.#rendering) if (rendering.conversation === conversation) rendering.forgotten = true
    const both = [conversation, shadowOf(conversation)]
    for (const each of both) this.#scheduler.cancel(each)
    return this.#scheduler.between(() => both.map(how))
  }

  /** Compares our books with llama.cpp's, between two decodes; `full` copies the cache. @throws internal/invariant */
  check(level: 'books' | 'positions' | 'full'): Promise<void> {
    return this.#scheduler.between(() => {
      this.#cache.check(level)
    })
  }

  /** Cancels what runs, waits for it, and gives the memory back. Idempotent. */
  async dispose(): Promise<void> {
    if (this.#disposed) return
    this.#disposed = true
    this.#recompute.end()
    await this.published()
    await this.#scheduler.close()
    if (this.options.disk !== undefined) await this.#cache.leave()
    await Promise.all([this.#offload.close(), this.saved.shared?.close()])
    await this.model.dispose()
  }

  async #respond(request: EngineRequest, stream: EventStream): Promise<EngineReply> {
    this.#refuseDisposed()
    const format = this.format.with(request.variables)
    const { tools = [], edits = [], continues = false } = request
    const messages = this.#ownAnswers.of(request.messages)
    refuseBadForm(request)
    // Before anything is rendered: from there to the scheduler nothing may come between.
    const made = heldTo(format, this.model, request)
    const { grammar, ...rest } = made instanceof Promise ? await made : made
    const held = grammar === undefined ? rest : { ...rest, grammar: await compiled(this.model, grammar, request.signal) }
    if (edits.some(({ forget }) => forget)) this.forget(shadowOf(request.conversation))
    const shown = { messages, tools, edits, continues }
    const { rendered, forgotten } = isLong(messages, tools)
      ? await this.#renderedInTurns(request.conversation, format, shown)
      : { rendered: format.render(shown), forgotten: false }
    const beginning = continues ? format.beginningOf(rendered) : null
    const before = this.#lastRendered.get(request.conversation) ?? this.#lastRendered.get(request.parent ?? request.conversation)
    const rewrite = before === undefined ? null : format.check(before, rendered)
    if (rewrite !== null) stream.push({ type: 'rewrite', message: rewrite.message, reason: rewrite.reason })
    this.#lastRendered.set(request.conversation, rendered)

    const parser = format.parser([...tools, ...(request.unlisted ?? [])], beginning?.prompt)
    const news = new News(beginning === null ? '' : beginning.text, parser)
    const forward = (events: readonly ReplyEvent[]) => {
      for (const event of news.of(events)) if (event.type !== 'call-start') stream.push(event)
    }
    const cut = { early: false }
    const result = await this.#submit({
      ...this.#clientEdits.asked(request, rendered, this.#salts.of(request.tenant), termsOf(request, this.options)),
      sampler: { ...samplerOptions(request.sampling), ...held },
      ...(request.maxTokens === undefined ? {} : { maxTokens: request.maxTokens }),
      ...(request.stop === undefined ? {} : { stop: request.stop }),
      ...(request.logprobs === undefined ? {} : { logprobs: request.logprobs }),
      ...(request.attention === undefined ? {} : { attention: request.attention }),
      ...(request.kind === undefined ? {} : { kind: request.kind }),
      ...(request.last === undefined ? {} : { last: request.last }),
      ...(request.signal === undefined ? {} : { signal: request.signal }),
      ...(forgotten ? { signal: AbortSignal.abort() } : {}),
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
    })
    if (recomputesInBackground(request, this.options) && result.ledger.approximate > 0)
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
        isClosed(format, this.model, {
          messages: continues ? messages.slice(0, -1) : messages,
          tools,
          answer: said,
          sampled: text,
        }))
    const prompt = beginning?.prompt ?? format.ownPrompt
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
      ...(result.endLogprob === undefined ? {} : { endLogprob: result.endLogprob }),
      ...(result.attention === undefined ? {} : { attention: result.attention }),
    }
  }

  /** @throws KvfoldError context/full for what cannot fit, before all of it is tokenized; engine/disposed */
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
      const whole = messages.filter((_, index) => !edited.has(index)).flatMap(shownOf)
      await refuseHopeless(this.model, this.context.cells, whole)
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

  #submit(request: JobRequest): Promise<JobResult> {
    const { attention, prompt, maxTokens = Infinity } = request
    const step = { shown: prompt.tokens.length, maxTokens }
    const watch = attention === undefined ? null : new AttentionWatch(this.context, this.modelInfo, attention, step)
    const job = new Job(request, this.model, performance.now(), watch)
    try {
      const result = this.#scheduler.submit(job)
      if ((request.kind ?? 'answer') === 'answer')
        void result.then(() => this.#publisher?.later(request.conversation)).catch(() => undefined)
      return result
    } catch (error) {
      // A job that was never taken on is nobody's to clean up but ours.
      job.sampler.dispose()
      throw error
    }
  }

  #refuseDisposed(): void {
    if (this.#disposed) throw new KvfoldError('engine/disposed', 'The engine was disposed; create a new one to go on.')
  }
}
