/** Text that knows, character by character, which part of the conversation it was copied from; immutable, run-length coded. */

export class Tracked {
  static readonly empty = new Tracked([], '')

  readonly #value: string

  private constructor(
    readonly pieces: readonly Piece[],
    value?: string,
  ) {
    this.#value = value ?? pieces.map((piece) => piece.text).join('')
  }

  /** Text of one origin; its characters are the original's first ones. */
  static of(text: string, origin: Origin): Tracked {
    if (text === '') return Tracked.empty
    const to = typeof origin === 'string' ? 0 : text.length
    return new Tracked([{ text, origin, from: 0, to, exact: true, owner: null }], text)
  }

  static join(parts: readonly Tracked[]): Tracked {
    const pieces: Piece[] = []
    for (const part of parts) for (const piece of part.pieces) append(pieces, piece)
    return pieces.length === 0 ? Tracked.empty : new Tracked(pieces)
  }

  get value(): string {
    return this.#value
  }

  get length(): number {
    return this.#value.length
  }

  /** Characters `[start, end)`. */
  slice(start: number, end = this.length): Tracked {
    if (start <= 0 && end >= this.length) return this
    if (start >= end) return Tracked.empty
    const pieces: Piece[] = []
    let at = 0
    for (const piece of this.pieces) {
      const next = at + piece.text.length
      if (next > start && at < end) pieces.push(cutPiece(piece, Math.max(0, start - at), Math.min(piece.text.length, end - at)))
      at = next
      if (at >= end) break
    }
    return new Tracked(pieces, this.#value.slice(start, end))
  }

  /** `[start, end)` shown as other text: keeps the original range it stands for, when that is a range of one original. */
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

  /** Every match of a global pattern shown as what `change` makes of it; a Tracked result is put in as it is. */
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

  /** The stretches between occurrences of `separator` (not empty), at most `most + 1` of them. */
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

  /** A change of case: piece by piece, exact where the length stays. */
  mapCase(change: (text: string) => string): Tracked {
    const pieces = this.pieces.map((piece) => {
      const text = change(piece.text)
      return { ...piece, text, exact: piece.exact && text.length === piece.text.length }
    })
    return new Tracked(pieces)
  }

  /** Gives everything without an owner to `owner`. */
  owned(owner: Owner): Tracked {
    if (this.pieces.every((piece) => piece.owner !== null)) return this
    const pieces: Piece[] = []
    for (const piece of this.pieces) append(pieces, piece.owner === null ? { ...piece, owner } : piece)
    return new Tracked(pieces, this.#value)
  }
}

function append(pieces: Piece[], piece: Piece): void {
  if (piece.text === '') return
  const last = pieces.at(-1)
  if (last !== undefined && continues(last, piece))
    pieces[pieces.length - 1] = { ...last, text: last.text + piece.text, to: piece.to }
  else pieces.push(piece)
}

// Where a stretch of rendered text comes from, and to which message it belongs.

/** A part of the conversation that templates copy text from. */
export type Field = 'content' | 'note' | 'reasoning' | 'call' | 'tool'

/**
 * `template`: written by the template itself or by something we vouch for (roles, BOS, EOS), so control tokens in it count.
 * `unknown`: made by an operation that does not track; treated like foreign text. Otherwise the message it was copied from
 * (tool definitions belong to no message).
 */
export type Origin = 'template' | 'unknown' | { readonly field: Field; readonly message: number }

/** `prompt`: the generation prompt. A number: the index of a message. */
export type Owner = number | 'prompt'

/** A stretch of text of one origin and one owner. */
export interface Piece {
  readonly text: string
  readonly origin: Origin
  /** Characters of the original that this stretch shows, half-open; both 0 for `template` and `unknown`. */
  readonly from: number
  readonly to: number
  /** True when every character stands for exactly one original character, in order. */
  readonly exact: boolean
  readonly owner: Owner | null
}

/** True when `right` continues `left`, so that both can be one piece. */
export function continues(left: Piece, right: Piece): boolean {
  if (left.origin !== right.origin || left.owner !== right.owner) return false
  return typeof left.origin === 'string' || (left.exact && right.exact && left.to === right.from)
}

/** The characters `[start, end)` of a piece. A piece that is not exact keeps the whole range it stands for. */
export function cutPiece(piece: Piece, start: number, end: number): Piece {
  if (start <= 0 && end >= piece.text.length) return piece
  const text = piece.text.slice(start, end)
  if (typeof piece.origin === 'string' || !piece.exact) return { ...piece, text }
  return { ...piece, text, from: piece.from + start, to: piece.from + start + text.length }
}

// How a rendered prompt is divided among its messages and the generation prompt.

/**
 * Where each message begins in the text, and where the generation prompt does (the last entry): `count + 1` characters, never
 * decreasing, the first 0. Text that belongs to nobody goes with what stands before it.
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
