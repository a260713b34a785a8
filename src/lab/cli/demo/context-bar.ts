/**
 * Draws a text as a bar in the terminal: one line of characters that stand for the text's tokens, in order. The caller gives the colours
 * and glyphs.
 */

/** The state of a token. `reused`: in the cache. `new`: just computed. `folded`: hidden. `waiting`: not computed yet. */
export type TokenShare = 'reused' | 'new' | 'folded' | 'waiting'

/** Adjacent tokens with the same share. */
export interface TokenRun {
  readonly share: TokenShare
  readonly tokens: number
}

/** The glyph for each state. They can be told apart without colour. */
export const glyphs = {
  unicode: { reused: '█', new: '+', folded: '░', waiting: '·' },
  ascii: { reused: '#', new: '+', folded: ':', waiting: '.' },
} as const satisfies Record<string, Record<TokenShare, string>>

/** The legend in order: a token's state, and the words for it. */
export const shares = [
  ['folded', 'folded away'],
  ['reused', 'in context'],
  ['new', 'being read'],
  ['waiting', 'still to come'],
] as const satisfies readonly (readonly [TokenShare, string])[]

/** Joins adjacent runs with the same state, and drops empty runs. */
export function joined(stretches: readonly TokenRun[]): TokenRun[] {
  const result: TokenRun[] = []
  for (const { share, tokens } of stretches) {
    const last = result.at(-1)
    if (tokens <= 0) continue
    if (last?.share === share) result[result.length - 1] = { share, tokens: last.tokens + tokens }
    else result.push({ share, tokens })
  }
  return result
}

/**
 * Returns the state that each character of the bar shows, in order. `capacity` tokens fill the width, or all tokens if there are more. For
 * fewer tokens the rest of the line stays empty, so that bars with the same capacity can be compared by length.
 * Each run gets characters in proportion to its tokens. It gets at least one if the width allows, so that a marker of ten tokens stays
 * visible among thousands. If the width is too small for that, each character shows the state that most of its tokens have.
 */
export function cells(stretches: readonly TokenRun[], width: number, capacity = 0): TokenShare[] {
  const parts = joined(stretches)
  const total = parts.reduce((sum, { tokens }) => sum + tokens, 0)
  if (total === 0 || width <= 0) return []
  const filled = Math.max(1, Math.round((width * total) / Math.max(total, capacity)))
  return parts.length <= filled ? dealt(parts, total, filled) : sampled(parts, total, filled)
}

/** Gives each run one character, and divides the remaining characters in proportion to tokens (largest remainders first). */
function dealt(parts: readonly TokenRun[], total: number, filled: number): TokenShare[] {
  const owed = parts.map(({ tokens }) => Math.max(0, (tokens * filled) / total - 1))
  const owedInAll = owed.reduce((sum, value) => sum + value, 0)
  const spare = filled - parts.length
  const exact = owed.map((value) => (owedInAll === 0 ? spare / parts.length : (value * spare) / owedInAll))
  const sizes = exact.map((value) => 1 + Math.floor(value))
  const rest = filled - sizes.reduce((sum, value) => sum + value, 0)
  const byRemainder = exact
    .map((value, index) => ({ index, remainder: value - Math.floor(value) }))
    .sort((a, b) => b.remainder - a.remainder)
  for (const { index } of byRemainder.slice(0, rest)) sizes[index]!++
  return parts.flatMap(({ share }, index) => Array.from({ length: sizes[index]! }, () => share))
}

/** Returns for each character of the bar the state that most of its tokens have. */
function sampled(parts: readonly TokenRun[], total: number, filled: number): TokenShare[] {
  const result: TokenShare[] = []
  let part = 0
  let partStart = 0
  for (let cell = 0; cell < filled; cell++) {
    const end = ((cell + 1) * total) / filled
    let at = (cell * total) / filled
    const held = new Map<TokenShare, number>()
    while (at < end && part < parts.length) {
      const { share, tokens } = parts[part]!
      const until = Math.min(end, partStart + tokens)
      held.set(share, (held.get(share) ?? 0) + until - at)
      at = until
      if (partStart + tokens > end) break
      partStart += tokens
      part++
    }
    const [most] = [...held].sort((a, b) => b[1] - a[1])
    result.push(most?.[0] ?? parts.at(-1)!.share)
  }
  return result
}

/** Returns the bar as text, padded with blanks to `width`. Calls `paint` once per run of characters with the same state. */
export function contextBar(
  stretches: readonly TokenRun[],
  options: {
    readonly width: number
    readonly capacity?: number
    readonly glyphs: Readonly<Record<TokenShare, string>>
    readonly paint?: (share: TokenShare, text: string) => string
  },
): string {
  const { width, capacity, glyphs: glyph, paint = (_share: TokenShare, text: string) => text } = options
  const drawn = cells(stretches, width, capacity)
  let text = ''
  for (let start = 0; start < drawn.length;) {
    const share = drawn[start]!
    let end = start
    while (drawn[end] === share) end++
    text += paint(share, glyph[share].repeat(end - start))
    start = end
  }
  return text + ' '.repeat(Math.max(0, width - drawn.length))
}
