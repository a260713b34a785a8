import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { mix, Random } from '../../../src/runtime/core/random.js'

const draws = (random: Random, count: number) => Array.from({ length: count }, () => random.word())

describe('Random', () => {
  it('gives the same words for the same seed and stream, and different words for different ones', () => {
    fc.assert(
      fc.property(fc.integer(), fc.nat(), fc.nat(), (seed, stream, other) => {
        expect(draws(new Random(seed, stream), 8)).toEqual(draws(new Random(seed, stream), 8))
        if (stream !== other) expect(draws(new Random(seed, stream), 8)).not.toEqual(draws(new Random(seed, other), 8))
        expect(draws(new Random(seed, stream), 8)).not.toEqual(draws(new Random(seed + 1, stream), 8))
      }),
    )
  })

  it('keeps its words across releases', () => {
    expect(draws(new Random(1), 4)).toMatchInlineSnapshot(`
      [
        393288148,
        2174103013,
        3814759091,
        2092745082,
      ]
    `)
    expect(draws(new Random(1, 2, 3), 2)).toMatchInlineSnapshot(`
      [
        4168573172,
        3889980691,
      ]
    `)
  })

  it('draws every number below a bound about equally often', () => {
    const random = new Random(7)
    const counts = [0, 0, 0, 0, 0, 0]
    for (let draw = 0; draw < 60_000; draw++) counts[random.below(6)]!++
    // The standard deviation is 91; the bound is five of them.
    for (const count of counts) expect(Math.abs(count - 10_000)).toBeLessThan(460)
  })

  it('shuffles into every order about equally often, and loses no element', () => {
    const random = new Random(3)
    const counts = new Map<string, number>()
    for (let round = 0; round < 24_000; round++) {
      const order = random.shuffled(['a', 'b', 'c', 'd']).join('')
      counts.set(order, (counts.get(order) ?? 0) + 1)
    }
    expect(counts.size).toBe(24)
    for (const count of counts.values()) expect(Math.abs(count - 1_000)).toBeLessThan(160)
    fc.assert(
      fc.property(fc.array(fc.nat()), fc.nat(), (items, seed) => {
        expect(new Random(seed).shuffled(items).sort()).toEqual([...items].sort())
      }),
    )
  })
})

describe('a draw among nothing', () => {
  it('is refused: no word would ever do', () => {
    expect(() => new Random(1).below(0)).toThrow(/a draw needs at least one number, not 0/)
  })
})

describe('mix', () => {
  it('maps different words to different words', () => {
    fc.assert(
      fc.property(fc.nat(), fc.nat(), (a, b) => {
        expect(mix(a) === mix(b)).toBe(a === b)
      }),
    )
  })
})
