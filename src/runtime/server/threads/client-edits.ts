/** Finds the edits that a client made when it sends other messages than before, and applies them to the thread. */
import type { ChatMessage, TemplateVariables, ToolDefinition } from '../../chat/message.js'
import { align, type Gap, gapsOf, type Match, withWhatFollows } from '../../core/alignment.js'
import type { Tenant } from '../../core/ids.js'
import { lowerBound } from '../../core/span.js'
import { movedEdits, type StoredMessage, type ThreadRecord } from '../../store/port.js'
import { difference, isSame, messageKey } from './message-match.js'
import type { Thread, UnsavedState } from './thread.js'

/** One change that the client made to a message of its conversation. */
export interface ClientEdit {
  /** `restored`: a message that an earlier edit removed or replaced is back. `summarised`: one message replaces several. */
  readonly kind: 'replaced' | 'shortened' | 'emptied' | 'removed' | 'inserted' | 'summarised' | 'restored'
  /** Index of the message in the request. For a removed message: the index of the request's message that follows it. */
  readonly message: number
  /** How many messages of the thread the edit replaces or removes; 0 for an inserted message. */
  readonly was: number
}

/**
 * How a request's messages align with those that a thread's client knows.
 *
 * A request belongs to the thread's conversation when it names the thread, or contains an answer that the server gave in it. Then every
 * difference up to the last such answer is an edit. Other requests share only a beginning with the thread: the same messages may occur in
 * any number of conversations, such as the examples of a few-shot prompt.
 */
export interface Alignment {
  /**
   * Messages that thread and request have in common, in ascending order. `a`: index among the messages that clients know of the thread;
   * `b`: index in the request.
   */
  readonly matches: readonly Match[]
  /** Whether the request belongs to the thread's conversation. */
  readonly isOwn: boolean
  /** Whether the request has the thread's last message. */
  readonly goesOn: boolean
  readonly edits: readonly ClientEdit[]
  /** Keys of the thread's messages that the client removed or replaced. */
  readonly hidden: readonly string[]
}

/** A message with this many characters or more counts as unique to its thread. */
const DISTINCTIVE = 64

/**
 * Compares a request's messages with those that the client knows of the thread. Returns what they share and which edits the client made.
 * @param keys keys of the request's messages (`messageKey`)
 * @param isNamed whether the request names the thread by its id
 */
export function alignRequest(
  { view, keys: known, given, hidden }: Pick<Thread, 'view' | 'keys' | 'given' | 'hidden'>,
  request: readonly ChatMessage[],
  keys: readonly string[],
  isNamed: boolean,
): Alignment {
  const all = align(known, keys)
  const answer = isNamed ? all.length - 1 : all.findLastIndex(({ a }) => given[a])
  const matches = withWhatFollows(all, answer + 1)
  const last = matches.at(-1)
  // Messages after the last common one are no edits: the client abandoned those of the thread and sent new ones.
  const gaps = last === undefined ? [] : gapsOf(matches, last.a + 1, last.b + 1)
  return {
    matches,
    isOwn: isNamed || answer >= 0,
    goesOn: (last?.a ?? -1) === view.length - 1,
    edits: gaps.flatMap((gap) => editsIn(gap, view, request, keys, hidden)),
    hidden: gaps.flatMap(({ a, aEnd }) => known.slice(a, aEnd)),
  }
}

/**
 * Returns whether the request probably belongs to this thread: both begin with the same message, or they share two messages, one long
 * message, or one message with tool calls. System messages do not count.
 */
export function isRelated(view: readonly ChatMessage[], { matches }: Alignment): boolean {
  const isSystem = ({ a }: Match) => view[a]!.role === 'system'
  if (matches.some((match, at) => match.a === at && match.b === at && !isSystem(match))) return true
  const shared = matches.filter((match) => !isSystem(match))
  const distinctive = ({ content, toolCalls = [] }: ChatMessage) => content.length >= DISTINCTIVE || toolCalls.length > 0
  return shared.length >= 2 || shared.some(({ a }) => distinctive(view[a]!))
}

