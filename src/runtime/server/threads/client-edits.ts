/** Owns the edits that clients make by sending other messages than before: how a request is recognised as one, and what a thread becomes by it. */
import type { ChatMessage, ToolDefinition } from '../../chat/message.js'
import { align, type Gap, gapsOf, type Match, withWhatFollows } from '../../core/alignment.js'
import type { Tenant } from '../../core/ids.js'
import { lowerBound } from '../../core/span.js'
import type { StoredMessage, ThreadRecord } from '../../store/port.js'
import { difference, isSame, messageKey } from './message-match.js'
import type { Thread } from './thread.js'

/** What became of messages that the thread's client knows. */
export interface ClientEdit {
  /** `restored`: shown as it was before an earlier edit. `summarised`: one message in the place of several. */
  readonly kind: 'replaced' | 'shortened' | 'emptied' | 'removed' | 'inserted' | 'summarised' | 'restored'
  /** Index of the request's message; for removed ones of the message that stands there now. */
  readonly message: number
  /** Messages that the thread had in its place. */
  readonly was: number
}

/**
 * A request against what a thread's client knows.
 *
 * A request is of the thread's conversation when it has an answer that the server gave in it, or names the thread. Then all that differs up to the
 * last such answer is an edit. Other requests share no more than a beginning with the thread: their messages may stand in any number of
 * conversations, as the examples of a few-shot prompt do.
 */
export interface Alignment {
  /** `a`: message of the view; `b`: message of the request. Ascending. */
  readonly matches: readonly Match[]
  /** Whether the request is of the thread's conversation. */
  readonly isOwn: boolean
  /** Whether the request goes on behind the thread's last message. */
  readonly goesOn: boolean
  readonly edits: readonly ClientEdit[]
  /** Keys of messages that are not there any more. */
  readonly hidden: readonly string[]
}

/** Characters from which on an answer is nobody else's. */
const DISTINCTIVE = 64

/**
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
  // What comes after the last message that both know is left, or new.
  const gaps = last === undefined ? [] : gapsOf(matches, last.a + 1, last.b + 1)
  return {
    matches,
    isOwn: isNamed || answer >= 0,
    goesOn: (last?.a ?? -1) === view.length - 1,
    edits: gaps.flatMap((gap) => editsIn(gap, view, request, keys, hidden)),
    hidden: gaps.flatMap(({ a, aEnd }) => known.slice(a, aEnd)),
  }
}

/** Whether the request is more likely of this thread than of none: they share its beginning, two messages, or an answer that nobody else has. */
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

/** In words, for people: `3 shortened, 1 removed`. */
export function editsInWords(edits: readonly ClientEdit[]): string {
  const counts = new Map<string, number>()
  for (const { kind } of edits) counts.set(kind, (counts.get(kind) ?? 0) + 1)
  return [...counts].map(([kind, count]) => `${count} ${kind}`).join(', ')
}

/** What a thread consists of when it has a request's messages as far as it knows them. */
export type Woven = Pick<ThreadRecord, 'messages' | 'edits' | 'held'>

/**
 * The thread's messages that the request still has, with what was carried out inside for them and the fragments that lie in them, and the
 * client's in between, up to the last one that both know.
 */
