/** Accuracy and its interval: within 0 and 1, defined for every number of samples, and wide enough. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { estimate, rowsOf, totalOf, totalsOf } from '../../src/lab/accuracy.js'
import { wilson } from '../../src/lab/attention/statistics.js'
import type { ItemResult } from '../../src/lab/run/plan.js'

const scores = (points: readonly number[], asked = 1) => points.map((one) => ({ points: one, details: { asked } }))

describe('accuracy', () => {
  it('is the mean, inside an interval within 0 and 1', () => {
    fc.assert(
      fc.property(fc.array(fc.double({ min: 0, max: 1, noNaN: true }), { minLength: 1, maxLength: 30 }), (points) => {
        const { value, interval } = estimate(scores(points))!
        expect(value).toBeCloseTo(points.reduce((sum, one) => sum + one, 0) / points.length)
        expect(interval[0]).toBeGreaterThanOrEqual(0)
        expect(interval[1]).toBeLessThanOrEqual(1)
        expect(interval[0]).toBeLessThanOrEqual(value + 1e-9)
        expect(interval[1]).toBeGreaterThanOrEqual(value - 1e-9)
      }),
      { numRuns: 50 },
    )
  })

  it("is Wilson's interval where each sample is right or wrong", () => {
    expect(estimate(scores([1, 1, 0, 1]))).toEqual({ value: 0.75, interval: wilson(3, 4), method: 'wilson' })
    // Newcombe 1998, table I: 81 of 263.
    const [low, high] = wilson(81, 263)
    expect(low).toBeCloseTo(0.2553, 4)
    expect(high).toBeCloseTo(0.3662, 4)
  })

  it('counts samples, not their questions, where samples differ', () => {
    const found = estimate(scores([0, 1, 0, 1, 0, 1, 0, 1], 46))!
    expect(found.method).toBe('bootstrap')
    // As wide as for eight answers, not as for 368.
    expect(found.interval[1] - found.interval[0]).toBeGreaterThan(0.5)
  })

  it('is defined where all samples are equal', () => {
    expect(estimate([])).toBeNull()
    const [low, high] = estimate(scores([45 / 46], 46))!.interval
    expect([low < 0.3, high > 0.99]).toEqual([true, true])
    expect(estimate(scores([1, 1, 1, 1], 46))!.interval).toEqual(wilson(4, 4))
    expect(estimate(scores([0.5, 0.5], 1))!.interval).toEqual(wilson(1, 2))
  })
})

describe('the rows of a run', () => {
  const answer = (agent: string, index: number, points: number, before: number): ItemResult =>
    ({
      ...{ kind: 'sample', task: 0, agent, contract: 'exact', index, id: `${index}`, cell: { n: index % 2 } },
      ...{ end: 'stop', score: { points, outcome: 'right', details: {} }, calls: [], refusedCalls: 0, details: {} },
      tokens: { before, most: before, after: before / 2 },
      work: { steps: 1, shown: before, reused: 0, submitted: before, generated: 1 },
      milliseconds: { cache: 0, prefill: 1, decode: 1, total: 10 },
    }) as ItemResult
  const failure: ItemResult = {
    ...{ kind: 'error', task: 0, agent: 'plain', contract: 'exact', index: 4, id: '4', cell: { n: 0 } },
    ...{ code: 'context/full', message: 'It does not fit.' },
  }
  const results = [
    ...[1, 0, 1, 1].map((points, index) => answer('plain', index, points, 100 * (index + 1))),
    failure,
    answer('mem0', 0, 1, 50),
  ]

  it('have one row for each cell and agent; errors are only counted', () => {
    const rows = rowsOf(results)
    expect(rows.map(({ cell, agent, samples, errors, accuracy }) => [cell, agent, samples, errors, accuracy])).toEqual([
      [{ n: 0 }, 'plain', 2, 1, 1],
      [{ n: 0 }, 'mem0', 1, 0, 1],
      [{ n: 1 }, 'plain', 2, 0, 0.5],
    ])
    expect(rows[0]).toMatchObject({ tokensBefore: 200, tokensAfter: 100, tokensComputed: 200, milliseconds: 10 })
    expect(totalsOf(results).map(({ agent, samples, errors, cell }) => [agent, samples, errors, cell])).toEqual([
      ['plain', 4, 1, null],
      ['mem0', 1, 0, null],
    ])
    const [one, other] = [answer('plain', 0, 1, 2000), answer('plain', 2, 0, 32_000)]
    const full = { ...other, details: { overflowed: 1 } } as ItemResult
    expect(rowsOf([one, full])).toMatchObject([{ samples: 2, tokensBefore: 17_000, tokensMost: 17_000, tokensAfter: 1000 }])
    expect(rowsOf([full])).toMatchObject([{ samples: 1, tokensAfter: null }])
    expect(totalOf([failure])).toMatchObject({ samples: 0, errors: 1, accuracy: null, interval: null, tokensBefore: null })
  })
})
