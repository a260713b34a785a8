/** Makes the tables of what agents did: the tools they called, the order of calls, failures, and the counts of scorers and agents. */
import type { Measures, ToolUse } from '../estimates.js'
import type { ConditionResult, Summary } from '../summary.js'
import { amount, type DataColumn, dataTable, type DataTable, inCsv, NONE } from '../../figures/data-table.js'
import { Labels, percent } from './labels.js'

/** The Sculptor paper's tools, in its order. */
const SUITE: readonly string[] = [
  'fragment_context',
  'fold_fragment',
  'summarize_fragment',
  'restore_fragment',
  'search_context',
  'get_search_detail',
]

/** Returns the names of the called tools, Sculptor's first. */
export function toolNames(uses: readonly ToolUse[]): string[] {
  const called = new Set(uses.flatMap(({ counts }) => Object.keys(counts)))
  return [...SUITE.filter((name) => called.has(name)), ...[...called].filter((name) => !SUITE.includes(name)).sort()]
}

export function useTables(summary: Summary): DataTable[] {
  const labels = new Labels(summary)
  const { conditions } = summary
  const calling = conditions.filter(({ tools }) => tools.calls > 0)
  const first: DataColumn<ConditionResult>[] = [
    { name: 'task', title: 'task', value: ({ task }) => labels.task(task) },
    ...labels.columns<ConditionResult>((condition) => condition),
  ]
  const opens = { opens: (row: ConditionResult, before: ConditionResult) => row.task !== before.task }
  return [
    ...(calling.length === 0 ? [] : [toolTable(calling, first), orderTable(calling, first)]),
    dataTable(
      { name: 'failures', title: 'Outcomes and failures', notes: FAILURE_NOTES },
      [...first, ...failureColumns],
      conditions,
      opens,
    ),
    ...errorTable(summary, labels),
    ...countTables(summary, labels),
  ]
}

function toolTable(calling: readonly ConditionResult[], first: readonly DataColumn<ConditionResult>[]): DataTable {
  const names = toolNames(calling.map(({ tools }) => tools))
  const perSample = ({ tools }: ConditionResult, calls: number): string => (calls / tools.samples).toFixed(2)
  return dataTable<ConditionResult>(
    { name: 'tools', title: 'Tool use', notes: TOOL_NOTES },
    [
      ...first,
      inCsv('samples', ({ tools }) => tools.samples),
      amount(
        'calls',
        'calls (samples)',
        ({ tools }) => tools.calls,
        ({ tools }) => `${tools.calls} (${tools.samples})`,
      ),
      amount(
        'calls_per_sample',
        'per sample',
        ({ tools }) => tools.calls / tools.samples,
        (row) => perSample(row, row.tools.calls),
      ),
      ...names.map((name) =>
        amount<ConditionResult>(
          `calls_${name}`,
          name,
          ({ tools }) => tools.counts[name] ?? 0,
          (row) => perSample(row, row.tools.counts[name] ?? 0),
        ),
      ),
      amount('failed', 'failed', ({ tools }) => tools.failed),
      amount('samples_without', 'no call', ({ tools }) => tools.without),
      amount(
        'entropy',
        'entropy, bits',
        ({ tools }) => tools.entropy,
        ({ tools }) => tools.entropy?.toFixed(2) ?? NONE,
      ),
      amount(
        'restore_rate',
        'restores per fold',
        ({ tools }) => tools.restoreRate,
        ({ tools }) => tools.restoreRate?.toFixed(3) ?? NONE,
      ),
    ],
    calling,
    { opens: (row, before) => row.task !== before.task },
  )
}

/**
 * Makes the table on the order of calls. For each condition it has a row for the first calls of all samples, one for the second calls, and
 * so on.
 */
function orderTable(calling: readonly ConditionResult[], first: readonly DataColumn<ConditionResult>[]): DataTable {
  const names = toolNames(calling.map(({ tools }) => tools))
  const rows = calling.flatMap((condition) => condition.tools.order.map((counts, at) => ({ condition, at, counts })))
  type ToolRow = (typeof rows)[number]
  const ofCondition = first.map(({ value, text, ...column }): DataColumn<ToolRow> => ({
    ...column,
    value: ({ condition }) => value(condition),
    ...(text === undefined ? {} : { text: ({ condition }) => text(condition) }),
  }))
  const all = ({ counts }: ToolRow): number => Object.values(counts).reduce((sum, calls) => sum + calls, 0)
  return dataTable<ToolRow>(
    {
      name: 'tool-order',
      title: 'Which tool at which call',
      notes: ['Calls are in the order of a sample. Each number counts the samples whose call at this place was of this tool.'],
      onPage: false,
    },
    [
      ...ofCondition,
      amount('call', 'call', ({ at }) => at + 1),
      amount('samples', 'samples', all),
      ...names.map((name) =>
        amount<ToolRow>(
          name,
          `${name}, %`,
          ({ counts }) => counts[name] ?? 0,
          (row) => percent((row.counts[name] ?? 0) / all(row)),
        ),
      ),
    ],
    rows,
    { opens: (row, before) => row.condition !== before.condition },
  )
}

