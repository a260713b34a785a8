/** Draws the records of `bench -- traces`: `node --import tsx bench/draw-traces.ts > docs/traces.svg`. */
import { readFileSync } from 'node:fs'
import * as Plot from '@observablehq/plot'
import { FAINT, figure, MORE, PALETTE } from '../src/lab/figures/figure.js'
import { RESULTS } from './record.js'
import type { Row } from './runtime/traces.js'

interface TraceRecord {
  readonly sessions: number
  readonly requests: number
  readonly infinitePrefixCache: number
  readonly rows: readonly Row[]
}

const recordIn = (name: string) => JSON.parse(readFileSync(new URL(`${name}.json`, RESULTS), 'utf8')) as TraceRecord
/** `many`: many sessions on the built-in model. `real`: a few sessions on a real model. */
const many = recordIn('traces')
const real = recordIn('traces-smollm2')

const CAUSES = {
  cold: 'first prompts',
  append: 'appended',
  rewritten: 'rewritten from the system prompt on',
  edit: 'edited',
  compaction: 'compacted',
  evicted: 'computed before, but gone',
  returned: 'gone during a pause',
} as const
const colourOf = (cause: string) => PALETTE[Object.keys(CAUSES).indexOf(cause)]!
const serverOf = ({ server, contract }: Row) => (server === 'kvfold' ? `kvfold ${contract}` : server)
const nameOf = (row: Row) => `${serverOf(row)}, cells for ${row.sessions}`

const bars = many.rows.flatMap((row) =>
  Object.keys(CAUSES).map((cause) => ({
    row: nameOf(row),
    cause,
    share: row.byCause[cause as keyof Row['byCause']] / many.infinitePrefixCache,
  })),
)
const names = [...new Set(bars.map(({ row }) => row))]
const waits = real.rows.map((row) => ({
  row: serverOf(row),
  median: row.firstToken.p50 / 1000,
  long: row.firstToken.p95 / 1000,
}))
const barHeight = { insetTop: 3, insetBottom: 3 }

process.stdout.write(
  figure({
    title: "A coding agent's day, replayed",
    key: Object.entries(CAUSES).map(([cause, label]) => ({ label, colour: colourOf(cause) })),
    panels: [
      {
        title: `Prompt tokens computed for ${many.requests} requests; 1 is a prefix cache that never forgets`,
        height: 60 + 26 * names.length,
        rules: 'x',
        plot: {
          marginLeft: 230,
          x: { label: null },
          y: { domain: names, label: null },
          marks: [
            Plot.barX(bars, { y: 'row', x: 'share', fill: ({ cause }: { cause: string }) => colourOf(cause), ...barHeight }),
            Plot.ruleX([1], { strokeDasharray: '3 3' }),
          ],
        },
      },
      {
        title: `Seconds to the first token, ${real.requests} requests on SmolLM2 135M: median (green), 95th percentile`,
        height: 60 + 26 * waits.length,
        rules: 'x',
        plot: {
          marginLeft: 230,
          x: { label: null },
          y: { domain: waits.map(({ row }) => row), label: null },
          marks: [
            Plot.barX(waits, { y: 'row', x: 'long', fill: FAINT, ...barHeight }),
            Plot.barX(waits, { y: 'row', x: 'median', fill: MORE, ...barHeight }),
          ],
        },
      },
    ],
  }),
)
