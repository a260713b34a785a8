/**
 * The `Engine` interface, which every engine implements. An engine shows the messages to the model with the edits applied, and returns the
 * model's next message and the step's ledger entry.
 */
import type { ChatMessage, Edit, TemplateVariables, ToolCall, ToolChoice, ToolDefinition } from '../chat/message.js'
import type { BlendChoice, Contract, ContractChoice } from '../core/contract.js'
import { Feed } from '../core/feed.js'
import type { ConversationId } from '../core/ids.js'
import type { Span } from '../core/span.js'
import type { LedgerEntry } from '../kv/ledger.js'
import type { AnswerLimits, DryOptions, SamplerName } from '../native/types.js'
import type { AttentionPattern, AttentionRequest } from './attention.js'
import type { SpeculateOptions } from './speculate-terms.js'

/** How tokens are drawn. A field that is left out is off. A server fills fields in from `Engine.samplingDefaults`. */
export interface Sampling {
  /** 0: always the likeliest token. Default 0. */
  readonly temperature?: number
  /** Dynamic temperature: it stays within `range` of `temperature`, and grows with the distribution's entropy to the power `exponent`. */
  readonly dynatemp?: { readonly range: number; readonly exponent: number }
  readonly topK?: number
  readonly topP?: number
  readonly minP?: number
  readonly typicalP?: number
  /** Keeps tokens whose logit is at most so many standard deviations below the best. */
  readonly topNSigma?: number
  /** With the given probability, removes the likeliest tokens: of those at or above `threshold`, only the least likely stays. */
  readonly xtc?: { readonly probability: number; readonly threshold: number }
  /**
   * Penalises text that repeats itself (DRY), in the prompt and in the answer. `lastN` -1: it looks back as many tokens as the context has.
   */
  readonly dry?: DryOptions
  /** Draws tokens whose probability is near `target`. */
  readonly adaptive?: { readonly target: number; readonly decay: number }
  /** The fewest tokens that the filters leave to draw from. */
  readonly minKeep?: number
  /** The samplers to apply, in this order; samplers that it does not name are left out. Default: llama.cpp's order. */
  readonly order?: readonly SamplerName[]
  /** Penalises tokens that occur in the prompt or in the answer. The next two penalties count only the answer's tokens. */
  readonly repeatPenalty?: number
  readonly frequencyPenalty?: number
  readonly presencePenalty?: number
  /** How many of the latest tokens the penalties look at; -1: as many as the context has. Default 64. */
  readonly penaltyLastN?: number
  /** Version 0: off, even if the model's file recommends mirostat. */
  readonly mirostat?: { readonly version: 0 | 1 | 2; readonly tau: number; readonly eta: number }
  readonly seed?: number
  /** Numbers that are added to the logits of tokens. A text stands for each of its tokens. */
  readonly logitBias?: readonly { readonly token: number | string; readonly bias: number }[]
}

/**
 * How answers are generated. The request, the turn and the steps of the turn share one object, which never changes.
 */
export interface GenerationOptions {
  readonly sampling?: Sampling
  /** Limits on the words of the answer and on its end. They do not hold for the answers of helpers. Default: none. */
  readonly limits?: AnswerLimits
  /** The most tokens of the answer. Default: as many as the context has room for. 0: the prompt is computed, and nothing is generated. */
  readonly maxTokens?: number
  readonly stop?: readonly string[]
  /**
   * The most tokens of reasoning. After them the engine writes the end of the reasoning itself. Engines that cannot do that ignore the
   * field. Default: no bound.
   */
  readonly reasoningBudget?: number
  /**
   * Once it is aborted, the engine writes the end of the reasoning itself, in this answer and in later ones with the same signal. Engines
   * that cannot do that ignore it (`boundsReasoning`). Default: none.
   */
  readonly endReasoning?: AbortSignal
  /** A grammar (GBNF) that the answer must satisfy. Give a grammar or `schema`, not both. */
  readonly grammar?: string
  /** Whether reasoning that the prompt has opened comes before the grammar's text. Default: the grammar covers the reasoning. */
  readonly afterReasoning?: boolean
  /** A JSON schema of the text after the reasoning. */
  readonly schema?: unknown
  /** Whether parts of the schema that a grammar cannot express are left out. Default false: such a schema is refused. */
  readonly loose?: boolean
  /** How many alternatives to report for each token, 0 to 20. Default: no log-probabilities. */
  readonly logprobs?: number
  /**
   * Whether the engine also reads bare calls: tool calls that the model writes in another syntax than its template's, for example as plain
   * or fenced JSON. This applies only if calls are optional (`toolChoice: auto`) and the request has no grammar or schema. Default: the
   * engine's option.
   */
  readonly bareCalls?: boolean
  /**
   * How tokens of the answer are drafted. The text stays the same, as far as rounding allows. Engines that cannot draft ignore `auto`.
   * Default: the engine's option.
   */
  readonly speculate?: SpeculateOptions
  /** The contract of the edits. Default: the engine's option. */
  readonly contract?: ContractChoice
  /** Which tokens `blend` computes again. Default: the engine's option. */
  readonly blend?: BlendChoice
}

