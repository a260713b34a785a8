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
import type { AnswerLimits, DryOptions, SamplingFilters } from '../native/types.js'
import type { AttentionPattern, AttentionRequest } from './attention.js'
import type { SpeculateOptions } from './speculate-terms.js'

/** How tokens are sampled. An unset field is off. A server fills in unset fields from `Engine.samplingDefaults`. */
export interface Sampling extends SamplingFilters {
  /** 0: always the likeliest token. Default 0. */
  readonly temperature?: number
  /**
   * Penalises text that repeats itself (DRY), in the prompt and in the answer. `lastN` -1: it searches as many tokens as the context has.
   */
  readonly dry?: DryOptions
  /** Penalises tokens that occur in the prompt or in the answer. The next two penalties count only the answer's tokens. */
  readonly repeatPenalty?: number
  readonly frequencyPenalty?: number
  readonly presencePenalty?: number
  /** How many of the latest tokens the three penalties count; -1: as many as the context has. Default 64. */
  readonly penaltyLastN?: number
  /** Version 0: off, even if the model's file recommends mirostat. */
  readonly mirostat?: { readonly version: 0 | 1 | 2; readonly tau: number; readonly eta: number }
  readonly seed?: number
  /** Numbers that are added to the logits of tokens. A string stands for each of its tokens. */
  readonly logitBias?: readonly { readonly token: number | string; readonly bias: number }[]
}

/** Options of how an answer is generated. The request, its turn and the turn's steps share one such object, which never changes. */
export interface GenerationOptions {
  readonly sampling?: Sampling
  /** Limits on the answer's words and on its end. They do not apply to the answers of helpers. Default: none. */
  readonly limits?: AnswerLimits
  /** The most tokens of the answer. Default: as many as the context has room for. 0: the prompt is computed, and nothing is generated. */
  readonly maxTokens?: number
  readonly stop?: readonly string[]
  /**
   * The most tokens of reasoning. When they are used up, the engine closes the reasoning itself. Engines that cannot do that ignore the
   * field (`boundsReasoning`). Default: no limit.
   */
  readonly reasoningBudget?: number
  /**
   * When it is aborted, the engine closes the reasoning itself, in this answer and in later ones with the same signal. Engines that cannot
   * do that ignore it (`boundsReasoning`). Default: none.
   */
  readonly endReasoning?: AbortSignal
  /** A grammar (GBNF) that the answer must satisfy. Give a grammar or `schema`, not both. */
  readonly grammar?: string
  /** Whether the grammar applies only after the reasoning that the prompt has opened. Default: it also covers the reasoning. */
  readonly afterReasoning?: boolean
  /** A JSON schema of the text after the reasoning. */
  readonly schema?: unknown
  /** Whether constraints of the schema that a grammar cannot express are dropped. Default false: such a schema is refused. */
  readonly loose?: boolean
  /** How many alternatives to report for each token, 0 to 20. Default: no log-probabilities. */
  readonly logprobs?: number
  /**
   * Whether the engine also reads bare calls: tool calls in another syntax than the template's, for example as plain or fenced JSON. This
   * applies only if calls are optional (`toolChoice: auto`) and the request has no grammar or schema. Default: the engine's option.
   */
  readonly bareCalls?: boolean
  /**
   * How tokens of the answer are drafted (speculative decoding). The text stays the same, apart from rounding. Engines that cannot draft
   * ignore `auto`. Default: the engine's option.
   */
  readonly speculate?: SpeculateOptions
  /** The contract of the edits. Default: the engine's option. */
  readonly contract?: ContractChoice
  /** Which tokens `blend` computes again. Default: the engine's option. */
  readonly blend?: BlendChoice
}

/** A LoRA adapter of the engine, by its id, and the factor on its change of the model's weights. */
export interface AdapterScale {
  readonly id: number
  /** 0: the adapter does not apply. */
  readonly scale: number
}

