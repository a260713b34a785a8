/** The tools `search_tools` and `remove_tools`: their definitions for the model, and the functions that carry out their calls. */
import Type from 'typebox'
import type { ToolDefinition } from '../chat/message.js'
import { strict } from '../core/schema.js'
import { listed, quoted, refuse } from '../context/refusal.js'
import { type ContextTool, defineTool } from '../context/tools.js'
import type { Conversation } from '../context/conversation.js'
import { definitionIn, type LateDefinitions, lineOf } from './late-definitions.js'
import type { SearchedTools, ToolMemory } from './tool-memory.js'

export const SEARCH_TOOLS = 'search_tools'
export const REMOVE_TOOLS = 'remove_tools'

/** The most keywords in one search. */
const MOST = 32

/** As a name in a `remove_tools` call, this word stands for all loaded tools. */
const ALL = 'all'

/** Makes the JSON schema of one name in a `remove_tools` call. */
export const removable = (names: readonly string[]) => ({ enum: [...names, ALL] })

export interface ManagedTools {
  readonly memory: ToolMemory
  /** Null when the list at the top of the prompt has the definitions of loaded tools. */
  readonly late: LateDefinitions | null
  /**
   * Removes tools that are not needed. Called when the found tools would exceed a limit, before the search is refused. Default: nothing is
   * removed.
   */
  readonly makeRoom?: (found: SearchedTools, signal?: AbortSignal) => Promise<void>
}

/**
 * Makes `search_tools` and `remove_tools`. A search never finds these two, and they cannot be removed. `listed`: whether the list at the
 * top of the prompt has the definitions of loaded tools. Default false: search results show them.
 */
export function managementTools(
  managed: () => ManagedTools,
  listed = false,
): { readonly search: ContextTool; readonly remove: ContextTool } {
  const shown = listed ? 'The list of tools then has their definitions.' : 'The result shows the definitions that were added.'
  const search = defineTool({
    name: SEARCH_TOOLS,
    description:
      'Finds tools and loads them, so that you can call them from then on. Give one keyword for each tool you want: what it does, and for whom or ' +
      `what. ${shown} Tools stay loaded until they are removed.`,
    arguments: strict({
      keywords: Type.Array(Type.String(), {
        minItems: 1,
        maxItems: MOST,
        description: 'What to look for, one string of a few words for each tool, such as "weather forecast for a city".',
      }),
    }),
    async run(_, { keywords }, signal) {
      const result = await searchFor(managed(), keywords, signal)
      return result.loaded ? { text: result.text, modifies: true } : refuse('tool/refused', result.text)
    },
  })
  const remove = defineTool({
    name: REMOVE_TOOLS,
    description:
      'Removes loaded tools that you no longer need, so that there is room for others. They can be found again with search_tools.',
    arguments: strict({
      tool_names: Type.Array(Type.String(), {
        minItems: 1,
        description: 'The names of loaded tools, written exactly as in their definitions; "all" removes all of them.',
      }),
    }),
    run: (_, { tool_names: names }) => ({ text: removeTools(managed(), names), modifies: true }),
  })
  return { search, remove }
}

/**
 * Returns `remove_tools` with its names limited to loaded tools. Returns an empty list when no tool is loaded, because no call could
 * succeed.
 */
export function heldRemoval(definition: ToolDefinition, { names }: ToolMemory): readonly ToolDefinition[] {
  if (names.length === 0) return []
  const list = { type: 'array', minItems: 1, items: removable(names) }
  const parameters = { type: 'object', properties: { tool_names: list }, required: ['tool_names'], additionalProperties: false }
  return [{ ...definition, parameters }]
}

/**
 * Loads the tools that the keywords find, and returns the result text for the model. If the tools would exceed a limit, it loads none and
 * the text says so. A keyword with commas counts as several keywords.
 * @throws KvfoldError what the embedder and `makeRoom` throw
 */
