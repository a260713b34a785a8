/** Aligns tokens with the characters of the text that they show. */
import type { Span } from '../../core/span.js'
import { atOnce, type Steps } from '../../core/turns.js'

export interface Aligned {
  readonly tokens: Int32Array
  /**
   * For each token, the offset of its first character, in UTF-16 units. If the token begins inside a character, the offset of that
   * character. The offsets never decrease.
   */
  readonly starts: Int32Array
  /**
   * For each token, the offset behind its last character, in UTF-16 units. Text between this and the next token's start is shown by no
   * token.
   */
  readonly ends: Int32Array
  /** For each token: 1 when it begins exactly at its start, 0 when it begins inside a character. */
  readonly borders: Uint8Array
  /** The length of the text in UTF-16 units. */
  readonly length: number
}

/** How a tokenizer changes plain text, apart from splitting it. */
export interface Habits {
  /** Whether the tokenizer puts a space before text: at the beginning, and after a token that it matches as a whole. */
  readonly prefixesSpace: boolean
  /**
   * For a token that the tokenizer matches as a whole, before all others: whether it swallows white space before and after it. Null for
   * other tokens.
   */
  matched(token: number): { readonly stripsBefore: boolean; readonly stripsAfter: boolean } | null
}

/**
 * Aligns tokens with the text that they were made from, by comparing their bytes with the text. A space equals U+2581, because
 * SentencePiece writes one as the other.
 * A space that the tokenizer added shows no text. White space that the tokenizer swallowed is shown by no token. If tokens and text still
 * differ (a tokenizer that normalises), every token counts as showing the whole text.
 */
export const align = (...made: Parameters<typeof alignSteps>): Aligned => atOnce(alignSteps(...made))

/** How many tokens are handled between two yields to the event loop. */
const STEP = 4096

/** Like `align`, but a generator that yields to the event loop every few thousand tokens. */
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

/** Tried before the vocabulary is asked for its habits: the tokenizer may put a space before the text. */
const anyStart: Habits = { prefixesSpace: true, matched: () => null }

function whole(text: string, tokens: Int32Array): Aligned {
  const borders = new Uint8Array(tokens.length)
  borders[0] = 1
  const [starts, ends] = [new Int32Array(tokens.length), new Int32Array(tokens.length).fill(text.length)]
  return { tokens, starts, ends, borders: borders.subarray(0, tokens.length), length: text.length }
}

/** Walks through the text and the tokens' bytes in parallel. */
class Walk {
  constructor(
    private readonly text: string,
    private readonly tokens: Int32Array,
    /** The bytes of all tokens, concatenated. */
    private readonly bytes: Uint8Array,
    /** The offset of each token's first byte in `bytes`. */
    private readonly offsets: Int32Array,
  ) {}

  /**
   * Aligns all tokens. Returns null when their bytes do not match the text. Without habits, every character must match: none added, none
   * swallowed.
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

  /** Skips a space that the tokenizer added before the text. There is one if the tokens have more spaces here than the text. */
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
/** What C's isspace counts as white space; some control tokens swallow these characters. */
const WHITESPACE = ' \t\n\v\f\r'

/** Joins aligned parts. `at`: the offset of a part in the whole text. */
export const concatenate = (...given: Parameters<typeof concatenateSteps>): Aligned => atOnce(concatenateSteps(...given))

/** Like `concatenate`, but a generator that yields to the event loop while it joins many parts. */
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

/** Returns the tokens `[start, end)`, aligned with the text from offset `from` to `to`. */
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

/** Returns the index of the first token that begins at or after offset `char`; `tokens.length` when there is none. */
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

/** Whether offset `char` is a token border: no token shows characters on both sides of it. */
export function isBorder(aligned: Aligned, char: number): boolean {
  const { starts, ends, borders } = aligned
  const index = tokenAt(aligned, char)
  if (index > 0 && ends[index - 1]! > char) return false
  return index === starts.length || starts[index]! > char || borders[index] === 1
}

/**
 * Returns the smallest range of whole tokens that shows all of `[from, to)`, from border to border. The range is empty when no token shows
 * any of it. Tokens without text before it (BOS, an added space) are left out.
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

/** Returns the range of tokens that show nothing but characters of `[from, to)`. */
export function within(aligned: Aligned, { start: from, end: to }: Span): Span {
  const { tokens, starts, ends, borders } = aligned
  let start = tokenAt(aligned, from)
  while (start < tokens.length && (borders[start] === 0 || (starts[start] === from && ends[start] === from))) start++
  let end = tokenAt(aligned, to)
  while (end > 0 && ends[end - 1]! > to) end--
  while (end > start && borders[end] === 0) end--
  return { start, end: Math.max(start, end) }
}

// Reads bytes as characters like `TextDecoder`. Characters that a vocabulary does not distinguish count as equal.

const REPLACEMENT = 0xfffd
/** U+2581, which stands for a space in SentencePiece vocabularies. */
const LOWER_BLOCK = 0x2581

/** Maps characters that tokens cannot tell apart to one code: space and U+2581; all lone surrogates, which UTF-8 does not have. */
export function folded(code: number): number {
  if (code === LOWER_BLOCK) return 0x20
  return code >= 0xd800 && code <= 0xdfff ? REPLACEMENT : code
}

/** Returns how many UTF-16 units a character takes. */
export const unitsAt = (code: number): 1 | 2 => (code > 0xffff ? 2 : 1)

/**
 * Returns the character at a byte offset and its number of bytes, packed as `code << 3 | size`. Invalid bytes become U+FFFD, grouped as in
 * the WHATWG decoder.
 */
export function codePointAt(bytes: Uint8Array, at: number): number {
  const first = bytes[at]!
  if (first < 0x80) return (first << 3) | 1
  const more = first < 0xc2 || first > 0xf4 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3
  if (more === 0) return (REPLACEMENT << 3) | 1
  let [low, high] = [0x80, 0xbf]
  // These bounds exclude overlong forms, surrogates and code points beyond U+10FFFF.
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
