/** Owns the agent that manages its tools over many turns (MemTool, 3.1): who searches, who removes, and where definitions stand. */
import type { ToolCall, ToolDefinition } from '../chat/message.js'
import { Conversation, type ConversationState } from '../context/conversation.js'
import { portsOf } from '../context/ports.js'
import type { Stretch } from '../context/stretch.js'
import type { ContextTool } from '../context/tools.js'
import type { ConversationId } from '../core/ids.js'
import { span } from '../core/span.js'
import type { Engine } from '../engine/engine.js'
import type { LedgerEntry } from '../kv/ledger.js'
import type { Catalogue } from '../tools/catalogue.js'
import { LateDefinitions, lineOf } from '../tools/late-definitions.js'
import { heldRemoval, managementTools, removeTools, SEARCH_TOOLS, standing } from '../tools/management.js'
import { type ToolLimits, ToolMemory, type ToolMemoryState } from '../tools/tool-memory.js'
import { MemToolAsides, type MemToolMode, memToolPrompts } from './memtool-asides.js'
import type { AskOptions } from './session.js'
import { Toolbox } from './toolbox.js'
import { Turn, type TurnOptions, type TurnOutcome } from './tool-loop.js'

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
  readonly catalogue: Pick<Catalogue, 'search' | 'get'>
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
  /** Tools for the model's own context, beside those that it looks for. Default: none. */
  readonly contextTools?: readonly ContextTool[]
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
    // Under `exact` and what may become it, showing a tool where it stood would have all that follows computed again.
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
    else this.conversation.add({ role: 'system', content: [options.purpose ?? [], memToolPrompts[mode]].flat().join('\n\n') })
  }

  get state(): MemToolState {
    return { conversation: this.conversation.state, memory: this.memory.state, asides: this.#asides.asked }
  }

  /** Loads tools without a search, for whoever knows which ones. Names that the catalogue lacks are left out. */
  load(names: readonly string[]): void {
    const added = names.flatMap((name) => (this.memory.has(name) ? [] : (this.options.catalogue.get(name) ?? [])))
    this.memory.load({ added, known: [] })
  }

  /** Removes tools at somebody's wish. */
  remove(names: readonly string[]): void {
    removeTools(this.#asides.managed, names)
  }

  /** Asks aside as the mode has it, then runs the turn. @throws KvfoldError what the engine throws; what was said before stays */
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

  /** Runs a turn on the messages as they are. @throws KvfoldError what the engine throws */
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

  /** Entries of all steps, asides and summaries so far, oldest first; those of a turn that failed included. */
  get ledger(): readonly LedgerEntry[] {
    return this.#ledger
  }

  /** Has the model summarise a fragment at a person's or a program's wish. */
  async summarize(id: string, focus: string, signal?: AbortSignal): ReturnType<Conversation['summarize']> {
    const result = await this.conversation.summarize(id, focus, signal)
    this.account(result.ledger ?? [])
    return result
  }

  /** Enters what was spent for the conversation outside of its turns, such as a refresh. */
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
    const { search, remove } = managementTools(() => this.#asides.managed)
    // In workflow mode searching is ours, but a model that sees the result has to know the tool.
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

  /** Removes what the rule says, or what the model says when its mode asks it. */
  async #prune(signal?: AbortSignal): Promise<void> {
    const { removal = { by: 'model' } } = this.options
    if (removal.by === 'unused') this.remove(this.memory.unusedFor(removal.turns + 1))
    if (removal.by === 'lru') this.remove(this.memory.leastUsedOver(removal.tokens))
    await this.#asides.prune(signal)
  }
}

/** Tokens of a definition as it is shown late, which is what a template makes of it, give or take its wrapping. */
function countOf(engine: Engine, tool: ToolDefinition): number {
  const alone = (content: string) => engine.count([{ role: 'user', content }], [])
  return alone(lineOf(tool)) - alone('')
}

// What is done with turns that are long over: their long texts are folded or summarised, and can all be restored.

export interface HistoryLimit {
  /** Turns that stay as they are, the one that begins among them. */
  readonly turns: number
  /** `truncate`: folded behind a marker. `summarize`: the model writes what stays. */
  readonly by: 'truncate' | 'summarize'
}

/** Shorter texts take fewer tokens than what would stand in their place. */
const LEAST = 200

/**
 * Hides what stands in messages before the last `turns` user messages, whatever is no fragment yet. `spared`: messages that stay, by name of the
 * tool that they are results of.
 * @returns what summaries cost
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
  const end = users.at(-turns) ?? 0
  return messages.slice(0, end).flatMap(({ role, content, name = '' }, message): Stretch[] => {
    if (role === 'system' || content.length < LEAST || spared.includes(name)) return []
    return fragments.some((fragment) => fragment.message === message) ? [] : [{ message, span: span(0, content.length) }]
  })
}