function editsIn(
  { a, aEnd, b, bEnd }: Gap,
  view: readonly ChatMessage[],
  request: readonly ChatMessage[],
  given: readonly string[],
  hidden: ReadonlySet<string>,
): ClientEdit[] {
  if (b === bEnd) return Array.from({ length: aEnd - a }, () => ({ kind: 'removed', message: b, was: 1 }))
  if (bEnd - b === 1 && aEnd - a > 1)
    return [{ kind: hidden.has(given[b]!) ? 'restored' : 'summarised', message: b, was: aEnd - a }]
  const edits: ClientEdit[] = []
  for (let at = 0; at < Math.max(aEnd - a, bEnd - b); at++) {
    const [old, message] = [a + at < aEnd ? view[a + at] : undefined, Math.min(b + at, bEnd)]
    const now = b + at < bEnd ? request[message] : undefined
    const was = old === undefined ? 0 : 1
    if (now === undefined) edits.push({ kind: 'removed', message, was })
    else if (hidden.has(given[message]!)) edits.push({ kind: 'restored', message, was })
    else edits.push({ kind: old === undefined ? 'inserted' : changeOf(old, now), message, was })
  }
  return edits
}

function changeOf(old: ChatMessage, now: ChatMessage): ClientEdit['kind'] {
  if (now.content === '' && old.content !== '') return 'emptied'
  return now.content.length < old.content.length ? 'shortened' : 'replaced'
}

/** Describes the edits for people: `3 shortened, 1 removed`. */
export function editsInWords(edits: readonly ClientEdit[]): string {
  const counts = new Map<string, number>()
  for (const { kind } of edits) counts.set(kind, (counts.get(kind) ?? 0) + 1)
  return [...counts].map(([kind, count]) => `${count} ${kind}`).join(', ')
}

/** The fields of a thread's record that change when the client edits its conversation. */
export type ReconciledThread = Pick<ThreadRecord, 'messages' | 'edits' | 'held'>

/**
 * Returns the thread's new messages, up to the last one in common with the request. Common messages keep their fragments and the results of
 * the server's own calls. The client's new messages stand between them.
 */
export function reconciled(
  { messages, edits, held }: ReconciledThread,
  { matches, goesOn }: Pick<Alignment, 'matches' | 'goesOn'>,
  request: readonly ChatMessage[],
): ReconciledThread {
  /** Index: a message that clients know of the thread. Value: its index in the request; empty when the request does not have it. */
  const to: number[] = []
  for (const { a, b } of matches) to[a] = b
  const last = matches.at(-1) ?? { a: -1, b: -1 }
  const limit = last.b + 1
  const waiting: ChatMessage[] = []
  const owners = ownersOf(messages)
  const made: StoredMessage[] = []
  /** Index: a message of the thread. Value: its index in `made`. */
  const places: number[] = []
  let [view, next] = [0, 0]
  const give = (until: number) => {
    while (next < until) made.push({ message: request[next++]!, seen: 'same' })
  }
  const keep = (at: number) => {
    places[at] = made.length
    made.push(messages[at]!)
  }
  // System messages of the request come before compacted messages, because many templates want them first.
  const others = request.findIndex(({ role }) => role !== 'system')
  give(Math.min(others, matches[0]?.b ?? 0))
  messages.forEach(({ message, seen }, at) => {
    if (seen === 'nothing') {
      // These results of the server's own calls stand after results that the client will send again. They wait in `held` until then.
      if (to[owners[at]!] !== undefined && view > last.a + 1) waiting.push(message)
      else if (to[owners[at]!] !== undefined) keep(at)
      return
    }
    const place = to[view++]
    if (place !== undefined) {
      give(place)
      keep(at)
      next = place + 1
    } else if (next < (nextPlace(matches, view) ?? limit) && request[next]?.role === message.role) give(next + 1)
  })
  give(limit)
  return {
    messages: made,
    edits: movedEdits(edits, (message) => places[message]),
    held: goesOn ? held : waiting,
  }
}

