/** Builds the tables of results: accuracy and cost, over all cells and cell by cell. */
import type { Measures } from '../estimates.js'
import { byAxes, type ConditionResult, type MeasuredResult, type Summary } from '../summary.js'
import type { TaskCell } from '../../task.js'
import { count } from '../../../runtime/figures/numbers.js'
import {
  type DataColumn,
  dataTable,
  type DataTable,
  Labels,
  NONE,
  percent,
  points,
  probability,
  seconds,
  withInterval,
} from './labels.js'

// The rows of all result tables: a condition over all cells, or one cell of it.

export interface ResultRow {
  readonly condition: ConditionResult
  /** An empty object means all cells together. */
  readonly cell: TaskCell
  readonly result: MeasuredResult
}

export const wholeRows = ({ conditions }: Summary): ResultRow[] =>
  conditions.map((condition) => ({ condition, cell: {}, result: condition }))

export const opensTask = (row: ResultRow, before: ResultRow): boolean => row.condition.task !== before.condition.task

/** Returns the rows of a task sorted by cell, so that the conditions of one cell are together. */
export function cellRows({ conditions, tasks }: Summary, task: number): ResultRow[] {
  const own = conditions.filter((condition) => condition.task === task)
  const rows = own.flatMap((condition) => condition.cells.map((result): ResultRow => ({ condition, cell: result.cell, result })))
  const { axes } = tasks[task]!
  return rows
    .map((row, place) => ({ row, place }))
    .sort(
      (a, b) => byAxes(a.row.cell, b.row.cell, axes) || a.row.condition.variant - b.row.condition.variant || a.place - b.place,
    )
    .map(({ row }) => row)
}

export const opensCell =
  (axes: readonly string[]) =>
  (row: ResultRow, before: ResultRow): boolean =>
    byAxes(row.cell, before.cell, axes) !== 0

/** Returns the columns that name the task and the condition. */
export const conditionColumns = (labels: Labels): DataColumn<ResultRow>[] => [
  { name: 'task', title: 'task', value: ({ condition }) => labels.task(condition.task) },
  ...labels.columns<ResultRow>(({ condition }) => condition),
]

/** Returns the columns that name the cell and the condition. */
export const cellColumns = (axes: readonly string[], labels: Labels): DataColumn<ResultRow>[] => [
  ...axes.map((axis): DataColumn<ResultRow> => ({
    name: axis,
    title: axis,
    value: ({ cell }) => cell[axis] ?? null,
    text: ({ cell }) => (typeof cell[axis] === 'number' ? count(cell[axis]) : (cell[axis] ?? NONE)),
    align: 'right',
  })),
  ...labels.columns<ResultRow>(({ condition }) => condition),
]

type Of<T> = (row: ResultRow, measures: Measures) => T

/** Returns a column whose values exist only for rows with an answered sample. */
export const measured = (
  name: string,
  title: string | null,
  value: Of<number | string | null>,
  text?: Of<string>,
): DataColumn<ResultRow> => ({
  name,
  title,
  align: 'right',
  value: (row) => (row.result.measures === null ? null : value(row, row.result.measures)),
  ...(text === undefined ? {} : { text: (row) => (row.result.measures === null ? NONE : text(row, row.result.measures)) }),
})

// The tables of accuracy: over all cells and cell by cell, with intervals and the tests against the baseline.

export function accuracyTables(summary: Summary): DataTable[] {
  const labels = new Labels(summary)
  const whole = wholeRows(summary)
  return [
    dataTable(
      { name: 'accuracy', title: 'Accuracy', notes: accuracyNotes(summary, whole) },
      [...conditionColumns(labels), ...answeredColumns, ...accuracyColumns(summary, labels)],
      whole,
      { opens: opensTask },
    ),
    ...summary.tasks.flatMap(({ axes, slug }, task) => {
      const rows = cellRows(summary, task)
      if (axes.length === 0 || rows.length === 0) return []
      const said = { name: `accuracy-${slug}`, title: `Accuracy by cell: ${labels.task(task)}` }
      const brief = ['Read as the table of all cells.', ...family(rows)]
      return [
        dataTable(
          { ...said, notes: accuracyNotes(summary, rows), brief },
          [...cellColumns(axes, labels), ...answeredColumns.slice(0, 1), ...accuracyColumns(summary, labels)],
          rows,
          { opens: opensCell(axes) },
        ),
      ]
    }),
  ]
}

const answeredColumns: DataColumn<ResultRow>[] = [
  {
    name: 'answered',
    title: 'answered',
    align: 'right',
    value: ({ result }) => result.measures?.answered ?? 0,
    text: ({ condition, cell, result }) =>
      Object.keys(cell).length > 0
        ? String(result.measures?.answered ?? 0)
        : `${result.measures?.answered ?? 0} of ${condition.planned}`,
  },
  { name: 'planned', title: null, value: ({ condition }) => condition.planned },
]

