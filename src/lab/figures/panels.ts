/**
 * Builds two kinds of panels for figures. A panel of rows has in each row a bar with several segments, a dot with its interval, or an arrow
 * between two numbers. A panel of curves has values at several sizes, with their intervals.
 */
import * as Plot from '@observablehq/plot'
import { FAINT, fitting, type Panel, PAPER } from './figure.js'

/** A row of a panel: a bar if it has `parts`, a dot if `values` has one number, an arrow if it has two. */
export interface PanelRow {
  readonly label: string
  /** The segments of a bar that starts at 0. */
  readonly parts?: readonly BarPart[]
  /** One number, or the start and end of an arrow. */
  readonly values?: readonly [number] | readonly [from: number, to: number]
  readonly interval?: readonly [low: number, high: number]
  readonly colour?: string
  /** The text behind the bar; at the right edge if the row has no bar. */
  readonly text: string
  /** Whether the numbers are quoted from the paper. Such a row is drawn hollow. */
  readonly theirs?: boolean
}

export interface BarPart {
  readonly value: number
  readonly colour: string
  readonly says: string
}

export interface RowGroup {
  /** The heading above the rows; '' for none. */
  readonly title: string
  readonly rows: readonly PanelRow[]
}

const ROW = 24
const AXIS = 50

/**
 * Returns one panel with all rows; an empty list without rows. `unit`: the axis label. The axis begins at 0, or at the smallest number if
 * that is negative. `most`: the end of the axis; default: the largest number of all rows and intervals.
 */
export function rows(groups: readonly RowGroup[], unit: string, most?: number): Panel[] {
  const lines = groups
    .filter((group) => group.rows.length > 0)
    .flatMap(({ title, rows: own }) => [...(title === '' ? [] : [{ title }]), ...own])
    .map((line, at) => ({ ...line, at }))
  const all = lines.filter((line): line is PanelRow & { at: number } => 'label' in line)
  if (all.length === 0) return []
  const bars = all.flatMap(({ parts = [], ...row }) => {
    let x2 = 0
    return parts.map((part) => ({ ...row, ...part, x1: x2, x2: (x2 += part.value) }))
  })
  const dots = all.flatMap(({ values, ...row }) => (values === undefined ? [] : [{ ...row, x1: values[0], x2: values.at(-1)! }]))
  const ends = [...bars, ...dots].flatMap(({ x1, x2, interval = [] }) => [x1, x2, ...interval])
  const text = { y: 'at', text: 'text', textAnchor: 'start', fill: FAINT } as const
  const side = (titles: boolean, theirs = false) =>
    titles
      ? Plot.text(
          lines.filter((line) => 'title' in line),
          {
            y: 'at',
            text: 'title',
            frameAnchor: 'left',
            textAnchor: 'start',
            dx: -280,
            dy: 4,
            fontWeight: 600,
            lineWidth: 66,
            textOverflow: 'ellipsis',
          },
        )
      : Plot.text(
          all.filter((row) => (row.theirs ?? false) === theirs),
          {
            ...{
              y: 'at',
              text: 'label',
              frameAnchor: 'left',
              textAnchor: 'end',
              dx: -12,
              lineWidth: 19.5,
              textOverflow: 'ellipsis',
            },
            ...(theirs ? { fill: FAINT } : {}),
          },
        )
  const look = ({ colour, theirs = false }: { readonly colour?: string; readonly theirs?: boolean }) => ({
    stroke: colour ?? FAINT,
    ...(theirs ? { strokeDasharray: '4 3' } : {}),
  })
  return [
    {
      rules: 'x',
      height: lines.length * ROW + AXIS + 6,
      plot: {
        ...{ marginLeft: 300, marginRight: bars.length > 0 ? 110 : 240, marginTop: 6, marginBottom: AXIS },
        x: { domain: [Math.min(0, ...ends), most ?? Math.max(...ends, 1e-9)], nice: 6, label: unit, ticks: 6 },
        y: { type: 'band', domain: lines.map(({ at }) => at), axis: null, padding: 0.3, round: false },
        marks: [
          side(true),
          side(false),
          side(false, true),
          Plot.barX(
            bars.filter(({ theirs = false }) => !theirs),
            {
              x1: 'x1',
              x2: 'x2',
              y: 'at',
              fill: 'colour',
              title: ({ label, says }: (typeof bars)[number]) => `${label}: ${says}`,
            },
          ),
          Plot.barX(
            bars.filter(({ theirs = false }) => theirs),
            {
              ...{ x1: 'x1', x2: 'x2', y: 'at', fill: 'none', stroke: 'colour', strokeDasharray: '4 3' },
              title: ({ label, says }: (typeof bars)[number]) => `${label}: ${says}`,
            },
          ),
          Plot.text(
            all.filter(({ parts }) => parts !== undefined),
            { ...text, x: ({ parts }: PanelRow) => parts!.reduce((sum, { value }) => sum + value, 0), dx: 7 },
          ),
          ...dots.flatMap((dot) => {
            const title = `${dot.label}: ${dot.text}`
            const [from, to] = [{ x: 'x1', y: 'at' } as const, { x1: 'x1', x2: 'x2', y: 'at' } as const]
            const paint =
              dot.theirs === true ? { fill: PAPER, stroke: dot.colour ?? FAINT, strokeWidth: 2 } : { fill: dot.colour ?? FAINT }
            return [
              ...(dot.interval === undefined
                ? []
                : [
                    Plot.ruleY([dot], {
                      ...{
                        x1: dot.interval[0],
                        x2: dot.interval[1],
                        y: 'at',
                        stroke: dot.colour ?? FAINT,
                        strokeWidth: 2.5,
                        strokeOpacity: 0.45,
                      },
                    }),
                  ]),
              ...(dot.x1 === dot.x2
                ? []
                : [Plot.arrow([dot], { ...to, ...look(dot), strokeWidth: 2.5, headLength: 6, title: () => title })]),
              Plot.dot([dot], { ...from, r: dot.x1 === dot.x2 ? 5 : 4, ...paint, title: () => title }),
            ]
          }),
          Plot.text(
            all.filter(({ parts }) => parts === undefined),
            { ...text, frameAnchor: 'right', dx: 14 },
          ),
        ],
      },
    },
  ]
}

