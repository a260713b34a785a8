/**
 * An immutable text that knows where in the conversation each character was copied from. Neighbouring characters of the same origin form a
 * piece.
 */
import { lowerBound, type Span } from '../core/span.js'
import { atOnce, type Steps } from '../core/turns.js'

export class Tracked {
  static readonly empty = new Tracked([], '')

  readonly #value: string
  /** The offset of each piece; computed at the first `slice`. */
  #starts: Int32Array | null = null

  private constructor(
    readonly pieces: readonly Piece[],
    value?: string,
  ) {
    this.#value = value ?? pieces.map((piece) => piece.text).join('')
  }

  /** Makes text of one origin. `text` must be the beginning of the original, for example of a message's content. */
  static of(text: string, origin: Origin): Tracked {
    if (text === '') return Tracked.empty
    const to = typeof origin === 'string' ? 0 : text.length
    return new Tracked([{ text, origin, from: 0, to, exact: true, owner: null }], text)
  }

  static join(parts: readonly Tracked[]): Tracked {
    const pieces: Piece[] = []
    for (const part of parts) for (const piece of part.pieces) append(pieces, piece)
    return pieces.length === 0 ? Tracked.empty : new Tracked(pieces, parts.map(({ value }) => value).join(''))
  }

  get value(): string {
    return this.#value
  }

  get length(): number {
    return this.#value.length
  }

