/** Owns the study's figure: a panel a point, milliseconds of a turn over generated tokens, one line a way, crossings marked. */
import { axes, COLOURS, drawing, element, hint, legend, line, linear, text, type Box } from '../../attention/figures/svg.js'
import { CONTRACTS } from '../../core/contract.js'
import { total, type CostLine } from './line.js'
import type { CostReport } from './report.js'
import type { Lines } from './schedule.js'
import { type Point, type Way, WAYS } from './scenario.js'
import { paysFrom, tokens } from './words.js'

const WIDTH = 960
const PANEL = 356
const TOP = 76
const COLUMN = 480
/** Points of a line: enough for its bend. */
const STEPS = 48
/** Tokens shown where nothing crosses. */
const USUAL = 500
const FEWEST = 16

const colourOf = (way: Way): string => COLOURS[way === 'keep' ? 'complete' : way]

interface Panel {
  readonly point: Point
  /** Null where nothing was measured. */
  readonly measured: Lines | null
  readonly predicted: Lines
  readonly pays: readonly { readonly way: Way; readonly from: number | null; readonly words: string }[]
}

/** Empty text where nothing was measured. */
export function turnFigure(report: CostReport): string {
  const panels = panelsOf(report)
  if (report.measured.length === 0) return ''
  const entries = WAYS.map((way) => ({ label: way === 'keep' ? 'kept, all cached' : `folded, ${way}`, colour: colourOf(way) }))
  const rows = Math.ceil(panels.length / 2)
  return drawing(WIDTH, TOP + rows * PANEL, 'Time of a turn against generated tokens: the context kept, and folded', [
    legend(30, 30, entries),
    text(
      24,
      54,
      'Solid: measured. Dashed: predicted by the calibration; in panels named so, by the fit to this run. Rings: from here on the fold is cheaper.',
      {
        class: 'kf-faint',
      },
    ),
    ...panels.flatMap((panel, index) => drawn(panel, boxOf(index))),
  ])
}

/** What was measured, and the paper's own size. */
function panelsOf({ measured, extrapolated }: CostReport): Panel[] {
  const own = measured.map(({ point, ways, calibration }): Panel => {
    const lines = Object.fromEntries(ways.map(({ way, line }) => [way, line])) as Record<Way, CostLine>
    const pays = ways.flatMap(({ way, pays }) => (pays === null ? [] : [{ way, from: pays.from, words: paysFrom(pays) }]))
    return { point, measured: lines, predicted: calibration.lines, pays }
  })
  const longest = Math.max(...extrapolated.map(({ point }) => point.before))
  const theirs = extrapolated
    .filter(({ point }) => point.before === longest)
    .map(({ point, lines, pays }): Panel => {
      const each = CONTRACTS.map((way) => ({ way, from: pays[way].from, words: paysFrom(pays[way]) }))
      return { point, measured: null, predicted: lines, pays: each }
    })
  return [...own, ...theirs]
}

function boxOf(index: number): Box {
  const [column, row] = [index % 2, Math.floor(index / 2)]
  return {
    left: 78 + column * COLUMN,
    right: 452 + column * COLUMN,
    top: TOP + row * PANEL + 48,
    bottom: TOP + (row + 1) * PANEL - 56,
  }
}

function drawn({ point, measured, predicted, pays }: Panel, box: Box): string[] {
  const { before, after, share } = point
  const crossings = pays.flatMap(({ from }) => (from === null || from === 1 ? [] : [from]))
  const most = crossings.length === 0 ? USUAL : Math.max(FEWEST, Math.ceil(1.6 * Math.max(...crossings)))
  const shown = measured ?? predicted
  const seconds = (of: CostLine, count: number): number => total(of, count) / 1000
  const x = linear(0, most, box.left, box.right)
  const last = Math.max(...x.ticks.map(({ value }) => value))
  const all = [...WAYS.map((way) => shown[way]), ...(measured === null ? [] : WAYS.map((way) => predicted[way]))]
  const y = linear(0, Math.max(...all.map((of) => seconds(of, last))), box.bottom, box.top)
  const path = (of: CostLine): string =>
    Array.from({ length: STEPS + 1 }, (_, step) => Math.max(1, (last * step) / STEPS))
      .map((count) => `${x.at(count).toFixed(1)},${y.at(seconds(of, count)).toFixed(1)}`)
      .join(' ')
  const curve = (of: CostLine, way: Way, isMeasured: boolean): string =>
    element('polyline', {
      points: path(of),
      fill: 'none',
      stroke: colourOf(way),
      'stroke-width': isMeasured ? 2.5 : 1.5,
      ...(isMeasured ? {} : { 'stroke-dasharray': '6 4' }),
    })
  return [
    text(
      box.left,
      box.top - 30,
      `${tokens(before)} tokens, folded to ${tokens(after)}, ${Math.round(100 * share)} % before the fold`,
      {
        'font-weight': '600',
      },
    ),
    text(
      box.left,
      box.top - 12,
      `${measured === null ? 'predicted; ' : ''}pays from: ${pays.map(({ way, words }) => `${way} ${words}`).join(', ')}`,
      { class: 'kf-faint' },
    ),
    ...axes(box, x, y, { x: 'generated tokens', y: 'seconds' }),
    ...WAYS.map((way) => curve(predicted[way], way, false)),
    ...(measured === null ? [] : WAYS.map((way) => curve(measured[way], way, true))),
    ...pays.flatMap(({ way, from }) => {
      if (from === null || from > last) return []
      const [cx, cy] = [x.at(from), y.at(seconds(shown.keep, from))]
      return [
        line(cx, cy, cx, box.bottom, { class: '', stroke: colourOf(way), 'stroke-dasharray': '2 3' }),
        element(
          'circle',
          { cx, cy, r: 5, fill: 'none', stroke: colourOf(way), 'stroke-width': 2 },
          hint(`${way}: from ${tokens(from)} tokens on`),
        ),
      ]
    }),
  ]
}
