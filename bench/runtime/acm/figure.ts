/**
 * Draws the study's figure: one panel per point, a turn's seconds over generated tokens, one line per way of taking the turn, with
 * crossings marked.
 */
import * as Plot from '@observablehq/plot'
import { CONTRACTS } from '../../../src/runtime/core/contract.js'
import { count as tokens } from '../../../src/runtime/figures/numbers.js'
import { COLOURS, figure, type Panel } from '../../../src/lab/figures/figure.js'
import { total, type CostLine } from './line.js'
import { type CostReport, paysFrom } from './report.js'
import { type CostLines, type Point, type Arm, ARMS } from './schedule.js'

/** Points of a drawn line, enough to show its bend. */
const STEPS = 48
/** Generated tokens on the x axis if no lines cross. */
const USUAL = 500
const FEWEST = 16

const colourOf = (way: Arm): string => COLOURS[way === 'keep' ? 'complete' : way]

interface MeasuredPoint {
  readonly point: Point
  /** Null if nothing was measured. */
  readonly measured: CostLines | null
  readonly predicted: CostLines
  readonly pays: readonly { readonly way: Arm; readonly from: number | null; readonly words: string }[]
}

/** Returns the figure as SVG; '' if nothing was measured. */
export function turnFigure(report: CostReport): string {
  if (report.measured.length === 0) return ''
  return figure({
    title: 'Time of a turn against generated tokens: the context kept, and folded',
    below:
      'Solid: measured. Dashed: predicted by the calibration; in panels named so, by the fit to this run. Rings: from here on the fold is cheaper.',
    key: ARMS.map((way) => ({ label: way === 'keep' ? 'kept, all cached' : `folded, ${way}`, colour: colourOf(way) })),
    columns: 2,
    panels: turnsOf(report).map(panelOf),
  })
}

/** Returns the measured points, and the paper's own size. */
function turnsOf({ measured, extrapolated }: CostReport): MeasuredPoint[] {
  const own = measured.map(({ point, ways, calibration }): MeasuredPoint => {
    const lines = Object.fromEntries(ways.map(({ way, line }) => [way, line])) as Record<Arm, CostLine>
    const pays = ways.flatMap(({ way, pays }) => (pays === null ? [] : [{ way, from: pays.from, words: paysFrom(pays) }]))
    return { point, measured: lines, predicted: calibration.lines, pays }
  })
  const longest = Math.max(...extrapolated.map(({ point }) => point.before))
  const theirs = extrapolated
    .filter(({ point }) => point.before === longest)
    .map(({ point, lines, pays }): MeasuredPoint => {
      const each = CONTRACTS.map((way) => ({ way, from: pays[way].from, words: paysFrom(pays[way]) }))
      return { point, measured: null, predicted: lines, pays: each }
    })
  return [...own, ...theirs]
}

function panelOf({ point, measured, predicted, pays }: MeasuredPoint): Panel {
  const { before, after, share } = point
  const crossings = pays.flatMap(({ way, from }) => (from === null || from === 1 ? [] : [{ way, from }]))
  const last = crossings.length === 0 ? USUAL : Math.max(FEWEST, Math.ceil(1.6 * Math.max(...crossings.map(({ from }) => from))))
  const shown = measured ?? predicted
  const seconds = (of: CostLine, count: number): number => total(of, count) / 1000
  const line = (of: CostLine, way: Arm, isMeasured: boolean): Plot.Markish =>
    Plot.line(
      Array.from({ length: STEPS + 1 }, (_, step) => Math.max(1, (last * step) / STEPS)).map((count) => [
        count,
        seconds(of, count),
      ]),
      { stroke: colourOf(way), strokeWidth: isMeasured ? 2.5 : 1.5, ...(isMeasured ? {} : { strokeDasharray: '6 4' }) },
    )
  return {
    title: `${tokens(before)} tokens, folded to ${tokens(after)}, ${Math.round(100 * share)} % before the fold`,
    below: `${measured === null ? 'predicted; ' : ''}pays from: ${pays.map(({ way, words }) => `${way} ${words}`).join(', ')}`,
    height: 300,
    plot: {
      x: { domain: [0, last], ticks: 5, label: 'generated tokens' },
      y: { zero: true, nice: 5, ticks: 5, label: 'seconds' },
      marks: [
        Plot.ruleY([0], { strokeOpacity: 0.5 }),
        ...ARMS.map((way) => line(predicted[way], way, false)),
        ...(measured === null ? [] : ARMS.map((way) => line(measured[way], way, true))),
        ...pays.flatMap(({ way, from }) => {
          if (from === null || from > last) return []
          const [at, look] = [[[from, seconds(shown.keep, from)]], { stroke: colourOf(way), strokeWidth: 2 }]
          return [
            Plot.ruleX(at, { x: '0', y1: 0, y2: '1', ...look, strokeWidth: 1, strokeDasharray: '2 3' }),
            Plot.dot(at, { ...look, r: 5, title: () => `${way}: from ${tokens(from)} tokens on` }),
          ]
        }),
      ],
    },
  }
}
