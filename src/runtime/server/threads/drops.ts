/** Drops messages and reasoning from the prompt at a client's request (AKV's `drop_message`, `drop_rule` and `reposition`). */
import { noted } from '../../context/size-note.js'
import { type ConversationId, conversationId } from '../../core/ids.js'
import type { LedgerEntry } from '../../kv/ledger.js'
import { clearThinking } from './context-edits.js'
import { type Folded, type Omissible, type PolicyContext, shownBy } from './policies.js'
import type { Thread } from './thread.js'

/** The messages and reasoning that a client drops. */
export interface Drops {
  /** Indexes of the messages to drop, among the messages of the request. */
  readonly messages: readonly number[]
  /**
   * `thinking`: drops the reasoning of all turns but the newest. `results`: drops all tool results except the newest `keep` and those that
   * the model has not answered yet.
   */
  readonly rule?: { readonly kind: 'thinking' } | { readonly kind: 'results'; readonly keep: number }
  /** True: the cells of later messages move up, so that no gap in positions remains. */
  readonly repositions: boolean
}

/** The effect of drops, for the usage of the answer. */
export interface Dropped {
  /** Tokens that all hidden messages and reasoning would add to the prompt, also those hidden by earlier requests. */
  readonly skippedTokens: number
  /** Tokens whose cells moved to another position. */
  readonly repositionedTokens: number
}

/** Hides what the client drops. Returns null when all of it is hidden already. */
export function drop(thread: Thread, context: PolicyContext, { messages, rule }: Drops): Folded | null {
  const { conversation } = context
  const before = shownBy(context)
  const thinking = rule?.kind === 'thinking' ? clearThinking(context, { keep: 1 }) : null
  const places = [
    ...messages.map((message) => thread.placeOf(message)),
    ...(rule?.kind === 'results' ? oldResults(context, rule.keep) : []),
  ]
  const omitted = conversation.omit(places.map((message): Omissible => ({ message, omits: { part: 'message' } })))
  const fragments = [...(thinking?.fragments ?? []), ...omitted]
  return fragments.length === 0 ? null : { fragments, saves: before - shownBy(context) }
}

/**
 * Returns the indexes of the tool results before the newest `keep`, if the model has answered them and they are not pinned. Results that
 * clients do not know, and results already dropped, do not count.
 */
function oldResults({ conversation, pinned, unknown }: PolicyContext, keep: number): readonly number[] {
  const { messages, omitted } = conversation
  const last = messages.findLastIndex(({ role }) => role === 'assistant')
  const isCounted = (at: number) => !omitted.has(at) && unknown?.has(at) !== true
  const results = messages.flatMap(({ role }, at) => (role === 'tool' && isCounted(at) ? [at] : []))
  const old = keep === 0 ? results : results.slice(0, -keep)
  return old.filter((at) => at < last && pinned?.has(messages[at]!.toolCallId ?? '') !== true)
}

/** Counts the tokens that dropped messages and hidden reasoning would add to the prompt. */
export function skippedIn(context: PolicyContext): number {
  const { engine, conversation, tools, scope } = context
  const rest = conversation.edits().filter(({ omits }) => omits === undefined || omits.part === 'inputs')
  if (rest.length === conversation.edits().length) return 0
  return engine.count(noted(conversation.messages, tools), tools, rest, scope?.variables) - shownBy(context)
}

/** An engine that may be able to close the gaps in a conversation's positions. */
interface Mover {
  closeGaps?(conversation: ConversationId): Promise<number>
}

/**
 * Closes the gaps in the positions of the thread's cells, if its engine can. Returns how many tokens moved: all after the first dropped
 * message.
 * @param entry the ledger entry of the thread's last step
 */
export async function reposition(thread: Thread, engine: Mover, entry: LedgerEntry | undefined): Promise<number> {
  const closed = (await engine.closeGaps?.(conversationId(thread.id))) ?? 0
  const first = thread.conversation.omissions[0]?.message
  if (closed === 0 || first === undefined || entry === undefined) return 0
  return entry.messages.reduce((sum, { index, shown }) => sum + (index > first ? shown : 0), 0)
}
