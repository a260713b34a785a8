/** Owns what a turn costs as a line over generated tokens, and from how many tokens on one line lies below another. Pure. */

/** Milliseconds of a turn that begins with what it takes to the first token; tokens after it take longer the more there are before them. */
export interface CostLine {
  /** To the first generated token, the edit included. */
  readonly first: number
  /** The second generated token. */
  readonly perToken: number
  /** What every further token takes longer than the one before it; at least 0. */
  readonly growth: number
}

/** Numbers of generated tokens, half-open; `end` null: all from `start` on, as far as was looked. */
export interface TokenRange {
  readonly start: number
  readonly end: number | null
}

/** Answers are not longer. */
export const MOST_TOKENS = 1_000_000

/** Milliseconds to generate so many tokens, at least 1. */
export function total({ first, perToken, growth }: CostLine, tokens: number): number {
  const after = tokens - 1
  return first + after * perToken + (growth * after * (after - 1)) / 2
}

/** The numbers of tokens, from 1 to MOST_TOKENS, for which `line` costs less than `other`; at most two stretches, in order. */
export function below(line: CostLine, other: CostLine): TokenRange[] {
  const wins = (tokens: number): boolean => total(line, tokens) < total(other, tokens)
  // The difference of two lines is a parabola: on each side of its turning point it crosses zero once at most.
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

/** The fewest tokens from which on `line` costs less for good; null: there are none. */
export function winsFrom(line: CostLine, other: CostLine): number | null {
  const last = below(line, other).at(-1)
  return last?.end === null ? last.start : null
}

/** Which of the lines costs least, for every number of tokens; of equals the first. */
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

/** Numbers of tokens, both ends included, within which the difference only rises or only falls. */
function pieces(a: CostLine, b: CostLine): { readonly start: number; readonly end: number }[] {
  const whole = { start: 1, end: MOST_TOKENS }
  const growth = a.growth - b.growth
  if (growth === 0) return [whole]
  // Of f + t n + k n (n - 1) / 2 over n = tokens - 1.
  const turn = Math.floor(1 + 0.5 - (a.perToken - b.perToken) / growth)
  return turn < 1 || turn >= MOST_TOKENS
    ? [whole]
    : [
        { start: 1, end: turn },
        { start: turn + 1, end: MOST_TOKENS },
      ]
}

/** The first of `start + 1 .. end` of which `holds` says something else than of `start`, where it changes once at most; null: never. */
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
