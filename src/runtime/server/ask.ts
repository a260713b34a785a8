/**
 * The requests and answers of the server, independent of the HTTP dialect. Every dialect turns its body into an `Ask`, and an `Answer` into
 * its own form.
 */
import type { MemToolMode } from '../agents/memtool-asides.js'
import type { ChatMessage, TemplateVariables, ToolCall, ToolChoice, ToolDefinition } from '../chat/message.js'
import type { CostlyFolds } from '../context/fragment.js'
import type { ContractChoice } from '../core/contract.js'
import { KvfoldError } from '../core/errors.js'
import type { AdapterScale, Finish, PromptLogprob, Sampling, Timing, TokenLogprob } from '../engine/engine.js'
import type { SpeculateOptions } from '../engine/speculate-terms.js'
import type { FileFacts } from '../models/facts.js'
import type { AnswerLimits } from '../native/types.js'
import type { LedgerEntry } from '../kv/ledger.js'
import type { ClientEdit } from './threads/client-edits.js'
import type { DeferredTools } from './threads/server-tools.js'
import type { Lost } from './threads/cache-loss.js'
import type { Compacted, Compaction } from './threads/compaction.js'
import type { Cleared, ClearRules } from './threads/context-edits.js'
import type { Dropped, Drops } from './threads/drops.js'
import type { Acm, FoldPolicy, Overflow } from './threads/policies.js'
import type { Tenant } from '../core/ids.js'

export { type Acm, acms, type FoldPolicy, type Overflow, overflows } from './threads/policies.js'
export { PUBLIC, type Tenant } from '../core/ids.js'

/** The required form of the answer's text: JSON by a schema, any JSON object, or text by a GBNF grammar. */
export type AnswerFormat =
  /** `loose`: parts of the schema that cannot be enforced are ignored and listed in `Answer.unread`. Default: the request is refused. */
  | { readonly kind: 'schema'; readonly schema: unknown; readonly loose?: boolean }
  | { readonly kind: 'json' }
  /**
   * `afterReasoning`: if the prompt opens reasoning, the grammar applies to the text after it. Default: it applies to the reasoning, too.
   */
  | { readonly kind: 'grammar'; readonly grammar: string; readonly afterReasoning?: boolean }

/** The most characters and values of a schema or grammar. A larger one would take too long to hand to another thread. */
export const MOST_OF_SCHEMA = 2 ** 18

/**
 * What happens to message parts that are not text, such as images: the request is refused, or the model sees a placeholder. In tool results
 * they always become a placeholder, because clients send the same results again with every request.
 */
export type UnsupportedParts = 'refuse' | 'placeholder'

/** A request field whose value goes to the chat template. */
export interface TemplateField {
  readonly field: string
  /** Template variables that get the value. Several names, because templates name the same thing differently. */
  readonly names: readonly string[]
  readonly value: unknown
}

/** A client's name for its session. The same name of another tenant is another session. */
export interface NamedSession {
  readonly name: string
  /** The name of the session, or branch of a session, from which this one was started. */
  readonly parent?: string
  /** The request headers that name the session, passed on to engines that are other servers. */
  readonly headers: Readonly<Record<string, string>>
}

