/** Makes the report of a MemTool study: figures, tables and the page. */
import * as Plot from '@observablehq/plot'
import { figure, PALETTE, type Panel } from '../figures/figure.js'
import { count, percent, plural } from '../../runtime/figures/numbers.js'
import { reportPage } from '../figures/report.js'
import { left, right, table, type Table } from '../../runtime/figures/table.js'
import { fitted } from '../agent.js'
import type { MemToolIntervals } from './measures.js'
import type { MemToolResult } from './session.js'
import type { TurnRecord } from '../log.js'

export interface MemToolReport {
  readonly command: string
  readonly date: string
  readonly model: string
  /** `taught`: a script gave the answers, so the accuracy says nothing about any model. */
  readonly agent: 'taught' | 'model'
  readonly tools: number
  readonly results: readonly MemToolResult[]
}

export const nameOf = ({ way, placement, contract }: MemToolResult): string => `${way}, ${placement}, ${contract}`

const share = (value: number | null): string => (value === null ? '-' : value.toFixed(3))

/** Returns a measure as text, with its interval if the result has several sessions. */
function shareOf({ measures, intervals }: MemToolResult, measure: keyof MemToolIntervals, digits = 3): string {
  const [value, interval] = [measures[measure], intervals[measure]]
  const said = value === null ? '-' : value.toFixed(digits)
  return interval === null ? said : `${said} (${interval.map((end) => end.toFixed(digits)).join(' to ')})`
}

/** Makes the table of tokens: shown, reused, computed and new, and the ratio of computed to new. */
export const tokenTable = (results: readonly MemToolResult[]): Table =>
  table(
    [
      left('session'),
      ...['shown', 'reused', 'computed', 'new', 'computed / new', 'approximate', 'last prompt', 'tools', 'useless'].map(right),
    ],
    results.map((result) => {
      const { tokens, measures } = result
      return [
        nameOf(result),
        count(tokens.shown),
        percent(tokens.reused / Math.max(1, tokens.shown)),
        ...[tokens.computed, tokens.new].map(count),
        (tokens.computed / tokens.new).toFixed(2),
        ...[count(tokens.approximate), tokens.last === null ? '-' : count(tokens.last)],
        measures.meanTools.toFixed(1),
        measures.useless.toFixed(1),
      ]
    }),
  )

/** Makes the table on removals: how many of the added tools were removed, and how soon. */
export const removalTable = (results: readonly MemToolResult[]): Table =>
  table(
    [
      left('session'),
      ...['removal ratio', '3T', '3T unclipped', 'windows left out', 'residual +3', 'peaks', 'gone +1', '+2', '+3'].map(right),
    ],
    results.map((result) => {
      const m = result.measures
      return [
        nameOf(result),
        share(m.removalRatio),
        shareOf(result, 'avgRemovalRatio3T'),
        share(m.avgRemovalRatio3TUnclipped),
        String(m.windowsLeftOut),
        shareOf(result, 'avgResidual', 2),
        String(m.peaks),
        ...m.gone.map(share),
      ]
    }),
  )

/** Makes the table on correctness: whether the needed tools were loaded, and whether calls and answers were right. */
export const correctnessTable = (results: readonly MemToolResult[]): Table =>
  table(
    [
      left('session'),
      ...[
        'recall',
        'tool correctness',
        'with arguments',
        'task completion',
        'refused searches',
        'ghost calls',
        'did not fit',
      ].map(right),
    ],
    results.map((result) => {
      const m = result.measures
      return [
        nameOf(result),
        ...(['recall', 'toolCorrectness', 'callCorrectness', 'taskCompletion'] as const).map((one) => shareOf(result, one)),
        String(m.refusedSearches),
        String(m.ghosts),
        String(m.overflowed),
      ]
    }),
  )

/** Each contract's dash pattern. The first is solid and is drawn first, so that it shows through the gaps of dashed lines above it. */
const DASHES = { exact: '', splice: '8 6', blend: '2 4', auto: '8 4 2 4' } as const

/**
 * Draws, for each turn, the loaded tools, the tokens computed so far, and the tokens of the last prompt. A line's colour shows the way of
 * managing tools, its dashes the contract.
 */
