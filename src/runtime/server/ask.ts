/**
 * Defines the asks that the server takes and the answers that it gives, whatever HTTP dialect they came in. Everything under
 * `src/runtime/server` uses these types.
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

/** The form that the text of an answer must have: JSON by a schema, any JSON object, or text by a GBNF grammar. */
export type AnswerFormat =
  /** With `loose`, parts of the schema that cannot be enforced are ignored and reported in `Answer.unread`. Default: the ask is refused. */
  | { readonly kind: 'schema'; readonly schema: unknown; readonly loose?: boolean }
  | { readonly kind: 'json' }
  /** With `afterReasoning`, reasoning that the prompt has opened comes before the grammar's text. Default: the grammar covers it. */
  | { readonly kind: 'grammar'; readonly grammar: string; readonly afterReasoning?: boolean }

/** The most characters and values of a schema or grammar in `AnswerFormat`, so that it goes to another thread within milliseconds. */
export const MOST_OF_SCHEMA = 2 ** 18

/**
 * How the server treats message parts that are not text, such as images: it refuses the request, or shows the model a placeholder. In tool
 * results they always become a placeholder, because clients send those results again with every request.
 */
export type UnsupportedParts = 'refuse' | 'placeholder'

/** A field of a request whose value is passed to the chat template. */
export interface TemplateField {
  readonly field: string
  /** The names of the template variables that get the value. Templates use different names for the same thing. */
  readonly names: readonly string[]
  readonly value: unknown
}

/** A client's name for its session. Names of different tenants are different sessions. */
export interface NamedSession {
  readonly name: string
  /** The name of the session, or of the branch of a session, from which this session was begun. */
  readonly parent?: string
  /** The request headers that name the session. They are sent on to engines that are other servers. */
  readonly headers: Readonly<Record<string, string>>
}

