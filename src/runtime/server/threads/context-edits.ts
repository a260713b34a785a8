/**
 * Owns clearing old tool results as a client asks for it: from when on, which stay, and how much it must bring (Anthropic's
 * `clear_tool_uses_20250919`).
 */
import type { ChatMessage, ToolDefinition } from '../../chat/message.js'
import { Conversation } from '../../context/conversation.js'
import { portsOf } from '../../context/ports.js'
import type { Engine } from '../../engine/engine.js'
import { freshConversation } from '../../core/ids.js'
import { type Folded, foldUntil, isHopeless, type PolicyContext, resultsOf, shownBy } from './policies.js'

export interface ClearToolUses {
  /** What must be passed before anything is cleared. */
  readonly trigger: { readonly kind: 'input-tokens' | 'tool-uses'; readonly value: number }
  /** The newest results, which stay. */
  readonly keep: number
  /** Tokens that clearing must save; less is not worth the cache. */
  readonly clearAtLeast: number
  /** Names of tools whose results stay. */
  readonly excludeTools: readonly string[]
}

/** What of the prompt is cleared, by this request and by those before it: folds stay in force. */
export interface Cleared {
  readonly toolUses: number
  /** Tokens that the prompt would have more. */
  readonly inputTokens: number
}

/**
 * Folds all results that may go, once the trigger is passed by what is shown; null when it is not, or they would save too little. So results go
 * in batches, and between two of them the prompt only grows.
 */
export function clearToolUses(
  context: PolicyContext,
  { trigger, keep, clearAtLeast, excludeTools }: ClearToolUses,
): Folded | null {
  const { conversation } = context
  if (isHopeless(context)) return null
  const open = toolResults(context).filter(({ cleared }) => !cleared)
  const before = shownBy(context)
  if ((trigger.kind === 'tool-uses' ? open.length : before) <= trigger.value) return null
  const kept = new Set(keep === 0 ? [] : open.slice(-keep).map(({ message }) => message))
  const excluded = new Set(excludeTools)
  const chosen = resultsOf(context).filter(
    ({ message }) => !kept.has(message) && !excluded.has(conversation.messages[message]?.name ?? ''),
  )
  return foldUntil(
    context,
    chosen,
    before,
    () => false,
    () => clearAtLeast,
  )
}

/** What is cleared now. */
export function clearedIn(context: PolicyContext): Cleared {
  const { engine, conversation, tools } = context
  const messages = new Set(toolResults(context).flatMap(({ message, cleared }) => (cleared ? [message] : [])))
  if (messages.size === 0) return { toolUses: 0, inputTokens: 0 }
  const rest = conversation.edits().filter(({ message }) => !messages.has(message))
  return { toolUses: messages.size, inputTokens: engine.count(conversation.messages, tools, rest) - shownBy(context) }
}

/** Tokens of a prompt that no thread has, once it is cleared. */
export function countCleared(
  engine: Engine,
  messages: readonly ChatMessage[],
  tools: readonly ToolDefinition[],
  clear: ClearToolUses,
): number {
  const id = freshConversation()
  const conversation = new Conversation(id, portsOf(engine, id, tools))
  for (const message of messages) conversation.add(message)
  const context = { engine, conversation, tools }
  clearToolUses(context, clear)
  return shownBy(context)
}

/** All results, oldest first, and whether nothing of their text is shown. */
function toolResults({ conversation }: PolicyContext): readonly { readonly message: number; readonly cleared: boolean }[] {
  const hidden = new Map<number, number>()
  for (const { message, span } of conversation.edits()) hidden.set(message, (hidden.get(message) ?? 0) + span.end - span.start)
  return conversation.messages.flatMap(({ role, content }, message) =>
    role === 'tool' ? [{ message, cleared: content !== '' && hidden.get(message) === content.length }] : [],
  )
}
