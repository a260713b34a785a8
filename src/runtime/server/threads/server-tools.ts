/**
 * Tools that the server handles itself: the tool memory of `acm: memtool`, and deferred tools, which the model sees only after it searched
 * for them.
 */
import Type from 'typebox'
import { type AsidesOptions, MemToolAsides, type MemToolMode } from '../../agents/memtool-asides.js'
import type { LoadedTools } from '../../agents/toolbox.js'
import type { ChatMessage, ToolCall, ToolDefinition } from '../../chat/message.js'
import { type ContextTool, defineTool } from '../../context/tools.js'
import { invariant } from '../../core/errors.js'
import { goodContext } from '../../engine/engine.js'
import { Catalogue, type ToolEmbedder } from '../../tools/catalogue.js'
import { definitionIn, LateDefinitions, lineOf } from '../../tools/late-definitions.js'
import { heldRemoval, managementTools, toolsFoundIn } from '../../tools/management.js'
import { LOADED_SHARE, ToolMemory } from '../../tools/tool-memory.js'
import type { ToolServerStatus } from './status.js'
import type { Thread } from './thread.js'
import { refuse } from '../../context/refusal.js'
import { definedFields } from '../../core/json.js'
import { strict } from '../../core/schema.js'
import { writeJson } from '../../core/written-json.js'

// `acm: memtool` in a thread: the client's tools and the operator's MCP tools form a catalogue. The model sees a tool after it searched for
// it, until the tool is removed. The client carries out calls of its own tools, this server those of the operator's.

/** Tools of the MCP servers in the operator's configuration. This server carries out their calls, for every tenant. */
export interface OperatorTools {
  /** The tools of all these servers. The array is replaced when a tool changes; until then it is the same object. */
  readonly tools: readonly ToolDefinition[]
  readonly catalogue: Pick<Catalogue, 'search' | 'get'>
  readonly servers: readonly (Omit<ToolServerStatus, 'tools'> & { readonly tools: readonly string[] })[]
  /** Calls one of these tools. @throws Error whose message tells the model why the call failed */
  execute(call: Pick<ToolCall, 'name' | 'arguments'>, signal?: AbortSignal): Promise<string>
}

interface ManagedSetting
  extends Pick<AsidesOptions, 'engine' | 'generation' | 'scope'>, Required<Pick<AsidesOptions, 'onSpent'>> {
  readonly mode: MemToolMode
  /** The client's tools. */
  readonly tools: readonly ToolDefinition[]
  readonly operatorTools: OperatorTools | null
  /** Makes embedding vectors for the search of tools by meaning; null: the search uses words only. */
  readonly embedder: ToolEmbedder | null
  /** Whether a tool that is loaded again is restored at its old place in the conversation instead of shown anew at the end. */
  readonly restores: boolean
}

const NONE: readonly ToolDefinition[] = []

type Searched = Pick<Catalogue, 'search' | 'get'>

/** For each thread: its catalogue, and the tools it was made of, to see when it is outdated. */
const catalogues = new WeakMap<
  Thread,
  {
    readonly of: string
    readonly others: readonly ToolDefinition[]
    readonly catalogue: Catalogue
    readonly searched: Searched
  }
>()

/** A catalogue with more tools than this is searched by words only: embedding all its tools would take minutes. */
const MOST_BY_MEANING = 1000

/**
 * Returns a catalogue that also searches by meaning. Its first search embeds all tools. If the embedder is busy or fails, that search uses
 * words only, and the next one tries again.
 * @param byWords a word index of the same tools
 */
function searched(byWords: Searched, tools: readonly ToolDefinition[], embedder: ToolEmbedder | null): Searched {
  if (embedder === null || tools.length === 0 || tools.length > MOST_BY_MEANING) return byWords
  let both: Catalogue | null = null
  return {
    get: (name) => byWords.get(name),
    async search(words, k, ranking, signal) {
      try {
        both ??= await Catalogue.of(tools, { embedder, ...definedFields({ signal }) })
        return await both.search(words, k, ranking, signal)
      } catch {
        signal?.throwIfAborted()
        return byWords.search(words, k, 'bm25', signal)
      }
    },
  }
}

/** Shared catalogues of threads whose clients have no tools. Keyed by the operator's tool array, which is replaced when a tool changes. */
const operators = new WeakMap<readonly ToolDefinition[], Searched>()

