/** Builds the ports of a conversation (token borders, counts, summaries) from an engine. */
import type { ChatMessage, Edit, ToolDefinition } from '../chat/message.js'
import type { ConversationId } from '../core/ids.js'
import { KvfoldError } from '../core/errors.js'
import type { Engine, RequestScope } from '../engine/engine.js'
import type { ConversationPorts } from './conversation.js'
import { noted } from './size-note.js'
import { summarizeWith } from './summary.js'

/**
 * Makes a conversation's ports from `engine`. Pass the same `tools` and `scope` as in the conversation's requests, so that counts and
 * borders fit their prompts.
 */
export function portsOf(
  engine: Engine,
  id: ConversationId,
  tools: readonly ToolDefinition[] = [],
  scope: RequestScope = {},
): ConversationPorts {
  const { variables } = scope
  const counts = new Counts()
  return {
    snap: (messages, message, chars) =>
      engine.snap(noted(messages.slice(0, settledBefore(messages, message)), tools), tools, message, chars, variables),
    summarize: summarizeWith(engine, id, scope),
    estimates: engine.estimates ?? false,
    count: (messages, message, edits) => {
      const settled = settledBefore(messages, message)
      const shown = edits.filter((edit) => edit.message < settled)
      try {
        // Tool definitions and size notes are not counted: they are the same before and after a fold, and not always known here.
        const counted = messages.slice(0, settled)
        const count = () => engine.count(counted, [], shown, variables)
        // An engine's estimates improve with time. A kept estimate and a new one could not be compared, so estimates are not kept.
        return engine.estimates === true ? count() : counts.of(counted, shown, count)
      } catch (error) {
        // Some chat templates refuse a conversation whose last step lacks tool results.
        if (error instanceof KvfoldError && error.code.startsWith('chat/')) return null
        throw error
      }
    },
  }
}

/**
 * Keeps the last two token counts. A fold needs the count before it and after it; the count after one fold is the count before the next.
 * So each further fold renders the conversation only once.
 */
class Counts {
  #last: readonly { readonly messages: readonly ChatMessage[]; readonly edits: readonly Edit[]; readonly tokens: number }[] = []

  of(messages: readonly ChatMessage[], edits: readonly Edit[], count: () => number): number {
    const known = this.#last.find(
      (one) => isSame(one.messages, messages, (a, b) => a === b) && isSame(one.edits, edits, showsSame),
    )
    const tokens = known?.tokens ?? count()
    // Two, because a refused fold leaves the earlier count as the current one.
    this.#last = [{ messages, edits, tokens }, ...this.#last.filter((one) => one !== known).slice(0, 1)]
    return tokens
  }
}

const isSame = <T>(a: readonly T[], b: readonly T[], same: (a: T, b: T) => boolean): boolean =>
  a.length === b.length && a.every((one, at) => same(one, b[at]!))

const showsSame = (a: Edit, b: Edit): boolean =>
  a.message === b.message &&
  a.span.start === b.span.start &&
  a.span.end === b.span.end &&
  a.replacement === b.replacement &&
  JSON.stringify(a.omits) === JSON.stringify(b.omits)

/** Returns the messages that `snap` and `count` render for a message before the last step. */
export const settled = (messages: readonly ChatMessage[]): readonly ChatMessage[] => messages.slice(0, settledBefore(messages, 0))

/**
 * Returns how many messages to render so that message `message` is among them. A last step that still waits for tool results is left out,
 * because many chat templates refuse it. It stays in if `message` belongs to it.
 */
function settledBefore(messages: readonly ChatMessage[], message: number): number {
  const last = messages.findLastIndex(({ role }) => role === 'assistant')
  const calls = messages[last]?.toolCalls?.length ?? 0
  const results = messages.slice(last + 1).filter(({ role }) => role === 'tool').length
  return results < calls && message < last ? last : messages.length
}
