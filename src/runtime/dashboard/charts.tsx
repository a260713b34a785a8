/** Charts: stacked bars for a thread's steps (tokens and milliseconds), and lines over time. */
import type { LedgerEntry } from './wire.js'
import { count } from '../figures/numbers.js'

/** The most steps in a chart, the last ones. The table has all. */
const MOST = 200

export function StepCharts({ ledger }: { readonly ledger: readonly LedgerEntry[] }) {
  const drawn = ledger.slice(-MOST)
  const label = ({ kind }: LedgerEntry, at: number) => `step ${ledger.length - drawn.length + at + 1} (${kind})`
  return (
    <div class="charts">
      <StepChart
        title="Tokens"
        unit="tokens"
        names={[
          { name: 'reused', share: 'reused' },
          { name: 'computed again', share: 'recomputed' },
          { name: 'new', share: 'fresh' },
        ]}
        bars={drawn.map((entry, at) => ({
          label: label(entry, at),
          parts: [entry.reused, entry.recomputed, entry.fresh],
          mark: null,
        }))}
      />
      <StepChart
        title="Time"
        unit="ms"
        markName="expected of cache and prompt"
        names={[
          { name: 'cache', share: 'cache' },
          { name: 'prompt', share: 'prefill' },
          { name: 'answer', share: 'decode' },
        ]}
        bars={drawn.map((entry, at) => {
          const { cache, prefill, decode } = entry.milliseconds
          return { label: label(entry, at), parts: [cache, prefill, decode], mark: entry.predicted }
        })}
      />
    </div>
  )
}

/** Sizes of the bars of a step chart. */

const HEIGHT = 100
const BAR = 14
const GAP = 4

interface Bar {
  readonly label: string
  /** The values of the stacked parts, bottom first, one for each of `names`. */
  readonly parts: readonly number[]
  /** The expected value, drawn as a mark; null: no mark. */
  readonly mark: number | null
}

interface StepChartProps {
  readonly title: string
  readonly unit: string
  readonly names: readonly { readonly name: string; readonly share: string }[]
  readonly markName?: string
  readonly bars: readonly Bar[]
}

function StepChart({ title, unit, names, markName, bars }: StepChartProps) {
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

const WIDTH = 300
const TALL = 90

interface ChartLine {
  readonly name: string
  /** The values, oldest first. */
  readonly values: readonly number[]
}

interface LineChartProps {
  readonly title: string
  readonly unit: string
  readonly lines: readonly ChartLine[]
  /** The top of the scale, unless a value is higher. Default: the highest value. */
  readonly ceiling?: number
  readonly written?: (value: number) => string
}

/** A chart of lines over time. The newest values are at the right; the scale begins at 0. */
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
        viewBox={`0 0 ${WIDTH} ${TALL}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${title}, ${unit}: now ${latest.join(', ')}; top of the scale ${written(top)}`}
      >
        <line class="grid" x1="0" x2={WIDTH} y1={TALL / 2} y2={TALL / 2} />
        <line class="grid" x1="0" x2={WIDTH} y1={TALL - 0.5} y2={TALL - 0.5} />
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

/** Returns a line's points for SVG, one per value, from left to right. A single value is at the right edge. */
function pointsOf(values: readonly number[], top: number): string {
  const last = Math.max(1, values.length - 1)
  const shift = values.length === 1 ? 1 : 0
  return values
    .map((value, at) => `${(((at + shift) / last) * WIDTH).toFixed(1)},${((1 - value / top) * (TALL - 2) + 1).toFixed(1)}`)
    .join(' ')
}
