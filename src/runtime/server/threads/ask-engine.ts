/** Wraps the model's engine for one ask: adds facts of the request that the turn loop need not know. */
import { randomBytes } from 'node:crypto'
import type { TemplateVariables, ToolCall } from '../../chat/message.js'
import {
  type Engine,
  EngineAround,
  type EngineReply,
  type EngineRequest,
  type EventStream,
  type Generation,
  generationOf,
} from '../../engine/engine.js'
import { PUBLIC, type Tenant } from '../../core/ids.js'
import type { Span } from '../../core/span.js'

export interface AskEngineOptions {
  readonly tenant: Tenant
  /** The template variables for every request and every count. Default: none. */
  readonly variables?: () => TemplateVariables
  /** Names of the tools that a required call may use. Default: all. */
  readonly callable?: readonly string[]
  /** Whether a call is of the client's tools. With `single` only the first such call counts. */
  readonly isExternal: (call: Pick<ToolCall, 'name'>) => boolean
  readonly single: boolean
  /**
   * Whether a call must be alone in its step, because the client sees it as a message of its own. Beside other calls it is dropped.
   * Default: none.
   */
  readonly isAlone?: (call: Pick<ToolCall, 'name'>) => boolean
}

/** Options of an ask that reports nothing to a client. */
export const SILENT = { tenant: PUBLIC, isExternal: () => false, single: false } satisfies AskEngineOptions

/** Ids that a parser invents when the model's syntax has none. They repeat in every answer. */
const MADE_UP = /^call_\d+$/

/**
 * Gives every call an id that is unique on the server. Drops a call that the token limit or a stop string cut off, together with its
 * sampled tokens, so that the conversation matches what its client knows. Only the `arguments` events sent meanwhile remain visible.
 */
export class AskEngine extends EngineAround {
  /** The stop string that ended the last step. */
  stop: string | null = null

  constructor(
    engine: Engine,
    private readonly options: AskEngineOptions,
  ) {
    super(engine)
  }

  respond(request: EngineRequest): Generation {
    return generationOf((stream) => this.#respond(request, stream))
  }

  override snap(...[messages, tools, message, chars, variables = this.#variables]: Parameters<Engine['snap']>): Span {
    return super.snap(messages, tools, message, chars, variables)
  }

  override count(...[messages, tools, edits = [], variables = this.#variables]: Parameters<Engine['count']>): number {
    return super.count(messages, tools, edits, variables)
  }

  override prepare(...[messages, tools, variables = this.#variables]: Parameters<NonNullable<Engine['prepare']>>): Promise<void> {
    return super.prepare(messages, tools, variables)
  }

  get #variables(): TemplateVariables {
    return this.options.variables?.() ?? {}
  }

  async #respond(request: EngineRequest, stream: EventStream): Promise<EngineReply> {
    const { tenant, callable, isExternal, single, isAlone = () => false } = this.options
    const running = this.engine.respond({
      ...request,
      ...(this.options.variables === undefined ? {} : { variables: this.#variables }),
      tenant,
      ...(single ? { endsWith: isExternal } : {}),
      ...(callable === undefined || request.toolChoice !== 'required' ? {} : { callable }),
    })
    const ids = new Map<string, string>()
    const named = <C extends Pick<ToolCall, 'id'>>(call: C): C => {
      const id = ids.get(call.id) ?? (MADE_UP.test(call.id) ? `call_${randomBytes(12).toString('hex')}` : call.id)
      ids.set(call.id, id)
      return { ...call, id }
    }
    let first: string | null = null
    const counts = (call: Pick<ToolCall, 'id' | 'name'>): boolean => {
      if (!single || !isExternal(call)) return true
      first ??= call.id
      return first === call.id
    }
    /** A call whose arguments are no JSON. The next event shows whether it was cut off. */
    let broken: ToolCall | null = null
    const tell = (call: ToolCall) => {
      stream.push({ type: 'call', call: named(call) })
    }
    for await (const event of running) {
      if (broken !== null) tell(broken)
      broken = null
      if (event.type === 'arguments') {
        if (counts(event)) stream.push(named(event))
      } else if (event.type !== 'call') stream.push(event)
      else if (!counts(event.call)) continue
      else if (event.call.malformed === undefined) tell(event.call)
      else broken = event.call
    }
    const reply = await running.reply
    this.stop = reply.stop ?? null
    const isCut = isCutOff(reply)
    if (broken !== null && !isCut) tell(broken)
    const { toolCalls, sampled, ...rest } = reply.message
    if (toolCalls === undefined) return reply
    const made = toolCalls.slice(0, isCut ? -1 : undefined).filter(counts)
    const others = made.filter((call) => !isAlone(call))
    const kept = others.length === 0 ? made.slice(0, 1) : others
    const whole = sampled === undefined || kept.length < toolCalls.length ? {} : { sampled }
    return { ...reply, message: { ...rest, ...(kept.length === 0 ? {} : { toolCalls: kept.map(named) }), ...whole } }
  }
}

/** Returns whether the answer ended within its last call. */
const isCutOff = ({ finish, stop, message: { toolCalls } }: EngineReply): boolean =>
  (finish === 'length' || stop !== undefined) && toolCalls?.at(-1)?.malformed !== undefined
