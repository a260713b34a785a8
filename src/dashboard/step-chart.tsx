/** Owns the bars of a thread's steps: one a step, stacked, with a mark for what was expected. */
import { count } from '../figures/numbers.js'

const HEIGHT = 100
const BAR = 14
const GAP = 4

export interface Bar {
  readonly label: string
  /** From the bottom up, one for each name. */
  readonly parts: readonly number[]
  /** Where a mark is drawn; null: nowhere. */
  readonly mark: number | null
}

interface StepChartProps {
  readonly title: string
  readonly unit: string
  readonly names: readonly { readonly name: string; readonly share: string }[]
  readonly markName?: string
  readonly bars: readonly Bar[]
}

export function StepChart({ title, unit, names, markName, bars }: StepChartProps) {
  const top = Math.max(1, ...bars.map(({ parts, mark }) => Math.max(sum(parts), mark ?? 0)))
  const high = (value: number) => (value / top) * HEIGHT
  const width = Math.max(120, bars.length * (BAR + GAP))
  return (
    <figure class="chart">
      <figcaption>
        {title}{' '}
        <span class="dim">
          {unit} per step; top {count(top)}
        </span>
      </figcaption>
      <div class="scroll" tabIndex={0} role="group" aria-label={`${title}, bars`}>
        <svg
          width={width}
          height={HEIGHT}
          viewBox={`0 0 ${width} ${HEIGHT}`}
          role="img"
          aria-label={`${title}: ${bars.map(({ label, parts }) => `${label} ${count(sum(parts))} ${unit}`).join(', ')}`}
        >
          <line class="grid" x1="0" x2={width} y1={HEIGHT - 0.5} y2={HEIGHT - 0.5} />
          {bars.map(({ label, parts, mark }, at) => {
            const x = at * (BAR + GAP)
            let below = 0
            return (
              <g key={at}>
                <title>{`${label}: ${names.map(({ name }, part) => `${name} ${count(parts[part] ?? 0)}`).join(', ')} ${unit}`}</title>
                {parts.map((part, index) => {
                  const y = HEIGHT - high(below + part)
                  below += part
                  return (
                    <rect key={index} class={`share-${names[index]?.share ?? ''}`} x={x} y={y} width={BAR} height={high(part)} />
                  )
                })}
                {mark === null ? null : (
                  <line class="mark" x1={x - 1} x2={x + BAR + 1} y1={HEIGHT - high(mark)} y2={HEIGHT - high(mark)} />
                )}
              </g>
            )
          })}
        </svg>
      </div>
      <ul class="legend">
        {names.map(({ name, share }) => (
          <li key={name}>
            <span class={`key share-${share}`} /> {name}
          </li>
        ))}
        {markName !== undefined && bars.some(({ mark }) => mark !== null) ? (
          <li>
            <span class="key mark" /> {markName}
          </li>
        ) : null}
      </ul>
    </figure>
  )
}

const sum = (parts: readonly number[]): number => parts.reduce((total, part) => total + part, 0)
