/** Owns turning a stretch of text into pieces that begin and end on token borders. */
import { invariant } from '../core/errors.js'
import { contains, length, span, type Span } from '../core/span.js'

/**
 * At most `count` adjacent spans, none empty, that cover `chars` and as little beside it as token borders allow. Fewer where
 * the text is short or cuts fall into one token.
 *
 * @param snap widens characters of `content` to the token borders around them
 * @throws KvfoldError internal/invariant when `snap` does not widen, or leaves `content`
 */
export function piecesOf(content: string, chars: Span, count: number, snap: (chars: Span) => Span): readonly Span[] {
  const whole = span(0, content.length)
  const widen = (inner: Span): Span => {
    const outer = snap(inner)
    invariant(
      contains(outer, inner) && contains(whole, outer),
      `Token borders around [${inner.start}, ${inner.end}) came out as [${outer.start}, ${outer.end}) of ${content.length} characters.`,
    )
    return outer
  }
  const { start, end } = widen(chars)
  // The border at or before a cut is where the rest of the stretch, widened, begins.
  const cuts = cutsWithin(content, chars, count).map((cut) => widen(span(cut, end)).start)
  const borders = [...new Set([start, ...cuts, end])]
  const pieces = borders.slice(1).map((border, index) => span(borders[index] ?? start, border))
  invariant(
    pieces.every((piece) => piece.start < piece.end),
    `Token borders are out of order: ${borders.join(', ')}.`,
  )
  return pieces
}

// Where a stretch of text is cut: pieces of about equal length that end where a reader would pause.

/** A kind of natural border: true when the text may be cut right before character `at`. Precondition: 0 < at < text.length. */
type Border = (text: string, at: number) => boolean

const isSpace = (text: string, at: number): boolean => /\s/u.test(text.charAt(at))
const isLineEnd = (text: string, at: number): boolean => text[at] === '\n'

/** Best first. The whitespace after a sentence or a word goes with the next piece, as most vocabularies have it. */
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
 * Cuts strictly inside `stretch`, ascending, at most `pieces - 1` of them: equal distances, each moved by at most a quarter of
 * a piece to the nearest border of the best kind that has one there. Fewer when the text is too short.
 */
export function cutsWithin(text: string, stretch: Span, pieces: number): readonly number[] {
  const piece = length(stretch) / pieces
  const cuts: number[] = []
  for (let index = 1; index < pieces; index++) {
    const cut = nearest(text, stretch, stretch.start + piece * index, piece / 4, cuts.at(-1) ?? stretch.start)
    if (cut !== null) cuts.push(cut)
  }
  return cuts
}

/** The cut nearest to `ideal` (the earlier of two), after `previous` and before the end of the stretch. */
function nearest(text: string, stretch: Span, ideal: number, reach: number, previous: number): number | null {
  const center = Math.round(ideal)
  for (const isBorder of borders)
    for (let distance = 0; distance <= Math.ceil(reach) + 1; distance++)
      for (const at of distance === 0 ? [center] : [center - distance, center + distance])
        if (at > previous && at < stretch.end && Math.abs(at - ideal) <= Math.max(reach, 1) && isBorder(text, at)) return at
  return null
}

/**
 * Divides `pieces` among stretches by their lengths, at least one each; more than `pieces` in all when there are more
 * stretches than that.
 */
export function apportion(pieces: number, lengths: readonly number[]): readonly number[] {
  const shares = lengths.map(() => 1)
  for (let left = pieces - shares.length; left > 0; left--) {
    let longest = 0
    for (let index = 1; index < shares.length; index++)
      if ((lengths[index] ?? 0) / (shares[index] ?? 1) > (lengths[longest] ?? 0) / (shares[longest] ?? 1)) longest = index
    shares[longest] = (shares[longest] ?? 0) + 1
  }
  return shares
}
