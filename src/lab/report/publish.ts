/** Makes the report of evaluations: orders its tables and figures, and writes its sentences. */
import { KvfoldError } from '../../runtime/core/errors.js'
import { count, plural } from '../../runtime/figures/numbers.js'
import { left, table } from '../../runtime/figures/table.js'
import type { Baseline } from './estimates.js'
import { gather, readForReport, type ReadLog } from './gather.js'
import type { DataTable } from '../figures/data-table.js'
import type { Picture } from '../figures/figure.js'
import { publishReport, type Report, type ReportPart, type Section } from '../figures/report.js'
import { accuracyPictures, costPictures } from './pictures/picture.js'
import { usePictures } from './pictures/use.js'
import { type ConditionResult, type LogFacts, machineName, type Made, summarise, type Summary } from './summary.js'
import { Labels, percent, points, probability, seconds } from './tables/labels.js'
import { paperTables } from './tables/paper.js'
import { accuracyTables, costTables } from './tables/results.js'
import { useTables } from './tables/tools.js'

/**
 * Reads the logs and returns their summary. The variants are named in the order of the logs.
 * @throws KvfoldError eval/bad-log when a file is not a log, or when no log has a sample yet
 */
export async function summaryOf(logs: readonly string[], baseline: Baseline, made: Made): Promise<Summary> {
  const read: ReadLog[] = []
  // Read one log after another, because each may be large.
  for (const path of logs) read.push(await readForReport(path))
  if (read.every(({ records }) => records.length === 0))
    throw new KvfoldError('eval/bad-log', `${logs.join(', ')} has no sample yet; make the report after the first samples.`)
  return summarise(gather(read), baseline, made)
}

/** Writes the report's files into the folder, over those of an earlier report. Creates a missing folder. Returns the page's path. */
export const publish = (summary: Summary, folder: string): string =>
  publishReport(folder, reportOf(summary), { 'summary.json': `${JSON.stringify(summary, null, 2)}\n` })

export const tablesOf = (summary: Summary): DataTable[] => [
  ...accuracyTables(summary),
  ...costTables(summary),
  ...useTables(summary),
  ...paperTables(summary),
]

interface Chapter {
  readonly id: string
  readonly heading: string
  /** `tables`, `figures`: the names of the section's tables and figures, in order. `x-` means all names that begin with `x-`. */
  readonly tables: readonly string[]
  readonly figures: readonly string[]
}

const CHAPTERS: readonly Chapter[] = [
  { id: 'accuracy', heading: 'Accuracy', tables: ['accuracy', 'accuracy-'], figures: ['accuracy', 'accuracy-'] },
  {
    ...{ id: 'cost', heading: 'Context, work and time' },
    ...{ tables: ['context', 'time', 'context-'], figures: ['context', 'work', 'time'] },
  },
  { id: 'tools', heading: 'Tool use', tables: ['tools', 'tool-order'], figures: ['tools', 'tool-'] },
  { id: 'failures', heading: 'Failures', tables: ['failures', 'errors', 'counts-', 'agent-counts-'], figures: [] },
  { id: 'paper', heading: 'Beside the paper', tables: ['paper-'], figures: [] },
]

function reportOf(summary: Summary): Report {
  const tables = tablesOf(summary)
  const drawn = [...accuracyPictures(summary), ...costPictures(summary), ...usePictures(summary)]
  const pictures = drawn.filter((one): one is Picture => 'svg' in one)
  const left = drawn.flatMap((one) => ('why' in one ? [one.why] : []))
  const missing: ReportPart[] = left.length === 0 ? [] : [{ heading: 'Missing figures', parts: [{ says: left, look: 'notes' }] }]
  const chapters: Section[] = [
    ...CHAPTERS.map(({ figures, tables: names, ...chapter }) => ({
      ...chapter,
      parts: [...picked(figures, pictures), ...picked(names, tables)],
    })).filter(({ parts }) => parts.length > 0),
    { id: 'sources', heading: 'What was run', parts: [...sources(summary), ...missing] },
  ]
  return {
    ...about(summary),
    parts: [
      { says: claims(summary), look: 'list' },
      { says: cautions(summary), look: 'mind' },
      { contents: chapters },
      ...chapters,
    ],
  }
}

/** Returns the tables or figures that the names select, in the order of the names. */
function picked<T extends { readonly name: string }>(names: readonly string[], all: readonly T[]): T[] {
  const found = names.flatMap((name) => all.filter((one) => (name.endsWith('-') ? one.name.startsWith(name) : one.name === name)))
  return [...new Set(found)]
}

// Below: the last section of the page: the logs and how they differ, the tasks, the agents, and how the page was made.

