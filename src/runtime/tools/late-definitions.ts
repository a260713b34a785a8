/**
 * Late definitions: tool definitions that search results show, in place of the list at the top of the prompt. This file writes, folds and
 * restores them.
 */
import { pythonJson } from '../chat/conversation.js'
import type { ToolDefinition } from '../chat/message.js'
import type { Conversation } from '../context/conversation.js'
import type { Stretch } from '../context/stretch.js'
import type { Contract } from '../core/contract.js'
import { contains, span } from '../core/span.js'
import { readJson } from '../core/written-json.js'

export interface LateOptions {
  /** The cache contract for folding a definition. Default: the contract of the step. */
  readonly contract?: Contract
  /**
   * Whether a tool that is loaded again gets its old definition restored. If false, the new search result shows the definition once more.
   * Under `splice` a restore costs nothing, because it keeps the cells after the definition. Under `exact` they would be recomputed.
   */
  readonly restores: boolean
}

/** Writes a definition as chat templates do in their list, without the wrapping that all definitions share. */
export const lineOf = ({ name, description, parameters }: ToolDefinition): string => pythonJson({ name, description, parameters })

/**
 * The two markers of a removed tool. The second names the tool; it is for tools that were called, because the conversation still mentions
 * those.
 */
const markersOf = ({ name }: ToolDefinition) => ['(removed)', `(${name} removed)`] as const

/** Parses a definition that `lineOf` wrote. Returns null when the line is not a definition. */
export function definitionIn(line: string): ToolDefinition | null {
  if (!line.startsWith('{"name"')) return null
  try {
    const { name, description, parameters } = readJson(line) as Record<string, unknown>
    const isOne =
      typeof name === 'string' && typeof description === 'string' && typeof parameters === 'object' && parameters !== null
    return isOne ? { name, description, parameters: parameters as ToolDefinition['parameters'] } : null
  } catch {
    return null
  }
}

export class LateDefinitions {
  constructor(
    private readonly conversation: Conversation,
    private readonly options: LateOptions,
  ) {}

  /**
   * Folds the definitions of removed tools, each behind a marker that says so. A definition that shares a token with another fold may stay
   * visible; its tool counts as removed all the same.
   */
  hide(tools: readonly ToolDefinition[]): void {
    const called = new Set(this.conversation.messages.flatMap(({ toolCalls = [] }) => toolCalls.map(({ name }) => name)))
    const places = tools.flatMap((tool) => {
      const place = this.#placeOf(tool)
      const marker = markersOf(tool)[called.has(tool.name) ? 1 : 0]
      return place === null ? [] : [{ ...place, marker }]
    })
    if (places.length === 0) return
    places.sort((one, other) => one.message - other.message || one.span.start - other.span.start)
    const { contract } = this.options
    if (this.conversation.replace(places, contract).ok) return
    for (const place of places) this.conversation.replace([place], contract)
  }

  /**
   * Restores definitions that `hide` folded, and no other folds. @returns the tools whose definitions could not be restored, which the new
   * search result must show
   */
  show(tools: readonly ToolDefinition[]): readonly ToolDefinition[] {
    if (!this.options.restores) return tools
    return tools.filter((tool) => {
      const place = this.#placeOf(tool)
      const fragment = this.conversation.fragments.find(
        ({ message, span: chars, state }) =>
          message === place?.message &&
          contains(chars, place.span) &&
          state.kind === 'folded' &&
          markersOf(tool).some((marker) => marker === state.marker?.trimEnd()),
      )
      return fragment === undefined || !this.conversation.restore(fragment.id).ok
    })
  }

  /** Returns where the definition was shown last, or null. Messages that are hidden as a whole do not count. */
  #placeOf(tool: ToolDefinition): Stretch | null {
    const { messages, omitted } = this.conversation
    const line = lineOf(tool)
    for (let message = messages.length - 1; message >= 0; message--) {
      const { role, content } = messages[message]!
      const start = role === 'tool' && !omitted.has(message) ? content.lastIndexOf(line) : -1
      if (start >= 0) return { message, span: span(start, start + line.length) }
    }
    return null
  }
}
