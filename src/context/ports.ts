/** Owns the wiring of a conversation to the engine that shows it. */
import type { ChatMessage, ToolDefinition } from '../chat/message.js'
import type { ConversationId } from '../core/ids.js'
import type { Engine } from '../engine/engine.js'
import type { ConversationPorts } from './conversation.js'
import { noted } from './size-note.js'
import { summarizeWith } from './summary.js'

/** Token borders and summaries from `engine`. `tools`: the definitions that every request of the conversation carries. */
export function portsOf(engine: Engine, id: ConversationId, tools: readonly ToolDefinition[] = []): ConversationPorts {
  return {
    snap: (messages, message, chars) =>
      engine.snap(noted(messages.slice(0, settledBefore(messages, message)), tools), tools, message, chars),
    summarize: summarizeWith(engine, id),
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