/** An adapter of the engine, by its id, and the factor on what it adds to the model's weights. */
export interface AdapterScale {
  readonly id: number
  /** 0: the adapter does not apply. */
  readonly scale: number
}

/** What all requests of a conversation have in common, those of its helpers included. */
export interface RequestScope {
  /**
   * The tenant that the conversation belongs to. Cells are lent only between conversations of one tenant, in every tier. A conversation
   * never changes its tenant, so conversations of different tenants must have different ids. Default: none; requests without a tenant count
   * as one tenant.
   */
  readonly tenant?: string
  /** Variables of the chat template. They hold for the whole prompt, earlier messages included. Default: none. */
  readonly variables?: TemplateVariables
  /**
   * The LoRA adapters to apply; those that it does not name do not apply. Cells that were computed with other adapters are never used, but
   * they are kept until the conversation is forgotten or room is short. Default: those of the engine's options, at their scales.
   */
  readonly lora?: readonly AdapterScale[]
}

export interface EngineRequest extends GenerationOptions, RequestScope {
  /** The conversation whose cache the step continues. Requests of one conversation run one after another. */
  readonly conversation: ConversationId
  /** The messages with their original contents, never shortened. */
  readonly messages: readonly ChatMessage[]
  /** The edits: spans of the messages, and the text that is shown in place of each. Default: none. */
  readonly edits?: readonly Edit[]
  readonly tools?: readonly ToolDefinition[]
  /**
   * The last message is the beginning of the answer, and the model continues it. The reply contains both parts; events contain only the new
   * text. Default false.
   */
  readonly continues?: boolean
  /** Default: `auto` with tools, `none` without. `required` forces the answer to be a tool call. */
  readonly toolChoice?: ToolChoice
  /** Names of the tools that the model may call. It still sees all of `tools`. Default: all. */
  readonly callable?: readonly string[]
  /**
   * Further tools that the model may call. They are not in the list of definitions, because the conversation itself shows them. If one has
   * the name of a tool in `tools`, calls of that name must satisfy this definition. It may allow less than the shown one. Default: none.
   */
  readonly unlisted?: readonly ToolDefinition[]
  /**
   * The answer ends after the first complete call for which this returns true. Engines that cannot end there continue. Default: no call
   * ends the answer.
   */
  readonly endsWith?: (call: Pick<ToolCall, 'name'>) => boolean
  /**
   * Asks for the attention of some tokens. The engine reduces the weights to sums while it computes. Engines that cannot report attention
   * refuse with attention/unavailable.
   */
  readonly attention?: AttentionRequest
  /**
   * How many alternatives to report for each token of the prompt but the first, 0 to 20. The whole prompt is computed for it. Engines that
   * cannot report them leave them out. Default: no log-probabilities of the prompt.
   */
  readonly promptLogprobs?: number
  /**
   * Says that the client may have changed earlier messages since the conversation's last step, and gives the contract for reusing their
   * cells. The model is shown exactly the given messages in any case. Default: unset; then changed messages are computed again.
   */
  readonly clientEdits?: ContractChoice
  /**
   * With `clientEdits`: how many of the messages were in the conversation before; the client added those behind them. An added message is
   * never matched with an earlier text in its place. Default: the messages up to the last one that was shown before.
   */
  readonly known?: number
  /**
   * The conversation of the same tenant that this one began as a copy of. Under `splice` and `blend` its cells are lent to this one as if
   * they were its own.
   */
  readonly parent?: ConversationId
  /** The headers by which the client named its session, for engines that pass requests on. Default: none. */
  readonly sessionHeaders?: Readonly<Record<string, string>>
  /** No later request of the conversation is expected, so its cells are the first to be evicted. Default false. */
  readonly last?: boolean
  /** The name of this step in the ledger. Default `answer`. */
  readonly kind?: 'answer' | 'summary'
  readonly signal?: AbortSignal
}

