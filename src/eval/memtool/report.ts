/** Owns the report of a MemTool study: its figures, its tables and the page that has them, the paper's numbers apart from ours. */
import * as Plot from '@observablehq/plot'
import { figure, type Panel } from '../../figures/figure.js'
import { count, percent } from '../../figures/numbers.js'
import { escaped, page } from '../../figures/page.js'
import { html, left, right, table, type Table } from '../../figures/table.js'
import { PALETTE } from '../../figures/theme.js'
import { PAPER_RESULTS } from './paper-results.js'
import type { MemToolResult } from './session.js'

export interface MemToolReport {
  readonly command: string
  readonly date: string
  readonly model: string
  /** `taught`: nothing of the accuracy is a model's. */
  readonly agent: 'taught' | 'model'
  readonly tools: number
  readonly results: readonly MemToolResult[]
}

export const nameOf = ({ way, placement, contract }: MemToolResult): string => `${way}, ${placement}, ${contract}`

const share = (value: number | null): string => (value === null ? '-' : value.toFixed(3))

/** Tokens of every session, and how often more were computed than were new. */
export const tokenTable = (results: readonly MemToolResult[]): Table =>
  table(
    [
      left('session'),
      ...['shown', 'computed', 'new', 'computed / new', 'approximate', 'last prompt', 'tools', 'useless'].map(right),
    ],
    results.map((result) => {
      const { tokens, measures } = result
      const numbers = [tokens.shown, tokens.computed, tokens.new]
      return [
        nameOf(result),
        ...numbers.map(count),
        (tokens.computed / tokens.new).toFixed(2),
        ...[tokens.approximate, tokens.last].map(count),
        measures.meanTools.toFixed(1),
        measures.useless.toFixed(1),
      ]
    }),
  )

export const measureTable = (results: readonly MemToolResult[]): Table =>
  table(
    [
      left('session'),
      ...['removal ratio', '3T', '3T unclipped', 'windows left out', 'residual +3', 'peaks'].map(right),
      ...['gone +1', '+2', '+3', 'recall', 'tool correctness', 'with arguments', 'task completion', 'refused', 'ghosts'].map(
        right,
      ),
    ],
    results.map((result) => {
      const m = result.measures
      return [
        nameOf(result),
        ...[m.removalRatio, m.avgRemovalRatio3T, m.avgRemovalRatio3TUnclipped].map(share),
        String(m.windowsLeftOut),
        m.avgResidual === null ? '-' : m.avgResidual.toFixed(2),
        String(m.peaks),
        ...m.gone.map(share),
        ...[m.recall, m.toolCorrectness, m.callCorrectness, m.taskCompletion].map(share),
        String(m.refusedSearches),
        String(m.ghosts),
      ]
    }),
  )

/** By turn: tools at its end; tokens computed, summed up to it. */
export function memToolFigure({ results }: MemToolReport): string {
  const colour = (index: number) => PALETTE[index % PALETTE.length]!
  const panel = (title: string, label: string, values: (result: MemToolResult) => readonly number[]): Panel => ({
    title,
    height: 300,
    plot: {
      x: { label: 'turn' },
      y: { label, zero: true, nice: true, tickFormat: 's' },
      marks: [
        Plot.ruleY([0], { strokeOpacity: 0.5 }),
        ...results.map((result, index) =>
          Plot.line(
            values(result).map((value, turn) => [turn + 1, value]),
            { stroke: colour(index), strokeWidth: 2 },
          ),
        ),
      ],
    },
  })
  return figure({
    title: 'Tools and tokens by turn',
    key: results.map((result, index) => ({ label: nameOf(result), colour: colour(index) })),
    panels: [
      panel('Tools loaded at the end of each turn', 'tools', ({ turns }) => turns.map(({ details }) => details['tools'] ?? 0)),
      panel('Tokens computed up to each turn', 'tokens', ({ turns }) => running(turns.map(({ work }) => work.submitted))),
      panel('Tokens of the last prompt of each turn', 'tokens', ({ turns }) => turns.map(({ tokens }) => tokens.after)),
    ],
  })
}

function running(numbers: readonly number[]): number[] {
  let sum = 0
  return numbers.map((number) => (sum += number))
}

/** One file that needs nothing else. */
export function memToolPage(report: MemToolReport): string {
  const { command, date, model, agent, tools, results } = report
  const mind =
    agent === 'taught'
      ? 'A script says what the model is to say; every prompt is computed by the engine, and the tokens are those of its ledger. Correctness and completion are the script’s and say nothing about any model.'
      : 'The model itself answers. Values are known, so completion is exact, without a judge.'
  const theirs = table(
    [left('model'), ...['autonomous', 'workflow', 'hybrid'].map(right)],
    PAPER_RESULTS.map(([name, ...modes]) => [name, ...modes.map((mode) => mode ?? 'not given')]),
    { theirs: () => true },
  )
  return page(
    'MemTool: tools that come and go',
    [
      `<h1>MemTool: tools that come and go</h1>`,
      `<p class="faint">${escaped(model)}, ${count(tools)} tools, ${count(results[0]?.turns.length ?? 0)} turns, ${escaped(date)}</p>`,
      `<pre>${escaped(command)}</pre><div class="mind">${escaped(mind)}</div>`,
      `<h2>Tokens</h2>${html(tokenTable(results))}`,
      `<p class="notes">New: tokens of text that no prompt of the session had shown before. Of the tokens shown in a session ${escaped(reuse(results))} were reused.</p>`,
      `<figure>${memToolFigure(report)}</figure>`,
      `<h2>Tools</h2>${html(measureTable(results))}`,
      '<ul class="notes"><li>3T: mean over windows of three turns of tools removed / added, each at most 1; unclipped as printed. Windows without additions cannot be said and are left out.</li>',
      '<li>Residual +3: mean tools in the three turns after a peak, a turn with more tools than both beside it. An agent that never adds has no peak.</li>',
      '<li>Gone +n: of the tools added in a turn, the share that is not loaded n turns later.</li></ul>',
      '<h2>The paper’s table</h2><p class="notes">Avg Removal Ratio 3T / Avg Residual 3T / Tool Correctness / Task Completion of other models on data that is not public (MemTool, table 2); one run each, no intervals, no tokens. Not comparable with the rows above beyond the definitions.</p>',
      html(theirs),
    ].join('\n'),
  )
}

const reuse = (results: readonly MemToolResult[]): string =>
  results.map((result) => `${percent(result.tokens.reused / Math.max(1, result.tokens.shown))} (${nameOf(result)})`).join(', ')
