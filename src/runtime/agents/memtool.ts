/**
 * The memtool agent: manages its tools over many turns (MemTool, 3.1). It decides when tools are searched and removed, and where
 * definitions are shown.
 */
import type { ToolCall, ToolDefinition } from '../chat/message.js'
import { Conversation, type ConversationState } from '../context/conversation.js'
import { portsOf } from '../context/ports.js'
import type { Stretch } from '../context/stretch.js'
import type { ContextTool } from '../context/tools.js'
import type { ConversationId } from '../core/ids.js'
import { span } from '../core/span.js'
import type { Engine, GenerationOptions } from '../engine/engine.js'
import type { LedgerEntry } from '../kv/ledger.js'
import type { Catalogue } from '../tools/catalogue.js'
import { LateDefinitions, lineOf } from '../tools/late-definitions.js'
import { heldRemoval, managementTools, removeTools, SEARCH_TOOLS, standing } from '../tools/management.js'
import { type ToolLimits, ToolMemory, type ToolMemoryState } from '../tools/tool-memory.js'
import { MemToolAsides, type MemToolMode, memToolPrompt } from './memtool-asides.js'
import type { AskOptions } from './session.js'
import { Toolbox } from './toolbox.js'
import { Turn, type TurnOutcome } from './tool-loop.js'

/**
 * Where the model sees the definitions of loaded tools. `late`: in the search result that found them; removing a tool folds its
 * definition there. `list`: in the list of tools at the top of the prompt.
 */
export const placements = ['late', 'list'] as const
export type Placement = (typeof placements)[number]

/**
 * How tools are removed. `model`: the model decides, in the way of the mode. `unused`: tools that were not called for `turns` turns are
 * removed. `lru`: the least recently used tools are removed until the definitions fit `tokens`. `never`: tools stay loaded.
 */
export type RemovalRule =
  | { readonly by: 'model' }
  | { readonly by: 'unused'; readonly turns: number }
  | { readonly by: 'lru'; readonly tokens: number }
  | { readonly by: 'never' }

export interface MemToolOptions {
  readonly engine: Engine
  /** The id of the session's conversation. Unique among the engine's conversations. */
  readonly id: ConversationId
  readonly catalogue: Pick<Catalogue, 'search' | 'get'>
  /** Carries out a call of a loaded tool. If it throws, the model gets the error as the result. */
  readonly execute: (call: Pick<ToolCall, 'name' | 'arguments'>, signal?: AbortSignal) => string | Promise<string>
  readonly mode: MemToolMode
  readonly placement?: Placement
  /** Default: the model removes tools. */
  readonly removal?: RemovalRule
  readonly limits?: ToolLimits
  /** The most tools that a search returns for each keyword. Default 5. */
  readonly perKeyword?: number
  /** Context tools for the model, beside its search tools. Default: none. */
  readonly contextTools?: readonly ContextTool[]
  /** The agent's purpose. It stands before the mode's prompt in the system message. */
  readonly purpose?: string
  /** The most tool calls of a turn. Default 40: a task's calls, plus searches and retries. */
  readonly maxCalls?: number
  /** How many old turns stay visible. Default: all. */
  readonly history?: HistoryLimit
  readonly generation?: GenerationOptions
  /** The state of an earlier session to continue from. The other options must be the same as that session's. */
  readonly state?: MemToolState
}

/** The whole session as plain data. */
export interface MemToolState {
  readonly conversation: ConversationState
  readonly memory: ToolMemoryState
  readonly asides: number
}

const MAX_CALLS = 40

