/** Draws what the demo measured: `npm start --silent -- --samples 6 --json | node --import tsx bench/draw-demo.ts > docs/demo.svg`. */
import { readFileSync } from 'node:fs'
import { curves } from '../src/figures/panels.js'
import { COLOURS, figure } from '../src/figures/figure.js'

interface Measured {
  readonly model: string
  readonly rows: readonly {
    readonly agent: string
    readonly n: number
    readonly accuracy: number
    readonly interval: readonly [number, number]
    readonly tokensAfter: number
  }[]
}

const { rows, model } = JSON.parse(readFileSync(0, 'utf8').trim().split('\n').at(-1)!) as Measured
const AGENTS = [
  { name: 'plain', label: 'plain', colour: COLOURS.splice },
  { name: 'sculptor', label: 'with tools', colour: COLOURS.exact },
] as const

const panel = (
  title: string,
  of: (row: Measured['rows'][number]) => { readonly value: number; readonly interval: readonly [number, number] | null },
  y?: { readonly domain: readonly number[]; readonly ticks: number },
) =>
  curves({
    title,
    ...(y === undefined ? {} : { y }),
    sizes: [...new Set(rows.map(({ n }) => n))].sort((a, b) => a - b),
    names: { x: 'updates per key (n)', y: '' },
    curves: AGENTS.map(({ name, label, colour }) => ({
      colour,
      points: rows
        .filter(({ agent }) => agent === name)
        .sort((a, b) => a.n - b.n)
        .map((row) => ({ x: row.n, ...of(row), says: `${label}, n = ${row.n}: ${of(row).value.toFixed(1)}` })),
    })),
  })

/** Of the accuracies, in percent: from 80 on where all of them lie there, which the title says. */
const floor = Math.min(...rows.map(({ interval }) => interval[0])) > 0.8 ? 80 : 0
process.stdout.write(
  figure({
    title: `PI-LLM on ${model}: accuracy and size of the answering step, plain and with context tools`,
    key: AGENTS.map(({ label, colour }) => ({ label, colour, dash: '' })),
    columns: 2,
    panels: [
      panel(
        `Last values right, %${floor > 0 ? ` (from ${floor} on)` : ''}, with 95 % intervals`,
        ({ accuracy, interval: [low, high] }) => ({ value: 100 * accuracy, interval: [100 * low, 100 * high] }),
        { domain: [floor, 100], ticks: 5 },
      ),
      panel('Tokens in the context of the answering step', ({ tokensAfter }) => ({ value: tokensAfter, interval: null })),
    ],
  }),
)
