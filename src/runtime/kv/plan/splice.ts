/**
 * Makes the parts of a plan under contract `splice`: first exact cells, then cells that the conversation holds of the same text. The latter
 * keep their positions if they can.
 */
import { length, lowerBound, span, type Span } from '../../core/span.js'
import { held, type Part, positionAfter, turnOf, withComputed } from './parts.js'
import { commonPrefix, isMarker, markerSource, type Prompt, uneditedOf } from '../prompt.js'
import type { HeldSequence } from '../sequence.js'
import type { LatestView } from '../views.js'

export interface SplicedParts {
  /** The parts, which cover the whole prompt. The last token is computed, unless the exact beginning already contains it. */
  readonly parts: readonly Part[]
  /** 1: the last token is held, too, and is computed only for its logits. */
  readonly redecoded: 0 | 1
  /** Number of computed tokens that the conversation holds, but at positions where they cannot stay. */
  readonly blocked: number
}

/**
 * Where the cells that the conversation holds go. `stay`: they stay at their positions; tokens whose cells cannot stay are computed.
 * `turn`: as many stay as can, and the rest is copied to the positions right after the token before. `close`: all are copied right after
 * the token before, which leaves no gaps.
 */
export type Placing = 'stay' | 'turn' | 'close'

/**
 * Returns the parts for `prompt`. Its beginning comes from exact cells. Behind that, cells are found by source id. Positions must ascend,
 * and as many cells stay as can (`align`). Missing tokens are computed right after the token before them, because llama.cpp decodes only at
 * the next position. The last token is always computed, so it does not influence the choice.
 *
 * @param parked the other sequences of the conversation and its ancestors, latest used first
 * @param last the view that last showed the prompt's beginning; of several cells of one token, the plan prefers the one in this view
 * @param recomputed one element per prompt token: if it is not 0, the token is computed even though it is held
 */
export function splicedParts(
  sequence: HeldSequence,
  prompt: Prompt,
  keys: Int32Array,
  beginning: readonly Part[],
  parked: readonly HeldSequence[],
  last: LatestView | null,
  recomputed: Uint8Array | null,
  placing: Placing,
): SplicedParts {
  const { tokens } = prompt
  const own = [sequence, ...parked]
  const parts: Part[] = [...beginning]
  const from = beginningAfter(sequence, beginning.at(-1), own)
  if (from.place === tokens.length) return { parts, redecoded: 0, blocked: 0 }
  const end = tokens.length - 1
  const all = stretchesOf(own, prompt, keys, from, last, recomputed)
  const stretches = all.flatMap((each) => cutAt(each, end))
  const add = (part: Part) => {
    const before = parts.at(-1)
    if (before !== undefined && goesOn(before, part))
      parts[parts.length - 1] = { ...before, span: span(before.span.start, part.span.end) }
    else parts.push(part)
  }
  const fill = (end: number) => {
    for (let at = parts.at(-1)?.span.end ?? 0; at < end; at = parts.at(-1)?.span.end ?? end) {
      const before = parts.at(-1)
      const position = positionAfter(sequence, before)
      const one = placing === 'stay' ? undefined : likeliest(stretches, at, position, (each) => follows(own, before, at, each))
      if (one === undefined) {
        const next = stretches.reduce((least, { span: { start } }) => (start > at ? Math.min(least, start) : least), end)
        parts.splice(0, parts.length, ...withComputed(parts, span(at, placing === 'stay' ? end : next), position))
        continue
      }
      const of = span(at, Math.min(end, one.span.end))
      const entry = one.entry + at - one.span.start
      const holder = own[one.source]!
      if (one.offset === position - at) add(held(sequence, holder, of, entry))
      else add({ kind: 'turn', span: of, at: entry, from: holder, source: holder === sequence ? 'own' : 'parked', position })
    }
  }
  for (const { source, span: of, entry } of placing === 'close' ? [] : align(stretches, from)) {
    fill(of.start)
    add(held(sequence, own[source]!, of, entry))
  }
  fill(end)
  const blocked = blockedIn(parts, stretches)
  const position = positionAfter(sequence, parts.at(-1))
  const ofLast = all.filter((each) => each.span.end > end)
  const redecoded = ofLast.some(({ offset }) => placing !== 'stay' || offset >= position - end) ? 1 : 0
  const isBlocked = redecoded === 0 && ofLast.length > 0
  return { parts: withComputed(parts, span(end, tokens.length), position), redecoded, blocked: blocked + (isBlocked ? 1 : 0) }
}

