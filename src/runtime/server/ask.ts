/** Owns what is asked of the server and what it answers, whatever HTTP dialect it came in: everything under `src/runtime/server` speaks this. */
import type { MemToolMode } from '../agents/memtool-asides.js'
import type { ChatMessage, TemplateVariables, ToolCall, ToolChoice, ToolDefinition } from '../chat/message.js'
import type { CostlyFolds } from '../context/fragment.js'
import type { ContractChoice } from '../core/contract.js'
import { KvfoldError } from '../core/errors.js'
import type { Finish, Sampling, Timing, TokenLogprob } from '../engine/engine.js'
import type { LedgerEntry } from '../kv/ledger.js'
import type { ClientEdit } from './threads/client-edits.js'
import type { DeferredTools } from './threads/server-tools.js'
import type { Cleared, ClearToolUses } from './threads/context-edits.js'
import type { Responses } from './responses/responses.js'
import type { ThreadApi } from './threads/thread-api.js'
import type { Acm, FoldPolicy, Overflow } from './threads/policies.js'
import type { ModelStatus, ServiceStatus } from './threads/status.js'
import type { Tenant } from '../core/ids.js'

export { type Acm, acms, type FoldPolicy, type Overflow, overflows } from './threads/policies.js'
export { PUBLIC, type Tenant } from '../core/ids.js'

/** What the text of an answer must be: JSON by a schema, any JSON object, or whatever a GBNF grammar says. */
export type AnswerFormat =
  /** `loose`: what of the schema cannot be kept is left out, and told (`Answer.unread`). Default: it is refused. */
  | { readonly kind: 'schema'; readonly schema: unknown; readonly loose?: boolean }
  | { readonly kind: 'json' }
  | { readonly kind: 'grammar'; readonly grammar: string }

/** What becomes of parts of messages that are no text. Those of tool results always leave a placeholder, since clients send results again. */
export type UnsupportedParts = 'refuse' | 'placeholder'

/** What a field of a request tells the chat template. */
export interface TemplateField {
  readonly field: string
  /** Variables that it is, by what templates call them. */
  readonly names: readonly string[]
  readonly value: unknown
}

export interface Ask {
  readonly tenant: Tenant
  /** A name out of `Service.models()`. Default: the first. */
  readonly model?: string
  /** A thread to go on with. Default: the live one with the longest common beginning, or a new one. Unknown ids, and those of others, are `server/no-thread`. */
  readonly thread?: string
  /** Everything, oldest first, as the client has it: our own tools' calls and results are not among them. */
  readonly messages: readonly ChatMessage[]
  /**
   * True: `messages` are only what is new, to stand after everything that `thread` (needed then) has. For `previous_response_id` and the
   * dashboard. Default false.
   */
  readonly appended?: boolean
  /**
   * What the answer begins with; the answer is what comes after. Not with a format or a forced call. A thread that ends with a cut answer which begins
   * so goes on with that answer. Default: nothing.
   */
  readonly beginning?: string
  /** The client's. */
  readonly tools: readonly ToolDefinition[]
  readonly toolChoice: ToolChoice | { readonly name: string }
  /** Tools that the model does not see until it finds them, and how it may search. Default: none. */
  readonly deferred?: DeferredTools
  /** False: at most one call of the client's tools an answer. Default true. */
  readonly parallelCalls?: boolean
  /** Each field left out is as the model's file says, else as llama-server has it (`Engine.samplingDefaults`). */
  readonly sampling?: Sampling
  /**
   * Tokens of a step; with `acm: tools` a turn may take several. A call that they cut off is no call. Default: what the context has room for, as
   * llama-server and vLLM have it.
   */
  readonly maxTokens?: number
  readonly stop?: readonly string[]
  readonly format?: AnswerFormat
  /** Later ones go before earlier ones of the same name. Default: the template is told nothing. */
  readonly template?: readonly TemplateField[]
  /** Tokens of reasoning a step, as a field says: then it is closed in the model's place, where the engine can. Default: without end. */
  readonly reasoningBudget?: { readonly field: string; readonly tokens: number }
  /** Alternatives to report per token, 0 to 20. Default: no logprobs. */
  readonly logprobs?: number
  /** Default: the server's. */
  readonly acm?: Acm
  readonly policy?: FoldPolicy
  /** With `acm: memtool`: who removes and who searches. Default: the server's. */
  readonly memToolMode?: MemToolMode
  /** Default: the server's. */
  readonly overflow?: Overflow
  /** Which old tool results are cleared before the model answers. Default: none. */
  readonly clear?: ClearToolUses
  /** Ids of calls whose results nobody folds without the model's or a person's decision. Default: none. */
  readonly pinned?: readonly string[]
  /** Requests that are expected to go on with the thread: policies reckon with them, and after the last one its cells give way first. Default: as many as it had, for policies. */
  readonly expectedReuse?: number
  readonly contract?: ContractChoice
  /** What the cache keeps to where the messages differ from those of the thread's last request. Default: the server's. */
  readonly clientEdits?: ContractChoice
  /** What becomes of folds and summaries of the model's that take at least as many tokens as their text. Default: the server's. */
  readonly costlyFolds?: CostlyFolds
  /** Higher goes first among one tenant's requests. Default 0. */
  readonly priority?: number
  /** Milliseconds from now to the end of the answer, waiting included. Default: the server's. */
  readonly timeoutMs?: number
  readonly signal?: AbortSignal
  /**
   * True: the client reads the answer as it comes. The thread then keeps what was said of an answer that is cancelled, marked `cut`. Default false: the
   * thread stays as it was before the answer.
   */
  readonly streamed?: boolean
}