/** The settings that all requests of a conversation have in common, requests of its helpers included. */
export interface RequestScope {
  /**
   * The tenant that the conversation belongs to. Cells are shared only between conversations of one tenant, in every tier. A conversation
   * never changes its tenant, so conversations of different tenants must have different ids. Default: none; all requests without a tenant
   * count as one tenant.
   */
  readonly tenant?: string
  /** Variables of the chat template. They apply to the whole prompt, earlier messages included. Default: none. */
  readonly variables?: TemplateVariables
  /**
   * The LoRA adapters to apply; all others are off. Cells that were computed with other adapters are never used. They are kept until the
   * conversation is forgotten or cells are short. Default: all adapters of the engine's options, at their scales.
   */
  readonly lora?: readonly AdapterScale[]
}

export interface EngineRequest extends GenerationOptions, RequestScope {
  /** The conversation whose cache the step continues. Steps of one conversation run one after another. */
  readonly conversation: ConversationId
  /** The messages with their original contents, never shortened. */
  readonly messages: readonly ChatMessage[]
  /** The edits: spans of the messages, and the text that is shown in place of each. Default: none. */
  readonly edits?: readonly Edit[]
  readonly tools?: readonly ToolDefinition[]
  /**
   * Whether the last message is the beginning of the answer, which the model then continues. The reply contains beginning and continuation;
   * events contain only the continuation. Default false.
   */
  readonly continues?: boolean
  /** Default: `auto` with tools, `none` without. `required` forces the answer to be a tool call. */
  readonly toolChoice?: ToolChoice
  /** Names of the tools that the model may call. It still sees all of `tools`. Default: all. */
  readonly callable?: readonly string[]
  /**
   * Further tools that the model may call. The template does not list them, because the conversation itself shows their definitions. If a
   * tool in `tools` has the same name, calls of that name must satisfy this definition, which may allow less. Default: none.
   */
  readonly unlisted?: readonly ToolDefinition[]
  /** The answer ends after the first complete call for which this returns true. Engines that cannot end there continue. Default: none. */
  readonly endsWith?: (call: Pick<ToolCall, 'name'>) => boolean
  /**
   * Asks for the attention of some tokens. The engine reduces the weights to sums while it computes them. Engines that cannot capture
   * attention refuse with attention/unavailable.
   */
  readonly attention?: AttentionRequest
  /**
   * How many alternatives to report for each prompt token after the first, 0 to 20. The whole prompt is computed for this. Engines that
   * cannot report them leave them out. Default: no log-probabilities of the prompt.
   */
  readonly promptLogprobs?: number
  /**
   * Set it if the client may have changed earlier messages since the conversation's last step. It is the contract under which their cells
   * are reused. The model is shown exactly the given messages in any case. Default: unset; changed messages are computed again.
   */
  readonly clientEdits?: ContractChoice
  /**
   * With `clientEdits`: how many of the messages existed before; the client added the rest. An added message is never matched with earlier
   * text. Default: the messages up to the last one that was shown before.
   */
  readonly known?: number
  /**
   * The conversation from which this one was forked, of the same tenant. Under `splice` and `blend` this one reuses its cells like its own.
   */
  readonly parent?: ConversationId
  /** The headers with which the client named its session. Engines that forward requests send them along. Default: none. */
  readonly sessionHeaders?: Readonly<Record<string, string>>
  /** Whether no later request of the conversation is expected, so that its cells are evicted first. Default false. */
  readonly last?: boolean
  /** The kind of the step in the ledger. Default `answer`. */
  readonly kind?: 'answer' | 'summary'
  readonly signal?: AbortSignal
}