/** Cuts the run off at prompt index `end`. Returns nothing if it begins there or later. */
const cutAt = (stretch: HeldRun, end: number): readonly HeldRun[] =>
  stretch.span.start >= end ? [] : [{ ...stretch, span: span(stretch.span.start, Math.min(stretch.span.end, end)) }]

/**
 * Chooses one of the runs that cover prompt index `at`. A run that can stay at its position wins, then one that continues the part before.
 * Of the rest, the one of most worth wins, and of equal ones the one that ends last.
 */
function likeliest(
  stretches: readonly HeldRun[],
  at: number,
  position: number,
  goesOn: (stretch: HeldRun) => boolean,
): HeldRun | undefined {
  const rank = (each: HeldRun) => [each.offset === position - at ? 1 : 0, goesOn(each) ? 1 : 0, each.worth, each.span.end]
  const better = (a: readonly number[], b: readonly number[]) => {
    const differing = a.findIndex((value, index) => value !== b[index])
    return differing !== -1 && a[differing]! > b[differing]!
  }
  return stretches
    .filter(({ span: { start, end } }) => start <= at && at < end)
    .reduce<HeldRun | undefined>((best, each) => (best === undefined || better(rank(each), rank(best)) ? each : best), undefined)
}

/** Whether, at prompt index `at`, the run continues with the entry right after those of the turned part `before`. */
function follows(own: readonly HeldSequence[], before: Part | undefined, at: number, stretch: HeldRun): boolean {
  if (before?.kind !== 'turn' || own[stretch.source] !== before.from) return false
  return before.at + length(before.span) === stretch.entry + at - stretch.span.start
}

/**
 * Whether two parts can be merged: the entries of `next` come right after those of `before` in the same sequence, and both move by the same
 * distance.
 */
function goesOn(before: Part, next: Part): boolean {
  if (before.kind === 'compute' || next.kind === 'compute' || before.kind !== next.kind) return false
  if (before.kind !== 'keep' && next.kind !== 'keep' && before.from !== next.from) return false
  if (before.at + length(before.span) !== next.at) return false
  return before.kind !== 'turn' || next.kind !== 'turn' || turnOf(before) === turnOf(next)
}

function beginningAfter(sequence: HeldSequence, last: Part | undefined, own: readonly HeldSequence[]): ChoiceBeginning {
  if (last === undefined || last.kind === 'compute') return { place: 0, offset: 0, source: 0, entry: 0 }
  const source = own.indexOf(last.kind === 'keep' ? sequence : last.from)
  return { place: last.span.end, offset: 0, source, entry: last.at + length(last.span) }
}

/** Returns the runs of prompt tokens, behind the exact beginning, that sequences of the conversation hold. */
function stretchesOf(
  own: readonly HeldSequence[],
  prompt: Prompt,
  keys: Int32Array,
  from: ChoiceBeginning,
  last: LatestView | null,
  recomputed: Uint8Array | null,
): HeldRun[] {
  const base = uneditedOf(prompt)
  const of = (source: number, place: number) => {
    const holder = own[source]!
    const all = stretchesIn(holder, source, prompt.tokens, base, keys, place, recomputed)
    return last === null ? all : all.flatMap((each) => markedIn(each, holder, last))
  }
  const ofLive = of(0, from.place)
  const others = own.slice(1).map((_, at) => at + 1)
  // Usually the live sequence continues from the beginning and holds the whole text. Then only tokens behind it can come from another
  // sequence.
  let next = from
  for (const { source, span: of, entry } of ofLive)
    if (next.source === source && next.place === of.start && next.entry === entry)
      next = { ...next, place: of.end, entry: entry + length(of) }
  const place = next.place
  const isWhole = ofLive.at(-1)?.span.end === place && recomputed?.some((reason) => reason > 0) !== true && last?.view === own[0]
  if (isWhole && others.every((source) => of(source, place).length === 0)) return ofLive
  return [...ofLive, ...others.flatMap((source) => of(source, from.place))]
}

/** Splits the run where it starts or ceases to consist of the cells that the view shows. Marks each piece accordingly (`shown`). */
function markedIn(stretch: HeldRun, holder: HeldSequence, { view, places }: LatestView): readonly HeldRun[] {
  const { span: of, entry } = stretch
  const isShown = (at: number) => at < places && (view === holder || view.cellWord(at) === holder.cellWord(entry + at - of.start))
  const runs: HeldRun[] = []
  for (let at = of.start; at < of.end;) {
    const shown = isShown(at)
    const start = at
    if (view === holder) at = shown ? Math.min(of.end, places) : of.end
    else while (at < of.end && isShown(at) === shown) at++
    runs.push({ ...stretch, span: span(start, at), entry: entry + start - of.start, shown })
  }
  return runs
}