export class MemToolSession {
  readonly memory: ToolMemory
  readonly conversation: Conversation
  readonly #toolbox: Toolbox
  readonly #ledger: LedgerEntry[] = []
  readonly #asides: MemToolAsides

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
    // Showing a definition again at its old position would change text in the middle of the prompt. Under `exact` and `auto` everything
    // after it would be recomputed.
    const restores = generation.contract === 'splice' || generation.contract === 'blend'
    const late = placement === 'late' ? new LateDefinitions(this.conversation, { restores }) : null
    this.#asides = new MemToolAsides(
      {
        ...{ engine, conversation: this.conversation, mode, memory: this.memory, late },
        definitions: () => this.#toolbox.definitions,
        onSpent: (entries) => {
          this.account(entries)
        },
        removes: (options.removal?.by ?? 'model') === 'model',
        generation,
      },
      state?.asides,
    )
    if (state !== undefined) this.memory.resume(state.memory)
    else {
      const { by } = options.removal ?? { by: 'model' }
      const removes = by === 'unused' || by === 'lru' ? 'rule' : by
      const prompt = memToolPrompt({ mode, removes, listed: placement === 'list' })
      this.conversation.add({ role: 'system', content: [options.purpose ?? [], prompt].flat().join('\n\n') })
    }
  }

  get state(): MemToolState {
    return { conversation: this.conversation.state, memory: this.memory.state, asides: this.#asides.asked }
  }

  /** Loads tools by name, without a search. Unknown names are ignored. */
  load(names: readonly string[]): void {
    const added = names.flatMap((name) => (this.memory.has(name) ? [] : (this.options.catalogue.get(name) ?? [])))
    this.memory.load({ added, known: [] })
  }

  /** Removes tools by name, without a call by the model. */
  remove(names: readonly string[]): void {
    removeTools(this.#asides.managed, names)
  }

  /**
   * Adds a user message and runs a turn. Before it, asks the asides of the mode. @throws KvfoldError what the engine throws; messages
   * added before the error stay
   */
  async ask(content: string, options: AskOptions = {}): Promise<TurnOutcome> {
    const { mode, history } = this.options
    const { signal } = options
    this.#asides.begin(content)
    if (history !== undefined) this.#asides.account(await foldHistory(this.conversation, history, [SEARCH_TOOLS], signal))
    await this.#prune(signal)
    const keywords = await this.#asides.keywords(signal)
    this.conversation.add({ role: 'user', content, ...(mode === 'workflow' ? {} : { note: `\n\n[${standing(this.memory)}]` }) })
    await this.#asides.search(keywords, signal)
    const outcome = await this.resume(options)
    return { ...outcome, ledger: [...this.#asides.spent, ...outcome.ledger] }
  }

  /** Runs a turn on the messages so far, without a new user message. @throws KvfoldError what the engine throws */
  async resume({ signal, onEvent }: AskOptions = {}): Promise<TurnOutcome> {
    const { engine, maxCalls = MAX_CALLS, generation = {} } = this.options
    const turn = new Turn({
      engine,
      conversation: this.conversation,
      toolbox: this.#toolbox,
      firstStep: 'auto',
      maxCalls,
      hints: false,
      generation,
      ...(signal === undefined ? {} : { signal }),
      onEvent: (event) => {
        if (event.type === 'ledger') this.#ledger.push(event.entry)
        onEvent?.(event)
      },
    })
    return turn.run()
  }

  /** Entries of all steps, asides and summaries, oldest first. Failed turns are included. */
  get ledger(): readonly LedgerEntry[] {
    return this.#ledger
  }

  /** Lets the model summarise a fragment on behalf of a person or a program, and enters the cost on the ledger. */
  async summarize(id: string, focus: string, signal?: AbortSignal): ReturnType<Conversation['summarize']> {
    const result = await this.conversation.summarize(id, focus, signal)
    this.account(result.ledger ?? [])
    return result
  }

  /** Adds ledger entries of work outside turns, for example of a refresh. */
  account(entries: readonly LedgerEntry[]): void {
    this.#ledger.push(...entries)
  }

  /** Drops the conversation's cells from the engine's cache. */
  forget(): void {
    this.options.engine.forget(this.conversation.id)
  }

  #toolboxOf(mode: MemToolMode, placement: Placement): Toolbox {
    const { memory } = this
    const { contextTools = [], execute, removal = { by: 'model' } } = this.options
    const { search, remove } = managementTools(() => this.#asides.managed, placement === 'list')
    // In workflow mode the session itself searches. The model still sees search calls and their results, so the prompt must define
    // `search_tools`.
    const removes = mode === 'autonomous' && removal.by === 'model'
    const own = removes ? [search, remove] : [search]
    return new Toolbox([...contextTools, ...own], [], undefined, {
      get rendered() {
        return placement === 'list' ? memory.loaded.map(({ definition }) => definition) : []
      },
      get unlisted() {
        const shown = placement === 'list' ? [] : memory.loaded.map(({ definition }) => definition)
        return removes ? [...shown, ...heldRemoval(remove.definition, memory)] : shown
      },
      refusal: (name) => memory.refusal(name),
      execute: (call, signal) => {
        memory.used(call.name)
        return execute(call, signal)
      },
    })
  }

  /** Before a turn: removes tools by the rule if there is one, then asks the model if the mode does so. */
  async #prune(signal?: AbortSignal): Promise<void> {
    const { removal = { by: 'model' } } = this.options
    if (removal.by === 'unused') this.remove(this.memory.unusedFor(removal.turns + 1))
    if (removal.by === 'lru') this.remove(this.memory.leastUsedOver(removal.tokens))
    await this.#asides.prune(signal)
  }
}

/** Returns the tokens of a definition as a search result shows it. The template's own list takes about as many, apart from its wrapping. */
function countOf(engine: Engine, tool: ToolDefinition): number {
  const alone = (content: string) => engine.count([{ role: 'user', content }], [])
  return alone(lineOf(tool)) - alone('')
}

// Limiting the history: long messages of old turns are folded or summarised. They can be restored.

export interface HistoryLimit {
  /** How many of the newest turns stay visible. The turn that is about to begin counts as one. */
  readonly turns: number
  /** `truncate`: each old message is folded behind a marker. `summarize`: the model writes a summary of each. */
  readonly by: 'truncate' | 'summarize'
}

/** The shortest message, in characters, that is hidden. Shorter ones may take fewer tokens than a marker. */
const LEAST = 200

/**
 * Hides long messages of old turns, except messages that already have fragments. The new turn's user message is not added yet, so the
 * last `turns - 1` turns stay visible.
 * @param spared names of tools whose results stay visible
 * @returns the ledger entries of the summaries
 * @throws KvfoldError what the engine throws
 */
async function foldHistory(
  conversation: Conversation,
  { turns, by }: HistoryLimit,
  spared: readonly string[],
  signal?: AbortSignal,
): Promise<readonly LedgerEntry[]> {
  const ledger: LedgerEntry[] = []
  for (const stretch of oldStretches(conversation, turns, spared)) {
    const cut = conversation.cut([stretch], 1)
    if (!cut.ok) continue
    for (const { id } of cut.fragments) {
      if (by === 'truncate') conversation.fold(id, undefined, 'refuse')
      else ledger.push(...((await conversation.summarize(id, 'what was asked and answered', signal, 'refuse')).ledger ?? []))
    }
  }
  return ledger
}

function oldStretches({ messages, fragments }: Conversation, turns: number, spared: readonly string[]): Stretch[] {
  const users = messages.flatMap(({ role }, index) => (role === 'user' ? [index] : []))
  const end = turns === 1 ? messages.length : (users.at(1 - turns) ?? 0)
  return messages.slice(0, end).flatMap(({ role, content, name = '' }, message): Stretch[] => {
    if (role === 'system' || content.length < LEAST || spared.includes(name)) return []
    return fragments.some((fragment) => fragment.message === message) ? [] : [{ message, span: span(0, content.length) }]
  })
}
