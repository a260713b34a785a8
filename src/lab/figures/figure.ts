/**
 * Draws a figure as one SVG that suits light and dark pages: panels by Observable Plot, under a title and a legend. Also defines the
 * colours of all figures.
 */
import * as Plot from '@observablehq/plot'
import { DOMParser } from 'linkedom/worker'
import type { Contract } from '../../runtime/core/contract.js'
import { escaped, printable } from './page.js'

// Below: the look of all figures: the colours of contracts, tools and texts, for light and dark pages.

/**
 * The colours of the contracts and of the complete prompt. They are readable on white and black, and most colour-blind readers can tell
 * them apart.
 */
export const COLOURS: Readonly<Record<Contract | 'complete', string>> = {
  complete: '#8b8b94',
  exact: '#0d9488',
  splice: '#ea580c',
  blend: '#3b82f6',
}
export const MORE = '#0d9488'
export const LESS = '#ea580c'
/** The colour of numbers quoted from the paper. */
export const THEIRS = '#8b8b94'
/** Colours for series that have no fixed colour, such as tools. */
export const PALETTE: readonly string[] = ['#3b82f6', '#0d9488', '#ca8a04', '#a855f7', '#ea580c', '#db2777', '#65a30d', '#71717a']

const INK = '#27272a'
export const PAPER = '#ffffff'
export const FAINT = '#6f6f78'
export const RULE = '#e4e4e7'

/** The SVG's own colours suit light pages, and every viewer shows them. In dark mode this style replaces some of them. */
const STYLE = `
.kf text { white-space: pre; font-variant-numeric: tabular-nums }
@media (prefers-color-scheme: dark) { @media not print { .kf { color: #e4e4e7 } .kf [fill="${PAPER}"] { fill: #0d1117 } .kf [fill="${FAINT}"] { fill: #a1a1aa } .kf [stroke="${FAINT}"] { stroke: #a1a1aa } .kf [stroke="${RULE}"] { stroke: #30363d } } }
`

export interface Panel {
  /** The title above the panel. `below`: a line of faint text under the title. */
  readonly title?: string
  readonly below?: string
  /** The panel's height with its axes, in SVG units. The figure is `WIDTH` units wide. */
  readonly height: number
  readonly plot: Plot.PlotOptions
  /** The axis whose ticks get grid lines; null: no grid lines. Default: y. */
  readonly rules?: 'x' | 'y' | null
}

export interface Picture {
  /** File name without extension. */
  readonly name: string
  readonly svg: string
}

/** An entry of the legend. With `dash` it shows a line ('' is a solid one), without it a square. */
export interface LegendEntry {
  readonly label: string
  readonly colour: string
  readonly dash?: string
}

export interface FigureOptions {
  readonly title: string
  readonly below?: string
  readonly key?: readonly LegendEntry[]
  /** Number of panels in a row. Default: 1. */
  readonly columns?: number
  readonly panels: readonly Panel[]
}

export const WIDTH = 960
const EDGE = 20
const TITLE = 28
const LINE = 20
const HEAD = 18
const GAP = 10
/** An estimated width of a letter in the legend, in SVG units. The text cannot be measured, because no browser is involved. */
const LETTER = 7
/** Pixels per em, the unit in which Plot limits a text's width. It exceeds the font size, because fonts vary. */
const EM = 14

interface FigureText {
  readonly x: number
  readonly y: number
  readonly text: string
  readonly look: 'title' | 'faint' | 'key'
  /** Width in pixels at which the text is cut off. */
  readonly wide: number
}

/**
 * Returns the figure as SVG; '' without panels. Texts may contain anything: they are escaped, and characters that XML forbids are replaced.
 */
export function figure({ title, below = '', key = [], columns = 1, panels }: FigureOptions): string {
  if (panels.length === 0) return ''
  const wide = WIDTH - 2 * EDGE
  const texts: FigureText[] = [{ x: EDGE, y: TITLE, text: title, look: 'title', wide }]
  if (below !== '') texts.push({ x: EDGE, y: TITLE + LINE, text: below, look: 'faint', wide })
  const marks = keyed(key, TITLE + (below === '' ? 1 : 2) * LINE + 10)
  texts.push(...marks.map(({ x, y, label }) => ({ x: x + 20, y, text: label, look: 'key' as const, wide })))
  let top = texts.at(-1)!.y + 14
  const width = WIDTH / columns
  const rows = Array.from({ length: Math.ceil(panels.length / columns) }, (_, at) =>
    panels.slice(columns * at, columns * (at + 1)),
  )
  const parts = rows.flatMap((row) => {
    const from = top
    const drawn = row.map(({ title: name, below: more = '', height, plot, rules = 'y' }, column) => {
      const x = column * width
      const { marginLeft = MARGINS.marginLeft } = plot
      const heads = [
        ...(name === undefined ? [] : [{ text: name, look: 'title' as const }]),
        { text: more, look: 'faint' as const },
      ]
      const lines = heads.filter(({ text }) => text !== '')
      texts.push(...lines.map((line, at) => ({ ...line, x: x + marginLeft, y: from + 14 + HEAD * at, wide: width - marginLeft })))
      const y = from + HEAD * lines.length
      top = Math.max(top, y + height)
      return `<g transform="translate(${x},${y})">${draw({ ...plot, width, height }, rules)}</g>`
    })
    top += GAP
    return drawn
  })
  const height = top
  const frame = draw({ width: WIDTH, height, margin: 0, ...OVERLAY, marks: [...keyMarks(marks), ...texts.map(textMark)] })
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" class="kf" viewBox="0 0 ${WIDTH} ${Math.round(height)}" role="img" ${FONT}>\n` +
    `<title>${escaped(title)}</title>\n<style>${STYLE}</style>\n<rect fill="${PAPER}" width="100%" height="100%" rx="6"/>\n` +
    `${frame}\n${parts.join('\n')}\n</svg>\n`
  )
}