/** A token and the natural logarithm of its probability. */
export interface NamedLogprob {
  readonly token: number
  readonly text: string
  /** The token's bytes, if it is only part of a character, so that `text` cannot show them. */
  readonly bytes?: readonly number[]
  readonly logprob: number
}

export interface TokenLogprob extends NamedLogprob {
  /** The likeliest alternatives, best first. */
  readonly top: readonly NamedLogprob[]
}

/** A token of a prompt, with its rank: 1 for the likeliest token. */
export interface PromptLogprob extends TokenLogprob {
  readonly rank: number
}

/** The reason why generation ended. */
export type Finish = 'stop' | 'tool-calls' | 'length' | 'cancelled'

/**
 * The plan of a step, in tokens: how many of the shown tokens are reused and how many are computed. The ledger entry of the step says how
 * many it was in the end.
 */
export interface PlannedStep {
  readonly shown: number
  readonly reused: number
  readonly compute: number
  readonly contract: Contract
  readonly fallback: string | null
}

export type EngineEvent =
  /** Sent once, before anything is computed. Sent again if another engine takes the step over. */
  | ({ readonly type: 'plan' } & PlannedStep)
  | { readonly type: 'prefill'; readonly done: number; readonly total: number }
  /** The sampled tokens and their text, call syntax included, as they come. */
  | {
      readonly type: 'tokens'
      readonly tokens: readonly number[]
      readonly text: string
      readonly logprobs?: readonly TokenLogprob[]
    }
  /** Text of the answer, without call syntax and reasoning. */
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: 'reasoning'; readonly text: string }
  /** More of the arguments of a tool call that the model is writing (`ReplyEvent`). */
  | { readonly type: 'arguments'; readonly id: string; readonly name: string; readonly text: string }
  /** The next call is a bare call (`GenerationOptions.bareCalls`); `form` says how the model wrote it, for example "```json". */
  | { readonly type: 'bare-call'; readonly name: string; readonly form: string }
  /** A complete tool call. */
  | { readonly type: 'call'; readonly call: ToolCall }
  /** The template now renders an earlier message differently than in the last step, so its tokens are computed again. */
  | { readonly type: 'rewrite'; readonly message: number; readonly reason: string }

export interface Timing {
  /** Milliseconds from the request to the first token; `total`: to the last. */
  readonly firstToken: number
  readonly total: number
  readonly prefillTokens: number
  readonly generatedTokens: number
}

export interface EngineReply {
  /**
   * The answer, with role assistant. Its content has no call syntax, `toolCalls` are parsed, and engines that have tokens set `sampled`.
   */
  readonly message: ChatMessage
  readonly finish: Finish
  /** The stop string, or the stop token, that ended the answer, if the engine reports it. The message does not contain it. */
  readonly stop?: string | number
  readonly ledger: LedgerEntry
  readonly timing: Timing
  readonly logprobs?: readonly TokenLogprob[]
  /**
   * The log-probability of the token that ended the answer, which no text contains. Present if `logprobs` were requested, the model sampled
   * such a token, and the engine computes in this process; remote engines do not set it.
   */
  readonly endLogprob?: TokenLogprob
  /** The tokens of the prompt, if the engine has them; its caller must not change them. */
  readonly promptTokens?: Int32Array
  /** The log-probabilities of the prompt's tokens after the first, if they were requested. */
  readonly promptLogprobs?: readonly PromptLogprob[]
  /** The captured attention. Present if the request asked for it and the step was not cancelled. */
  readonly attention?: AttentionPattern
  /** Present for a remote engine that asks for tokens (`RemoteEngineOptions.tokens`), if the endpoint reports them. */
  readonly tokens?: ShownTokens
}

/** Returns the tokens of a step's prompt, by the step's costs. Needed where the engine tells no plan. */
export const promptLength = ({ ledger, timing }: Pick<EngineReply, 'ledger' | 'timing'>): number =>
  timing.prefillTokens + ledger.reused

/** The tokens of a step: those of the prompt, and those generated after it. */
export interface ShownTokens {
  readonly prompt: Int32Array
  /** The generated tokens, with the one that ended the answer if the engine reports it. */
  readonly completion: Int32Array
}