export function memToolFigure({ results }: MemToolReport): string {
  const dashes = Object.keys(DASHES)
  const drawn = results.toSorted((one, other) => dashes.indexOf(one.contract) - dashes.indexOf(other.contract))
  const kinds = [...new Set(results.map(({ way, placement }) => `${way}, ${placement}`))]
  const look = ({ way, placement, contract }: MemToolResult) => ({
    colour: PALETTE[kinds.indexOf(`${way}, ${placement}`) % PALETTE.length]!,
    dash: DASHES[contract],
  })
  const turns = Math.max(...results.map(({ sessions }) => sessions.flat().length))
  const step = STEPS.find((each) => turns / each <= 12) ?? 100
  const ticks = Array.from({ length: turns }, (_, turn) => turn + 1).filter((turn) => turn === 1 || turn % step === 0)
  const panel = (title: string, label: string, values: (turns: readonly TurnRecord[]) => readonly (number | null)[]): Panel => ({
    title,
    height: 300,
    plot: {
      x: { label: 'turn', ticks, tickFormat: 'd' },
      y: { label, zero: true, nice: true, tickFormat: '~s' },
      marks: [
        Plot.ruleY([0], { strokeOpacity: 0.5 }),
        ...drawn.map((result) =>
          Plot.line(
            values(result.sessions.flat()).flatMap((value, turn) => (value === null ? [] : [[turn + 1, value]])),
            { stroke: look(result).colour, strokeDasharray: look(result).dash, strokeWidth: 2 },
          ),
        ),
      ],
    },
  })
  return figure({
    title: 'Tools and tokens by turn',
    below: 'Ways with equal values share one line. Several sessions of a way follow one after another.',
    key: results.map((result) => ({ label: nameOf(result), ...look(result) })),
    panels: [
      panel('Tools loaded at the end of each turn', 'tools', (turns) => turns.map(({ details }) => details['tools'] ?? 0)),
      panel('Tokens computed up to each turn', 'tokens', (turns) => running(turns.map(({ work }) => work.submitted))),
      panel('Tokens of the last prompt of each turn that fitted', 'tokens', (turns) =>
        turns.map((turn) => (fitted(turn) ? turn.tokens.after : null)),
      ),
    ],
  })
}

/** The possible distances between two ticks of the axis, in turns. */
const STEPS = [1, 2, 5, 10, 20, 50]

function running(numbers: readonly number[]): number[] {
  let sum = 0
  return numbers.map((number) => (sum += number))
}

/** Returns the report as one self-contained HTML page. */
export function memToolPage(report: MemToolReport): string {
  const { command, date, model, agent, tools, results } = report
  const mind =
    agent === 'taught'
      ? 'A script speaks for the model. The engine computes every prompt, and the tokens are those of its ledger. Correctness and completion are the script’s and say nothing about any model.'
      : 'The model itself answers. The right values are known, so completion is exact and needs no judge.'
  const several = results.some(({ sessions }) => sessions.length > 1)
  const notes = (...says: readonly string[]) => ({ says, look: 'notes' }) as const
  const [first] = results[0]?.sessions ?? []
  return reportPage({
    title: 'MemTool: tools that come and go',
    facts: [
      model,
      `${count(tools)} tools`,
      `${plural(results[0]?.sessions.length ?? 0, 'session')} of ${plural(first?.length ?? 0, 'turn')} each`,
      date,
    ],
    parts: [
      { says: [command], look: 'code' },
      { says: [mind], look: 'mind' },
      {
        heading: 'Tokens',
        parts: [
          tokenTable(results),
          notes(
            'New: tokens of text that no earlier prompt of the session showed. Reused: share of the shown tokens. Tools: mean number of loaded tools at the end of a turn. Useless: those of them that the last two turns did not call.',
          ),
          { svg: memToolFigure(report) },
        ],
      },
      {
        heading: 'Tools',
        parts: [
          removalTable(results),
          notes(
            '3T: tools removed / tools added, as a mean over windows of three turns, each at most 1. Unclipped: without this limit, as the paper prints it. Windows without additions have no value and are left out.',
            'Residual +3: mean number of tools in the three turns after a peak. A peak is a turn with more tools than both turns beside it. An agent that never adds tools has no peak.',
            'Gone +n: the share of the tools added in a turn that are not loaded n turns later.',
            ...(several ? ['Brackets: 95 % intervals; the bootstrap draws whole sessions.'] : []),
          ),
        ],
      },
      {
        heading: 'Answers',
        parts: [
          correctnessTable(results),
          notes(
            'Recall: the share of the tools that a turn needs that are loaded at its end. Ghost calls: calls of tools that are not loaded.',
          ),
        ],
      },
    ],
  })
}