export interface Ask {
  readonly tenant: Tenant
  /**
   * A text that divides the tenant's cache, for tenants that serve several customers. Only requests with the same salt share cells and
   * threads. Default: none; requests without a salt share with each other.
   */
  readonly cacheSalt?: string
  /** A name from `ThreadService.models()`, or the name of a model's adapter, which then applies at scale 1. Default: the first model. */
  readonly model?: string
  /**
   * The LoRA adapters to apply; those not listed do not apply. Default: the adapter that `model` names, else all adapters of the model at
   * their current scales (`ThreadService.scaleAdapters`).
   */
  readonly lora?: readonly AdapterScale[]
  /**
   * The id of the thread to continue. Default: the thread with the longest common beginning, or a new one. An unknown id, or one of another
   * tenant, fails with `server/no-thread`; a thread of another salt with `engine/bad-request`.
   */
  readonly thread?: string
  /** The client's session. Its threads are searched before threads with the same messages. Default: none. */
  readonly session?: NamedSession
  /** The whole conversation as the client has it, oldest first. Calls of the server's own tools and their results are not in it. */
  readonly messages: readonly ChatMessage[]
  /**
   * True: `messages` are only the new ones, to append after all messages of `thread` (then required). `previous_response_id` and the
   * dashboard use it. Default false.
   */
  readonly appended?: boolean
  /**
   * Text that the answer must begin with; the server returns only the text after it. Not allowed with a format or a forced call. If the
   * thread ends with a cut answer that begins with this text, the model continues that answer. Default: none.
   */
  readonly beginning?: string
  /** The client's tools. */
  readonly tools: readonly ToolDefinition[]
  readonly toolChoice: ToolChoice | { readonly name: string } | AmongTools
  /** Tools that the model does not see until a search finds them, and the searches that the model may use. Default: none. */
  readonly deferred?: DeferredTools
  /** Whether tool calls in another syntax than the template's, such as fenced JSON, count as calls. Default: the engine's setting. */
  readonly bareCalls?: boolean
  /**
   * Returns the id of the answer's nth call of a client's tool (from 0), for models whose syntax has no ids. Clients that leave ids out
   * need ids that can be computed again from the conversation. Default: random ids.
   */
  readonly callId?: (nth: number) => string
  /** False: an answer has at most one call of the client's tools. Default true. */
  readonly parallelCalls?: boolean
  /** Speculative decoding: how tokens are drafted before the model checks them. Default: the engine's setting. */
  readonly speculate?: SpeculateOptions
  /** Sampler settings. Missing ones come from the model file, or else from llama-server's defaults (`Engine.samplingDefaults`). */
  readonly sampling?: Sampling
  /** Tokens and texts that the answer must not have, and where it may end. Notes and summaries ignore this. Default: none. */
  readonly limits?: AnswerLimits
  /**
   * The most tokens that one step may generate; with `acm: tools` a turn may take several steps. A call that this limit cuts off is
   * dropped. Default: as many as the context has room for, as in llama-server and vLLM.
   */
  readonly maxTokens?: number
  readonly stop?: readonly string[]
  readonly format?: AnswerFormat
  /** Fields for the chat template. When two of them set the same variable, the later one wins. Default: none. */
  readonly template?: readonly TemplateField[]
  /**
   * The most reasoning tokens of a step, and the request field that set the limit. At the limit the engine ends the reasoning for the
   * model, if it can. Default: no limit.
   */
  readonly reasoningBudget?: { readonly field: string; readonly tokens: number }
  /** When aborted, the engine ends the reasoning for the model, if it can. Default: none. */
  readonly endReasoning?: AbortSignal
  /** How many alternative tokens to report per token, 0 to 20. Default: no logprobs. */
  readonly logprobs?: number
  /**
   * How many alternative tokens to report per prompt token, 0 to 20. The whole prompt is then computed again, without cached cells.
   * Default: no prompt logprobs.
   */
  readonly promptLogprobs?: number
  /** How the context is managed (`acms`). Default: the server's setting. */
  readonly acm?: Acm
  readonly policy?: FoldPolicy
  /**
   * With `acm: memtool`: whether the model searches and removes tools by tool calls, or by answers to the server's questions
   * (`memToolModes`). Default: the server's setting.
   */
  readonly memToolMode?: MemToolMode
  /** What happens to a conversation that does not fit into the context (`overflows`). Default: the server's setting. */
  readonly overflow?: Overflow
  /** Which old tool results and which reasoning to clear before the model answers. Default: none. */
  readonly clear?: ClearRules
  /** Messages and reasoning to drop before the model answers. Default: none. */
  readonly drops?: Drops
  /** When to compact the conversation before the model answers. Default: never. */
  readonly compaction?: Compaction
  /** Ids of tool calls whose results the server's policies must not fold. The model and people still may. Default: none. */
  readonly pinned?: readonly string[]
  /**
   * How many later requests will continue this thread. Policies weigh by it whether a fold pays; 0 also makes the thread's cells the first
   * to be evicted. Default, for policies: as many as the thread has answers.
   */
  readonly expectedReuse?: number
  readonly contract?: ContractChoice
  /** The contract when the client edits its conversation by sending different messages than before. Default: the server's setting. */
  readonly clientEdits?: ContractChoice
  /**
   * Whether the model may make folds and summaries that take at least as many tokens as the text they hide. Default: the server's setting.
   */
  readonly costlyFolds?: CostlyFolds
  /** Requests of one tenant begin in the order of priority; a higher number comes first. Default 0. */
  readonly priority?: number
  /** Milliseconds until the answer must be complete, including the wait in the queue. Default: the server's setting. */
  readonly timeoutMs?: number
  /**
   * True: one more answer to a request that is already here, such as the second of `n`. The queue's limit does not count it. Default false.
   */
  readonly follows?: boolean
  readonly signal?: AbortSignal
  /**
   * True: the client reads the answer while it is generated. If it is cancelled, the thread keeps the text so far, marked `cut`. Default
   * false: a cancelled answer leaves no trace in the thread.
   */
  readonly streamed?: boolean
}