/** Returns the request index of the first common message whose index among the known messages is `view` or more. */
function nextPlace(matches: readonly Match[], view: number): number | undefined {
  return matches[lowerBound(matches.length, (at) => matches[at]!.a < view)]?.b
}

/**
 * Maps each message of the thread to an index among the messages that clients see. A seen message maps to itself. A hidden step maps to the
 * answer it leads to, or else to the message before it; a tool result maps to the step with its call. All messages before a summary map to
 * the summary.
 */
function ownersOf(messages: readonly StoredMessage[]): readonly number[] {
  const owners: number[] = []
  /** For each message: whether the next message that clients see is an answer. */
  const leads: boolean[] = []
  /** For each message: the index of the next summary that clients see; undefined when there is none. */
  const summaries: (number | undefined)[] = []
  let view = messages.filter(({ seen }) => seen !== 'nothing').length
  for (let at = messages.length - 1, next = false, summary: number | undefined; at >= 0; at--) {
    leads[at] = next
    summaries[at] = summary
    const { message, seen } = messages[at]!
    if (seen === 'nothing') continue
    view--
    next = message.role === 'assistant'
    if (message.stands !== undefined) summary = view
  }
  view = -1
  let step = -1
  messages.forEach(({ message, seen }, at) => {
    if (seen !== 'nothing') {
      view++
      if (message.role === 'assistant') step = view
      owners.push(view)
      return
    }
    if (message.role === 'assistant') step = leads[at] === true ? view + 1 : view
    owners.push(summaries[at] ?? step)
  })
  return owners
}

export const keysOf = (messages: readonly ChatMessage[]): readonly string[] => messages.map(messageKey)

/**
 * Returns the keys of a request's messages. Hashing long messages is slow, so it copies the thread's keys for identical messages. It finds
 * these at the beginning, and from the thread's last message backwards.
 */
export function keysBeside({ view, keys }: Pick<Thread, 'view' | 'keys'>, request: readonly ChatMessage[]): readonly string[] {
  const known: string[] = []
  let head = 0
  while (head < Math.min(view.length, request.length) && isSame(view[head]!, request[head]!)) known[head] = keys[head++]!
  const end = view.at(-1)
  let at = end === undefined ? -1 : request.findLastIndex((message) => isSame(end, message))
  for (let of = view.length - 1; Math.min(at, of) >= head && isSame(view[of]!, request[at]!); at--) known[at] = keys[of--]!
  return request.map((message, index) => known[index] ?? messageKey(message))
}

// The fields of a request that the thread manager needs, and what it returns.

/** The fields of a request that decide which thread it continues. */
export interface ThreadRequest {
  readonly tenant: Tenant
  /** Digest of the request's cache salt (`saltDigest`). A request finds only threads with the same digest. */
  readonly salt?: string | undefined
  readonly model: string
  readonly messages: readonly ChatMessage[]
  readonly thread?: string
  /** The client's name for its session. `parent`: the name of the session it branched from. */
  readonly session?: { readonly name: string; readonly parent?: string }
  readonly appended?: boolean
  /** The text that the answer must begin with (`Ask.beginning`). */
  readonly beginning?: string
  readonly tools: readonly ToolDefinition[]
}

/** The prompt of the thread before a request. For a new fork: the prompt of the thread it was forked from. */
export interface PromptBefore {
  readonly tools: readonly ToolDefinition[]
  /** The template variables; null when they are unknown, as after a restart of the server. */
  readonly variables: TemplateVariables | null
  /** The messages that clients knew, oldest first. */
  readonly view: readonly ChatMessage[]
  readonly keys: ReadonlySet<string>
  /** How many ledger entries there were. */
  readonly entries: number
}

