/** Tool calls in answers to a client that keeps the conversation itself: drops calls that do not count, and gives the rest unique ids. */
import { randomBytes } from 'node:crypto'
import type { ToolCall } from '../chat/message.js'
import type { EngineEvent, EngineReply } from '../engine/engine.js'
import type { Toolbox } from './toolbox.js'

/** Which tool calls of an answer the client gets. For clients that keep the conversation themselves. */
export interface ClientRules {
  /** If true, an answer ends with its first call of an external tool, and later external calls are dropped. */
  readonly single: boolean
  /**
   * Names of the tools that the model may call. Calls of other tools are dropped, because not every engine can prevent them. Default:
   * all.
   */
  readonly among?: readonly string[]
  /**
   * Whether a call must be the only one of its step, because the client sees it as a message of its own. Such a call is dropped when the
   * step has other calls. Default: no call must be alone.
   */
  readonly isAlone?: (call: Pick<ToolCall, 'name'>) => boolean
  /**
   * Returns the id of an answer's nth external call, counted from 0. Used when the model's tool-call syntax has no ids. Default: a random
   * id.
   */
  readonly callId?: (nth: number) => string
}

/** Ids that a parser makes up when the model's tool-call syntax has none. They repeat in every answer. */
const MADE_UP = /^call_\d+$/

/**
 * Gives every tool call an id that is unique in its conversation, and drops calls that do not count. A call that the token limit or a
 * stop string cut off is dropped as well, and with it the sampled tokens. So the kept conversation matches what the client got, except
 * for `arguments` events that were already sent.
 * Use a new `ClientCalls` for each answer.
 */
export class ClientCalls {
  readonly #ids = new Map<string, string>()
  /** How many external calls have got an id so far. */
  #external = 0
  #first: string | null = null
  /** A call whose arguments are not valid JSON. It waits here until the next event shows that the answer did not end within it. */
  #broken: ToolCall | null = null

  constructor(
    private readonly rules: ClientRules,
    private readonly toolbox: Pick<Toolbox, 'isExternal'>,
    private readonly tell: (event: EngineEvent) => void,
  ) {}

  on(event: EngineEvent): void {
    this.#tellBroken()
    if (event.type === 'arguments') {
      if (this.#counts(event)) this.tell(this.#named(event))
    } else if (event.type !== 'call') this.tell(event)
    else if (!this.#counts(event.call)) return
    else if (event.call.malformed === undefined) this.#tellCall(event.call)
    else this.#broken = event.call
  }

  /** Returns the engine's reply without the calls that do not count, and with the ids that the client sees. */
  end(reply: EngineReply): EngineReply {
    const isCut = isCutOff(reply)
    if (!isCut) this.#tellBroken()
    const { toolCalls, sampled, ...rest } = reply.message
    if (toolCalls === undefined) return reply
    const { isAlone = () => false } = this.rules
    const made = toolCalls.slice(0, isCut ? -1 : undefined).filter((call) => this.#counts(call))
    const others = made.filter((call) => !isAlone(call))
    const kept = others.length === 0 ? made.slice(0, 1) : others
    const whole = sampled === undefined || kept.length < toolCalls.length ? {} : { sampled }
    const calls = kept.length === 0 ? {} : { toolCalls: kept.map((call) => this.#named(call)) }
    return { ...reply, message: { ...rest, ...calls, ...whole } }
  }

  #tellBroken(): void {
    const broken = this.#broken
    this.#broken = null
    if (broken !== null) this.#tellCall(broken)
  }

  #tellCall(call: ToolCall): void {
    this.tell({ type: 'call', call: this.#named(call) })
  }

  #named<C extends Pick<ToolCall, 'id' | 'name'>>(call: C): C {
    const id = this.#ids.get(call.id) ?? this.#newId(call)
    this.#ids.set(call.id, id)
    return { ...call, id }
  }

  #newId(call: Pick<ToolCall, 'id' | 'name'>): string {
    const given = this.toolbox.isExternal(call) ? this.rules.callId?.(this.#external++) : undefined
    return MADE_UP.test(call.id) ? (given ?? `call_${randomBytes(12).toString('hex')}`) : call.id
  }

  #counts(call: Pick<ToolCall, 'id' | 'name'>): boolean {
    if (this.rules.among?.includes(call.name) === false) return false
    if (!this.rules.single || !this.toolbox.isExternal(call)) return true
    this.#first ??= call.id
    return this.#first === call.id
  }
}

/** Whether the answer ended in the middle of its last tool call. */
const isCutOff = ({ finish, stop, message: { toolCalls } }: EngineReply): boolean =>
  (finish === 'length' || stop !== undefined) && toolCalls?.at(-1)?.malformed !== undefined
