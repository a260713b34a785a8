/** Owns what all figures of a report share: colours of conditions, a legend that wraps, headings and row labels. */
import { element, escaped, hint, line, type Scale, text } from '../../../attention/figures/svg.js'
import type { AgentKind } from '../../agent.js'
import type { ConditionResult, Summary } from '../summary.js'
import { count } from '../tables/table.js'

export const WIDTH = 960
/** Numbers that are not ours. */
export const THEIRS = '#8b8b94'

/** Readable on white and on black. */
const AGENTS: Readonly<Record<AgentKind, string>> = {
  plain: '#71717a',
  sculptor: '#0d9488',
  'rag-bm25': '#ea580c',
  'rag-dense': '#ca8a04',
  memagent: '#3b82f6',
  mem0: '#a855f7',
}

/** For whatever has no colour of its own, such as tools. */
export const PALETTE: readonly string[] = ['#3b82f6', '#0d9488', '#ca8a04', '#a855f7', '#ea580c', '#db2777', '#65a30d', '#71717a']

const DASHES: readonly string[] = ['', '7 4', '2 3', '10 3 2 3']

export interface Look {
  readonly colour: string
  /** Sets conditions of one agent apart: contracts, settings, logs. */
  readonly dash: string
}

/** The same for a condition in all figures. */
export function lookOf({ agents, conditions }: Summary, condition: ConditionResult): Look {
  const kind = agents[condition.agent]!.agent
  const name = ({ variant, agent, contract }: ConditionResult): string => `${variant} ${agent} ${contract}`
  const same = [...new Set(conditions.filter(({ agent }) => agents[agent]!.agent === kind).map(name))]
  return { colour: AGENTS[kind], dash: DASHES[same.indexOf(name(condition)) % DASHES.length]! }
}

export interface Entry extends Partial<Pick<Look, 'dash'>> {
  readonly label: string
  readonly colour: string
}

const CHARACTER = 6.9

/** Lines of colours and what they stand for, as wide as the figure; `height` is what they take. */
export function legend(entries: readonly Entry[], top: number): { readonly parts: readonly string[]; readonly height: number } {
  let [x, row] = [20, 0]
  const parts = entries.flatMap(({ label, colour, dash }) => {
    const wide = 40 + label.length * CHARACTER
    if (x > 20 && x + wide > WIDTH - 20) [x, row] = [20, row + 1]
    const [from, y] = [x, top + row * 22]
    x += wide
    const mark =
      dash === undefined
        ? element('rect', { x: from, y: y - 10, width: 12, height: 12, rx: 2, fill: colour })
        : line(from - 4, y - 4.5, from + 16, y - 4.5, {
            class: '',
            stroke: colour,
            'stroke-width': 2.5,
            'stroke-dasharray': dash,
          })
    return [mark, text(from + 20, y, label)]
  })
  return { parts, height: entries.length === 0 ? 0 : (row + 1) * 22 }
}

/** A label that ends at `right`, cut to what fits into `wide`; a pointer that rests on it is shown all of it. */
export function rowLabel(right: number, y: number, label: string, wide: number, faint = false): string {
  const fits = Math.floor(wide / CHARACTER)
  const shown = label.length <= fits ? label : `${label.slice(0, fits - 1)}…`
  return element(
    'text',
    { x: right, y, class: faint ? 'kf-faint' : 'kf-ink', 'text-anchor': 'end' },
    escaped(shown) + (shown === label ? '' : hint(label)),
  )
}

/** Large numbers as people write them. */
export const ticks = ({ ticks: all }: Scale): Scale['ticks'] =>
  all.map(({ value, label }) => ({ value, label: value >= 1000 ? count(value) : label }))

/** A title and a line below it. */
export const heading = (left: number, top: number, title: string, below: string): string[] => [
  text(left, top, title, { 'font-weight': '600' }),
  ...(below === '' ? [] : [text(left, top + 18, below, { class: 'kf-faint' })]),
]

// What a figure of a report is: a drawing, or why there is none.

export interface Picture {
  /** File name without its ending. */
  readonly name: string
  readonly title: string
  readonly svg: string
}

export interface LeftOut {
  readonly title: string
  /** What the logs lack, as a sentence. */
  readonly why: string
}

export type Drawn = Picture | LeftOut

/** The drawing, where there is one: figures without data are empty text. */
export const drawnOr = (name: string, title: string, svg: string, why: string): Drawn =>
  svg === '' ? { title, why } : { name, title, svg }