  /** Returns the characters `[start, end)`. */
  slice(start: number, end = this.length): Tracked {
    if (start <= 0 && end >= this.length) return this
    if (start >= end || start >= this.length) return Tracked.empty
    const from = Math.max(0, start)
    const to = Math.min(end, this.length)
    const starts = (this.#starts ??= startsOf(this.pieces))
    const pieces: Piece[] = []
    // No piece is empty, so `from` lies in the last piece that starts at or before it.
    for (let index = lowerBound(starts.length, (at) => starts[at]! <= from) - 1; starts[index]! < to; index++) {
      const [piece, at] = [this.pieces[index]!, starts[index]!]
      pieces.push(cutPiece(piece, Math.max(0, from - at), Math.min(piece.text.length, to - at)))
    }
    return new Tracked(pieces, this.#value.slice(start, end))
  }

  /**
   * Returns `text` as the replacement of `[start, end)`. If the replaced characters all come from one original, the new text keeps their
   * range of it. If not, its origin is that of the first piece if that is `template` or `unknown`, else `unknown`.
   */
  changed(start: number, end: number, text: string): Tracked {
    const { pieces } = this.slice(start, end)
    const [first] = pieces
    const last = pieces.at(-1)
    if (text === '' || first === undefined || last === undefined) return Tracked.of(text, 'unknown')
    const { origin, owner } = first
    if (typeof origin === 'string' || pieces.some((piece) => piece.origin !== origin))
      return new Tracked(
        [{ text, origin: typeof origin === 'string' ? origin : 'unknown', from: 0, to: 0, exact: true, owner }],
        text,
      )
    return new Tracked([{ text, origin, from: first.from, to: last.to, exact: false, owner }], text)
  }

  /** Replaces each match of a global pattern by the result of `change`. A `Tracked` result keeps its own origins. */
  replace(pattern: RegExp, change: (match: string) => string | Tracked): Tracked {
    const parts: Tracked[] = []
    let at = 0
    for (const match of this.#value.matchAll(pattern)) {
      const end = match.index + match[0].length
      const made = change(match[0])
      parts.push(this.slice(at, match.index), typeof made === 'string' ? this.changed(match.index, end, made) : made)
      at = end
    }
    if (parts.length === 0) return this
    parts.push(this.slice(at))
    return Tracked.join(parts)
  }

  /** Splits at `separator` (not empty), into at most `most + 1` parts. */
  split(separator: string, most = Infinity): Tracked[] {
    const parts: Tracked[] = []
    let at = 0
    for (let found = this.#value.indexOf(separator); found !== -1 && parts.length < most;) {
      parts.push(this.slice(at, found))
      at = found + separator.length
      found = this.#value.indexOf(separator, at)
    }
    parts.push(this.slice(at))
    return parts
  }

  /** Changes the case of each piece. A piece whose length changes is not exact afterwards. */
  mapCase(change: (text: string) => string): Tracked {
    const pieces = this.pieces.map((piece) => {
      const text = change(piece.text)
      return { ...piece, text, exact: piece.exact && text.length === piece.text.length }
    })
    return new Tracked(pieces)
  }

  /** Gives all pieces without an owner this owner. */
  owned(owner: Owner): Tracked {
    if (this.pieces.every((piece) => piece.owner !== null)) return this
    const pieces: Piece[] = []
    for (const piece of this.pieces) append(pieces, piece.owner === null ? { ...piece, owner } : piece)
    return new Tracked(pieces, this.#value)
  }
}

function startsOf(pieces: readonly Piece[]): Int32Array {
  const starts = new Int32Array(pieces.length)
  for (let index = 1; index < pieces.length; index++) starts[index] = starts[index - 1]! + pieces[index - 1]!.text.length
  return starts
}

function append(pieces: Piece[], piece: Piece): void {
  if (piece.text === '') return
  const last = pieces.at(-1)
  if (last !== undefined && continues(last, piece))
    pieces[pieces.length - 1] = { ...last, text: last.text + piece.text, to: piece.to }
  else pieces.push(piece)
}

// Where rendered text comes from, and which message it belongs to.

/** The fields of a conversation that templates copy text from. */
export type Field = 'content' | 'note' | 'reasoning' | 'call' | 'tool'

/**
 * Where text comes from. `template`: written by the template, or a trusted value such as a role or BOS; control tokens in it count.
 * `unknown`: made by an operation that does not track origins, and treated like text from outside. An object: copied from this field of
 * this message. Tool definitions have message 0, but belong to none.
 */
export type Origin = 'template' | 'unknown' | { readonly field: Field; readonly message: number }

/** What text belongs to: the message with this index, or `prompt`, the generation prompt. */
export type Owner = number | 'prompt'

/** Consecutive text of one origin and one owner. */
export interface Piece {
  readonly text: string
  readonly origin: Origin
  /** The half-open range of the original that the piece shows; `to` is its end. Both are 0 for `template` and `unknown`. */
  readonly from: number
  readonly to: number
  /** Whether the characters are those of the range, one to one. */
  readonly exact: boolean
  readonly owner: Owner | null
}

/** Whether `right` continues `left`, so that the two can become one piece. */
export function continues(left: Piece, right: Piece): boolean {
  if (left.origin !== right.origin || left.owner !== right.owner) return false
  return typeof left.origin === 'string' || (left.exact && right.exact && left.to === right.from)
}

/** Returns the characters `[start, end)` of a piece. If the piece is not exact, the result keeps the whole range of the original. */
export function cutPiece(piece: Piece, start: number, end: number): Piece {
  if (start <= 0 && end >= piece.text.length) return piece
  const text = piece.text.slice(start, end)
  if (typeof piece.origin === 'string' || !piece.exact) return { ...piece, text }
  return { ...piece, text, from: piece.from + start, to: piece.from + start + text.length }
}

// Dividing a rendered prompt among its messages and the generation prompt.

/**
 * Returns the offset at which each message begins in the text, and last that of the generation prompt: `count + 1` offsets that never
 * decrease, the first 0. Text without an owner belongs to the message before it.
 */
export function messageStarts(text: Tracked, count: number): number[] {
  const starts: number[] = new Array<number>(count + 1).fill(text.length)
  let at = 0
  let prompt = text.length
  for (const { text: shown, origin, owner } of text.pieces) {
    const whose: Owner | null = owner ?? (typeof origin === 'string' || origin.field === 'tool' ? null : origin.message)
    if (whose === 'prompt') prompt = Math.min(prompt, at)
    else {
      prompt = text.length
      if (whose !== null && whose < count) starts[whose] = Math.min(starts[whose] ?? at, at)
    }
    at += shown.length
  }
  starts[count] = prompt
  for (let index = count - 1; index >= 0; index--) starts[index] = Math.min(starts[index] ?? 0, starts[index + 1] ?? 0)
  starts[0] = 0
  return starts
}

// Maps offsets in a message's content to offsets in the rendered text. The map keeps the order. It has gaps where a template drops or adds
// text.

/** A span of content, and the span of the text that shows it. */
interface ShownContent {
  readonly content: Span
  readonly text: Span
  /** Whether characters correspond one to one. If not, only the ends of the two spans correspond. */
  readonly exact: boolean
}

/** How many pieces or messages are handled between two yields to the event loop. */
const STEP = 1024

export class OffsetMap {
  private constructor(
    readonly stretches: readonly [ShownContent, ...ShownContent[]],
    /** The length of the original content, in characters. */
    readonly length: number,
  ) {}

  /**
   * Returns the map for the content of `message`; null when `text` does not show it. If `text` shows some content twice, only the first
   * showing counts.
   */
  static of(text: Tracked, message: number, length: number): OffsetMap | null {
    return atOnce(OffsetMap.all(text, (index) => (index === message ? length : null))).get(message) ?? null
  }

  /**
   * Returns the maps of all messages whose content `text` shows, in one pass. A generator that yields to the event loop.
   * @param lengthOf the length of a message's original content in characters; null when its map is not wanted
   */
  static *all(text: Tracked, lengthOf: (message: number) => number | null): Steps<Map<number, OffsetMap>> {
    const shownOf = new Map<number, ShownContent[]>()
    let at = 0
    for (const [index, { text: shown, origin, from, to, exact }] of text.pieces.entries()) {
      if (index % STEP === STEP - 1) yield
      const start = at
      at += shown.length
      if (typeof origin === 'string' || origin.field !== 'content') continue
      const stretches = shownOf.get(origin.message) ?? []
      if (from < (stretches.at(-1)?.content.end ?? 0)) continue
      if (stretches.push({ content: { start: from, end: to }, text: { start, end: at }, exact }) === 1)
        shownOf.set(origin.message, stretches)
    }
    const maps = new Map<number, OffsetMap>()
    for (const [message, [first, ...rest]] of shownOf) {
      if (maps.size % STEP === STEP - 1) yield
      const length = lengthOf(message)
      if (length !== null && first !== undefined) maps.set(message, new OffsetMap([first, ...rest], length))
    }
    return maps
  }

  /** The span of the text from the first shown character of the content to the last. */
  get text(): Span {
    return { start: this.stretches[0].text.start, end: (this.stretches.at(-1) ?? this.stretches[0]).text.end }
  }

  /**
   * Returns the span of the text that shows `[start, end)` of the content; `hidden` when the text shows none of it. If an end lies within a
   * span that is not exact, that whole span counts.
   */
  toText({ start, end }: Span): Span | 'hidden' {
    const from = this.stretches.find((stretch) => stretch.content.end > start) ?? this.stretches.at(-1) ?? this.stretches[0]
    const to = this.stretches.findLast((stretch) => stretch.content.start < end) ?? this.stretches[0]
    const first = place(from, start, from.text.start)
    const last = place(to, end, to.text.end)
    return last < first || (last === first && end > start) ? 'hidden' : { start: first, end: last }
  }

  /** Returns the offset in the text at which hidden content `[start, end)` would stand. */
  placeOfHidden({ end }: Span): number {
    const before = this.stretches.findLast((stretch) => stretch.content.start < end)
    return before === undefined ? this.text.start : place(before, end, before.text.end)
  }

  /**
   * Returns the content offsets that an offset in the text may stand for. With content hidden at that offset, `low` is before and `high`
   * behind it. Returns null where the text is not exact or not of this content.
   */
  toContent(at: number): { readonly low: number; readonly high: number } | null {
    const before = this.stretches.findLast((stretch) => stretch.text.start < at)
    if (before !== undefined && at < before.text.end) {
      if (!before.exact) return null
      const offset = before.content.start + at - before.text.start
      return { low: offset, high: offset }
    }
    const after = this.stretches.find((stretch) => stretch.text.start >= at)
    const touches = before?.text.end === at || after?.text.start === at
    if (!touches) return null
    const low = before === undefined ? 0 : before.content.end
    const high = after === undefined ? this.length : after.content.start
    if (before !== undefined && before.text.end !== at) return { low: high, high }
    if (after !== undefined && after.text.start !== at) return { low, high: low }
    return { low, high }
  }
}

/** Converts a content offset to a text offset. `inside`: the result for an offset within a span that is not exact. */
function place({ content, text, exact }: ShownContent, offset: number, inside: number): number {
  if (offset <= content.start) return text.start
  if (offset >= content.end) return text.end
  return exact ? text.start + offset - content.start : inside
}
