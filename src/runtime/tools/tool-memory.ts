/** Owns the tool memory of a conversation: which tools of a catalogue are loaded, within what limits, and what searching and removing come to. */
import type { ToolDefinition } from '../chat/message.js'
import { listed } from '../context/refusal.js'
import type { Catalogue } from './catalogue.js'

/** Of a context, what definitions that are loaded take at most where nobody says. */
export const LOADED_SHARE = 1 / 4

export interface ToolLimits {
  /** Tools loaded at most, the two that manage them not counted (MemTool, algorithms 1-3). Default 128. */
  readonly tools?: number
  /** Tokens that the definitions loaded may take together. Default: no limit. */
  readonly tokens?: number
}

export interface ToolMemoryOptions extends ToolLimits {
  readonly catalogue: Pick<Catalogue, 'search' | 'get'>
  /** Tools found for each keyword (MemTool, algorithms 1-3). Default 5. */
  readonly perKeyword?: number
  /** Tokens of a definition where it is shown. Default: a fourth of its characters. */
  readonly measure?: (definition: ToolDefinition) => number
}

/** A tool that may be called now. */
export interface LoadedTool {
  readonly definition: ToolDefinition
  readonly tokens: number
  /** Turns, from 0: when it was loaded, and when it was last called or found. */
  readonly since: number
  readonly used: number
}

/** What a search found, as sets of its own: what it adds, what was loaded already, and keywords that nothing was found for. */
export interface SearchedTools {
  readonly added: readonly ToolDefinition[]
  readonly known: readonly ToolDefinition[]
  readonly nothing: readonly string[]
}

export interface Removal {
  readonly removed: readonly ToolDefinition[]
  /** Names that are not loaded. */
  readonly unknown: readonly string[]
}

/** What the session did so far; a search that would pass a limit is refused whole. */
export interface ToolCounts {
  readonly added: number
  readonly removed: number
  readonly refused: number
  readonly calledUnloaded: number
}

/** As plain JSON. */
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

  /** In the order in which they were loaded. */
  get loaded(): readonly LoadedTool[] {
    return [...this.#loaded.values()]
  }

  /** In the same order. */
  get names(): readonly string[] {
    return [...this.#loaded.keys()]
  }

  get size(): number {
    return this.#loaded.size
  }

  /** Of the definitions that are loaded. */
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

  /** Stands where a memory of the same catalogue stood; tools that it no longer has are left out. */
  resume({ turn, loaded, counts }: ToolMemoryState): void {
    this.#turn = turn
    this.#counts = counts
    this.#loaded.clear()
    for (const { name, since, used } of loaded) {
      const definition = this.options.catalogue.get(name)
      if (definition !== null) this.#loaded.set(name, { definition, tokens: this.#measure(definition), since, used })
    }
  }

  /** A new turn begins: what was used counts from here. */
  beginTurn(): void {
    this.#turn++
  }

  /** What the keywords find; nothing is loaded yet. @throws KvfoldError what the embedder throws */
  async find(keywords: readonly string[], signal?: AbortSignal): Promise<SearchedTools> {
    const { catalogue, perKeyword = 5 } = this.options
    const found = new Map<string, ToolDefinition>()
    const nothing: string[] = []
    for (const keyword of keywords) {
      const tools = await catalogue.search(keyword, perKeyword, undefined, signal)
      if (tools.length === 0) nothing.push(keyword)
      for (const tool of tools) found.set(tool.name, tool)
    }
    const all = [...found.values()]
    return { added: all.filter(({ name }) => !this.has(name)), known: all.filter(({ name }) => this.has(name)), nothing }
  }

  /** How far the limits would be passed: a sentence for the model, null when they would not. */
  excess(added: readonly ToolDefinition[]): string | null {
    const { tools, tokens } = this.limits
    const count = this.size + added.length
    if (count > tools)
      return `${added.length} more tools would make ${count}, and ${tools} may be loaded. Remove ${count - tools} first, or search with fewer keywords.`
    const taken = Math.ceil(this.tokens + added.reduce((sum, tool) => sum + this.#measure(tool), 0))
    if (taken > tokens)
      return `${added.length} more tools would make ${taken} tokens of definitions, and there is room for ${tokens}. Remove some first, or search with fewer keywords.`
    return null
  }

  /** Loads them; those found again count as used. Precondition: `excess` is null. */
  load({ added, known }: Pick<SearchedTools, 'added' | 'known'>): void {
    for (const definition of added)
      this.#loaded.set(definition.name, { definition, tokens: this.#measure(definition), since: this.#turn, used: this.#turn })
    for (const { name } of known) this.used(name)
    this.#count('added', added.length)
  }

  /** A search was refused for its size. */
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

  /** A loaded tool was called. */
  used(name: string): void {
    const tool = this.#loaded.get(name)
    if (tool !== undefined) this.#loaded.set(name, { ...tool, used: this.#turn })
  }

  /** What a call of a tool is told that is not loaded; null when it is loaded. */
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

  /** Loaded, and neither called nor found for so many turns. */
  unusedFor(turns: number): readonly string[] {
    return this.loaded.filter(({ used }) => this.#turn - used >= turns).map(({ definition }) => definition.name)
  }

  /** The least recently used, so many that the rest is within `tokens`. */
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

  #count(what: keyof ToolCounts, by: number): void {
    this.#counts = { ...this.#counts, [what]: this.#counts[what] + by }
  }
}
