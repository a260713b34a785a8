/** The tool memory of a conversation: which tools of a catalogue are loaded, and the limits on them. */
import type { ToolDefinition } from '../chat/message.js'
import { listed } from '../context/refusal.js'
import type { Catalogue } from './catalogue.js'

/** The share of the context that loaded definitions may take, unless the caller sets another limit. */
export const LOADED_SHARE = 1 / 4

export interface ToolLimits {
  /** The most loaded tools, not counting `search_tools` and `remove_tools` (MemTool, algorithms 1-3). Default 128. */
  readonly tools?: number
  /** The most tokens of all loaded definitions together. Default: no limit. */
  readonly tokens?: number
}

export interface ToolMemoryOptions extends ToolLimits {
  readonly catalogue: Pick<Catalogue, 'search' | 'get'>
  /** The most tools that a search returns for each keyword (MemTool, algorithms 1-3). Default 5. */
  readonly perKeyword?: number
  /** Returns the tokens of a definition in the prompt. Default: an estimate, a quarter of its characters. */
  readonly measure?: (definition: ToolDefinition) => number
}

/** A loaded tool: the model may call it. */
export interface LoadedTool {
  readonly definition: ToolDefinition
  readonly tokens: number
  /** The turn in which the tool was loaded, counted from 0. `used`: the last turn in which it was called or found. */
  readonly since: number
  readonly used: number
}

/** What a search found: tools that are not loaded yet, tools that already are, and keywords without a result. */
export interface SearchedTools {
  readonly added: readonly ToolDefinition[]
  readonly known: readonly ToolDefinition[]
  readonly nothing: readonly string[]
}

export interface Removal {
  readonly removed: readonly ToolDefinition[]
  /** Names in the call that no loaded tool has. */
  readonly unknown: readonly string[]
}

/** Totals of the session. `refused` counts searches that were refused because their tools would have exceeded a limit. */
export interface ToolCounts {
  readonly added: number
  readonly removed: number
  readonly refused: number
  readonly calledUnloaded: number
}

/** The state of the tool memory as plain JSON. */
export interface ToolMemoryState {
  readonly turn: number
  readonly loaded: readonly { readonly name: string; readonly since: number; readonly used: number }[]
  readonly counts: ToolCounts
}

export class ToolMemory {
  readonly limits: { readonly tools: number; readonly tokens: number }
  readonly #loaded = new Map<string, LoadedTool>()
  readonly #measure: (tool: ToolDefinition) => number
  #turn = 0
  #counts: ToolCounts = { added: 0, removed: 0, refused: 0, calledUnloaded: 0 }

