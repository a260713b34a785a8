/** Explains a cache miss: why tokens of a prompt were computed again although the request before had them in the cache. */
import type { ChatMessage, TemplateVariables, ToolDefinition } from '../../chat/message.js'
import { writeJson } from '../../core/written-json.js'
import type { LedgerEntry } from '../../kv/ledger.js'
import type { PromptBefore, TakenThread } from './client-edits.js'
import { difference, messageKey } from './message-match.js'
import type { Thread } from './thread.js'

/**
 * Why cells could not be reused. `system_changed`, `tools_changed`, `messages_changed`: the client sent a different system prompt, tool
 * list or message. `template_changed`: the template variables changed, or the template now writes earlier messages differently. `folded`:
 * text was folded or restored in between. `evicted`: nothing changed, but the cells had left the cache.
 */
export type LossCause = 'system_changed' | 'tools_changed' | 'messages_changed' | 'template_changed' | 'folded' | 'evicted'

/** Up to 7 recomputed tokens do not count as a loss: the template's header of one message may take that many. */
const FEWEST = 8

/** What a request could not reuse from the cache, and from which message on. */
export interface Lost {
  readonly cause: LossCause
  /**
   * Index in the request of the first message that changed, or else of the first one that was computed again. 0 when the system prompt, the
   * tools or the template variables changed.
   */
  readonly message: number
  /** How many prompt tokens come before that message; null when the first step did not end. */
  readonly token: number | null
  readonly reason: string
  /** Tokens that were computed again although an earlier prompt had shown them. */
  readonly tokens: number
  /** The recomputed tokens of each message. `index` counts all messages of the thread, also those that clients do not see. */
  readonly messages: readonly { readonly index: number; readonly role: string; readonly tokens: number }[]
  /** Reused tokens of the prompt, by the tier that held their cells. */
  readonly tiers: { readonly device: number } & LedgerEntry['tiers']
}

/**
 * Returns what a request lost of the cache, and why; null when it lost nothing.
 * @param variables the template variables of this request's prompt
 * @param entry the ledger entry of the request's first step; undefined when that step did not end
 */
export function lossOf(
  { thread, left, edits, previous, known, before }: TakenThread,
  variables: TemplateVariables,
  entry: LedgerEntry | undefined,
): Lost | null {
  const change = previous === null ? null : changeIn(thread, previous, variables)
  const isSame = left === null && edits.length === 0 && change === null
  // A new thread computed nothing twice when the request repeats another one or only shares its beginning.
  if (isSame && before === null) return null
  const isOwn = before !== null && edits.length === 0
  const { view, conversation } = thread
  const places = new Map(view.map((message, at) => [thread.placeOf(at), message]))
  const messages = (entry?.messages ?? []).flatMap(({ index, role, recomputed, fresh }) => {
    if (index >= known) return []
    const message = places.get(index)
    const isKnown = !isOwn && message !== undefined && previous?.keys.has(messageKey(message)) === true
    // The last message of the earlier prompt may be an answer that had no cells yet, so its fresh tokens are no loss.
    const tokens = recomputed + (isKnown && !isSameText(message, previous.view.at(-1)) ? fresh : 0)
    return tokens === 0 ? [] : [{ index, role, tokens }]
  })
  const tokens = messages.reduce((sum, each) => sum + each.tokens, 0)
  if (isSame && tokens < FEWEST) return null
  const edited = edits.length === 0 || previous === null ? -1 : firstChange(previous, view)
  const first = edited >= 0 ? thread.placeOf(edited) : (messages[0]?.index ?? conversation.messages.length)
  const place = left?.place ?? (change === null ? first : 0)
  const sum = (of: readonly { readonly shown: number }[]) => of.reduce((total, { shown }) => total + shown, 0)
  const shown = entry?.messages ?? []
  const { host, disk, shared = 0 } = entry?.tiers ?? { host: 0, disk: 0 }
  return {
    ...(change ?? causeOf(thread, left, previous, entry, tokens)),
    message: change !== null ? 0 : (left?.message ?? viewIndex(thread, place)),
    token: shown.length === 0 ? null : sum(shown.filter(({ index }) => index < place)),
    tokens,
    messages,
    tiers: { device: (entry?.reused ?? 0) - host - disk - shared, host, disk, ...(shared === 0 ? {} : { shared }) },
  }
}