/**
 * Returns the runs of prompt tokens, from index `place` on, that the sequence `holder` holds. `source` is its index among the
 * conversation's sequences.
 */
export function stretchesIn(
  holder: HeldSequence,
  source: number,
  tokens: Int32Array,
  base: Int32Array,
  keys: Int32Array,
  place: number,
  recomputed: Uint8Array | null,
): HeldRun[] {
  if (holder.held === 0 || place >= tokens.length) return []
  const { sourceIds: heldKeys, tokens: heldTokens, held } = holder
  // If `place` lies within a marker, the holder must hold the marker from its beginning on.
  let first = place
  while (first > 0 && isMarker(keys[first]!) && keys[first - 1] === keys[first]) first--
  let entry = holder.atKey(keys[first]!)
  // Most parked sequences hold no token from `place` on, or have a shorter unedited prompt. This check spares comparing the prompts.
  if (entry === held || keys[place]! > markerSource(holder.unedited.length)) return []
  /** The largest source id that means the same in both unedited prompts: that of a marker right behind their common text. */
  const last = markerSource(commonPrefix(holder.unedited, base))
  const end = lowerBound(tokens.length, (at) => keys[at]! <= last)
  const worth = source === 0 ? 2 : holder.tier === 'device' ? 1 : 0
  const found: HeldRun[] = []
  /** Whether the holder has the current token. Within a marker, it must also have all tokens of the marker before it. */
  let said = false
  for (let at = first; at < end && entry < held;) {
    const key = keys[at]!
    const heldKey = heldKeys[entry]!
    if (heldKey < key) {
      entry = holder.atKey(key)
      continue
    }
    const inside = isMarker(key) && at > 0 && keys[at - 1] === key
    said = heldKey === key && heldTokens[entry] === tokens[at] && (recomputed?.[at] ?? 0) === 0 && (!inside || said)
    if (!said) {
      at = heldKey === key ? at + 1 : lowerBound(end, (next) => keys[next]! < heldKey)
      continue
    }
    let until = at < place ? place : end
    if (recomputed !== null) for (let next = at; next < until; next++) if (recomputed[next] !== 0) until = next
    const run = commonPrefix(keys.subarray(at, until), heldKeys.subarray(entry))
    const same = entry + commonPrefix(tokens.subarray(at, at + run), heldTokens.subarray(entry))
    while (entry < same) {
      const position = holder.position(entry)
      const goesOn = (offset: number) => holder.position(entry + offset) === position + offset
      const count = goesOn(same - entry - 1) ? same - entry : lowerBound(same - entry, goesOn)
      if (at >= place) found.push({ source, worth, shown: false, span: span(at, at + count), entry, offset: position - at })
      entry += count
      at += count
    }
  }
  return found
}

/** Counts the tokens that are computed although one of the runs holds them. */
function blockedIn(parts: readonly Part[], stretches: readonly HeldRun[]): number {
  let blocked = 0
  for (const { kind, span: of } of parts) {
    if (kind !== 'compute') continue
    const covered = new Uint8Array(length(of))
    for (const { span: held } of stretches)
      if (held.start < of.end && held.end > of.start) covered.fill(1, Math.max(0, held.start - of.start), held.end - of.start)
    for (const one of covered) blocked += one
  }
  return blocked
}

// Chooses, run by run, the sequence whose cells are reused: as many tokens as possible, with ascending positions.

/** Shown tokens that one sequence holds in consecutive entries, at consecutive positions. */
export interface HeldRun {
  /** Index of the sequence that holds it among the conversation's sequences; 0 is the live one. */
  readonly source: number
  /** The worth of each of its tokens: 2 in the live sequence, 1 in another one on the device, 0 in a lower tier. */
  readonly worth: number
  /** Whether the conversation last showed these tokens, behind the same text, by these very cells. */
  readonly shown: boolean
  readonly span: Span
  /** The entry of the run's first token in that sequence. */
  readonly entry: number
  /** The position of each token minus its prompt index. */
  readonly offset: number
}

/**
 * The point from which `align` chooses: a prompt index (`place`), the position minus that index (`offset`), and the entry of the sequence
 * `source` that would continue there.
 */
export interface ChoiceBeginning {
  readonly place: number
  readonly offset: number
  readonly source: number
  readonly entry: number
}

