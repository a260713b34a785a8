/** Owns what a report says in sentences: what it is of, what it finds of the claim, and what a reader has to mind. */
import { type ConditionResult, machineName, type Summary } from './summary.js'
import { count, plural } from '../../figures/numbers.js'
import { Labels, percent, points, probability, seconds } from './tables/labels.js'

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
      ...(variants.length > 1 ? [`${variants.length} groups of logs that are not put together`] : []),
      days.length === 1 ? `run on ${days[0]!}` : `run from ${days[0] ?? ''} to ${days.at(-1) ?? ''}`,
      `report of ${made.date.slice(0, 10)} by kvfold ${made.kvfold}`,
    ],
  }
}

/** The claim (better, from a smaller context, at less cost) for every agent that the model was not untrained for, task by task. */
export function claims(summary: Summary): string[] {
  const labels = new Labels(summary)
  return summary.conditions.flatMap((condition) => {
    const { against, measures, trained, task } = condition
    if (against === null || measures === null || trained === false) return []
    const other = summary.conditions[against.with]!
    const theirs = other.measures!
    const { test, difference, holm } = against
    const chance = holm < 0.05 || points(difference.value) === points(0) ? '' : ', which may be chance'
    return [
      [
        `${labels.task(task)}: ${labels.condition(condition)} reaches ${percent(measures.accuracy.value)} %, ${labels.condition(other)} ${percent(theirs.accuracy.value)} %;`,
        `on the ${plural(test.pairs, 'sample')} that both answered the difference is ${points(difference.value)} points${chance} (p ${sign(holm)} after Holm's correction).`,
        `Context at the answer: ${count(measures.context.after)} tokens against ${count(theirs.context.after)}.`,
        `A sample: ${count(measures.work.submitted)} tokens computed against ${count(theirs.work.submitted)}, ${seconds(measures.milliseconds.total)} s against ${seconds(theirs.milliseconds.total)} s.`,
      ].join(' '),
    ]
  })
}

const sign = (p: number): string => (p < 0.0001 ? probability(p) : `= ${probability(p)}`)

/** Samples fewer than this in a cell are said to be few. */
const FEW = 20

/** What would mislead somebody who only looks at the numbers. */
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
    said.push(
      `The model was not trained for the prompts of these; their accuracy says nothing about the method: ${names(untrained)}.`,
    )
  const unknown = conditions.filter(({ trained }) => trained === null)
  if (unknown.length > 0) said.push(`Nobody knows whether the model was trained for the prompts of these: ${names(unknown)}.`)
  const unfinished = conditions.filter(({ planned, measures, errors }) => (measures?.answered ?? 0) + errors < planned)
  if (unfinished.length > 0) {
    const missing = unfinished.reduce(
      (sum, { planned, measures, errors }) => sum + planned - errors - (measures?.answered ?? 0),
      0,
    )
    said.push(`Not everything that was planned has been run. Missing are ${plural(missing, 'sample')}, of ${names(unfinished)}.`)
  }
  const failed = conditions.filter(({ errors }) => errors > 0)
  if (failed.length > 0)
    said.push(
      `${count(failed.reduce((sum, { errors }) => sum + errors, 0))} samples ended in errors and are in no accuracy; where errors fall on hard samples, what is left is easier: ${names(failed)}.`,
    )
  const few = conditions.filter(({ cells }) => cells.some(({ measures }) => measures !== null && measures.answered < FEW))
  if (few.length > 0)
    said.push(`Cells of fewer than ${FEW} samples say little by themselves; look at the intervals: ${names(few)}.`)
  if (conditions.every(({ against }) => against === null))
    said.push(
      `Nothing is compared: no other agent answered the same samples as ${summary.baseline.agent}${summary.baseline.contract === null ? '' : ` under ${summary.baseline.contract}`}.`,
    )
  const mixed = variants.filter(
    (_, variant) =>
      new Set(
        logs
          .filter((_log, index) => variantOf[index] === variant)
          .flatMap(({ machine, resumed }) => [machineName(machine), ...resumed.flatMap(({ other }) => other)]),
      ).size > 1,
  )
  if (mixed.length > 0) said.push('Times come from more than one machine or version: see what was run.')
  if (summary.repeated > 0)
    said.push(
      `${count(summary.repeated)} answers are left out, because a later one is of the same sample under the same condition: the later one counts.`,
    )
  if (summary.retried > 0)
    said.push(`${count(summary.retried)} samples failed and were answered when they were tried again; they count as answered.`)
  const torn = logs.filter((log) => log.torn)
  if (torn.length > 0)
    said.push(`The last line of ${torn.map(({ name }) => name).join(', ')} was not written to its end, and is left out.`)
  return said
}
