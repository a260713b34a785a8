/** Draws the demo's figure from the longer record in the model's card: `node --import tsx bench/draw-demo.ts > docs/demo.svg`. */
import { readFileSync } from 'node:fs'
import { curves } from '../src/lab/figures/panels.js'
import { COLOURS, figure } from '../src/lab/figures/figure.js'

interface Row {
  readonly task: string
  readonly agent: string
  readonly updates: number
  readonly accuracy: number
  readonly interval: readonly [number, number]
  readonly tokensAfter: number
  readonly tail?: number
  readonly order?: string
  readonly words?: string
}

const record = JSON.parse(readFileSync(new URL('results/builtin.json', import.meta.url), 'utf8')) as {
  readonly model: { readonly name: string }
  readonly rows: readonly Row[]
}
const rows = record.rows.filter(
  ({ task, tail, order, words }) => task === 'pi-llm' && tail === undefined && order === undefined && words === undefined,
)
const AGENTS = [
  { name: 'plain', label: 'plain', colour: COLOURS.splice },
  { name: 'sculptor', label: 'with tools', colour: COLOURS.exact },
] as const

const panel = (
  title: string,
  of: (row: Row) => { readonly value: number; readonly interval: readonly [number, number] | null },
  y?: { readonly domain: readonly number[]; readonly ticks: number },
) =>
  curves({
    title,
    ...(y === undefined ? {} : { y }),
    sizes: [...new Set(rows.map(({ updates }) => updates))].sort((a, b) => a - b),
    names: { x: 'updates per key (n)', y: '' },
    curves: AGENTS.map(({ name, label, colour }) => ({
      colour,
      points: rows
        .filter(({ agent }) => agent === name)
        .sort((a, b) => a.updates - b.updates)
        .map((row) => ({ x: row.updates, ...of(row), says: `${label}, n = ${row.updates}: ${of(row).value.toFixed(1)}` })),
    })),
  })

/** The lowest percentage on the accuracy axis. It is 80 if all accuracies exceed 80 %, which the title then says. */
const floor = Math.min(...rows.map(({ interval }) => interval[0])) > 0.8 ? 80 : 0
process.stdout.write(
  figure({
    title: `PI-LLM on ${record.model.name}: accuracy and size of the answering step, plain and with context tools`,
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
