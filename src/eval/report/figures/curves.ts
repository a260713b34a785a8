/** Owns figures of accuracy against what makes a task harder: panels of curves with intervals, the paper's beside ours. */
import { axes, drawing, element, hint, line, linear, text, type Box, type Scale } from '../../../attention/figures/svg.js'
import { heading, legend, WIDTH, type Entry, type Look } from './frame.js'

export interface Point {
  readonly x: number
  /** 0..1. */
  readonly value: number
  readonly interval: readonly [low: number, high: number] | null
  /** What it rests on, such as `20 samples`. */
  readonly says: string
}

export interface Curve extends Look {
  readonly label: string
  readonly points: readonly Point[]
}

export interface Panel {
  readonly title: string
  readonly below: string
  /** What the horizontal axis is. */
  readonly axis: string
  /** Its places, evenly spaced. */
  readonly xs: readonly number[]
  readonly curves: readonly Curve[]
}

const PANEL = 320

/** Two panels a row; empty text without panels. */
export function curveChart(title: string, below: string, entries: readonly Entry[], panels: readonly Panel[]): string {
  if (panels.length === 0) return ''
  const key = legend(entries, 78)
  const top = 62 + key.height
  const rows = Math.ceil(panels.length / 2)
  const parts = panels.flatMap((panel, index) => {
    const [column, row] = [index % 2, Math.floor(index / 2)]
    return drawn(panel, {
      left: 76 + column * 480,
      right: 456 + column * 480,
      top: top + row * PANEL + 52,
      bottom: top + (row + 1) * PANEL - 52,
    })
  })
  return drawing(WIDTH, top + rows * PANEL + 8, title, [...heading(20, 28, title, below), ...key.parts, ...parts])
}

function drawn({ title, below, axis, xs, curves }: Panel, box: Box): string[] {
  const y = linear(0, 100, box.bottom, box.top)
  const at = (value: number) => box.left + ((box.right - box.left) * (xs.indexOf(value) + 0.5)) / xs.length
  const x: Scale = { kind: 'linear', at, ticks: xs.map((value) => ({ value, label: tick(value) })) }
  return [
    ...heading(box.left, box.top - 32, title, below),
    ...axes(box, x, y, { x: axis, y: 'accuracy, %' }),
    ...curves.flatMap(({ label, points, colour, dash }, index) => {
      // Side by side, so that intervals do not hide each other.
      const shift = (index - (curves.length - 1) / 2) * 5
      const path = points.map((point) => `${(at(point.x) + shift).toFixed(1)},${y.at(100 * point.value).toFixed(1)}`).join(' ')
      return [
        element('polyline', { points: path, fill: 'none', stroke: colour, 'stroke-width': 2, 'stroke-dasharray': dash }),
        ...points.flatMap(({ x: place, value, interval, says }) => [
          ...(interval === null
            ? []
            : [
                line(at(place) + shift, y.at(100 * interval[0]), at(place) + shift, y.at(100 * interval[1]), {
                  ...{ class: '', stroke: colour, 'stroke-width': 2.5, 'stroke-opacity': 0.45 },
                }),
              ]),
          element(
            'circle',
            { cx: at(place) + shift, cy: y.at(100 * value), r: 3.5, fill: colour },
            hint(`${label}, ${tick(place)}: ${(100 * value).toFixed(1)} % (${says})`),
          ),
        ]),
      ]
    }),
    ...(curves.length === 0 ? [text(box.left + 10, box.top + 20, 'nothing was answered', { class: 'kf-faint' })] : []),
  ]
}

const tick = (value: number): string => (value >= 1000 && value % 1000 === 0 ? `${value / 1000}K` : String(value))
