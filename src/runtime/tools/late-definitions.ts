/** Owns definitions that stand in the conversation instead of the list at its top: how they are written, folded away, and shown again. */
import { pythonJson } from '../chat/conversation.js'
import type { ToolDefinition } from '../chat/message.js'
import type { Conversation } from '../context/conversation.js'
import type { Stretch } from '../context/stretch.js'
import type { Contract } from '../core/contract.js'
import { span } from '../core/span.js'
import { readJson } from '../core/written-json.js'

export interface LateOptions {
  /** What folding them away asks of the cache. Default: what steps do anyway. */
  readonly contract?: Contract
  /**
   * Whether a tool that is loaded again is shown where it stood, or once more at the end. Where its cells are kept without those before them
   * having to be the same (`splice`) the first costs nothing; under `exact` all that follows would be computed again.
   */
  readonly restores: boolean
}

/** A definition as templates write it in their list, without the wrapping that is the same for all. */
export const lineOf = ({ name, description, parameters }: ToolDefinition): string => pythonJson({ name, description, parameters })

/** The definition that a line is (`lineOf`); null: it is none. */
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

  /** Folds them away, each behind a marker that says so. Those that cannot be hidden (they share a token) stay in sight; they are not loaded either way. */
  hide(tools: readonly ToolDefinition[]): void {
    const called = new Set(this.conversation.messages.flatMap(({ toolCalls = [] }) => toolCalls.map(({ name }) => name)))
    const places = tools.flatMap((tool) => {
      const place = this.#placeOf(tool)
      // Where it was called the conversation speaks of it still, and says that it is gone.
      const marker = called.has(tool.name) ? `(${tool.name} removed)` : '(removed)'
      return place === null ? [] : [{ ...place, marker }]
    })
    if (places.length === 0) return
    places.sort((one, other) => one.message - other.message || one.span.start - other.span.start)
    const { contract } = this.options
    if (this.conversation.replace(places, contract).ok) return
    for (const place of places) this.conversation.replace([place], contract)
  }

  /** Shows them again where they stood. @returns those that have to be shown anew */
  show(tools: readonly ToolDefinition[]): readonly ToolDefinition[] {
    if (!this.options.restores) return tools
    return tools.filter((tool) => {
      const place = this.#placeOf(tool)
      const fragment = this.conversation.fragments.find(
        ({ message, span: { start, end } }) => message === place?.message && start <= place.span.start && place.span.end <= end,
      )
      return fragment === undefined || !this.conversation.restore(fragment.id).ok
    })
  }

  /** Where it was shown last; null when it never was. */
  #placeOf(tool: ToolDefinition): Stretch | null {
    const { messages } = this.conversation
    const line = lineOf(tool)
    for (let message = messages.length - 1; message >= 0; message--) {
      const { role, content } = messages[message]!
      const start = role === 'tool' ? content.lastIndexOf(line) : -1
      if (start >= 0) return { message, span: span(start, start + line.length) }
    }
    return null
  }
}