function sources(summary: Summary): ReportPart[] {
  const { logs, tasks, agents, made } = summary
  const labels = new Labels(summary)
  return [
    ...apart(summary),
    ...logs.map((log) => logPart(summary, log)),
    {
      heading: 'Tasks',
      parts: tasks.flatMap(({ options, differs }, index): ReportPart[] => [
        { says: [labels.task(index)] },
        { says: options.map((one) => JSON.stringify(one)), look: 'code' },
        ...(differs.length === 0
          ? [{ says: ['The task is as its authors have it.'], look: 'faint' } as const]
          : ([
              { says: ['The task differs from the original:'], look: 'faint' },
              { says: differs, look: 'notes' },
            ] as const)),
      ]),
    },
    {
      heading: 'Agents',
      parts: [
        {
          pairs: agents.map(({ options, embedder }, index) => [
            labels.agent(index),
            `${JSON.stringify(options)}${embedder === null ? '' : `, embeds with ${embedder}`}`,
          ]),
        },
      ],
    },
    {
      heading: 'This report',
      parts: [
        { says: [made.command], look: 'code' },
        {
          says: [
            `kvfold ${made.kvfold} made this report on ${made.date}. Beside this page are summary.json with all numbers, every table as Markdown and CSV, and every figure as SVG.`,
          ],
          look: 'faint',
        },
      ],
    },
  ]
}

/** Returns a table of the facts in which the groups of logs differ, with a heading; nothing for a single group. */
function apart({ variants }: Summary): ReportPart[] {
  if (variants.length < 2) return []
  const names = Object.keys(variants[0]!.facts)
  const different = names.filter((name) => new Set(variants.map(({ facts }) => facts[name])).size > 1)
  const rows = variants.map(({ name, facts }) => [name, ...different.map((fact) => facts[fact] ?? '')])
  const note =
    'The report joins records and compares agents only within a group. All other facts that decide an answer are the same.'
  return [
    {
      heading: 'How the groups of logs differ',
      parts: [table(['', ...different].map(left), rows), { says: [note], look: 'faint' }],
    },
  ]
}

function logPart({ variants }: Summary, log: LogFacts): Section {
  const { model, engine, machine, resumed } = log
  const pairs: (readonly [string, string])[] = [
    ['date', log.date],
    ['machine', machineName(machine)],
    ['model', `${model.name}, SHA-256 ${model.fingerprint ?? 'unknown'}`],
    ['engine', `${engine.engine} ${engine.release}, context of ${engine.context} tokens`],
    ['kvfold', `${log.kvfold}, commit ${log.commit ?? 'unknown'}`],
    ['seed', String(log.seed)],
    ['sampling', Object.keys(log.sampling).length === 0 ? 'as the tasks have it' : JSON.stringify(log.sampling)],
    ['contracts', log.contracts.join(', ')],
  ]
  if (engine.settings !== undefined) pairs.push(['settings', JSON.stringify(engine.settings)])
  if (log.embedder !== null) pairs.push(['embeds with', log.embedder])
  if (log.judge !== null) pairs.push(['judged by', log.judge])
  pairs.push(['records', `${log.answers} answers, ${log.errors} errors`])
  const times = resumed.map(({ date, other }) => (other.length === 0 ? date : `${date} with ${other.join(', ')}`))
  if (times.length > 0) pairs.push(['resumed', times.join('; ')])
  return {
    heading: `Log ${log.name}${variants.length > 1 ? ` (group ${variants[log.variant]!.name})` : ''}`,
    parts: [{ says: [log.command], look: 'code' }, { pairs }],
  }
}

// Below: the sentences of a report: its subject, its findings for each task, and its warnings.

export function about({ logs, variants, made }: Summary): { readonly title: string; readonly facts: readonly string[] } {
  const models = [...new Set(logs.map(({ model }) => model.name))]
  const one = <T>(values: readonly T[], write: (value: T) => string, many: string): string =>
    values.length === 1 ? write(values[0]!) : `${values.length} ${many}`
  const days = [...new Set(logs.map(({ date }) => date.slice(0, 10)))].sort()
  return {
    title: `Evaluation: ${models.join(', ')}`,
    facts: [
      one([...new Set(logs.map(({ engine }) => `${engine.engine} ${engine.release}`))], (engine) => engine, 'engines'),
      one([...new Set(logs.map(({ machine }) => machineName(machine)))], (name) => name, 'machines'),
      logs.length === 1 ? `log ${logs[0]!.name}` : `${logs.length} logs`,
      ...(variants.length > 1 ? [`${variants.length} separate groups of logs`] : []),
      days.length === 1 ? `run on ${days[0]!}` : `run from ${days[0] ?? ''} to ${days.at(-1) ?? ''}`,
      `report of ${made.date.slice(0, 10)} by kvfold ${made.kvfold}`,
    ],
  }
}

