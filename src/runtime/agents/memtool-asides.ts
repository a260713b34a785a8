/** Owns what the memtool agent is told, by its mode, and the questions that it asks beside a conversation: what to remove before a request, what to search for, and what to give up for a search. */
import type { ChatMessage, ToolCall, ToolDefinition } from '../chat/message.js'
import type { Conversation } from '../context/conversation.js'
import { KvfoldError } from '../core/errors.js'
import { conversationId } from '../core/ids.js'
import type { Engine } from '../engine/engine.js'
import type { LedgerEntry } from '../kv/ledger.js'
import type { LateDefinitions } from '../tools/late-definitions.js'
import { type ManagedTools, removable, removeTools, SEARCH_TOOLS, searchFor } from '../tools/management.js'
import type { SearchedTools, ToolMemory } from '../tools/tool-memory.js'
import type { TurnOptions } from './tool-loop.js'

// What the memtool agent is told: by its mode, and when it is asked aside what to remove and what to search for; and reading those answers.

/**
 * `autonomous`: the model searches and removes by tools. `workflow`: before each turn it is asked aside what to remove and what to search for, and then
 * has neither tool. `hybrid`: it is asked aside what to remove, and searches by a tool.
 */
export const memToolModes = ['autonomous', 'workflow', 'hybrid'] as const
export type MemToolMode = (typeof memToolModes)[number]

const SHARED =
  'There are thousands of tools, and only a few of them are loaded. The result of a search shows the definitions of tools that were loaded by it; ' +
  'you can call them from then on, in this turn and in later ones, until they are removed. '

/** To the effect of the paper's (MemTool, figures 5 to 7), in words of ours and without the number of tools, which would change the beginning of every prompt. */
export const memToolPrompts: Readonly<Record<MemToolMode, string>> = {
  autonomous:
    `You are an assistant that answers by calling tools. ${SHARED}` +
    'When a request comes for which the loaded tools will not do, first remove with remove_tools those that it does not need, at the latest when two ' +
    'more requests have not used them; then load what is missing with search_tools, all keywords in one call. Search again with other words where ' +
    'nothing fits, and say so when it cannot be answered. Answer in few words.',
  workflow:
    `You are an assistant that answers by calling tools. ${SHARED}` +
    'Searching and removing is done for you before every request. Call the tools that you see, and say so when they do not suffice. Answer in few words.',
  hybrid:
    `You are an assistant that answers by calling tools. ${SHARED}` +
    'Tools that are no longer needed are removed for you before every request. Load what is missing with search_tools, all keywords in one call. ' +
    'Search again with other words where nothing fits, and say so when it cannot be answered. Answer in few words.',
}

/** A question beside the conversation, and the form of its answer. */
interface AsideQuestion {
  readonly prompt: string
  readonly schema: Readonly<Record<string, unknown>>
}

/** @param room tools that the loaded ones have to make room for; 0 when it is only about what is of no more use */
const pruneQuestion = (names: readonly string[], request: string, room: number): AsideQuestion => ({
  prompt:
    `Do not answer the request below yet. These tools are loaded: ${names.join(', ')}.\n` +
    (room > 0 ? `At least ${room} of them must go to make room for others. ` : '') +
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

/** The list in an answer to a question aside; null where there is none, as of engines that hold nothing to a schema. */
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
  /** Of the requests of the conversation. */
  readonly definitions: () => readonly ToolDefinition[]
  /** False: somebody else removes. Default true. */
  readonly removes?: boolean
  readonly generation?: TurnOptions['generation']
  /** Told what was spent as it is. */
  readonly onSpent?: (entries: readonly LedgerEntry[]) => void
}

/** Tokens that an answer aside may take. */
const LONGEST_ASIDE = 2048

/**
 * Each is asked on a fork of the conversation, which costs what is new in it and leaves no trace. A request that stands in the conversation already is no
 * part of what the fork begins with: the question has it.
 */
export class MemToolAsides {
  /** Entries of the ledger since `begin`. */
  spent: LedgerEntry[] = []
  #request = ''

  constructor(
    private readonly options: AsidesOptions,
    /** Questions asked so far, for names of forks. */
    public asked = 0,
  ) {}

  /** What calls of the managing tools work on. */
  get managed(): ManagedTools {
    const { memory, late, mode, removes = true } = this.options
    const makeRoom = async (found: SearchedTools, signal?: AbortSignal) => this.#prune(found.added.length, signal)
    return { memory, late, ...(removes && mode !== 'autonomous' ? { makeRoom } : {}) }
  }

  /** A new request comes. */
  begin(request: string): void {
    this.#request = request
    this.spent = []
    this.options.memory.beginTurn()
  }

  /** Enters what was spent before the turn. */
  account(entries: readonly LedgerEntry[]): void {
    this.spent.push(...entries)
    this.options.onSpent?.(entries)
  }

  /** Removes what the request does not need, where the mode asks for that. @throws KvfoldError what the engine throws */
  async prune(signal?: AbortSignal): Promise<void> {
    if (this.options.mode !== 'autonomous' && this.options.removes !== false) await this.#prune(0, signal)
  }

  /** What to search for, where the mode asks for that. @throws KvfoldError what the engine throws */
  async keywords(signal?: AbortSignal): Promise<readonly string[]> {
    if (this.options.mode !== 'workflow') return []
    return this.#aside(searchQuestion(this.#names, this.#request), signal)
  }

  /** A search that was asked for aside stands in the conversation as any other. */
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

  async #prune(room: number, signal?: AbortSignal): Promise<void> {
    const names = this.#names
    const over = Math.max(0, names.length + room - this.options.memory.limits.tools)
    if (names.length > 0) removeTools(this.managed, await this.#aside(pruneQuestion(names, this.#request, over), signal))
  }

  /** @returns an empty list for an answer that is none */
  async #aside({ prompt, schema }: AsideQuestion, signal?: AbortSignal): Promise<readonly string[]> {
    const { engine, conversation, generation = {}, definitions } = this.options
    const messages = settled(conversation.messages)
    const fork = conversationId(`${conversation.id}/aside-${++this.asked}`)
    const edits = conversation.edits().filter(({ message }) => message < messages.length)
    try {
      const { reply } = engine.respond({
        ...generation,
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

/** Without the request that the question is about, and without a step whose calls are not all answered yet: templates refuse it. */
function settled(all: readonly ChatMessage[]): readonly ChatMessage[] {
  const messages = all.at(-1)?.role === 'user' ? all.slice(0, -1) : all
  const last = messages.findLastIndex(({ role }) => role === 'assistant')
  const results = messages.length - 1 - last
  return results < (messages[last]?.toolCalls?.length ?? 0) ? messages.slice(0, last) : messages
}