export interface Ask {
  readonly tenant: Tenant
  /**
   * A text that splits the tenant's cache, for tenants that serve several customers. Requests share cells and threads only with those of
   * the same salt. Default: none; requests without a salt share with each other.
   */
  readonly cacheSalt?: string
  /** A name from `ThreadService.models()`, or the name of a model's adapter, which then applies at scale 1. Default: the first model. */
  readonly model?: string
  /**
   * The adapters to apply; adapters that the list leaves out do not apply. Default: the adapter that `model` names, else all adapters of
   * the model, at their present scales (`ThreadService.scaleAdapters`).
   */
  readonly lora?: readonly AdapterScale[]
  /**
   * The thread to continue. Default: the live thread with the longest common beginning, or a new one. An id that is unknown or belongs to
   * another tenant is `server/no-thread`; a thread of another salt is `engine/bad-request`.
   */
  readonly thread?: string
  /**
   * The client's own name for its session. The server looks for a thread of this session before it looks for threads with the same
   * messages. Default: none.
   */
  readonly session?: NamedSession
  /** The whole conversation as the client has it, oldest first. Calls of the server's own tools and their results are not in it. */
  readonly messages: readonly ChatMessage[]
  /**
   * True: `messages` are only the new ones, to append after all messages of `thread` (then required). `previous_response_id` and the
   * dashboard use it. Default false.
   */
  readonly appended?: boolean
  /**
   * A text that the answer must begin with; the server answers with the text after it. Not allowed with a format or a forced call. If the
   * thread ends with a cut answer that begins with this text, the model continues that answer. Default: none.
   */
  readonly beginning?: string
  /** The client's tools. */
  readonly tools: readonly ToolDefinition[]
  readonly toolChoice: ToolChoice | { readonly name: string } | AmongTools
  /** Tools that the model does not see until a search finds them, and the searches that the model may use. Default: none. */
  readonly deferred?: DeferredTools
  /**
   * Whether the server also reads tool calls that the model writes in another form than its template has, such as fenced JSON. Default: the
   * engine's setting.
   */
  readonly bareCalls?: boolean
  /**
   * Returns the id of the answer's nth call of the client's tools, from 0, if the model's syntax has no ids. Clients that leave ids out need
   * ids that follow from the conversation. Default: a random id.
   */
  readonly callId?: (nth: number) => string
  /** False: an answer has at most one call of the client's tools. Default true. */
  readonly parallelCalls?: boolean
  /** How tokens are drafted, which the model then checks (speculative decoding). Default: the engine's setting. */
  readonly speculate?: SpeculateOptions
  /**
   * Settings of the sampler. Those left out come from the model's file, or else from llama-server's defaults (`Engine.samplingDefaults`).
   */
  readonly sampling?: Sampling
  /**
   * Tokens and texts that the answer may not have, and where it may end. Summaries and other helpers' answers ignore this. Default: none.
   */
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
   * The most reasoning tokens in a step, and the request's field that set it. At the limit the engine closes the reasoning for the model,
   * if it can. Default: no limit.
   */
  readonly reasoningBudget?: { readonly field: string; readonly tokens: number }
  /** Once it is aborted, the engine closes the reasoning for the model, if it can. Default: none. */
  readonly endReasoning?: AbortSignal
  /** How many alternatives to report per token, 0 to 20. Default: no logprobs. */
  readonly logprobs?: number
  /**
   * How many alternatives to report per token of the prompt, 0 to 20. The engine then computes the whole prompt, without cached cells.
   * Default: no logprobs of the prompt.
   */
  readonly promptLogprobs?: number
  /** How the context is managed (`acms`). Default: the server's setting. */
  readonly acm?: Acm
  readonly policy?: FoldPolicy
  /**
   * With `acm: memtool`: whether the model removes and finds tools by calls, or by answers to questions asked aside (`memToolModes`).
   * Default: the server's setting.
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
  /** Ids of calls whose results the server must not fold by itself. The model and people still may. Default: none. */
  readonly pinned?: readonly string[]
  /**
   * How many later requests will continue this thread. Policies use it to decide whether a fold pays; 0 makes its cells the first to be
   * evicted. Default, for policies: its number of turns so far.
   */
  readonly expectedReuse?: number
  readonly contract?: ContractChoice
  /**
   * The contract that the cache keeps when the client sends other messages than in the thread's last request. Default: the server's
   * setting.
   */
  readonly clientEdits?: ContractChoice
  /**
   * What happens to a fold or summary by the model that takes at least as many tokens as the text it hides. Default: the server's setting.
   */
  readonly costlyFolds?: CostlyFolds
  /** Among one tenant's requests, a higher number runs first. Default 0. */
  readonly priority?: number
  /** Milliseconds from now until the answer must be complete, waiting in the queue included. Default: the server's setting. */
  readonly timeoutMs?: number
  /** Whether this is a further part of a request that asks already. The queue's limit does not count it. Default false. */
  readonly follows?: boolean
  readonly signal?: AbortSignal
  /**
   * True: the client reads the answer as it is generated. If it is cancelled, the thread then keeps the text so far, marked `cut`.
   * Default false: the thread stays as it was before the answer.
   */
  readonly streamed?: boolean
}

/** Token counts of an ask, over all its steps except summaries. */
export interface Usage {
  /** Tokens of the last step's prompt, which the model saw before it wrote the message. */
  readonly promptTokens: number
  /** Tokens of the first step's prompt that this ask did not compute; at most `promptTokens`. */
  readonly cachedTokens: number
  /** Tokens generated in all steps, including call syntax, reasoning and calls of the server's tools. */
  readonly completionTokens: number
  /** Reasoning tokens of the last step, as far as they can be told apart from the rest of its text. */
  readonly reasoningTokens: number
  /**
   * The savings against a plain prefix cache with the same asks; negative if such a cache would have computed less. Left out if the engine
   * does not report it.
   */
  readonly saved?: Saved
  /** Drafted tokens that were computed, and those that the answer kept. Left out where nothing was drafted. */
  readonly drafts?: { readonly drafted: number; readonly accepted: number }
}

/** A tool call that the model wrote in another form than its template has: the tool's name, and the form, for example "```json". */
export interface BareCallReport {
  readonly name: string
  readonly form: string
}

