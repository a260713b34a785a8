/** Owns the figure of the order of calls: for the first, second, ... call of samples, how many there were of each tool. */
import { axes, drawing, element, hint, linear, type Box, type Scale } from '../../../attention/figures/svg.js'
import { heading, legend, WIDTH, type Entry } from './frame.js'

export interface OrderPanel {
  readonly title: string
  readonly below: string
  readonly samples: number
  readonly order: readonly Readonly<Record<string, number>>[]
}

const PANEL = 290
/** Calls beyond are left out of the drawing; the table has them. */
const MOST = 30

/** Two panels a row; empty text without panels. */
export function orderChart(title: string, below: string, tools: readonly Entry[], panels: readonly OrderPanel[]): string {
  if (panels.length === 0) return ''
  const key = legend(tools, 78)
  const top = 62 + key.height
  const parts = panels.flatMap((panel, index) => {
    const [column, row] = [index % 2, Math.floor(index / 2)]
    const box = {
      left: 76 + column * 480,
      right: 456 + column * 480,
      top: top + row * PANEL + 52,
      bottom: top + (row + 1) * PANEL - 52,
    }
    return drawn(panel, tools, box)
  })
  return drawing(WIDTH, top + Math.ceil(panels.length / 2) * PANEL + 8, title, [
    ...heading(20, 28, title, below),
    ...key.parts,
    ...parts,
  ])
}

function drawn({ title, below, samples, order }: OrderPanel, tools: readonly Entry[], box: Box): string[] {
  const shown = order.slice(0, MOST)
  const y = linear(0, samples, box.bottom, box.top, 4)
  const wide = (box.right - box.left) / shown.length
  const at = (call: number) => box.left + wide * (call - 0.5)
  const every = Math.ceil(shown.length / 15)
  const ticks = shown.flatMap((_, index) => (index % every === 0 ? [{ value: index + 1, label: String(index + 1) }] : []))
  const x: Scale = { kind: 'linear', at, ticks }
  return [
    ...heading(box.left, box.top - 32, title, below),
    ...axes(box, x, y, {
      x: shown.length < order.length ? `call of a sample (the first ${MOST} of ${order.length})` : 'call of a sample',
      y: 'samples',
    }),
    ...shown.flatMap((counts, index) => {
      let from = 0
      return tools.flatMap(({ label, colour }) => {
        const count = counts[label] ?? 0
        if (count === 0) return []
        const [low, high] = [y.at(from), y.at((from += count))]
        const place = {
          x: at(index + 1) - wide / 2 + Math.min(1, wide / 8),
          y: high,
          width: Math.max(1, wide - Math.min(2, wide / 4)),
          height: low - high,
        }
        return [
          element('rect', { ...place, fill: colour }, hint(`call ${index + 1}: ${label} in ${count} of ${samples} samples`)),
        ]
      })
    }),
  ]
}
