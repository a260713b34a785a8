/** Tests `align` against a naive search for the longest common subsequence. The tests count its reads and do not time it. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { align, gapsOf, type Match } from '../../../src/runtime/core/alignment.js'

/** Returns the length of the longest common subsequence. */
function naive(a: readonly number[], b: readonly number[]): number {
  const counts = Array.from({ length: a.length + 1 }, () => new Array<number>(b.length + 1).fill(0))
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      counts[i]![j] = a[i] === b[j] ? counts[i + 1]![j + 1]! + 1 : Math.max(counts[i + 1]![j]!, counts[i]![j + 1]!)
  return counts[0]![0]!
}

function checkMatches(matches: readonly Match[], a: readonly number[], b: readonly number[]): void {
  for (const { a: at, b: to } of matches) expect(a[at]).toBe(b[to])
  for (const [index, match] of matches.entries()) {
    const before = matches[index - 1]
    if (before !== undefined) expect([match.a > before.a, match.b > before.b]).toEqual([true, true])
  }
}

/** Draws a list and a client's edit of it: elements removed, replaced, inserted and moved. */
const edited = (base: fc.Arbitrary<number[]>) =>
  fc
    .tuple(base, fc.array(fc.tuple(fc.nat(40), fc.constantFrom('out', 'other', 'in', 'known'), fc.nat(5000)), { maxLength: 12 }))
    .map(([a, edits]) => {
      const b = [...a]
      for (const [place, kind, value] of edits) {
        const at = b.length === 0 ? 0 : place % b.length
        if (kind === 'out') b.splice(at, 1)
        else if (kind === 'other') b.splice(at, 1, 10_000 + value)
        else b.splice(at, 0, kind === 'in' ? 10_000 + value : (a[value % Math.max(1, a.length)] ?? 0))
      }
      return [a, b] as const
    })

describe('align', () => {
  it('matches as many elements as the longest common subsequence when all elements differ', () => {
    const lists = fc.tuple(fc.uniqueArray(fc.nat(60), { maxLength: 40 }), fc.uniqueArray(fc.nat(60), { maxLength: 40 }))
    fc.assert(
      fc.property(lists, ([a, b]) => {
        const matches = align(a, b)
        checkMatches(matches, a, b)
        expect(matches.length).toBe(naive(a, b))
      }),
    )
  })

  it('keeps the common beginning and end, and leaves no equal elements in a gap, even when elements repeat', () => {
    fc.assert(
      fc.property(edited(fc.array(fc.nat(8), { maxLength: 40 })), ([a, b]) => {
        const matches = align(a, b)
        checkMatches(matches, a, b)
        for (const gap of gapsOf(matches, a.length, b.length))
          expect(naive(a.slice(gap.a, gap.aEnd), b.slice(gap.b, gap.bEnd))).toBe(0)
        let head = 0
        while (head < Math.min(a.length, b.length) && a[head] === b[head]) head++
        expect(matches.slice(0, head)).toEqual(Array.from({ length: head }, (_, at) => ({ a: at, b: at })))
      }),
    )
  })

  it('puts every element of both lists in a match or in a gap', () => {
    fc.assert(
      fc.property(edited(fc.array(fc.nat(30), { maxLength: 40 })), ([a, b]) => {
        const matches = align(a, b)
        const gaps = gapsOf(matches, a.length, b.length)
        const sum = (of: (gap: (typeof gaps)[number]) => number) => gaps.reduce((total, gap) => total + of(gap), 0)
        expect(matches.length + sum(({ a: from, aEnd }) => aEnd - from)).toBe(a.length)
        expect(matches.length + sum(({ b: from, bEnd }) => bEnd - from)).toBe(b.length)
      }),
    )
  })

  it('reads each element a few times at most, though every third element differs', () => {
    const reads = (length: number): number => {
      let count = 0
      const counted = (list: number[]) =>
        new Proxy(list, {
          get: (of, key) => {
            count++
            return Reflect.get(of, key) as unknown
          },
        })
      const a = Array.from({ length }, (_, at) => at)
      align(counted(a), counted(a.map((each) => (each % 3 === 1 ? -each : each))))
      return count
    }
    expect(reads(2000)).toBeLessThan(20 * 2000)
    // The reads grow with the length, not with its square.
    expect(reads(8000)).toBeLessThan(5 * reads(2000))
  })
})
