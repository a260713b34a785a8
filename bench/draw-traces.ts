/** Draws the record of `bench -- traces`: `node --import tsx bench/draw-traces.ts > docs/traces.svg`. */
import { readFileSync } from 'node:fs'
import * as Plot from '@observablehq/plot'
import { figure, PALETTE } from '../src/lab/figures/figure.js'
import type { Row } from './runtime/traces.js'

const record = JSON.parse(readFileSync(new URL('results/traces.json', import.meta.url), 'utf8')) as {
  readonly sessions: number
  readonly requests: number
  readonly prompts: number
  readonly infinitePrefixCache: number
  readonly rows: readonly Row[]
}

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
const nameOf = ({ server, contract, tiers, sessions }: Row) =>
  `${server.replace(/ .*/, '')}${server.startsWith('kvfold') ? ` ${contract}` : ''}${tiers === 'none' ? ', no tier' : tiers === 'disk' ? ', disk' : ''}, cells for ${sessions}`

const bars = record.rows.flatMap((row) =>
  Object.keys(CAUSES).map((cause) => ({
    row: nameOf(row),
    cause,
    share: row.byCause[cause as keyof Row['byCause']] / record.infinitePrefixCache,
  })),
)
const names = [...new Set(bars.map(({ row }) => row))]

process.stdout.write(
  figure({
    title: `Prompt tokens computed in ${record.sessions} sessions of a coding agent, as a multiple of a prefix cache that never forgets`,
    key: Object.entries(CAUSES).map(([cause, label]) => ({ label, colour: colourOf(cause) })),
    panels: [
      {
        height: 60 + 26 * names.length,
        rules: 'x',
        plot: {
          marginLeft: 230,
          x: { label: null },
          y: { domain: names, label: null },
          marks: [
            Plot.barX(bars, {
              y: 'row',
              x: 'share',
              fill: ({ cause }: { cause: string }) => colourOf(cause),
              insetTop: 3,
              insetBottom: 3,
            }),
            Plot.ruleX([1], { strokeDasharray: '3 3' }),
          ],
        },
      },
    ],
  }),
)
