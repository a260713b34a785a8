/** Owns the agent that manages its tools over many turns (MemTool, 3.1): who searches, who removes, and where definitions stand. */
import type { ChatMessage, ToolCall, ToolDefinition } from '../chat/message.js'
import { Conversation, type ConversationState } from '../context/conversation.js'
import { portsOf } from '../context/ports.js'
import { KvfoldError } from '../core/errors.js'
import { conversationId, type ConversationId } from '../core/ids.js'
import type { Engine } from '../engine/engine.js'
import type { LedgerEntry } from '../kv/ledger.js'
import type { Catalogue } from '../tools/catalogue.js'
import { LateDefinitions, lineOf } from '../tools/late-definitions.js'
import { managementTools, removeTools, SEARCH_TOOLS, searchFor, standing } from '../tools/management.js'
import { type Found, type ToolLimits, ToolMemory, type ToolMemoryState } from '../tools/tool-memory.js'
import type { TurnOutcome } from './events.js'
import { foldHistory, type HistoryLimit } from './history.js'
import { type AsideQuestion, listIn, type MemToolMode, memToolPrompts, pruneQuestion, searchQuestion } from './memtool-prompts.js'
import type { AskOptions } from './session.js'
import { Toolbox } from './toolbox.js'
import { Turn, type TurnOptions } from './turn.js'

/** `late`: in the result of the search that found them, folded away when they are removed. `list`: among the definitions at the top of the prompt. */
export const placements = ['late', 'list'] as const
export type Placement = (typeof placements)[number]

/** Who removes: the model as its mode says, or a rule in its stead: unused for so many turns; the least recently used beyond so many tokens; nobody. */
export type RemovalRule =
  | { readonly by: 'model' }
  | { readonly by: 'unused'; readonly turns: number }
  | { readonly by: 'lru'; readonly tokens: number }
  | { readonly by: 'nobody' }

export interface MemToolOptions {
  readonly engine: Engine
  /** Whose cache this is; unique among the engine's conversations. */
  readonly id: ConversationId
  readonly catalogue: Catalogue
  /** Carries out a call of a loaded tool; an error it throws is told to the model. */
  readonly execute: (call: Pick<ToolCall, 'name' | 'arguments'>, signal?: AbortSignal) => string | Promise<string>
  readonly mode: MemToolMode
  /** Default `late`. */
  readonly placement?: Placement
  /** Default: by the model. */
  readonly removal?: RemovalRule
  readonly limits?: ToolLimits
  /** Tools found for each keyword. Default 5. */
  readonly perKeyword?: number
  /** What the agent is for, in front of what its mode is told. */
  readonly purpose?: string
  /** Calls a turn may make. Default 40: room for searches and second tries beside those of a task. */
  readonly maxCalls?: number
  /** Default: everything stays. */
  readonly history?: HistoryLimit
  readonly generation?: TurnOptions['generation']
  /** Where a session of the same options stood; this one goes on there. */
  readonly state?: MemToolState
}

/** Everything that a session consists of, as plain data. */
export interface MemToolState {
  readonly conversation: ConversationState
  readonly memory: ToolMemoryState
  readonly asides: number
}

/** Tokens that an answer aside may take. */
const LONGEST_ASIDE = 2048
const MAX_CALLS = 40

export class MemToolSession {
  readonly memory: ToolMemory
  readonly conversation: Conversation
  readonly #toolbox: Toolbox
  readonly #late: LateDefinitions | null
  #asides: number
  /** Of the turn that runs: what it was asked, and what asides cost. */
  #request = ''
  #spent: LedgerEntry[] = []

