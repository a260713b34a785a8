/**
 * Hides old tool results, the inputs of their calls, and old reasoning when a request asks for it (Anthropic's `clear_tool_uses_20250919`
 * and `clear_thinking_20251015`).
 */
import type { ChatMessage, TemplateVariables, ToolDefinition } from '../../chat/message.js'
import { Conversation } from '../../context/conversation.js'
import { portsOf } from '../../context/ports.js'
import { noted } from '../../context/size-note.js'
import type { Steps } from '../../core/turns.js'
import type { Engine } from '../../engine/engine.js'
import { freshConversation } from '../../core/ids.js'
import { type Folded, foldUntil, isHopeless, type Omissible, type PolicyContext, resultsOf, shownBy } from './policies.js'

export interface ClearToolUses {
  /** Nothing is cleared until this is exceeded: prompt tokens, or the number of shown tool results. */
  readonly trigger: { readonly kind: 'input-tokens' | 'tool-uses'; readonly value: number }
  /** How many of the newest tool results stay shown. */
  readonly keep: number
  /** If clearing would save fewer tokens than this, nothing is cleared: it is not worth the lost cells. */
  readonly clearAtLeast: number
  /** Names of the tools whose results are never cleared. */
  readonly excludeTools: readonly string[]
  /** Whose call inputs are cleared together with the results: true: all tools; false: none; or the tools with these names. */
  readonly inputs: boolean | readonly string[]
}

export interface ClearThinking {
  /** How many of the newest turns that have reasoning keep it. */
  readonly keep: number
}

/** The tool results and the reasoning that a client wants cleared. */
export interface ClearRules {
  readonly toolUses?: ClearToolUses
  readonly thinking?: ClearThinking
}

/** How much is cleared from the prompt at this request, by its own rules and by earlier requests. */
export interface Cleared {
  readonly toolUses: number
  /** Tokens that the cleared results and call inputs would add to the prompt. */
  readonly inputTokens: number
  readonly thinkingTurns: number
  /** Tokens that the cleared reasoning would add to the prompt. */
  readonly thinkingTokens: number
}

/**
 * Folds all tool results that the rules allow. Returns null when the trigger is not exceeded, or when the fold would save fewer than
 * `clearAtLeast` tokens.
 */
export function* clearToolUses(
  context: PolicyContext,
  { trigger, keep, clearAtLeast, excludeTools, inputs }: ClearToolUses,
): Steps<Folded | null> {
  const { conversation } = context
  if (isHopeless(context)) return null
  const all = toolResults(context)
  const open = all.filter(({ cleared }) => !cleared)
  const before = shownBy(context)
  if ((trigger.kind === 'tool-uses' ? open.length : before) <= trigger.value) return null
  const old = new Set((keep === 0 ? open : open.slice(0, -keep)).map(({ message }) => message))
  const excluded = new Set(excludeTools)
  const chosen = (yield* resultsOf(context)).filter(
    ({ message }) => old.has(message) && !excluded.has(conversation.messages[message]?.name ?? ''),
  )
  const earlier = all.filter(({ cleared }) => cleared)
  return yield* foldUntil(
    context,
    chosen,
    before,
    null,
    () => clearAtLeast,
    (folded) => inputsOf(conversation, [...earlier, ...folded], inputs),
  )
}

/** Returns the inputs of the calls that these results answer. Calls without arguments are left out. */
function inputsOf(
  { messages }: Conversation,
  results: readonly { readonly message: number }[],
  inputs: ClearToolUses['inputs'],
): readonly Omissible[] {
  if (inputs === false) return []
  const answered = new Set(results.map(({ message }) => messages[message]?.toolCallId))
  return messages.flatMap(({ toolCalls = [] }, message): Omissible[] => {
    const calls = toolCalls
      .filter(({ id, name }) => answered.has(id) && (inputs === true || inputs.includes(name)))
      .filter(({ arguments: args, malformed }) => malformed !== undefined || Object.keys(args).length > 0)
      .map(({ id }) => id)
    return calls.length === 0 ? [] : [{ message, omits: { part: 'inputs', calls } }]
  })
}

