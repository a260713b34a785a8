/** Makes the tables with our numbers beside the paper's: two like its tables 1 and 2, and one with the numbers of its figures. */
import { paperFigure3, paperFigure6, paperTable1, paperTable2, paperTraining, type PaperRow } from '../../paper.js'
import type { TaskName } from '../../task.js'
import type { ConditionResult, Summary } from '../summary.js'
import { count } from '../../../runtime/figures/numbers.js'
import { type DataColumn, dataTable, type DataTable, NONE } from '../../figures/data-table.js'
import { Labels } from './labels.js'

/** For each task, the axis of its cells along which the paper's table 1 and curves run. */
export const PAPER_AXES: Partial<Readonly<Record<TaskName, string>>> = { 'pi-llm': 'updates', needles: 'needles' }

const THEIRS =
  'Rows in italics or grey are quoted from the paper, which has other models, data and prompts. Compare the shape of the numbers, not their size.'

export function paperTables(summary: Summary): DataTable[] {
  return [...firstTable(summary, 'pi-llm'), ...firstTable(summary, 'needles'), ...secondTable(summary), ...figureTable(summary)]
}

/** Returns the conditions' values on the axis, in ascending order. */
export const valuesOn = (conditions: readonly ConditionResult[], axis: string): number[] =>
  [
    ...new Set(conditions.flatMap(({ margins }) => margins.flatMap((margin) => (margin.axis === axis ? [margin.value] : [])))),
  ].sort((a, b) => a - b)

/** Returns a condition's accuracy in percent at one value of an axis; null if no sample with this value was answered. */
function accuracyAt({ margins }: ConditionResult, axis: string, value: number): number | null {
  const margin = margins.find((one) => one.axis === axis && one.value === value)
  return margin === undefined ? null : 100 * margin.accuracy.value
}

interface PaperTableRow {
  readonly condition: ConditionResult | null
  readonly label: string
  readonly values: readonly (number | null)[]
}

const theirs = ({ condition }: PaperTableRow): boolean => condition === null

function firstTable(summary: Summary, task: 'pi-llm' | 'needles'): DataTable[] {
  const axis = PAPER_AXES[task]!
  const paper = task === 'pi-llm' ? paperTable1.piLlm : paperTable1.needles
  const labels = new Labels(summary)
  const ours = summary.conditions.filter((condition) => summary.tasks[condition.task]!.task === task)
  const sizes = [...new Set<number>([...valuesOn(ours, axis), ...paper.columns])].sort((a, b) => a - b)
  if (valuesOn(ours, axis).length === 0) return []
  const several = new Set(ours.map((condition) => condition.task)).size > 1
  const rows: PaperTableRow[] = [
    ...ours.map((condition) => ({
      condition,
      label: (several ? `${labels.task(condition.task)}: ` : '') + labels.condition(condition),
      values: sizes.map((size) => accuracyAt(condition, axis, size)),
    })),
    ...paper.rows.map((row: PaperRow) => ({
      condition: null,
      label: `${row.method}, ${row.tools ? 'with tools' : 'plain'}`,
      values: sizes.map((size) => row.values[paper.columns.findIndex((column) => column === size)] ?? null),
    })),
  ]
  const what = task === 'pi-llm' ? 'updates' : 'needles'
  return [
    dataTable(
      {
        name: `paper-table-1-${task}`,
        title: `In the shape of the paper's table 1: ${task === 'pi-llm' ? 'PI-LLM by updates of every key' : 'NeedleBench M-RS by needles'}, accuracy in %`,
        notes: [
          `${THEIRS} Source: ${paperTable1.source}.`,
          ...(task === 'needles' ? ['Means over the lengths of the run; the paper has 1K to 128K tokens.'] : []),
        ],
      },
      [whoseColumn, ...sizes.map((size, at) => numberColumn(`${what}_${size}`, count(size), at))],
      rows,
      { theirs },
    ),
  ]
}

const whoseColumn: DataColumn<PaperTableRow> = { name: 'method', title: 'method', value: ({ label }) => label }

const numberColumn = (name: string, title: string, at: number): DataColumn<PaperTableRow> => ({
  name,
  title,
  align: 'right',
  value: ({ values }) => values[at] ?? null,
  text: ({ values }) => values[at]?.toFixed(1) ?? NONE,
})

