/** Owns the figure of weights: every pair by its weight in the complete and in the folded prompt, with the line of equality. */
import type { Contract } from '../../core/contract.js'
import type { Finding } from '../findings.js'
import { seenFrom, type From } from '../pairs.js'
import type { PromptRecord } from '../run-folder.js'
import { axes, COLOURS, drawing, element, fitting, hint, line, text, type Box } from './svg.js'

const WIDTH = 960
const HEIGHT = 456

/** What the looking tokens are called in all figures. */
export const FROM_NAMES: Readonly<Record<From, string>> = {
  value: "from the value's tokens (as in the paper)",
  reading: 'from the token that predicts the value',
}

/** Both ways of looking, side by side. `findings` are those of this contract. */
export function scatter(records: readonly PromptRecord[], contract: Contract, findings: readonly Finding[]): string {
  const boxes: Record<From, Box> = {
    value: { left: 76, right: 456, top: 92, bottom: HEIGHT - 60 },
    reading: { left: 556, right: 936, top: 92, bottom: HEIGHT - 60 },
  }
  const parts = findings.flatMap((finding) => panel(records, contract, finding, boxes[finding.from]))
  return drawing(WIDTH, HEIGHT, `Attention to current values, folded (${contract}) against complete, each pair a point`, parts)
}

function panel(
  records: readonly PromptRecord[],
  contract: Contract,
  { from, pairs, seeds, improved, r2 }: Finding,
  box: Box,
): string[] {
  const points = records.flatMap(({ seed, comparisons }) =>
    comparisons.flatMap((comparison) =>
      comparison.contract !== contract
        ? []
        : comparison.pairs.flatMap((pair) => {
            const [before, after] = [seenFrom(pair.complete, from), seenFrom(pair.folded, from)]
            return before === null || after === null ? [] : [{ seed, pair, x: before.weight, y: after.weight }]
          }),
    ),
  )
  const all = points.flatMap(({ x, y }) => [x, y])
  const x = fitting(all, box.left, box.right)
  const y = fitting(all, box.bottom, box.top)
  const agreement = r2 === null ? '' : `, R² = ${r2.value.toFixed(3)}`
  return [
    ...heading(
      box.left,
      'Weight on the value',
      from,
      `${pairs} pairs of ${seeds} prompts, ${improved} above the line${agreement}`,
    ),
    ...axes(box, x, y, { x: 'complete prompt, mean weight', y: `folded (${contract}), mean weight` }),
    line(box.left, box.bottom, box.right, box.top, { class: 'kf-line', 'stroke-dasharray': '5 4' }),
    ...points.map(({ seed, pair, x: before, y: after }) =>
      element(
        'circle',
        { cx: x.at(before), cy: y.at(after), r: 3, fill: COLOURS[contract], 'fill-opacity': 0.45 },
        hint(`${pair.key}: ${pair.value} (seed ${seed})\ncomplete ${before.toPrecision(3)}, folded ${after.toPrecision(3)}`),
      ),
    ),
  ]
}

/** Three lines above a panel: what is shown, from where is looked, and how much of it there is. */
export const heading = (left: number, what: string, from: From, size: string): string[] => [
  text(left, 28, `${what},`, { 'font-weight': '600' }),
  text(left, 46, FROM_NAMES[from], { 'font-weight': '600' }),
  text(left, 66, size, { class: 'kf-faint' }),
]
