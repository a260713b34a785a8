/**
 * U-Fold exactly as the paper prints it: three prompts that are built anew at every user message. It measures what the order of a prompt's
 * sections costs with a prefix cache.
 */
import type { ChatMessage } from '../../runtime/chat/message.js'
import { Conversation } from '../../runtime/context/conversation.js'
import { portsOf } from '../../runtime/context/ports.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import { conversationId, type ConversationId } from '../../runtime/core/ids.js'
import { definedFields } from '../../runtime/core/json.js'
import { writeJson } from '../../runtime/core/written-json.js'
import type { EngineRequest } from '../../runtime/engine/engine.js'
import { type AskOptions, MAX_CALLS, type SessionOptions } from '../../runtime/agents/session.js'
import { Toolbox } from '../../runtime/agents/toolbox.js'
import { Turn, type TurnOutcome } from '../../runtime/agents/tool-loop.js'
import {
  type ChosenLines,
  extractionOf,
  extractionPrompt,
  extractionSchema,
  type Memory,
  memoryOf,
  memoryPrompt,
  memorySchema,
  notesText,
} from '../../runtime/agents/u-fold/helpers.js'
import { linesOf, numbered, textOf } from '../../runtime/agents/u-fold/view.js'

/**
 * The order of a prompt's sections. `printed`: as in the paper, changing sections come before fixed ones. `stable`: rules and log first,
 * notes and the user's message last.
 */
export type PromptOrder = 'printed' | 'stable'

export interface PaperFoldOptions extends Pick<SessionOptions, 'engine' | 'id' | 'system' | 'clientTools' | 'generation'> {
  readonly order: PromptOrder
  readonly principles?: boolean
}

/** The most tokens of a reply of the helper (the model that writes notes and chooses lines). */
const HELPER_TOKENS = 1024

/** The agent's state between two turns. Plain JSON, except that messages may hold sampled tokens (Int32Array). */
export interface PaperState {
  readonly messages: readonly ChatMessage[]
  readonly memory: Memory | null
  readonly blocks: readonly ChosenLines[]
  readonly seen: number
  /** Counts so far: helper replies that could not be used, and chosen ranges that name no lines of the log. */
  readonly bad: { readonly outputs: number; readonly ranges: number }
}

/** The agent U-Fold. Its model sees of the dialogue only the notes, the chosen lines, the user's message and this turn's steps. */
export class PaperFold {
  /** The whole dialogue, including what the model does not see. */
  readonly messages: ChatMessage[] = []
  readonly toolbox: Toolbox
  #memory: Memory | null = null
  #blocks: readonly ChosenLines[] = []
  #seen = 0
  readonly #bad = { outputs: 0, ranges: 0 }