function operatorCatalogue({ catalogue, tools }: OperatorTools, embedder: ToolEmbedder | null): Searched {
  const known = operators.get(tools) ?? searched(catalogue, tools, embedder)
  operators.set(tools, known)
  return known
}

export class ManagedThread implements LoadedTools {
  /** The prompt's list of tools has no loaded tool: their definitions stand in the search results of the conversation. */
  readonly rendered = NONE
  readonly memory: ToolMemory
  /** The model's tools for searching tools and, in mode `autonomous`, for removing them. */
  readonly own: readonly ContextTool[]
  /** The tool for removing tools; null when the mode does not give it to the model. */
  readonly #remove: ToolDefinition | null
  readonly #asides: MemToolAsides
  readonly #clients: ReadonlySet<string>

  private constructor(
    private readonly thread: Thread,
    catalogue: Pick<Catalogue, 'search' | 'get'>,
    private readonly setting: ManagedSetting,
  ) {
    const { engine, generation, scope, mode, restores, tools, onSpent } = setting
    const { conversation } = thread
    this.#clients = new Set(tools.map(({ name }) => name))
    this.memory = new ToolMemory({ catalogue, tokens: Math.floor(goodContext(engine.info) * LOADED_SHARE) })
    const late = new LateDefinitions(conversation, { restores })
    this.#asides = new MemToolAsides({
      ...{ engine, conversation, mode, memory: this.memory, late, onSpent },
      definitions: () => this.own.map(({ definition }) => definition),
      ...definedFields({ generation, scope }),
    })
    const { search, remove } = managementTools(() => this.#asides.managed)
    this.#remove = mode === 'autonomous' ? remove.definition : null
    this.own = this.#remove === null ? [search] : [search, remove]
    // Which tools are loaded follows from the search results in the conversation, so it is not stored.
    const loaded = toolsFoundIn(conversation).flatMap(({ name, loaded }) => (loaded ? (catalogue.get(name) ?? []) : []))
    this.memory.load({ added: loaded, known: [] })
  }

  /** Makes the tool memory of a thread. @throws KvfoldError tool/bad-arguments for two tools with the same name */
  static async of(thread: Thread, setting: ManagedSetting): Promise<ManagedThread> {
    const { tools, operatorTools, embedder } = setting
    if (tools.length === 0 && operatorTools !== null)
      return new ManagedThread(thread, operatorCatalogue(operatorTools, embedder), setting)
    const of = writeJson(tools)
    const others = operatorTools?.tools ?? NONE
    const known = catalogues.get(thread)
    if (known?.of === of && known.others === others) return new ManagedThread(thread, known.searched, setting)
    const names = new Set(tools.map(({ name }) => name))
    // A client's tool replaces an operator's tool of the same name.
    const all = [...tools, ...others.filter(({ name }) => !names.has(name))]
    const catalogue = await Catalogue.of(all)
    known?.catalogue.close()
    const made = { of, others, catalogue, searched: searched(catalogue, all, embedder) }
    catalogues.set(thread, made)
    return new ManagedThread(thread, made.searched, setting)
  }

  /** The client's tools that are loaded; the conversation shows their definitions. */
  get loaded(): readonly ToolDefinition[] {
    return this.#loaded(true)
  }

  /**
   * Definitions that the model may call although the prompt's list of tools lacks them: the operator's loaded tools, and the removal tool,
   * which accepts only names of loaded tools.
   */
  get unlisted(): readonly ToolDefinition[] {
    return [...this.#loaded(false), ...(this.#remove === null ? [] : heldRemoval(this.#remove, this.memory))]
  }

  /** Calls an operator's tool. */
  execute(call: Pick<ToolCall, 'name' | 'arguments'>, signal?: AbortSignal): Promise<string> {
    const { operatorTools } = this.setting
    invariant(operatorTools !== null && !this.#clients.has(call.name), `${call.name} is the client's to call.`)
    return operatorTools.execute(call, signal)
  }

  /** Returns why the model may not call this tool; null when it may. */
  refusal(name: string): string | null {
    return this.memory.refusal(name)
  }

  /**
   * After a user message, asks the model which tools to remove and which to search for, and does both. These questions are asides: they
   * leave no trace in the conversation. The mode decides which of them are asked.
   * @throws KvfoldError what the engine throws
   */
  async begin(signal: AbortSignal): Promise<void> {
    const { conversation } = this.thread
    if (conversation.messages.at(-1)?.role !== 'user') return
    this.#asides.begin(conversation.remembered(conversation.messages.length - 1))
    await this.#asides.prune(signal)
    await this.#asides.search(await this.#asides.keywords(signal), signal)
  }

  #loaded(isClients: boolean): readonly ToolDefinition[] {
    const all = this.memory.loaded.map(({ definition }) => definition)
    return all.filter(({ name }) => this.#clients.has(name) === isClients)
  }
}

// Deferred tools: the model does not see their definitions until a search finds them.

/** A search tool that the server carries out. The client sees its calls and results. */
export interface ToolSearch {
  readonly name: string
  readonly by: 'words' | 'pattern'
}

export interface DeferredTools {
  /** Tools hidden at first. The model may call one after a tool result in the conversation has shown its definition. */
  readonly tools: readonly ToolDefinition[]
  readonly searches: readonly ToolSearch[]
  /** Names of search tools that the client carries out. Tools defined in their results may be called, too. Default: none. */
  readonly clientSearches?: readonly string[]
}

/** The most tools that one search returns, as in Anthropic's API. */
const FOUND = 5
/** The most characters of a search's query. */
const LONGEST = 200

const QUERY = Type.String({ minLength: 1, maxLength: LONGEST, description: 'what the tool does, in a few words' })
const PATTERN = Type.String({
  minLength: 1,
  maxLength: LONGEST,
  description: 'a regular expression that its name, its description or an argument has, case ignored, such as "weather|forecast"',
})

const about = (how: string) =>
  `Finds tools that are not shown yet${how}. The result has the definitions of at most ${FOUND}; you can call them from then on.`

/** Returns the text of a search result: one tool definition per line. Equal tools give equal text, so that the prompt stays cacheable. */
export const foundText = (tools: readonly ToolDefinition[]): string =>
  tools.length === 0 ? 'No tool found.' : tools.map(lineOf).join('\n')

/**
 * Returns the request's search tools for the model. The deferred tools are indexed at the first search.
 * @param embedder makes vectors for the search by meaning; null: words only
 */
export function searchTools({ tools, searches }: DeferredTools, embedder: ToolEmbedder | null = null): readonly ContextTool[] {
  let catalogue: Promise<Catalogue> | null = null
  const made = () => (catalogue ??= Catalogue.of(tools))
  let meant: Searched | null = null
  return searches.map(({ name, by }) =>
    by === 'words'
      ? defineTool({
          ...{ name, description: about(''), arguments: strict({ query: QUERY }) },
          async run(_, { query }, signal) {
            meant ??= searched(await made(), tools, embedder)
            const found = await meant.search(query, FOUND, undefined, signal)
            return { text: foundText(found), modifies: false }
          },
        })
      : defineTool({
          ...{ name, description: about(' by a regular expression'), arguments: strict({ pattern: PATTERN }) },
          async run(_, { pattern }) {
            const found = (await made()).matching(pattern, FOUND)
            return found.ok ? { text: foundText(found.tools), modifies: false } : refuse('tool/bad-arguments', found.message)
          },
        }),
  )
}

/** Returns the deferred tools whose definitions the conversation has shown, in the order of their first appearance. */
export function foundIn(
  messages: readonly ChatMessage[],
  { tools, clientSearches = [] }: DeferredTools,
): readonly ToolDefinition[] {
  const results = messages.filter(({ role, content }) => role === 'tool' && content.includes(BEGINNING))
  const found = new Map<string, ToolDefinition>()
  if (results.length === 0) return []
  const named = new Map(tools.map((tool) => [tool.name, tool]))
  for (const { content, name = '' } of results) {
    let left = MOST_LINES
    for (const [line, own = ''] of content.matchAll(DEFINITION)) {
      if (left-- === 0) break
      const known = named.get(own)
      const isKnown = known !== undefined && lineOf(known) === line
      const tool = isKnown ? known : clientSearches.includes(name) ? definitionIn(line) : null
      if (tool !== null) found.set(tool.name, tool)
    }
  }
  return [...found.values()]
}

const BEGINNING = '{"name"'
/** Matches lines that may be tool definitions. Group 1 is the tool's name in lines that this server wrote (`lineOf`). */
const DEFINITION = /^\{"name"(?:: "([\w.:-]{1,128})", )?[^\r\n]*/gm
/** The most definition lines read in one message. */
const MOST_LINES = 10_000

/** Returns the names of the tools that a search result defines. */
export const namesIn = (text: string): readonly string[] => text.split('\n').flatMap((line) => definitionIn(line)?.name ?? [])
