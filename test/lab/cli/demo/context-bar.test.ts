import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { cells, glyphs, joined, type TokenShare, type TokenRun, contextBar } from '../../../../src/lab/cli/demo/context-bar.js'

const share = fc.constantFrom<TokenShare>('reused', 'new', 'folded', 'waiting')
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
      { share: 'waiting', tokens: 900 },
    ]
    expect(draw(parts, 30)).toBe('#+::::::::::::::::::::::::....')
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
    for (const set of Object.values(glyphs)) expect(new Set(Object.values(set)).size).toBe(4)
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