function accuracyColumns({ conditions }: Summary, labels: Labels): DataColumn<ResultRow>[] {
  const against =
    (of: (comparison: NonNullable<MeasuredResult['against']>) => number | string | boolean | null) => (row: ResultRow) =>
      row.result.against === null ? null : of(row.result.against)
  const said = (of: (comparison: NonNullable<MeasuredResult['against']>) => string) => (row: ResultRow) =>
    row.result.against === null ? NONE : of(row.result.against)
  return [
    { name: 'errors', title: 'errors', align: 'right', value: ({ result }) => result.errors },
    { name: 'accuracy', title: null, value: ({ result }) => result.measures?.accuracy.value ?? null },
    { name: 'accuracy_low', title: null, value: ({ result }) => result.measures?.accuracy.interval[0] ?? null },
    { name: 'accuracy_high', title: null, value: ({ result }) => result.measures?.accuracy.interval[1] ?? null },
    { name: 'accuracy_interval', title: null, value: ({ result }) => result.measures?.accuracy.method ?? null },
    {
      ...measured(
        '',
        'accuracy, %',
        () => null,
        (_row, { accuracy }) => withInterval(accuracy),
      ),
      csv: null,
    },
    { name: 'compared_with', title: null, value: against((one) => labels.condition(conditions[one.with]!)) },
    { name: 'difference', title: null, value: against(({ difference }) => difference.value) },
    { name: 'difference_low', title: null, value: against(({ difference }) => difference.interval?.[0] ?? null) },
    { name: 'difference_high', title: null, value: against(({ difference }) => difference.interval?.[1] ?? null) },
    {
      ...{ name: '', title: 'difference, points', align: 'right', csv: null, value: () => null },
      text: said(({ difference: { value, interval } }) =>
        interval === null ? points(value) : `${points(value)} [${points(interval[0])}, ${points(interval[1])}]`,
      ),
    },
    {
      name: 'pairs',
      title: 'pairs',
      align: 'right',
      value: against(({ test }) => test.pairs),
      text: said(({ test }) => String(test.pairs)),
    },
    { name: 'better', title: null, value: against(({ test }) => test.better) },
    { name: 'worse', title: null, value: against(({ test }) => test.worse) },
    {
      ...{ name: '', title: 'better, worse', align: 'right', csv: null, value: () => null },
      text: said(({ test }) => `${test.better}, ${test.worse}`),
    },
    {
      name: 'test',
      title: 'test',
      value: against(({ test }) => test.test),
      text: said(({ test }) => (test.test === 'mcnemar' ? 'McNemar' : 'sign flips')),
    },
    { name: 'test_exact', title: null, value: against(({ test }) => test.exact) },
    {
      name: 'p',
      title: 'p',
      align: 'right',
      value: against(({ test }) => test.p),
      text: said(({ test }) => probability(test.p)),
    },
    {
      name: 'p_holm',
      title: 'p, Holm',
      align: 'right',
      value: against(({ holm }) => holm),
      text: said(({ holm }) => probability(holm)),
    },
  ]
}

/** Returns the note that says over how many comparisons p is corrected; none when there are no comparisons. */
function family(rows: readonly ResultRow[]): string[] {
  const comparisons = rows.filter(({ result }) => result.against !== null).length
  return comparisons === 0 ? [] : [`p, Holm: corrected for the comparisons of this table, ${comparisons} in all.`]
}

function accuracyNotes({ agents, baseline }: Summary, rows: readonly ResultRow[]): string[] {
  const compared = rows.flatMap(({ result }) => result.against ?? [])
  const methods = new Set(rows.flatMap(({ result }) => result.measures?.accuracy.method ?? []))
  const tests = new Set(compared.map(({ test }) => test.test))
  const name = agents.find(({ agent }) => agent === baseline.agent)?.title ?? baseline.agent
  return [
    'Accuracy is the mean of the points of answered samples; errors are samples that could not be answered and are no wrong answers.',
    ...(methods.has('wilson')
      ? [
          'Brackets after accuracy: 95 % interval; Wilson where a sample is right or wrong; where all samples have the same points, Wilson over samples.',
        ]
      : []),
    ...(methods.has('bootstrap')
      ? [
          'Where points are partial the interval is a bootstrap over samples, because questions of one sample are not independent; with few samples it is a little too narrow.',
        ]
      : []),
    ...(compared.length === 0
      ? []
      : [
          `Difference: to ${name}${baseline.contract === null ? '' : ` under ${baseline.contract}`} on the same samples, with a 95 % bootstrap interval over pairs; pairs: samples that both answered, and in how many of them this agent has more points, and fewer.`,
          ...(tests.has('mcnemar') ? ['McNemar: exact, two-sided, where every answer of the pairs is right or wrong.'] : []),
          ...(tests.has('sign-flip')
            ? [
                'Sign flips: two-sided permutation of the mean difference of points; all signs up to 16 pairs that differ, 20,000 draws beyond.',
              ]
            : []),
          ...family(rows),
        ]),
    ...(rows.some(({ condition }) => condition.trained === false) ? [UNTRAINED] : []),
  ]
}

/** The note below every table with the accuracy of an untrained agent. */
const UNTRAINED =
  "Untrained: the model was not trained for this agent's prompts on this task; its accuracy says nothing about the method."

// The tables of cost: context, work and time, over all cells and cell by cell.

export function costTables(summary: Summary): DataTable[] {
  const labels = new Labels(summary)
  const [first, whole, marks] = [conditionColumns(labels), wholeRows(summary), { opens: opensTask }]
  return [
    dataTable({ name: 'context', title: 'Context and work', notes: CONTEXT_NOTES }, [...first, ...contextColumns], whole, marks),
    dataTable(
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
        dataTable(
          { ...said, notes: CONTEXT_NOTES, brief: ['Read as the tables of all cells.'] },
          [...cellColumns(axes, labels), ...contextColumns, secondsColumn],
          rows,
          { opens: opensCell(axes) },
        ),
      ]
    }),
  ]
}

const tokens = (name: string, title: string, of: (measures: Measures) => number): DataColumn<ResultRow> =>
  measured(
    name,
    title,
    (_row, measures) => of(measures),
    (_row, measures) => count(of(measures)),
  )

const contextColumns: DataColumn<ResultRow>[] = [
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

const time = (name: string, title: string, of: (measures: Measures) => number | null): DataColumn<ResultRow> =>
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

const timeColumns: DataColumn<ResultRow>[] = [
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
