/** Owns a conversation over many turns: the messages, the tools, and the ledger of all that was spent. */
import type { ChatMessage } from '../chat/message.js'
import { Conversation, type ConversationState } from '../context/conversation.js'
import { portsOf } from '../context/ports.js'
import { type ContextTool, contextTools } from '../context/tools.js'
import { KvfoldError } from '../core/errors.js'
import type { ConversationId } from '../core/ids.js'
import type { Engine } from '../engine/engine.js'
import type { LedgerEntry } from '../kv/ledger.js'
import { Toolbox, type ClientTool } from './toolbox.js'
import { type AgentEvent, Turn, type TurnOptions, type TurnOutcome } from './tool-loop.js'

/** Calls a turn may make (Sculptor, section 4; spec: acm-tools, loop). */
export const MAX_CALLS = 20

export interface SessionOptions {
  readonly engine: Engine
  /** Whose cache this is; unique among the engine's conversations. */
  readonly id: ConversationId
  /** Content of the first message; none when left out, or when the session goes on from a state. */
  readonly system?: string
  /** Where an earlier session left its conversation. */
  readonly conversation?: ConversationState
  /** Whether the model has the six context tools, or which of them. People and programs can use them through `conversation` either way. */
  readonly contextTools: boolean | readonly ContextTool[]
  /** Whether the first step of a turn has to call a tool. Default `required` with all six context tools, else `auto`. */
  readonly firstStep?: 'required' | 'auto'
  /** Calls a turn may make. Default 20. */
  readonly maxCalls?: number
  /** Adds a line to a fold's result when the order of folds has text computed again and again. Default false. */
  readonly hints?: boolean
  readonly clientTools?: readonly ClientTool[]
  /** Sampling, limits, the contract of edits and the like, the same for every step. */
  readonly generation?: TurnOptions['generation']
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
    this.toolbox = new Toolbox(typeof own === 'boolean' ? (own ? contextTools : []) : own, clientTools)
    const ports = portsOf(engine, id, this.toolbox.definitions)
    const before = options.conversation
    this.conversation = before === undefined ? new Conversation(id, ports) : Conversation.of({ ...before, id }, ports)
    if (system !== undefined && before === undefined) this.conversation.add({ role: 'system', content: system })
  }

  /** Entries of all steps and summaries so far, oldest first; those of a turn that failed included. */
  get ledger(): readonly LedgerEntry[] {
    return this.#ledger
  }

  /** Adds a user message and runs a turn. @throws KvfoldError what the engine throws; the message stays, `resume` tries again */
  ask(content: string, options: AskOptions = {}): Promise<TurnOutcome> {
    return this.#turn({ role: 'user', content }, options)
  }

  /** Runs a turn on the messages as they are: after an error, or after messages added by the caller. */
  resume(options: AskOptions = {}): Promise<TurnOutcome> {
    return this.#turn(null, options)
  }

  /**
   * Has the model summarise a fragment at a person's or a program's wish; what it cost goes on the ledger. Free of the model's
   * turns: may run while none does.
   */
  async summarize(id: string, focus: string, signal?: AbortSignal): ReturnType<Conversation['summarize']> {
    const result = await this.conversation.summarize(id, focus, signal)
    this.#ledger.push(...(result.ledger ?? []))
    return result
  }

  /** Enters what was spent for the conversation outside of its turns, such as a refresh. */
  account(entries: readonly LedgerEntry[]): void {
    this.#ledger.push(...entries)
  }

  /** Drops the conversation's cells from the engine's cache. The conversation itself stays. */
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
      throw new KvfoldError('engine/bad-request', 'A turn of this conversation is still running; wait for its end, or cancel it.')
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