type Cause = Pick<Lost, 'cause' | 'reason'>

/**
 * Returns what changed in the part of the prompt before the messages: system prompt, tools or template variables. Null when nothing
 * changed.
 */
function changeIn({ view, tools }: Thread, previous: PromptBefore, variables: TemplateVariables): Cause | null {
  const [old, now] = [systemOf(previous.view), systemOf(view)]
  if (old.length !== now.length || old.some((message, at) => messageKey(message) !== messageKey(now[at]!))) {
    const at = now.findIndex((message, index) => old[index] === undefined || messageKey(message) !== messageKey(old[index]))
    const first = Math.max(0, at)
    return { cause: 'system_changed', reason: `the system prompt is not what it was: ${difference(old[first], now[first])}` }
  }
  if (writeJson(previous.tools) !== writeJson(tools))
    return { cause: 'tools_changed', reason: toolsInWords(previous.tools, tools) }
  if (previous.variables !== null && writeJson(previous.variables) !== writeJson(variables))
    return { cause: 'template_changed', reason: 'the chat template got other variables' }
  return null
}

const systemOf = (messages: readonly ChatMessage[]): readonly ChatMessage[] => {
  const end = messages.findIndex(({ role }) => role !== 'system')
  return end === -1 ? messages : messages.slice(0, end)
}

export function toolsInWords(before: readonly ToolDefinition[], now: readonly ToolDefinition[]): string {
  const without = (all: readonly ToolDefinition[], others: readonly ToolDefinition[]) =>
    all.filter(({ name }) => !others.some((other) => other.name === name)).map(({ name }) => name)
  const [added, removed] = [without(now, before), without(before, now)]
  const changed = now.filter((tool) => before.some((old) => old.name === tool.name && writeJson(old) !== writeJson(tool)))
  const parts = [
    ...(added.length === 0 ? [] : [`${named(added)} added`]),
    ...(removed.length === 0 ? [] : [`${named(removed)} removed`]),
    ...(changed.length === 0 ? [] : [`${named(changed.map(({ name }) => name))} defined otherwise`]),
  ]
  return `the tools are not what they were: ${parts.join(', ') || 'they have another order'}`
}

/** The most tool names in one sentence. */
const MOST_NAMES = 5

const named = (names: readonly string[]): string =>
  names.length <= MOST_NAMES ? names.join(', ') : `${names.slice(0, MOST_NAMES).join(', ')} and ${names.length - MOST_NAMES} more`

function causeOf(
  { events, view }: Thread,
  left: TakenThread['left'],
  previous: PromptBefore | null,
  entry: LedgerEntry | undefined,
  tokens: number,
): Cause {
  if (left !== null) return { cause: 'messages_changed', reason: left.reason }
  const why = entry?.recomputeReason ?? null
  if (why?.includes('the template') === true) return { cause: 'template_changed', reason: why }
  const folds = events.filter(({ kind, after }) => kind !== 'client' && after >= (previous?.entries ?? 0))
  if (folds.length > 0) return { cause: 'folded', reason: `text before it was folded or shown again: ${folds.at(-1)!.reason}` }
  const at = previous === null ? -1 : firstChange(previous, view)
  if (previous !== null && at >= 0)
    return {
      cause: 'messages_changed',
      reason: `message ${at} is not what it was: ${difference(previous.view[at], view[at])}`,
    }
  return { cause: 'evicted', reason: `the cells of ${tokens} tokens were gone${why === null ? '' : `: ${why}`}` }
}

/** Returns the index of the first message of `before` that changed or is gone; -1 if all are the same. */
const firstChange = ({ view: before }: PromptBefore, now: readonly ChatMessage[]): number =>
  before.findIndex((message, at) => now[at] === undefined || messageKey(message) !== messageKey(now[at]))

const isSameText = (a: ChatMessage, b: ChatMessage | undefined): boolean => b !== undefined && messageKey(a) === messageKey(b)

/**
 * Translates an index of the conversation into an index among the messages that clients know; takes the next known one if clients do not
 * know it.
 */
function viewIndex(thread: Thread, place: number): number {
  const at = thread.view.findIndex((_, index) => thread.placeOf(index) >= place)
  return at === -1 ? thread.view.length : at
}
