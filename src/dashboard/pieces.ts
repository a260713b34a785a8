/** Owns how a message falls into pieces, and how a stretch of it is named to the server. Pure. */
import { plural } from '../figures/numbers.js'
import type { Fragment, ThreadMessage, Thread } from './wire.js'

type Piece =
  | { readonly kind: 'text'; readonly start: number; readonly end: number }
  | { readonly kind: 'fragment'; readonly fragment: Fragment }

/** In order, none empty; together they are the whole content. */
export function piecesOf({ message: { content }, fragments }: Pick<ThreadMessage, 'message' | 'fragments'>): Piece[] {
  const pieces: Piece[] = []
  let at = 0
  const upTo = (end: number) => {
    if (at < end) pieces.push({ kind: 'text', start: at, end })
  }
  for (const fragment of fragments) {
    upTo(fragment.span.start)
    pieces.push({ kind: 'fragment', fragment })
    at = fragment.span.end
  }
  upTo(content.length)
  return pieces
}

/** Tokens that a message takes on the strip: what the last step showed of it; for one that no step has seen yet, about what it will. */
export const widthOf = ({ cost, shown }: Pick<ThreadMessage, 'cost' | 'shown'>): number =>
  Math.max(1, cost?.shown ?? Math.ceil(shown.length / 4))

/** The beginning, on one line. */
export function excerptOf(text: string, most: number): string {
  const line = text
    .slice(0, 2 * most)
    .replace(/\s+/gu, ' ')
    .trim()
  return line.length > most || text.length > 2 * most ? `${line.slice(0, most)}…` : line
}

/** Where the cells of a hidden fragment are, in words; nothing where that is not known. */
export function whereIs({ cells }: Pick<Fragment, 'cells'>): string[] {
  if (cells === undefined || cells.tokens === 0) return []
  const { live, parked, host, disk, gone } = cells
  const places = [
    [live, 'still in its sequence'],
    [parked, 'parked in the cache'],
    [host, 'in host memory'],
    [disk, 'on disk'],
    [gone, 'to be computed again'],
  ] as const
  return places.flatMap(([tokens, where]) => (tokens === 0 ? [] : [`${plural(tokens, 'token')} ${where}`]))
}

/** What hiding the fragment came to, in a few words; none for an open one, or where nobody counted. */
export function pays({ price, state }: Fragment): readonly string[] {
  if (price === undefined || state.kind === 'open') return []
  const saved = price.open - price.hidden
  const about = price.about === true ? 'about ' : ''
  if (saved > 0) return [`saves ${about}${plural(saved, 'token')}`]
  return [saved === 0 ? 'does not pay: saves nothing' : `does not pay: ${about}${plural(-saved, 'token')} more`]
}

/** How a stretch of a message is named to the server, which cuts between two markers. */
type Markers = { readonly startMarker: string; readonly endMarker: string; readonly role: 'all' }

/**
 * Two halves of the stretch as markers. Null when the server would find other text by them: the stretch is shorter than two characters, its
 * message is the system's, or the same text stands earlier.
 */
export function markersOf(messages: Thread['messages'], index: number, start: number, end: number): Markers | null {
  const text = messages[index]?.message.content.slice(start, end) ?? ''
  if (text.length < 2 || messages[index]?.message.role === 'system') return null
  const middle = text.length >> 1
  const [startMarker, endMarker] = [text.slice(0, middle), text.slice(middle)]
  const searched = messages.filter(({ message }) => message.role !== 'system')
  const first = searched.find(({ message }) => message.content.includes(startMarker))
  const here = first?.index === index && first.message.content.indexOf(startMarker) === start
  return here && first.message.content.indexOf(endMarker, start + middle) === start + middle
    ? { startMarker, endMarker, role: 'all' }
    : null
}