/** A running step: iterate for events, await `reply` for the end. An error rejects `reply` and ends the iteration with the same error. */
export interface Generation extends AsyncIterable<EngineEvent> {
  readonly reply: Promise<EngineReply>
  /**
   * Passes every event to `listener` at the moment it happens, and returns the reply. Call it instead of iterating: then no event waits in
   * a queue. The listener must be quick, because the engine waits for it. If it throws, the promise rejects with its error, but the step
   * continues.
   */
  each(listener: (event: EngineEvent) => void): Promise<EngineReply>
}

export interface EngineInfo {
  /** The model's name, with the adapters that a request applies if it names none. */
  readonly model: string
  /** The model's name without adapters. Default: `model`. */
  readonly base?: string
  /** The kind of engine: `llama`, `scripted`, ... */
  readonly engine: string
  /** The release of llama.cpp, or of the software that takes its place. */
  readonly release: string
  /** The most tokens that one conversation may show. */
  readonly context: number
  /** The context that the model was trained on, in tokens, if the engine knows it. Longer conversations get worse answers. */
  readonly trained?: number
}

/**
 * Returns how many tokens a conversation should show at most: no more than there is room for, and no more than the model was trained on.
 */
export const goodContext = ({ context, trained = Infinity }: EngineInfo): number => Math.min(context, trained)

export interface Engine {
  readonly info: EngineInfo
  respond(request: EngineRequest): Generation
  /** Widens a span of a message's content to the nearest token borders around it. Both spans count characters of the original content. */
  snap(
    messages: readonly ChatMessage[],
    tools: readonly ToolDefinition[],
    message: number,
    chars: Span,
    variables?: TemplateVariables,
  ): Span
  /** The sampling that a server uses if a request names none. The engine itself does not use it. Default: unknown. */
  readonly samplingDefaults?: Sampling
  /** Returns whether the chat template reads a variable of this name. Default: it reads none. */
  reads?(variable: string): boolean
  /** Whether the engine keeps to `reasoningBudget` and `endReasoning`. Default false. */
  readonly boundsReasoning?: boolean
  /** Whether `count` only estimates, because the vocabulary is on another server. Default false. */
  readonly estimates?: boolean
  /** Counts the tokens of the messages under the edits, generation prompt included. */
  count(
    messages: readonly ChatMessage[],
    tools: readonly ToolDefinition[],
    edits?: readonly Edit[],
    variables?: TemplateVariables,
  ): number
  /**
   * Does the slow part of `count` with these arguments ahead, in turns, so that the event loop stays free; with `snaps` also that of `snap`.
   * For short messages it does nothing. Engines may leave it out. @throws as `count`
   */
  prepare?(
    messages: readonly ChatMessage[],
    tools: readonly ToolDefinition[],
    edits?: readonly Edit[],
    variables?: TemplateVariables,
    snaps?: boolean,
  ): Promise<void>
  /** Cancels the conversation's running steps, and drops its sequence and its parked versions. */
  forget(conversation: ConversationId): void
  dispose(): Promise<void>
}

// How the events and the reply of a running step reach its caller.

/** Receives the events of a step. */
export interface EventStream {
  push(event: EngineEvent): void
}

/** Starts `run`, and returns a generation with the events that `run` pushes and the reply that it returns. An error of `run` ends both. */
export function generationOf(run: (stream: EventStream) => Promise<EngineReply>): Generation {
  const feed = new Feed<EngineEvent, EngineReply>((push) => run({ push }))
  return {
    reply: feed.answer,
    each: (listener) => feed.each(listener),
    [Symbol.asyncIterator]: () => feed[Symbol.asyncIterator](),
  }
}

// The base of engines that wrap another engine: everything but `respond` is passed on to the inner engine.

export abstract class EngineAround<Inner extends Engine = Engine> implements Engine {
  constructor(protected readonly engine: Inner) {}

  get info(): EngineInfo {
    return this.engine.info
  }

  get estimates(): boolean {
    return this.engine.estimates ?? false
  }

  abstract respond(request: EngineRequest): Generation

  snap(...asked: Parameters<Engine['snap']>): Span {
    return this.engine.snap(...asked)
  }

  reads(variable: string): boolean {
    return this.engine.reads?.(variable) ?? false
  }

  count(...asked: Parameters<Engine['count']>): number {
    return this.engine.count(...asked)
  }

  async prepare(...asked: Parameters<NonNullable<Engine['prepare']>>): Promise<void> {
    await this.engine.prepare?.(...asked)
  }

  forget(conversation: ConversationId): void {
    this.engine.forget(conversation)
  }

  /** Does nothing: the inner engine belongs to the code that made it. */
  dispose(): Promise<void> {
    return Promise.resolve()
  }
}
