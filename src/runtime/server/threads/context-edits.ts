/**
 * Clears old tool results when a client asks for it: with a trigger, the results to keep, and the tokens to save (Anthropic's
 * `clear_tool_uses_20250919`).
 */
import type { ChatMessage, TemplateVariables, ToolDefinition } from '../../chat/message.js'
import { Conversation } from '../../context/conversation.js'
import { portsOf } from '../../context/ports.js'
import type { Engine } from '../../engine/engine.js'
import { freshConversation } from '../../core/ids.js'
import { type Folded, foldUntil, isHopeless, type PolicyContext, resultsOf, shownBy } from './policies.js'

export interface ClearToolUses {
  /** The limit that must be exceeded before anything is cleared. */
  readonly trigger: { readonly kind: 'input-tokens' | 'tool-uses'; readonly value: number }
  /** How many of the newest results stay. */
  readonly keep: number
  /** The fewest tokens that clearing must save; less is not worth losing the cache. */
  readonly clearAtLeast: number
  /** Names of the tools whose results stay. */
  readonly excludeTools: readonly string[]
}

/** What is cleared from the prompt, by this request and earlier ones: folds stay in force. */
export interface Cleared {
  readonly toolUses: number
  /** How many tokens longer the prompt would be. */
  readonly inputTokens: number
}

/**
 * Folds all results that may go once the prompt exceeds the trigger. Returns null when it does not, or when they would save too little.
 * Results are cleared in batches; between two batches the prompt only grows.
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

/** Returns what is cleared now. */
export function clearedIn(context: PolicyContext): Cleared {
  const { engine, conversation, tools, scope } = context
  const messages = new Set(toolResults(context).flatMap(({ message, cleared }) => (cleared ? [message] : [])))
  if (messages.size === 0) return { toolUses: 0, inputTokens: 0 }
  const rest = conversation.edits().filter(({ message }) => !messages.has(message))
  const unfolded = engine.count(conversation.messages, tools, rest, scope?.variables)
  return { toolUses: messages.size, inputTokens: unfolded - shownBy(context) }
}

/** Counts the tokens of a prompt after clearing, without a thread. */
export function countCleared(
  engine: Engine,
  messages: readonly ChatMessage[],
  tools: readonly ToolDefinition[],
  clear: ClearToolUses,
  variables: TemplateVariables,
): number {
  const id = freshConversation()
  const scope = { variables }
  const conversation = new Conversation(id, portsOf(engine, id, tools, scope))
  for (const message of messages) conversation.add(message)
  const context = { engine, conversation, tools, scope }
  clearToolUses(context, clear)
  return shownBy(context)
}

/** Returns all tool results, oldest first, and whether each is completely hidden. */
function toolResults({ conversation }: PolicyContext): readonly { readonly message: number; readonly cleared: boolean }[] {
  const hidden = new Map<number, number>()
  for (const { message, span } of conversation.edits()) hidden.set(message, (hidden.get(message) ?? 0) + span.end - span.start)
  return conversation.messages.flatMap(({ role, content }, message) =>
    role === 'tool' ? [{ message, cleared: content !== '' && hidden.get(message) === content.length }] : [],
  )
}