/** Token counts of a request, over all its steps except summaries. */
export interface Usage {
  /** Prompt tokens of the last step, whose output is the message. */
  readonly promptTokens: number
  /** Tokens of the first step's prompt that came from the cache; at most `promptTokens`. */
  readonly cachedTokens: number
  /** Tokens generated in all steps, including call syntax, reasoning and calls of the server's tools. */
  readonly completionTokens: number
  /** Reasoning tokens of the last step, as far as the parser can tell them from other text. */
  readonly reasoningTokens: number
  /**
   * Savings against a plain prefix cache that serves the same requests; negative if that cache would have computed fewer tokens. Absent if
   * the engine does not report it.
   */
  readonly saved?: Saved
  /** Drafted tokens that the model checked, and how many of them the answer kept. Absent if nothing was drafted. */
  readonly drafts?: { readonly drafted: number; readonly accepted: number }
}

/** A tool call in another syntax than the template's. `form`: that syntax, for example "```json". */
export interface BareCallReport {
  readonly name: string
  readonly form: string
}

/** A step in which the model searched for tools: the message with the search call, and its result. */
export interface SearchStep {
  readonly message: ChatMessage
  readonly result: ToolSearchResult
}

export interface ToolSearchResult {
  readonly call: ToolCall
  /** Names of the found tools. */
  readonly found: readonly string[]
  /** Why the call failed; null when it succeeded. */
  readonly error: string | null
}

/** Tokens that were not computed, and the seconds their prefill would have taken at the model's mean speed so far. */
export interface Saved {
  readonly tokens: number
  readonly seconds: number
}

/** The edits that the client made by sending different messages than before, and how many cells of the answer's prompt are approximate. */
export interface RecognisedEdits {
  /** With `changes`: the contract asked for client edits. Without: the contract of the last step. */
  readonly contract: ContractChoice
  /** Empty when the approximate cells come only from earlier edits or from folds. */
  readonly changes: readonly ClientEdit[]
  /** Tokens of the prompt whose cells carry traces of hidden text; with several steps, the largest count. */
  readonly approximate: number
}

