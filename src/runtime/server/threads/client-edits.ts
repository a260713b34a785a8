/** Recognises edits that clients make by sending different messages than before, and applies them to the thread. */
import type { ChatMessage, TemplateVariables, ToolDefinition } from '../../chat/message.js'
import { align, type Gap, gapsOf, type Match, withWhatFollows } from '../../core/alignment.js'
import type { Tenant } from '../../core/ids.js'
import { lowerBound } from '../../core/span.js'
import { movedEdits, type StoredMessage, type ThreadRecord } from '../../store/port.js'
import { difference, isSame, messageKey } from './message-match.js'
import type { Thread, UnsavedState } from './thread.js'

/** A change to messages that the thread's client knows. */
export interface ClientEdit {
  /** `restored`: shown again as before an earlier edit. `summarised`: one message replaces several. */
  readonly kind: 'replaced' | 'shortened' | 'emptied' | 'removed' | 'inserted' | 'summarised' | 'restored'
  /** Index of the message in the request; for a removed message, the index of the message now in its place. */
  readonly message: number
  /** How many messages the thread had where the request has this one. */
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
   * The messages that thread and request have in common, in ascending order. `a`: index among the messages that clients know; `b`: index in
   * the request.
   */
  readonly matches: readonly Match[]
  /** Whether the request belongs to the thread's conversation. */
  readonly isOwn: boolean
  /** Whether the request continues after the thread's last message. */
  readonly goesOn: boolean
  readonly edits: readonly ClientEdit[]
  /** Keys of the thread's messages that the request no longer has. */
  readonly hidden: readonly string[]
}

/** An answer of at least so many characters is taken to be unique to its thread. */
const DISTINCTIVE = 64

/**
 * Compares a request's messages with those that the thread's client knows, and returns what they share and which edits the client made.
 * @param keys of the request's messages (`messageKey`)
 * @param isNamed whether the request names the thread
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
  // Differences after the last common message are no edits: the thread's messages were given up, and the request's are new.
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
 * Returns whether the request is likely to belong to this thread: they share the first message, two messages, or a distinctive answer.
 * System messages do not count.
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

/** Counts the edits in words, for people: `3 shortened, 1 removed`. */
export function editsInWords(edits: readonly ClientEdit[]): string {
  const counts = new Map<string, number>()
  for (const { kind } of edits) counts.set(kind, (counts.get(kind) ?? 0) + 1)
  return [...counts].map(([kind, count]) => `${count} ${kind}`).join(', ')
}

/** The parts of a thread's record that change when the thread takes over a request's messages. */
export type ReconciledThread = Pick<ThreadRecord, 'messages' | 'edits' | 'held'>

/**
 * Returns the thread's new messages: those that the request still has, with their fragments and the results of the server's calls, and the
 * client's new messages between them. The last one is the last message that thread and request have in common.
 */
