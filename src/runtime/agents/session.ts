/** A session: one conversation over many turns, with its tools and the ledger of all its steps. */
import type { ChatMessage } from '../chat/message.js'
import { Conversation, type ConversationState } from '../context/conversation.js'
import { portsOf } from '../context/ports.js'
import { contextToolsFor, type ToolTexts } from '../context/short-tools.js'
import type { ContextTool } from '../context/tools.js'
import { KvfoldError } from '../core/errors.js'
import type { ConversationId } from '../core/ids.js'
import type { Engine, GenerationOptions } from '../engine/engine.js'
import type { LedgerEntry } from '../kv/ledger.js'
import { Toolbox, type ClientTool } from './toolbox.js'
import { type AgentEvent, Turn, type TurnOutcome } from './tool-loop.js'

/** Default for the most tool calls of a turn (Sculptor, section 4; spec: acm-tools, loop). */
export const MAX_CALLS = 20

export interface SessionOptions {
  readonly engine: Engine
  /** The id of the session's conversation. Unique among the engine's conversations. */
  readonly id: ConversationId
  /** Content of the system message. Default: no system message. Ignored when `conversation` is given. */
  readonly system?: string
  /** The conversation of an earlier session to continue from. */
  readonly conversation?: ConversationState
  /**
   * Which context tools the model has. True: the six, with the descriptions that suit the model (`contextToolsFor`). A list: exactly
   * those. False: none. Programs can call all operations on `conversation` in any case.
   */
  readonly contextTools: boolean | readonly ContextTool[]
  /** The descriptions of the six context tools. Default: those that suit the model (`contextToolsFor`). */
  readonly toolTexts?: ToolTexts
  /** Whether the first step of a turn must call a tool. Default: `required` when `contextTools` is true, else `auto`. */
  readonly firstStep?: 'required' | 'auto'
  /** The most tool calls of a turn. Default 20. Later calls are refused with an error for the model. */
  readonly maxCalls?: number
  /** Whether a fold's result gets a hint when the model folds in an order that recomputes text repeatedly. Default false. */
  readonly hints?: boolean
  readonly clientTools?: readonly ClientTool[]
  /** Sampling, limits, contract and similar settings of every step. */
  readonly generation?: GenerationOptions
}

export interface AskOptions {
  readonly signal?: AbortSignal
  readonly onEvent?: (event: AgentEvent) => void
}

export class Session {
  readonly conversation: Conversation
  readonly toolbox: Toolbox
  readonly #ledger: LedgerEntry[] = []
  #running = false

  constructor(private readonly options: SessionOptions) {
    const { engine, id, system, clientTools = [], contextTools: own } = options
    this.toolbox = new Toolbox(
      typeof own === 'boolean' ? (own ? contextToolsFor(engine.info.base ?? engine.info.model, options.toolTexts) : []) : own,
      clientTools,
    )
    const ports = portsOf(engine, id, this.toolbox.definitions)
    const before = options.conversation
    this.conversation = before === undefined ? new Conversation(id, ports) : Conversation.of({ ...before, id }, ports)
    if (system !== undefined && before === undefined) this.conversation.add({ role: 'system', content: system })
  }

  /** Entries of all steps and summaries, oldest first. Failed turns are included. */
  get ledger(): readonly LedgerEntry[] {
    return this.#ledger
  }

  /** Adds a user message and runs a turn. @throws KvfoldError what the engine throws; the message stays, so `resume` can try again */
  ask(content: string, options: AskOptions = {}): Promise<TurnOutcome> {
    return this.#turn({ role: 'user', content }, options)
  }

  /** Runs a turn on the messages so far: after an error, or after the caller added messages. */
  resume(options: AskOptions = {}): Promise<TurnOutcome> {
    return this.#turn(null, options)
  }

  /**
   * Lets the model summarise a fragment on behalf of a person or a program, and enters the cost on the ledger. Precondition: no turn is
   * running.
   */
  async summarize(id: string, focus: string, signal?: AbortSignal): ReturnType<Conversation['summarize']> {
    const result = await this.conversation.summarize(id, focus, signal)
    this.#ledger.push(...(result.ledger ?? []))
    return result
  }

  /** Adds ledger entries of work outside turns, for example of a refresh. */
  account(entries: readonly LedgerEntry[]): void {
    this.#ledger.push(...entries)
  }

  /** Drops the conversation's cells from the engine's cache. The messages stay, so the next turn prefills again. */
  forget(): void {
    this.options.engine.forget(this.conversation.id)
  }

  async #turn(message: ChatMessage | null, { signal, onEvent }: AskOptions): Promise<TurnOutcome> {
    const {
      engine,
      contextTools: tools,
      firstStep = tools === true ? 'required' : 'auto',
      maxCalls = MAX_CALLS,
      hints = false,
      generation = {},
    } = this.options
    if (this.#running)
      throw new KvfoldError(
        'engine/bad-request',
        'A turn of this conversation is still running; wait until it ends, or cancel it.',
      )
    this.#running = true
    try {
      if (message !== null) this.conversation.add(message)
      const turn = new Turn({
        engine,
        conversation: this.conversation,
        toolbox: this.toolbox,
        firstStep,
        maxCalls,
        hints,
        generation,
        ...(signal === undefined ? {} : { signal }),
        onEvent: (event) => {
          if (event.type === 'ledger') this.#ledger.push(event.entry)
          onEvent?.(event)
        },
      })
      return await turn.run()
    } finally {
      this.#running = false
    }
  }
}
