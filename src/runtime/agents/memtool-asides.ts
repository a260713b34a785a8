/** The prompts of the memtool agent, and its questions aside: which tools to remove, and what to search for. */
import type { ChatMessage, ToolCall, ToolDefinition } from '../chat/message.js'
import type { Conversation } from '../context/conversation.js'
import { KvfoldError } from '../core/errors.js'
import { conversationId } from '../core/ids.js'
import type { Engine, GenerationOptions, RequestScope } from '../engine/engine.js'
import type { LedgerEntry } from '../kv/ledger.js'
import type { LateDefinitions } from '../tools/late-definitions.js'
import { type ManagedTools, removable, removeTools, SEARCH_TOOLS, searchFor } from '../tools/management.js'
import type { SearchedTools, ToolMemory } from '../tools/tool-memory.js'

/**
 * How tools are searched and removed. `autonomous`: the model does both by tool calls. `workflow`: asides before each turn decide both,
 * and the system prompt asks for neither. `hybrid`: an aside decides what to remove; the model searches by tool calls.
 */
export const memToolModes = ['autonomous', 'workflow', 'hybrid'] as const
export type MemToolMode = (typeof memToolModes)[number]

export interface MemToolPrompting {
  readonly mode: MemToolMode
  /** What removes tools: the model, a rule (`RemovalRule`), or nothing. Default: the model. */
  readonly removes?: 'model' | 'rule' | 'never'
  /** Whether the list of tools at the top of the prompt has the definitions of loaded tools. Default: search results show them instead. */
  readonly listed?: boolean
}

/**
 * Returns the system prompt of a mode, with the meaning of the paper's (MemTool, figures 5 to 7) in our words. It does not name the
 * number of tools: a changing number would change the beginning of every prompt. It says truthfully what removes tools and where
 * definitions are shown.
 */
export function memToolPrompt({ mode, removes = 'model', listed = false }: MemToolPrompting): string {
  const until = removes === 'never' ? '. ' : ', until they are removed. '
  const shared =
    'There are thousands of tools, and only a few of them are loaded. ' +
    (listed
      ? 'The list of tools has the definitions of those that are loaded now; you can call them. '
      : 'The result of a search shows the definitions of tools that were loaded by it; ' +
        `you can call them from then on, in this turn and in later ones${until}`)
  return `You are an assistant that answers by calling tools. ${shared}${workOf(mode, removes)} Answer in few words.`
}

function workOf(mode: MemToolMode, removes: NonNullable<MemToolPrompting['removes']>): string {
  if (mode === 'workflow') {
    const done = removes === 'never' ? 'Searching is done' : 'Searching and removing is done'
    return `${done} for you before every request. Call the tools that you see, and say so when they do not suffice.`
  }
  const again =
    'all keywords in one call. Search again with other words where nothing fits, and say so when it cannot be answered.'
  if (mode === 'autonomous' && removes === 'model')
    return (
      'When a request comes for which the loaded tools will not do, first remove with remove_tools those that it does not need, at the latest when two ' +
      `more requests have not used them; then load what is missing with search_tools, ${again}`
    )
  const removed = removes === 'never' ? '' : 'Tools that are no longer needed are removed for you before every request. '
  return `${removed}Load what is missing with search_tools, ${again}`
}

/** A question asked on a fork of the conversation, and the JSON schema of its answer. */
interface AsideQuestion {
  readonly prompt: string
  readonly schema: Readonly<Record<string, unknown>>
}

/** Asks which tools to remove. `over`: the smallest number that must go; 0 asks only which tools are not needed. */
const pruneQuestion = (names: readonly string[], request: string, over: number): AsideQuestion => ({
  prompt:
    `Do not answer the request below yet. These tools are loaded: ${names.join(', ')}.\n` +
    (over > 0 ? `At least ${over} of them must go to make room for others. ` : '') +
    `Which of them are not directly needed for the next request? It is:\n${request}\n` +
    'Answer with JSON: {"remove": [names]}; an empty list when all are needed.',
  schema: listSchema('remove', removable(names)),
})

const searchQuestion = (names: readonly string[], request: string): AsideQuestion => ({
  prompt:
    `Do not answer the request below yet. These tools are loaded: ${names.length === 0 ? 'none' : names.join(', ')}.\n` +
    `Which others does the next request need? It is:\n${request}\n` +
    'Answer with JSON: {"keywords": [one string of a few words for each tool: what it does, and for whom or what]}; an empty list when the loaded ones suffice.',
  schema: listSchema('keywords', { type: 'string' }),
})

const listSchema = (key: string, items: unknown): AsideQuestion['schema'] => ({
  type: 'object',
  properties: { [key]: { type: 'array', items } },
  required: [key],
  additionalProperties: false,
})

/** Returns the list of strings in an answer; null when the answer has none. Engines that do not enforce a schema may answer anything. */
function listIn(said: string): readonly string[] | null {
  const json = said.slice(said.indexOf('{'), said.lastIndexOf('}') + 1)
  try {
    const value: unknown = JSON.parse(json)
    const [list] = Object.values(value as Record<string, unknown>)
    return Array.isArray(list) && list.every((item): item is string => typeof item === 'string') ? list : null
  } catch {
    return null
  }
}

export interface AsidesOptions {
  readonly engine: Engine
  readonly conversation: Conversation
  readonly mode: MemToolMode
  readonly memory: ToolMemory
  readonly late: LateDefinitions | null
  /** The tool definitions that the conversation's requests carry. */
  readonly definitions: () => readonly ToolDefinition[]
  /** Whether the model removes tools. False when a rule removes them, or nothing does. Default true. */
  readonly removes?: boolean
  readonly generation?: GenerationOptions
  readonly scope?: RequestScope
  /** Called with the ledger entries of each aside, as soon as it is answered. */
  readonly onSpent?: (entries: readonly LedgerEntry[]) => void
}

