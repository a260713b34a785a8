/** Drops messages and reasoning from the prompt when a client says which (AKV's `drop_message`, `drop_rule` and `reposition`). */
import { noted } from '../../context/size-note.js'
import { type ConversationId, conversationId } from '../../core/ids.js'
import type { LedgerEntry } from '../../kv/ledger.js'
import { clearThinking } from './context-edits.js'
import { type Folded, type Omissible, type PolicyContext, shownBy } from './policies.js'
import type { Thread } from './thread.js'

/** The messages and reasoning that a client drops. Indexes count the messages of the request. */
export interface Drops {
  /** Messages that are not shown any more. */
  readonly messages: readonly number[]
  /**
   * `thinking`: drops the reasoning of all turns but the newest. `results`: drops all tool results but the newest `keep` and those that the
   * model has not answered.
   */
  readonly rule?: { readonly kind: 'thinking' } | { readonly kind: 'results'; readonly keep: number }
  /** Whether the messages that stay move up to the positions of the dropped ones. */
  readonly repositions: boolean
}

/** How many tokens the drops hide and move, for the usage of an answer. */
export interface Dropped {
  /** How many tokens longer the prompt would be without the drops of this request and earlier ones. */
  readonly skippedTokens: number
  /** Tokens whose cells moved to other positions. */
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
 * Returns the tool results that the client knows and the model has answered, without the newest `keep`. Results that are not shown do not
 * count.
 */
function oldResults({ conversation, pinned, unknown }: PolicyContext, keep: number): readonly number[] {
  const { messages, omitted } = conversation
  const last = messages.findLastIndex(({ role }) => role === 'assistant')
  const isCounted = (at: number) => !omitted.has(at) && unknown?.has(at) !== true
  const results = messages.flatMap(({ role }, at) => (role === 'tool' && isCounted(at) ? [at] : []))
  const old = keep === 0 ? results : results.slice(0, -keep)
  return old.filter((at) => at < last && pinned?.has(messages[at]!.toolCallId ?? '') !== true)
}

/** Counts the tokens of the whole messages and the reasoning that are hidden now. */
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
 * Closes the gaps in the thread's positions, if its engine can. Returns how many tokens moved: all after the first dropped message.
 * @param entry the ledger entry of the thread's last step
 */
export async function reposition(thread: Thread, engine: Mover, entry: LedgerEntry | undefined): Promise<number> {
  const closed = (await engine.closeGaps?.(conversationId(thread.id))) ?? 0
  const first = thread.conversation.omissions[0]?.message
  if (closed === 0 || first === undefined || entry === undefined) return 0
  return entry.messages.reduce((sum, { index, shown }) => sum + (index > first ? shown : 0), 0)
}
