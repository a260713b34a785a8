/** Owns the model's voice in one ask: the engine, with everything about a request that the turn loop need not know. */
import { randomBytes } from 'node:crypto'
import type { ChatMessage, Edit, ToolCall, ToolDefinition } from '../../chat/message.js'
import type { ConversationId } from '../../core/ids.js'
import type { Span } from '../../core/span.js'
import type { Engine, EngineEvent, EngineInfo, EngineReply, EngineRequest, Generation } from '../../engine/engine.js'
import { EventStream } from '../../engine/event-stream.js'
import type { Tenant } from './tenant.js'

export interface VoiceOptions {
  readonly tenant: Tenant
  /** Names of the tools that a required call may be of. Default: all. */
  readonly callable?: readonly string[]
  /** Whether a call is the client's; only the first of those counts when `single`. */
  readonly isExternal: (call: Pick<ToolCall, 'name'>) => boolean
  readonly single: boolean
}

/** Ids that a parser made up, where the model's syntax has none: the same in every answer. */
const MADE_UP = /^call_\d+$/

/** Calls get ids that no other call of the server has. */
export class Voice implements Engine {
  readonly info: EngineInfo

  constructor(
    private readonly engine: Engine,
    private readonly options: VoiceOptions,
  ) {
    this.info = engine.info
  }

  respond(request: EngineRequest): Generation {
    return EventStream.of((stream) => this.#respond(request, stream))
  }

  snap(messages: readonly ChatMessage[], tools: readonly ToolDefinition[], message: number, chars: Span): Span {
    return this.engine.snap(messages, tools, message, chars)
  }

  count(messages: readonly ChatMessage[], tools: readonly ToolDefinition[], edits?: readonly Edit[]): number {
    return this.engine.count(messages, tools, edits)
  }

  forget(conversation: ConversationId): void {
    this.engine.forget(conversation)
  }

  /** The engine is not the voice's. */
  dispose(): Promise<void> {
    return Promise.resolve()
  }

  async #respond(request: EngineRequest, stream: { push(event: EngineEvent): void }): Promise<EngineReply> {
    const { tenant, callable, isExternal, single } = this.options
    const running = this.engine.respond({
      ...request,
      tenant,
      ...(single ? { endsWith: isExternal } : {}),
      ...(callable === undefined || request.toolChoice !== 'required' ? {} : { callable }),
    })
    const ids = new Map<string, string>()
    const named = (call: ToolCall): ToolCall => {
      const id = ids.get(call.id) ?? (MADE_UP.test(call.id) ? `call_${randomBytes(12).toString('hex')}` : call.id)
      ids.set(call.id, id)
      return { ...call, id }
    }
    let first: string | null = null
    const counts = (call: ToolCall): boolean => {
      if (!single || !isExternal(call)) return true
      first ??= call.id
      return first === call.id
    }
    for await (const event of running)
      if (event.type !== 'call') stream.push(event)
      else if (counts(event.call)) stream.push({ ...event, call: named(event.call) })
    const reply = await running.reply
    const { toolCalls, sampled, ...rest } = reply.message
    if (toolCalls === undefined) return reply
    const kept = toolCalls.filter(counts)
    const whole = sampled === undefined || kept.length < toolCalls.length ? {} : { sampled }
    return { ...reply, message: { ...rest, toolCalls: kept.map(named), ...whole } }
  }
}
