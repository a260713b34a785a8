/**
 * The agent that manages its tools over many turns (MemTool, 3.1). Decides when to search and remove tools, and where the definitions are
 * shown.
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
 * Where the definitions of loaded tools are shown. `late`: in the result of the search that found them; they are folded away when the tool
 * is removed. `list`: in the list at the top of the prompt.
 */
export const placements = ['late', 'list'] as const
export type Placement = (typeof placements)[number]

/**
 * How tools are removed. `model`: the model decides, as the mode says. `unused`: tools not used for `turns` turns go. `lru`: the least
 * recently used ones go, until the definitions fit `tokens`. `never`: all tools stay.
 */
export type RemovalRule =
  | { readonly by: 'model' }
  | { readonly by: 'unused'; readonly turns: number }
  | { readonly by: 'lru'; readonly tokens: number }
  | { readonly by: 'never' }

export interface MemToolOptions {
  readonly engine: Engine
  /** The id of the conversation, whose cache the session uses. Unique among the engine's conversations. */
  readonly id: ConversationId
  readonly catalogue: Pick<Catalogue, 'search' | 'get'>
  /** Carries out a call of a loaded tool. An error that it throws is reported to the model. */
  readonly execute: (call: Pick<ToolCall, 'name' | 'arguments'>, signal?: AbortSignal) => string | Promise<string>
  readonly mode: MemToolMode
  /** Where the definitions of loaded tools are shown. Default `late`. */
  readonly placement?: Placement
  /** How tools are removed. Default: by the model. */
  readonly removal?: RemovalRule
  readonly limits?: ToolLimits
  /** How many tools a search returns for each keyword. Default 5. */
  readonly perKeyword?: number
  /** Context tools for the model, beside the tools that it searches for. Default: none. */
  readonly contextTools?: readonly ContextTool[]
  /** The agent's purpose, written in front of the prompt of its mode. */
  readonly purpose?: string
  /** The most calls of a turn. Default 40: enough for searches and second tries beside the calls of a task. */
  readonly maxCalls?: number
  /** How much of the history stays visible. Default: all of it. */
  readonly history?: HistoryLimit
  readonly generation?: GenerationOptions
  /** The state of an earlier session with the same options, to continue from. */
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
    // Under `exact` and `auto`, showing a tool again at its old place would compute all the text after it again.
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

  /** Loads tools without a search. Names that the catalogue does not have are ignored. */
  load(names: readonly string[]): void {
    const added = names.flatMap((name) => (this.memory.has(name) ? [] : (this.options.catalogue.get(name) ?? [])))
    this.memory.load({ added, known: [] })
  }

  /** Removes tools without a call of the model, for a person or a program. */
  remove(names: readonly string[]): void {
    removeTools(this.#asides.managed, names)
  }

  /**
   * Asks the questions of the mode on a fork, then runs the turn. @throws KvfoldError what the engine throws; messages added before the
   * error stay
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

  /** Runs a turn without a new user message. @throws KvfoldError what the engine throws */
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

  /** Entries of all steps, asides and summaries so far, oldest first, including those of failed turns. */
  get ledger(): readonly LedgerEntry[] {
    return this.#ledger
  }

  /** Lets the model summarise a fragment when a person or a program asks for it. */
  async summarize(id: string, focus: string, signal?: AbortSignal): ReturnType<Conversation['summarize']> {
    const result = await this.conversation.summarize(id, focus, signal)
    this.account(result.ledger ?? [])
    return result
  }

  /** Adds entries of work outside the turns to the ledger, for example of a refresh. */
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
    // In workflow mode the session searches. The model sees the search results, so it must know the tool.
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

  /** Removes tools by the rule, or asks the model when the mode does so before a turn. */
  async #prune(signal?: AbortSignal): Promise<void> {
    const { removal = { by: 'model' } } = this.options
    if (removal.by === 'unused') this.remove(this.memory.unusedFor(removal.turns + 1))
    if (removal.by === 'lru') this.remove(this.memory.leastUsedOver(removal.tokens))
    await this.#asides.prune(signal)
  }
}

/** Returns the tokens of a definition shown late. That is about what the template's own list takes, apart from its wrapping. */
function countOf(engine: Engine, tool: ToolDefinition): number {
  const alone = (content: string) => engine.count([{ role: 'user', content }], [])
  return alone(lineOf(tool)) - alone('')
}

// Hiding old turns: their long texts are folded or summarised, and can be restored.

export interface HistoryLimit {
  /** How many of the newest turns stay visible. The turn that begins now is one of them. */
  readonly turns: number
  /** `truncate`: old texts are folded behind a marker. `summarize`: the model writes a summary of each. */
  readonly by: 'truncate' | 'summarize'
}

/** Texts with fewer characters are not hidden: they take fewer tokens than a marker. */
const LEAST = 200

/**
 * Hides long messages of old turns, unless they already have fragments. The message that begins the new turn is not there yet, so the last
 * `turns - 1` turns stay. `spared`: names of tools whose results stay visible.
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
