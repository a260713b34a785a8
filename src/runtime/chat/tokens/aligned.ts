/** Aligns tokens with the characters of the text that they show. */
import type { Span } from '../../core/span.js'
import { atOnce, type Steps } from '../../core/turns.js'

export interface Aligned {
  readonly tokens: Int32Array
  /**
   * The first UTF-16 unit of each token. A token that begins inside a character has that character's first unit. The numbers never
   * decrease.
   */
  readonly starts: Int32Array
  /** The UTF-16 unit after each token's last character. No token shows the text between that and the next token's start. */
  readonly ends: Int32Array
  /** For each token: 1 when it begins exactly at its place in `starts`, 0 when it begins inside a character. */
  readonly borders: Uint8Array
  /** UTF-16 units of the whole text. */
  readonly length: number
}

/** The ways in which a tokenizer changes plain text besides splitting it. */
export interface Habits {
  /** True when the tokenizer puts a space in front of text, at the beginning and after a token that is matched as a whole. */
  readonly prefixesSpace: boolean
  /**
   * For a token that the tokenizer matches as a whole before all others: says whether it swallows the whitespace beside it. Returns null
   * for an ordinary token.
   */
  matched(token: number): { readonly stripsBefore: boolean; readonly stripsAfter: boolean } | null
}

/**
 * Aligns tokens with the text they were made from, by reading their pieces beside the text. A space and U+2581 count as the same, because
 * SentencePiece writes one as the other and a piece cannot tell them apart. A space that the tokenizer put in front shows no text, and no
 * token shows whitespace that it swallowed. When the pieces still differ from the text (a tokenizer that normalises), all tokens show the
 * whole text and only its ends are borders.
 */
export const align = (...made: Parameters<typeof alignSteps>): Aligned => atOnce(alignSteps(...made))

/** How many tokens are handled before other work may run. */
const STEP = 4096

/** Does the same as `align`, but lets other work run after every few thousand tokens. */
export function* alignSteps(
  text: string,
  tokens: Int32Array,
  piece: (token: number) => Uint8Array,
  habits: Habits | null = null,
): Steps<Aligned> {
  const offsets = new Int32Array(tokens.length)
  let size = 0
  for (let at = 0; at < tokens.length; at++) {
    if (at % STEP === STEP - 1) yield
    offsets[at] = size
    size += piece(tokens[at]!).length
  }
  const bytes = new Uint8Array(size)
  for (let at = 0; at < tokens.length; at++) {
    if (at % STEP === STEP - 1) yield
    bytes.set(piece(tokens[at]!), offsets[at])
  }
  const walk = new Walk(text, tokens, bytes, offsets)
  for (const way of [null, anyStart, ...(habits === null ? [] : [habits])]) {
    const aligned = yield* walk.run(way)
    if (aligned !== null) return aligned
  }
  return whole(text, tokens)
}

/** Habits to try before the vocabulary is asked: the tokenizer may put a space in front of the text. */
const anyStart: Habits = { prefixesSpace: true, matched: () => null }

function whole(text: string, tokens: Int32Array): Aligned {
  const borders = new Uint8Array(tokens.length)
  borders[0] = 1
  const [starts, ends] = [new Int32Array(tokens.length), new Int32Array(tokens.length).fill(text.length)]
  return { tokens, starts, ends, borders: borders.subarray(0, tokens.length), length: text.length }
}

/** Walks through the text and the bytes of the pieces at the same time. */
class Walk {
  constructor(
    private readonly text: string,
    private readonly tokens: Int32Array,
    /** The bytes of all pieces, concatenated. */
    private readonly bytes: Uint8Array,
    /** The first byte of each token in `bytes`. */
    private readonly offsets: Int32Array,
  ) {}

