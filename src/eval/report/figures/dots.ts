/** Owns figures of single numbers: a row a condition, a dot with its interval, or an arrow from a number to another. */
import { drawing, element, hint, line, linear, text } from '../../../attention/figures/svg.js'
import { heading, legend, rowLabel, ticks, WIDTH, type Entry } from './frame.js'

export interface Dot {
  readonly label: string
  /** One number, or from one to another. */
  readonly values: readonly [number] | readonly [from: number, to: number]
  readonly interval?: readonly [low: number, high: number]
  readonly colour: string
  /** At the right. */
  readonly text: string
  /** Not ours: drawn hollow. */
  readonly theirs?: boolean
}

export interface DotGroup {
  readonly title: string
  readonly dots: readonly Dot[]
  /** Groups that follow each other with the same one share an axis; default: all do. */
  readonly axis?: string
}

const [LEFT, RIGHT] = [300, 720]
const ROW = 24
const HEAD = 30
const AXIS = 48

/** Empty text without dots. Axes begin at 0. */
export function dotChart(
  about: { readonly title: string; readonly below: string; readonly unit: string; readonly most?: number },
  entries: readonly Entry[],
  groups: readonly DotGroup[],
): string {
  const filled = groups.filter(({ dots }) => dots.length > 0)
  if (filled.length === 0) return ''
  const key = legend(entries, 78)
  const panels = [...new Set(filled.map(({ axis }) => axis))].map((name) => filled.filter(({ axis }) => axis === name))
  let y = 56 + key.height
  const parts = panels.flatMap((panel) => {
    const reach = panel.flatMap(({ dots }) => dots.flatMap(({ values, interval = [] }) => [...values, ...interval]))
    const x = linear(0, about.most ?? Math.max(...reach, 1e-9), LEFT, RIGHT)
    const top = y
    const rows = panel.flatMap(({ title, dots }) => {
      y += HEAD
      const head = text(20, y - 8, title, { 'font-weight': '600' })
      return [
        head,
        ...dots.flatMap((dot) => {
          y += ROW
          return drawn(dot, y - ROW / 2, x.at)
        }),
      ]
    })
    const end = y
    y += AXIS
    return [
      ...ticks(x).flatMap(({ value, label }) => [
        line(x.at(value), top + HEAD - 6, x.at(value), end + 2),
        text(x.at(value), end + 18, label, { class: 'kf-faint', 'text-anchor': 'middle' }),
      ]),
      text((LEFT + RIGHT) / 2, end + 37, about.unit, { class: 'kf-faint', 'text-anchor': 'middle' }),
      ...rows,
    ]
  })
  return drawing(WIDTH, y + 6, about.title, [...heading(20, 28, about.title, about.below), ...key.parts, ...parts])
}

function drawn(
  { label, values, interval, colour, text: said, theirs = false }: Dot,
  y: number,
  at: (value: number) => number,
): string[] {
  const [first, last] = [at(values[0]), at(values.at(-1)!)]
  const stroke = { class: '', stroke: colour, 'stroke-width': 2.5 }
  const says = hint(`${label}: ${said}`)
  const paint = theirs ? { class: 'kf-paper', stroke: colour, 'stroke-width': 2 } : { fill: colour }
  return [
    rowLabel(LEFT - 14, y + 4.5, label, LEFT - 44, theirs),
    ...(interval === undefined ? [] : [line(at(interval[0]), y, at(interval[1]), y, { ...stroke, 'stroke-opacity': 0.45 })]),
    ...(values.length === 1
      ? [element('circle', { cx: first, cy: y, r: 5, ...paint }, says)]
      : [
          line(first, y, last, y, { ...stroke, ...(theirs ? { 'stroke-dasharray': '4 3' } : {}) }),
          element('circle', { cx: first, cy: y, r: 4, ...paint }),
          arrowHead(first, last, y, colour, says),
        ]),
    text(RIGHT + 14, y + 4.5, said, { class: 'kf-faint' }),
  ]
}

function arrowHead(from: number, to: number, y: number, colour: string, says: string): string {
  const back = to < from ? 9 : -9
  return element(
    'polygon',
    { points: `${to.toFixed(1)},${y} ${(to + back).toFixed(1)},${y - 5} ${(to + back).toFixed(1)},${y + 5}`, fill: colour },
    says,
  )
}
