/** Computes a report's summary as plain data, from which its tables, figures, page and summary.json are made. */
import { estimate, type Estimate } from '../accuracy.js'
import type { TaskCell } from '../task.js'
import type { LogHeader } from '../log.js'
import {
  type Baseline,
  baselineOf,
  compared,
  type Comparison,
  corrected,
  measure,
  type Measures,
  toolUse,
  type ToolUse,
  type Uncorrected,
} from './estimates.js'
import {
  canonical,
  type Condition,
  type Gathered,
  type PrintedAnswer,
  type ReadLog,
  type ReportAgent,
  type ReportTask,
  type Variant,
} from './gather.js'

/** The version of summary.json. Increase it with every change that older programs would misread. */
const SCHEMA = 1

/** The results of a condition (an agent under a contract on a task), or of one of its cells. */
export interface MeasuredResult {
  /** Accuracy, tokens and time; null if no sample was answered. */
  readonly measures: Measures | null
  readonly tools: ToolUse
  /** Number of samples that ended with an error. They count in no other number here. */
  readonly errors: number
  /** The comparison with the baseline. Null for the baseline itself, and if the two have no sample in common. */
  readonly against: Comparison | null
}

export interface CellResult extends MeasuredResult {
  readonly cell: TaskCell
}

export interface ConditionResult extends MeasuredResult {
  /** Index in the summary's `variants`. `task` and `agent` are indexes in its `tasks` and `agents`. */
  readonly variant: number
  readonly task: number
  readonly agent: number
  readonly contract: string
  readonly trained: boolean | null
  /** Number of samples that the condition's runs were meant to answer. */
  readonly planned: number
  readonly errorCodes: readonly { readonly code: string; readonly count: number; readonly message: string }[]
  /** The results of the cells, sorted by `byAxes`. */
  readonly cells: readonly CellResult[]
  /** The accuracies along each axis with numeric values, sorted by value. */
  readonly margins: readonly Margin[]
}

/** The accuracy at one value of one axis, over all samples of a condition with this value, whatever their other axes. */
export interface Margin {
  readonly axis: string
  readonly value: number
  readonly answered: number
  readonly accuracy: Estimate
}

/** When, with which version and by which command the report was made. Each log has such facts of its own. */
export interface Made {
  readonly date: string
  readonly kvfold: string
  readonly command: string
}

export interface Summary {
  readonly schema: typeof SCHEMA
  readonly made: Made
  readonly logs: readonly LogFacts[]
  readonly variants: readonly Variant[]
  readonly tasks: readonly ReportTask[]
  readonly agents: readonly ReportAgent[]
  readonly baseline: Baseline
  readonly conditions: readonly ConditionResult[]
  readonly repeated: number
  readonly retried: number
}

/**
 * Computes the summary. Holm's correction is applied within families of comparisons: one family of all whole conditions, and for each task
 * one family of its cells.
 */
export function summarise(gathered: Gathered, baseline: Baseline, made: Made): Summary {
  const { conditions, agents } = gathered
  const references = conditions.map((condition) => baselineOf(condition, conditions, agents, baseline))
  const whole = corrected(conditions.map((condition, index) => versus(condition.answers, conditions, references[index]!)))
  const cells = conditions.map((condition) => cellsOf(condition, gathered.tasks[condition.task]!.axes))
  const byCell = correctedByTask(
    conditions,
    cells.map((own, index) => own.map(({ answers }) => versus(answers, conditions, references[index]!))),
  )
  return {
    schema: SCHEMA,
    made,
    logs: gathered.logs.map((log, index) => logFacts(log, gathered.variantOf[index]!)),
    ...{ variants: gathered.variants, tasks: gathered.tasks, agents, baseline },
    conditions: conditions.map(({ answers, errors, ...condition }, index) => ({
      ...condition,
      ...result(answers, errors.length, whole[index]!),
      errorCodes: codesOf(errors),
      margins: gathered.tasks[condition.task]!.axes.flatMap((axis) => marginsOf(answers, axis)),
      cells: cells[index]!.map((own, at) => ({ cell: own.cell, ...result(own.answers, own.errors, byCell[index]![at]!) })),
    })),
    ...{ repeated: gathered.repeated, retried: gathered.retried },
  }
}

const versus = (
  answers: readonly PrintedAnswer[],
  conditions: readonly Condition[],
  reference: number | null,
): Uncorrected | null => (reference === null ? null : compared(answers, conditions[reference]!.answers, reference))

const result = (answers: readonly PrintedAnswer[], errors: number, against: Comparison | null): MeasuredResult => ({
  ...{ measures: measure(answers), tools: toolUse(answers), errors, against },
})