/**
 * Returns, for each task, sentences on whether agents answer better than the baseline, from a smaller context, at less cost. All numbers
 * are over the samples that both answered. Agents whose prompts the model was not trained on are left out, if that is known.
 */
export function claims(summary: Summary): string[] {
  const labels = new Labels(summary)
  return summary.conditions.flatMap((condition) => {
    const { against, trained, task } = condition
    if (against === null || trained === false) return []
    const other = summary.conditions[against.with]!
    const { test, difference, ours, theirs, holm } = against
    const chance = holm < 0.05 || points(difference.value) === points(0) ? '' : ', which may be chance'
    return [
      [
        `${labels.task(task)}, on the ${plural(test.pairs, 'sample')} that both answered: ${labels.condition(condition)} reaches ${percent(ours.accuracy.value)} %, ${labels.condition(other)} ${percent(theirs.accuracy.value)} %;`,
        `the difference is ${points(difference.value)} points${chance} (p ${sign(holm)} after Holm's correction).`,
        ...(ours.context.after === null || theirs.context.after === null
          ? []
          : [`Context at the answer: ${count(ours.context.after)} tokens against ${count(theirs.context.after)}.`]),
        `A sample: ${count(ours.work.submitted)} tokens computed against ${count(theirs.work.submitted)}, ${seconds(ours.milliseconds.total)} s against ${seconds(theirs.milliseconds.total)} s.`,
      ].join(' '),
    ]
  })
}

const sign = (p: number): string => (p < 0.0001 ? probability(p) : `= ${probability(p)}`)

/** Cells with fewer samples than this get a warning. */
const FEW = 20

/** Returns warnings for readers who look only at the numbers. */
export function cautions(summary: Summary): string[] {
  const { conditions, logs, variants, variantOf } = { ...summary, variantOf: summary.logs.map(({ variant }) => variant) }
  const labels = new Labels(summary)
  const names = (some: readonly ConditionResult[]): string =>
    some.length === conditions.length
      ? 'all agents on all tasks'
      : some.map((condition) => `${labels.task(condition.task)}: ${labels.condition({ ...condition, trained: null })}`).join('; ')
  const said: string[] = []
  const untrained = conditions.filter(({ trained }) => trained === false)
  if (untrained.length > 0)
    said.push(`The model was not trained for some prompts, so their accuracy says nothing about the method: ${names(untrained)}.`)
  const unknown = conditions.filter(({ trained }) => trained === null)
  if (unknown.length > 0) said.push(`The model may or may not have been trained for some prompts: ${names(unknown)}.`)
  const unfinished = conditions.filter(({ planned, measures, errors }) => (measures?.answered ?? 0) + errors < planned)
  if (unfinished.length > 0) {
    const missing = unfinished.reduce(
      (sum, { planned, measures, errors }) => sum + planned - errors - (measures?.answered ?? 0),
      0,
    )
    said.push(
      `The runs are not finished. ${plural(missing, 'sample')} of ${names(unfinished)} ${missing === 1 ? 'is' : 'are'} missing.`,
    )
  }
  const failed = conditions.filter(({ errors }) => errors > 0)
  if (failed.length > 0)
    said.push(
      `${count(failed.reduce((sum, { errors }) => sum + errors, 0))} samples ended in errors and count in no accuracy. If the hard samples failed, the others are easier: ${names(failed)}.`,
    )
  const few = conditions.filter(({ cells }) => cells.some(({ measures }) => measures !== null && measures.answered < FEW))
  if (few.length > 0)
    said.push(`Cells with fewer than ${FEW} samples say little by themselves, so look at their intervals: ${names(few)}.`)
  if (conditions.every(({ against }) => against === null))
    said.push(
      `The report compares nothing, because no other agent answered the same samples as ${summary.baseline.agent}${summary.baseline.contract === null ? '' : ` under ${summary.baseline.contract}`}.`,
    )
  const mixed = variants.filter(
    (_, variant) =>
      new Set(
        logs
          .filter((_log, index) => variantOf[index] === variant)
          .flatMap(({ machine, resumed }) => [machineName(machine), ...resumed.flatMap(({ other }) => other)]),
      ).size > 1,
  )
  if (mixed.length > 0) said.push('Times come from more than one machine or version; see "What was run".')
  if (summary.repeated > 0)
    said.push(
      `The report leaves out ${count(summary.repeated)} answers, because the logs have a later answer to the same sample under the same condition.`,
    )
  if (summary.retried > 0)
    said.push(`${count(summary.retried)} samples failed at first and were answered later; they count as answered.`)
  const torn = logs.filter((log) => log.torn)
  if (torn.length > 0)
    said.push(`The last line of ${torn.map(({ name }) => name).join(', ')} is incomplete, so the report leaves it out.`)
  return said
}
