/**
 * Shows tool definitions in the conversation instead of in the list at the top of the prompt. It formats them, folds them away, and shows
 * them again.
 */
import { pythonJson } from '../chat/conversation.js'
import type { ToolDefinition } from '../chat/message.js'
import type { Conversation } from '../context/conversation.js'
import type { Stretch } from '../context/stretch.js'
import type { Contract } from '../core/contract.js'
import { contains, span } from '../core/span.js'
import { readJson } from '../core/written-json.js'

export interface LateOptions {
  /** The contract under which definitions are folded away. Default: the contract of the step. */
  readonly contract?: Contract
  /**
   * Whether a tool that is loaded again is restored at its old place instead of being shown anew at the end. Under `splice` the restore
   * costs nothing, because cells are kept although the text before them changed. Under `exact` all text after it would be computed again.
   */
  readonly restores: boolean
}

/** Formats a definition as templates do in their list, without the wrapping that all definitions share. */
export const lineOf = ({ name, description, parameters }: ToolDefinition): string => pythonJson({ name, description, parameters })

/** The markers of a removed tool. The second is for a tool that was called: the conversation still mentions it, so the marker names it. */
const markersOf = ({ name }: ToolDefinition) => ['(removed)', `(${name} removed)`] as const

/** Parses a line made by `lineOf`. Returns null when the line is not a definition. */
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
   * Folds the definitions away. Each gets a marker that says that the tool was removed. A definition that shares a token with another may
   * stay visible; the tool counts as removed either way.
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
   * Restores the definitions that `hide` folded, at their old places. Leaves every other fold as it is. @returns the tools that could not be
   * restored and must be shown anew
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
