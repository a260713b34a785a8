/** Owns reading bytes as characters, as `TextDecoder` does, and what counts as the same character for a vocabulary. */

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
