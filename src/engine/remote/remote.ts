/** The engine over any OpenAI-compatible endpoint: sends messages as they are shown, and keeps the ledger by the endpoint's own figures. */
import type { ChatMessage, Edit, ToolDefinition } from '../../chat/message.js'
import { KvfoldError } from '../../core/errors.js'
import type { ConversationId } from '../../core/ids.js'
import type { Span } from '../../core/span.js'
import {
  type Engine,
  type EngineInfo,
  type EngineReply,
  type EngineRequest,
  type EventStream,
  type Finish,
  type Generation,
  generationOf,
} from '../engine.js'
import { Books, type Row } from './books.js'
import { chunksOf, ReplyReader, type Usage } from './reply-reader.js'
import { Deferral, type DeferralOptions } from './deferral.js'
import { Endpoint, type EndpointOptions } from './endpoint.js'
import { flavourNamed, probe, type Flavour, type FlavourName, type Probed } from './flavour.js'
import { charactersOf, rowsOf, rowText, TextCounts, textsOf, weightOf } from './prompt-counts.js'
import { bodyFor, bodyOf, EFFORT, promptOf } from './wire.js'

export interface RemoteEngineOptions extends EndpointOptions {
  /** Default: the first that the endpoint lists. */
  readonly model?: string
  /** Default: what `/v1/models` says by its `owned_by`. */
  readonly flavour?: FlavourName
  /** Tokens a conversation may show. Default: what the endpoint says; where it says nothing, no limit of ours. */
  readonly context?: number
  /** Keeps edits back until they pay for the cache they cost (deferral.ts). Default: every edit is shown at once. */
  readonly deferEdits?: DeferralOptions
  readonly signal?: AbortSignal
}

/** A conversation here: its steps run one after another. */
interface Lane {
  readonly books: Books
  readonly deferral: Deferral | null
  readonly running: Set<AbortController>
  /** Settles when the last step that was asked for is over. */
  tail: Promise<unknown>
}

/** One step on its way. */
interface Step {
  readonly request: EngineRequest
  readonly lane: Lane
  readonly stream: EventStream
  readonly signal: AbortSignal
}

/** Milliseconds after an answer's end for counting its prompt's texts. */
const COUNTING = 500

const PREFIX_ONLY = 'a remote engine keeps beginnings of prompts only, so what follows an edit is computed again'

/**
 * Exact by prefix: what is shown is sent as text, and what the endpoint has cached of it is its own business. `splice`, `blend` and `auto` fall
 * back to `exact` and say so. `plan` and `prefill` events come from endpoints that report progress (llama-server, kvfold), from others none. Messages
 * carry no `sampled` tokens; logprobs have token numbers only where the endpoint gives them (else UNNUMBERED).
 */
export class RemoteEngine implements Engine {
  readonly info: EngineInfo
  readonly flavour: Flavour
  readonly #counts: TextCounts
  readonly #lanes = new Map<ConversationId, Lane>()
  readonly #notes = new Set<string>()
  #disposed = false