export function reconciled(
  { messages, edits, held }: ReconciledThread,
  { matches, goesOn }: Pick<Alignment, 'matches' | 'goesOn'>,
  request: readonly ChatMessage[],
): ReconciledThread {
  /** For each message that clients know of the thread, its index in the request. */
  const to: number[] = []
  for (const { a, b } of matches) to[a] = b
  const last = matches.at(-1) ?? { a: -1, b: -1 }
  const limit = last.b + 1
  const waiting: ChatMessage[] = []
  const owners = ownersOf(messages)
  const made: StoredMessage[] = []
  /** For each message of the thread, its index in `made`. */
  const places: number[] = []
  let [view, next] = [0, 0]
  const give = (until: number) => {
    while (next < until) made.push({ message: request[next++]!, seen: 'same' })
  }
  const keep = (at: number) => {
    places[at] = made.length
    made.push(messages[at]!)
  }
  // A new system message stands before compacted messages, because templates want it first.
  const others = request.findIndex(({ role }) => role !== 'system')
  give(Math.min(others, matches[0]?.b ?? 0))
  messages.forEach(({ message, seen }, at) => {
    if (seen === 'nothing') {
      // Results of the server's calls are held back if they follow results that the client will send again.
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

/** Returns the index in the request of the first common message that is at, or after, message `view` of those that clients know. */
function nextPlace(matches: readonly Match[], view: number): number | undefined {
  return matches[lowerBound(matches.length, (at) => matches[at]!.a < view)]?.b
}

/**
 * For each message that clients do not see, returns the index, among the messages they see, of the one it belongs to. A step belongs to the
 * answer that it leads to, or to the message before it if there was no answer. A result belongs to the step whose call it answers. All
 * messages before a summary belong to the summary, which stands for them.
 */
function ownersOf(messages: readonly StoredMessage[]): readonly number[] {
  const owners: number[] = []
  /** For each message, whether the next one that clients see is an answer. */
  const leads: boolean[] = []
  /** For each message, the next summary that clients see; undefined when there is none. */
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
 * Returns the keys of a request's messages. It takes the thread's keys instead of hashing where the messages are literally the thread's: at
 * the beginning, and before the thread's last message.
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

// The part of a request that the thread manager needs, and the threads to which the request may belong.

/** The part of a request that decides its thread. */
export interface ThreadRequest {
  readonly tenant: Tenant
  /** A digest of its salt (`saltDigest`). A request finds only threads with the same salt. */
  readonly salt?: string | undefined
  readonly model: string
  readonly messages: readonly ChatMessage[]
  readonly thread?: string
  /** The client's name for its session, and for the session from which that one was begun. */
  readonly session?: { readonly name: string; readonly parent?: string }
  readonly appended?: boolean
  /** The text that the answer must begin with. */
  readonly beginning?: string
  readonly tools: readonly ToolDefinition[]
}

/** The prompt that a thread showed before a request. For a new fork it is the prompt of the thread that it was forked from. */
export interface PromptBefore {
  readonly tools: readonly ToolDefinition[]
  /** The variables of the template. Null when another process had the thread, so that they are unknown. */
  readonly variables: TemplateVariables | null
  /** The messages that clients knew. */
  readonly view: readonly ChatMessage[]
  readonly keys: ReadonlySet<string>
  /** How many ledger entries there were. */
  readonly entries: number
}

export function promptBefore({ tools, runtime, view, keys, ledger }: Thread): PromptBefore {
  return { tools, variables: runtime.head?.variables ?? null, view: [...view], keys: new Set(keys), entries: ledger.length }
}

/** A thread reserved for an ask, with the ask's messages in it. */
export interface TakenThread {
  readonly thread: Thread
  /**
   * Where the request diverged from the thread it was matched with; null when it did not. `place`: index of the first different message
   * in the thread.
   */
  readonly left: { readonly message: number; readonly place: number; readonly reason: string } | null
  /** Edits that the request made to messages of the thread, or of the one it was forked from. */
  readonly edits: readonly ClientEdit[]
  /**
   * False: the thread is new and only shares its beginning with another. Cells taken over from that other thread must be exact
   * (`Alignment`).
   */
  readonly isOwn: boolean
  /** Keys of messages that the request removed or replaced. */
  readonly hidden: readonly string[]
  /** What was shown before the request, by this thread or by the thread that it was forked from; null when the conversation is new. */
  readonly previous: PromptBefore | null
  /** The thread's record before the request; null when the thread did not exist. */
  readonly before: ThreadRecord | null
  /** The rest of the thread's state before the request. */
  readonly unsaved: UnsavedState
  /** How many messages the conversation had before the request's were appended. */
  readonly known: number
}

/** A taken thread before the request's messages are in it. `alignment`: the thread must still be rewritten to match the request. */
export type Taking = Omit<TakenThread, 'before' | 'unsaved' | 'known'> & { readonly alignment?: Alignment; readonly isNew?: true }

export interface Related {
  readonly thread: Thread
  readonly alignment: Alignment
}

/**
 * Whether `one` fits the request better than `other`. A free thread that the request goes on from comes first, then more common messages,
 * then fewer messages to give up, then the later use.
 */
export function isBetter(one: Related, other: Related): boolean {
  const goesOn = ({ alignment, thread }: Related) => (alignment.goesOn && !thread.asked ? 1 : 0)
  const [a, b] = [one.alignment, other.alignment]
  const more = goesOn(one) - goesOn(other) || a.matches.length - b.matches.length || b.hidden.length - a.hidden.length
  return more > 0 || (more === 0 && one.thread.used > other.thread.used)
}

/**
 * Returns where and why a request diverged from a thread. Returns null when the request repeats the last one, or shares only a beginning.
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

/** Where a request diverged from the thread it was matched with. `place`: index of the first different message in the thread. */
interface Divergence {
  readonly message: number
  readonly place: number
  readonly reason: string
}
