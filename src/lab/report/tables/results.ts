/** Makes the tables of accuracy and of cost, each over all cells and cell by cell. */
import type { Measures } from '../estimates.js'
import { byAxes, type ConditionResult, type MeasuredResult, type Summary } from '../summary.js'
import type { TaskCell } from '../../task.js'
import { count } from '../../../runtime/figures/numbers.js'
import {
  amount,
  type CellValue,
  type DataColumn,
  dataTable,
  type DataTable,
  inCsv,
  NONE,
  onPaper,
} from '../../figures/data-table.js'
import { Labels, percent, points, probability, seconds, withInterval } from './labels.js'

// Below: the rows of all result tables. A row is a condition over all its cells, or one cell of it.

export interface ResultRow {
  readonly condition: ConditionResult
  /** The cell; an empty object for all cells together. */
  readonly cell: TaskCell
  readonly result: MeasuredResult
}

export const wholeRows = ({ conditions }: Summary): ResultRow[] =>
  conditions.map((condition) => ({ condition, cell: {}, result: condition }))

export const opensTask = (row: ResultRow, before: ResultRow): boolean => row.condition.task !== before.condition.task

/** Returns a task's rows sorted by cell, so that the conditions of a cell are together. */
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

export const conditionColumns = (labels: Labels): DataColumn<ResultRow>[] => [
  { name: 'task', title: 'task', value: ({ condition }) => labels.task(condition.task) },
  ...labels.columns<ResultRow>(({ condition }) => condition),
]

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

/** Returns a column with a measure. Rows without an answered sample are empty there. */
export const measured = (
  name: string,
  title: string,
  value: (measures: Measures) => number | null,
  text: (value: number) => string,
): DataColumn<ResultRow> => {
  const of = ({ result }: ResultRow) => (result.measures === null ? null : value(result.measures))
  return amount(name, title, of, (row) => {
    const found = of(row)
    return found === null ? NONE : text(found)
  })
}

// Below: the tables of accuracy, with intervals and tests against the baseline, over all cells and cell by cell.

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
      const brief = ['Read this table like the table of all cells.', ...family(rows)]
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
  amount(
    'answered',
    'answered',
    ({ result }) => result.measures?.answered ?? 0,
    ({ condition, cell, result }) =>
      `${result.measures?.answered ?? 0}${Object.keys(cell).length > 0 ? '' : ` of ${condition.planned}`}`,
  ),
  inCsv('planned', ({ condition }) => condition.planned),
]

function accuracyColumns({ conditions }: Summary, labels: Labels): DataColumn<ResultRow>[] {
  type Against = NonNullable<MeasuredResult['against']>
  const against =
    <T, None>(of: (comparison: Against) => T, none: None) =>
    ({ result }: ResultRow): T | None =>
      result.against === null ? none : of(result.against)
  const compared = (name: string, of: (comparison: Against) => CellValue) => inCsv(name, against(of, null))
  const told = (title: string, of: (comparison: Against) => string) => onPaper(title, against(of, NONE))
  const both = (name: string, title: string, of: (comparison: Against) => CellValue, text: (comparison: Against) => string) =>
    amount(name, title, against(of, null), against(text, NONE))
  const accuracy = (name: string, of: (accuracy: Measures['accuracy']) => CellValue) =>
    inCsv<ResultRow>(name, ({ result }) => (result.measures === null ? null : of(result.measures.accuracy)))
  return [
    amount('errors', 'errors', ({ result }) => result.errors),
    accuracy('accuracy', ({ value }) => value),
    accuracy('accuracy_low', ({ interval }) => interval[0]),
    accuracy('accuracy_high', ({ interval }) => interval[1]),
    accuracy('accuracy_interval', ({ method }) => method),
    onPaper('accuracy, %', ({ result }) => (result.measures === null ? NONE : withInterval(result.measures.accuracy))),
    compared('compared_with', (one) => labels.condition(conditions[one.with]!)),
    compared('difference', ({ difference }) => difference.value),
    compared('difference_low', ({ difference }) => difference.interval?.[0] ?? null),
    compared('difference_high', ({ difference }) => difference.interval?.[1] ?? null),
    told('difference, points', ({ difference: { value, interval } }) =>
      interval === null ? points(value) : `${points(value)} [${points(interval[0])}, ${points(interval[1])}]`,
    ),
    both(
      'pairs',
      'pairs',
      ({ test }) => test.pairs,
      ({ test }) => String(test.pairs),
    ),
    compared('better', ({ test }) => test.better),
    compared('worse', ({ test }) => test.worse),
    told('better, worse', ({ test }) => `${test.better}, ${test.worse}`),
    {
      ...both(
        'test',
        'test',
        ({ test }) => test.test,
        ({ test }) => (test.test === 'mcnemar' ? 'McNemar' : 'sign flips'),
      ),
      align: 'left',
    },
    compared('test_exact', ({ test }) => test.exact),
    both(
      'p',
      'p',
      ({ test }) => test.p,
      ({ test }) => probability(test.p),
    ),
    both(
      'p_holm',
      'p, Holm',
      ({ holm }) => holm,
      ({ holm }) => probability(holm),
    ),
  ]
}