export function woven(
  { messages, edits, held }: Woven,
  { matches, goesOn }: Pick<Alignment, 'matches' | 'goesOn'>,
  request: readonly ChatMessage[],
): Woven {
  /** By message of the view. */
  const to: number[] = []
  for (const { a, b } of matches) to[a] = b
  const last = matches.at(-1) ?? { a: -1, b: -1 }
  const limit = last.b + 1
  const waiting: ChatMessage[] = []
  const owners = ownersOf(messages)
  const made: StoredMessage[] = []
  /** By message of the thread. */
  const places: number[] = []
  let [view, next] = [0, 0]
  const give = (until: number) => {
    while (next < until) made.push({ message: request[next++]!, seen: 'same' })
  }
  const keep = (at: number) => {
    places[at] = made.length
    made.push(messages[at]!)
  }
  messages.forEach(({ message, seen }, at) => {
    if (seen === 'nothing') {
      // Behind results of the client's that are to come again it waits for those.
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
  const moved = <T extends { readonly message: number }>(each: T): T[] => {
    const place = places[each.message]
    return place === undefined ? [] : [{ ...each, message: place }]
  }
  return {
    messages: made,
    edits: { fragments: edits.fragments.flatMap(moved), searches: edits.searches.flatMap(moved), ids: edits.ids },
    held: goesOn ? held : waiting,
  }
}

/** Where the first match from this message of the view on stands in the request. */
function nextPlace(matches: readonly Match[], view: number): number | undefined {
  return matches[lowerBound(matches.length, (at) => matches[at]!.a < view)]?.b
}

/**
 * For messages that clients do not see the message of the view that they go with: steps with the answer that they lead to, or where it did not
 * come with what was asked; results with the step whose calls they answer.
 */
function ownersOf(messages: readonly StoredMessage[]): readonly number[] {
  const owners: number[] = []
  /** By message: whether the next one behind it that clients see is an answer. */
  const leads: boolean[] = []
  for (let at = messages.length - 1, next = false; at >= 0; at--) {
    leads[at] = next
    const { message, seen } = messages[at]!
    if (seen !== 'nothing') next = message.role === 'assistant'
  }
  let view = -1
  let step = -1
  messages.forEach(({ message, seen }, at) => {
    if (seen !== 'nothing') {
      view++
      if (message.role === 'assistant') step = view
      owners.push(view)
      return
    }
    if (message.role === 'assistant') step = leads[at] === true ? view + 1 : view
    owners.push(step)
  })
  return owners
}

/** Keys of all of them. */
export const keysOf = (messages: readonly ChatMessage[]): readonly string[] => messages.map(messageKey)

/** Those of a request; of messages that it and the thread begin with, or that lead to the thread's end, without looking at what they say. */
export function keysBeside({ view, keys }: Pick<Thread, 'view' | 'keys'>, request: readonly ChatMessage[]): readonly string[] {
  const known: string[] = []
  let head = 0
  while (head < Math.min(view.length, request.length) && isSame(view[head]!, request[head]!)) known[head] = keys[head++]!
  const end = view.at(-1)
  let at = end === undefined ? -1 : request.findLastIndex((message) => isSame(end, message))
  for (let of = view.length - 1; Math.min(at, of) >= head && isSame(view[of]!, request[at]!); at--) known[at] = keys[of--]!
  return request.map((message, index) => known[index] ?? messageKey(message))
}

// What a request asks of the threads, and which of those that have some of its messages it is of.

/** What a request asks of the book. */
export interface ThreadRequest {
  readonly tenant: Tenant
  readonly model: string
  readonly messages: readonly ChatMessage[]
  readonly thread?: string
  readonly appended?: boolean
  /** What the answer is to begin with. */
  readonly beginning?: string
  readonly tools: readonly ToolDefinition[]
}

/** The thread an ask has for itself, with its messages in it. */
export interface TakenThread {
  readonly thread: Thread
  /** Where the request left the thread it was matched with; null when it did not. `place`: index of the first other message in the thread. */
  readonly left: { readonly message: number; readonly place: number; readonly reason: string } | null
  /** What the request changed of what the thread, or the one that it was forked from, had. */
  readonly edits: readonly ClientEdit[]
  /** False: the thread is new and only begins as another one does. What it shares with that one must be exact (`Alignment`). */
  readonly isOwn: boolean
  /** Keys of messages that it has not any more. */
  readonly hidden: readonly string[]
  /** What the thread was; null: it did not exist. */
  readonly before: ThreadRecord | null
  /** Messages that the conversation had before the request added its own. */
  readonly known: number
}

/** The same before the messages are in it; `alignment`: it is to become what the request has of it. */
export type Taking = Omit<TakenThread, 'before' | 'known'> & { readonly alignment?: Alignment; readonly isNew?: true }

export interface Related {
  readonly thread: Thread
  readonly alignment: Alignment
}

export function isBetter(one: Related, other: Related): boolean {
  const goesOn = ({ alignment, thread }: Related) => (alignment.goesOn && !thread.asked ? 1 : 0)
  const more = goesOn(one) - goesOn(other) || one.alignment.matches.length - other.alignment.matches.length
  return more > 0 || (more === 0 && one.thread.used > other.thread.used)
}

/**
 * Where a request left a thread, and why; null when it asks the same again, or only begins alike.
 * @param id the thread, where the request names it
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

/** Where a request left the thread it was matched with. `place`: index of the first other message in the thread. */
interface Divergence {
  readonly message: number
  readonly place: number
  readonly reason: string
}
