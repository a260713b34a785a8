/** What every engine offers to the layers above: show these messages under these edits, get the next message and its ledger entry. */
import type { ChatMessage, Edit, TemplateVariables, ToolCall, ToolChoice, ToolDefinition } from '../chat/message.js'
import type { Contract, ContractChoice } from '../core/contract.js'
import { Feed } from '../core/feed.js'
import type { ConversationId } from '../core/ids.js'
import type { Span } from '../core/span.js'
import type { LedgerEntry } from '../kv/ledger.js'
import type { BlendChoice } from '../kv/plan/parts.js'
import type { AttentionPattern, AttentionRequest } from './attention.js'

/** Fields that are left out are off; a server fills them in (`Engine.samplingDefaults`). */
export interface Sampling {
  /** 0: greedy. Default 0. */
  readonly temperature?: number
  readonly topK?: number
  readonly topP?: number
  readonly minP?: number
  readonly typicalP?: number
  readonly repeatPenalty?: number
  readonly frequencyPenalty?: number
  readonly presencePenalty?: number
  /** Tokens that the penalties look back over. Default 64. */
  readonly penaltyLastN?: number
  readonly mirostat?: { readonly version: 1 | 2; readonly tau: number; readonly eta: number }
  readonly seed?: number
  readonly logitBias?: readonly { readonly token: number; readonly bias: number }[]
}

export interface EngineRequest {
  /** Whose cache this continues. Requests of one conversation run one after another. */
  readonly conversation: ConversationId
  /**
   * Whose it is: cells are lent only among conversations of one tenant, in every tier. A conversation stays its tenant's: ids of different
   * tenants must differ. Default: nobody's, which is like a tenant of its own.
   */
  readonly tenant?: string
  /** Original contents, never shortened. */
  readonly messages: readonly ChatMessage[]
  /** What is shown instead of stretches of them. */
  readonly edits?: readonly Edit[]
  readonly tools?: readonly ToolDefinition[]
  /** Variables of the chat template, the same for what it shows of every message. Default: none. */
  readonly variables?: TemplateVariables
  /** The last message is the beginning of the answer, which goes on from there: the reply has both, events only what is new. Default false. */
  readonly continues?: boolean
  /** Default `auto` with tools, `none` without. `required` forces the syntax of a call. */
  readonly toolChoice?: ToolChoice
  /** Names of the tools that a call may be of; the model sees all of `tools`, and cannot call the others. Default: all. */
  readonly callable?: readonly string[]
  /**
   * Tools that may be called, too, and do not stand among the definitions: the conversation shows them. One that is called like a tool of `tools` says
   * what calls of that one are held to, when that is less than its definition shows. Default: none.
   */
  readonly unlisted?: readonly ToolDefinition[]
  readonly sampling?: Sampling
  /** Default: what the context has room for. */
  readonly maxTokens?: number
  readonly stop?: readonly string[]
  /** Tokens that the answer may reason for; then its reasoning is closed in the model's place. Engines that cannot let it go on. Default: without end. */
  readonly reasoningBudget?: number
  /** The answer ends with the first complete call that this is true of. Engines that cannot end there go on. Default: calls end nothing. */
  readonly endsWith?: (call: Pick<ToolCall, 'name'>) => boolean
  /** GBNF, or a JSON schema the answer must satisfy; not both. */
  readonly grammar?: string
  readonly schema?: unknown
  /** What of the schema a grammar cannot keep is left out. Default: it is refused. */
  readonly loose?: boolean
  /** Alternatives to report per token, 0..20. Default none. */
  readonly logprobs?: number
  /** Where tokens look, reduced while it is computed. Engines that cannot say refuse with attention/unavailable. */
  readonly attention?: AttentionRequest
  /** What edits keep to. Default: the engine's. */
  readonly contract?: ContractChoice
  /** What `blend` computes again. Default: the engine's. */
  readonly blend?: BlendChoice
  /**
   * Messages may differ from those of the conversation's last step: what such a change keeps to. The model is shown these messages, whatever is
   * kept of the others. Default: they do not, and what changed all the same is computed again.
   */
  readonly clientEdits?: ContractChoice
  /**
   * With `clientEdits`: how many of the messages the conversation had before the client added the others. An added message is shown as it is: no
   * cell is looked for by what stood in its place. Default: those up to the last one that was shown before.
   */
  readonly known?: number
  /** The conversation of the same tenant's that this one began as a copy of: what it inherits is that one's cells, under the same terms. */
  readonly parent?: ConversationId
  /** Nobody is expected to ask for the conversation again: its cells are the first to give way to others. Default false. */
  readonly last?: boolean
  /** What the ledger calls this step. Default `answer`. */
  readonly kind?: 'answer' | 'summary'
  readonly signal?: AbortSignal
}

/** A token and its natural-log probability. */
export interface NamedLogprob {
  readonly token: number
  readonly text: string
  /** Where the text cannot say them: those of a part of a character. */
  readonly bytes?: readonly number[]
  readonly logprob: number
}

export interface TokenLogprob extends NamedLogprob {
  /** Best first. */
  readonly top: readonly NamedLogprob[]
}

/** Why generation ended. */
export type Finish = 'stop' | 'tool-calls' | 'length' | 'cancelled'

