/** Owns the model's voice in one ask: the engine, with everything about a request that the turn loop need not know. */
import { randomBytes } from 'node:crypto'
import type { ToolCall } from '../../chat/message.js'
import type { Engine, EngineReply, EngineRequest, Generation } from '../../engine/engine.js'
import { EngineAround } from '../../engine/engine-around.js'
import { generationOf, type EventStream } from '../../engine/event-stream.js'
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
export class Voice extends EngineAround {
  /** The stop string that ended the last step. */
  stop: string | null = null

  constructor(
    engine: Engine,
    private readonly options: VoiceOptions,
  ) {
    super(engine)
  }

  respond(request: EngineRequest): Generation {
    return generationOf((stream) => this.#respond(request, stream))
  }

  /** The engine is not the voice's. */
  override dispose(): Promise<void> {
    return Promise.resolve()
  }

  async #respond(request: EngineRequest, stream: EventStream): Promise<EngineReply> {
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
    this.stop = reply.stop ?? null
    const { toolCalls, sampled, ...rest } = reply.message
    if (toolCalls === undefined) return reply
    const kept = toolCalls.filter(counts)
    const whole = sampled === undefined || kept.length < toolCalls.length ? {} : { sampled }
    return { ...reply, message: { ...rest, toolCalls: kept.map(named), ...whole } }
  }
}
