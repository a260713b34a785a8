/** Models a turn's cost as a line over generated tokens, and finds from how many tokens on one line is below another. Pure. */

/** The milliseconds of a turn: the time to the first token, and then for each token a time that grows with the tokens before it. */
export interface CostLine {
  /** Milliseconds to the first generated token, including the edit. */
  readonly first: number
  /** Milliseconds for the second generated token. */
  readonly perToken: number
  /** How many milliseconds longer each further token takes than the one before it; at least 0. */
  readonly growth: number
}

/** A half-open range of numbers of generated tokens. `end` null: all from `start` on, up to MOST_TOKENS. */
export interface TokenRange {
  readonly start: number
  readonly end: number | null
}

/** The longest answer that is considered, in tokens. */
export const MOST_TOKENS = 1_000_000

/** Returns the milliseconds to generate this many tokens; `tokens` is at least 1. */
export function total({ first, perToken, growth }: CostLine, tokens: number): number {
  const after = tokens - 1
  return first + after * perToken + (growth * after * (after - 1)) / 2
}

/** Returns the token counts from 1 to MOST_TOKENS for which `line` costs less than `other`: at most two ranges, in order. */
export function below(line: CostLine, other: CostLine): TokenRange[] {
  const wins = (tokens: number): boolean => total(line, tokens) < total(other, tokens)
  // The difference of two lines is a parabola, so it crosses zero at most once on each side of its vertex.
  const borders = pieces(line, other).flatMap(({ start, end }) => {
    const change = firstChange(start, end, wins)
    return change === null ? [start] : [start, change]
  })
  const stretches: TokenRange[] = []
  for (const [index, start] of borders.entries()) {
    if (!wins(start)) continue
    const next = borders[index + 1]
    const end = next ?? null
    const last = stretches.at(-1)
    if (last?.end === start) stretches[stretches.length - 1] = { start: last.start, end }
    else stretches.push({ start, end })
  }
  return stretches
}

/** Returns the smallest token count from which on `line` always costs less; null if there is none. */
export function winsFrom(line: CostLine, other: CostLine): number | null {
  const last = below(line, other).at(-1)
  return last?.end === null ? last.start : null
}

/** Returns the cheapest line for each range of token counts; of equal ones, the first. */
export function cheapest<Name extends string>(
  lines: readonly { readonly name: Name; readonly line: CostLine }[],
): { readonly name: Name; readonly tokens: TokenRange }[] {
  const borders = new Set([1])
  for (const a of lines)
    for (const b of lines)
      for (const { start, end } of below(a.line, b.line)) {
        borders.add(start)
        if (end !== null) borders.add(end)
      }
  const least: { name: Name; tokens: TokenRange }[] = []
  for (const start of [...borders].sort((a, b) => a - b)) {
    const [head, ...rest] = lines
    if (head === undefined) return []
    const { name } = rest.reduce((best, each) => (total(each.line, start) < total(best.line, start) ? each : best), head)
    const last = least.at(-1)
    if (last?.name === name) continue
    if (last !== undefined) least[least.length - 1] = { name: last.name, tokens: { start: last.tokens.start, end: start } }
    least.push({ name, tokens: { start, end: null } })
  }
  return least
}

/** Returns the ranges of token counts, both ends included, in which the difference only rises or only falls. */
function pieces(a: CostLine, b: CostLine): { readonly start: number; readonly end: number }[] {
  const whole = { start: 1, end: MOST_TOKENS }
  const growth = a.growth - b.growth
  if (growth === 0) return [whole]
  // The vertex of f + t n + k n (n - 1) / 2, over n = tokens - 1.
  const turn = Math.floor(1 + 0.5 - (a.perToken - b.perToken) / growth)
  return turn < 1 || turn >= MOST_TOKENS
    ? [whole]
    : [
        { start: 1, end: turn },
        { start: turn + 1, end: MOST_TOKENS },
      ]
}

/**
 * Returns the first of `start + 1 .. end` for which `holds` differs from its value at `start`; null if none does. `holds` must change at
 * most once.
 */
function firstChange(start: number, end: number, holds: (of: number) => boolean): number | null {
  const before = holds(start)
  if (holds(end) === before) return null
  let [same, other] = [start, end]
  while (other - same > 1) {
    const middle = Math.floor((same + other) / 2)
    if (holds(middle) === before) same = middle
    else other = middle
  }
  return other
}
