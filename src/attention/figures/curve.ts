/** Owns the figure of interference: attention to a key's earlier values, and to the current one, against the number of updates. */
import type { Contract } from '../../core/contract.js'
import type { Figure, InterferencePoint } from '../findings.js'
import { FROMS, type From } from '../pairs.js'
import { FROM_NAMES } from './scatter.js'
import { axes, COLOURS, drawing, element, fitting, hint, legend, line, text, type Box, type Scale } from './svg.js'

const WIDTH = 960
const PANEL = 330
const TOP = 44

/** Empty text for fewer than two numbers of updates. */
export function interferenceCurve(points: readonly InterferencePoint[]): string {
  const sizes = [...new Set(points.map(({ n }) => n))].sort((a, b) => a - b)
  if (sizes.length < 2) return ''
  const contracts = [...new Set(points.map(({ contract }) => contract))]
  const named = contracts.map((contract) => ({
    label: contract === null ? 'complete' : `folded, ${contract}`,
    colour: COLOURS[contract ?? 'complete'],
  }))
  const parts = (['older', 'current'] as const).flatMap((of, row) =>
    FROMS.flatMap((from, column) => {
      const box = {
        left: 76 + column * 480,
        right: 456 + column * 480,
        top: TOP + row * PANEL + 56,
        bottom: TOP + (row + 1) * PANEL - 56,
      }
      return panel(
        points.filter((point) => point.from === from),
        of,
        from,
        sizes,
        contracts,
        box,
      )
    }),
  )
  return drawing(WIDTH, TOP + 2 * PANEL + 12, 'Attention to earlier and current values against updates per key', [
    legend(76, 30, named),
    ...parts,
  ])
}

function panel(
  points: readonly InterferencePoint[],
  of: 'older' | 'current',
  from: From,
  sizes: readonly number[],
  contracts: readonly (Contract | null)[],
  box: Box,
): string[] {
  const values = points.map((point) => point[of].value)
  const ends = points.flatMap((point) => point[of].interval ?? [])
  // An interval may reach down to almost nothing: that is no reason to draw powers of ten.
  const y = fitting(values, box.bottom, box.top, ends)
  const at = (n: number) => box.left + ((box.right - box.left) * (sizes.indexOf(n) + 0.5)) / sizes.length
  const x: Scale = { kind: 'linear', at, ticks: sizes.map((n) => ({ value: n, label: String(n) })) }
  const seeds = [...new Set(points.map((point) => point.seeds))].sort((a, b) => a - b)
  const what = of === 'older' ? "the key's earlier values" : 'the current value'
  return [
    text(box.left, box.top - 34, `Mass on ${what},`, { 'font-weight': '600' }),
    text(
      box.left,
      box.top - 17,
      `${FROM_NAMES[from]}; ${seeds[0] ?? 0}${seeds.length > 1 ? ` to ${seeds.at(-1)}` : ''} prompts each`,
      { class: 'kf-faint' },
    ),
    ...axes(box, x, y, { x: 'updates per key (n)', y: 'mean mass, 0 to 1' }),
    ...contracts.flatMap((contract, index) => {
      const shift = (index - (contracts.length - 1) / 2) * 7
      const own = points.filter((point) => point.contract === contract).sort((a, b) => a.n - b.n)
      return series(
        own.map((point) => ({ x: x.at(point.n) + shift, figure: point[of], pairs: point.pairs, n: point.n })),
        y,
        COLOURS[contract ?? 'complete'],
      )
    }),
  ]
}

function series(
  points: readonly { readonly x: number; readonly figure: Figure; readonly pairs: number; readonly n: number }[],
  y: Scale,
  colour: string,
): string[] {
  const path = points.map(({ x, figure }) => `${x.toFixed(1)},${y.at(figure.value).toFixed(1)}`).join(' ')
  return [
    element('polyline', { points: path, fill: 'none', stroke: colour, 'stroke-width': 2 }),
    ...points.flatMap(({ x, figure: { value, interval }, pairs, n }) => [
      ...(interval === null
        ? []
        : [
            line(x, y.at(interval[0]), x, y.at(interval[1]), {
              class: '',
              stroke: colour,
              'stroke-width': 2.5,
              'stroke-opacity': 0.5,
            }),
          ]),
      element(
        'circle',
        { cx: x, cy: y.at(value), r: 3.5, fill: colour },
        hint(`n = ${n}: ${value.toPrecision(3)} (${pairs} pairs)`),
      ),
    ]),
  ]
}
