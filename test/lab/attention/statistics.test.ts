/** The statistics of attention studies, compared with values computed with SciPy 1.17 (ttest_1samp, wilcoxon, t.sf, norm.sf, pearsonr). */
import fc from 'fast-check'
import { describe as suite, expect, it } from 'vitest'
import {
  bootstrap,
  describe,
  median,
  squaredCorrelation,
  tTest,
  twoSided,
  wilcoxon,
} from '../../../src/lab/attention/statistics.js'
import { Random } from '../../../src/runtime/core/random.js'

const near = (actual: number, expected: number, relative = 1e-9) => {
  expect(Math.abs(actual / expected - 1)).toBeLessThan(relative)
}

/** Hollander and Wolfe's depression scores: first visit less second. */
const DEPRESSION = [1.83, 0.5, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.3].map(
  (first, index) => first - [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29][index]!,
)
const CHANGES = [5.1, -2.3, 9.8, 12.4, 7.7, 3.3, -0.4, 15.2, 8.8, 6.1]

suite('the t test', () => {
  it('agrees with SciPy', () => {
    const depression = tTest(DEPRESSION)!
    near(depression.t, 3.0353754156485917)
    near(depression.p, 0.016176627434908088)
    expect(depression.df).toBe(8)
    near(tTest(CHANGES)!.p, 0.004056587511372957)
  })

  it('is precise in its tails, where p is tiny', () => {
    near(twoSided(2, 10), 0.07338803477074037)
    near(twoSided(0.5, 1), 0.7048327646991335)
    near(twoSided(12, 45), 1.2764935245667585e-15)
    near(twoSided(-3, 919), 0.0027726484321193836)
    near(twoSided(40, 919), 1.9841858437875039e-203, 1e-8)
  })

  it('returns null for one value, or for values that are all the same', () => {
    expect(tTest([3])).toBeNull()
    expect(tTest([2, 2, 2])).toBeNull()
  })
})

suite("Wilcoxon's test", () => {
  it('enumerates small samples exactly', () => {
    expect(wilcoxon(DEPRESSION)).toEqual({ w: 5, count: 9, p: 0.0390625, method: 'exact' })
    expect(wilcoxon(CHANGES)).toMatchObject({ w: 3, p: 0.009765625 })
  })

  it('enumerates ties exactly, too', () => {
    // By hand: 40 of the 64 ways to choose signs are as far from the middle.
    expect(wilcoxon([1, 1, -1, 2, 3, -3])).toMatchObject({ w: 7.5, p: 0.625, method: 'exact' })
  })

  it('approximates large samples, with ties and without zeros', () => {
    const values = Array.from({ length: 30 }, (_, index) => ((index * 7) % 13) - 3)
    const { w, count, p, method } = wilcoxon(values)!
    expect({ w, count, method }).toEqual({ w: 62, count: 28, method: 'normal' })
    near(p, 0.0012942950340935574)
  })

  it('is precise in its tail, where p is tiny', () => {
    // All of 400 values on one side: erfc(40100 / sqrt(2 * 5353350)) by Python's math.erfc.
    near(wilcoxon(Array.from({ length: 400 }, (_, index) => index + 1))!.p, 2.7300692619535038e-67, 1e-8)
  })

  it('returns null for zeros', () => {
    expect(wilcoxon([0, 0])).toBeNull()
    expect(wilcoxon([])).toBeNull()
  })

  it('is the same whichever side is called positive', () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: -9, max: 9 }), { minLength: 1, maxLength: 40 }), (values) => {
        expect(wilcoxon(values)?.p).toEqual(wilcoxon(values.map((value) => -value))?.p)
      }),
    )
  })
})

suite('descriptions', () => {
  it('have mean, median and range', () => {
    expect(describe([4, 1, 3, 2])).toEqual({ count: 4, mean: 2.5, median: 2.5, least: 1, most: 4, deviation: Math.sqrt(5 / 3) })
    expect(describe([])).toBeNull()
  })

  it('measure how far two samples agree', () => {
    const pairs = [2.1, 3.9, 6.2, 7.8, 10.1].map((y, index) => [index + 1, y] as const)
    near(squaredCorrelation(pairs)!, 0.997305328900977)
    expect(
      squaredCorrelation([
        [1, 2],
        [1, 3],
      ]),
    ).toBeNull()
  })
})

suite('the bootstrap', () => {
  it('draws groups, not items, so that repeated items of a group narrow no interval', () => {
    const random = new Random(7)
    const values = Array.from({ length: 20 }, () => random.below(1000) / 100)
    const average = (groups: readonly (readonly number[])[]) =>
      groups.flat().reduce((sum, item) => sum + item, 0) / groups.flat().length
    const single = bootstrap(
      values.map((value) => [value]),
      average,
    )!
    const repeated = bootstrap(
      values.map((value) => new Array<number>(46).fill(value)),
      average,
    )!
    expect(repeated[0]).toBeCloseTo(single[0], 9)
    expect(repeated[1]).toBeCloseTo(single[1], 9)
    expect(single[0]).toBeLessThan(average([values]))
    expect(single[1]).toBeGreaterThan(average([values]))
  })

  it('gives the same interval for the same seed, and none for one group', () => {
    const groups = [[1, 2], [3], [4, 9], [2]]
    const figure = (drawn: readonly (readonly number[])[]) => median(drawn.flat())
    expect(bootstrap(groups, figure, 5)).toEqual(bootstrap(groups, figure, 5))
    expect(bootstrap([[1, 2]], figure)).toBeNull()
  })

  it('covers the truth about as often as it claims', () => {
    const random = new Random(11)
    const trials = 200
    let covered = 0
    for (let trial = 0; trial < trials; trial++) {
      const groups = Array.from({ length: 20 }, () => random.below(1_000_000) / 1_000_000)
      const [low, high] = bootstrap(groups, (items) => items.reduce((sum, item) => sum + item, 0) / items.length, trial)!
      if (low <= 0.5 && 0.5 <= high) covered++
    }
    expect(covered / trials).toBeGreaterThan(0.88)
    expect(covered / trials).toBeLessThan(0.99)
  })
})
