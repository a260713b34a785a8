/** Owns panels of curves: what was measured at some sizes, each with its interval, side by side where they meet. */
import * as Plot from '@observablehq/plot'
import { fitting, type Panel } from './figure.js'

export interface Point {
  /** One of the panel's sizes. */
  readonly x: number
  readonly value: number
  readonly interval: readonly [low: number, high: number] | null
  /** For a pointer that rests on the point. */
  readonly says: string
}

export interface Curve {
  readonly colour: string
  /** Empty: solid; null: points that no line joins. */
  readonly dash?: string | null
  readonly points: readonly Point[]
}

export interface Curves {
  readonly title: string
  readonly below?: string
  readonly height?: number
  /** Evenly spaced, whatever lies between them. */
  readonly sizes: readonly number[]
  readonly names: { readonly x: string; readonly y: string }
  /** Default: from 0 on around everything, by powers of ten where that is far. */
  readonly y?: Plot.ScaleOptions
  readonly curves: readonly Curve[]
  /** Between the curves at one size, in pixels; or how much of the room of a size they share. */
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
        ...(points.length === 0 ? [Plot.text(['nothing was answered'], { frameAnchor: 'top-left', dx: 10, dy: 10 })] : []),
        ...all.flatMap(({ colour, dash = '', points: own }, index) => {
          const dx = (index - (all.length - 1) / 2) * apart
          return [
            ...(dash === null
              ? []
              : [
                  Plot.line(own, {
                    x: 'x',
                    y: ({ value }: Point) => up(value),
                    dx,
                    stroke: colour,
                    strokeWidth: 2,
                    strokeDasharray: dash,
                  }),
                ]),
            Plot.ruleX(
              own.filter(({ interval }) => interval !== null),
              {
                ...{ x: 'x', y1: ({ interval }: Point) => up(interval![0]), y2: ({ interval }: Point) => up(interval![1]), dx },
                ...{ stroke: colour, strokeWidth: 2.5, strokeOpacity: 0.5 },
              },
            ),
            Plot.dot(own, {
              x: 'x',
              y: ({ value }: Point) => up(value),
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

/** `512`, `64K`. */
export const size = (value: number): string => (value >= 1000 && value % 1000 === 0 ? `${value / 1000}K` : String(value))