/** A token and the natural logarithm of its probability. */
export interface NamedLogprob {
  readonly token: number
  readonly text: string
  /** The token's bytes. Present if they are not whole characters, so that `text` cannot show them. */
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

/** The planned work of a step, in tokens: how many shown tokens are reused and how many computed. The ledger entry has the final counts. */
export interface PlannedStep {
  readonly shown: number
  readonly reused: number
  readonly compute: number
  readonly contract: Contract
  readonly fallback: string | null
}

export type EngineEvent =
  /** Sent before anything is computed. Sent again if another engine takes over the step. */
  | ({ readonly type: 'plan' } & PlannedStep)
  | { readonly type: 'prefill'; readonly done: number; readonly total: number }
  /** New sampled tokens and their text, with the syntax of calls and the reasoning. */
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
  /** The next call is a bare call (`GenerationOptions.bareCalls`); `form` is the syntax that the model used, for example "```json". */
  | { readonly type: 'bare-call'; readonly name: string; readonly form: string }
  /** A complete tool call. */
  | { readonly type: 'call'; readonly call: ToolCall }
  /** The template renders an earlier message differently than in the last step, so its tokens are computed again. */
  | { readonly type: 'rewrite'; readonly message: number; readonly reason: string }

export interface Timing {
  /** Milliseconds from the request to the first token, and (`total`) to the last. */
  readonly firstToken: number
  readonly total: number
  /** Prompt tokens computed for the step, with those that were computed before the prompt had to wait for cells. */
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
   * The log-probability of the token that ended the answer and that no text contains. Present if `logprobs` were requested, the model
   * sampled such a token, and the engine computes in this process.
   */
  readonly endLogprob?: TokenLogprob
  /** The tokens of the prompt, if the engine has them. Callers must not change them. */
  readonly promptTokens?: Int32Array
  /** The log-probabilities of the prompt's tokens after the first, if they were requested. */
  readonly promptLogprobs?: readonly PromptLogprob[]
  /** The captured attention. Present if the request asked for it and the step was not cancelled. */
  readonly attention?: AttentionPattern
  /** Set by a remote engine with the option `RemoteEngineOptions.tokens`, if the endpoint reports tokens. */
  readonly tokens?: ShownTokens
}

/** Returns the length of a step's prompt in tokens, for engines that send no `plan` event. */
export const promptLength = ({ ledger, timing }: Pick<EngineReply, 'ledger' | 'timing'>): number =>
  timing.prefillTokens + ledger.reused

/** The tokens of a step: those of the prompt, and those generated after it. */
export interface ShownTokens {
  readonly prompt: Int32Array
  /** The generated tokens, with the one that ended the answer if the engine reports it. */
  readonly completion: Int32Array
}

/** A running step. Iterate for its events, and await `reply` for its result. An error ends the iteration and rejects `reply`. */
export interface Generation extends AsyncIterable<EngineEvent> {
  readonly reply: Promise<EngineReply>
  /**
   * Passes every event to `listener` as it happens, and returns the reply. Use it instead of iterating: then no event waits in a queue. The
   * listener must be quick, because the engine waits for it. If it throws, the promise rejects with its error, but the step continues.
   */
  each(listener: (event: EngineEvent) => void): Promise<EngineReply>
}

export interface EngineInfo {
  /** The model's name, and the adapters that requests apply by default. */
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

/** Returns how many tokens a conversation should show at most: the smaller one of the context and the trained context. */
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
  /** The sampling for requests that set none. A server applies it; the engine itself does not. Default: unknown. */
  readonly samplingDefaults?: Sampling
  /** Whether the chat template reads a variable of this name. Default: it reads none. */
  reads?(variable: string): boolean
  /** Whether the engine obeys `reasoningBudget` and `endReasoning`. Default false. */
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
   * Does the slow part of a later `count` with these arguments, in slices, so that the event loop stays free. With `snaps`, also that of
   * `snap`. Does nothing for short messages. Optional. @throws as `count`
   */
  prepare?(
    messages: readonly ChatMessage[],
    tools: readonly ToolDefinition[],
    edits?: readonly Edit[],
    variables?: TemplateVariables,
    snaps?: boolean,
  ): Promise<void>
  /** Cancels the conversation's running steps, and drops everything that the engine keeps of it. */
  forget(conversation: ConversationId): void
  dispose(): Promise<void>
}

/** Receives the events of a step. */
export interface EventStream {
  push(event: EngineEvent): void
}

/** Starts `run`, and returns a generation of the events that it pushes and the reply that it returns. An error of `run` ends both. */
export function generationOf(run: (stream: EventStream) => Promise<EngineReply>): Generation {
  const feed = new Feed<EngineEvent, EngineReply>((push) => run({ push }))
  return {
    reply: feed.answer,
    each: (listener) => feed.each(listener),
    [Symbol.asyncIterator]: () => feed[Symbol.asyncIterator](),
  }
}

// The base class of engines that wrap another engine. Everything but `respond` goes to the inner engine.

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
