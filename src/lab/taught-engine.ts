/** An engine that says what a teacher tells it to, shown in a real model's chat format; nothing is computed, so its ledger is empty. */
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

/** What the model is to say in one step. */
export interface ScriptedReply {
  readonly content?: string
  readonly reasoning?: string
  /** Ids are given where there are none. `malformed` stands for arguments that are not JSON. */
  readonly calls?: readonly (Pick<ToolCall, 'name'> & Partial<ToolCall>)[]
  /** Default: `tool-calls` with calls, `stop` without. */
  readonly finish?: Finish
}

/** What to say to a request; null when this teacher does not know. */
export type Teacher = (request: EngineRequest) => ScriptedReply | null

/** Of the model whose chat format is used. */
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

  /** @throws KvfoldError context/full, engine/bad-request where the teacher knows nothing to say */
  respond(request: EngineRequest): Generation {
    // Awaited, so that an error is the generation's and not the caller's.
    return generationOf(() => Promise.resolve().then(() => this.#reply(request)))
  }

  snap(...[messages, tools, message, chars, variables]: Parameters<Engine['snap']>): Span {
    return this.model.format.with(variables).snap({ messages, tools, message, chars })
  }

  count(...[messages, tools, edits = [], variables]: Parameters<Engine['count']>): number {
    return this.model.format.with(variables).render({ messages, tools, edits }).tokens.length
  }

  /** Nothing is kept. */
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
      throw new KvfoldError('context/full', `The prompt takes ${asked} tokens, and the model's context has ${context}.`)
    const said = this.teacher(request)
    if (said === null)
      throw new KvfoldError('engine/bad-request', 'The teacher does not know what to say here; it is for another task.')
    const toolCalls = (said.calls ?? []).map((call): ToolCall => ({ id: `call_${++this.#calls}`, arguments: {}, ...call }))
    return {
      message: assistantMessage({ ...said, toolCalls }),
      finish: toolCalls.length > 0 ? 'tool-calls' : 'stop',
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
 * A real engine that is told what to say: it computes every prompt as it would for a model that had said the same, and its ledger says what
 * that cost. Words are computed with the step that says them, calls when the next prompt shows them with their results (templates refuse them
 * alone). Nothing of it is a claim about what the model would have said.
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

  /** The reply's error is engine/bad-request where the teacher knows nothing to say. */
  respond(request: EngineRequest): Generation {
    return generationOf(async (stream) => {
      const said = this.teacher(request)
      if (said === null)
        throw new KvfoldError('engine/bad-request', 'The teacher does not know what to say here; it is for another task.')
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

/** What a script says is held to no form. */
const formless = ({ schema: _, grammar: __, continues: ___, ...request }: EngineRequest): EngineRequest => request

/** The messages, and the beginning of the answer. */
const split = (messages: readonly ChatMessage[]): readonly [readonly ChatMessage[], string] => [
  messages.slice(0, -1),
  messages.at(-1)?.content ?? '',
]