export interface Answer {
  /** Steps before the message in which the model searched for deferred tools, oldest first. Absent when there were none. */
  readonly searched?: readonly SearchStep[]
  /** The id of the thread with this answer; a new one after a fork. */
  readonly thread: string
  readonly model: string
  /**
   * What the client sees of the answer: text, reasoning, and complete calls of its own tools. `cut`: the answer was cancelled, and the
   * thread keeps it.
   */
  readonly message: ChatMessage
  readonly finish: Finish
  /** The stop string or stop token that ended the answer, if the engine reports it. */
  readonly stop?: string | number
  readonly usage: Usage
  /**
   * Ledger entries of all steps of this request, oldest first, summaries included. `messages[].index` counts all messages of the thread,
   * also hidden ones.
   */
  readonly ledger: readonly LedgerEntry[]
  /** What is cleared from the prompt; null when the request has no `clear`. */
  readonly cleared: Cleared | null
  /** Tokens hidden and moved by drops. Absent when the request drops nothing. */
  readonly dropped?: Dropped
  /** The compaction before this answer. Absent when there was none. */
  readonly compacted?: Compacted
  /**
   * Cached tokens of an earlier prompt that this request could not reuse, and why. Null when it could reuse all: it continued its thread,
   * repeated a request, or began a new thread.
   */
  readonly lost: Lost | null
  /** The client's edits and the approximate cells. Null when there are neither. */
  readonly edits: RecognisedEdits | null
  /** Times over all steps, without the wait in the queue. `firstToken`: of the first step. */
  readonly timing: Timing
  /** Milliseconds from the request to its first step: the wait for a slot and for the model to load. */
  readonly waited: number
  /** Logprobs of all tokens of the last step, if `Ask.logprobs` asks for them. */
  readonly logprobs?: readonly TokenLogprob[]
  /** Logprobs of the tokens of the message's text, from all its steps, if `Ask.logprobs` asks for them. */
  readonly textLogprobs?: readonly TokenLogprob[]
  /** The tokens of the first step's prompt, where the engine has them. */
  readonly promptTokens?: Int32Array
  /** Sampled tokens of the last step, without the token that ended it; empty if the engine does not report them. */
  readonly tokens: readonly number[]
  /** Logprobs of the first step's prompt from its second token on, if `Ask.promptLogprobs` asks for them. */
  readonly promptLogprobs?: readonly PromptLogprob[]
  /** Tool calls in another syntax than the template's (`EngineRequest.bareCalls`). Absent when there were none. */
  readonly bareCalls?: readonly BareCallReport[]
  /** How many calls of the six context tools were carried out. */
  readonly contextCalls: number
  /** The sampling settings used, defaults included. Absent when neither the request nor the engine has any. */
  readonly sampling?: Sampling
  /**
   * Settings of the request that had no effect, each once: fields of `Ask.template` that neither template nor server reads, and parts of
   * JSON schemas that the grammar cannot enforce.
   */
  readonly unread: readonly string[]
}

export type AskEvent =
  /** `position` requests are ahead in the queue; 0: this one is next. Sent whenever the position changes. */
  | { readonly type: 'queued'; readonly position: number }
  /** The request has a slot and a thread, and begins. */
  | { readonly type: 'started'; readonly model: string; readonly thread: string }
  /** A step begins. `shown`: its prompt tokens; `reused`: those from the cache; `compute`: those to compute. */
  | { readonly type: 'plan'; readonly step: number; readonly shown: number; readonly reused: number; readonly compute: number }
  /** The engine has computed `done` of `total` prompt tokens. */
  | { readonly type: 'progress'; readonly step: number; readonly done: number; readonly total: number }
  /** `logprobs`: of the tokens in this text, if `Ask.logprobs` asks for them. */
  | { readonly type: 'text'; readonly text: string; readonly logprobs?: readonly TokenLogprob[] }
  | { readonly type: 'reasoning'; readonly text: string }
  /** A piece of the arguments of a client's tool call. If no `call` event with that id follows, the call was cut off. */
  | { readonly type: 'arguments'; readonly id: string; readonly name: string; readonly text: string }
  /** A complete call of one of the client's tools. */
  | { readonly type: 'call'; readonly call: ToolCall }
  /** All sampled tokens, also those of call syntax, with logprobs if `Ask.logprobs` asks for them. */
  | { readonly type: 'tokens'; readonly tokens: readonly number[]; readonly logprobs?: readonly TokenLogprob[] }
  /** The next call is in another syntax than the template's. */
  | ({ readonly type: 'bare-call' } & BareCallReport)
  /** The server carried out a call of a context tool. */
  | { readonly type: 'acm'; readonly step: number; readonly call: ToolCall; readonly result: string; readonly failed: boolean }
  /** The server carried out a search for deferred tools. */
  | ({ readonly type: 'search' } & ToolSearchResult)
  /** The server folded these fragments, by a policy or a request field. The prompt became `saves` tokens shorter. */
  | { readonly type: 'policy'; readonly folded: readonly string[]; readonly saves: number; readonly reason: string }
  /** The conversation was compacted. */
  | ({ readonly type: 'compaction' } & Compacted)
  /** Ledger entries of model steps that are not part of the answer: questions asked aside, notes, summaries. */
  | { readonly type: 'aside'; readonly entries: readonly LedgerEntry[] }
  /** The template now writes message `message` differently than before, so tokens are computed again from there on. */
  | { readonly type: 'rewrite'; readonly message: number; readonly reason: string }