/** A step in which the model searched for tools: its message with the call, and the result. */
export interface SearchStep {
  readonly message: ChatMessage
  readonly result: ToolSearchResult
}

export interface ToolSearchResult {
  readonly call: ToolCall
  /** Names of the tools found. */
  readonly found: readonly string[]
  /** Why the call failed; null when it succeeded. */
  readonly error: string | null
}

/** Tokens that were not computed, and the seconds they would have taken at the mean speed of the model's prompts so far. */
export interface Saved {
  readonly tokens: number
  readonly seconds: number
}

/**
 * The differences between the request's messages and those that the thread's client knew, applied to the thread as edits. Also counts the
 * cells of the answer's prompt that are approximate because of any edits.
 */
export interface RecognisedEdits {
  /**
   * The contract that the cache kept. With `changes` it is the one asked for client edits; without, it is the contract of the last step.
   */
  readonly contract: ContractChoice
  /** Empty when only earlier edits, or folds, left approximate tokens. */
  readonly changes: readonly ClientEdit[]
  /** Shown tokens whose cells carry the trace of hidden text; with several steps, the largest count. */
  readonly approximate: number
}

export interface Answer {
  /** Steps before the message that searched for deferred tools, oldest first. Left out when there were none. */
  readonly searched?: readonly SearchStep[]
  /** The thread that holds this answer; a new one after a fork. */
  readonly thread: string
  readonly model: string
  /**
   * The part of the answer that the client may see: text, reasoning, and complete calls of its own tools. `cut` marks a cancelled answer
   * that the thread keeps.
   */
  readonly message: ChatMessage
  readonly finish: Finish
  /** The stop string, or the stop token, that ended the answer, if the engine reports it. */
  readonly stop?: string | number
  readonly usage: Usage
  /**
   * Ledger entries of all steps of this ask, oldest first, summaries included. `messages[].index` counts all messages of the thread, also
   * those that clients do not see.
   */
  readonly ledger: readonly LedgerEntry[]
  /** The part of the prompt that is cleared; null when the ask has no `clear`. */
  readonly cleared: Cleared | null
  /** The tokens that drops hide and move. Left out when the ask drops nothing. */
  readonly dropped?: Dropped
  /** The compaction before this answer. Left out when the conversation was not compacted. */
  readonly compacted?: Compacted
  /**
   * The cached tokens of an earlier prompt that this request could not use, and why. Null when it could use all of them: it continued at
   * the end of its thread, asked the same again, or began a new thread.
   */
  readonly lost: Lost | null
  /**
   * The client's edits, and the approximate cells. Null when the request changed none of the thread's messages and no shown token is
   * approximate.
   */
  readonly edits: RecognisedEdits | null
  /** Times over all steps, without waiting in the queue; `firstToken` is that of the first step. */
  readonly timing: Timing
  /** Milliseconds from the ask to the start of its first step: the wait for a slot and for the model to load. */
  readonly waited: number
  /** Logprobs of the last step, when `Ask.logprobs` asks for them. */
  readonly logprobs?: readonly TokenLogprob[]
  /** Logprobs of the tokens in the message's content, of all its steps, when `Ask.logprobs` asks for them. */
  readonly textLogprobs?: readonly TokenLogprob[]
  /** The tokens of the first step's prompt, where the engine has them. */
  readonly promptTokens?: Int32Array
  /** The sampled tokens of the last step, without the one that ended it; empty where the engine does not report them. */
  readonly tokens: readonly number[]
  /** Logprobs of the first step's prompt, without its first token, when `Ask.promptLogprobs` asks for them. */
  readonly promptLogprobs?: readonly PromptLogprob[]
  /**
   * Calls that the model wrote in another form than its template has (`EngineRequest.bareCalls`), with that form. Left out when there were
   * none.
   */
  readonly bareCalls?: readonly BareCallReport[]
  /** How many calls of context tools were carried out. */
  readonly contextCalls: number
  /** The sampling settings in force, defaults included. Left out when the ask sets none and the engine knows no defaults. */
  readonly sampling?: Sampling
  /**
   * Requested settings that had no effect, each once: fields of `Ask.template` that neither the model's template nor the server uses. Also
   * places in the schemas of tools and of a loose format that were not enforced.
   */
  readonly unread: readonly string[]
}