/** One way to fill the prompt with held tokens up to some index: its last piece, and a link to the choice without that piece. */
interface RunChoice {
  readonly before: RunChoice | null
  readonly piece: HeldRun
  /** Number of reused tokens in the whole choice. */
  readonly reused: number
  readonly shown: number
  readonly seams: number
  readonly worth: number
}

/**
 * Chooses as many held tokens as possible such that positions ascend. A token that is left out is computed at the position after the token
 * before it, so its offset (position minus prompt index) is the same. So positions ascend exactly if the offset never falls. One pass
 * through the text finds the largest such choice, because it keeps the best choice for every offset.
 *
 * Of equal choices, it takes the one with the most cells that were shown last behind the same text. Then it takes the one with the fewest
 * changes of source, so that cells stay beside the cells that they were computed with. Then it takes the one of most worth.
 *
 * @returns the pieces in order; consecutive ones of one source are merged
 */
export function align(stretches: readonly HeldRun[], { place, offset, source, entry }: ChoiceBeginning): HeldRun[] {
  const start: HeldRun = { source, worth: 0, shown: false, span: span(place, place), entry, offset }
  /** The best choices so far, by ascending offset. A choice must be better than all at lower offsets; a worse one would be useless. */
  let front: RunChoice[] = [{ before: null, piece: start, reused: 0, shown: 0, seams: 0, worth: 0 }]
  let last: readonly RunChoice[] = front
  for (const { options } of segmentsOf(stretches)) {
    const next: RunChoice[] = []
    for (const piece of options) {
      const before = front.findLast((choice) => choice.piece.offset <= piece.offset)
      // The choice that ends where this piece continues the same source. `front` may have dropped it for a better one.
      const same = last.find((choice) => isOne(choice.piece, piece))
      const choices = [before, same].flatMap((choice) => (choice === undefined ? [] : [extended(choice, piece)]))
      const best = choices.reduce<RunChoice | null>((a, b) => (a === null || isBetter(b, a) ? b : a), null)
      if (best !== null) next.push(best)
    }
    front = bestOf([...front, ...next])
    last = next
  }
  const pieces: HeldRun[] = []
  for (let at = front.at(-1) ?? null; at !== null; at = at.before) {
    const after = pieces[0]
    if (after === undefined || !isOne(at.piece, after)) pieces.unshift(at.piece)
    else pieces[0] = { ...at.piece, span: span(at.piece.span.start, after.span.end) }
  }
  return pieces.filter((piece) => length(piece.span) > 0)
}

/** Cuts the text at the beginnings and ends of all runs. Returns, for each segment, the runs that hold it. */
function segmentsOf(stretches: readonly HeldRun[]): { readonly options: readonly HeldRun[] }[] {
  const borders = [...new Set(stretches.flatMap((each) => [each.span.start, each.span.end]))].sort((a, b) => a - b)
  const waiting = [...stretches].sort((a, b) => a.span.start - b.span.start)
  let open: HeldRun[] = []
  let begun = 0
  return borders.slice(0, -1).map((start, at) => {
    const segment = span(start, borders[at + 1]!)
    while (waiting[begun]?.span.start === start) open.push(waiting[begun++]!)
    open = open.filter((each) => each.span.end > start)
    return { options: open.map((each) => ({ ...each, span: segment, entry: each.entry + start - each.span.start })) }
  })
}

const isOne = (before: HeldRun, after: HeldRun): boolean =>
  before.source === after.source &&
  before.offset === after.offset &&
  before.span.end === after.span.start &&
  before.entry + length(before.span) === after.entry

function extended(before: RunChoice, piece: HeldRun): RunChoice {
  const { source, entry, span: of } = before.piece
  const goesOn = source === piece.source && of.end === piece.span.start && entry + length(of) === piece.entry
  return {
    before,
    piece,
    reused: before.reused + length(piece.span),
    shown: before.shown + (piece.shown ? length(piece.span) : 0),
    seams: before.seams + (goesOn ? 0 : 1),
    worth: before.worth + piece.worth * length(piece.span),
  }
}

function isBetter(a: RunChoice, b: RunChoice): boolean {
  if (a.reused !== b.reused) return a.reused > b.reused
  if (a.shown !== b.shown) return a.shown > b.shown
  return a.seams !== b.seams ? a.seams < b.seams : a.worth > b.worth
}

function bestOf(choices: readonly RunChoice[]): RunChoice[] {
  const front: RunChoice[] = []
  for (const choice of [...choices].sort((a, b) => a.piece.offset - b.piece.offset || (isBetter(a, b) ? -1 : 1))) {
    const best = front.at(-1)
    if (best === undefined || isBetter(choice, best)) front.push(choice)
  }
  return front
}
