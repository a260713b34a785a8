/** Owns the record of the fleet on paper, and the figure of it. */
import * as Plot from '@observablehq/plot'
import { figure, type Panel, PALETTE, THEIRS } from '../../../src/lab/figures/figure.js'
import type { CostModel } from '../../../src/runtime/kv/cost-model.js'
import type { Origin } from '../../record.js'
import type { EngineOptions } from './engine.js'
import { POLICIES, type PolicyName } from './policies.js'
import type { Route, Run } from './real.js'
import type { Outcome } from './simulation.js'
import type { Found } from './sizing.js'

export interface Row extends Outcome {
  readonly engines: number
  readonly clients: number
  readonly policy: PolicyName
  readonly fronts: number
  /** Share of the prompts' tokens that one machine which forgets nothing would have, asked one after the other. */
  readonly bound: number
}

export interface SizingRow {
  readonly clients: number
  /** Milliseconds within which 95 % of the first tokens are to come. */
  readonly limit: number
  readonly by: Readonly<Record<'affinity' | 'random', Sized>>
}

type Sized = Found<{
  readonly engines: number
  readonly p95: number
  readonly reused: number
  readonly busy: number
  /** Requests a second. */
  readonly rate: number
}>

export interface RealRow {
  readonly route: Route
  readonly played: Run
  readonly simulated: Outcome
}

export interface FleetRecord extends Origin {
  /** What the rows of the simulation, and of its sizing, were made by last. */
  readonly simulated: Pick<Origin, 'command' | 'commit' | 'date'>
  readonly seed: number
  readonly speed: Pick<CostModel, 'prefill' | 'on'>
  readonly agents: object
  readonly rows: readonly Row[]
  readonly assumed: EngineOptions
  readonly sizing: readonly SizingRow[]
  readonly chats: object
  readonly real: readonly RealRow[]
}

export function drawn({ rows }: FleetRecord): string {
  const colours = new Map(
    POLICIES.map((policy, at) => [
      policy,
      policy === 'affinity' ? PALETTE[1]! : policy === 'random' ? THEIRS : PALETTE[(at + 3) % PALETTE.length]!,
    ]),
  )
  const shown = rows.filter(({ engines, fronts }) => engines > 1 && fronts === 1)
  const panel = (title: string, of: (row: Row) => number, y: Plot.ScaleOptions): Panel => ({
    title,
    height: 260,
    plot: {
      x: {
        label: 'engines',
        type: 'log',
        ticks: [...new Set(shown.map(({ engines }) => engines))],
        tickFormat: (value: number) => value.toLocaleString('en'),
      },
      y: { label: null, ticks: 5, ...y },
      marks: POLICIES.map((policy) =>
        Plot.line(
          shown.filter((row) => row.policy === policy),
          {
            x: 'engines',
            y: of,
            stroke: colours.get(policy)!,
            strokeWidth: policy === 'affinity' ? 2.4 : 1.6,
            marker: 'circle',
            title: () => policy,
          },
        ),
      ),
    },
  })
  return figure({
    title: 'Who decides where a request goes',
    below:
      'Coding agents that clear and compact, 8 for each engine. Simulated; three engines are run for real beside it (docs/fleet.md).',
    columns: 2,
    key: POLICIES.map((policy) => ({ label: policy, colour: colours.get(policy)!, dash: '' })),
    panels: [
      panel('Share of prompts that engines had', ({ cached, prompt }) => cached / prompt, { domain: [0, 1] }),
      panel('Seconds to the first token, 99 of 100 requests', ({ firstToken }) => firstToken.p99 / 1000, { zero: true }),
    ],
  })
}
