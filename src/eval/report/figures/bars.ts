/** Owns figures of bars: a row a condition, each made of parts that add up. */
import { drawing, element, hint, line, linear, text } from '../../../attention/figures/svg.js'
import { heading, legend, rowLabel, ticks, WIDTH, type Entry } from './frame.js'

export interface Bar {
  readonly label: string
  readonly parts: readonly { readonly value: number; readonly colour: string; readonly says: string }[]
  /** At the end of the bar. */
  readonly text: string
  /** Not ours: drawn hollow. */
  readonly theirs?: boolean
}

export interface BarGroup {
  readonly title: string
  readonly bars: readonly Bar[]
}

const [LEFT, RIGHT] = [330, 850]
const ROW = 24
const HEAD = 30

/** Empty text without bars. `unit`: what the axis counts. */
export function barChart(
  about: { readonly title: string; readonly below: string; readonly unit: string; readonly most?: number },
  entries: readonly Entry[],
  groups: readonly BarGroup[],
): string {
  const filled = groups.filter(({ bars }) => bars.length > 0)
  if (filled.length === 0) return ''
  const key = legend(entries, 78)
  const totals = filled.flatMap(({ bars }) => bars.map(({ parts }) => parts.reduce((sum, { value }) => sum + value, 0)))
  const x = linear(0, about.most ?? Math.max(...totals, 1e-9), LEFT, RIGHT)
  const top = 62 + key.height
  let y = top
  const rows = filled.flatMap(({ title, bars }) => {
    y += HEAD
    const head = text(20, y - 8, title, { 'font-weight': '600' })
    return [
      head,
      ...bars.flatMap((bar) => {
        y += ROW
        return drawn(bar, y - ROW, x.at)
      }),
    ]
  })
  return drawing(WIDTH, y + 52, about.title, [
    ...heading(20, 28, about.title, about.below),
    ...key.parts,
    ...ticks(x).flatMap(({ value, label }) => [
      line(x.at(value), top + 6, x.at(value), y + 4),
      text(x.at(value), y + 22, label, { class: 'kf-faint', 'text-anchor': 'middle' }),
    ]),
    text((LEFT + RIGHT) / 2, y + 42, about.unit, { class: 'kf-faint', 'text-anchor': 'middle' }),
    ...rows,
  ])
}

function drawn({ label, parts, text: said, theirs = false }: Bar, top: number, at: (value: number) => number): string[] {
  let from = 0
  const pieces = parts.map(({ value, colour, says }) => {
    const [start, end] = [at(from), at((from += value))]
    const paint = theirs ? { fill: 'none', stroke: colour, 'stroke-dasharray': '4 3' } : { fill: colour }
    return element(
      'rect',
      { x: start, y: top + 4, width: Math.max(0, end - start), height: ROW - 8, ...paint },
      hint(`${label}: ${says}`),
    )
  })
  return [
    rowLabel(LEFT - 10, top + 17, label, LEFT - 40, theirs),
    ...pieces,
    text(at(from) + 7, top + 17, said, { class: 'kf-faint' }),
  ]
}