export type AskEvent =
  /** `position` requests are ahead in the queue; 0: this one is next. Sent whenever the position changes. */
  | { readonly type: 'queued'; readonly position: number }
  /** The ask has a slot and a thread, and begins. */
  | { readonly type: 'started'; readonly model: string; readonly thread: string }
  /** A step begins: how many tokens its prompt shows, reuses from the cache, and computes. */
  | { readonly type: 'plan'; readonly step: number; readonly shown: number; readonly reused: number; readonly compute: number }
  /** The engine has computed `done` of `total` prompt tokens. */
  | { readonly type: 'progress'; readonly step: number; readonly done: number; readonly total: number }
  /** `logprobs`: those of the tokens in this text, if `Ask.logprobs` asks for them. */
  | { readonly type: 'text'; readonly text: string; readonly logprobs?: readonly TokenLogprob[] }
  | { readonly type: 'reasoning'; readonly text: string }
  /** More text of the arguments of a call of one of the client's tools. If no `call` event with that id follows, the call was cut off. */
  | { readonly type: 'arguments'; readonly id: string; readonly name: string; readonly text: string }
  /** A complete call of one of the client's tools. */
  | { readonly type: 'call'; readonly call: ToolCall }
  /** Sampled tokens, those of call syntax included, with their logprobs if `Ask.logprobs` asks for them. */
  | { readonly type: 'tokens'; readonly tokens: readonly number[]; readonly logprobs?: readonly TokenLogprob[] }
  /** The model wrote the next call in another form than its template has. */
  | ({ readonly type: 'bare-call' } & BareCallReport)
  /** The server carried out a call of a context tool. */
  | { readonly type: 'acm'; readonly step: number; readonly call: ToolCall; readonly result: string; readonly failed: boolean }
  /** The server carried out a search for deferred tools. */
  | ({ readonly type: 'search' } & ToolSearchResult)
  /** The server folded these fragments by a policy or a field of the request. The prompt has `saves` tokens fewer. */
  | { readonly type: 'policy'; readonly folded: readonly string[]; readonly saves: number; readonly reason: string }
  /** The conversation was compacted. */
  | ({ readonly type: 'compaction' } & Compacted)
  /** The model worked beside the answer's own steps: it was asked aside, or wrote notes or a summary. These are the costs. */
  | { readonly type: 'aside'; readonly entries: readonly LedgerEntry[] }
  /** The template now shows an earlier message differently, so the tokens from that message on are computed again. */
  | { readonly type: 'rewrite'; readonly message: number; readonly reason: string }

/**
 * A running ask: iterate for events, await `answer` for the result. An error rejects `answer` and ends the iteration with it. The ask
 * runs even if no caller iterates. `Ask.signal` cancels it: the answer so far then has finish `cancelled`; before the ask began, the
 * error is KvfoldError engine/cancelled.
 */
export interface Asked extends AsyncIterable<AskEvent> {
  readonly answer: Promise<Answer>
}

/** A choice of OpenAI's API: the model may call only these of the tools that it sees, or must call one of them. */
export interface AmongTools {
  readonly mode: 'auto' | 'required'
  readonly names: readonly string[]
}

/** The text around an answer that fills a gap. Control tokens written in these texts are plain text. */
export interface FillIn {
  readonly prefix: string
  readonly suffix: string
  /** Other files that the model is shown first. */
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
  /** A text, or a list of token ids and texts that are joined in order. */
  readonly prompt: string | readonly (string | number)[]
  /**
   * The texts around the gap that the answer fills. The answer then continues the text `prompt`, which stands at the start of the gap.
   * Default: the answer fills no gap.
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
   * When `CompletionAsk.promptLogprobs` asks for them: the prompt's first token, which has no probability, and the logprobs of the tokens
   * after it.
   */
  readonly prompted?: { readonly first: string; readonly logprobs: readonly PromptLogprob[] }
  readonly ledger: LedgerEntry
}