/** Returns a note on the number of comparisons for which p is corrected; nothing without comparisons. */
function family(rows: readonly ResultRow[]): string[] {
  const comparisons = rows.filter(({ result }) => result.against !== null).length
  return comparisons === 0 ? [] : [`p, Holm: corrected for all ${comparisons} comparisons of this table.`]
}

function accuracyNotes({ agents, baseline }: Summary, rows: readonly ResultRow[]): string[] {
  const compared = rows.flatMap(({ result }) => result.against ?? [])
  const methods = new Set(rows.flatMap(({ result }) => result.measures?.accuracy.method ?? []))
  const tests = new Set(compared.map(({ test }) => test.test))
  const name = agents.find(({ agent }) => agent === baseline.agent)?.title ?? baseline.agent
  return [
    'Accuracy is the mean of the points of answered samples. Errors are samples without an answer; they do not count as wrong.',
    ...(methods.has('wilson')
      ? [
          'Brackets after accuracy: 95 % interval. It is Wilson’s interval where every sample is right or wrong, and also where all samples have the same points.',
        ]
      : []),
    ...(methods.has('bootstrap')
      ? [
          'Where points are partial, the interval is a bootstrap over samples, because questions of one sample are not independent. With few samples it is a little too narrow.',
        ]
      : []),
    ...(compared.length === 0
      ? []
      : [
          `Difference: to ${name}${baseline.contract === null ? '' : ` under ${baseline.contract}`} on the same samples, with a 95 % bootstrap interval over pairs. Pairs: samples that both answered, then the number where this agent has more points, then the number where it has fewer.`,
          ...(tests.has('mcnemar') ? ['McNemar: exact and two-sided, for pairs whose answers are all right or wrong.'] : []),
          ...(tests.has('sign-flip')
            ? [
                'Sign flips: two-sided permutation test of the mean difference of points. It tries all signs for up to 16 pairs that differ, and 20,000 draws for more.',
              ]
            : []),
          ...family(rows),
        ]),
    ...(rows.some(({ condition }) => condition.trained === false) ? [UNTRAINED] : []),
  ]
}

/** The note below tables that have an agent whose prompts the model was not trained on. */
const UNTRAINED =
  "Untrained: the model was not trained for this agent's prompts on this task; its accuracy says nothing about the method."

// Below: the tables of cost: context, work and time, over all cells and cell by cell.

export function costTables(summary: Summary): DataTable[] {
  const labels = new Labels(summary)
  const [first, whole, marks] = [conditionColumns(labels), wholeRows(summary), { opens: opensTask }]
  return [
    dataTable({ name: 'context', title: 'Context and work', notes: CONTEXT_NOTES }, [...first, ...contextColumns], whole, marks),
    dataTable(
      { name: 'time', title: 'Time, and the cost of a right answer', notes: TIME_NOTES },
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
          { ...said, notes: CONTEXT_NOTES, brief: ['Read this table like the tables of all cells.'] },
          [...cellColumns(axes, labels), ...contextColumns, secondsColumn],
          rows,
          { opens: opensCell(axes) },
        ),
      ]
    }),
  ]
}

const contextColumns: DataColumn<ResultRow>[] = [
  measured('context_before', 'before', ({ context }) => context.before, count),
  measured('context_most', 'at most', ({ context }) => context.most, count),
  measured('context_after', 'after', ({ context }) => context.after, count),
  measured('context_kept', 'after / before, %', ({ kept }) => kept, percent),
  measured(
    'steps',
    'steps',
    ({ work }) => work.steps,
    (steps) => steps.toFixed(1),
  ),
  measured('shown', 'shown', ({ work }) => work.shown, count),
  measured('reused_share', 'reused, %', ({ reused }) => reused, percent),
  measured('computed', 'computed', ({ work }) => work.submitted, count),
  measured('generated', 'generated', ({ work }) => work.generated, count),
]

const secondsColumn = measured('milliseconds', 'time, s', ({ milliseconds }) => milliseconds.total, seconds)

const timeColumns: DataColumn<ResultRow>[] = [
  secondsColumn,
  ...(['prefill', 'decode', 'cache', 'other'] as const).map((name) =>
    measured(`${name}_milliseconds`, name, ({ milliseconds }) => milliseconds[name], seconds),
  ),
  measured('milliseconds_per_right', 'time per right answer, s', ({ perRight }) => perRight?.milliseconds ?? null, seconds),
  measured('computed_per_right', 'tokens computed per right answer', ({ perRight }) => perRight?.submitted ?? null, count),
]

const CONTEXT_NOTES = [
  'Numbers are tokens, as means over answered samples. Before, at most, after: all tokens in the context at the end of the first step, of the largest one, and of the one that answered. They include system message, tools, transcript and generated text. After leaves out samples that filled the context.',
  'Shown, computed, generated: sums over the steps of a sample. Reused: share of the shown tokens that were in the cache. Computed: tokens submitted to the model, by the ledger.',
]
const TIME_NOTES = [
  'Numbers are seconds, as means over answered samples. Prefill, decode and cache operations are from the ledger. Other: the rest of the wall time, such as tools, retrieval and the wait for other samples of the run.',
  'Per right answer: the cost of all answers together, wrong ones included, divided by the sum of their points.',
]