/**
 * A running request: iterate it for events, await `answer` for the result. An error rejects `answer` and also ends the iteration. The
 * request runs even if nothing iterates. After `Ask.signal` is aborted, the answer so far has finish `cancelled`; before the request began,
 * the error is KvfoldError engine/cancelled.
 */
export interface Asked extends AsyncIterable<AskEvent> {
  readonly answer: Promise<Answer>
}

/** OpenAI's `allowed_tools`: the model sees all tools, but may call only the named ones. `required`: it must call one of them. */
export interface AmongTools {
  readonly mode: 'auto' | 'required'
  readonly names: readonly string[]
}

/** Fill-in-the-middle: the texts around the gap. Control tokens written in these texts count as plain text. */
export interface FillIn {
  readonly prefix: string
  readonly suffix: string
  /** Other files, shown to the model before the gap's own file. */
  readonly files: readonly { readonly name: string; readonly text: string }[]
}

/** A bare completion: the model continues a text or tokens, without a template or a thread. */
export interface CompletionAsk extends Pick<
  Ask,
  | 'tenant'
  | 'cacheSalt'
  | 'model'
  | 'lora'
  | 'sampling'
  | 'limits'
  | 'speculate'
  | 'maxTokens'
  | 'stop'
  | 'format'
  | 'logprobs'
  | 'promptLogprobs'
  | 'priority'
  | 'timeoutMs'
  | 'signal'
  | 'follows'
> {
  /** A text, or token ids and texts that are joined in order. */
  readonly prompt: string | readonly (string | number)[]
  /**
   * The texts around the gap that the answer fills. `prompt` is then the text at the start of the gap, which the answer continues. Default:
   * no gap.
   */
  readonly fill?: FillIn
}

export interface CompletionAnswer extends Pick<
  Answer,
  'model' | 'finish' | 'stop' | 'usage' | 'timing' | 'waited' | 'logprobs' | 'sampling' | 'unread'
> {
  readonly text: string
  readonly promptTokens: Int32Array
  readonly tokens: readonly number[]
  /**
   * If `CompletionAsk.promptLogprobs` asks for them: the text of the prompt's first token, which has no probability, and the logprobs of
   * the tokens after it.
   */
  readonly prompted?: { readonly first: string; readonly logprobs: readonly PromptLogprob[] }
  readonly ledger: LedgerEntry
}

/**
 * A running completion, used like `Asked`. Its events: queued, started (with an id that lasts only for this completion), plan, progress,
 * text, tokens.
 */
export interface CompletionAsked extends AsyncIterable<AskEvent> {
  readonly answer: Promise<CompletionAnswer>
}

/** Returns the template variables that these fields set. When several set one variable, the last value counts. */
export const variablesOf = (fields: readonly TemplateField[] = []): TemplateVariables =>
  Object.fromEntries(fields.flatMap(({ names, value }) => names.map((name) => [name, value] as const)))

/** Seeds are below this number. This number itself asks for a random seed. */
export const SEEDS = 2 ** 32 - 1

