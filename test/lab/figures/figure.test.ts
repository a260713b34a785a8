/** Figures: valid XML with any text in them, data at the right places, and the same drawing in light and dark. */
import * as Plot from '@observablehq/plot'
import fc from 'fast-check'
import { DOMParser } from 'linkedom'
import { describe, expect, it } from 'vitest'
import { curves, rows } from '../../../src/lab/figures/panels.js'
import { figure, fitting, RULE, WIDTH } from '../../../src/lab/figures/figure.js'
import { escaped } from '../../../src/lab/figures/page.js'

interface Element {
  readonly textContent: string
  getAttribute(name: string): string | null
}
const all = (svg: string, selector: string): Element[] => [
  ...(new DOMParser().parseFromString(svg, 'image/svg+xml').querySelectorAll(selector) as unknown as Element[]),
]
const texts = (svg: string) => all(svg, 'text').map(({ textContent }) => textContent)
const hints = (svg: string) => all(svg, 'title').map(({ textContent }) => textContent)
const numbers = (svg: string, selector: string, name: string) => all(svg, selector).map((one) => Number(one.getAttribute(name)))

const points = [
  { x: 4, value: 50, interval: [40, 60] as const, says: 'half' },
  { x: 8, value: 100, interval: null, says: 'all' },
]
const accuracy = (dash: string | null = '') =>
  curves({
    title: 'Ours',
    below: '2 samples',
    sizes: [4, 8, 64_000],
    names: { x: 'updates', y: 'accuracy, %' },
    y: { domain: [0, 100], ticks: 2 },
    curves: [{ colour: '#123456', dash, points }],
  })

