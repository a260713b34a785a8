import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { cells, glyphs, joined, strip, type Share, type Stretch } from '../../src/cli/strip.js'

const share = fc.constantFrom<Share>('reused', 'recomputed', 'new', 'folded', 'waiting')
const stretch = fc.record({ share, tokens: fc.integer({ min: 0, max: 5000 }) })
const stretches = fc.array(stretch, { maxLength: 40 })

const draw = (parts: readonly Stretch[], width: number, capacity?: number) =>
  strip(parts, { width, glyphs: glyphs.ascii, ...(capacity === undefined ? {} : { capacity }) })

describe('strip', () => {
  it('draws tokens in order and in proportion', () => {
    const parts: Stretch[] = [
      { share: 'reused', tokens: 500 },
      { share: 'new', tokens: 250 },
      { share: 'waiting', tokens: 250 },
    ]
    expect(draw(parts, 20)).toBe('##########+++++.....')
    expect(draw(parts, 20, 2000)).toBe('#####+++..          ')
  })

  it('shows a marker of a few tokens among thousands, and folded text at its place', () => {
    const parts: Stretch[] = [
      { share: 'reused', tokens: 40 },
      { share: 'new', tokens: 13 },
      { share: 'folded', tokens: 5000 },
      { share: 'recomputed', tokens: 900 },
    ]
    expect(draw(parts, 30)).toBe('#+::::::::::::::::::::::::%%%%')
  })

  it('shows what most of a cell is when there are more stretches than cells', () => {
    const parts = Array.from({ length: 10 }, (): Stretch[] => [
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

  it('uses a glyph of its own for every share', () => {
    for (const set of Object.values(glyphs)) expect(new Set(Object.values(set)).size).toBe(5)
  })

  it('always has the asked width, its shares in order, each shown where there is room', () => {
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

  it('deals cells in proportion, each stretch at least one, within one cell of what is left to deal', () => {
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
    const text = strip(
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