/**
 * Makes a table like the paper's table 2. A row is an agent under a contract in one variant. Of a task with several settings, only the
 * first counts.
 */
function secondTable(summary: Summary): DataTable[] {
  const labels = new Labels(summary)
  const { conditions, tasks } = summary
  const columns = paperTable2.columns.map((task) => tasks.findIndex((own) => own.task === task))
  if (columns.every((index) => index === -1)) return []
  const keys = [...new Map(conditions.map((condition) => [keyOf(condition), condition]))]
  const ours = keys.flatMap(([key, condition]): PaperTableRow[] => {
    const own = columns.map((index) => conditions.find((other) => keyOf(other) === key && other.task === index))
    const values = own.map((one) => (one?.measures == null ? null : 100 * one.measures.accuracy.value))
    if (values.every((value) => value === null)) return []
    const untrained = own.flatMap((one) => (one?.trained === false ? [labels.task(one.task)] : []))
    const there = own.filter((one) => one !== undefined).length
    const name = labels.condition({ ...condition, trained: untrained.length > 0 && untrained.length === there ? false : null })
    const label =
      untrained.length === 0 || untrained.length === there ? name : `${name}, untrained for ${untrained.join(' and ')}`
    return [{ condition, label, values: [...values, values.includes(null) ? null : sum(values) / values.length] }]
  })
  const quoted = paperTable2.rows.map(({ method, values, mean }): PaperTableRow => ({
    condition: null,
    label: method,
    values: [...values, mean],
  }))
  const titles = ['PI-LLM', 'NeedleBench M-RS', 'MRCR', 'LongBench v2', 'FRAMES', 'mean of the five']
  return [
    dataTable(
      {
        name: 'paper-table-2',
        title: "In the shape of the paper's table 2: agents on tasks, accuracy in %",
        notes: [`${THEIRS} Source: ${paperTable2.source}. Of a task with several settings, the table shows the first one.`],
      },
      [whoseColumn, ...titles.map((title, at) => numberColumn(paperTable2.columns[at] ?? 'mean', title, at))],
      [...ours, ...quoted],
      { theirs },
    ),
  ]
}

const keyOf = ({ variant, agent, contract }: ConditionResult): string => `${variant} ${agent} ${contract}`
const sum = (values: readonly (number | null)[]): number => values.reduce<number>((total, value) => total + (value ?? 0), 0)

interface PaperFigure {
  readonly source: string
  readonly quantity: string
  readonly whose: string
  readonly values: readonly (number | null)[]
  readonly text: string
  readonly theirs: boolean
}

/** Makes a table of the numbers in the paper's figures 3, 6 and 11 to 13, each followed by ours. */
function figureTable(summary: Summary): DataTable[] {
  const rows = [...toolCounts(summary), ...contexts(summary), ...training(summary)]
  if (rows.length === 0) return []
  return [
    dataTable(
      {
        name: 'paper-figures',
        title: "Numbers of the paper's figures 3, 6 and 11 to 13 beside ours",
        notes: [
          THEIRS,
          'Two numbers are those before and after folding (figure 6), or at the beginning and the end of reinforcement learning (figures 11 to 13). Ours are of one model each.',
          `Figure 3 counts calls over ${paperFigure3.samples} samples; this table has calls per sample. The text of figure 3 does not say whether 625 calls are of one tool or of all.`,
        ],
      },
      [
        {
          name: 'source',
          title: 'of',
          value: ({ source }) => source,
          text: ({ source }) => source.replace(/^Sculptor, /u, '').replace(' ', '\u00a0'),
        },
        { name: 'quantity', title: 'quantity', value: ({ quantity }) => quantity },
        { name: 'whose', title: 'whose', value: ({ whose }) => whose },
        { name: 'first', title: null, value: ({ values }) => values[0] ?? null },
        { name: 'second', title: null, value: ({ values }) => values[1] ?? null },
        { name: '', title: 'value', align: 'right', csv: null, value: () => null, text: ({ text }) => text },
      ],
      rows,
      { theirs: (row) => row.theirs, opens: (row, before) => row.source !== before.source },
    ),
  ]
}

