/** The tool memory of a conversation: which tools of a catalogue are loaded, and within which limits. */
import type { ToolDefinition } from '../chat/message.js'
import { listed } from '../context/refusal.js'
import type { Catalogue } from './catalogue.js'

/** The share of the context that loaded definitions may take by default. */
export const LOADED_SHARE = 1 / 4

export interface ToolLimits {
  /** How many tools may be loaded, without the two managing tools (MemTool, algorithms 1-3). Default 128. */
  readonly tools?: number
  /** How many tokens the loaded definitions may take together. Default: no limit. */
  readonly tokens?: number
}

export interface ToolMemoryOptions extends ToolLimits {
  readonly catalogue: Pick<Catalogue, 'search' | 'get'>
  /** How many tools a search returns for each keyword (MemTool, algorithms 1-3). Default 5. */
  readonly perKeyword?: number
  /** Returns how many tokens a definition takes in the prompt. Default: a quarter of its number of characters. */
  readonly measure?: (definition: ToolDefinition) => number
}

/** A tool that may be called now. */
export interface LoadedTool {
  readonly definition: ToolDefinition
  readonly tokens: number
  /** The turn in which the tool was loaded (`since`), and the turn in which it was last called or found (`used`), counted from 0. */
  readonly since: number
  readonly used: number
}

/** The result of a search: tools to load, tools that were loaded already, and keywords without a result. */
export interface SearchedTools {
  readonly added: readonly ToolDefinition[]
  readonly known: readonly ToolDefinition[]
  readonly nothing: readonly string[]
}

export interface Removal {
  readonly removed: readonly ToolDefinition[]
  /** The given names of tools that were not loaded. */
  readonly unknown: readonly string[]
}

/** Totals of the session. `refused`: searches that would have passed a limit, each refused as a whole. */
export interface ToolCounts {
  readonly added: number
  readonly removed: number
  readonly refused: number
  readonly calledUnloaded: number
}

/** The memory as plain JSON. */
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

  /** The loaded tools, in the order in which they were loaded. */
  get loaded(): readonly LoadedTool[] {
    return [...this.#loaded.values()]
  }

  /** The names of the loaded tools, in the order in which they were loaded. */
  get names(): readonly string[] {
    return [...this.#loaded.keys()]
  }

  get size(): number {
    return this.#loaded.size
  }

  /** Tokens of all loaded definitions. */
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

  /** Continues from the state of an earlier memory. Tools that the catalogue no longer has are left out. */
  resume({ turn, loaded, counts }: ToolMemoryState): void {
    this.#turn = turn
    this.#counts = counts
    this.#loaded.clear()
    for (const { name, since, used } of loaded) {
      const definition = this.options.catalogue.get(name)
      if (definition !== null) this.#loaded.set(name, { definition, tokens: this.#measure(definition), since, used })
    }
  }

  /** Begins a new turn. Calls and finds count as uses in the current turn. */
  beginTurn(): void {
    this.#turn++
  }

  /** Finds tools for the keywords without loading them. @throws KvfoldError what the embedder throws */
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

  /** Returns a search's result as it is now, after tools were loaded or removed. */
  sorted({ added, known, nothing }: SearchedTools): SearchedTools {
    const all = [...known, ...added]
    return { added: all.filter(({ name }) => !this.has(name)), known: all.filter(({ name }) => this.has(name)), nothing }
  }

  /** Checks the limits. Returns a sentence for the model when loading `added` would pass one, else null. */
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
   * Returns how many loaded tools must go at least, so that the found ones can be loaded. Returns null when no removal makes enough room.
   * Tools that the search found do not count, because they would be loaded again.
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

  /** Loads the added tools. Known tools count as used in this turn. Precondition: `excess` is null. */
  load({ added, known }: Pick<SearchedTools, 'added' | 'known'>): void {
    for (const definition of added)
      this.#loaded.set(definition.name, { definition, tokens: this.#measure(definition), since: this.#turn, used: this.#turn })
    for (const { name } of known) this.used(name)
    this.#count('added', added.length)
  }

  /** Counts a search that was refused for its size. */
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

  /** Notes that a loaded tool was called or found. */
  used(name: string): void {
    const tool = this.#loaded.get(name)
    if (tool !== undefined) this.#loaded.set(name, { ...tool, used: this.#turn })
  }

  /** Returns the error text for a call of a tool that is not loaded, and counts it. Returns null when the tool is loaded. */
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

  /** Names of loaded tools that were neither called nor found in the last `turns` turns, the current one included. */
  unusedFor(turns: number): readonly string[] {
    return this.loaded.filter(({ used }) => this.#turn - used >= turns).map(({ definition }) => definition.name)
  }

  /** Returns the names of the least recently used tools that must go so that the others fit in `tokens`. */
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
