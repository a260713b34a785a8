/** Owns tools of a request that the server deals with itself: a catalogue that the model searches and loads from, tools that it sees once it finds them. */
import Type from 'typebox'
import { type AsidesOptions, MemToolAsides, type MemToolMode } from '../../agents/memtool-asides.js'
import type { ChatMessage, ToolCall, ToolDefinition } from '../../chat/message.js'
import { type ContextTool, defineTool } from '../../context/tools.js'
import { invariant } from '../../core/errors.js'
import type { LedgerEntry } from '../../kv/ledger.js'
import { Catalogue } from '../../tools/catalogue.js'
import { definitionIn, LateDefinitions, lineOf } from '../../tools/late-definitions.js'
import { heldRemoval, managementTools, toolsFoundIn } from '../../tools/management.js'
import { LOADED_SHARE, ToolMemory } from '../../tools/tool-memory.js'
import type { ToolServerStatus } from './status.js'
import type { Thread } from './thread.js'
import { refuse } from '../../context/refusal.js'
import { strict } from '../../core/schema.js'
import { writeJson } from '../../core/written-json.js'

// `acm: memtool` in a thread: the client's tools and those of the operator's MCP servers are a catalogue, of which the model sees those that were
// searched for, until they are removed. Calls of the first are the client's, calls of the others are carried out here.

/** Tools that the server carries out itself, for whoever may ask it: those of the MCP servers that its operator configured. */
export interface OperatorTools {
  /** The same list until one of them changes. */
  readonly tools: readonly ToolDefinition[]
  readonly catalogue: Pick<Catalogue, 'search' | 'get'>
  readonly servers: readonly (Omit<ToolServerStatus, 'tools'> & { readonly tools: readonly string[] })[]
  /** @throws Error what the model is told of a call that failed */
  execute(call: Pick<ToolCall, 'name' | 'arguments'>, signal?: AbortSignal): Promise<string>
}

interface ManagedSetting extends Pick<AsidesOptions, 'engine' | 'generation'> {
  readonly mode: MemToolMode
  /** The client's. */
  readonly tools: readonly ToolDefinition[]
  readonly operatorTools: OperatorTools | null
  /** Whether tools that are loaded again are shown where they stood. */
  readonly restores: boolean
}

const NONE: readonly ToolDefinition[] = []

/** Catalogues that were made, with the tools that they are of. */
const catalogues = new WeakMap<
  Thread,
  { readonly of: string; readonly others: readonly ToolDefinition[]; readonly catalogue: Catalogue }
>()

export class ManagedThread {
  readonly memory: ToolMemory
  /** The tools that the mode gives the model. */
  readonly own: readonly ContextTool[]
  /** The tool that removes, where the model has it. */
  readonly #remove: ToolDefinition | null
  readonly #asides: MemToolAsides
  readonly #clients: ReadonlySet<string>

