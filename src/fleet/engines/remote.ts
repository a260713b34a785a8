/**
 * The engine over OpenAI-compatible endpoints. It sends messages as text with their edits applied, and fills the ledger from the endpoints'
 * own figures.
 */
import { type ChatMessage, type Edit, indexesLeft, omitting, type ToolDefinition } from '../../runtime/chat/message.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import type { ConversationId } from '../../runtime/core/ids.js'
import { joined } from '../../runtime/core/signals.js'
import type { Span } from '../../runtime/core/span.js'
import {
  type Engine,
  type EngineInfo,
  type EngineReply,
  type EngineRequest,
  type EventStream,
  type Finish,
  type Generation,
  generationOf,
  type Sampling,
} from '../../runtime/engine/engine.js'
import { BrokenAnswer, type EnginesElsewhere, type EngineStatus, type FlavourName } from '../../runtime/engine/elsewhere.js'
import type { Held, ShownRow } from './remote-ledger.js'
import { chunksOf, ReplyReader, tokensIn, type EndpointUsage } from './reply-reader.js'
import { type Beginning, beginningOf } from './affinity.js'
import { CachedPrice, type DeferralOptions } from './deferral.js'
import type { EndpointOptions } from './endpoint.js'
import { type EngineEntry, EnginePool, type Known, type Member } from './engine-pool.js'
import { isGone, isTheirs } from './failure.js'
import { LLAMA_SERVER_SAMPLING } from '../../runtime/engine/sampling-defaults.js'
import type { Flavour } from './flavour.js'
import { type RemoteConversation, RemoteConversations } from './conversations.js'
import { charactersOf, rowsOf, rowText, type TextCounts, textsOf, weightOf } from './prompt-counts.js'
import { bodyFor, bodyOf, EFFORT, promptOf, toolsOf } from './wire.js'

export interface RemoteEngineOptions extends EndpointOptions {
  /** The model's name in requests. Default: the first that the endpoint lists. */
  readonly model?: string
  /** The kind of server. Default: found from `owned_by` in `/v1/models`. */
  readonly flavour?: FlavourName
  /**
   * All engines of the model, in place of `url`, `key` and `flavour`. A conversation goes to the engine that has its beginning in the
   * cache. Default: only the engine at `url`.
   */
  readonly engines?: readonly EngineEntry[]
  /** Milliseconds between two health checks of each engine. Used only with `engines`. Default 5,000. */
  readonly healthEvery?: number
  /**
   * The name of a request header that carries the conversation's root hash (`Beginning.root`), for a router between kvfold and the engines.
   * A conversation's hash never changes, and its forks share it. Default: no header.
   */
  readonly sessionHeader?: string
  /** Tokens that a conversation may show. Default: the endpoint's context; no limit if it reports none. */
  readonly context?: number
  /** Edits wait until they save more than they cost (see deferral.ts). Default: every edit is sent at once. */
  readonly deferEdits?: DeferralOptions
  /**
   * Replies contain the token ids of prompt and answer (`EngineReply.tokens`), if the endpoint reports them. For some engines this costs
   * more requests per step. Default false.
   */
  readonly tokens?: boolean
  readonly signal?: AbortSignal
}

/** A step that is running. */
interface RemoteStep {
  readonly request: EngineRequest
  /** The request as the caller made it. In `request`, the messages and texts that its edits leave out are removed. */
  readonly asked: EngineRequest
  readonly state: RemoteConversation
  readonly stream: EventStream
  readonly signal: AbortSignal
  readonly beginning: Beginning
}

/** One attempt to run a step on one engine. */
interface Try extends Pick<Known, 'model' | 'flavour' | 'counts'> {
  readonly member: Member
  /** Milliseconds to wait while the engine is overloaded. Undefined: `Patience.busy` of the endpoint. */
  readonly busy: number | undefined
  readonly shown: Shown
}

/** The edits that a step sends. `fallback`: why the edits or the contract differ from the request; null if they do not. */
interface Shown {
  readonly edits: readonly Edit[]
  readonly fallback: string | null
}

