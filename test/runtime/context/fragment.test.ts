import fc from 'fast-check'
import { expect, it } from 'vitest'
import { IdMint } from '../../../src/runtime/context/fragment.js'

const pairsOf = (id: string) => [id.slice(0, 2), id.slice(2, 4), id.slice(4)]

const mintOf = (content: string): IdMint => {
  const mint = new IdMint()
  mint.absorb({ role: 'user', content })
  return mint
}

it('ids of a conversation share no pair of characters while unused pairs are left', () => {
  fc.assert(
    fc.property(fc.string(), fc.integer({ min: 1, max: 14 }), (content, count) => {
      const mint = mintOf(content)
      const ids = Array.from({ length: count }, () => mint.fragment())
      const used = new Set<string>()
      for (const id of ids) {
        expect(id).toMatch(/^f[0-9a-f]{5}$/)
        // There are sixteen first pairs, and each may also occur later in another id.
        const left = Array.from({ length: 16 }, (_, digit) => `f${digit.toString(16)}`).some((pair) => !used.has(pair))
        if (left) expect(pairsOf(id).filter((pair) => used.has(pair))).toEqual([])
        for (const pair of pairsOf(id)) used.add(pair)
      }
    }),
    { numRuns: 2000 },
  )
})

it('thousands of ids are made in milliseconds, and are always the same', () => {
  const mint = mintOf('Hi')
  const began = performance.now()
  const ids = Array.from({ length: 10_000 }, (_, at) => (at % 3 === 2 ? mint.search() : mint.fragment()))
  expect(performance.now() - began).toBeLessThan(1000)
  expect([ids[20], ids[300], ids[1400]]).toEqual(['s6dfec', 'f00957', 's73d6f'])
  expect(new Set(ids).size).toBe(10_000)
})

it('ids stay unique when pairs run out, and a resumed mint continues with the same ids', () => {
  const [one, other] = [mintOf('text'), mintOf('text')]
  const before = Array.from({ length: 300 }, (_, at) => (at % 3 === 0 ? one.search() : one.fragment()))
  other.resume(one.count, before)
  const after = Array.from({ length: 50 }, () => one.fragment())
  expect(Array.from({ length: 50 }, () => other.fragment())).toEqual(after)
  expect(new Set([...before, ...after]).size).toBe(350)
})