/** Tokens of an ask, over all its steps but summaries. */
export interface Usage {
  /** Tokens of the prompt of the last step: what the model saw before it wrote the message. */
  readonly promptTokens: number
  /** Those of the first step's prompt that were not computed in this ask; never more than `promptTokens`. */
  readonly cachedTokens: number
  /** Generated in all steps, call syntax, reasoning and calls to our tools included. */
  readonly completionTokens: number
  /** Those of the last step that were reasoning, as far as its text can be told apart. */
  readonly reasoningTokens: number
  /** Against a plain prefix cache that is asked the same, negative where that would have computed less; left out where the engine does not say. */
  readonly saved?: Saved
}

/** A step that searched for tools: what was said, with the call, and what came of it. */
export interface SearchStep {
  readonly message: ChatMessage
  readonly result: ToolSearchResult
}

export interface ToolSearchResult {
  readonly call: ToolCall
  /** Names of the tools found. */
  readonly found: readonly string[]
  /** What was wrong with the call; null when nothing was. */
  readonly error: string | null
}

/** What was not computed, and the time that it would have taken at the pace of the model's prompts so far. */
export interface Saved {
  readonly tokens: number
  readonly seconds: number
}

/** Where a request left the thread that it was matched with or named, so that what comes after had to be computed again. */
export interface Lost {
  /** Index of the first differing message of the request. */
  readonly message: number
  /** Tokens before it, which are the same; null when the first step did not end. */
  readonly token: number | null
  readonly reason: string
}

/** How a request differs from what the thread's client knew, carried out as edits of the thread; and what the answer was drawn from by edits, whoever made them. */
export interface RecognisedEdits {
  /** What the cache kept to: as asked for the changes; without changes as in the last step. */
  readonly contract: ContractChoice
  /** Empty where only earlier edits, or folds, left something approximate. */
  readonly changes: readonly ClientEdit[]
  /** Tokens shown whose cells carry the trace of hidden text; of several steps the most. */
  readonly approximate: number
}

export interface Answer {
  /** What came before the message: searches for deferred tools, each a step of its own, oldest first. Left out where there were none. */
  readonly searched?: readonly SearchStep[]
  /** The thread that this answer belongs to now; a fork's is new. */
  readonly thread: string
  readonly model: string
  /** What the client may see: text, reasoning, and calls of its own tools that are whole. It is marked `cut` when the thread keeps it though it was cancelled. */
  readonly message: ChatMessage
  readonly finish: Finish
  /** The stop string that ended it, where the engine says. */
  readonly stop?: string
  readonly usage: Usage
  /** Entries of all steps of this ask, oldest first, summaries included. `messages[].index` counts the thread's messages, ours included. */
  readonly ledger: readonly LedgerEntry[]
  /** What of the prompt is cleared; null where the ask does not ask for that. */
  readonly cleared: Cleared | null
  /** Null when the request went on where its thread ended, asked the same again, or is new. */
  readonly lost: Lost | null
  /** Null when the request changed nothing of what its thread had, and no token shown is approximate. */
  readonly edits: RecognisedEdits | null
  /** Over all steps; `firstToken` of the first. Waiting in the queue is not in it. */
  readonly timing: Timing
  /** Milliseconds before the first step could begin. */
  readonly waited: number
  /** Of the last step; when `Ask.logprobs` asks for them. */
  readonly logprobs?: readonly TokenLogprob[]
  /** Calls of the context tools that were carried out. */
  readonly contextCalls: number
  /** What it was sampled with, defaults included; left out where nothing was said and the engine knows none. */
  readonly sampling?: Sampling
  /**
   * Fields of `Ask.template` that the model's template does not read and nothing else here carries out, each once; and places in the schemas of tools
   * and of a loose format that the answer was not held to.
   */
  readonly unread: readonly string[]
}

