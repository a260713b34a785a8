import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  cells,
  type FoldedPlace,
  glyphs,
  joined,
  type MessageShares,
  picture,
  type TokenShare,
  type TokenRun,
  contextBar,
  tokensOf,
  underWay,
} from '../../../../src/lab/cli/demo/context-bar.js'

const share = fc.constantFrom<TokenShare>('reused', 'recomputed', 'new', 'folded', 'waiting')
const stretch = fc.record({ share, tokens: fc.integer({ min: 0, max: 5000 }) })
const stretches = fc.array(stretch, { maxLength: 40 })

const draw = (parts: readonly TokenRun[], width: number, capacity?: number) =>
  contextBar(parts, { width, glyphs: glyphs.ascii, ...(capacity === undefined ? {} : { capacity }) })

describe('context bar', () => {
  it('draws tokens in order and in proportion', () => {
    const parts: TokenRun[] = [
      { share: 'reused', tokens: 500 },
      { share: 'new', tokens: 250 },
      { share: 'waiting', tokens: 250 },
    ]
    expect(draw(parts, 20)).toBe('##########+++++.....')
    expect(draw(parts, 20, 2000)).toBe('#####+++..          ')
  })

  it('shows a marker of a few tokens among thousands, and folded text in its place', () => {
    const parts: TokenRun[] = [
      { share: 'reused', tokens: 40 },
      { share: 'new', tokens: 13 },
      { share: 'folded', tokens: 5000 },
      { share: 'recomputed', tokens: 900 },
    ]
    expect(draw(parts, 30)).toBe('#+::::::::::::::::::::::::%%%%')
  })

  it('shows the largest share of each cell when there are more runs than cells', () => {
    const parts = Array.from({ length: 10 }, (): TokenRun[] => [
      { share: 'reused', tokens: 9 },
      { share: 'folded', tokens: 1 },
    ]).flat()
    expect(draw(parts, 5)).toBe('#####')
  })

  it('is empty for an empty context and for no width', () => {
    expect(draw([], 4)).toBe('    ')
    expect(draw([{ share: 'new', tokens: 0 }], 4)).toBe('    ')
    expect(draw([{ share: 'new', tokens: 3 }], 0)).toBe('')
  })

  it('uses a different glyph for every share', () => {
    for (const set of Object.values(glyphs)) expect(new Set(Object.values(set)).size).toBe(5)
  })

  it('always has the requested width and its shares in order, each visible where there is room', () => {
    fc.assert(
      fc.property(stretches, fc.integer({ min: 1, max: 160 }), fc.integer({ min: 0, max: 100_000 }), (parts, width, capacity) => {
        const drawn = cells(parts, width, capacity)
        const runs = joined(parts)
        const total = runs.reduce((sum, { tokens }) => sum + tokens, 0)
        expect(draw(parts, width, capacity)).toHaveLength(width)
        if (total === 0) {
          expect(drawn).toEqual([])
          return
        }
        const filled = Math.max(1, Math.round((width * total) / Math.max(total, capacity)))
        expect(drawn).toHaveLength(filled)
        const drawnRuns = joined(drawn.map((share) => ({ share, tokens: 1 }))).map(({ share }) => share)
        if (runs.length <= filled) expect(drawnRuns).toEqual(runs.map(({ share }) => share))
        else for (const share of drawnRuns) expect(runs.map((run) => run.share)).toContain(share)
      }),
    )
  })

  it('deals out cells in proportion: at least one for each run, and within one cell of the exact share', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 4000 }),
        fc.integer({ min: 1, max: 4000 }),
        fc.integer({ min: 2, max: 160 }),
        (a, b, width) => {
          const drawn = cells(
            [
              { share: 'reused', tokens: a },
              { share: 'new', tokens: b },
            ],
            width,
          )
          const exact = (width * a) / (a + b)
          const of = drawn.filter((share) => share === 'reused').length
          expect(Math.abs(of - Math.min(width - 1, Math.max(1, exact)))).toBeLessThanOrEqual(1)
        },
      ),
    )
  })

  it('paints runs of one share at once and nothing else', () => {
    const painted: string[] = []
    const text = contextBar(
      [
        { share: 'reused', tokens: 2 },
        { share: 'new', tokens: 2 },
      ],
      { width: 8, capacity: 8, glyphs: glyphs.ascii, paint: (share, run) => (painted.push(share), `<${run}>`) },
    )
    expect(painted).toEqual(['reused', 'new'])
    expect(text).toBe('<##><++>    ')
  })
})

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

  it('puts recomputed text of an edited message before its marker when it stands before the marker', () => {
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