/** The result of a search that found nothing. */
const NONE: SearchedTools = { added: [], known: [], nothing: [] }

/** The longest answer to an aside, in tokens. */
const LONGEST_ASIDE = 2048

/**
 * Asks questions on forks of the conversation. A fork computes only its new tokens, and is forgotten afterwards. A fork leaves out the
 * user's request when the conversation ends with it, because the question repeats it.
 */
export class MemToolAsides {
  /** Ledger entries since the last call of `begin`, that is, of this turn. */
  spent: LedgerEntry[] = []
  #request = ''

  constructor(
    private readonly options: AsidesOptions,
    /** How many asides were asked so far. The forks' ids contain this number. */
    public asked = 0,
  ) {}

  /** What calls of `search_tools` and `remove_tools` work on: the tool memory, the late definitions, and the way to make room. */
  get managed(): ManagedTools {
    const { memory, late, mode, removes = true } = this.options
    const makeRoom = (found: SearchedTools, signal?: AbortSignal) => this.#makeRoom(found, signal)
    return { memory, late, ...(removes && mode !== 'autonomous' ? { makeRoom } : {}) }
  }

  /** Begins a turn with the user's new request. */
  begin(request: string): void {
    this.#request = request
    this.spent = []
    this.options.memory.beginTurn()
  }

  /** Adds ledger entries to the turn's (`spent`), and passes them to `onSpent`. */
  account(entries: readonly LedgerEntry[]): void {
    this.spent.push(...entries)
    this.options.onSpent?.(entries)
  }

  /**
   * Asks which tools the request does not need, and removes those. Does nothing in autonomous mode, or when the model does not remove
   * tools. @throws KvfoldError what the engine throws
   */
  async prune(signal?: AbortSignal): Promise<void> {
    if (this.options.mode !== 'autonomous' && this.options.removes !== false)
      await this.#prune(this.options.memory.over(NONE) ?? 0, signal)
  }

  /** Asks for the keywords to search with. Returns an empty list in any mode but workflow. @throws KvfoldError what the engine throws */
  async keywords(signal?: AbortSignal): Promise<readonly string[]> {
    if (this.options.mode !== 'workflow') return []
    return this.#aside(searchQuestion(this.#names, this.#request), signal)
  }

  /** Searches the catalogue. Adds a `search_tools` call and its result to the conversation, as if the model had called it. */
  async search(keywords: readonly string[], signal?: AbortSignal): Promise<void> {
    if (keywords.length === 0) return
    const { conversation } = this.options
    const call: ToolCall = { id: `search_${this.asked}`, name: SEARCH_TOOLS, arguments: { keywords } }
    const { text } = await searchFor(this.managed, keywords, signal)
    conversation.add({ role: 'assistant', content: '', toolCalls: [call] })
    conversation.add({ role: 'tool', content: text, toolCallId: call.id, name: call.name })
  }

  get #names(): readonly string[] {
    return this.options.memory.names
  }

  /** Asks which tools to remove until the found tools fit, or until the model removes none (MemTool, algorithms 2 and 3). */
  async #makeRoom(found: SearchedTools, signal?: AbortSignal): Promise<void> {
    const { memory } = this.options
    for (let before = Infinity; memory.size < before;) {
      before = memory.size
      const over = memory.over(memory.sorted(found))
      if (over !== null && over > 0) await this.#prune(over, signal)
    }
  }

  async #prune(over: number, signal?: AbortSignal): Promise<void> {
    const names = this.#names
    if (names.length > 0) removeTools(this.managed, await this.#aside(pruneQuestion(names, this.#request, over), signal))
  }

  /** Asks a question on a fork. @returns the strings that the answer lists; an empty list when it has no list */
  async #aside({ prompt, schema }: AsideQuestion, signal?: AbortSignal): Promise<readonly string[]> {
    const { engine, conversation, generation, scope, definitions } = this.options
    const messages = settled(conversation.messages)
    const fork = conversationId(`${conversation.id}/aside-${++this.asked}`)
    const edits = conversation.edits().filter(({ message }) => message < messages.length)
    try {
      const { reply } = engine.respond({
        ...generation,
        ...scope,
        conversation: fork,
        parent: conversation.id,
        messages: [...messages, { role: 'user', content: prompt }],
        ...(edits.length === 0 ? {} : { edits }),
        tools: definitions(),
        toolChoice: 'none',
        schema,
        maxTokens: LONGEST_ASIDE,
        kind: 'summary',
        ...(signal === undefined ? {} : { signal }),
      })
      const { message, finish, ledger } = await reply
      this.account([ledger])
      if (finish === 'cancelled') throw new KvfoldError('engine/cancelled', 'The turn was cancelled.')
      return listIn(message.content) ?? []
    } finally {
      engine.forget(fork)
    }
  }
}

/**
 * Returns the messages without the request at the end. Also leaves out a last step that lacks tool results, because chat templates refuse
 * it.
 */
function settled(all: readonly ChatMessage[]): readonly ChatMessage[] {
  const messages = all.at(-1)?.role === 'user' ? all.slice(0, -1) : all
  const last = messages.findLastIndex(({ role }) => role === 'assistant')
  const results = messages.length - 1 - last
  return results < (messages[last]?.toolCalls?.length ?? 0) ? messages.slice(0, last) : messages
}