export type AskEvent =
  /** Others are before it; sent whenever the place changes. 0: it is next. */
  | { readonly type: 'queued'; readonly position: number }
  /** The ask has its place and thread and begins. */
  | { readonly type: 'started'; readonly model: string; readonly thread: string }
  /** A step begins: how its prompt is come by. */
  | { readonly type: 'plan'; readonly step: number; readonly shown: number; readonly reused: number; readonly compute: number }
  /** Prompt tokens computed. */
  | { readonly type: 'progress'; readonly step: number; readonly done: number; readonly total: number }
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: 'reasoning'; readonly text: string }
  /** More of the arguments of a call of one of the client's tools; where no `call` of that id follows, it was cut off. */
  | { readonly type: 'arguments'; readonly id: string; readonly name: string; readonly text: string }
  /** A complete call of one of the client's tools. */
  | { readonly type: 'call'; readonly call: ToolCall }
  /** Sampled tokens, call syntax included; with `Ask.logprobs` their logprobs. */
  | { readonly type: 'tokens'; readonly tokens: readonly number[]; readonly logprobs?: readonly TokenLogprob[] }
  /** A context tool was carried out inside. */
  | { readonly type: 'acm'; readonly step: number; readonly call: ToolCall; readonly result: string; readonly failed: boolean }
  /** A search for deferred tools was carried out inside. */
  | ({ readonly type: 'search' } & ToolSearchResult)
  /** The policy folded these fragments. `saves`: tokens. */
  | { readonly type: 'policy'; readonly folded: readonly string[]; readonly saves: number; readonly reason: string }
  /** The template shows an earlier message differently than before, so its tokens are computed again. */
  | { readonly type: 'rewrite'; readonly message: number; readonly reason: string }

/**
 * A running ask: iterate for events, await `answer` for the end; an error rejects `answer` and ends the iteration with it. It runs whether or
 * not anybody iterates; `Ask.signal` cancels it, and the answer so far has finish `cancelled` (before it began: KvfoldError engine/cancelled).
 */
export interface Asked extends AsyncIterable<AskEvent> {
  readonly answer: Promise<Answer>
}

/** A bare completion: text or tokens go on, no template, no thread. */
export interface CompletionAsk extends Pick<
  Ask,
  'tenant' | 'model' | 'sampling' | 'maxTokens' | 'stop' | 'format' | 'logprobs' | 'priority' | 'timeoutMs' | 'signal'
> {
  /** A text, or token ids and texts one behind the other. */
  readonly prompt: string | readonly (string | number)[]
  /** Alternatives to report per token of the prompt, 0 to 20; nothing of the cache is used then. Default: none are. */
  readonly promptLogprobs?: number
}

export interface CompletionAnswer extends Pick<
  Answer,
  'model' | 'finish' | 'stop' | 'usage' | 'timing' | 'waited' | 'logprobs' | 'sampling' | 'unread'
> {
  readonly text: string
  readonly tokens: readonly number[]
  /** When `CompletionAsk.promptLogprobs` asks for them: the prompt's first token, whose probability nothing says, and those of the others. */
  readonly prompted?: { readonly first: string; readonly logprobs: readonly TokenLogprob[] }
  readonly ledger: LedgerEntry
}

/** As `Asked`. Events: queued, started (the thread ends with it), progress, text, tokens. */
export interface CompletionAsked extends AsyncIterable<AskEvent> {
  readonly answer: Promise<CompletionAnswer>
}

/** What the template is told by these fields. */
export const variablesOf = (fields: readonly TemplateField[] = []): TemplateVariables =>
  Object.fromEntries(fields.flatMap(({ names, value }) => names.map((name) => [name, value] as const)))

