import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { apportion, cutsWithin } from '../../../src/runtime/context/stretch.js'
import { span } from '../../../src/runtime/core/span.js'
import { atOnce } from '../../../src/runtime/core/turns.js'

const pieces = (text: string, count: number) => {
  const cuts = atOnce(cutsWithin(text, span(0, text.length), count))
  return [0, ...cuts].map((cut, index) => text.slice(cut, cuts[index]))
}

describe('cutsWithin', () => {
  it.each([
    ['a blank line before all others', 'aaaa. bbb\ncc\n\ndd; eeee fffff', 2, ['aaaa. bbb\ncc\n\n', 'dd; eeee fffff']],
    ['a line end before a sentence end', 'aaaa bbb. cc\ndd. eeee ffff', 2, ['aaaa bbb. cc\n', 'dd. eeee ffff']],
    ['a sentence end before a word end', 'aaa bbb cc; ddd eee fff', 2, ['aaa bbb cc;', ' ddd eee fff']],
    ['a word end before the middle of a word', 'aaaaaa bbbbbbbbb', 2, ['aaaaaa', ' bbbbbbbbb']],
    ['the middle where there is nothing else', 'aaaaaaaaaaaa', 3, ['aaaa', 'aaaa', 'aaaa']],
    ['no border farther than a quarter of a piece', 'a bbbbbbbbbbbbbbbbbb', 2, ['a bbbbbbbb', 'bbbbbbbbbb']],
    ['no full stop inside a number', 'aaaaaaaaa 3.14 bbbbbb', 2, ['aaaaaaaaa', ' 3.14 bbbbbb']],
    ['the earlier of two as near', 'aaaa bb cc dddd', 2, ['aaaa bb', ' cc dddd']],
    ['fewer where the text is short', 'ab', 5, ['a', 'b']],
    ['no surrogate pair split', '😀😀', 2, ['😀', '😀']],
    ['nothing for one piece', 'aaa bbb', 1, ['aaa bbb']],
    ['Windows line ends', 'aaaa bb\r\n\r\ncccc. d', 2, ['aaaa bb\r\n\r\n', 'cccc. d']],
  ])('prefers %s', (_, text, count, expected) => {
    expect(pieces(text, count)).toEqual(expected)
  })

  /** The kinds of border, best first, each searched for in the whole text. */
  const kinds = [/(?<=\n\n)(?!\n)/gu, /(?<=\n)/gu, /(?<=[.;!?])(?=\s)/gu, /(?<=\S)(?=\s)/gu]

  it('cuts inside the span, in order, and never misses a better border', () => {
    const text = fc.string({ unit: fc.constantFrom('a', 'b', ' ', '.', '\n', ';'), minLength: 40, maxLength: 200 })
    fc.assert(
      fc.property(text, fc.integer({ min: 1, max: 8 }), fc.nat(10), (content, count, offset) => {
        const stretch = span(offset, content.length - offset)
        const cuts = atOnce(cutsWithin(content, stretch, count))
        expect(cuts).toHaveLength(count - 1)
        const size = (stretch.end - stretch.start) / count
        for (const [index, cut] of cuts.entries()) {
          const ideal = stretch.start + size * (index + 1)
          const near = (at: number) =>
            Math.abs(at - ideal) <= Math.max(size / 4, 1) && at > (cuts[index - 1] ?? stretch.start) && at < stretch.end
          expect(near(cut)).toBe(true)
          const kind = kinds
            .map((pattern) => [...content.matchAll(pattern)].map((match) => match.index).filter(near))
            .find((found) => found.length > 0)
          if (kind === undefined) continue
          expect(kind).toContain(cut)
          // The cut is the nearest border, up to the rounding of the ideal place.
          expect(Math.abs(cut - ideal)).toBeLessThanOrEqual(Math.min(...kind.map((at) => Math.abs(at - ideal))) + 1)
        }
      }),
    )
  })
})

describe('apportion', () => {
  it('gives every span a piece, and longer ones more', () => {
    expect(atOnce(apportion(5, [10, 80, 10]))).toEqual([1, 3, 1])
    expect(atOnce(apportion(2, [5, 5, 5]))).toEqual([1, 1, 1])
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 20 }),
        fc.array(fc.integer({ min: 1, max: 1000 }), { minLength: 1, maxLength: 8 }),
        (count, lengths) => {
          const shares = atOnce(apportion(count, lengths))
          expect(shares.reduce((sum, share) => sum + share, 0)).toBe(Math.max(count, lengths.length))
          for (const [a, share] of shares.entries()) {
            expect(share).toBeGreaterThanOrEqual(1)
            for (const [b, other] of shares.entries()) if (lengths[a]! > lengths[b]!) expect(share).toBeGreaterThanOrEqual(other)
          }
        },
      ),
    )
  })
})
