/** Owns everything a report says, as plain data: tables, figures, page and summary.json are made of this and of nothing else. */
import type { TaskCell } from '../task.js'
import type { LogHeader } from '../log.js'
import {
  type Baseline,
  baselineOf,
  compared,
  type Comparison,
  corrected,
  estimate,
  type Estimate,
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

/** Grows with every change that a reader of summary.json would misread. */
const SCHEMA = 1

/** What a condition came to, or one cell of it. */
export interface MeasuredResult {
  /** Null where nothing was answered. */
  readonly measures: Measures | null
  readonly tools: ToolUse
  /** Samples that could not be answered; in no other number. */
  readonly errors: number
  /** Null for the baseline, and where it has no sample in common. */
  readonly against: Comparison | null
}

export interface CellResult extends MeasuredResult {
  readonly cell: TaskCell
}

export interface ConditionResult extends MeasuredResult {
  /** Indices of the summary's lists. */
  readonly variant: number
  readonly task: number
  readonly agent: number
  readonly contract: string
  readonly trained: boolean | null
  /** Samples that its logs were to have. */
  readonly planned: number
  readonly errorCodes: readonly { readonly code: string; readonly count: number; readonly message: string }[]
  /** In order of their axes. */
  readonly cells: readonly CellResult[]
  /** Of axes that are numbers, in order. */
  readonly margins: readonly Margin[]
}

/** All samples of a condition with this value on this axis, whatever the other axes say. */
export interface Margin {
  readonly axis: string
  readonly value: number
  readonly answered: number
  readonly accuracy: Estimate
}

/** Of the report, not of the runs. */
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
 * Comparisons of all cells together are one family for Holm's correction; those by cell are one family for every task: what stands in one
 * table.
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

/** By the first axis on which they differ: numbers by size, texts by letters, what is missing first. */
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

// What a report says of each log: where it comes from, by what it was made, and how complete it is.

export interface LogFacts extends Pick<LogHeader, 'kvfold' | 'commit' | 'date' | 'command' | 'machine' | 'model' | 'engine'> {
  readonly name: string
  /** Index of its variant. */
  readonly variant: number
  readonly embedder: string | null
  readonly judge: string | null
  readonly seed: number
  readonly sampling: Readonly<Record<string, unknown>>
  readonly contracts: readonly string[]
  /** Where the run went on after a stop: when, and by what, where that is not the same as before. */
  readonly resumed: readonly { readonly date: string; readonly other: readonly string[] }[]
  readonly answers: number
  readonly errors: number
  /** The last line was cut off, and is left out. */
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

/** In one line. */
export const machineName = ({ cpu, cores, memory, os, node }: LogHeader['machine']): string =>
  `${cpu}, ${cores} ${cores === 1 ? 'core' : 'cores'}, ${(memory / 2 ** 30).toFixed(1)} GiB, ${os}, Node ${node}`
