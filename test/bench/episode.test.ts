import { describe, expect, it } from 'vitest'
import { eightFolds, ORDERS, PREFILL, type Order } from '../../bench/runtime/peers/episode.js'

const VOCABULARY = 8192
const episode = (order: Order, seed = 1) => eightFolds(order, VOCABULARY, seed)

/** Returns the tokens after the longest common beginning with the previous prompt, which a prefix cache computes. */
function computedByPrefixCache(order: Order): number {
  const { prefill, steps } = episode(order)
  return steps.reduce((total, { tokens }, index) => {
    const before = index === 0 ? prefill : steps[index - 1]!.tokens
    const common = tokens.findIndex((token, position) => token !== before[position])
    return total + tokens.length - common
  }, 0)
}

describe.each(ORDERS)('the eight-folds episode, %s', (order) => {
  const { prefill, steps } = episode(order)
  const stepCount = order === 'together' ? 1 : 8

  it('begins with 8,192 tokens, and every fold adds a marker of 20 and a result of 60', () => {
    expect(prefill).toHaveLength(PREFILL)
    expect(steps).toHaveLength(stepCount)
    for (const { tokens, base, holes } of steps) {
      expect(base).toHaveLength(PREFILL + 60 * holes.length)
      expect(holes.every(({ marker }) => marker.length === 20)).toBe(true)
      const folded = holes.reduce((total, { start, end }) => total + end - start, 0)
      expect(tokens).toHaveLength(base.length - folded + 20 * holes.length)
    }
  })

  it('shows the unedited tokens with every folded span replaced by its marker', () => {
    for (const { tokens, base, holes } of steps) {
      const replaced = [...base]
      for (const { start, end, marker } of [...holes].reverse()) replaced.splice(start, end - start, ...marker)
      expect([...tokens]).toEqual(replaced)
    }
  })

  it('keeps the prefill, earlier results and earlier folds from step to step', () => {
    for (const [index, { base, holes }] of steps.entries()) {
      const before = steps[index - 1] ?? { base: prefill, holes: [] }
      expect(base.subarray(0, before.base.length)).toEqual(before.base)
      expect(holes).toHaveLength(before.holes.length + 8 / stepCount)
      for (const hole of before.holes) expect(holes).toContainEqual(hole)
    }
  })

  it('folds whole tenths, in order, and ends with the first eight', () => {
    for (const { holes } of steps)
      for (const [index, { start, end }] of holes.entries()) {
        expect([819, 820]).toContain(end - start)
        if (index > 0) expect(start).toBe(holes[index - 1]!.end)
      }
    const { holes } = steps.at(-1)!
    expect(holes).toHaveLength(8)
    expect([holes[0]!.start, holes[7]!.end]).toEqual([0, 6553])
  })
})

describe('a prefix cache computes for the episode', () => {
  it.each([
    ['first-to-last', 38_368],
    ['last-to-first', 15_992],
    ['together', 2279],
  ] as const)('%s: %i tokens', (order, tokens) => {
    expect(computedByPrefixCache(order)).toBe(tokens)
  })
})

describe('the tokens of the episode', () => {
  const { prefill, steps } = episode('together')
  const { base, holes, tokens } = steps[0]!

  it('end the same in every order', () => {
    for (const order of ORDERS) expect(episode(order).steps.at(-1)!.tokens).toEqual(tokens)
  })

  it('are the same for the same seed, and others for another seed', () => {
    expect(episode('together').prefill).toEqual(prefill)
    expect(episode('together', 2).prefill).not.toEqual(prefill)
  })

  it('are plain vocabulary', () => {
    const all = [...base, ...tokens]
    expect(Math.min(...all)).toBeGreaterThanOrEqual(300)
    expect(Math.max(...all)).toBeLessThan(VOCABULARY - 100)
  })

  it('never match by accident: markers and results are unique, and no four tokens repeat', () => {
    const rare = [...holes.flatMap(({ marker }) => [...marker]), ...base.subarray(PREFILL)]
    expect(new Set(rare).size).toBe(rare.length)
    const common = new Set(prefill)
    expect(rare.filter((token) => common.has(token))).toEqual([])
    const fours = Array.from({ length: PREFILL - 3 }, (_, at) => prefill.subarray(at, at + 4).join(' '))
    expect(new Set(fours).size).toBe(fours.length)
  })

  it('need a vocabulary large enough', () => {
    expect(() => eightFolds('together', 512, 1)).toThrow(RangeError)
    expect(() => eightFolds('together', 2040, 1)).not.toThrow()
  })
})