/** What an attempt has sent to the caller so far. */
interface Told {
  /** Whether any part of the answer was sent. Prefill progress does not count. */
  any: boolean
}

/** Milliseconds that the token counts of the prompt's texts may still take after the answer has ended. */
const COUNTING = 500

/** Matches a valid name of an HTTP header. */
const HEADER = /^[\w!#$%&'*+.^`|~-]+$/

const EXACT_ONLY =
  'Only contract exact, by prefix: the engine behind this server has the cache, and it computes all text after an edit again.'
const DROPS_ONLY =
  'The engine behind this server keeps the cells behind whole messages that leave; it computes all text after other edits again.'
const PREFIX_ONLY = 'a remote engine caches only beginnings of prompts, so the text after an edit is computed again'

/**
 * An engine that sends the whole shown text; the endpoint decides how much of it is cached. So every step is exact: `splice`, `blend` and
 * `auto` fall back to `exact`, and the reply says so. The exception is a flavour with `drops`.
 *
 * `plan` and `prefill` events come only from endpoints that report progress (llama-server, kvfold). Messages have no `sampled` tokens.
 * Log-probabilities have token ids only if the endpoint gives them, else UNNUMBERED.
 */
export class RemoteEngine implements Engine, EnginesElsewhere {
  readonly #conversations: RemoteConversations
  readonly #notes = new Set<string>()
  readonly #price = new CachedPrice()

  private constructor(
    private readonly pool: EnginePool,
    private readonly options: RemoteEngineOptions,
  ) {
    const { deferEdits: own } = options
    this.#conversations = new RemoteConversations(own === undefined ? null : { cachedPrice: () => this.#price.price, ...own })
    this.#notes.add(this.flavour.drops ? DROPS_ONLY : EXACT_ONLY)
    if (this.flavour.salt === null)
      this.#notes.add(
        `${this.flavour.name} keeps one cache for all tenants: its response times may show a tenant that another one sent the same beginning.`,
      )
  }

  /**
   * Asks the endpoint for its facts. Of several endpoints, one that does not answer counts as down until it does. If the call fails, no
   * connection stays open.
   * @throws KvfoldError remote/*, model/not-found
   */
  static async connect(options: RemoteEngineOptions): Promise<RemoteEngine> {
    const { url, key = null, flavour, engines, sessionHeader } = options
    if (sessionHeader !== undefined && !HEADER.test(sessionHeader))
      throw new KvfoldError('remote/bad-endpoint', `${JSON.stringify(sessionHeader)} is not a valid header name.`)
    const alone = { url, key, ...(flavour === undefined ? {} : { flavour }) }
    return new RemoteEngine(await EnginePool.connect(engines ?? [alone], options, engines !== undefined), options)
  }

  get info(): EngineInfo {
    const { model, release } = this.pool.lead
    return { model, engine: 'remote', release, context: this.options.context ?? this.pool.context ?? Number.MAX_SAFE_INTEGER }
  }

  /** The flavour of the first engine that is up. */
  get flavour(): Flavour {
    return this.pool.lead.flavour
  }

  get #counts(): TextCounts {
    return this.pool.lead.counts
  }

  /** The state and the counters of each engine. */
  get engines(): readonly EngineStatus[] {
    return this.pool.status
  }

  /** Why the engine list last read from its file is not in force; null if it is. Set by the code that reads the file. */
  enginesProblem: string | null = null

  /** Replaces the list of engines. Running steps end on their engines. @throws KvfoldError remote/bad-endpoint; the old list then stays */
  async setEngines(entries: readonly EngineEntry[]): Promise<void> {
    await this.pool.set(entries)
    this.enginesProblem = null
  }

  checkEngines = (): Promise<void> => this.pool.check()

  /** Sentences for the user about the limits of this engine and its reports. Steps may add some. */
  get notes(): readonly string[] {
    return [...this.#notes]
  }

  respond(asked: EngineRequest): Generation {
    const request = { ...asked, ...omitting(asked.messages, asked.edits ?? []) }
    const { conversation, messages, tenant } = request
    return generationOf((stream) =>
      this.#conversations.run(conversation, request.signal, (state, signal) =>
        this.#respond({ request, asked, state, stream, signal, beginning: beginningOf(messages, tenant) }),
      ),
    )
  }

  /**
   * Returns the span with its borders moved out of surrogate pairs, so that it splits no character. Token borders do not matter here,
   * because the endpoint tokenizes the shown text as a whole.
   */
  snap(messages: readonly ChatMessage[], _tools: readonly ToolDefinition[], message: number, { start, end }: Span): Span {
    const text = messages[message]?.content ?? ''
    const inside = (at: number) => /[\uDC00-\uDFFF]/.test(text[at] ?? '') && /[\uD800-\uDBFF]/.test(text[at - 1] ?? '')
    return { start: inside(start) ? start - 1 : start, end: inside(end) ? end + 1 : end }
  }

  /**
   * llama-server's defaults if all engines are llama-server or kvfold. Else only a temperature of 1, OpenAI's default, which every engine
   * accepts.
   */
  get samplingDefaults(): Sampling {
    // An engine that was never reached has no flavour.
    const known = this.engines.flatMap(({ flavour }) => flavour ?? [])
    return known.every((flavour) => flavour === 'kvfold' || flavour === 'llama-server')
      ? LLAMA_SERVER_SAMPLING
      : { temperature: 1 }
  }

  /** Whether the variable can be sent. The chat template behind the endpoint is unknown, so it counts as reading every such variable. */
  reads(variable: string): boolean {
    return this.flavour.variables === 'any' || variable === EFFORT
  }

  readonly estimates = true

  /** The tokens of a prompt by `estimate`. Use `countExactly` to ask the endpoint. */
  count(messages: readonly ChatMessage[], tools: readonly ToolDefinition[], edits: readonly Edit[] = []): number {
    return this.estimate(messages, tools, edits).tokens
  }

  /** Estimates the tokens of a prompt: from the endpoint's counts for texts that it has counted, else from characters. Sends no request. */
  estimate(
    messages: readonly ChatMessage[],
    tools: readonly ToolDefinition[],
    edits: readonly Edit[] = [],
  ): { readonly tokens: number; readonly estimated: true } {
    const shown = omitting(messages, edits)
    return { tokens: weightOf(rowsOf(shown.messages, tools, shown.edits, this.#counts)), estimated: true }
  }

  /**
   * Asks the endpoint how many tokens a prompt has. Returns null if it cannot say; llama-server and vLLM can. @throws KvfoldError remote/*
   */
  countExactly(
    messages: readonly ChatMessage[],
    tools: readonly ToolDefinition[],
    edits: readonly Edit[] = [],
    signal?: AbortSignal,
  ): Promise<number | null> {
    const shown = omitting(messages, edits)
    return this.#counts.ofPrompt(promptOf(shown.messages, tools, shown.edits, this.flavour), signal)
  }

  /** Aborts the conversation's steps and forgets its ledger. The endpoint keeps its cells. */
  forget(conversation: ConversationId): void {
    this.#conversations.forget(conversation)
  }

  async dispose(): Promise<void> {
    await this.#conversations.close()
    this.pool.close()
  }

  /** Runs the step on the conversation's engine. If it fails before any part of the answer was sent, tries each other engine once. */
  async #respond(step: RemoteStep): Promise<EngineReply> {
    const { request, state, signal, beginning } = step
    const parent = request.parent === undefined ? null : (this.#conversations.of(request.parent)?.books.engine ?? null)
    const tried = new Set<string>()
    let shown: Shown | null = null
    for (;;) {
      const last = state.books.engine
      const { member, known } = this.pool.take({ beginning, last, parent }, tried)
      tried.add(member.name)
      const others = this.pool.hasOther(tried)
      const told: Told = { any: false }
      try {
        shown ??= this.#show(request, state, member.name === last ? state.books.held : null)
        const reply = await this.#attempt(step, { ...known, member, busy: others ? 0 : undefined, shown }, told)
        // A step that was cancelled before its first output does not prove that the engine works.
        if (reply.finish !== 'cancelled' || told.any) this.pool.ran(member, beginning, last)
        return reply
      } catch (error) {
        if (signal.aborted || !(error instanceof KvfoldError) || !isTheirs(error)) throw error
        this.pool.failed(member, error, isGone(error))
        if (told.any) throw error
        if (!this.pool.hasOther(tried)) throw error.code === 'remote/broken-stream' ? unanswered(error) : error
      } finally {
        member.end()
      }
    }
  }

  async #attempt(
    { request, asked, state, stream, signal, beginning }: RemoteStep,
    attempt: Try,
    told: Told,
  ): Promise<EngineReply> {
    const { member, model, flavour, counts, busy, shown } = attempt
    const since = performance.now()
    const { edits, fallback } = shown
    const { messages, tools = [] } = request
    const { endpoint } = member
    const rows = rowsOf(messages, tools, edits, counts)
    const dropping = flavour.drops ? state.dropped.split(asked, messages, edits) : null
    const body = {
      ...bodyFor(
        dropping === null ? request : { ...request, messages: dropping.messages },
        dropping === null ? edits : dropping.edits,
        ...([model, flavour, this.options.tokens] as const),
      ),
      ...dropping?.fields,
    }
    const { sessionHeader } = this.options
    const sending = {
      headers: { ...(sessionHeader === undefined ? {} : { [sessionHeader]: beginning.root }), ...request.sessionHeaders },
      ...(busy === undefined ? {} : { busy }),
    }
    const learning = new AbortController()
    const learned = counts.learn(textsOf(messages, tools, edits), AbortSignal.any([signal, learning.signal]))

    const within = joined([signal, member.lost])
    const reader = new ReplyReader(endpoint.name)
    let firstToken: number | null = null
    let ended: 'whole' | 'cancelled' = 'whole'
    try {
      for await (const chunk of chunksOf(endpoint, body, within.signal, sending)) {
        member.hear()
        for (const event of reader.push(chunk)) {
          if (event.type !== 'plan' && event.type !== 'prefill') {
            firstToken ??= performance.now() - since
            told.any = true
          }
          stream.push(event.type === 'plan' ? { ...event, fallback } : event)
        }
      }
      if (reader.finish === null)
        throw new KvfoldError('remote/broken-stream', `The answer of ${endpoint.name} ended without a reason.`)
    } catch (error) {
      if (!signal.aborted) throw told.any && error instanceof KvfoldError ? new BrokenAnswer(error, messageOf(reader)) : error
      ended = 'cancelled'
    } finally {
      within.release()
      // The answer is complete: do not let slow token counts delay it.
      const late = setTimeout(() => {
        learning.abort()
      }, COUNTING)
      await learned
      clearTimeout(late)
    }

    const total = performance.now() - since
    const finish: Finish = ended === 'cancelled' ? 'cancelled' : (reader.finish ?? 'stop')
    const said = messageOf(reader)
    const answer = bodyOf(said, said.content)
    const begun = request.continues === true ? (messages.at(-1)?.content ?? '') : ''
    const message = { ...said, content: begun + said.content }
    const usage = this.#usage(reader, { rows, answer, finish }, member, { flavour, counts })
    counts.observe(charactersOf(rows), usage.prompt, rows.length + 1)
    if (usage.milliseconds !== null && usage.cached !== null)
      this.#price.observe(usage.cached, usage.prompt - usage.cached, usage.milliseconds.prefill)
    // Build the rows again, because more texts have been counted by now.
    const ledger = state.books.enter({
      rows: rowsOf(messages, tools, edits, counts),
      indexes: [...indexesLeft(asked.messages, asked.edits ?? []), asked.messages.length],
      answer,
      usage,
      pending: usage.generated > 0 && (flavour.countsEnd || finish === 'length') ? 1 : 0,
      kind: finish === 'cancelled' ? 'cancelled' : (request.kind ?? 'answer'),
      fallback,
      firstToken: firstToken ?? total,
      total,
      engine: member.name,
      behindDrop: dropping?.first ?? null,
    })
    member.tokens.prompt += usage.prompt
    member.tokens.cached += usage.cached ?? 0
    member.tokens.expected += ledger.engine?.expected ?? 0
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
      ...(this.options.tokens === true && finish !== 'cancelled' ? await this.#tokensOf(request, attempt, reader) : {}),
    }
  }

  /** Returns the step's token ids. If the endpoint does not report them, returns none and adds a note. */
  async #tokensOf(request: EngineRequest, { member, flavour, counts, shown }: Try, reader: ReplyReader) {
    const { messages, signal } = request
    const prompt = () => promptOf(messages, toolsOf(request).tools, shown.edits, flavour)
    const ask = () => counts.tokensOfPrompt(prompt(), reader.usage?.prompt ?? null, signal)
    const tokens = tokensIn(reader, flavour.promptTokens === 'template' ? await ask() : null)
    if (typeof tokens !== 'string') return { tokens }
    this.#notes.add(`${member.name} ${tokens}, so the tokens of its answers cannot be used.`)
    return {}
  }

  /** Decides which edits the step sends. `held`: what the engine's cache holds after the last step. */
  #show(request: EngineRequest, { deferral }: RemoteConversation, held: Held | null): Shown {
    const { messages, tools = [], edits = [], contract = 'exact', maxTokens = 0 } = request
    const reasons: string[] = []
    if (edits.some((edit) => (edit.contract ?? contract) !== 'exact')) reasons.push(PREFIX_ONLY)
    let shown = edits
    if (deferral !== null) {
      const wish = {
        edits,
        contents: messages.map(({ content }) => content),
        held,
        row: (index: number, own: readonly Edit[]) => rowText(messages, tools, index, own),
        fits: (some: readonly Edit[]) => this.count(messages, tools, some) + maxTokens <= this.info.context,
        tokens: (text: string) => this.#counts.of(text),
      }
      const { edits: chosen, waiting, computes, hides, price } = deferral.choose(wish)
      shown = chosen
      if (waiting.length > 0)
        reasons.push(
          `${waiting.length} of ${edits.length} edits wait: they would hide about ${hides} tokens, but about ${computes} would be computed again (a cached token counts as ${Number(price.toPrecision(2))} of a computed one)`,
        )
    }
    return { edits: shown, fallback: reasons.length === 0 ? null : reasons.join('; ') }
  }

  /** Returns the endpoint's figures. Estimates them if the step was cut off or the endpoint reports none. */
  #usage(
    { usage, progress }: ReplyReader,
    { rows, answer, finish }: { readonly rows: readonly ShownRow[]; readonly answer: string; readonly finish: Finish },
    { name }: Member,
    { flavour, counts }: Pick<Known, 'flavour' | 'counts'>,
  ): EndpointUsage {
    if (usage !== null) {
      if (usage.cached === null)
        this.#notes.add(`${name} does not report cached tokens, so all count as computed; ${flavour.cacheReport}.`)
      return usage
    }
    if (finish !== 'cancelled')
      this.#notes.add(`${name} reports no usage, so the ledger has estimates (it lacks stream_options.include_usage).`)
    return {
      prompt: progress?.total ?? weightOf(rows),
      cached: progress?.cached ?? null,
      generated: counts.of(answer),
      milliseconds: null,
    }
  }
}

/** Returns the error for an answer that broke off before its first output, when no other engine is left. */
const unanswered = (cause: KvfoldError): KvfoldError =>
  new KvfoldError(cause.code, `${cause.message} No part of the answer arrived, and no other engine is left to ask; ask again.`, {
    cause,
  })

function messageOf({ content, reasoning, calls }: ReplyReader): ChatMessage {
  return {
    role: 'assistant',
    content,
    ...(reasoning === '' ? {} : { reasoning }),
    ...(calls.length === 0 ? {} : { toolCalls: calls }),
  }
}