export function promptBefore({ tools, runtime, view, keys, ledger }: Thread): PromptBefore {
  return { tools, variables: runtime.head?.variables ?? null, view: [...view], keys: new Set(keys), entries: ledger.length }
}

/** A thread reserved for a request, with the request's messages in it. */
export interface TakenThread {
  readonly thread: Thread
  /**
   * Where the request stopped matching the thread; null when it matched. `message`: index of the first different message in the request;
   * `place`: its index in the thread's conversation.
   */
  readonly left: { readonly message: number; readonly place: number; readonly reason: string } | null
  /** Edits that the client made to messages of this thread, or of the thread it was forked from. */
  readonly edits: readonly ClientEdit[]
  /**
   * Whether the request belongs to the conversation (`Alignment`). False: the thread is new and only shares a beginning with another one.
   * Cells taken over from that one must be exact.
   */
  readonly isOwn: boolean
  /** Keys of the messages that the client removed or replaced with this request. */
  readonly hidden: readonly string[]
  /** The prompt before the request, of this thread or of the thread it was forked from; null when the conversation is new. */
  readonly previous: PromptBefore | null
  /** The thread's record before the request; null when the thread did not exist. */
  readonly before: ThreadRecord | null
  /** The state before the request that no store has. */
  readonly unsaved: UnsavedState
  /** How many messages the conversation had before the request's were appended. */
  readonly known: number
}

/**
 * A taken thread that does not have the request's messages yet. `alignment`: set when the thread must first be rewritten to match the
 * request.
 */
export type Taking = Omit<TakenThread, 'before' | 'unsaved' | 'known'> & { readonly alignment?: Alignment; readonly isNew?: true }

export interface Related {
  readonly thread: Thread
  readonly alignment: Alignment
}

/**
 * Whether `one` fits the request better than `other`. In this order: more messages in common up to the request's last answer; it is free and
 * the request has its last message; more messages in common; fewer messages that the client removed or replaced; used later.
 * @param last the index of the request's last answer
 */
export function isBetter(one: Related, other: Related, last: number): boolean {
  const answered = ({ alignment }: Related) => alignment.matches.filter(({ b }) => b <= last).length
  const goesOn = ({ alignment, thread }: Related) => (alignment.goesOn && !thread.asked ? 1 : 0)
  const [a, b] = [one.alignment, other.alignment]
  const more =
    answered(one) - answered(other) ||
    goesOn(one) - goesOn(other) ||
    a.matches.length - b.matches.length ||
    b.hidden.length - a.hidden.length
  return more > 0 || (more === 0 && one.thread.used > other.thread.used)
}

/**
 * Returns where and why a request stopped matching a thread. Returns null when one of them begins with all messages of the other. It also
 * returns null when the request does not name the thread and no answer precedes the difference.
 * @param id the thread's id if the request names it
 */
export function leftBy(
  thread: Thread,
  messages: readonly ChatMessage[],
  { matches }: Alignment,
  id: string | undefined,
): Divergence | null {
  const other = matches.findIndex(({ a, b }, at) => a !== at || b !== at)
  const shared = other === -1 ? matches.length : other
  const isOther = shared < thread.view.length && shared < messages.length
  const wasAnswered = thread.view.slice(0, shared).some(({ role }) => role === 'assistant')
  if (!isOther || (id === undefined && !wasAnswered)) return null
  const reason = `message ${shared} is not what it was in thread ${thread.id}: ${difference(thread.view[shared], messages[shared])}`
  return { message: shared, place: thread.placeOf(shared), reason }
}

/**
 * Where a request stopped matching a thread. `message`: index of the first different message in the request; `place`: its index in the
 * thread's conversation.
 */
interface Divergence {
  readonly message: number
  readonly place: number
  readonly reason: string
}