/**
 * A running completion, used like `Asked`. Events: queued, started (its thread exists only during this completion), plan, progress, text,
 * tokens.
 */
export interface CompletionAsked extends AsyncIterable<AskEvent> {
  readonly answer: Promise<CompletionAnswer>
}

/** Returns the template variables that these fields set, with their values. */
export const variablesOf = (fields: readonly TemplateField[] = []): TemplateVariables =>
  Object.fromEntries(fields.flatMap(({ names, value }) => names.map((name) => [name, value] as const)))

/** Seeds of samplers are smaller than this number. A seed of exactly this number means a random seed. */
export const SEEDS = 2 ** 32 - 1

/** Returns the sampling of one of several answers to a request. If the request gives a seed, every answer gets a different one. */
export const nthSampling = (sampling: Sampling, index: number): Sampling =>
  sampling.seed === undefined ? sampling : { ...sampling, seed: (sampling.seed + index) % SEEDS }

/** The files of a served model. */
export interface ServedFile {
  /** The size of all files in bytes. */
  readonly size: number
  /** When the files were changed last, in milliseconds since 1970. */
  readonly modified: number
  /** Facts from the header of the files. Null when they cannot be read as a GGUF. */
  readonly facts: FileFacts | null
  /** The SHA-256 in hex, which takes seconds for large files the first time; empty when the file cannot be read. */
  readonly digest: Promise<string>
}

/** The parts of an ask that make its prompt. */
export interface PromptAsk extends Pick<Ask, 'model' | 'messages' | 'tools' | 'template' | 'beginning' | 'signal'> {
  /** Whether the prompt ends with the template's beginning of an answer. Default true. */
  readonly generationPrompt?: boolean
}

export interface EmbedAsk {
  readonly tenant: Tenant
  readonly model?: string
  /** Each input is a text, token ids, or token ids and texts that are joined in order. */
  readonly inputs: readonly (string | readonly (number | string)[])[]
  /** How many leading numbers of each vector to keep, scaled to length 1 again. Default: all. */
  readonly dimensions?: number
  /** Whether the end of an input that is too long is left out. Default false: it is refused. */
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
  /** Facts known once it is loaded: the model's own name, and the tokens of the longest text that it reads. Null before. */
  readonly loaded: { readonly title: string; readonly tokens: number } | null
}

export interface EmbedAnswer {
  readonly model: string
  readonly vectors: readonly Float32Array[]
  readonly tokens: number
}

/** `scores`: one per document, in order. A higher score is a better answer; the range depends on the model. */
export interface RerankAnswer {
  readonly model: string
  readonly scores: readonly number[]
  readonly tokens: number
}

/** Too many requests wait already (code server/overloaded). */
export class Overloaded extends KvfoldError {
  constructor(
    message: string,
    /** Seconds after which to try again, for `Retry-After`; a whole number, at least 1. */
    readonly retryAfter: number,
  ) {
    super('server/overloaded', message)
  }
}

/** Whether the error is the request's own fault: it has a status below 500 and is no cancellation. */
export const isRefusal = (error: unknown): boolean =>
  error instanceof KvfoldError && error.status < 500 && error.code !== 'engine/cancelled'

export const closing = (): KvfoldError =>
  new KvfoldError('server/closing', 'The server is shutting down and takes no more requests.')
export const late = (milliseconds: number | undefined): KvfoldError =>
  new KvfoldError(
    'server/timeout',
    `The answer was not complete within ${milliseconds ?? 0} ms; the computed cells stay in the cache for the next try.`,
  )

/** The fields common to `Answer` and `CompletionAnswer`. */
export type AnyAnswer = Pick<Answer, 'model' | 'finish' | 'usage' | 'timing' | 'waited' | 'unread' | 'compacted'>

export type AnyAsked<A extends AnyAnswer> = Omit<Asked, 'answer'> & { readonly answer: Promise<A> }
