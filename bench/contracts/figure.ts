/** Owns the figure of the contracts: accuracy by updates per key, who folds, and contract; and what the folds computed. An SVG for light and dark. */
import { count } from '../../src/cli/figures.js'
import type { Folder, Score } from './accuracy.js'

const WIDTH = 1000
const HEIGHT = 400
const TOP = 104
const BOTTOM = HEIGHT - 58

/** Colours by way of folding: readable on white and on black, and apart from each other for most kinds of sight. */
const WAYS: Readonly<Record<string, { readonly label: string; readonly colour: string }>> = {
  whole: { label: 'nothing folded', colour: '#8b8b94' },
  exact: { label: 'exact', colour: '#0d9488' },
  splice: { label: 'splice', colour: '#ea580c' },
  'splice, gaps closed': { label: 'splice, gaps closed', colour: '#9333ea' },
  'blend 0.1': { label: 'blend 0.1', colour: '#7cc4ff' },
  'blend 0.2': { label: 'blend 0.2', colour: '#3b82f6' },
  'blend 0.3': { label: 'blend 0.3', colour: '#2563eb' },
}

interface Panel {
  readonly left: number
  readonly right: number
  readonly title: readonly string[]
  readonly scores: readonly Score[]
  /** Height of a value on the paper. */
  readonly up: (value: number) => number
  readonly ticks: readonly { readonly at: number; readonly label: string }[]
  readonly value: (score: Score) => number
  readonly interval?: (score: Score) => readonly [number, number]
}

/** Everything drawn; `scores` must not be empty. */
export function figure(scores: readonly Score[], model: string): string {
  const by = (folder: Folder) => scores.filter((score) => score.folder === folder)
  const folded = by('program').filter(({ way }) => way !== 'whole')
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="13">
<title>PI-LLM on ${model}: accuracy with 95 % intervals, and prompt tokens a fold computes, by contract</title>
<style>
.paper { fill: #ffffff } .ink { fill: #27272a } .faint { fill: #71717a } .rule { stroke: #e4e4e7 }
@media (prefers-color-scheme: dark) { .paper { fill: #0d1117 } .ink { fill: #e4e4e7 } .faint { fill: #a1a1aa } .rule { stroke: #30363d } }
</style>
<rect class="paper" width="${WIDTH}" height="${HEIGHT}" rx="6"/>
${legend(scores)}
${panel(accuracyPanel(50, 346, 'Folded by a program:', by('program')))}
${panel(accuracyPanel(402, 652, 'Folded by the model itself:', by('model')))}
${panel(costPanel(724, 976, 'Folded by a program:', folded))}
</svg>
`
}

function legend(scores: readonly Score[]): string {
  const ways = Object.keys(WAYS).filter((way) => scores.some((score) => score.way === way))
  let x = 50
  return ways
    .map((way) => {
      const { label, colour } = WAYS[way]!
      const at = x
      x += 30 + label.length * 7.2
      return `<circle cx="${at}" cy="26" r="5" fill="${colour}"/>${text(at + 10, 30.5, label, 'class="ink"')}`
    })
    .join('\n')
}

function accuracyPanel(left: number, to: number, who: string, scores: readonly Score[]): Panel {
  const least = Math.min(...scores.map(({ interval }) => interval[0]))
  const low = Math.max(0, Math.floor((least - 0.001) * 10) / 10)
  const step = 1 - low > 0.5 ? 0.25 : 1 - low > 0.2 ? 0.1 : 0.05
  const floor = 1 - Math.ceil((1 - low) / step - 1e-9) * step
  const ticks = Array.from({ length: Math.round((1 - floor) / step) + 1 }, (_, index) => {
    const at = 1 - index * step
    return { at, label: (at * 100).toFixed(0) }
  })
  const up = (value: number) => BOTTOM - ((value - floor) / (1 - floor)) * (BOTTOM - TOP)
  const title = [who, `last values right, %${floor > 0 ? ' (axis cut)' : ''}`]
  return {
    left,
    right: to,
    title,
    scores,
    up,
    ticks,
    value: ({ accuracy }) => accuracy,
    interval: ({ interval }) => interval,
  }
}

/** Powers of ten, because `exact` and `splice` are far apart. */
function costPanel(left: number, to: number, who: string, scores: readonly Score[]): Panel {
  const costs = scores.map(({ computed }) => computed)
  const low = Math.floor(Math.log10(Math.min(...costs)))
  const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...costs))))
  const ticks = Array.from({ length: high - low + 1 }, (_, index) => ({
    at: 10 ** (low + index),
    label: count(10 ** (low + index)),
  }))
  const up = (value: number) => BOTTOM - ((Math.log10(value) - low) / (high - low)) * (BOTTOM - TOP)
  const title = [who, 'prompt tokens computed for it']
  return { left, right: to, title, scores, up, ticks, value: ({ computed }) => computed }
}

/** A group for every n, and in it a place for every way. */
function panel({ left, right, title, scores, up, ticks, value, interval }: Panel): string {
  const sizes = [...new Set(scores.map(({ n }) => n))].sort((a, b) => a - b)
  const ways = Object.keys(WAYS).filter((way) => scores.some((score) => score.way === way))
  const wide = (right - left) / sizes.length
  const x = (score: Score) =>
    left + wide * (sizes.indexOf(score.n) + 0.14 + (0.72 * (ways.indexOf(score.way) + 0.5)) / ways.length)
  const parts = title.map((line, index) => text(left, TOP - 42 + 17 * index, line, 'class="ink" font-weight="600"'))
  for (const { at, label } of ticks)
    parts.push(
      `<line class="rule" x1="${left}" y1="${place(up(at))}" x2="${right}" y2="${place(up(at))}"/>`,
      text(left - 7, up(at) + 4.5, label, 'class="faint" text-anchor="end"'),
    )
  for (const [index, n] of sizes.entries())
    parts.push(text(left + wide * (index + 0.5), BOTTOM + 21, `n = ${n}`, 'class="ink" text-anchor="middle"'))
  parts.push(text((left + right) / 2, BOTTOM + 42, 'updates per key', 'class="faint" text-anchor="middle"'))
  for (const score of scores) {
    const { colour } = WAYS[score.way]!
    const bounds = interval?.(score)
    if (bounds !== undefined)
      parts.push(
        `<line x1="${place(x(score))}" y1="${place(up(bounds[0]))}" x2="${place(x(score))}" y2="${place(up(bounds[1]))}" stroke="${colour}" stroke-width="2.5" stroke-opacity="0.55" stroke-linecap="round"/>`,
      )
    parts.push(`<circle cx="${place(x(score))}" cy="${place(up(value(score)))}" r="4.5" fill="${colour}"/>`)
  }
  return parts.join('\n')
}

const place = (value: number): string => value.toFixed(1)
const text = (x: number, y: number, content: string, attributes: string): string =>
  `<text x="${place(x)}" y="${place(y)}" ${attributes}>${content}</text>`