  constructor(private readonly options: MemToolOptions) {
    const { engine, id, catalogue, mode, placement = 'late', limits = {}, perKeyword, generation = {}, state } = options
    this.memory = new ToolMemory({
      catalogue,
      ...limits,
      measure: (tool) => countOf(engine, tool),
      ...(perKeyword === undefined ? {} : { perKeyword }),
    })
    this.#toolbox = this.#toolboxOf(mode, placement)
    const ports = portsOf(engine, id, this.#toolbox.definitions)
    this.conversation = state === undefined ? new Conversation(id, ports) : Conversation.of(state.conversation, ports)
    // Under `exact` and what may become it, showing a tool where it stood would have all that follows computed again.
    const restores = generation.contract === 'splice' || generation.contract === 'blend'
    this.#late = placement === 'late' ? new LateDefinitions(this.conversation, { restores }) : null
    this.#asides = state?.asides ?? 0
    if (state !== undefined) this.memory.resume(state.memory)
    else this.conversation.add({ role: 'system', content: [options.purpose ?? [], memToolPrompts[mode]].flat().join('\n\n') })
  }

  get state(): MemToolState {
    return { conversation: this.conversation.state, memory: this.memory.state, asides: this.#asides }
  }

  /** Loads tools without a search, for whoever knows which ones. Names that the catalogue lacks are left out. */
  load(names: readonly string[]): void {
    const added = names.flatMap((name) => (this.memory.has(name) ? [] : (this.options.catalogue.get(name) ?? [])))
    this.memory.load({ added, known: [] })
  }

  /** Removes tools at somebody's wish. */
  remove(names: readonly string[]): void {
    removeTools(this.#managed, names)
  }

  /** Asks aside as the mode has it, then runs the turn. @throws KvfoldError what the engine throws; what was said before stays */
  async ask(content: string, { signal, onEvent }: AskOptions = {}): Promise<TurnOutcome> {
    const { engine, mode, maxCalls = MAX_CALLS, generation = {}, history } = this.options
    this.#request = content
    this.#spent = []
    this.memory.beginTurn()
    if (history !== undefined) this.#spent.push(...(await foldHistory(this.conversation, history, [SEARCH_TOOLS], signal)))
    await this.#prune(signal)
    const keywords = mode === 'workflow' ? await this.#keywords(signal) : []
    this.conversation.add({ role: 'user', content, ...(mode === 'workflow' ? {} : { note: `\n\n[${standing(this.memory)}]` }) })
    if (keywords.length > 0) await this.#searched(keywords, signal)
    const turn = new Turn({
      engine,
      conversation: this.conversation,
      toolbox: this.#toolbox,
      firstStep: 'auto',
      maxCalls,
      hints: false,
      generation,
      ...(signal === undefined ? {} : { signal }),
      ...(onEvent === undefined ? {} : { onEvent }),
    })
    const outcome = await turn.run()
    return { ...outcome, ledger: [...this.#spent, ...outcome.ledger] }
  }

  /** Drops the conversation's cells from the engine's cache. */
  forget(): void {
    this.options.engine.forget(this.conversation.id)
  }

  get #managed() {
    const { mode, removal = { by: 'model' } } = this.options
    const asks = mode !== 'autonomous' && removal.by === 'model'
    const makeRoom = async (found: Found, signal?: AbortSignal) => this.#askPrune(found.added.length, signal)
    return { memory: this.memory, late: this.#late, ...(asks ? { makeRoom } : {}) }
  }

  #toolboxOf(mode: MemToolMode, placement: Placement): Toolbox {
    const { memory } = this
    const { execute, removal = { by: 'model' } } = this.options
    const { search, remove } = managementTools(() => this.#managed)
    // In workflow mode searching is ours, but a model that sees the result has to know the tool.
    const own = mode === 'autonomous' && removal.by === 'model' ? [search, remove] : [search]
    return new Toolbox(own, [], undefined, {
      get rendered() {
        return placement === 'list' ? memory.loaded.map(({ definition }) => definition) : []
      },
      get unlisted() {
        return placement === 'list' ? [] : memory.loaded.map(({ definition }) => definition)
      },
      refusal: (name) => memory.refusal(name),
      execute: (call, signal) => {
        memory.used(call.name)
        return execute(call, signal)
      },
    })
  }

  /** Removes what the rule says, or what the model says when its mode asks it. */
  async #prune(signal?: AbortSignal): Promise<void> {
    const { mode, removal = { by: 'model' } } = this.options
    if (removal.by === 'unused') this.remove(this.memory.unusedFor(removal.turns + 1))
    if (removal.by === 'lru') this.remove(this.memory.leastUsedOver(removal.tokens))
    if (removal.by === 'model' && mode !== 'autonomous') await this.#askPrune(0, signal)
  }

  async #askPrune(room: number, signal?: AbortSignal): Promise<void> {
    const names = this.memory.loaded.map(({ definition }) => definition.name)
    const over = Math.max(0, names.length + room - this.memory.limits.tools)
    if (names.length > 0) this.remove(await this.#aside(pruneQuestion(names, this.#request, over), signal))
  }

  #keywords(signal?: AbortSignal): Promise<readonly string[]> {
    const names = this.memory.loaded.map(({ definition }) => definition.name)
    return this.#aside(searchQuestion(names, this.#request), signal)
  }

  /** A search that was asked for aside stands in the conversation as any other. */
  async #searched(keywords: readonly string[], signal?: AbortSignal): Promise<void> {
    const call: ToolCall = { id: `search_${this.#asides}`, name: SEARCH_TOOLS, arguments: { keywords } }
    const { text } = await searchFor(this.#managed, keywords, signal)
    this.conversation.add({ role: 'assistant', content: '', toolCalls: [call] })
    this.conversation.add({ role: 'tool', content: text, toolCallId: call.id, name: call.name })
  }

  /** Asks on a fork of the conversation, which costs what is new in it. @returns an empty list for an answer that is none */
  async #aside({ prompt, schema }: AsideQuestion, signal?: AbortSignal): Promise<readonly string[]> {
    const { engine, id, generation = {} } = this.options
    const messages = settled(this.conversation.messages)
    const fork = conversationId(`${id}/aside-${++this.#asides}`)
    const edits = this.conversation.edits().filter(({ message }) => message < messages.length)
    try {
      const { reply } = engine.respond({
        ...generation,
        conversation: fork,
        parent: id,
        messages: [...messages, { role: 'user', content: prompt }],
        ...(edits.length === 0 ? {} : { edits }),
        tools: this.#toolbox.definitions,
        toolChoice: 'none',
        schema,
        maxTokens: LONGEST_ASIDE,
        kind: 'summary',
        ...(signal === undefined ? {} : { signal }),
      })
      const { message, finish, ledger } = await reply
      this.#spent.push(ledger)
      if (finish === 'cancelled') throw new KvfoldError('engine/cancelled', 'The turn was cancelled.')
      return listIn(message.content) ?? []
    } finally {
      engine.forget(fork)
    }
  }
}

/** Without a step whose calls are not all answered yet: templates refuse it. */
function settled(messages: readonly ChatMessage[]): readonly ChatMessage[] {
  const last = messages.findLastIndex(({ role }) => role === 'assistant')
  const results = messages.length - 1 - last
  return results < (messages[last]?.toolCalls?.length ?? 0) ? messages.slice(0, last) : messages
}

/** Tokens of a definition as it is shown late, which is what a template makes of it, give or take its wrapping. */
function countOf(engine: Engine, tool: ToolDefinition): number {
  const alone = (content: string) => engine.count([{ role: 'user', content }], [])
  return alone(lineOf(tool)) - alone('')
}
