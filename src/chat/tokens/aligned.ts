/** Tokens of a text with the character at which each begins. */

export interface Aligned {
  readonly tokens: Int32Array
  /** First UTF-16 unit of each token; where a token begins inside a character, the character's first unit. */
  readonly starts: Int32Array
  /** 1: the token begins exactly at `starts`. */
  readonly borders: Uint8Array
  /** UTF-16 units of the whole text. */
  readonly length: number
}

const SPACE = 0x20
const encoder = new TextEncoder()

/**
 * Aligns tokens with the text they were made from by the bytes of their pieces. A space that the tokenizer put in front counts
 * as nothing. Where the bytes are not the text's (a tokenizer that normalises), only the beginning is a border.
 */
export function align(text: string, tokens: Int32Array, piece: (token: number) => Uint8Array): Aligned {
  const starts = new Int32Array(tokens.length)
  const borders = new Uint8Array(tokens.length)
  const aligned = { tokens, starts, borders, length: text.length }
  if (tokens.length === 0) return aligned
  borders[0] = 1
  const pieces = Array.from(tokens, piece)
  const skipped = offsetOf(encoder.encode(text), pieces)
  if (skipped === null) return aligned
  let unit = 0
  let byte = 0
  let target = -skipped
  pieces.forEach((bytes, index) => {
    while (byte < target && unit < text.length) {
      const [units, size] = sizeAt(text, unit)
      if (byte + size > target) break
      unit += units
      byte += size
    }
    starts[index] = unit
    borders[index] = byte === Math.max(0, target) ? 1 : 0
    target += bytes.length
  })
  return aligned
}

/** How many bytes the pieces have before the text begins (0 or 1); null when they are not the text's bytes. */
function offsetOf(text: Uint8Array, pieces: readonly Uint8Array[]): 0 | 1 | null {
  const total = pieces.reduce((sum, { length }) => sum + length, 0)
  const extra = total - text.length
  if (extra !== 0 && !(extra === 1 && pieces.find(({ length }) => length > 0)?.[0] === SPACE)) return null
  let at = -extra
  for (const bytes of pieces) for (const value of bytes) if (at++ >= 0 && value !== text[at - 1]) return null
  return extra === 0 ? 0 : 1
}

/** UTF-16 units and UTF-8 bytes of the character at a unit; a lone surrogate is written as U+FFFD. */
function sizeAt(text: string, unit: number): readonly [number, number] {
  const code = text.codePointAt(unit) ?? 0
  if (code < 0x80) return [1, 1]
  if (code < 0x800) return [1, 2]
  return code > 0xffff ? [2, 4] : [1, 3]
}

/** One after another. `parts` come with the place of each in the whole text. */
export function concatenate(parts: readonly { readonly at: number; readonly aligned: Aligned }[], length: number): Aligned {
  const count = parts.reduce((sum, { aligned }) => sum + aligned.tokens.length, 0)
  const tokens = new Int32Array(count)
  const starts = new Int32Array(count)
  const borders = new Uint8Array(count)
  let next = 0
  for (const { at, aligned } of parts) {
    tokens.set(aligned.tokens, next)
    borders.set(aligned.borders, next)
    aligned.starts.forEach((start, index) => (starts[next + index] = at + start))
    next += aligned.tokens.length
  }
  return { tokens, starts, borders, length }
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

/** The token that begins exactly at a character (`tokens.length` at the end of the text); null inside a token. */
export function borderAt(aligned: Aligned, char: number): number | null {
  const index = tokenAt(aligned, char)
  if (index === aligned.tokens.length) return char === aligned.length ? index : null
  return aligned.starts[index] === char && aligned.borders[index] === 1 ? index : null
}
