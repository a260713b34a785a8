import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { picture, tokensOf, underWay, type FoldedPlace, type MessageShares } from '../../../src/cli/demo/tracker.js'

const amount = fc.nat(300)
const messages = fc
  .array(fc.record({ reused: amount, recomputed: amount, fresh: amount, waiting: amount }), { maxLength: 8 })
  .map((all) => all.map((shares, index): MessageShares => ({ index, ...shares })))
const places = fc.array(
  fc.record({ message: fc.nat(7), offset: fc.nat(800), marker: fc.nat(20), hidden: fc.integer({ min: 1, max: 900 }) }),
  { maxLength: 12 },
)

describe('picture', () => {
  it('shows a first step as new, and a fold as a gap after its marker', () => {
    expect(picture([{ index: 0, reused: 0, recomputed: 0, fresh: 90 }], [])).toEqual([{ share: 'new', tokens: 90 }])
    const folded: FoldedPlace[] = [
      { message: 1, offset: 30, marker: 10, hidden: 400 },
      { message: 1, offset: 40, marker: 10, hidden: 500 },
    ]
    const shares = [
      { index: 0, reused: 50, recomputed: 0, fresh: 0 },
      { index: 1, reused: 30, recomputed: 100, fresh: 20 },
      { index: 2, reused: 0, recomputed: 15, fresh: 0 },
    ]
    expect(picture(shares, folded)).toEqual([
      { share: 'reused', tokens: 80 },
      { share: 'new', tokens: 10 },
      { share: 'folded', tokens: 400 },
      { share: 'new', tokens: 10 },
      { share: 'folded', tokens: 500 },
      { share: 'recomputed', tokens: 115 },
    ])
  })

  it('puts text recomputed before the marker of an edited message before it', () => {
    expect(
      picture([{ index: 3, reused: 0, recomputed: 70, fresh: 10 }], [{ message: 3, offset: 20, marker: 10, hidden: 5 }]),
    ).toEqual([
      { share: 'recomputed', tokens: 20 },
      { share: 'new', tokens: 10 },
      { share: 'folded', tokens: 5 },
      { share: 'recomputed', tokens: 50 },
    ])
  })

  it('neither loses nor invents a token', () => {
    fc.assert(
      fc.property(messages, places, (shares, all) => {
        const folded = all.filter(({ message }) => message < shares.length)
        const stretches = picture(shares, folded)
        const sum = (key: 'reused' | 'recomputed' | 'fresh' | 'waiting') =>
          shares.reduce((total, message) => total + (message[key] ?? 0), 0)
        expect(tokensOf(stretches, 'reused')).toBe(sum('reused'))
        expect(tokensOf(stretches, 'recomputed')).toBe(sum('recomputed'))
        expect(tokensOf(stretches, 'new')).toBe(sum('fresh'))
        expect(tokensOf(stretches, 'waiting')).toBe(sum('waiting'))
        expect(tokensOf(stretches, 'folded')).toBe(folded.reduce((total, { hidden }) => total + hidden, 0))
      }),
    )
  })
})

describe('a step under way', () => {
  it('fills up from the front', () => {
    const sizes = [
      { index: 0, tokens: 100 },
      { index: 1, tokens: 50 },
      { index: 2, tokens: 10 },
    ]
    expect(underWay(sizes, 120, 35, 2)).toEqual([
      { index: 0, reused: 100, recomputed: 0, fresh: 0, waiting: 0 },
      { index: 1, reused: 20, recomputed: 30, fresh: 0, waiting: 0 },
      { index: 2, reused: 0, recomputed: 0, fresh: 5, waiting: 5 },
    ])
  })

  it('keeps every message at its size', () => {
    fc.assert(
      fc.property(fc.array(amount, { maxLength: 8 }), amount, amount, fc.nat(8), (sizes, reused, done, known) => {
        const shares = underWay(
          sizes.map((tokens, index) => ({ index, tokens })),
          reused,
          done,
          known,
        )
        expect(shares.map((one) => one.reused + one.recomputed + one.fresh + (one.waiting ?? 0))).toEqual(sizes)
        expect(shares.reduce((sum, one) => sum + one.reused, 0)).toBe(
          Math.min(
            reused,
            sizes.reduce((sum, size) => sum + size, 0),
          ),
        )
      }),
    )
  })
})
