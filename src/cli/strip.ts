/** Owns the picture of a context: its tokens in order, drawn as one line of cells. Pure; colours and glyphs come from outside. */

/**
 * `reused`: was in the cache. `recomputed`: shown before, computed again. `new`: shown for the first time. `folded`: not shown, stands
 * where its marker is. `waiting`: shown, and still to be computed in this step.
 */
export type Share = 'reused' | 'recomputed' | 'new' | 'folded' | 'waiting'

/** Neighbouring tokens that fared alike. */
export interface Stretch {
  readonly share: Share
  readonly tokens: number
}

/** How cells of each share are drawn; apart without colour too. */
export const glyphs = {
  unicode: { reused: '█', recomputed: '▚', new: '+', folded: '░', waiting: '·' },
  ascii: { reused: '#', recomputed: '%', new: '+', folded: ':', waiting: '.' },
} as const satisfies Record<string, Record<Share, string>>

/** The legend's order and words. */
export const shares = [
  ['reused', 'reused from the cache'],
  ['recomputed', 'recomputed after an edit'],
  ['new', 'new'],
  ['folded', 'folded away'],
  ['waiting', 'to be computed'],
] as const satisfies readonly (readonly [Share, string])[]

/** The same stretches with neighbours of one share joined and empty ones left out. */
export function joined(stretches: readonly Stretch[]): Stretch[] {
  const result: Stretch[] = []
  for (const { share, tokens } of stretches) {
    const last = result.at(-1)
    if (tokens <= 0) continue
    if (last?.share === share) result[result.length - 1] = { share, tokens: last.tokens + tokens }
    else result.push({ share, tokens })
  }
  return result
}

/**
 * One share a cell, in order. `capacity` tokens fill the width (at least as many as there are; the rest of the line stays empty), so that
 * strips drawn with one capacity compare by length. Cells are dealt out in proportion to tokens; where the width allows it every stretch
 * gets at least one, so that a marker of ten tokens is seen among thousands. Otherwise each cell shows what most of its tokens are.
 */
export function cells(stretches: readonly Stretch[], width: number, capacity = 0): Share[] {
  const parts = joined(stretches)
  const total = parts.reduce((sum, { tokens }) => sum + tokens, 0)
  if (total === 0 || width <= 0) return []
  const filled = Math.max(1, Math.round((width * total) / Math.max(total, capacity)))
  return parts.length <= filled ? dealt(parts, total, filled) : sampled(parts, total, filled)
}

/** One cell each, the others by largest remainder of what is still owed. */
function dealt(parts: readonly Stretch[], total: number, filled: number): Share[] {
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

/** The share of most tokens in each cell's stretch of the sequence. */
function sampled(parts: readonly Stretch[], total: number, filled: number): Share[] {
  const result: Share[] = []
  let part = 0
  let partStart = 0
  for (let cell = 0; cell < filled; cell++) {
    const end = ((cell + 1) * total) / filled
    let at = (cell * total) / filled
    const held = new Map<Share, number>()
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

/** The strip as text, padded with blanks to `width`; runs of one share are painted at once. */
export function strip(
  stretches: readonly Stretch[],
  options: {
    readonly width: number
    readonly capacity?: number
    readonly glyphs: Readonly<Record<Share, string>>
    readonly paint?: (share: Share, text: string) => string
  },
): string {
  const { width, capacity, glyphs: glyph, paint = (_share: Share, text: string) => text } = options
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