/**
 * Hides the reasoning of all turns but the newest `keep`. Returns null when that saves no tokens, as with templates that show no reasoning.
 */
export function clearThinking(context: PolicyContext, { keep }: ClearThinking): Folded | null {
  const { conversation } = context
  if (isHopeless(context)) return null
  const turns = thinkingTurns(conversation)
  const omitted = new Set(conversation.omissions.filter(({ omits }) => omits.part === 'reasoning').map(({ message }) => message))
  const old = (keep === 0 ? turns : turns.slice(0, -keep)).flat().filter((message) => !omitted.has(message))
  if (old.length === 0) return null
  const wanted = old.map((message): Omissible => ({ message, omits: { part: 'reasoning' } }))
  const before = shownBy(context)
  const saves = before - shownBy(context, [], wanted)
  return saves <= 0 ? null : { fragments: conversation.omit(wanted), saves }
}

/**
 * Returns for each turn the indexes of its assistant messages with reasoning, oldest first. A turn lasts until the next user message; turns
 * without reasoning, and dropped or compacted messages, are left out.
 */
function thinkingTurns({ messages, omitted }: Conversation): readonly (readonly number[])[] {
  const turns: number[][] = []
  let isNew = true
  messages.forEach(({ role, reasoning = '' }, message) => {
    if (role === 'user') isNew = true
    if (role !== 'assistant' || reasoning === '' || omitted.has(message)) return
    if (isNew) turns.push([])
    turns.at(-1)!.push(message)
    isNew = false
  })
  return turns
}

/** Counts the cleared tool results and reasoning of the conversation, and the tokens that this saves. */
export function clearedIn(context: PolicyContext): Cleared {
  const { engine, conversation, tools, scope } = context
  const messages = new Set(toolResults(context).flatMap(({ message, cleared }) => (cleared ? [message] : [])))
  const thoughts = new Set(conversation.omissions.flatMap(({ message, omits }) => (omits.part === 'reasoning' ? [message] : [])))
  const shown = messages.size + thoughts.size === 0 ? 0 : shownBy(context)
  const without = (edits: ReturnType<Conversation['edits']>) =>
    engine.count(noted(conversation.messages, tools), tools, edits, scope?.variables) - shown
  const uses = conversation.edits().filter(({ message, omits }) => !messages.has(message) && omits?.part !== 'inputs')
  const thinking = conversation.edits().filter(({ omits }) => omits?.part !== 'reasoning')
  return {
    toolUses: messages.size,
    inputTokens: messages.size === 0 ? 0 : without(uses),
    thinkingTurns: thinkingTurns(conversation).filter((turn) => turn.some((message) => thoughts.has(message))).length,
    thinkingTokens: thoughts.size === 0 ? 0 : without(thinking),
  }
}

/** Counts the prompt tokens of these messages after clearing, for requests that only count and have no thread. */
export function* countCleared(
  engine: Engine,
  messages: readonly ChatMessage[],
  tools: readonly ToolDefinition[],
  clear: ClearRules,
  variables: TemplateVariables,
): Steps<number> {
  const id = freshConversation()
  const scope = { variables }
  const conversation = new Conversation(id, portsOf(engine, id, tools, scope))
  for (const message of messages) conversation.add(message)
  const context = { engine, conversation, tools, scope }
  if (clear.thinking !== undefined) clearThinking(context, clear.thinking)
  if (clear.toolUses !== undefined) yield* clearToolUses(context, clear.toolUses)
  yield
  return shownBy(context)
}

/**
 * Returns the indexes of the tool results that the client knows, oldest first, and whether each is completely hidden. Dropped and compacted
 * results are left out.
 */
function toolResults({
  conversation,
  unknown,
}: PolicyContext): readonly { readonly message: number; readonly cleared: boolean }[] {
  const { omitted } = conversation
  const hidden = new Map<number, number>()
  for (const { message, span } of conversation.edits()) hidden.set(message, (hidden.get(message) ?? 0) + span.end - span.start)
  return conversation.messages.flatMap(({ role, content }, message) =>
    role === 'tool' && !omitted.has(message) && unknown?.has(message) !== true
      ? [{ message, cleared: content !== '' && hidden.get(message) === content.length }]
      : [],
  )
}