interface CellRecords {
  readonly cell: TaskCell
  readonly answers: readonly PrintedAnswer[]
  readonly errors: number
}

function cellsOf({ answers, errors }: Condition, axes: readonly string[]): CellRecords[] {
  const cells = [...new Map([...answers, ...errors].map(({ cell }) => [canonical(cell), cell]))]
  return cells
    .map(([key, cell]) => ({
      cell,
      answers: answers.filter((answer) => canonical(answer.cell) === key),
      errors: errors.filter((error) => canonical(error.cell) === key).length,
    }))
    .sort((a, b) => byAxes(a.cell, b.cell, axes))
}

/** Compares two cells for sorting, by the first axis on which they differ. Missing values come first; texts are in alphabetical order. */
export function byAxes(a: TaskCell, b: TaskCell, axes: readonly string[]): number {
  for (const axis of axes) {
    const [left, right] = [a[axis], b[axis]]
    if (left === right) continue
    if (left === undefined) return -1
    if (right === undefined) return 1
    if (typeof left === 'number' && typeof right === 'number') return left - right
    return String(left) < String(right) ? -1 : 1
  }
  return 0
}

function marginsOf(answers: readonly PrintedAnswer[], axis: string): Margin[] {
  const values = [...new Set(answers.map(({ cell }) => cell[axis]))].filter((value) => typeof value === 'number')
  return values
    .sort((a, b) => a - b)
    .flatMap((value) => {
      const own = answers.filter(({ cell }) => cell[axis] === value)
      const accuracy = estimate(own.map(({ score }) => score))
      return accuracy === null ? [] : [{ axis, value, answered: own.length, accuracy }]
    })
}

function correctedByTask(
  conditions: readonly Condition[],
  comparisons: readonly (readonly (Uncorrected | null)[])[],
): (readonly (Comparison | null)[])[] {
  const found: (readonly (Comparison | null)[])[] = comparisons.map(() => [])
  for (const family of new Set(conditions.map(({ task }) => task))) {
    const members = conditions.flatMap(({ task }, index) => (task === family ? [index] : []))
    const all = corrected(members.flatMap((index) => comparisons[index]!))
    let from = 0
    for (const index of members) found[index] = all.slice(from, (from += comparisons[index]!.length))
  }
  return found
}

function codesOf(errors: Condition['errors']): ConditionResult['errorCodes'] {
  return [...new Set(errors.map(({ code }) => code))].map((code) => {
    const same = errors.filter((error) => error.code === code)
    return { code, count: same.length, message: same[0]!.message }
  })
}

// Below: facts about each log: its run, the version of kvfold, and whether the log is complete.

export interface LogFacts extends Pick<LogHeader, 'kvfold' | 'commit' | 'date' | 'command' | 'machine' | 'model' | 'engine'> {
  readonly name: string
  /** Index of the log's variant. */
  readonly variant: number
  readonly embedder: string | null
  readonly judge: string | null
  readonly seed: number
  readonly sampling: Readonly<Record<string, unknown>>
  readonly contracts: readonly string[]
  /** One entry for each time a stopped run was resumed: the date, and version, commit and machine if they differ from the start. */
  readonly resumed: readonly { readonly date: string; readonly other: readonly string[] }[]
  readonly answers: number
  readonly errors: number
  /** Whether the last line was cut off. The report does not use such a line. */
  readonly torn: boolean
}

export function logFacts({ name, header, resumed, records, torn }: ReadLog, variant: number): LogFacts {
  const { kvfold, commit, date, command, machine, model, engine, embedder, judge, seed, sampling, contracts } = header
  const answers = records.filter(({ kind }) => kind === 'sample').length
  return {
    ...{ name, variant, kvfold, commit, date, command, machine, model, engine, embedder, judge, seed, sampling, contracts },
    resumed: resumed.map((again) => ({
      date: again.date,
      other: [
        ...(again.kvfold === kvfold ? [] : [`kvfold ${again.kvfold}`]),
        ...(again.commit === commit ? [] : [`commit ${again.commit ?? 'unknown'}`]),
        ...(machineName(again.machine) === machineName(machine) ? [] : [machineName(again.machine)]),
      ],
    })),
    ...{ answers, errors: records.length - answers, torn },
  }
}

/** Describes a machine in one line. */
export const machineName = ({ cpu, cores, memory, os, node }: LogHeader['machine']): string =>
  `${cpu}, ${cores} ${cores === 1 ? 'core' : 'cores'}, ${(memory / 2 ** 30).toFixed(1)} GiB, ${os}, Node ${node}`
