/** Tokens of a text with the characters that each of them shows. */
import type { Span } from '../../core/span.js'
import { atOnce, type Steps } from '../../core/turns.js'

export interface Aligned {
  readonly tokens: Int32Array
  /** First UTF-16 unit of each token; where a token begins inside a character, the character's first unit. Never decreasing. */
  readonly starts: Int32Array
  /** UTF-16 unit after each token's last character. What lies between it and the next start is shown by no token. */
  readonly ends: Int32Array
  /** 1: the token begins exactly at `starts`. */
  readonly borders: Uint8Array
  /** UTF-16 units of the whole text. */
  readonly length: number
}

/** What a vocabulary does to plain text besides cutting it. */
export interface Habits {
  /** A space is put in front of text that begins, and of text behind a token that is matched as a whole. */
  readonly prefixesSpace: boolean
  /** Null for ordinary tokens; for one that is matched as a whole before all others, whether it swallows the whitespace beside it. */
  matched(token: number): { readonly stripsBefore: boolean; readonly stripsAfter: boolean } | null
}

/**
 * Aligns tokens with the text they were made from. The text leads: pieces are read as characters beside it, and as a piece cannot say whether it
 * shows a space or U+2581 (SentencePiece writes one as the other), the two count as the same. Spaces that the tokenizer put in front show
 * nothing; whitespace that it swallowed is shown by nothing. Where the pieces are not the text even so (a tokenizer that
 * normalises), only the ends are borders: all tokens show the whole.
 */
export const align = (...made: Parameters<typeof alignSteps>): Aligned => atOnce(alignSteps(...made))

/** Tokens between two yields. */
const STEP = 4096

/** As `align`, in steps of some thousand tokens. */
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

/** The usual case, which asks nothing of the vocabulary: a space in front may be the tokenizer's. */
const anyStart: Habits = { prefixesSpace: true, matched: () => null }

function whole(text: string, tokens: Int32Array): Aligned {
  const borders = new Uint8Array(tokens.length)
  borders[0] = 1
  const [starts, ends] = [new Int32Array(tokens.length), new Int32Array(tokens.length).fill(text.length)]
  return { tokens, starts, ends, borders: borders.subarray(0, tokens.length), length: text.length }
}

/** One way through the text and the bytes of the pieces at the same time. */
class Walk {
  constructor(
    private readonly text: string,
    private readonly tokens: Int32Array,
    /** Of all pieces, one behind the other. */
    private readonly bytes: Uint8Array,
    /** First byte of each token. */
    private readonly offsets: Int32Array,
  ) {}

  /** Null when the pieces are not the text. Without habits, nothing may be put in or swallowed. */
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

  /** Past the space in front, if there is one: the pieces go on with more spaces than the text does. */
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
/** As C has it: what control tokens swallow. */
const WHITESPACE = ' \t\n\v\f\r'

/** One after another. `parts` come with the place of each in the whole text. */
export function concatenate(parts: readonly { readonly at: number; readonly aligned: Aligned }[], length: number): Aligned {
  const count = parts.reduce((sum, { aligned }) => sum + aligned.tokens.length, 0)
  const tokens = new Int32Array(count)
  const starts = new Int32Array(count)
  const ends = new Int32Array(count)
  const borders = new Uint8Array(count)
  let next = 0
  for (const { at, aligned } of parts) {
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

/** Tokens `[start, end)` by themselves; the text they are of begins at `from` and ends at `to`. */
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

/** The first token that begins at or after a character; `tokens.length` when none does. */
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

/** True when no token shows what is before a character and what is behind it. */
export function isBorder(aligned: Aligned, char: number): boolean {
  const { starts, ends, borders } = aligned
  const index = tokenAt(aligned, char)
  if (index > 0 && ends[index - 1]! > char) return false
  return index === starts.length || starts[index]! > char || borders[index] === 1
}

/**
 * The fewest whole tokens that show all of `[from, to)`, from one border to another; empty when no token shows any of it. Tokens in front that
 * show nothing (BOS, the tokenizer's own space) are not among them.
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

/** The tokens that show nothing but characters of `[from, to)`. */
export function within(aligned: Aligned, { start: from, end: to }: Span): Span {
  const { tokens, starts, ends, borders } = aligned
  let start = tokenAt(aligned, from)
  while (start < tokens.length && (borders[start] === 0 || (starts[start] === from && ends[start] === from))) start++
  let end = tokenAt(aligned, to)
  while (end > 0 && ends[end - 1]! > to) end--
  while (end > start && borders[end] === 0) end--
  return { start, end: Math.max(start, end) }
}

// Reading bytes as characters, as `TextDecoder` does, and what counts as the same character for a vocabulary.

const REPLACEMENT = 0xfffd
/** Stands for a space in SentencePiece vocabularies. */
const LOWER_BLOCK = 0x2581

/** The same number for characters that a piece cannot tell apart: a space and U+2581; lone surrogates, which have no UTF-8 form. */
export function folded(code: number): number {
  if (code === LOWER_BLOCK) return 0x20
  return code >= 0xd800 && code <= 0xdfff ? REPLACEMENT : code
}

/** UTF-16 units of a character. */
export const unitsAt = (code: number): 1 | 2 => (code > 0xffff ? 2 : 1)

/**
 * The character at a byte and how many bytes it has, packed as `code << 3 | size`. Bytes that are none are U+FFFD, as many together as the WHATWG
 * decoder takes together.
 */
export function codePointAt(bytes: Uint8Array, at: number): number {
  const first = bytes[at]!
  if (first < 0x80) return (first << 3) | 1
  const more = first < 0xc2 || first > 0xf4 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3
  if (more === 0) return (REPLACEMENT << 3) | 1
  let [low, high] = [0x80, 0xbf]
  // No overlong forms, no surrogates, nothing beyond U+10FFFF.
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
