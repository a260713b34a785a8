/** Drops messages and reasoning from the prompt when a client says which (AKV's `drop_message`, `drop_rule` and `reposition`). */
import { type ConversationId, conversationId } from '../../core/ids.js'
import type { LedgerEntry } from '../../kv/ledger.js'
import { clearThinking } from './context-edits.js'
import { type Folded, type Omissible, type PolicyContext, shownBy } from './policies.js'
import type { Thread } from './thread.js'

/** What a client drops. Indexes count the messages of the request. */
export interface Drops {
  /** Messages that are not shown any more. */
  readonly messages: readonly number[]
  /**
   * `thinking`: the reasoning of all turns but the newest. `results`: all tool results but the newest `keep` and those without an answer.
   */
  readonly rule?: { readonly kind: 'thinking' } | { readonly kind: 'results'; readonly keep: number }
  /** Whether what stays moves up to the positions of what was dropped. */
  readonly repositions: boolean
}

/** How many tokens drops hide and move, as usage tells it. */
export interface Dropped {
  /** Tokens that the prompt would have besides, without the drops of this request and earlier ones. */
  readonly skippedTokens: number
  /** Tokens whose cells moved to other positions. */
  readonly repositionedTokens: number
}

/** Carries the drops out as folds. Returns null where nothing is new. */
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

/** Returns the tool results that the model has answered, without the newest `keep` of all. */
function oldResults({ conversation, pinned }: PolicyContext, keep: number): readonly number[] {
  const { messages } = conversation
  const last = messages.findLastIndex(({ role }) => role === 'assistant')
  const results = messages.flatMap(({ role }, at) => (role === 'tool' ? [at] : []))
  const old = keep === 0 ? results : results.slice(0, -keep)
  return old.filter((at) => at < last && pinned?.has(messages[at]!.toolCallId ?? '') !== true)
}

/** Counts what is dropped now: whole messages and reasoning. */
export function skippedIn(context: PolicyContext): number {
  const { engine, conversation, tools, scope } = context
  const rest = conversation.edits().filter(({ omits }) => omits === undefined || omits.part === 'inputs')
  if (rest.length === conversation.edits().length) return 0
  return engine.count(conversation.messages, tools, rest, scope?.variables) - shownBy(context)
}

/** An engine that may be able to close the gaps in a conversation's positions. */
interface Mover {
  closeGaps?(conversation: ConversationId): Promise<number>
}

/**
 * Closes the gaps in the thread's positions, if its engine can. Returns how many tokens moved: those behind the first dropped message.
 * @param entry the thread's last step
 */
export async function reposition(thread: Thread, engine: Mover, entry: LedgerEntry | undefined): Promise<number> {
  const closed = (await engine.closeGaps?.(conversationId(thread.id))) ?? 0
  const first = thread.conversation.omissions[0]?.message
  if (closed === 0 || first === undefined || entry === undefined) return 0
  return entry.messages.reduce((sum, { index, shown }) => sum + (index > first ? shown : 0), 0)
}
