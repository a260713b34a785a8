/** The output of `kvfold eval`: a text per finished sample, the table at the end, and the line of JSON. */
import type { LogHeader } from '../../log.js'
import { type AccuracyRow, rowsOf, totalOf, totalsOf } from '../../accuracy.js'
import type { ItemResult } from '../../run/plan.js'
import { count, duration, percent } from '../../../runtime/figures/numbers.js'
import { type Column, number, table, terminal } from '../../../runtime/figures/table.js'

/** Describes a finished sample, for the progress line. */
export const resultText = (header: LogHeader, result: ItemResult): string =>
  `${header.tasks[result.task]?.title ?? ''} ${cellText(result.cell)}, ${result.agent}, ` +
  (result.kind === 'error' ? `not answered: ${result.message}` : percent(result.score.points, 0))

/** Describes a cell, such as `updates 64` or `needles 5, length 8,000`. Null means all cells, and gives `all`. */
export const cellText = (cell: AccuracyRow['cell']): string =>
  cell === null
    ? 'all'
    : Object.entries(cell)
        .map(([name, value]) => `${name} ${typeof value === 'number' ? count(value) : value}`)
        .join(', ')

/** Returns the table's lines: a row per task, cell, agent and contract, and a row over all cells if a task has several. */
export function tableLines(header: LogHeader, results: readonly ItemResult[], rule: string): string[] {
  const cells = rowsOf(results)
  const totals = totalsOf(results)
  const several = header.contracts.length > 1
  const rows = header.tasks.flatMap((_, task) => {
    const own = cells.filter((row) => row.task === task)
    const single = new Set(own.map(({ cell }) => JSON.stringify(cell))).size < 2
    return single ? own : [...own, ...totals.filter((row) => row.task === task)]
  })
  const place = ({ task, cell }: AccuracyRow) => `${task} ${JSON.stringify(cell)}`
  const isFirst = (row: AccuracyRow) => rows.findIndex((other) => place(other) === place(row)) === rows.indexOf(row)
  const tokens = (title: string, of: (row: AccuracyRow) => number | null) =>
    number<AccuracyRow>(title, (row) => (of(row) === null ? '-' : count(of(row)!)))
  const columns: Column<AccuracyRow>[] = [
    { title: 'task', text: (row) => (isFirst(row) ? header.tasks[row.task]!.title : '') },
    { title: 'cell', text: (row) => (isFirst(row) ? cellText(row.cell) : '') },
    { title: 'agent', text: (row) => agentText(header, row, several) },
    number('accuracy', ({ accuracy }) => (accuracy === null ? '-' : percent(accuracy))),
    number('95 %', ({ interval }) => (interval === null ? '-' : interval.map((end) => (end * 100).toFixed(1)).join(' .. '))),
    tokens('tokens before', ({ tokensBefore }) => tokensBefore),
    tokens('tokens after', ({ tokensAfter }) => tokensAfter),
    tokens('tokens shown', ({ tokensShown }) => tokensShown),
    tokens('tokens computed', ({ tokensComputed }) => tokensComputed),
    number('time', ({ milliseconds }) => (milliseconds === null ? '-' : duration(milliseconds))),
    number('samples', ({ samples }) => String(samples)),
    number('errors', ({ errors }) => String(errors)),
  ]
  return terminal(table(columns, rows, { opens: (row, before) => place(row) !== place(before) }), rule)
}

/** Names the row's agent, with a star if the model was not trained on the agent's prompts for this task. */
function agentText({ agents, tasks }: LogHeader, { agent, contract, task }: AccuracyRow, contracts: boolean): string {
  const found = agents.find((one) => one.agent === agent)
  const trained = found?.trainedTasks?.includes(tasks[task]!.task) ?? found?.trained ?? null
  return `${agent}${trained === false ? '*' : ''}${contracts ? ` (${contract})` : ''}`
}

/** Returns notes that explain the columns and warn against wrong conclusions. */
export function remarks(header: LogHeader, results: readonly ItemResult[]): string[] {
  const untrained = header.agents.some(({ trained }) => trained === false)
  const full = results.filter((result) => result.kind === 'sample' && result.details['overflowed'] === 1).length
  const failed = new Map<string, number>()
  for (const result of results) if (result.kind === 'error') failed.set(result.code, (failed.get(result.code) ?? 0) + 1)
  return [
    'The table has means per sample. before, after: tokens in context at the end of the first step and of the answer. shown, computed: tokens of all steps together. The accuracy leaves out errors, because they are not answers.',
    ...(untrained
      ? ["* The model was not trained for this agent's prompts on this task, so the accuracy says nothing about the agent."]
      : []),
    ...(header.judge === null ? [] : [`${header.judge} judged the answers.`]),
    ...(full === 0
      ? []
      : [`${full} of the answers are empty, because the agent filled its context before it answered. They count as wrong.`]),
    ...(failed.size === 0 ? [] : [`Errors: ${[...failed].map(([code, times]) => `${times} x ${code}`).join(', ')}.`]),
  ]
}

/**
 * Returns the object for the line of JSON. If the run had one task, agent and contract, the top level has the numbers over all samples.
 * Otherwise these fields are null, and only `cells` has numbers.
 */
export function machineLine(header: LogHeader, results: readonly ItemResult[], log: string): object {
  const totals = totalsOf(results)
  const [only] = totals
  const all = totals.length === 1 ? only : null
  const errors = totalOf(results)?.errors ?? 0
  return {
    accuracy: all?.accuracy ?? null,
    interval: all?.interval ?? null,
    tokensBefore: all?.tokensBefore ?? null,
    tokensAfter: all?.tokensAfter ?? null,
    tokensMost: all?.tokensMost ?? null,
    tokensShown: all?.tokensShown ?? null,
    tokensComputed: all?.tokensComputed ?? null,
    milliseconds: all?.milliseconds ?? null,
    samples: results.length - errors,
    errors,
    model: header.model.name,
    seed: header.seed,
    tasks: header.tasks.map(({ task, options }) => ({ task, options })),
    agents: header.agents.map(({ agent, trained, trainedTasks }) => ({
      agent,
      trained,
      ...(trainedTasks === undefined ? {} : { trainedTasks }),
    })),
    judge: header.judge,
    cells: rowsOf(results).map(({ task, ...row }) => ({ task: header.tasks[task]!.task, ...row })),
    log,
  }
}
