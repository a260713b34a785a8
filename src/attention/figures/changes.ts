/** Owns the figure of changes: how many pairs gained or lost how much by the fold. */
import type { Contract } from '../../core/contract.js'
import type { Finding } from '../findings.js'
import { changeOf, type From } from '../pairs.js'
import type { PromptRecord } from '../run-folder.js'
import { heading } from './scatter.js'
import { axes, drawing, element, hint, LESS, line, linear, MORE, text, type Box } from './svg.js'

const WIDTH = 960
const HEIGHT = 416
const BINS = 24
/** Share of the changes on each side that may lie beyond the bins. */
const BEYOND = 0.03
/** Percent; nothing can lose more, and what gains more is counted beside the bins. */
const WIDEST = 100

export function changes(records: readonly PromptRecord[], contract: Contract, findings: readonly Finding[]): string {
  const boxes: Record<From, Box> = {
    value: { left: 76, right: 456, top: 92, bottom: HEIGHT - 60 },
    reading: { left: 556, right: 936, top: 92, bottom: HEIGHT - 60 },
  }
  const parts = findings.flatMap((finding) => panel(records, contract, finding, boxes[finding.from]))
  return drawing(WIDTH, HEIGHT, `Change of attention to current values by folding (${contract}), in percent`, parts)
}

function panel(records: readonly PromptRecord[], contract: Contract, finding: Finding, box: Box): string[] {
  const { from, pairs, seeds, meanChange, medianChange } = finding
  const values = records
    .flatMap(({ comparisons }) => comparisons.filter((one) => one.contract === contract).flatMap((one) => one.pairs))
    .flatMap((pair) => changeOf(pair, from) ?? [])
    .sort((a, b) => a - b)
  const said = [`${pairs} pairs of ${seeds} prompts`]
  if (meanChange !== null && medianChange !== null)
    said.push(`mean ${signed(meanChange.value)} %, median ${signed(medianChange.value)} %`)
  const head = heading(box.left, 'Change of the weight on the value', from, said.join('; '))
  if (values.length === 0) return head
  const outer = Math.max(Math.abs(quantile(values, BEYOND)), Math.abs(quantile(values, 1 - BEYOND)), 1e-6)
  const edge = Math.min(WIDEST, outer)
  const x = linear(-edge, edge, box.left, box.right, 6)
  const reach = x.ticks.at(-1)!.value
  const inside = values.filter((value) => Math.abs(value) <= reach)
  // An even number of bins: 0 lies between two of them.
  const size = (2 * reach) / BINS
  const bins = Array.from({ length: BINS }, (_, index) => {
    const start = -reach + index * size
    return {
      start,
      count: inside.filter((value) => value >= start && (value < start + size || (index === BINS - 1 && value === reach))).length,
    }
  })
  const y = linear(0, Math.max(...bins.map(({ count }) => count)), box.bottom, box.top)
  const beyond = [values.filter((value) => value < -reach).length, values.filter((value) => value > reach).length] as const
  return [
    ...head,
    ...axes(box, x, y, { x: 'change of the mean weight by folding, %', y: 'pairs' }),
    ...bins.flatMap(({ start, count }) =>
      count === 0
        ? []
        : [
            element(
              'rect',
              {
                x: x.at(start) + 0.75,
                y: y.at(count),
                width: x.at(start + size) - x.at(start) - 1.5,
                height: box.bottom - y.at(count),
                fill: start >= -1e-12 * reach ? MORE : LESS,
              },
              hint(`${signed(start)} to ${signed(start + size)} %: ${count} pairs`),
            ),
          ],
    ),
    line(x.at(0), box.top, x.at(0), box.bottom, { class: 'kf-line', 'stroke-dasharray': '5 4' }),
    ...(beyond[0] > 0 ? [text(box.left + 4, box.top + 10, `${beyond[0]} further left`, { class: 'kf-faint' })] : []),
    ...(beyond[1] > 0
      ? [text(box.right - 4, box.top + 10, `${beyond[1]} further right`, { class: 'kf-faint', 'text-anchor': 'end' })]
      : []),
  ]
}

const quantile = (sorted: readonly number[], share: number): number =>
  sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]!

/** With its sign, and digits that fit its size. */
export const signed = (value: number): string =>
  `${value < 0 ? '−' : '+'}${Math.abs(value) >= 100 ? Math.abs(value).toFixed(0) : Math.abs(value) >= 1 ? Math.abs(value).toFixed(1) : String(+Math.abs(value).toPrecision(2))}`