/** Returns the conditions with tool calls on the task with this name; on all tasks if `task` is null. */
const callers = ({ conditions, tasks }: Summary, task: TaskName | null): ConditionResult[] =>
  conditions.filter((condition) => condition.tools.calls > 0 && (task === null || tasks[condition.task]!.task === task))

function toolCounts(summary: Summary): PaperFigure[] {
  const labels = new Labels(summary)
  const { source, method, samples, counts } = paperFigure3
  const names = [...new Set(counts.map(({ task, tool }) => `${task} ${tool}`))]
  return names.flatMap((name) => {
    const quoted = counts.filter(({ task, tool }) => `${task} ${tool}` === name)
    const { task, tool } = quoted[0]!
    const ours = callers(summary, task)
    if (ours.length === 0) return []
    const quantity = `${tool} per sample, ${labels.task(ours[0]!.task)}`
    return [
      ...quoted.map(({ prompt, calls }) =>
        figure(source, quantity, `the paper: ${method}, ${prompt}`, [calls / samples], (value) => value.toFixed(2), true),
      ),
      ...ours.map((condition) =>
        figure(
          source,
          quantity,
          own(labels, condition),
          [(condition.tools.counts[tool] ?? 0) / condition.tools.samples],
          (value) => value.toFixed(2),
        ),
      ),
    ]
  })
}

function contexts(summary: Summary): PaperFigure[] {
  const labels = new Labels(summary)
  const { source, method, tasks } = paperFigure6
  return tasks.flatMap(({ task, before, after }) => {
    const ours = callers(summary, task)
    if (ours.length === 0) return []
    const quantity = `context before and after, ${labels.task(ours[0]!.task)}`
    return [
      figure(source, quantity, `the paper: ${method}`, [before, after], count, true),
      ...ours.flatMap((condition) =>
        condition.measures?.context.after == null
          ? []
          : [
              figure(
                source,
                quantity,
                own(labels, condition),
                [condition.measures.context.before, condition.measures.context.after],
                count,
              ),
            ],
      ),
    ]
  })
}

function training(summary: Summary): PaperFigure[] {
  const labels = new Labels(summary)
  const { method, entropy, calls, piLlm } = paperTraining
  const all = callers(summary, null)
  if (all.length === 0) return []
  const quoted = (
    source: string,
    quantity: string,
    { start, end, of }: { readonly start: number; readonly end: number; readonly of: string },
  ) => figure(source, quantity, `the paper: ${method}${of === '' ? '' : `, ${of}`}`, [start, end], decimals, true)
  const ours = (
    source: string,
    quantity: string,
    conditions: readonly ConditionResult[],
    of: (condition: ConditionResult) => number | null,
  ): PaperFigure[] =>
    conditions.flatMap((condition) => {
      const value = of(condition)
      return value === null
        ? []
        : [figure(source, quantity, `ours: ${labels.condition(condition)}, ${labels.task(condition.task)}`, [value], decimals)]
    })
  const onPi = callers(summary, 'pi-llm')
  return [
    ...entropy.rows.map((row) => quoted(entropy.source, 'entropy of tools, bits', row)),
    ...ours(entropy.source, 'entropy of tools, bits', all, ({ tools }) => tools.entropy),
    ...calls.rows.map((row) => quoted(calls.source, 'calls per sample', row)),
    ...ours(calls.source, 'calls per sample', all, ({ tools }) => tools.calls / tools.samples),
    ...(onPi.length === 0
      ? []
      : piLlm.rows.flatMap(({ tool, start, end }) => [
          quoted(piLlm.source, `${tool} per sample, PI-LLM`, { start, end, of: '' }),
          ...ours(piLlm.source, `${tool} per sample, PI-LLM`, onPi, ({ tools }) => (tools.counts[tool] ?? 0) / tools.samples),
        ])),
  ]
}

const figure = (
  source: string,
  quantity: string,
  whose: string,
  values: readonly number[],
  write: (value: number) => string,
  theirs = false,
): PaperFigure => ({ source, quantity, whose, values, text: values.map(write).join(' → '), theirs })

const own = (labels: Labels, condition: ConditionResult): string => `ours: ${labels.condition(condition)}`
const decimals = (value: number): string => value.toFixed(value < 1 ? 3 : 2)
