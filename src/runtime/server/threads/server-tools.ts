/**
 * Handles tools that the server carries out itself: a catalogue that the model searches and loads from, and deferred tools that it sees
 * once it finds them.
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

// `acm: memtool` in a thread: the client's tools and those of the operator's MCP servers form a catalogue. The model sees the tools that it
// searched for, until they are removed. The client carries out calls of its own tools; this server carries out calls of the operator's.

/** Tools of the MCP servers that the operator configured. The server carries them out for every tenant. */
export interface OperatorTools {
  /** The tools of all these servers. It stays the same array until a tool changes. */
  readonly tools: readonly ToolDefinition[]
  readonly catalogue: Pick<Catalogue, 'search' | 'get'>
  readonly servers: readonly (Omit<ToolServerStatus, 'tools'> & { readonly tools: readonly string[] })[]
  /** Carries out a call of one of these tools. @throws Error whose message tells the model why the call failed */
  execute(call: Pick<ToolCall, 'name' | 'arguments'>, signal?: AbortSignal): Promise<string>
}

interface ManagedSetting
  extends Pick<AsidesOptions, 'engine' | 'generation' | 'scope'>, Required<Pick<AsidesOptions, 'onSpent'>> {
  readonly mode: MemToolMode
  /** The client's tools. */
  readonly tools: readonly ToolDefinition[]
  readonly operatorTools: OperatorTools | null
  /** Makes vectors for the search by meaning; null: tools are found by words. */
  readonly embedder: ToolEmbedder | null
  /** Whether a tool that is loaded again is shown at its old place. */
  readonly restores: boolean
}

const NONE: readonly ToolDefinition[] = []

/** What searches for tools need of a catalogue. */
type Searched = Pick<Catalogue, 'search' | 'get'>

/** For each thread its catalogues, and the tools that they were made of. */
const catalogues = new WeakMap<
  Thread,
  {
    readonly of: string
    readonly others: readonly ToolDefinition[]
    readonly catalogue: Catalogue
    readonly searched: Searched
  }
>()

/** Catalogues of more tools are searched by words alone, because their vectors would take minutes. */
const MOST_BY_MEANING = 1000

/**
 * Returns a catalogue that also searches by meaning. The first search makes the vectors. While the embedder is busy or fails, words are
 * searched, and the next search tries again.
 * @param byWords a catalogue of the same tools
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

/** The operator's catalogue, which threads of clients without tools share. It is made anew when the operator's tools change. */
const operators = new WeakMap<readonly ToolDefinition[], Searched>()

function operatorCatalogue({ catalogue, tools }: OperatorTools, embedder: ToolEmbedder | null): Searched {
  const known = operators.get(tools) ?? searched(catalogue, tools, embedder)
  operators.set(tools, known)
  return known
}

export class ManagedThread implements LoadedTools {
  /** Loaded tools in the prompt's list of definitions: none, because the conversation shows them. */
  readonly rendered = NONE
  readonly memory: ToolMemory
  /** The tools by which the model searches for tools and removes them, as far as the mode gives it these. */
  readonly own: readonly ContextTool[]
  /** The tool that removes tools, if the model has it. */
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
    // The loaded tools follow from the conversation, so they need no storage of their own.
    const loaded = toolsFoundIn(conversation).flatMap(({ name, loaded }) => (loaded ? (catalogue.get(name) ?? []) : []))
    this.memory.load({ added: loaded, known: [] })
  }

  /** Makes the managed tools of a thread. @throws KvfoldError tool/bad-arguments for two tools with the same name */
  static async of(thread: Thread, setting: ManagedSetting): Promise<ManagedThread> {
    const { tools, operatorTools, embedder } = setting
    if (tools.length === 0 && operatorTools !== null)
      return new ManagedThread(thread, operatorCatalogue(operatorTools, embedder), setting)
    const of = writeJson(tools)
    const others = operatorTools?.tools ?? NONE
    const known = catalogues.get(thread)
    if (known?.of === of && known.others === others) return new ManagedThread(thread, known.searched, setting)
    const names = new Set(tools.map(({ name }) => name))
    // A client's tool replaces a server's tool of the same name.
    const all = [...tools, ...others.filter(({ name }) => !names.has(name))]
    const catalogue = await Catalogue.of(all)
    known?.catalogue.close()
    const made = { of, others, catalogue, searched: searched(catalogue, all, embedder) }
    catalogues.set(thread, made)
    return new ManagedThread(thread, made.searched, setting)
  }

  /** The client's loaded tools, which the conversation shows and the model may call. */
  get loaded(): readonly ToolDefinition[] {
    return this.#loaded(true)
  }

  /**
   * Definitions of tools that the model may call although the prompt's list lacks them. These are the operator's loaded tools, which the
   * conversation shows, and the tool that removes others, which takes only loaded names.
   */
  get unlisted(): readonly ToolDefinition[] {
    return [...this.#loaded(false), ...(this.#remove === null ? [] : heldRemoval(this.#remove, this.memory))]
  }

  /** Carries out a call of an operator's tool. */
  execute(call: Pick<ToolCall, 'name' | 'arguments'>, signal?: AbortSignal): Promise<string> {
    const { operatorTools } = this.setting
    invariant(operatorTools !== null && !this.#clients.has(call.name), `${call.name} is the client's to call.`)
    return operatorTools.execute(call, signal)
  }

  /** Returns the text that refuses a call of this tool; null when the model may call it. */
  refusal(name: string): string | null {
    return this.memory.refusal(name)
  }

  /**
   * After a user message, asks the model aside, if the mode says so, which tools to remove and which to search for.
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

// Deferred tools: tools that the model does not see until it finds them, the searches it may use, and the tools it has found.

/** A search that the server carries out. The client sees its calls and results. */
export interface ToolSearch {
  readonly name: string
  readonly by: 'words' | 'pattern'
}

export interface DeferredTools {
  /** The deferred tools. The model may call one once a tool result in the conversation has shown its definition. */
  readonly tools: readonly ToolDefinition[]
  readonly searches: readonly ToolSearch[]
  /** Names of searches that the client carries out; tools defined in their results are callable, too. Default: none. */
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

/** Returns a search tool's description for the model. */
const about = (how: string) =>
  `Finds tools that are not shown yet${how}. The result has the definitions of at most ${FOUND}; you can call them from then on.`

/** Returns the text of a search result, with one definition per line. The same tools always give the same text. */
export const foundText = (tools: readonly ToolDefinition[]): string =>
  tools.length === 0 ? 'No tool found.' : tools.map(lineOf).join('\n')

/**
 * Returns the request's searches as tools for the model. They search `tools`, which are indexed at the first search.
 * @param embedder makes vectors for the search by meaning; null: words are searched
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

/** Returns the deferred tools that the conversation has shown, in order of first appearance. */
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
/** Matches lines that may be tool definitions. The group is the tool's name, if this server wrote the line (`lineOf`). */
const DEFINITION = /^\{"name"(?:: "([\w.:-]{1,128})", )?[^\r\n]*/gm
/** The most lines with definitions that are read in a message. There can be as many deferred tools. */
const MOST_LINES = 10_000

/** Returns the tool names in the text of a search result. */
export const namesIn = (text: string): readonly string[] => text.split('\n').flatMap((line) => definitionIn(line)?.name ?? [])
