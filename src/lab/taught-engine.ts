/**
 * Two engines whose replies come from a function, the teacher. `TaughtEngine` uses a real model's chat format but computes nothing, so its
 * ledger is empty. `SpokenEngine` computes the prompts on a real engine.
 */
import type { ChatFormat } from '../runtime/chat/format.js'
import { assistantMessage, type ChatMessage, type ToolCall } from '../runtime/chat/message.js'
import { KvfoldError } from '../runtime/core/errors.js'
import type { Span } from '../runtime/core/span.js'
import type { LedgerEntry } from '../runtime/kv/ledger.js'
import {
  type Engine,
  EngineAround,
  type EngineInfo,
  type EngineReply,
  type EngineRequest,
  type Finish,
  type Generation,
  generationOf,
} from '../runtime/engine/engine.js'

/** The model's reply in one step, as a teacher scripts it. */
export interface ScriptedReply {
  readonly content?: string
  readonly reasoning?: string
  /** Calls without an id get one. `malformed`: the text of arguments that are not JSON. */
  readonly calls?: readonly (Pick<ToolCall, 'name'> & Partial<ToolCall>)[]
  /** How a step without calls ends. Default: `stop`. `SpokenEngine` ignores it. */
  readonly finish?: Finish
}

/** Returns the reply to a request; null if the teacher has none for it. */
export type Teacher = (request: EngineRequest) => ScriptedReply | null

/** The model whose chat format the engine uses. */
export interface TaughtModel {
  readonly format: ChatFormat
  readonly info: EngineInfo
}

export class TaughtEngine implements Engine {
  #calls = 0

  constructor(
    private readonly model: TaughtModel,
    private readonly teacher: Teacher,
  ) {}

  get info(): EngineInfo {
    return { ...this.model.info, engine: 'taught' }
  }

  /**
   * Returns a generation whose reply rejects with context/full if the prompt does not fit, or engine/bad-request if the teacher has no
   * reply.
   */
  respond(request: EngineRequest): Generation {
    // The work starts inside a promise, so that an error rejects the reply and `respond` itself never throws.
    return generationOf(() => Promise.resolve().then(() => this.#reply(request)))
  }

  snap(...[messages, tools, message, chars, variables]: Parameters<Engine['snap']>): Span {
    return this.model.format.with(variables).snap({ messages, tools, message, chars })
  }

  count(...[messages, tools, edits = [], variables]: Parameters<Engine['count']>): number {
    return this.model.format.with(variables).render({ messages, tools, edits }).tokens.length
  }

  /** Does nothing, because the engine keeps no cells. */
  forget(): void {
    return
  }

  dispose(): Promise<void> {
    return Promise.resolve()
  }

  #reply(request: EngineRequest): EngineReply {
    const { messages, tools = [], edits = [], variables, kind = 'answer' } = request
    const asked = this.count(messages, tools, edits, variables)
    const { context } = this.model.info
    if (asked > context)
      throw new KvfoldError('context/full', `The prompt takes ${asked} tokens, but the model's context has ${context}.`)
    const said = this.teacher(request)
    if (said === null)
      throw new KvfoldError('engine/bad-request', 'The teacher has no answer here, because it is for another task.')
    const toolCalls = (said.calls ?? []).map((call): ToolCall => ({ id: `call_${++this.#calls}`, arguments: {}, ...call }))
    return {
      message: assistantMessage({ ...said, toolCalls }),
      finish: toolCalls.length > 0 ? 'tool-calls' : (said.finish ?? 'stop'),
      ledger: { ...NOTHING, kind },
      timing: { firstToken: 0, total: 0, prefillTokens: 0, generatedTokens: 0 },
    }
  }
}

const NOTHING: LedgerEntry = {
  step: 0,
  kind: 'answer',
  contract: 'exact',
  fallback: null,
  messages: [],
  shown: 0,
  reused: 0,
  recomputed: 0,
  fresh: 0,
  approximate: 0,
  positions: 0,
  side: 0,
  submitted: 0,
  pending: 0,
  sources: { own: 0, parked: 0, shared: 0 },
  tiers: { host: 0, disk: 0 },
  parked: 0,
  evicted: 0,
  moved: 0,
  milliseconds: { cache: 0, prefill: 0, decode: 0 },
  predicted: null,
}

/**
 * Computes on a real engine, and takes every reply from a teacher. The engine computes each prompt as it would for a model that had
 * generated the same replies, and its ledger has that cost.
 * A step also computes the text of its reply. Tool calls are computed only when the next prompt shows them with their results, because chat
 * templates refuse calls without results.
 * The replies do not depend on the model's weights.
 */
export class SpokenEngine extends EngineAround {
  #calls = 0

  constructor(
    engine: Engine,
    private readonly teacher: Teacher,
  ) {
    super(engine)
  }

  override get info(): EngineInfo {
    return { ...this.engine.info, engine: `taught on ${this.engine.info.engine}` }
  }

  /** The reply rejects with engine/bad-request if the teacher has none. */
  respond(request: EngineRequest): Generation {
    return generationOf(async (stream) => {
      const said = this.teacher(request)
      if (said === null)
        throw new KvfoldError('engine/bad-request', 'The teacher has no answer here, because it is for another task.')
      const toolCalls = (said.calls ?? []).map((call): ToolCall => ({ id: `call_${++this.#calls}`, arguments: {}, ...call }))
      const [before, begun] = request.continues === true ? split(request.messages) : [request.messages, '']
      const { content } = assistantMessage({ ...said, toolCalls })
      const message = { ...assistantMessage({ ...said, toolCalls }), content: begun + content }
      const messages = toolCalls.length > 0 ? before : [...before, message]
      const running = this.engine.respond({ ...formless(request), messages, toolChoice: 'none', maxTokens: 0 })
      for await (const event of running) stream.push(event)
      const { ledger, timing, finish } = await running.reply
      if (content !== '') stream.push({ type: 'text', text: content })
      for (const call of toolCalls) stream.push({ type: 'call', call })
      return {
        message,
        finish: finish === 'cancelled' ? finish : toolCalls.length > 0 ? 'tool-calls' : 'stop',
        ledger,
        timing: { ...timing, generatedTokens: 0 },
      }
    })
  }
}

/** Returns the request without schema, grammar and `continues`, which a scripted reply need not match. */
const formless = ({ schema: _, grammar: __, continues: ___, ...request }: EngineRequest): EngineRequest => request

/** Splits off the last message's content, with which the answer begins. */
const split = (messages: readonly ChatMessage[]): readonly [readonly ChatMessage[], string] => [
  messages.slice(0, -1),
  messages.at(-1)?.content ?? '',
]
