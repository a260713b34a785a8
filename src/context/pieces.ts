/** Owns turning a stretch of text into pieces that begin and end on token borders. */
import { invariant } from '../core/errors.js'
import { contains, span, type Span } from '../core/span.js'
import { cutsWithin } from './cuts.js'

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
