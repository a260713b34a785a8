/** Finds the text between two markers, and cuts text into fragments that begin and end on token borders. */
import type { ChatMessage } from '../chat/message.js'
import { span, type Span, contains, length } from '../core/span.js'
import { quoted, refuse, type Result } from './refusal.js'
import { invariant } from '../core/errors.js'
import type { Steps } from '../core/turns.js'

/** A character span of one message's original content. */
export interface Stretch {
  readonly message: number
  readonly span: Span
}

export interface MarkerQuery {
  readonly startMarker: string
  readonly endMarker: string
  readonly scope: Scope
}

interface StretchStart {
  readonly message: number
  readonly start: number
}

/**
 * Finds the original text from the first `startMarker` to the first `endMarker` after it, both included. Returns one non-empty span for
 * each message of that range whose role is in scope.
 * @param omitted indexes of messages that are hidden as a whole; they are left out. Default: none
 */
export function between(
  all: readonly ChatMessage[],
  { startMarker, endMarker, scope }: MarkerQuery,
  omitted: ReadonlySet<number> = new Set(),
): Result<{ stretches: readonly Stretch[] }> {
  const messages = omitted.size === 0 ? all : all.map((each, at) => (omitted.has(at) ? { ...each, content: '' } : each))
  const absent = (name: string, marker: string) => refuse('tool/refused', missing(messages, all, name, marker, scope))
  for (const [name, marker] of [
    ['start_marker', startMarker],
    ['end_marker', endMarker],
  ] as const)
    if (marker === '') return refuse('tool/bad-arguments', `${name} is empty. Give a few words copied from the text.`)

  const beginning: StretchStart = { message: 0, start: 0 }
  const start = find(messages, startMarker, scope, beginning)
  if (start === null) return absent('start_marker', startMarker)
  const end = find(messages, endMarker, scope, { message: start.message, start: start.start + startMarker.length })
  if (end === null)
    return find(messages, endMarker, scope, beginning) === null
      ? absent('end_marker', endMarker)
      : refuse(
          'tool/refused',
          `end_marker ${quoted(endMarker)} does not come after start_marker, only before its end. Choose an end_marker that comes later, or swap the two.`,
        )

  const stretches: Stretch[] = []
  for (let message = start.message; message <= end.message; message++) {
    const original = messages[message]
    if (original === undefined || !inScope(original, scope)) continue
    const from = message === start.message ? start.start : 0
    const to = message === end.message ? end.start + endMarker.length : original.content.length
    if (from < to) stretches.push({ message, span: span(from, to) })
  }
  return { ok: true, stretches }
}

/** Returns where `text` first occurs at or after `from`, in messages of the scope; null when it does not occur. */
function find(messages: readonly ChatMessage[], text: string, scope: Scope, from: StretchStart): StretchStart | null {
  for (let message = from.message; message < messages.length; message++) {
    const original = messages[message]
    if (original === undefined || !inScope(original, scope)) continue
    const start = original.content.indexOf(text, message === from.message ? from.start : 0)
    if (start >= 0) return { message, start }
  }
  return null
}

/** Tells the model that a marker was not found, and the most likely reason. @param all the messages, those hidden as a whole included */
function missing(
  messages: readonly ChatMessage[],
  all: readonly ChatMessage[],
  name: string,
  marker: string,
  scope: Scope,
): string {
  const not = `${name} ${quoted(marker)} is not in the ${scopeName(scope)}.`
  const isElsewhere = (of: readonly ChatMessage[]) =>
    of.some((message) => searchable(message, 'all') && message.name !== REFUSING && message.content.includes(marker))
  if (scope !== 'all' && isElsewhere(messages)) return `${not} It is in other messages: call again with role "all".`
  if (isElsewhere(all))
    return `${not} It is in a message that is hidden as a whole: search_context and get_search_detail show its text.`
  const lower = messages.map((message) => ({ ...message, content: message.content.toLowerCase() }))
  if (find(lower, marker.toLowerCase(), scope, { message: 0, start: 0 }) !== null)
    return `${not} It is there in other upper or lower case: copy it exactly.`
  return `${not} Copy a few words of the text exactly, as they stand there.`
}

// Which messages a tool's `role` argument includes.

/** The values of the tools' `role` argument. */
export const scopes = ['user', 'assistant', 'all'] as const
export type Scope = (typeof scopes)[number]

/** Tools whose results quote the conversation itself. */
const QUOTING = new Set(['search_context', 'get_search_detail'])
/** A refusal by this tool quotes the marker that was not found. So its results do not count as a place where the marker occurs. */
const REFUSING = 'fragment_context'

/**
 * Whether `scope` includes this message. `all` means every message but system messages. It includes tool results, because they are often
 * the longest.
 */
export function inScope(message: ChatMessage, scope: Scope): boolean {
  return scope === 'all' ? message.role !== 'system' : message.role === scope
}

/** Like `inScope`, but without results of the search tools, which only repeat text from other messages. */
export function searchable(message: ChatMessage, scope: Scope): boolean {
  return inScope(message, scope) && !(message.role === 'tool' && QUOTING.has(message.name ?? ''))
}

/** Names a scope in a text for the model: `user messages`, `assistant messages`, `messages`. */
export const scopeName = (scope: Scope): string => (scope === 'all' ? 'messages' : `${scope} messages`)