  constructor(
    private readonly options: PaperFoldOptions,
    state?: PaperState,
  ) {
    this.toolbox = new Toolbox([], options.clientTools ?? [])
    if (state === undefined) return
    this.messages.push(...state.messages)
    this.#memory = state.memory
    this.#blocks = state.blocks
    this.#seen = state.seen
    Object.assign(this.#bad, state.bad)
  }

  get state(): PaperState {
    return { messages: this.messages, memory: this.#memory, blocks: this.#blocks, seen: this.#seen, bad: this.#bad }
  }

  /** Updates the notes and the chosen lines, then runs one turn. @throws KvfoldError any error of the engine */
  async ask(content: string, { signal, onEvent }: AskOptions = {}): Promise<TurnOutcome> {
    const { engine, generation = {} } = this.options
    if (this.messages.length > 0) await this.#fold(content, signal)
    const conversation = new Conversation(this.#id('agent'), portsOf(engine, this.#id('agent'), this.toolbox.definitions))
    for (const message of this.#prompt(content)) conversation.add(message)
    const shown = conversation.messages.length
    const turn = new Turn({
      engine,
      conversation,
      toolbox: this.toolbox,
      firstStep: 'auto',
      maxCalls: MAX_CALLS,
      hints: false,
      generation,
      ...definedFields({ signal, onEvent }),
    })
    const outcome = await turn.run()
    this.messages.push({ role: 'user', content }, ...conversation.messages.slice(shown))
    return outcome
  }

  /**
   * Makes the agent's prompt from the rules, the notes and chosen lines, and the caller's instructions, in the order of `options.order`.
   */
  #prompt(query: string): ChatMessage[] {
    const { system = '', order } = this.options
    const context = this.#context()
    if (context === '')
      return [...(system === '' ? [] : [{ role: 'system' as const, content: system }]), { role: 'user', content: query }]
    return order === 'printed'
      ? [
          { role: 'system', content: `${RULES}\n\n${context}\n\n${system}` },
          { role: 'user', content: query },
        ]
      : [
          { role: 'system', content: `${RULES}\n\n${system}` },
          { role: 'user', content: `${context}\n\n${query}` },
        ]
  }

  #context(): string {
    if (this.#memory === null) return ''
    const lines = linesOf(this.messages)
    const chosen = this.#blocks.map(({ lines: { first, last }, summary }) =>
      [summary, ...lines.slice(first - 1, last).map((line) => textOf(this.messages, line))].join('\n'),
    )
    return ['From the conversation so far:', notesText(this.#memory, this.#blocks), ...chosen].join('\n\n')
  }

  /** Asks the helper for new notes, then for chosen lines. A reply that cannot be used leaves the old notes or lines in place. */
  async #fold(query: string, signal?: AbortSignal): Promise<void> {
    const { order, principles = false } = this.options
    const memory = memoryOf(await this.#ask('summariser', this.#summariser(query), memorySchema, signal))
    if (!memory.ok) {
      this.#bad.outputs++
      return
    }
    this.#seen = this.messages.length
    const lines = numbered(this.messages, linesOf(this.messages))
    const rules = extractionPrompt({ principles })
    const notes = `Your notes: ${JSON.stringify(memory.value)}`
    const parts = order === 'printed' ? [rules, notes, lines] : [rules, lines, notes]
    const extraction = extractionOf(await this.#ask('extractor', parts, extractionSchema, signal), linesOf(this.messages).length)
    this.#memory = memory.value
    if (extraction.ok) {
      this.#blocks = extraction.value.blocks
      this.#bad.ranges += extraction.value.refused.length
    } else this.#bad.outputs++
  }

  #summariser(query: string): string[] {
    const fresh = this.messages.slice(this.#seen).filter(({ role }) => role !== 'tool')
    const said = fresh.map(({ role, content, toolCalls = [] }) =>
      [`${role}: ${content}`, ...toolCalls.map((call) => `${call.name}(${writeJson(call.arguments)})`)].join(' '),
    )
    return [memoryPrompt({ before: this.#memory, query }), ...said]
  }

  async #ask(role: string, parts: readonly string[], schema: unknown, signal?: AbortSignal): Promise<string> {
    const { engine, generation = {} } = this.options
    const { sampling } = generation
    const request: EngineRequest = {
      conversation: this.#id(role),
      messages: [{ role: 'user', content: parts.join('\n\n') }],
      ...(sampling === undefined ? {} : { sampling }),
      schema,
      maxTokens: HELPER_TOKENS,
      kind: 'summary',
      ...(signal === undefined ? {} : { signal }),
    }
    const { message, finish } = await engine.respond(request).reply
    if (finish === 'cancelled') throw new KvfoldError('engine/cancelled', 'Folding was cancelled.')
    return message.content
  }

  #id(role: string): ConversationId {
    return conversationId(`${this.options.id}/${role}`)
  }
}

const RULES =
  'What you have seen and done so far is given below as notes and as lines of earlier tool results. Rely on them instead of asking again or ' +
  'calling the same tool again. First think of the constraints and hints: they come before the to-do list. Then act.'