  private constructor(
    private readonly thread: Thread,
    catalogue: Pick<Catalogue, 'search' | 'get'>,
    private readonly setting: ManagedSetting,
  ) {
    const { engine, generation, mode, restores, tools } = setting
    const { conversation } = thread
    this.#clients = new Set(tools.map(({ name }) => name))
    this.memory = new ToolMemory({ catalogue, tokens: Math.floor(engine.info.context * LOADED_SHARE) })
    const late = new LateDefinitions(conversation, { restores })
    this.#asides = new MemToolAsides({
      ...{ engine, conversation, mode, memory: this.memory, late },
      definitions: () => this.own.map(({ definition }) => definition),
      ...(generation === undefined ? {} : { generation }),
    })
    const { search, remove } = managementTools(() => this.#asides.managed)
    this.#remove = mode === 'autonomous' ? remove.definition : null
    this.own = this.#remove === null ? [search] : [search, remove]
    // What is loaded is what the conversation shows: nothing else has to be kept of it.
    const loaded = toolsFoundIn(conversation).flatMap(({ name, loaded }) => (loaded ? (catalogue.get(name) ?? []) : []))
    this.memory.load({ added: loaded, known: [] })
  }

  /** @throws KvfoldError tool/bad-arguments for two tools of one name */
  static async of(thread: Thread, setting: ManagedSetting): Promise<ManagedThread> {
    const { tools, operatorTools } = setting
    // Of one index for all threads where a client has nothing to add.
    if (tools.length === 0 && operatorTools !== null) return new ManagedThread(thread, operatorTools.catalogue, setting)
    const of = writeJson(tools)
    const others = operatorTools?.tools ?? NONE
    const known = catalogues.get(thread)
    if (known?.of === of && known.others === others) return new ManagedThread(thread, known.catalogue, setting)
    const names = new Set(tools.map(({ name }) => name))
    // A client's own tool goes before one of a server that is called the same.
    const catalogue = await Catalogue.of([...tools, ...others.filter(({ name }) => !names.has(name))])
    known?.catalogue.close()
    catalogues.set(thread, { of, others, catalogue })
    return new ManagedThread(thread, catalogue, setting)
  }

  /** The client's tools that may be called now, shown in the conversation. */
  get loaded(): readonly ToolDefinition[] {
    return this.#loaded(true)
  }

  /** Those that may be called now and are carried out here. */
  get carriedOut(): readonly ToolDefinition[] {
    return [...this.#loaded(false), ...(this.#remove === null ? [] : heldRemoval(this.#remove, this.memory))]
  }

  /** Carries out a call of one of those. */
  execute(call: Pick<ToolCall, 'name' | 'arguments'>, signal?: AbortSignal): Promise<string> {
    const { operatorTools } = this.setting
    invariant(operatorTools !== null && !this.#clients.has(call.name), `${call.name} is the client's to call.`)
    return operatorTools.execute(call, signal)
  }

  /** What a call of one that may not be called is told; null when it may. */
  refusal(name: string): string | null {
    return this.memory.refusal(name)
  }

  /** Asks aside as the mode has it when the user has just spoken. @returns what that cost @throws KvfoldError what the engine throws */
  async begin(signal: AbortSignal): Promise<readonly LedgerEntry[]> {
    const last = this.thread.conversation.messages.at(-1)
    if (last?.role !== 'user') return []
    this.#asides.begin(last.content)
    await this.#asides.prune(signal)
    await this.#asides.search(await this.#asides.keywords(signal), signal)
    return this.#asides.spent
  }

  #loaded(isClients: boolean): readonly ToolDefinition[] {
    const all = this.memory.loaded.map(({ definition }) => definition)
    return all.filter(({ name }) => this.#clients.has(name) === isClients)
  }
}

// Tools of a request that the model does not see until it finds them: the searches that it may make, and which of the tools it has found.

/** A search that the server carries out; its calls and results are the client's to know. */
export interface ToolSearch {
  readonly name: string
  readonly by: 'words' | 'pattern'
}

export interface DeferredTools {
  /** May be called once the conversation has shown them, in the result of whatever tool. */
  readonly tools: readonly ToolDefinition[]
  readonly searches: readonly ToolSearch[]
  /** Names of searches that the client carries out: what their results define may be called, too. Default: none. */
  readonly clientSearches?: readonly string[]
}

/** Tools found in one search, as Anthropic's API has it. */
const FOUND = 5
/** Characters of a search. */
const LONGEST = 200

const QUERY = Type.String({ minLength: 1, maxLength: LONGEST, description: 'what the tool does, in a few words' })
const PATTERN = Type.String({
  minLength: 1,
  maxLength: LONGEST,
  description: 'a regular expression that its name, its description or an argument has, case ignored, such as "weather|forecast"',
})

/** What the model is told of a search. */
const about = (how: string) =>
  `Finds tools that are not shown yet${how}. The result has the definitions of at most ${FOUND}; you can call them from then on.`

/** What a result says of the tools found: their definitions, so that the same tools give the same text wherever it is made. */
export const foundText = (tools: readonly ToolDefinition[]): string =>
  tools.length === 0 ? 'No tool found.' : tools.map(lineOf).join('\n')

/** The searches of a request as tools of the model; each finds in `tools`, which is indexed once somebody searches. */
export function searchTools({ tools, searches }: DeferredTools): readonly ContextTool[] {
  let catalogue: Promise<Catalogue> | null = null
  const made = () => (catalogue ??= Catalogue.of(tools))
  return searches.map(({ name, by }) =>
    by === 'words'
      ? defineTool({
          ...{ name, description: about(''), arguments: strict({ query: QUERY }) },
          async run(_, { query }, signal) {
            return { text: foundText(await (await made()).search(query, FOUND, undefined, signal)), modifies: false }
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

/** Those of the deferred tools that the conversation has shown, in the order in which it did. */
export function foundIn(
  messages: readonly ChatMessage[],
  { tools, clientSearches = [] }: DeferredTools,
): readonly ToolDefinition[] {
  const lines = new Map(tools.map((tool) => [lineOf(tool), tool]))
  const found = new Map<string, ToolDefinition>()
  for (const { role, content, name = '' } of messages) {
    if (role !== 'tool') continue
    for (const line of content.split('\n')) {
      const tool = lines.get(line) ?? (clientSearches.includes(name) ? definitionIn(line) : null)
      if (tool !== null) found.set(tool.name, tool)
    }
  }
  return [...found.values()]
}

/** Names in the text of a result. */
export const namesIn = (text: string): readonly string[] => text.split('\n').flatMap((line) => definitionIn(line)?.name ?? [])