  /**
   * Aligns all tokens. Returns null when the pieces do not match the text. Without habits, the tokenizer may not have added or swallowed
   * any character.
   */
  *run(habits: Habits | null): Steps<Aligned | null> {
    const { text, tokens, bytes, offsets } = this
    const count = tokens.length
    const starts = new Int32Array(count)
    const ends = new Int32Array(count)
    const borders = new Uint8Array(count)
    let unit = 0
    let at = 0
    let next = 0
    let pause = STEP
    let before: ReturnType<Habits['matched']> = null
    for (;;) {
      if (next >= pause) {
        pause = next + STEP
        yield
      }
      while (next < count && offsets[next] === at) {
        if (next > 0) ends[next - 1] = unit
        let own: ReturnType<Habits['matched']> = null
        if (habits !== null) {
          own = habits.matched(tokens[next]!)
          if (before?.stripsAfter === true || own?.stripsBefore === true) unit = this.#pastSpace(unit)
        }
        starts[next] = unit
        borders[next] = 1
        if (habits?.prefixesSpace === true && own === null && (next === 0 || before !== null)) at = this.#pastPrefix(at, unit)
        before = own
        next++
      }
      if (at >= bytes.length) break
      if (unit >= text.length) return null
      const packed = codePointAt(bytes, at)
      const size = packed & 7
      const code = text.codePointAt(unit)!
      if (folded(packed >> 3) !== folded(code)) return null
      const units = unitsAt(code)
      for (; next < count && offsets[next]! < at + size; next++) {
        ends[next - 1] = unit + units
        starts[next] = unit
        before = null
      }
      at += size
      unit += units
    }
    if (count > 0) ends[count - 1] = unit
    if (before?.stripsAfter === true) unit = this.#pastSpace(unit)
    return unit === text.length ? { tokens, starts, ends, borders, length: text.length } : null
  }

  /**
   * Skips the space that the tokenizer put in front of a text, if there is one. Then the pieces continue with more spaces than the text.
   */
  #pastPrefix(at: number, unit: number): number {
    const { bytes } = this
    for (let ahead = at; ahead < bytes.length; unit++) {
      const packed = codePointAt(bytes, ahead)
      if (folded(packed >> 3) !== SPACE) return at
      if (unit >= this.text.length || folded(this.text.codePointAt(unit)!) !== SPACE) return at + (codePointAt(bytes, at) & 7)
      ahead += packed & 7
    }
    return at
  }

  #pastSpace(unit: number): number {
    while (unit < this.text.length && WHITESPACE.includes(this.text.charAt(unit))) unit++
    return unit
  }
}

const SPACE = 0x20
/** The characters that C counts as whitespace, which some control tokens swallow. */
const WHITESPACE = ' \t\n\v\f\r'

/** Joins aligned parts. Each part comes with its place in the whole text. */
export const concatenate = (...given: Parameters<typeof concatenateSteps>): Aligned => atOnce(concatenateSteps(...given))

/** Does the same as `concatenate`, but lets other work run while many parts are joined. */
export function* concatenateSteps(
  parts: readonly { readonly at: number; readonly aligned: Aligned }[],
  length: number,
): Steps<Aligned> {
  const count = parts.reduce((sum, { aligned }) => sum + aligned.tokens.length, 0)
  const tokens = new Int32Array(count)
  const starts = new Int32Array(count)
  const ends = new Int32Array(count)
  const borders = new Uint8Array(count)
  let next = 0
  let pause = STEP
  for (const [index, { at, aligned }] of parts.entries()) {
    if (index + next >= pause) {
      pause = index + next + STEP
      yield
    }
    tokens.set(aligned.tokens, next)
    borders.set(aligned.borders, next)
    for (let index = 0; index < aligned.tokens.length; index++) {
      starts[next + index] = at + aligned.starts[index]!
      ends[next + index] = at + aligned.ends[index]!
    }
    next += aligned.tokens.length
  }
  return { tokens, starts, ends, borders, length }
}

/** Returns a part of an alignment: the tokens `[start, end)`, aligned with the text from `from` to `to`. */
export function part({ tokens, starts, ends, borders }: Aligned, { start, end }: Span, from: number, to: number): Aligned {
  const shift = (places: Int32Array) => places.subarray(start, end).map((place) => place - from)
  return {
    tokens: tokens.subarray(start, end),
    starts: shift(starts),
    ends: shift(ends),
    borders: borders.subarray(start, end),
    length: to - from,
  }
}

