/** Owns the wiring of a conversation to the engine that shows it. */
import type { ChatMessage, ToolDefinition } from '../chat/message.js'
import type { ConversationId } from '../core/ids.js'
import { KvfoldError } from '../core/errors.js'
import type { Engine } from '../engine/engine.js'
import type { ConversationPorts } from './conversation.js'
import { noted } from './size-note.js'
import { summarizeWith } from './summary.js'

/** Token borders, counts and summaries from `engine`. `tools`: the definitions that every request of the conversation carries. */
export function portsOf(engine: Engine, id: ConversationId, tools: readonly ToolDefinition[] = []): ConversationPorts {
  return {
    snap: (messages, message, chars) =>
      engine.snap(noted(messages.slice(0, settledBefore(messages, message)), tools), tools, message, chars),
    summarize: summarizeWith(engine, id),
    count: (messages, message, edits) => {
      const settled = settledBefore(messages, message)
      const shown = edits.filter((edit) => edit.message < settled)
      try {
        // Without tools and notes, which are the same either way and not always known: the price stays what it is.
        return engine.count(messages.slice(0, settled), [], shown)
      } catch (error) {
        // Some templates refuse a conversation that has not come to its next answer.
        if (error instanceof KvfoldError && error.code.startsWith('chat/')) return null
        throw error
      }
    },
  }
}

/**
 * How many messages to render in order to see `message`: not the step still running (calls whose results are not all there),
 * which many templates refuse, unless `message` is part of it.
 */
function settledBefore(messages: readonly ChatMessage[], message: number): number {
  const last = messages.findLastIndex(({ role }) => role === 'assistant')
  const calls = messages[last]?.toolCalls?.length ?? 0
  const results = messages.slice(last + 1).filter(({ role }) => role === 'tool').length
  return results < calls && message < last ? last : messages.length
}