/** The plan of a step, in tokens: how what is shown is come by. What then happened is in the ledger. */
export interface PlannedStep {
  readonly shown: number
  readonly reused: number
  readonly compute: number
  readonly contract: Contract
  readonly fallback: string | null
}

export type EngineEvent =
  /** Sent once, before anything is computed; again where another engine takes the step over. */
  | ({ readonly type: 'plan' } & PlannedStep)
  | { readonly type: 'prefill'; readonly done: number; readonly total: number }
  /** Raw sampled tokens and their text, call syntax included, as they come. */
  | {
      readonly type: 'tokens'
      readonly tokens: readonly number[]
      readonly text: string
      readonly logprobs?: readonly TokenLogprob[]
    }
  /** The answer's text, without call syntax and reasoning. */
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: 'reasoning'; readonly text: string }
  /** More of the arguments of a call that is being made (`ReplyEvent`). */
  | { readonly type: 'arguments'; readonly id: string; readonly name: string; readonly text: string }
  /** A complete tool call. */
  | { readonly type: 'call'; readonly call: ToolCall }
  /** The template shows an earlier message differently than in the last step, so its tokens are computed again. */
  | { readonly type: 'rewrite'; readonly message: number; readonly reason: string }

export interface Timing {
  /** Milliseconds from request to first token, and to the last. */
  readonly firstToken: number
  readonly total: number
  readonly prefillTokens: number
  readonly generatedTokens: number
}

export interface EngineReply {
  /** role assistant; content without call syntax, `toolCalls` parsed, `sampled` set by engines that have tokens. */
  readonly message: ChatMessage
  readonly finish: Finish
  /** The stop string that ended it, as far as the engine says; the message is without it. */
  readonly stop?: string
  readonly ledger: LedgerEntry
  readonly timing: Timing
  readonly logprobs?: readonly TokenLogprob[]
  /** Of the token that ended the answer, which is in no text, where `logprobs` were asked for and the model ended it. Engines with tokens of their own have it. */
  readonly endLogprob?: TokenLogprob
  /** When it was asked for and the step was not cancelled. */
  readonly attention?: AttentionPattern
  /** Of a remote engine that was made to ask for them (`RemoteEngineOptions.tokens`), where the endpoint tells. */
  readonly tokens?: ShownTokens
}

/** The tokens of a step: of its prompt, and of what was said after it. */
export interface ShownTokens {
  readonly prompt: Int32Array
  /** With the token that ended the answer, as far as the engine says it. */
  readonly completion: Int32Array
}

/** A running step: iterate for events, await `reply` for the end. Errors reject `reply` and end the iteration with the same error. */
export interface Generation extends AsyncIterable<EngineEvent> {
  readonly reply: Promise<EngineReply>
}

export interface EngineInfo {
  readonly model: string
  /** `llama`, `scripted`, ... */
  readonly engine: string
  /** Release of llama.cpp, or of what stands in its place. */
  readonly release: string
  /** Tokens one conversation may show. */
  readonly context: number
}

export interface Engine {
  readonly info: EngineInfo
  respond(request: EngineRequest): Generation
  /** Widens a stretch of a message's content to the nearest token borders around it (characters of the original content). */
  snap(
    messages: readonly ChatMessage[],
    tools: readonly ToolDefinition[],
    message: number,
    chars: Span,
    variables?: TemplateVariables,
  ): Span
  /** How a server samples where a request does not say. The engine itself does not use it. Default: nothing is known. */
  readonly samplingDefaults?: Sampling
  /** Whether prompts can be told of a variable of that name. Default: of none. */
  reads?(variable: string): boolean
  /** Whether it keeps to `reasoningBudget`. Default false. */
  readonly boundsReasoning?: boolean
  /** Whether `count` only estimates, because another server has the vocabulary. Default false. */
  readonly estimates?: boolean
  /** Tokens the messages take when shown under the edits, generation prompt included. */
  count(
    messages: readonly ChatMessage[],
    tools: readonly ToolDefinition[],
    edits?: readonly Edit[],
    variables?: TemplateVariables,
  ): number
  /**
   * Does ahead what takes long of `count` and `snap` for these messages, so that the event loop goes on meanwhile. Where they are short, and by
   * engines without it, nothing is done ahead. @throws as `count`
   */
  prepare?(messages: readonly ChatMessage[], tools: readonly ToolDefinition[], variables?: TemplateVariables): Promise<void>
  /** Cancels what runs for the conversation and drops its sequence and its parked versions. */
  forget(conversation: ConversationId): void
  dispose(): Promise<void>
}

// The hand-over of a running step's events and its reply to whoever asked for them.

/** Where a step puts its events. */
export interface EventStream {
  push(event: EngineEvent): void
}

/** The generation of a step: what `run` pushes, ended by what it returns or throws. */
export function generationOf(run: (stream: EventStream) => Promise<EngineReply>): Generation {
  const feed = new Feed<EngineEvent, EngineReply>((push) => run({ push }))
  return { reply: feed.answer, [Symbol.asyncIterator]: () => feed[Symbol.asyncIterator]() }
}

// What an engine around another leaves to it: everything but how it responds.

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

  /** The engine inside belongs to whoever made it. */
  dispose(): Promise<void> {
    return Promise.resolve()
  }
}
