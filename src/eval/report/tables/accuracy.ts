/** Owns the tables of accuracy: over all cells and cell by cell, with intervals and the tests against the baseline. */
import type { Result, Summary } from '../summary.js'
import { Labels, points, probability, withInterval } from './labels.js'
import { cellColumns, cellRows, conditionColumns, measured, opensCell, opensTask, wholeRows, type Row } from './rows.js'
import { NONE, table, type Column, type Table } from './table.js'

export function accuracyTables(summary: Summary): Table[] {
  const labels = new Labels(summary)
  const whole = wholeRows(summary)
  return [
    table(
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
        table(
          { ...said, notes: accuracyNotes(summary, rows), brief },
          [...cellColumns(axes, labels), ...answeredColumns.slice(0, 1), ...accuracyColumns(summary, labels)],
          rows,
          { opens: opensCell(axes) },
        ),
      ]
    }),
  ]
}

const answeredColumns: Column<Row>[] = [
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

function accuracyColumns({ conditions }: Summary, labels: Labels): Column<Row>[] {
  const against = (of: (comparison: NonNullable<Result['against']>) => number | string | boolean | null) => (row: Row) =>
    row.result.against === null ? null : of(row.result.against)
  const said = (of: (comparison: NonNullable<Result['against']>) => string) => (row: Row) =>
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

/** Over which comparisons p is corrected. */
function family(rows: readonly Row[]): string[] {
  const comparisons = rows.filter(({ result }) => result.against !== null).length
  return comparisons === 0 ? [] : [`p, Holm: corrected for the comparisons of this table, ${comparisons} in all.`]
}

function accuracyNotes({ agents, baseline }: Summary, rows: readonly Row[]): string[] {
  const compared = rows.flatMap(({ result }) => result.against ?? [])
  const methods = new Set(rows.flatMap(({ result }) => result.measures?.accuracy.method ?? []))
  const tests = new Set(compared.map(({ test }) => test.test))
  const name = agents.find(({ agent }) => agent === baseline.agent)?.title ?? baseline.agent
  return [
    'Accuracy is the mean of the points of answered samples; errors are samples that could not be answered and are no wrong answers.',
    ...(methods.has('wilson')
      ? [
          'Brackets after accuracy: 95 % interval; Wilson where a sample is right or wrong; where samples of many questions all have the same points, Wilson over their questions.',
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

/** Said wherever an accuracy of such an agent stands. */
const UNTRAINED =
  "Untrained: the model was not trained for this agent's prompts on this task; its accuracy says nothing about the method."
