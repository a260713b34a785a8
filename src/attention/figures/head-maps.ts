/** Owns the figure of layers and heads: where attention to current values is, and where folding changes it. */
import type { Contract } from '../../core/contract.js'
import { meanGlance, seenFrom, type From, type Glance } from '../pairs.js'
import type { PromptRecord } from '../run-folder.js'
import { FROM_NAMES } from './scatter.js'
import { drawing, element, escaped, hint, LESS, MORE, text } from './svg.js'

/** One layer and head, averaged over prompts. */
interface Cell {
  readonly layer: number
  readonly head: number
  readonly complete: Glance
  readonly folded: Glance
}

const WIDTH = 960
const LEFT = 76
const GAP = 44
/** Up to so many layers and heads, numbers are written into the cells. */
const WRITTEN = 8
/** Less than this share of the largest number of a map is not written out. */
const NOTHING = 1e-4

/** For both ways of looking: complete, folded, and the difference, as mass in percent. Empty text when nothing was measured. */
export function headMaps(records: readonly PromptRecord[], contract: Contract): string {
  const cells = cellsOf(records, contract)
  if (cells.length === 0) return ''
  const froms = (['value', 'reading'] as const).filter((from) =>
    cells.every(({ complete, folded }) => seenFrom(complete, from) !== null && seenFrom(folded, from) !== null),
  )
  const layers = new Set(cells.map(({ layer }) => layer)).size
  const tall = Math.max(36, Math.min(layers * 34, 420))
  const block = tall + 112
  const parts = froms.flatMap((from, index) => row(cells, from, contract, 12 + index * block, tall, records.length))
  return drawing(
    WIDTH,
    froms.length * block + 8,
    `Attention to current values by layer and head, complete and folded (${contract})`,
    parts,
  )
}

function row(cells: readonly Cell[], from: From, contract: Contract, top: number, tall: number, prompts: number): string[] {
  const wide = (WIDTH - LEFT - 24 - 2 * GAP) / 3
  const mass = (glance: Glance): number => seenFrom(glance, from)?.current ?? 0
  const before = cells.map(({ complete }) => 100 * mass(complete))
  const after = cells.map(({ folded }) => 100 * mass(folded))
  const change = after.map((value, index) => value - before[index]!)
  const most = Math.max(...before, ...after, Number.MIN_VALUE)
  const largest = Math.max(...change.map(Math.abs), Number.MIN_VALUE)
  const map = (
    column: number,
    title: string,
    values: readonly number[],
    paint: (value: number) => readonly [string, number],
  ): string[] =>
    grid(cells, values, paint, { left: LEFT + column * (wide + GAP), top: top + 62, wide, tall }, title, column === 0)
  return [
    text(LEFT, top + 16, `Mass on the current value's tokens, %, ${FROM_NAMES[from]} (means of ${prompts} prompts)`, {
      'font-weight': '600',
    }),
    ...map(0, `complete (darkest: ${number(most)} %)`, before, (value) => [MORE, value / most]),
    ...map(1, `folded, ${contract} (same scale)`, after, (value) => [MORE, value / most]),
    ...map(2, `folded less complete (darkest: ±${number(largest)})`, change, (value) => [
      value < 0 ? LESS : MORE,
      Math.abs(value) / largest,
    ]),
  ]
}

function grid(
  cells: readonly Cell[],
  values: readonly number[],
  paint: (value: number) => readonly [string, number],
  { left, top, wide, tall }: { readonly left: number; readonly top: number; readonly wide: number; readonly tall: number },
  title: string,
  named: boolean,
): string[] {
  const layers = [...new Set(cells.map(({ layer }) => layer))]
  const heads = [...new Set(cells.map(({ head }) => head))]
  const [width, height] = [wide / heads.length, tall / layers.length]
  const every = (count: number): number => Math.ceil(count / 12)
  const largestOf = Math.max(...values.map(Math.abs))
  const written = layers.length <= WRITTEN && heads.length <= WRITTEN
  return [
    text(left, top - 14, title, { class: 'kf-faint' }),
    ...cells.map(({ layer, head }, index) => {
      const value = values[index]!
      const [colour, strength] = paint(value)
      const [x, y] = [left + heads.indexOf(head) * width, top + layers.indexOf(layer) * height]
      const said = Math.abs(value) < NOTHING * largestOf ? '≈0' : number(value)
      const cell = element(
        'rect',
        {
          x,
          y,
          width: Math.max(0.5, width - 1),
          height: Math.max(0.5, height - 1),
          fill: colour,
          'fill-opacity': 0.05 + 0.8 * strength,
        },
        hint(`layer ${layer}, head ${head}: ${number(value)} %`),
      )
      return written ? cell + text(x + width / 2, y + height / 2 + 4.5, said, { 'text-anchor': 'middle' }) : cell
    }),
    ...heads.flatMap((head, index) =>
      index % every(heads.length) === 0
        ? [text(left + (index + 0.5) * width, top + tall + 17, String(head), { class: 'kf-faint', 'text-anchor': 'middle' })]
        : [],
    ),
    text(left + wide / 2, top + tall + 35, 'head', { class: 'kf-faint', 'text-anchor': 'middle' }),
    ...layers.flatMap((layer, index) =>
      index % every(layers.length) === 0
        ? [text(left - 7, top + (index + 0.5) * height + 4.5, String(layer), { class: 'kf-faint', 'text-anchor': 'end' })]
        : [],
    ),
    ...(named
      ? [
          element(
            'text',
            { class: 'kf-faint', 'text-anchor': 'middle', transform: `translate(${left - 34} ${top + tall / 2}) rotate(-90)` },
            escaped('layer'),
          ),
        ]
      : []),
  ]
}

function cellsOf(records: readonly PromptRecord[], contract: Contract): Cell[] {
  const rows = records.flatMap(({ comparisons }) => comparisons.flatMap((one) => (one.contract === contract ? one.heads : [])))
  const groups = new Map<string, typeof rows>()
  for (const one of rows) {
    const name = `${one.layer}/${one.head}`
    groups.set(name, [...(groups.get(name) ?? []), one])
  }
  return [...groups.values()].map((group) => ({
    layer: group[0]!.layer,
    head: group[0]!.head,
    complete: meanGlance(group.map(({ complete }) => complete))!,
    folded: meanGlance(group.map(({ folded }) => folded))!,
  }))
}

const number = (value: number): string => {
  const size = Math.abs(value)
  return size === 0
    ? '0'
    : size >= 0.01
      ? value.toFixed(size >= 10 ? 1 : 2).replace('-', '−')
      : value.toExponential(0).replace('-', '−').replace('e−', 'e-')
}
