/** Tests where cost lines cross, against counting token by token. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { below, cheapest, MOST_TOKENS, total, winsFrom, type CostLine, type TokenRange } from '../../../bench/runtime/acm/line.js'

/** Draws lines of whole numbers, so that sums are exact; growth is even, so that its half is whole. */
const anyLine = fc.record({
  first: fc.integer({ min: 0, max: 3000 }),
  perToken: fc.integer({ min: 0, max: 60 }),
  growth: fc.integer({ min: 0, max: 3 }).map((half) => 2 * half),
})
/** Lines drawn above cross for the last time within this many tokens, if they do. */
const FAR = 4000
const has = (stretches: readonly TokenRange[], tokens: number): boolean =>
  stretches.some(({ start, end }) => start <= tokens && (end === null || tokens < end))

/** Returns the totals token by token. */
function* stepwise({ first, perToken, growth }: CostLine): Generator<number, never> {
  for (let [sum, step] = [first, perToken]; ; sum += step, step += growth) yield sum
}

describe('total', () => {
  it('is the sum of all tokens', () => {
    fc.assert(
      fc.property(anyLine, (line) => {
        const sums = stepwise(line)
        for (let tokens = 1; tokens < 50; tokens++) expect(total(line, tokens)).toBe(sums.next().value)
      }),
    )
  })
})

describe('below', () => {
  it('holds exactly where the line costs less', () => {
    fc.assert(
      fc.property(anyLine, anyLine, (line, other) => {
        const stretches = below(line, other)
        const [a, b] = [stepwise(line), stepwise(other)]
        for (let tokens = 1; tokens <= FAR; tokens++) {
          const wins = a.next().value < b.next().value
          if (has(stretches, tokens) !== wins) expect({ tokens, stretches }).toBe(wins)
        }
        const end = total(line, MOST_TOKENS) < total(other, MOST_TOKENS)
        expect(has(stretches, MOST_TOKENS)).toBe(end)
      }),
      { numRuns: 300 },
    )
  })

  it('gives at most two spans, in order, separate and not empty', () => {
    fc.assert(
      fc.property(anyLine, anyLine, (line, other) => {
        const stretches = below(line, other)
        expect(stretches.length).toBeLessThanOrEqual(2)
        let at = 0
        for (const { start, end } of stretches) {
          expect(start).toBeGreaterThan(at)
          at = end ?? Infinity
          expect(at).toBeGreaterThan(start)
        }
      }),
    )
  })

  it('finds a win that comes and goes, and one that comes twice', () => {
    // The fold costs 10 at once and saves 4, 2, 0, -2, ... with each token.
    const other = { first: 0, perToken: 10, growth: 0 }
    const bent = { first: 5, perToken: 6, growth: 2 }
    expect(below(bent, other)).toEqual([{ start: 3, end: 5 }])
    expect(winsFrom(bent, other)).toBeNull()
    expect(below(other, bent)).toEqual([
      { start: 1, end: 3 },
      { start: 5, end: null },
    ])
    expect(winsFrom(other, bent)).toBe(5)
  })

  it('reports no win for equal lines', () => {
    const line = { first: 3, perToken: 2, growth: 0.5 }
    expect(below(line, line)).toEqual([])
  })
})

describe('cheapest', () => {
  it('names the first of the cheapest lines, for every number of tokens', () => {
    fc.assert(
      fc.property(fc.array(anyLine, { minLength: 1, maxLength: 4 }), (all) => {
        const lines = all.map((line, index) => ({ name: `w${index}`, line }))
        const found = cheapest(lines)
        expect(found[0]!.tokens.start).toBe(1)
        expect(found.at(-1)!.tokens.end).toBeNull()
        const sums = lines.map(({ line }) => stepwise(line))
        let at = 0
        for (let tokens = 1; tokens <= FAR; tokens++) {
          while (found[at]!.tokens.end !== null && found[at]!.tokens.end! <= tokens) at++
          const costs = sums.map((sum) => sum.next().value)
          const name = `w${costs.indexOf(Math.min(...costs))}`
          if (found[at]!.name !== name) expect({ tokens, found }).toBe(name)
        }
      }),
      { numRuns: 100 },
    )
  })

  it('returns nothing for no lines', () => {
    expect(cheapest([])).toEqual([])
  })
})