// Cutting text into fragments on token borders.

/**
 * Cuts `chars` into at most `count` adjacent pieces, none empty. The pieces cover `chars`, widened at both ends to the nearest token
 * borders. There are fewer pieces when the text is short, or when several cuts fall into one token.
 * A whole content that stays in one piece needs no border search.
 *
 * @param snap widens a span of `content` to the token borders around it
 * @throws KvfoldError internal/invariant when `snap` does not widen, or leaves `content`
 */
export function* piecesOf(content: string, chars: Span, count: number, snap: (chars: Span) => Span): Steps<readonly Span[]> {
  const whole = span(0, content.length)
  if (count === 1 && contains(chars, whole)) return [chars]
  const widen = (inner: Span): Span => {
    const outer = snap(inner)
    invariant(
      contains(outer, inner) && contains(whole, outer),
      `Token borders around [${inner.start}, ${inner.end}) came out as [${outer.start}, ${outer.end}) of ${content.length} characters.`,
    )
    return outer
  }
  const { start, end } = widen(chars)
  // `widen` moves the start of the text after the cut back to a token border, and that border becomes the cut.
  const cuts: number[] = []
  for (const cut of yield* cutsWithin(content, chars, count)) {
    yield
    cuts.push(widen(span(cut, end)).start)
  }
  const borders = [...new Set([start, ...cuts, end])]
  const pieces = borders.slice(1).map((border, index) => span(borders[index] ?? start, border))
  invariant(
    pieces.every((piece) => piece.start < piece.end),
    `Token borders are out of order: ${borders.join(', ')}.`,
  )
  return pieces
}

// Choosing cuts: fragments of about equal length that end at natural pauses.

/** A kind of natural pause. Returns true when text may be cut right before character `at`. Precondition: 0 < at < text.length. */
type Border = (text: string, at: number) => boolean

const isSpace = (text: string, at: number): boolean => /\s/u.test(text.charAt(at))
const isLineEnd = (text: string, at: number): boolean => text[at] === '\n'

/**
 * The kinds of pause, best first. White space after a sentence or word goes to the next fragment, as most vocabularies put it at the
 * start of a token.
 */
const borders: readonly Border[] = [
  // After a blank line.
  (text, at) =>
    isLineEnd(text, at - 1) && (isLineEnd(text, at - 2) || text.slice(at - 3, at) === '\n\r\n') && !isLineEnd(text, at),
  // After a line.
  (text, at) => isLineEnd(text, at - 1),
  // After a sentence or clause.
  (text, at) => '.;!?'.includes(text.charAt(at - 1)) && isSpace(text, at),
  // Before whitespace.
  (text, at) => isSpace(text, at) && !isSpace(text, at - 1),
  // Anywhere but inside a surrogate pair.
  (text, at) => !(isHigh(text.charCodeAt(at - 1)) && isLow(text.charCodeAt(at))),
]

const isHigh = (unit: number): boolean => unit >= 0xd800 && unit <= 0xdbff
const isLow = (unit: number): boolean => unit >= 0xdc00 && unit <= 0xdfff

/**
 * Returns at most `pieces - 1` cuts strictly inside `stretch`, ascending. The cuts start at equal distances. Each then moves to the nearest
 * pause of the best kind, by at most a quarter of a piece. There are fewer cuts when the text is too short.
 */
export function* cutsWithin(text: string, stretch: Span, pieces: number): Steps<readonly number[]> {
  const piece = length(stretch) / pieces
  const cuts: number[] = []
  for (let index = 1; index < pieces; index++) {
    yield
    const cut = nearest(text, stretch, stretch.start + piece * index, piece / 4, cuts.at(-1) ?? stretch.start)
    if (cut !== null) cuts.push(cut)
  }
  return cuts
}

/**
 * Returns the best cut near `ideal`: after `previous`, before the end of the span, at most `reach` away. Of two at the same distance it
 * takes the earlier. Returns null when there is none.
 */
function nearest(text: string, stretch: Span, ideal: number, reach: number, previous: number): number | null {
  const center = Math.round(ideal)
  for (const isBorder of borders)
    for (let distance = 0; distance <= Math.ceil(reach) + 1; distance++)
      for (const at of distance === 0 ? [center] : [center - distance, center + distance])
        if (at > previous && at < stretch.end && Math.abs(at - ideal) <= Math.max(reach, 1) && isBorder(text, at)) return at
  return null
}

/** Divides `pieces` among spans by their lengths. Each span gets at least one, so with more spans than pieces the sum exceeds `pieces`. */
export function* apportion(pieces: number, lengths: readonly number[]): Steps<readonly number[]> {
  const shares = lengths.map(() => 1)
  for (let left = pieces - shares.length; left > 0; left--) {
    yield
    let longest = 0
    for (let index = 1; index < shares.length; index++)
      if ((lengths[index] ?? 0) / (shares[index] ?? 1) > (lengths[longest] ?? 0) / (shares[longest] ?? 1)) longest = index
    shares[longest] = (shares[longest] ?? 0) + 1
  }
  return shares
}

/** A span to hide. With `summary`, the model sees the summary in its place; without, the default marker. */
export interface Hidden extends Stretch {
  readonly summary?: string
}