export async function searchFor(
  { memory, late, makeRoom }: ManagedTools,
  keywords: readonly string[],
  signal?: AbortSignal,
): Promise<{ readonly loaded: boolean; readonly text: string }> {
  const before = await memory.find(keywords.flatMap(apart), signal)
  if (memory.excess(before.added) !== null) await makeRoom?.(before, signal)
  // `makeRoom` may have removed tools that the search found already loaded. Those must be loaded again.
  const found = memory.sorted(before)
  const excess = memory.excess(found.added)
  if (excess !== null) {
    memory.refused()
    return { loaded: false, text: excess }
  }
  memory.load(found)
  return { loaded: true, text: shown(found, memory, late) }
}

/** The number or letter before a list item, such as `(a) ` or `2. `. */
const ITEM = /^(?:\((?:[a-z]|\d{1,2})\)|[a-z]\)|\d{1,2}[.)])\s+/iu

/**
 * Splits a keyword at commas and semicolons, and drops list numbers and letters. Returns the keyword unchanged when nothing would be left.
 */
function apart(keyword: string): readonly string[] {
  const several = keyword.split(/[,;]\s/u).flatMap((each) => each.trim().replace(ITEM, '') || [])
  return several.length === 0 ? [keyword] : several
}

/** Removes the named tools, or all of them, and returns the result text for the model. `search_tools` and `remove_tools` stay. */
export function removeTools({ memory, late }: ManagedTools, named: readonly string[]): string {
  const all = named.includes(ALL) && !memory.has(ALL)
  const names = all ? memory.names : named
  const fixed: readonly string[] = names.filter((name) => name === SEARCH_TOOLS || name === REMOVE_TOOLS)
  const { removed, unknown } = memory.remove(names.filter((name) => name !== SEARCH_TOOLS && name !== REMOVE_TOOLS))
  late?.hide(removed)
  const list = all || removed.length === 0 ? '' : `: ${namesOf(removed)}`
  const said = [`${counted(removed.length)} removed${list}. ${standing(memory)}`]
  if (unknown.length > 0) said.push(`Not loaded: ${listed(unknown.map((name) => quoted(name, 60)))}.`)
  if (fixed.length > 0) said.push(`${listed(fixed)} cannot be removed.`)
  return said.join(' ')
}

/** Says how many tools are loaded. Search results and the note on a user's message contain this sentence. */
export const standing = ({ size, limits }: ToolMemory): string => `${size} of at most ${limits.tools} tools loaded.`

function shown({ added, known, nothing }: SearchedTools, memory: ToolMemory, late: LateDefinitions | null): string {
  const anew = late === null ? [] : late.show(added)
  const again = late === null ? [] : added.filter((tool) => !anew.includes(tool))
  // A shown definition contains its tool's name. Without definitions, the result lists the names.
  const names = late === null && added.length > 0 ? `: ${namesOf(added)}` : ''
  const lines = [`${counted(added.length)} added${names}. ${standing(memory)}`]
  if (again.length > 0) lines.push(`Shown above again: ${namesOf(again)}.`)
  if (known.length > 0) lines.push(`Loaded before: ${namesOf(known)}.`)
  if (nothing.length > 0) lines.push(`Nothing found for ${listed(nothing.map((keyword) => quoted(keyword, 60)))}.`)
  return [...lines, ...anew.map(lineOf)].join('\n')
}

/** Lists the tools that searches in a conversation found, in the order found. A tool counts as loaded if its definition is visible now. */
export function toolsFoundIn(
  conversation: Pick<Conversation, 'messages' | 'shownAll'>,
): readonly { readonly name: string; readonly loaded: boolean }[] {
  const namesIn = (text: string) => text.split('\n').flatMap((line) => definitionIn(line)?.name ?? [])
  const found = new Map<string, boolean>()
  const contents = conversation.shownAll()
  conversation.messages.forEach(({ role, name, content }, message) => {
    if (role !== 'tool' || name !== SEARCH_TOOLS) return
    const shown = new Set(namesIn(contents[message]!))
    for (const tool of namesIn(content)) found.set(tool, shown.has(tool) || found.get(tool) === true)
  })
  return [...found].map(([name, loaded]) => ({ name, loaded }))
}

const counted = (count: number): string => (count === 1 ? '1 tool' : `${count} tools`)
const namesOf = (tools: readonly ToolDefinition[]): string => tools.map(({ name }) => name).join(', ')
