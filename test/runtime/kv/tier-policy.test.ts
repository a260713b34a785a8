/** What a full tier gives up, and in which order. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { benefit, surplus, type Kept } from '../../../src/runtime/kv/tier-policy.js'

const NOW = 1000
const kept: fc.Arbitrary<Kept[]> = fc.array(fc.record({ tokens: fc.nat(50), bytes: fc.nat(100), lastUse: fc.nat(NOW) }), {
  maxLength: 12,
})
const bytesOf = (items: readonly Kept[]) => items.reduce((sum, { bytes }) => sum + bytes, 0)

describe('the benefit of keeping something', () => {
  it('is tokens to recompute by bytes and age', () => {
    expect(benefit({ tokens: 600, bytes: 20, lastUse: NOW - 9 }, NOW)).toBe(600 / (20 * 10))
  })

  it('of what was used just now, or by a faster clock, is by bytes alone', () => {
    expect(benefit({ tokens: 600, bytes: 20, lastUse: NOW }, NOW)).toBe(30)
    expect(benefit({ tokens: 600, bytes: 20, lastUse: NOW + 50 }, NOW)).toBe(30)
  })

  it('is a number for what takes no room', () => {
    expect(benefit({ tokens: 600, bytes: 0, lastUse: NOW }, NOW)).toBe(600)
  })
})

describe('the surplus', () => {
  const item = (name: string, tokens: number, bytes: number, age: number) => ({ name, tokens, bytes, lastUse: NOW - age })
  const names = (items: readonly { readonly name: string }[]) => items.map(({ name }) => name)

  it('is nothing while all fits', () => {
    expect(surplus([item('a', 1, 60, 0), item('b', 1, 40, 0)], 100, NOW)).toEqual([])
  })

  it('begins with what is old, large for its tokens, or both', () => {
    const items = [item('recent', 100, 10, 9), item('old', 100, 10, 99), item('large', 100, 50, 9), item('both', 100, 50, 99)]
    expect(names(surplus(items, 0, NOW))).toEqual(['both', 'old', 'large', 'recent'])
    expect(names(surplus(items, 70, NOW))).toEqual(['both'])
  })

  it('begins with the longest unused of things that are worth nothing', () => {
    expect(names(surplus([item('later', 0, 10, 5), item('earlier', 0, 10, 6)], 0, NOW))).toEqual(['earlier', 'later'])
  })

  it('leaves what fits, is of least benefit, and not one item more than needed', () => {
    fc.assert(
      fc.property(kept, fc.nat(600), (items, budget) => {
        const given = surplus(items, budget, NOW)
        const left = items.filter((item) => !given.includes(item))
        expect(bytesOf(left)).toBeLessThanOrEqual(budget)
        expect(given.length + left.length).toBe(items.length)
        const last = given.at(-1)
        if (last === undefined) return
        expect(bytesOf(left) + last.bytes).toBeGreaterThan(budget)
        const most = Math.max(...given.map((item) => benefit(item, NOW)))
        for (const item of left) expect(benefit(item, NOW)).toBeGreaterThanOrEqual(most)
      }),
      { numRuns: 1000 },
    )
  })
})