  private constructor(
    private readonly endpoint: Endpoint,
    private readonly options: RemoteEngineOptions,
    { flavour, model, context, release }: Probed,
  ) {
    this.flavour = options.flavour === undefined ? flavour : flavourNamed(options.flavour)
    this.#counts = new TextCounts(endpoint, model, this.flavour)
    this.info = { model, engine: 'remote', release, context: options.context ?? context ?? Number.MAX_SAFE_INTEGER }
    this.#notes.add(
      'Contract exact only, by prefix: the cache is that of the engine behind this server, and every edit has what follows it computed again.',
    )
    if (this.flavour.salt === null)
      this.#notes.add(
        `${this.flavour.name} keeps one cache for all: tenants may notice by the time it takes that another sent the same beginning.`,
      )
  }

  /**
   * Asks the endpoint what it is. Nothing is kept open when that fails.
   * @throws KvfoldError remote/*, model/not-found
   */
  static async connect(options: RemoteEngineOptions): Promise<RemoteEngine> {
    const endpoint = new Endpoint(options)
    try {
      return new RemoteEngine(endpoint, options, await probe(endpoint, options.model, options.signal))
    } catch (error) {
      endpoint.close()
      throw error
    }
  }

  /** What this engine cannot do or say, one sentence each; grows as steps show it. */
  get notes(): readonly string[] {
    return [...this.#notes]
  }

  respond(request: EngineRequest): Generation {
    return generationOf((stream) => this.#queued(request, stream))
  }

  /** As it is, but for borders within a character: tokens are the endpoint's business, and what is shown there is tokenized as a whole. */
  snap(messages: readonly ChatMessage[], _tools: readonly ToolDefinition[], message: number, { start, end }: Span): Span {
    const text = messages[message]?.content ?? ''
    const inside = (at: number) => /[\uDC00-\uDFFF]/.test(text[at] ?? '') && /[\uD800-\uDBFF]/.test(text[at - 1] ?? '')
    return { start: inside(start) ? start - 1 : start, end: inside(end) ? end + 1 : end }
  }

  /** What the template behind the endpoint reads is not known: whatever can be said counts. */
  reads(variable: string): boolean {
    return this.flavour.variables === 'any' || variable === EFFORT
  }

  readonly estimates = true

  /** An estimate: see `estimate`; `countExactly` asks. */
  count(messages: readonly ChatMessage[], tools: readonly ToolDefinition[], edits: readonly Edit[] = []): number {
    return this.estimate(messages, tools, edits).tokens
  }

  /** About how many tokens a prompt has: by the endpoint's counts of texts that it has seen, else by characters. Asks nobody. */
  estimate(
    messages: readonly ChatMessage[],
    tools: readonly ToolDefinition[],
    edits: readonly Edit[] = [],
  ): { readonly tokens: number; readonly estimated: true } {
    return { tokens: weightOf(rowsOf(messages, tools, edits, this.#counts)), estimated: true }
  }

  /** What the endpoint says that a prompt has; null when it does not tell (llama-server and vLLM do). @throws KvfoldError remote/* */
  countExactly(
    messages: readonly ChatMessage[],
    tools: readonly ToolDefinition[],
    edits: readonly Edit[] = [],
    signal?: AbortSignal,
  ): Promise<number | null> {
    return this.#counts.ofPrompt(promptOf(messages, tools, edits, this.flavour), signal)
  }

  /** Cancels what runs for the conversation and forgets its books. What the endpoint has cached of it, nobody can take back. */
  forget(conversation: ConversationId): void {
    const lane = this.#lanes.get(conversation)
    this.#lanes.delete(conversation)
    for (const running of lane?.running ?? []) running.abort()
  }

  async dispose(): Promise<void> {
    this.#disposed = true
    const lanes = [...this.#lanes.values()]
    for (const conversation of [...this.#lanes.keys()]) this.forget(conversation)
    await Promise.allSettled(lanes.map(({ tail }) => tail))
    this.endpoint.close()
  }

  #queued(request: EngineRequest, stream: EventStream): Promise<EngineReply> {
    if (this.#disposed)
      return Promise.reject(new KvfoldError('engine/disposed', 'The engine was disposed; create a new one to go on.'))
    const lane = this.#laneOf(request.conversation)
    const own = new AbortController()
    lane.running.add(own)
    const signal = request.signal === undefined ? own.signal : AbortSignal.any([own.signal, request.signal])
    const before = lane.tail
    const step = (async () => {
      await before
      if (signal.aborted) throw new KvfoldError('engine/cancelled', 'The step was cancelled before it began.')
      return this.#respond({ request, lane, stream, signal })
    })().finally(() => lane.running.delete(own))
    lane.tail = step.catch(() => undefined)
    return step
  }

  #laneOf(conversation: ConversationId): Lane {
    const known = this.#lanes.get(conversation)
    if (known !== undefined) return known
    const { deferEdits } = this.options
    const lane: Lane = {
      books: new Books(),
      deferral: deferEdits === undefined ? null : new Deferral(deferEdits),
      running: new Set(),
      tail: Promise.resolve(),
    }
    this.#lanes.set(conversation, lane)
    return lane
  }

  async #respond({ request, lane, stream, signal }: Step): Promise<EngineReply> {
    const begun = performance.now()
    const { messages, tools = [] } = request
    const { edits, fallback } = this.#show(request, lane)
    const rows = rowsOf(messages, tools, edits, this.#counts)
    const body = bodyFor(request, edits, this.info.model, this.flavour)
    const learning = new AbortController()
    const learned = this.#counts.learn(textsOf(messages, tools, edits), AbortSignal.any([signal, learning.signal]))

    const reader = new ReplyReader(this.endpoint.name)
    let firstToken: number | null = null
    let ended: 'whole' | 'cancelled' = 'whole'
    try {
      for await (const chunk of chunksOf(this.endpoint, body, signal))
        for (const event of reader.push(chunk)) {
          if (event.type !== 'plan' && event.type !== 'prefill') firstToken ??= performance.now() - begun
          stream.push(event.type === 'plan' ? { ...event, fallback } : event)
        }
    } catch (error) {
      if (!signal.aborted) throw error
      ended = 'cancelled'
    } finally {
      // What is not counted soon must not hold the end up.
      const late = setTimeout(() => {
        learning.abort()
      }, COUNTING)
      await learned
      clearTimeout(late)
    }
    if (ended === 'whole' && reader.finish === null)
      throw new KvfoldError('remote/broken-stream', `The answer of ${this.endpoint.name} ended without saying why.`)

    const total = performance.now() - begun
    const finish: Finish = ended === 'cancelled' ? 'cancelled' : (reader.finish ?? 'stop')
    const said = messageOf(reader)
    const answer = bodyOf(said, said.content)
    const beginning = request.continues === true ? (messages.at(-1)?.content ?? '') : ''
    const message = { ...said, content: beginning + said.content }
    const usage = this.#usage(reader, rows, answer, finish)
    this.#counts.observe(charactersOf(rows), usage.prompt, rows.length + 1)
    // Once more: by now some of the texts are counted.
    const ledger = lane.books.enter({
      rows: rowsOf(messages, tools, edits, this.#counts),
      answer,
      usage,
      pending: usage.generated > 0 && (this.flavour.countsEnd || finish === 'length') ? 1 : 0,
      kind: finish === 'cancelled' ? 'cancelled' : (request.kind ?? 'answer'),
      fallback,
      firstToken: firstToken ?? total,
      total,
    })
    const timing = {
      firstToken: firstToken ?? total,
      total,
      prefillTokens: usage.prompt - (usage.cached ?? 0),
      generatedTokens: usage.generated,
    }
    const { logprobs, stop } = reader
    return {
      message,
      finish,
      ...(stop !== null && request.stop?.includes(stop) === true ? { stop } : {}),
      ledger,
      timing,
      ...(request.logprobs === undefined ? {} : { logprobs }),
    }
  }

  /** The edits to send, and why they or the contract are not what was asked for. */
  #show({ messages, tools = [], edits = [], contract = 'exact', maxTokens = 0 }: EngineRequest, { deferral, books }: Lane) {
    const reasons: string[] = []
    if (edits.some((edit) => (edit.contract ?? contract) !== 'exact')) reasons.push(PREFIX_ONLY)
    let shown = edits
    if (deferral !== null) {
      const wish = {
        edits,
        contents: messages.map(({ content }) => content),
        held: books.held,
        row: (index: number, own: readonly Edit[]) => rowText(messages, tools, index, own),
        fits: (some: readonly Edit[]) => this.count(messages, tools, some) + maxTokens <= this.info.context,
        tokens: (text: string) => this.#counts.of(text),
      }
      const { edits: chosen, waiting, computes, hides } = deferral.choose(wish)
      shown = chosen
      if (waiting.length > 0)
        reasons.push(
          `${waiting.length} of ${edits.length} edits wait: made now they would hide about ${hides} tokens and have about ${computes} computed again`,
        )
    }
    return { edits: shown, fallback: reasons.length === 0 ? null : reasons.join('; ') }
  }

  /** The endpoint's figures, or what is known without them: of a step cut off, or from an endpoint that gives none. */
  #usage({ usage, progress }: ReplyReader, rows: readonly Row[], answer: string, finish: Finish): Usage {
    if (usage !== null) {
      if (usage.cached === null)
        this.#notes.add(
          `${this.endpoint.name} does not report cached tokens, so all count as computed; ${this.flavour.cacheReport}.`,
        )
      return usage
    }
    if (finish !== 'cancelled')
      this.#notes.add(
        `${this.endpoint.name} reports no usage, so the ledger has estimates (stream_options.include_usage is what it lacks).`,
      )
    return {
      prompt: progress?.total ?? weightOf(rows),
      cached: progress?.cached ?? null,
      generated: this.#counts.of(answer),
      milliseconds: null,
    }
  }
}

function messageOf({ content, reasoning, calls }: ReplyReader): ChatMessage {
  return {
    role: 'assistant',
    content,
    ...(reasoning === '' ? {} : { reasoning }),
    ...(calls.length === 0 ? {} : { toolCalls: calls }),
  }
}