describe('a figure', () => {
  it('has a title, texts, axes and a legend', () => {
    const key = [
      { label: 'a square', colour: '#123456' },
      { label: 'a line', colour: '#654321', dash: '7 4' },
    ]
    const svg = figure({ title: 'T <1>', below: 'more & more', key, columns: 2, panels: [accuracy(), accuracy()] })
    expect(hints(svg)[0]).toBe('T <1>')
    for (const text of [
      'T <1>',
      'more & more',
      'a square',
      'a line',
      'Ours',
      '2 samples',
      'updates',
      'accuracy, %',
      '64K',
      '100',
    ])
      expect(texts(svg), text).toContain(text)
    expect(all(svg, 'rect[fill="#123456"]')).toHaveLength(1)
    expect(all(svg, '[stroke="#654321"][stroke-dasharray="7 4"]')).toHaveLength(1)
    const [, , width, height] = all(svg, 'svg')[0]!.getAttribute('viewBox')!.split(' ').map(Number)
    expect(width).toBe(WIDTH)
    expect(height).toBeLessThan(450)
  })

  it('has colours for dark mode, by rules that match its marks', () => {
    const svg = figure({ title: 'T', panels: [accuracy()] })
    expect(svg).toMatch(/prefers-color-scheme: dark/u)
    expect(svg).toContain(`.kf [stroke="${RULE}"]`)
    expect(all(svg, `svg.kf [stroke="${RULE}"]`).length).toBeGreaterThan(0)
  })

  it('is empty without panels', () => {
    expect(figure({ title: 'T', panels: [] })).toBe('')
  })

  it('is valid XML with any text in it, and keeps that text', () => {
    const wild = fc.string({
      unit: fc.constantFrom('<', '>', '&', '"', "'", ']]>', 'a', ' ', '\u0000', '\u001b', '\ufffe', '\n'),
      maxLength: 12,
    })
    fc.assert(
      fc.property(wild, (text) => {
        const name = `x${text}x`
        const panels = rows(
          [{ title: name, rows: [{ label: name, text: name, parts: [{ value: 1, colour: '#123456', says: name }] }] }],
          name,
        )
        const svg = figure({ title: name, below: name, key: [{ label: name, colour: '#123456' }], panels })
        // eslint-disable-next-line no-control-regex -- XML has no way to write them
        expect(svg).not.toMatch(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/u)
        expect(svg.replace(/<(?:\/?[a-z]+(?: [\w:-]+="[^"<]*")* ?\/?)>/gu, '').replace(/&(?:#\d+|[a-z]+);/gu, '')).not.toMatch(
          /[<&]/u,
        )
        // eslint-disable-next-line no-control-regex -- as above
        const kept = name.replace(/[\u0000\u001b\ufffe]/gu, '\ufffd')
        expect(hints(svg)[0]!.replace(/\s/gu, ' ')).toBe(kept.replace(/\s/gu, ' '))
      }),
      { numRuns: 30 },
    )
    expect(escaped('<a href="x">&\u0007')).toBe('&#60;a href=&#34;x&#34;&#62;&#38;\ufffd')
  })
})

describe('curves', () => {
  it('have a point for every number, at its height, with its hint, and an interval where there is one', () => {
    const svg = figure({ title: 'T', panels: [accuracy()] })
    const [half, full] = numbers(svg, 'circle', 'cy') as [number, number]
    expect(hints(svg)).toEqual(expect.arrayContaining(['half', 'all']))
    expect(full).toBeLessThan(half)
    const [top, bottom] = [numbers(svg, 'line[stroke-opacity="0.5"]', 'y1'), numbers(svg, 'line[stroke-opacity="0.5"]', 'y2')]
    expect(all(svg, 'g[stroke="#123456"][stroke-opacity="0.5"] line')).toHaveLength(1)
    expect([...top, ...bottom].every(Number.isFinite)).toBe(true)
    const [low] = numbers(svg, 'g[stroke-opacity="0.5"][stroke="#123456"] line', 'y1')
    const [high] = numbers(svg, 'g[stroke-opacity="0.5"][stroke="#123456"] line', 'y2')
    // 40 and 60 are equally far from 50, by a fifth of the way from 50 to 100.
    expect(low! + high!).toBeCloseTo(2 * half, 6)
    expect(Math.abs(low! - half)).toBeCloseTo((half - full) / 5, 6)
    expect(all(svg, 'g[fill="none"] path[stroke="#123456"], path[stroke="#123456"], g[stroke="#123456"] path')).toHaveLength(1)
  })

  it('are only points where no line joins them, and report that there is no data', () => {
    expect(all(figure({ title: 'T', panels: [accuracy(null)] }), 'g[stroke="#123456"] path')).toHaveLength(0)
    const nothing = curves({ title: 'T', sizes: [], names: { x: 'x', y: 'y' }, curves: [] })
    expect(texts(figure({ title: 'T', panels: [nothing] }))).toContain('no sample was answered')
  })

  it('stay inside the drawing where the scale is logarithmic and a number is 0', () => {
    const values = [0, 1e-6, 1].map((value, x) => ({ x, value, interval: [0, value] as const, says: String(value) }))
    const svg = figure({
      title: 'T',
      panels: [
        curves({ title: 'T', sizes: [0, 1, 2], names: { x: 'x', y: 'y' }, curves: [{ colour: '#123456', points: values }] }),
      ],
    })
    expect(svg).not.toMatch(/NaN|Infinity|undefined/u)
    const [zero, least, most] = numbers(svg, 'circle', 'cy') as [number, number, number]
    expect(zero).toBe(least)
    expect(most).toBeLessThan(least)
    expect(texts(svg)).toContain('1e-6')
  })
})

describe('rows', () => {
  const bar = {
    label: 'bar',
    text: '3 in all',
    parts: [
      { value: 1, colour: '#111111', says: 'one' },
      { value: 2, colour: '#222222', says: 'two' },
    ],
  }
  const arrow = { label: 'arrow', text: '1 to 2', values: [1, 2] as const, colour: '#333333', theirs: true }
  const dot = { label: 'dot', text: '2', values: [2] as const, interval: [1, 3] as const, colour: '#444444' }

  it('have bars whose parts begin where the part before ends', () => {
    const svg = figure({ title: 'T', panels: rows([{ title: 'group', rows: [bar] }], 'unit') })
    const first = all(svg, 'rect[fill="#111111"]')[0]!
    const second = all(svg, 'rect[fill="#222222"]')[0]!
    const [x, width, next, wide] = [first, second].flatMap((one) => [
      Number(one.getAttribute('x')),
      Number(one.getAttribute('width')),
    ])
    expect(x! + width!).toBeCloseTo(next!, 6)
    expect(wide).toBeCloseTo(2 * width!, 6)
    expect(hints(svg)).toEqual(expect.arrayContaining(['bar: one', 'bar: two']))
    for (const text of ['group', 'bar', '3 in all', 'unit']) expect(texts(svg)).toContain(text)
  })

  it('have dots, intervals and arrows, hollow where they are not ours', () => {
    const svg = figure({ title: 'T', panels: rows([{ title: '', rows: [dot, arrow] }], 'unit') })
    expect(all(svg, 'circle')).toHaveLength(2)
    expect(all(svg, 'g[fill="#444444"] circle')).toHaveLength(1)
    expect(all(svg, 'g[stroke="#333333"] circle')).toHaveLength(1)
    expect(all(svg, 'g[stroke="#333333"][stroke-dasharray="4 3"] path, path[stroke="#333333"]')).toHaveLength(1)
    expect(all(svg, 'g[stroke="#444444"] line')).toHaveLength(1)
  })

  it('shorten a label that is too long, and show it in full on hover', () => {
    const label = 'a very long name '.repeat(8)
    const svg = figure({ title: 'T', panels: rows([{ title: '', rows: [{ ...bar, label }] }], 'unit') })
    expect(svg).toMatch(/>a very long[^<]{5,35}…</u)
    expect(svg).toContain(label.trim())
  })

  it('make no panel when there are none', () => {
    expect(rows([{ title: 'group', rows: [] }], 'unit')).toEqual([])
  })
})

it('scales start at 0 and are linear, and are logarithmic where numbers are far apart', () => {
  expect(fitting([0.2, 0.5])).toMatchObject({ domain: [0, 0.5] })
  expect(fitting([0.2, 0.5], [0.7])).toMatchObject({ domain: [0, 0.7] })
  expect(fitting([])).toMatchObject({ domain: [0, 1] })
  expect(fitting([0, 2e-5, 0.5])).toMatchObject({ type: 'log', domain: [1e-5, 1] })
  expect(Plot.scale({ y: fitting([0, 0]) }).domain).toEqual([0, 1])
})
