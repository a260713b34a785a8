/** Owns the choice among stretches of a text that are held here and there: as much as positions allow stays what it was. */
import { length, span, type Span } from '../core/span.js'

/** Shown tokens that a source holds at entries and positions that follow on each other. */
export interface Stretch {
  /** Names the source. */
  readonly source: number
  /** What one token of it is worth as against the same token of another source. */
  readonly worth: number
  readonly span: Span
  /** Of the first of them. */
  readonly entry: number
  /** Their positions less their places. */
  readonly offset: number
}

/** Where the choice begins: a place, the position less that place, and whose entry comes next there. */
export interface Beginning {
  readonly place: number
  readonly offset: number
  readonly source: number
  readonly entry: number
}

/** A choice up to some place; what it reused last is linked to what it reused before. */
interface Choice {
  readonly before: Choice | null
  readonly piece: Stretch
  /** Of the text up to there. */
  readonly reused: number
  readonly seams: number
  readonly worth: number
}

/**
 * Chooses, from what is held, the most tokens whose positions can ascend if each that is left out is computed at the position after the token
 * before it. Since that takes a position for a place, positions ascend exactly where position less place does not fall: the longest
 * such selection is found by going through the text once, with the best choice for every offset at hand. Of equal ones it takes that with
 * the fewest changes of source (so that cells stand beside those that they were computed with), then the one of most worth.
 *
 * @returns the pieces in order, those of one source that follow on each other as one
 */
export function align(stretches: readonly Stretch[], { place, offset, source, entry }: Beginning): Stretch[] {
  const start: Stretch = { source, worth: 0, span: span(place, place), entry, offset }
  /** By ascending offset, each better than those before it: there is no use for a worse choice at a higher one. */
  let front: Choice[] = [{ before: null, piece: start, reused: 0, seams: 0, worth: 0 }]
  let last: readonly Choice[] = front
  for (const { options } of segmentsOf(stretches)) {
    const next: Choice[] = []
    for (const piece of options) {
      const before = front.findLast((choice) => choice.piece.offset <= piece.offset)
      // That one may have been given up for a better one of another source; going on from it costs no change.
      const same = last.find((choice) => follows(choice.piece, piece))
      const choices = [before, same].flatMap((choice) => (choice === undefined ? [] : [extended(choice, piece)]))
      const best = choices.reduce<Choice | null>((a, b) => (a === null || isBetter(b, a) ? b : a), null)
      if (best !== null) next.push(best)
    }
    front = bestOf([...front, ...next])
    last = next
  }
  const pieces: Stretch[] = []
  for (let at = front.at(-1) ?? null; at !== null; at = at.before) {
    const after = pieces[0]
    if (after === undefined || !follows(at.piece, after)) pieces.unshift(at.piece)
    else pieces[0] = { ...at.piece, span: span(at.piece.span.start, after.span.end) }
  }
  return pieces.filter((piece) => length(piece.span) > 0)
}

/** The text cut wherever a stretch begins or ends, and who holds each segment. */
function segmentsOf(stretches: readonly Stretch[]): { readonly options: readonly Stretch[] }[] {
  const borders = [...new Set(stretches.flatMap((each) => [each.span.start, each.span.end]))].sort((a, b) => a - b)
  const waiting = [...stretches].sort((a, b) => a.span.start - b.span.start)
  let open: Stretch[] = []
  let begun = 0
  return borders.slice(0, -1).map((start, at) => {
    const segment = span(start, borders[at + 1]!)
    while (waiting[begun]?.span.start === start) open.push(waiting[begun++]!)
    open = open.filter((each) => each.span.end > start)
    return { options: open.map((each) => ({ ...each, span: segment, entry: each.entry + start - each.span.start })) }
  })
}

const follows = (before: Stretch, after: Stretch): boolean =>
  before.source === after.source &&
  before.offset === after.offset &&
  before.span.end === after.span.start &&
  before.entry + length(before.span) === after.entry

function extended(before: Choice, piece: Stretch): Choice {
  const { source, entry, span: of } = before.piece
  const goesOn = source === piece.source && of.end === piece.span.start && entry + length(of) === piece.entry
  return {
    before,
    piece,
    reused: before.reused + length(piece.span),
    seams: before.seams + (goesOn ? 0 : 1),
    worth: before.worth + piece.worth * length(piece.span),
  }
}

const isBetter = (a: Choice, b: Choice): boolean =>
  a.reused !== b.reused ? a.reused > b.reused : a.seams !== b.seams ? a.seams < b.seams : a.worth > b.worth

function bestOf(choices: readonly Choice[]): Choice[] {
  const front: Choice[] = []
  for (const choice of [...choices].sort((a, b) => a.piece.offset - b.piece.offset || (isBetter(a, b) ? -1 : 1))) {
    const best = front.at(-1)
    if (best === undefined || isBetter(choice, best)) front.push(choice)
  }
  return front
}