const FONT = `font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="13" color="${INK}" fill="currentColor" text-anchor="middle"`
const MARGINS = { marginLeft: 76, marginRight: 24, marginTop: 16, marginBottom: 52 }
const OVERLAY = { axis: null, x: { type: 'identity' }, y: { type: 'identity' } } as const
const NAMES = { labelAnchor: 'center', labelArrow: 'none', tickSize: 0, tickPadding: 7 } as const

const document = new DOMParser().parseFromString('<svg xmlns="http://www.w3.org/2000/svg"/>', 'image/svg+xml')

/** Returns Plot's drawing without its svg element and style. */
function draw(options: Plot.PlotOptions, ruled: 'x' | 'y' | null = null): string {
  const axes = { x: { ...NAMES, labelOffset: 42, ...options.x }, y: { ...NAMES, labelOffset: 56, ...options.y } }
  // Plot's types need the browser's, which this project lacks. `DrawnNode` has the members that are used here.
  const ruler = { ticks: ruled === null ? [] : axes[ruled].ticks, stroke: RULE, strokeOpacity: 1 } as Plot.GridXOptions &
    Plot.GridYOptions
  const rules = ruled === null ? [] : [ruled === 'x' ? Plot.gridX(ruler) : Plot.gridY(ruler)]
  const marks = [...rules, ...(options.marks ?? [])]
  const svg = Plot.plot({ ...MARGINS, ...options, ...axes, marks, document }) as unknown as DrawnNode
  svg.querySelector('style')?.remove()
  return printable(svg.innerHTML).replace(/(?= aria-label="[xy]-axis)/gu, ` fill="${FAINT}"`)
}

interface DrawnNode {
  readonly innerHTML: string
  querySelector(name: string): { remove(): void } | null
}

/** Places the legend's entries side by side, and starts a new line where the figure's width ends. */
function keyed(entries: readonly LegendEntry[], top: number) {
  let [x, y] = [EDGE, top]
  return entries.map((entry) => {
    const wide = 40 + entry.label.length * LETTER
    if (x > EDGE && x + wide > WIDTH - EDGE) [x, y] = [EDGE, y + 22]
    const place = { ...entry, x, y }
    x += wide
    return place
  })
}

type PlacedEntry = ReturnType<typeof keyed>[number]

const keyMarks = (entries: readonly PlacedEntry[]): Plot.Markish[] => [
  Plot.rect(
    entries.filter(({ dash }) => dash === undefined),
    {
      x1: 'x',
      x2: ({ x }: PlacedEntry) => x + 12,
      y1: ({ y }: PlacedEntry) => y - 10,
      y2: ({ y }: PlacedEntry) => y + 2,
      fill: 'colour',
      rx: 2,
    },
  ),
  ...entries.flatMap(({ x, y, colour, dash }) =>
    dash === undefined
      ? []
      : [
          Plot.line(
            [
              [x - 1, y - 4.5],
              [x + 15, y - 4.5],
            ],
            { stroke: colour, strokeWidth: 2.5, strokeDasharray: dash },
          ),
        ],
  ),
]

const textMark = ({ text, look, x, y, wide }: FigureText): Plot.Markish =>
  Plot.text([text], {
    ...{ x: [x], y: [y], textAnchor: 'start', lineAnchor: 'bottom', textOverflow: 'ellipsis', lineWidth: wide / EM },
    ...(look === 'title' ? { fontWeight: 600 } : look === 'faint' ? { fill: FAINT } : {}),
  })

/**
 * Returns a scale for an axis that covers all values. It begins at 0. It is logarithmic if the largest value is more than `far` times the
 * smallest one above 0. It also reaches up to the values of `more`; a logarithmic one does not reach down to them.
 */
export function fitting(values: readonly number[], more: readonly number[] = [], far = 1000): Plot.ScaleOptions {
  const least = values.reduce((a, b) => (b > 0 ? Math.min(a, b) : a), Infinity)
  const most = values.reduce((a, b) => Math.max(a, b), 0)
  const top = more.reduce((a, b) => Math.max(a, b), most)
  if (most / least <= far)
    return { domain: [0, top > 0 ? top : 1], nice: 5, ticks: 5, ...(top < 1e-3 ? { tickFormat: '~e' } : {}) }
  const [low, high] = [Math.floor(Math.log10(least) + 1e-9), Math.ceil(Math.log10(top) - 1e-9)]
  const powers = Array.from({ length: Math.max(1, high - low) + 1 }, (_, at) => Number(`1e${low + at}`))
  const ticks = powers.filter((_, at) => at % Math.ceil(powers.length / 7) === 0)
  return {
    type: 'log',
    domain: [powers[0]!, powers.at(-1)!],
    clamp: true,
    ticks,
    tickFormat: (value: number) =>
      value < 0.01 || value > 1e5 ? `1e${Math.round(Math.log10(value))}` : value.toLocaleString('en-US'),
  }
}
