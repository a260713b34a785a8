/** Decides which calls of one answer to a client count, and gives them the ids that the client sees. */
import { randomBytes } from 'node:crypto'
import type { ToolCall } from '../chat/message.js'
import type { EngineEvent, EngineReply } from '../engine/engine.js'
import type { Toolbox } from './toolbox.js'

/** Rules for the tool calls in answers to a client that itself keeps the conversation, too. */
export interface ClientRules {
  /** True: only an answer's first call of an external tool counts, and the answer ends with it. */
  readonly single: boolean
  /** Names of the tools that the model may use. Calls of others are dropped, because not every engine can prevent them. Default: all. */
  readonly among?: readonly string[]
  /**
   * True for a call that must be alone in its step, because the client sees it as a message of its own. Beside other calls, it is dropped.
   * Default: no call must be alone.
   */
  readonly isAlone?: (call: Pick<ToolCall, 'name'>) => boolean
  /** Returns the id of an answer's nth external call, from 0, if the model's syntax has none. Default: a random id. */
  readonly callId?: (nth: number) => string
}

/** Ids that a parser invents when the model's syntax has none. They repeat in every answer. */
const MADE_UP = /^call_\d+$/

/**
 * Gives every call an id that is unique in its conversation. Drops a call that the token limit or a stop string cut off, and the answer's sampled
 * tokens. So the conversation and its client agree. Only the `arguments` events that were already sent remain visible. Each answer has its
 * own `ClientCalls`.
 */
export class ClientCalls {
  readonly #ids = new Map<string, string>()
  /** How many external calls have an id so far. */
  #external = 0
  #first: string | null = null
  /** A call whose arguments are not JSON. The next event shows whether it was cut off. */
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

  /** Returns the engine's reply with only the calls that count. */
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

/** Returns whether the answer ended within its last call. */
const isCutOff = ({ finish, stop, message: { toolCalls } }: EngineReply): boolean =>
  (finish === 'length' || stop !== undefined) && toolCalls?.at(-1)?.malformed !== undefined