/** Returns the first token that begins at or after this character; `tokens.length` if there is none. */
export function tokenAt({ starts }: Aligned, char: number): number {
  let low = 0
  let high = starts.length
  while (low < high) {
    const middle = (low + high) >> 1
    if ((starts[middle] ?? 0) < char) low = middle + 1
    else high = middle
  }
  return low
}

/** True when no token shows characters on both sides of this place. */
export function isBorder(aligned: Aligned, char: number): boolean {
  const { starts, ends, borders } = aligned
  const index = tokenAt(aligned, char)
  if (index > 0 && ends[index - 1]! > char) return false
  return index === starts.length || starts[index]! > char || borders[index] === 1
}

/**
 * Returns the fewest whole tokens that show all of `[from, to)`, from border to border. Empty when no token shows any of it. Leading
 * tokens that show no text (BOS, the tokenizer's own space) are left out.
 */
export function cover(aligned: Aligned, { start: from, end: to }: Span): Span {
  const { tokens, starts, ends, borders } = aligned
  let start = tokenAt(aligned, from)
  while (start < tokens.length && starts[start] === from && ends[start] === from) start++
  if (start > 0 && ends[start - 1]! > from) start--
  while (start > 0 && borders[start] === 0) start--
  let end = Math.max(start, tokenAt(aligned, to))
  while (end < tokens.length && borders[end] === 0) end++
  return { start, end }
}

/** Returns the tokens that show only characters of `[from, to)`. */
export function within(aligned: Aligned, { start: from, end: to }: Span): Span {
  const { tokens, starts, ends, borders } = aligned
  let start = tokenAt(aligned, from)
  while (start < tokens.length && (borders[start] === 0 || (starts[start] === from && ends[start] === from))) start++
  let end = tokenAt(aligned, to)
  while (end > 0 && ends[end - 1]! > to) end--
  while (end > start && borders[end] === 0) end--
  return { start, end: Math.max(start, end) }
}

// Reads bytes as characters like `TextDecoder`, and treats characters that a vocabulary does not distinguish as equal.

const REPLACEMENT = 0xfffd
/** The character U+2581, which stands for a space in SentencePiece vocabularies. */
const LOWER_BLOCK = 0x2581

/** Maps characters that a piece cannot tell apart to one number: a space and U+2581, and lone surrogates, which have no UTF-8 form. */
export function folded(code: number): number {
  if (code === LOWER_BLOCK) return 0x20
  return code >= 0xd800 && code <= 0xdfff ? REPLACEMENT : code
}

/** Returns how many UTF-16 units a character has. */
export const unitsAt = (code: number): 1 | 2 => (code > 0xffff ? 2 : 1)

/**
 * Returns the character at a byte and its number of bytes, packed as `code << 3 | size`. Invalid bytes become U+FFFD, grouped as the
 * WHATWG decoder groups them.
 */
export function codePointAt(bytes: Uint8Array, at: number): number {
  const first = bytes[at]!
  if (first < 0x80) return (first << 3) | 1
  const more = first < 0xc2 || first > 0xf4 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3
  if (more === 0) return (REPLACEMENT << 3) | 1
  let [low, high] = [0x80, 0xbf]
  // The bounds exclude overlong forms, surrogates, and code points beyond U+10FFFF.
  if (first === 0xe0) low = 0xa0
  else if (first === 0xf0) low = 0x90
  if (first === 0xed) high = 0x9f
  else if (first === 0xf4) high = 0x8f
  let code = first & (0x3f >> more)
  for (let size = 1; size <= more; size++) {
    const byte = bytes[at + size]
    if (byte === undefined || byte < low || byte > high) return (REPLACEMENT << 3) | size
    code = (code << 6) | (byte & 0x3f)
    low = 0x80
    high = 0xbf
  }
  return (code << 3) | (more + 1)
}
