/** Owns lines over time. */
import { count } from '../figures/numbers.js'

const WIDTH = 300
const HEIGHT = 90

export interface Line {
  readonly name: string
  /** Oldest first. */
  readonly values: readonly number[]
}

interface LineChartProps {
  readonly title: string
  readonly unit: string
  readonly lines: readonly Line[]
  /** Top of the scale. Default: the highest value. */
  readonly ceiling?: number
  readonly written?: (value: number) => string
}

/** The newest value stands at the right; the scale begins at 0. */
export function LineChart({ title, unit, lines, ceiling = 0, written = count }: LineChartProps) {
  const top = Math.max(ceiling, 1, ...lines.flatMap(({ values }) => values))
  const latest = lines.map(({ name, values }) => `${name} ${written(values.at(-1) ?? 0)}`)
  return (
    <figure class="chart">
      <figcaption>
        {title}{' '}
        <span class="dim">
          {unit}, top {written(top)}
        </span>
      </figcaption>
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${title}, ${unit}: now ${latest.join(', ')}; top of the scale ${written(top)}`}
      >
        <line class="grid" x1="0" x2={WIDTH} y1={HEIGHT / 2} y2={HEIGHT / 2} />
        <line class="grid" x1="0" x2={WIDTH} y1={HEIGHT - 0.5} y2={HEIGHT - 0.5} />
        {lines.map(({ name, values }, at) => (
          <polyline key={name} class={`line line-${at}`} points={pointsOf(values, top)} />
        ))}
      </svg>
      <ul class="legend">
        {lines.map(({ name, values }, at) => (
          <li key={name}>
            <span class={`key line-${at}`} /> {name} <b>{written(values.at(-1) ?? 0)}</b>
          </li>
        ))}
      </ul>
    </figure>
  )
}

/** A point a value from left to right; a single value is a point at the right. */
function pointsOf(values: readonly number[], top: number): string {
  const last = Math.max(1, values.length - 1)
  const shift = values.length === 1 ? 1 : 0
  return values
    .map((value, at) => `${(((at + shift) / last) * WIDTH).toFixed(1)},${((1 - value / top) * (HEIGHT - 2) + 1).toFixed(1)}`)
    .join(' ')
}
