import { readFileSync } from 'node:fs'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { similarity } from '../../../src/lab/tasks/sequence-matcher.js'

interface Recorded {
  readonly python: string
  /** Ratios of pair(0), pair(1), ... */
  readonly random: readonly number[]
  readonly written: readonly { readonly a: string; readonly b: string; readonly ratio: number }[]
}
/** Made by sequence-matcher.py beside it. */
const recorded = JSON.parse(readFileSync(new URL('../../golden/eval/sequence-matcher.json', import.meta.url), 'utf8')) as Recorded

const alphabets = [
  'ab',
  'abc \n',
  'abcdefghijklmnopqrstuvwxyz ,.',
  'aaaabbc\u{1F600}\u{1F680}\u00e9\u4e2d',
  Array.from({ length: 150 }, (_, at) => String.fromCodePoint(0x100 + at)).join(''),
].map((alphabet) => Array.from(alphabet))

/** The same pairs as in sequence-matcher.py. */
function pair(number: number): [a: string, b: string] {
  let state = number >>> 0
  const below = (n: number): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return (state >>> 16) % n
  }
  const alphabet = alphabets[below(5)]!
  const longest = [12, 80, 260, 700][below(4)]!
  const text = (length: number) => Array.from({ length }, () => alphabet[below(alphabet.length)]!)
  const a = text(below(longest + 1))
  if (below(2) === 0) return [a.join(''), text(below(longest + 1)).join('')]
  const b = [...a]
  for (let left = below(9); left > 0; left--) {
    const at = below(b.length + 1)
    const kind = below(3)
    if (kind === 0) b.splice(at, 0, ...text(below(20)))
    else if (kind === 1) b.splice(at, below(30))
    else {
      const end = at + below(40)
      b.splice(at, end - at, ...b.slice(at, end).reverse())
    }
  }
  return below(2) === 0 ? [a.join(''), b.join('')] : [b.join(''), a.join('')]
}

describe('similarity', () => {
  it('equals the ratio of CPython for a thousand random pairs', () => {
    expect(recorded.random).toHaveLength(1000)
    expect(recorded.random.map((_, number) => similarity(...pair(number)))).toEqual(recorded.random)
    // The pairs are useful: few are alike by length alone.
    expect(new Set(recorded.random).size).toBeGreaterThan(500)
  })

  it('equals the ratio of CPython for pairs made to be difficult', () => {
    expect(recorded.written.length).toBeGreaterThan(40)
    expect(recorded.written.map(({ a, b }) => similarity(a, b))).toEqual(recorded.written.map(({ ratio }) => ratio))
    // Some of them depend on the order.
    expect(recorded.written.filter(({ a, b, ratio }) => similarity(b, a) !== ratio).length).toBeGreaterThan(4)
  })

  it('is 1 for the same text when it is short, and never outside 0..1', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary', maxLength: 400 }), fc.string({ unit: 'binary', maxLength: 400 }), (a, b) => {
        const ratio = similarity(a, b)
        expect(ratio).toBeGreaterThanOrEqual(0)
        expect(ratio).toBeLessThanOrEqual(1)
        if (Array.from(a).length < 200) expect(similarity(a, a)).toBe(1)
      }),
      { numRuns: 60 },
    )
  })

  it('takes well under a second for 5,000 characters, and not much more in the worst cases', () => {
    const work = (a: string, b: string): number => {
      const before = process.cpuUsage().user
      similarity(a, b)
      return (process.cpuUsage().user - before) / 1000
    }
    const prose = recorded.written
      .map(({ a }) => a)
      .join(' ')
      .slice(0, 5_000)
    expect(work(prose, prose.slice(100) + prose.slice(0, 100))).toBeLessThan(500)
    expect(work(Array.from(prose).reverse().join(''), prose)).toBeLessThan(500)
    // Each character has as many places as it may have before it counts as frequent, and blocks of one character.
    const wide = (step: number) =>
      Array.from({ length: 5_000 }, (_, at) => String.fromCodePoint(0x4e00 + ((at * step) % 99))).join('')
    expect(work(wide(7), wide(1))).toBeLessThan(3_000)
  })
})