  constructor(private readonly options: ToolMemoryOptions) {
    const { tools = 128, tokens = Infinity, measure = (tool) => Math.ceil(JSON.stringify(tool).length / 4) } = options
    this.limits = { tools, tokens }
    const known = new WeakMap<ToolDefinition, number>()
    this.#measure = (tool) => {
      const tokens = known.get(tool) ?? measure(tool)
      known.set(tool, tokens)
      return tokens
    }
  }

  /** The loaded tools, in the order of loading. */
  get loaded(): readonly LoadedTool[] {
    return [...this.#loaded.values()]
  }

  /** The names of the loaded tools, in the order of loading. */
  get names(): readonly string[] {
    return [...this.#loaded.keys()]
  }

  get size(): number {
    return this.#loaded.size
  }

  /** The tokens of all loaded definitions together. */
  get tokens(): number {
    return this.loaded.reduce((sum, { tokens }) => sum + tokens, 0)
  }

  get counts(): ToolCounts {
    return this.#counts
  }

  has(name: string): boolean {
    return this.#loaded.has(name)
  }

  get state(): ToolMemoryState {
    const loaded = this.loaded.map(({ definition: { name }, since, used }) => ({ name, since, used }))
    return { turn: this.#turn, loaded, counts: this.#counts }
  }

  /** Continues from a saved state. Tools that the catalogue does not have any more are left out. */
  resume({ turn, loaded, counts }: ToolMemoryState): void {
    this.#turn = turn
    this.#counts = counts
    this.#loaded.clear()
    for (const { name, since, used } of loaded) {
      const definition = this.options.catalogue.get(name)
      if (definition !== null) this.#loaded.set(name, { definition, tokens: this.#measure(definition), since, used })
    }
  }

  /** Begins a turn. From here on, a call or a search hit marks a tool as used in this turn. */
  beginTurn(): void {
    this.#turn++
  }

  /** Finds tools for the keywords, but does not load them. @throws KvfoldError what the embedder throws */
  async find(keywords: readonly string[], signal?: AbortSignal): Promise<SearchedTools> {
    const { catalogue, perKeyword = 5 } = this.options
    const found = new Map<string, ToolDefinition>()
    const nothing: string[] = []
    for (const keyword of keywords) {
      const tools = await catalogue.search(keyword, perKeyword, undefined, signal)
      if (tools.length === 0) nothing.push(keyword)
      for (const tool of tools) found.set(tool.name, tool)
    }
    return this.sorted({ added: [...found.values()], known: [], nothing })
  }

  /** Sorts a search's tools again into `added` and `known`, after tools were loaded or removed. */
  sorted({ added, known, nothing }: SearchedTools): SearchedTools {
    const all = [...known, ...added]
    return { added: all.filter(({ name }) => !this.has(name)), known: all.filter(({ name }) => this.has(name)), nothing }
  }

  /** Returns a sentence for the model when loading `added` would exceed a limit, else null. */
  excess(added: readonly ToolDefinition[]): string | null {
    const { tools, tokens } = this.limits
    const count = this.size + added.length
    if (count > tools)
      return `${added.length} more tools would make ${count}, and ${tools} may be loaded. Remove ${count - tools} first, or search with fewer keywords.`
    const taken = Math.ceil(this.#tokensWith(added))
    if (taken > tokens)
      return `${added.length} more tools would make ${taken} tokens of definitions, and there is room for ${tokens}. Remove some first, or search with fewer keywords.`
    return null
  }

  /**
   * Returns the smallest number of loaded tools to remove so that the found ones fit. Returns null when no removal makes enough room. Tools
   * in `known` are not removed, because the search wants them loaded.
   */
  over({ added, known }: SearchedTools): number | null {
    const found = new Set(known.map(({ name }) => name))
    const others = this.loaded.filter(({ definition }) => !found.has(definition.name))
    const sizes = others.map(({ tokens }) => tokens).sort((one, other) => other - one)
    let tools = this.size + added.length - this.limits.tools
    let tokens = this.#tokensWith(added) - this.limits.tokens
    let count = 0
    for (; tools > 0 || tokens > 0; count++) {
      if (count === sizes.length) return null
      tools--
      tokens -= sizes[count]!
    }
    return count
  }

  /** Loads the `added` tools, and marks `known` ones as used in this turn. Precondition: `excess(added)` is null. */
  load({ added, known }: Pick<SearchedTools, 'added' | 'known'>): void {
    for (const definition of added)
      this.#loaded.set(definition.name, { definition, tokens: this.#measure(definition), since: this.#turn, used: this.#turn })
    for (const { name } of known) this.used(name)
    this.#count('added', added.length)
  }

  /** Counts a search that was refused because of a limit. */
  refused(): void {
    this.#count('refused', 1)
  }

  remove(names: readonly string[]): Removal {
    const known = [...new Set(names)]
    const removed = known.flatMap((name) => this.#loaded.get(name)?.definition ?? [])
    for (const { name } of removed) this.#loaded.delete(name)
    this.#count('removed', removed.length)
    return { removed, unknown: known.filter((name) => !removed.some((tool) => tool.name === name)) }
  }

  /** Marks a loaded tool as used in this turn. */
  used(name: string): void {
    const tool = this.#loaded.get(name)
    if (tool !== undefined) this.#loaded.set(name, { ...tool, used: this.#turn })
  }

  /** Returns null when the tool is loaded. If not, returns the error for the model and counts the call. */
  refusal(name: string): string | null {
    if (this.has(name)) return null
    this.#count('calledUnloaded', 1)
    if (this.options.catalogue.get(name) !== null)
      return `${name} is not loaded now. Search for it with search_tools, then call it.`
    const { names } = this
    const few = names.slice(0, 20)
    const known =
      names.length === 0 ? 'No tool is loaded.' : `Loaded: ${listed(few)}${names.length > few.length ? ' and more' : ''}.`
    return `there is no tool called ${JSON.stringify(name)}. ${known}`
  }

  /** Returns the names of loaded tools that were neither called nor found in the last `turns` turns, counting the current one. */
  unusedFor(turns: number): readonly string[] {
    return this.loaded.filter(({ used }) => this.#turn - used >= turns).map(({ definition }) => definition.name)
  }

  /** Returns the names of the least recently used tools to remove so that the rest fits in `tokens`. */
  leastUsedOver(tokens: number): readonly string[] {
    let over = this.tokens - tokens
    const names: string[] = []
    for (const tool of [...this.loaded].sort((one, other) => one.used - other.used)) {
      if (over <= 0) break
      over -= tool.tokens
      names.push(tool.definition.name)
    }
    return names
  }

  #tokensWith(added: readonly ToolDefinition[]): number {
    return this.tokens + added.reduce((sum, tool) => sum + this.#measure(tool), 0)
  }

  #count(what: keyof ToolCounts, by: number): void {
    this.#counts = { ...this.#counts, [what]: this.#counts[what] + by }
  }
}