/**
 * Returns the sampling for the answer `index` of several to one request. A given seed is raised by the index, so that the answers differ.
 */
export const nthSampling = (sampling: Sampling, index: number): Sampling =>
  sampling.seed === undefined ? sampling : { ...sampling, seed: (sampling.seed + index) % SEEDS }

/** The files of a served model. */
export interface ServedFile {
  /** The size of all files in bytes. */
  readonly size: number
  /** When one of the files was last changed, in Unix milliseconds. */
  readonly modified: number
  /** Facts from the GGUF header; null if it cannot be read. */
  readonly facts: FileFacts | null
  /** SHA-256 in hex; empty if the file cannot be read. The first time it takes seconds for large files. */
  readonly digest: Promise<string>
}

/** The fields of a request that determine its prompt. */
export interface PromptAsk extends Pick<Ask, 'model' | 'messages' | 'tools' | 'template' | 'beginning' | 'signal'> {
  /** Whether the prompt ends with the template's header of an assistant message. Default true. */
  readonly generationPrompt?: boolean
}

export interface EmbedAsk {
  readonly tenant: Tenant
  readonly model?: string
  /** Each input is a text, token ids, or token ids and texts that are joined in order. */
  readonly inputs: readonly (string | readonly (number | string)[])[]
  /** How many leading numbers of each vector to keep; the shortened vector is scaled to length 1. Default: all. */
  readonly dimensions?: number
  /** True: an input that is too long loses its end. Default false: it is refused. */
  readonly truncate?: boolean
  readonly signal?: AbortSignal
}

export interface RerankAsk {
  readonly tenant: Tenant
  readonly model?: string
  readonly query: string
  readonly documents: readonly string[]
  readonly signal?: AbortSignal
}

export interface ScoreAsk {
  readonly tenant: Tenant
  readonly model?: string
  readonly pairs: readonly (readonly [string, string])[]
  readonly signal?: AbortSignal
}

export interface SideModelStatus {
  /** The name that requests use. */
  readonly name: string
  readonly use: 'embeddings' | 'rankings'
  readonly state: 'unloaded' | 'loading' | 'loaded'
  /** When the server registered the model, in Unix seconds. */
  readonly since: number
  /** Known once the model is loaded: its own name, and the tokens of the longest text it reads. Null before. */
  readonly loaded: { readonly title: string; readonly tokens: number } | null
}

export interface EmbedAnswer {
  readonly model: string
  readonly vectors: readonly Float32Array[]
  readonly tokens: number
}

/** `scores`: one per document, in the order of the documents. Higher is better; the range depends on the model. */
export interface RerankAnswer {
  readonly model: string
  readonly scores: readonly number[]
  readonly tokens: number
}

/** The queue is full (code server/overloaded). */
export class Overloaded extends KvfoldError {
  constructor(
    message: string,
    /** Whole seconds, at least 1, after which to try again (`Retry-After`). */
    readonly retryAfter: number,
  ) {
    super('server/overloaded', message)
  }
}

/** Whether the request itself is at fault: an HTTP status below 500, and no cancellation. */
export const isRefusal = (error: unknown): boolean =>
  error instanceof KvfoldError && error.status < 500 && error.code !== 'engine/cancelled'

export const closing = (): KvfoldError =>
  new KvfoldError('server/closing', 'The server is shutting down and takes no more requests.')
export const late = (milliseconds: number | undefined): KvfoldError =>
  new KvfoldError(
    'server/timeout',
    `The answer was not complete within ${milliseconds ?? 0} ms; the computed cells stay in the cache for the next try.`,
  )

/** Fields that `Answer` and `CompletionAnswer` have in common. */
export type AnyAnswer = Pick<Answer, 'model' | 'finish' | 'usage' | 'timing' | 'waited' | 'unread' | 'compacted'>

export type AnyAsked<A extends AnyAnswer> = Omit<Asked, 'answer'> & { readonly answer: Promise<A> }
