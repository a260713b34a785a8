/** Owns how a message falls into pieces on the strip: text between fragments, and the fragments. Pure. */
import { plural } from '../figures/numbers.js'
import type { Fragment, ThreadMessage } from './wire.js'

export type Piece =
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
