/** Owns the tables of cost: context, work and time, over all cells and cell by cell. */
import type { Measures } from '../measures.js'
import type { Summary } from '../summary.js'
import { count, Labels, percent, seconds } from './labels.js'
import { cellColumns, cellRows, conditionColumns, measured, opensCell, opensTask, wholeRows, type Row } from './rows.js'
import { NONE, table, type Column, type Table } from './table.js'

export function costTables(summary: Summary): Table[] {
  const labels = new Labels(summary)
  const [first, whole, marks] = [conditionColumns(labels), wholeRows(summary), { opens: opensTask }]
  return [
    table({ name: 'context', title: 'Context and work', notes: CONTEXT_NOTES }, [...first, ...contextColumns], whole, marks),
    table(
      { name: 'time', title: 'Time, and what a right answer costs', notes: TIME_NOTES },
      [...first, ...timeColumns],
      whole,
      marks,
    ),
    ...summary.tasks.flatMap(({ axes, slug }, task) => {
      const rows = cellRows(summary, task)
      if (axes.length === 0 || rows.length === 0) return []
      const said = { name: `context-${slug}`, title: `Context, work and time by cell: ${labels.task(task)}` }
      return [
        table(
          { ...said, notes: CONTEXT_NOTES, brief: ['Read as the tables of all cells.'] },
          [...cellColumns(axes, labels), ...contextColumns, secondsColumn],
          rows,
          { opens: opensCell(axes) },
        ),
      ]
    }),
  ]
}

const tokens = (name: string, title: string, of: (measures: Measures) => number): Column<Row> =>
  measured(
    name,
    title,
    (_row, measures) => of(measures),
    (_row, measures) => count(of(measures)),
  )

const contextColumns: Column<Row>[] = [
  tokens('context_before', 'before', ({ context }) => context.before),
  tokens('context_most', 'at most', ({ context }) => context.most),
  tokens('context_after', 'after', ({ context }) => context.after),
  measured(
    'context_kept',
    'after / before, %',
    (_row, { kept }) => kept,
    (_row, { kept }) => (kept === null ? NONE : percent(kept)),
  ),
  measured(
    'steps',
    'steps',
    (_row, { work }) => work.steps,
    (_row, { work }) => work.steps.toFixed(1),
  ),
  tokens('shown', 'shown', ({ work }) => work.shown),
  measured(
    'reused_share',
    'reused, %',
    (_row, { reused }) => reused,
    (_row, { reused }) => (reused === null ? NONE : percent(reused)),
  ),
  tokens('computed', 'computed', ({ work }) => work.submitted),
  tokens('generated', 'generated', ({ work }) => work.generated),
]

const time = (name: string, title: string, of: (measures: Measures) => number | null): Column<Row> =>
  measured(
    name,
    title,
    (_row, measures) => of(measures),
    (_row, measures) => {
      const value = of(measures)
      return value === null ? NONE : seconds(value)
    },
  )

const secondsColumn = time('milliseconds', 'time, s', ({ milliseconds }) => milliseconds.total)

const timeColumns: Column<Row>[] = [
  secondsColumn,
  time('prefill_milliseconds', 'prefill', ({ milliseconds }) => milliseconds.prefill),
  time('decode_milliseconds', 'decode', ({ milliseconds }) => milliseconds.decode),
  time('cache_milliseconds', 'cache', ({ milliseconds }) => milliseconds.cache),
  time('other_milliseconds', 'other', ({ milliseconds }) => milliseconds.other),
  time('milliseconds_per_right', 'time per right answer, s', ({ perRight }) => perRight?.milliseconds ?? null),
  measured(
    'computed_per_right',
    'tokens computed per right answer',
    (_row, { perRight }) => perRight?.submitted ?? null,
    (_row, { perRight }) => (perRight === null ? NONE : count(perRight.submitted)),
  ),
]

const CONTEXT_NOTES = [
  'Tokens, means over answered samples. Before, at most, after: everything in the context at the end of a step (system, tools, transcript, what was generated): of the first step, the largest, the one that answered.',
  'Shown, computed, generated: summed over the steps of a sample. Reused: share of the tokens shown that were in the cache already; computed: tokens submitted to the model, as the ledger has them.',
]
const TIME_NOTES = [
  'Seconds, means over answered samples. Prefill, decode and cache operations are from the ledger; other: the rest of the wall time, such as tools, retrieval and waiting for other samples of the run.',
  'Per right answer: what all answers took together, wrong ones included, over the sum of their points.',
]