// Below: panels of curves. A curve has values at several sizes, each with its interval. At one size, the points of different curves are
// side by side.

export interface PanelPoint {
  /** The size at which the point is drawn; one of the panel's `sizes`. */
  readonly x: number
  readonly value: number
  readonly interval: readonly [low: number, high: number] | null
  /** The text that appears when the pointer is on the point. */
  readonly says: string
}

export interface Curve {
  readonly colour: string
  /** The SVG dash pattern; '' for a solid line, null for points without a line. */
  readonly dash?: string | null
  readonly points: readonly PanelPoint[]
}

export interface Curves {
  readonly title: string
  readonly below?: string
  readonly height?: number
  /** The sizes on the x axis. They are evenly spaced, whatever their values. */
  readonly sizes: readonly number[]
  readonly names: { readonly x: string; readonly y: string }
  /** The scale of the y axis. Default: from 0 to beyond all points; logarithmic if the values span a wide range. */
  readonly y?: Plot.ScaleOptions
  readonly curves: readonly Curve[]
  /** Pixels between the points of adjacent curves at one size. Default: 6. */
  readonly apart?: number
}

export function curves({ title, below = '', height = 268, sizes, names, y, curves: all, apart = 6 }: Curves): Panel {
  const points = all.flatMap((curve) => curve.points)
  const scale =
    y ??
    fitting(
      points.map(({ value }) => value),
      points.flatMap(({ interval }) => interval ?? []),
    )
  const least = scale.type === 'log' ? (scale.domain as [number, number])[0] : -Infinity
  const up = (value: number): number => Math.max(value, least)
  return {
    ...{ title, below, height },
    plot: {
      x: { type: 'point', domain: sizes, label: names.x, tickFormat: size },
      y: { ...scale, label: names.y },
      marks: [
        Plot.ruleY([scale.domain === undefined ? 0 : (scale.domain as [number, number])[0]], { strokeOpacity: 0.5 }),
        ...(points.length === 0 ? [Plot.text(['no sample was answered'], { frameAnchor: 'top-left', dx: 10, dy: 10 })] : []),
        ...all.flatMap(({ colour, dash = '', points: own }, index) => {
          const dx = (index - (all.length - 1) / 2) * apart
          return [
            ...(dash === null
              ? []
              : [
                  Plot.line(own, {
                    x: 'x',
                    y: ({ value }: PanelPoint) => up(value),
                    dx,
                    stroke: colour,
                    strokeWidth: 2,
                    strokeDasharray: dash,
                  }),
                ]),
            Plot.ruleX(
              own.filter(({ interval }) => interval !== null),
              {
                ...{
                  x: 'x',
                  y1: ({ interval }: PanelPoint) => up(interval![0]),
                  y2: ({ interval }: PanelPoint) => up(interval![1]),
                  dx,
                },
                ...{ stroke: colour, strokeWidth: 2.5, strokeOpacity: 0.5 },
              },
            ),
            Plot.dot(own, {
              x: 'x',
              y: ({ value }: PanelPoint) => up(value),
              dx,
              r: dash === null ? 4.5 : 3.5,
              fill: colour,
              title: 'says',
            }),
          ]
        }),
      ],
    },
  }
}

/** Returns a size in short, such as `512` or `64K`. */
export const size = (value: number): string => (value >= 1000 && value % 1000 === 0 ? `${value / 1000}K` : String(value))