const failure = (name: string, title: string, of: (measures: Measures) => number, text?: (measures: Measures) => string) =>
  amount<ConditionResult>(
    name,
    title,
    ({ measures }) => (measures === null ? 0 : of(measures)),
    text === undefined ? undefined : ({ measures }) => (measures === null ? '0' : text(measures)),
  )

const failureColumns: DataColumn<ConditionResult>[] = [
  failure('answered', 'answered', ({ answered }) => answered),
  failure('right', 'right', ({ outcomes }) => outcomes.right),
  failure('partial', 'partial', ({ outcomes }) => outcomes.partial),
  failure('wrong', 'wrong', ({ outcomes }) => outcomes.wrong),
  failure('unparsed', 'unparsed', ({ outcomes }) => outcomes.unparsed),
  failure('cut_off', 'cut off', ({ troubles }) => troubles.cutOff),
  failure('cancelled', 'cancelled', ({ troubles }) => troubles.cancelled),
  failure(
    'refused_calls',
    'calls refused (samples)',
    ({ troubles }) => troubles.refusedCalls,
    ({ troubles: { refusedCalls, refusedSamples } }) => (refusedCalls === 0 ? '0' : `${refusedCalls} (${refusedSamples})`),
  ),
  { ...failure('refused_samples', '', ({ troubles }) => troubles.refusedSamples), title: null },
  failure('failed_calls', 'calls failed', ({ troubles }) => troubles.failedCalls),
  amount('errors', 'errors', ({ errors }) => errors),
]

function errorTable({ conditions }: Summary, labels: Labels): DataTable[] {
  const rows = conditions.flatMap((condition) => condition.errorCodes.map((error) => ({ condition, error })))
  if (rows.length === 0) return []
  return [
    dataTable<(typeof rows)[number]>(
      {
        name: 'errors',
        title: 'Errors by code',
        notes: [
          'These samples have no answer. They count in no accuracy, mean or test; the run tries them again when it continues.',
        ],
      },
      [
        { name: 'task', title: 'task', value: ({ condition }) => labels.task(condition.task) },
        ...labels.columns<(typeof rows)[number]>(({ condition }) => condition),
        { name: 'code', title: 'code', value: ({ error }) => error.code },
        amount('samples', 'samples', ({ error }) => error.count),
        {
          name: 'message',
          title: 'first message',
          value: ({ error }) => error.message,
          text: ({ error }) => shortened(error.message),
        },
      ],
      rows,
    ),
  ]
}

/** Makes for each task a table of the scorer's counts (columns) and one of the agents' own counts (rows), if there are any. */
function countTables({ conditions, tasks }: Summary, labels: Labels): DataTable[] {
  return tasks.flatMap(({ slug }, task) => {
    const rows = conditions.flatMap((condition) =>
      condition.task === task && condition.measures !== null ? [{ condition, measures: condition.measures }] : [],
    )
    const own = rows.flatMap(({ condition, measures }) =>
      Object.entries(measures.own).map(([name, value]) => ({ condition, name, value })),
    )
    const details = [...new Set(rows.flatMap(({ measures }) => Object.keys(measures.details)))]
    const scorer = dataTable(
      {
        name: `counts-${slug}`,
        title: `Counts of the scorer: ${labels.task(task)}`,
        notes: ['Means over answered samples.'],
      },
      [
        ...labels.columns<(typeof rows)[number]>(({ condition }) => condition),
        ...details.map((name) =>
          amount<(typeof rows)[number]>(
            name,
            name,
            ({ measures }) => measures.details[name] ?? null,
            ({ measures }) => decimal(measures.details[name]),
          ),
        ),
      ],
      rows,
    )
    const agents = dataTable<(typeof own)[number]>(
      {
        name: `agent-counts-${slug}`,
        title: `Counts of the agents beside their steps: ${labels.task(task)}`,
        notes: ['Means over answered samples.'],
      },
      [
        ...labels.columns<(typeof own)[number]>(({ condition }) => condition),
        { name: 'counted', title: 'counted', value: ({ name }) => name },
        amount(
          'mean',
          'mean',
          ({ value }) => value,
          ({ value }) => decimal(value),
        ),
      ],
      own,
      { opens: (row, before) => row.condition !== before.condition },
    )
    return [...(details.length === 0 ? [] : [scorer]), ...(own.length === 0 ? [] : [agents])]
  })
}

const decimal = (value: number | undefined): string => (value === undefined ? NONE : String(+value.toFixed(2)))

const LONGEST = 160
const shortened = (text: string): string => (text.length <= LONGEST ? text : `${text.slice(0, LONGEST - 1)}…`)

const TOOL_NOTES = [
  'Numbers under the name of a tool are means per answered sample. Calls and failed are counts over all answered samples; calls include failed ones. No call: samples that were answered without a call.',
  'Entropy: entropy of all calls by tool, in bits: 0 for a single tool, 2.58 for six tools used equally. Restores per fold: restored fragments for each folded or summarised one, without failed calls.',
]
const FAILURE_NOTES = [
  'Right, partial, wrong and unparsed add up to answered; an unparsed answer has no text that the scorer can read. Cut off answers ran into the limit of tokens. Cut off, cancelled, refused and failed calls can occur with any outcome.',
  'Refused calls: calls that were not carried out, because the turn had used up its calls. Errors are neither right nor wrong answers.',
]