/** What stands behind every route. Methods that name a model load it when it is not loaded. @throws KvfoldError model/not-found for unknown names */
export interface Service {
  /** Errors come through `Asked`: server/overloaded, server/timeout, server/no-thread, context/full, engine/*, chat/*, memory/insufficient. */
  ask(ask: Ask): Asked
  /** `n` answers to the same messages, each in a thread of its own; the prompt is computed once. n: 1 to 16. */
  several(ask: Ask, n: number): readonly Asked[]
  complete(ask: CompletionAsk): CompletionAsked
  /** In the order of preference; loads nothing. */
  models(): readonly ModelStatus[]
  /** Loads the model, whose status says more then; the first where none is named. Gives its status. */
  load(model?: string): Promise<ModelStatus>
  /** Control tokens written in the text count as such with `special`; `bos`: with what the model's texts begin with. */
  tokenize(
    model: string | undefined,
    text: string,
    options?: { readonly special?: boolean; readonly bos?: boolean },
  ): Promise<Int32Array>
  detokenize(model: string | undefined, tokens: ArrayLike<number>): Promise<string>
  /** The bytes of each token. */
  pieces(model: string | undefined, tokens: ArrayLike<number>): Promise<readonly Buffer[]>
  /** The text that the model's chat template makes of these messages. @throws KvfoldError model/unsupported where another server has the template */
  prompt(
    model: string | undefined,
    messages: readonly ChatMessage[],
    tools: readonly ToolDefinition[],
    template?: readonly TemplateField[],
  ): Promise<string>
  /** Tokens of a prompt that shows all of these messages, but for what a new thread would have `clear` hide, and tells the template this. */
  count(
    model: string | undefined,
    messages: readonly ChatMessage[],
    tools: readonly ToolDefinition[],
    of?: Pick<Ask, 'clear' | 'template'>,
  ): Promise<number>
  /** Those beside the served models that read texts and generate none; loads nothing. */
  sideModels(): readonly SideModelStatus[]
  /** One vector of length 1 each. @throws KvfoldError model/unsupported where the model cannot */
  embed(ask: EmbedAsk): Promise<EmbedAnswer>
  /** How well each document answers the query. @throws KvfoldError model/unsupported where no model does that here */
  rerank(ask: RerankAsk): Promise<RerankAnswer>
  /** Live conversations, for programs and people. */
  readonly threads: ThreadApi
  /** Those of `/v1/responses`, to be asked for again. */
  readonly responses: Responses
  /** For health, metrics and the dashboard; cheap. */
  status(): ServiceStatus
  /** No new asks; waits `graceMs` for those that run, cancels the rest, and gives the models back. Idempotent. */
  close(graceMs?: number): Promise<void>
}

export interface EmbedAsk {
  readonly tenant: Tenant
  readonly model?: string
  readonly inputs: readonly (string | readonly number[])[]
  /** The first so many numbers of each vector, made length 1 again. Default: all. */
  readonly dimensions?: number
  readonly signal?: AbortSignal
}

export interface RerankAsk {
  readonly tenant: Tenant
  readonly model?: string
  readonly query: string
  readonly documents: readonly string[]
  readonly signal?: AbortSignal
}

export interface SideModelStatus {
  /** What requests call it. */
  readonly name: string
  /** What it is there for. */
  readonly use: 'embeddings' | 'rankings'
  readonly state: 'unloaded' | 'loading' | 'loaded'
  /** Unix seconds when the server learned of it. */
  readonly since: number
  /** What is known once it was loaded: its own name, and the tokens of the longest text. */
  readonly loaded: { readonly title: string; readonly tokens: number } | null
}

export interface EmbedAnswer {
  readonly model: string
  readonly vectors: readonly Float32Array[]
  readonly tokens: number
}

/** `scores`: one for each document, in their order; a higher one answers better, and their range is the model's own. */
export interface RerankAnswer {
  readonly model: string
  readonly scores: readonly number[]
  readonly tokens: number
}

/** Too much is waiting already (code server/overloaded). */
export class Overloaded extends KvfoldError {
  constructor(
    message: string,
    /** Seconds after which it is worth trying again, for `Retry-After`; whole, at least 1. */
    readonly retryAfter: number,
  ) {
    super('server/overloaded', message)
  }
}

/** The request's own fault. */
export const isRefusal = (error: unknown): boolean =>
  error instanceof KvfoldError && error.status < 500 && error.code !== 'engine/cancelled'

export const closing = (): KvfoldError =>
  new KvfoldError('server/closing', 'The server is going down and takes no more requests.')
export const late = (milliseconds: number | undefined): KvfoldError =>
  new KvfoldError(
    'server/timeout',
    `The answer was not done within ${milliseconds ?? 0} ms; what was computed stays in the cache for the next try.`,
  )

// What answers have in common, whether they came from a conversation or from bare text.

/** What `Answer` and `CompletionAnswer` have in common. */
export type AnyAnswer = Pick<Answer, 'model' | 'finish' | 'usage' | 'timing' | 'waited' | 'unread'>

export type AnyAsked<A extends AnyAnswer> = Omit<Asked, 'answer'> & { readonly answer: Promise<A> }
