import { readFile } from 'node:fs/promises'
import { describe, expect, it } from 'vitest'
import { bootstrap, mean, rankCorrelation, shareInterval } from '../../bench/statistics.js'
import { RESULTS } from '../../bench/record.js'
import { wilson } from '../../src/lab/attention/statistics.js'
import { Random } from '../../src/runtime/core/random.js'

describe('bootstrap', () => {
  it('is the same for the same values, and a point if all values are equal', () => {
    expect(bootstrap([0.2, 0.9, 0.4])).toEqual(bootstrap([0.2, 0.9, 0.4]))
    expect(bootstrap([0.7])).toEqual([0.7, 0.7])
    expect(bootstrap([0.5, 0.5, 0.5])).toEqual([0.5, 0.5])
  })

  it('lies around the mean and within the values', () => {
    const values = [0.1, 0.3, 0.35, 0.8, 0.9]
    const [low, high] = bootstrap(values)
    expect(low).toBeGreaterThanOrEqual(0.1)
    expect(low).toBeLessThan(mean(values))
    expect(high).toBeGreaterThan(mean(values))
    expect(high).toBeLessThanOrEqual(0.9)
  })

  it('is as wide as the normal approximation for many values', () => {
    const random = new Random(3)
    const values = Array.from({ length: 80 }, () => random.below(1000) / 1000)
    const average = mean(values)
    const deviation = Math.sqrt(mean(values.map((value) => (value - average) ** 2)))
    const half = (1.96 * deviation) / Math.sqrt(values.length)
    const [low, high] = bootstrap(values)
    expect(Math.abs(low - (average - half))).toBeLessThan(0.15 * half)
    expect(Math.abs(high - (average + half))).toBeLessThan(0.15 * half)
  })

  it('covers the true mean about as often as it claims', () => {
    const random = new Random(4)
    let covered = 0
    for (let round = 0; round < 25; round++) {
      const [low, high] = bootstrap(
        Array.from({ length: 16 }, () => random.below(1001) / 1000),
        round,
      )
      if (low <= 0.5 && 0.5 <= high) covered++
    }
    expect(covered / 25).toBeGreaterThan(0.8)
  })
})

describe('the interval of a mean share', () => {
  it('is a bootstrap where samples differ, and never a single point where they are alike', () => {
    expect(shareInterval([1, 0.5, 0.75])).toEqual(bootstrap([1, 0.5, 0.75]))
    expect(shareInterval(Array<number>(20).fill(1))).toEqual(wilson(20, 20))
    expect(shareInterval(Array<number>(16).fill(0))).toEqual(wilson(0, 16))
    const [low, high] = shareInterval([0.9, 0.9, 0.9])
    expect([low < 0.5, high > 0.95]).toEqual([true, true])
  })

  it.each(['retrieval', 'interference', 'wordings-qwen-0.5b-acm'])('in the record %s is no single point', async (name) => {
    const text = await readFile(new URL(`${name}.json`, RESULTS), 'utf8')
    const intervals = [...text.matchAll(/"\w*[iI]nterval": \[([\d.]+), ([\d.]+)\]/gu)]
    expect(intervals.length).toBeGreaterThan(4)
    expect(intervals.filter(([, low, high]) => low === high)).toEqual([])
  })
})

it('a rank correlation is 1 for what grows together, -1 for what falls, and counts equal values by their mean rank', () => {
  const pairs = [1, 2, 3, 4].map((x) => [x, x ** 3] as const)
  expect(rankCorrelation(pairs)).toBeCloseTo(1)
  expect(rankCorrelation(pairs.map(([x, y]) => [x, -y] as const))).toBeCloseTo(-1)
  // Ranks 0, 1, 2, 3 and 0.5, 0.5, 2.5, 2.5: 4 over the root of 5 times 4.
  expect(
    rankCorrelation([
      [1, 7],
      [2, 7],
      [3, 9],
      [4, 9],
    ]),
  ).toBeCloseTo(4 / Math.sqrt(20))
})
