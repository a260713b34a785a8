/** Computes the accuracy of samples with its confidence interval, and the rows of a run's result table. */
import { mean } from '../runtime/core/mean.js'
import { fitted } from './agent.js'
import { bootstrap, type Interval, wilson } from './attention/statistics.js'
import type { SampleAnswer, ItemResult } from './run/plan.js'
import type { TaskCell, Score } from './task.js'

export interface Estimate {
  /** The mean of the points, from 0 to 1. */
  readonly value: number
  readonly interval: Interval
  readonly method: 'wilson' | 'bootstrap'
}

/**
 * Returns the mean of the samples' points with its 95 % interval, within [0, 1]; null without samples.
 * The interval is Wilson's if every sample asked one question and was right or wrong. Else it is a bootstrap over samples, because points
 * may be similarities, and questions about the same text are not independent.
 * A bootstrap of a single sample, or of equal points, has no width. Then the interval is Wilson's, with one question per sample, which
 * makes it wide.
 */
export function estimate(scores: readonly Pick<Score, 'points' | 'details'>[]): Estimate | null {
  if (scores.length === 0) return null
  const points = scores.map((score) => score.points)
  const total = points.reduce((sum, one) => sum + one, 0)
  const value = total / scores.length
  const asked = scores.reduce((sum, { details }) => sum + Math.max(1, details['asked'] ?? 1), 0)
  const isRightOrWrong = asked === scores.length && points.every((one) => one === 0 || one === 1)
  const drawn = isRightOrWrong || points.every((one) => one === points[0]) ? null : bootstrap(points, mean)
  if (drawn === null) return { value, interval: wilson(total, scores.length), method: 'wilson' }
  return { value, interval: [Math.max(0, drawn[0]), Math.min(1, drawn[1])], method: 'bootstrap' }
}

// The functions below make table rows from results: one for every task, cell, agent and contract, and one over all cells of a task.

/** One row of a result table. Its numbers are means over the answered samples; null without any. */
export interface AccuracyRow {
  /** Index of the task in the run's list of tasks. */
  readonly task: number
  readonly agent: string
  readonly contract: string
  /** Null for the row over all cells. */
  readonly cell: TaskCell | null
  /** Number of answered samples. `errors`: number of samples that ended with an error and have no answer. */
  readonly samples: number
  readonly errors: number
  /** From 0 to 1. */
  readonly accuracy: number | null
  /** The 95 % interval; see `estimate`. */
  readonly interval: readonly [low: number, high: number] | null
  /**
   * Mean tokens in the context: `tokensBefore` at the end of the first step, `tokensMost` at the largest step, `tokensAfter` at the step
   * that answered. `tokensAfter` leaves out samples that overflowed the context, because they have no answering step.
   */
  readonly tokensBefore: number | null
  readonly tokensMost: number | null
  readonly tokensAfter: number | null
  /** Mean tokens that a sample's steps showed, and that they computed; each is summed over the sample's steps. */
  readonly tokensShown: number | null
  readonly tokensComputed: number | null
  readonly steps: number | null
  readonly calls: number | null
  readonly milliseconds: number | null
}

/** Returns one row for every task, cell, agent and contract. Tasks are in their order; the rest is in order of first occurrence. */
export function rowsOf(results: readonly ItemResult[]): AccuracyRow[] {
  const cells = grouped(results, ({ task, cell }) => `${task} ${JSON.stringify(cell)}`)
  return inTaskOrder(cells).flatMap((cell) => conditions(cell).map((of) => row(of, of[0]!.cell)))
}

/** Returns one row over all cells for every task, agent and contract. */
export const totalsOf = (results: readonly ItemResult[]): AccuracyRow[] =>
  inTaskOrder(grouped(results, ({ task }) => `${task}`)).flatMap((task) => conditions(task).map((of) => row(of, null)))

/** Returns one row over all results, for a run with one task, agent and contract; null without results. */
export const totalOf = (results: readonly ItemResult[]): AccuracyRow | null => (results.length === 0 ? null : row(results, null))

const conditions = (results: readonly ItemResult[]) => grouped(results, ({ agent, contract }) => `${agent} ${contract}`)

const inTaskOrder = (groups: readonly (readonly ItemResult[])[]) => [...groups].sort((a, b) => a[0]!.task - b[0]!.task)

function row(of: readonly ItemResult[], cell: TaskCell | null): AccuracyRow {
  const { task, agent, contract } = of[0]!
  const answers = of.filter((result): result is SampleAnswer => result.kind === 'sample')
  const meanOf = (value: (answer: SampleAnswer) => number, over = answers): number | null =>
    over.length === 0 ? null : mean(over.map(value))
  const found = estimate(answers.map(({ score }) => score))
  return {
    task,
    agent,
    contract,
    cell,
    samples: answers.length,
    errors: of.length - answers.length,
    accuracy: found?.value ?? null,
    interval: found?.interval ?? null,
    tokensBefore: meanOf(({ tokens }) => tokens.before),
    tokensMost: meanOf(({ tokens }) => tokens.most),
    tokensAfter: meanOf(({ tokens }) => tokens.after, answers.filter(fitted)),
    tokensShown: meanOf(({ work }) => work.shown),
    tokensComputed: meanOf(({ work }) => work.submitted),
    steps: meanOf(({ work }) => work.steps),
    calls: meanOf(({ calls }) => calls.length),
    milliseconds: meanOf(({ milliseconds }) => milliseconds.total),
  }
}

/** Groups the items by name. The groups are in the order of their first items. */
export function grouped<T>(items: readonly T[], name: (item: T) => string): readonly (readonly T[])[] {
  const groups = new Map<string, T[]>()
  for (const item of items) {
    const group = groups.get(name(item))
    if (group === undefined) groups.set(name(item), [item])
    else group.push(item)
  }
  return [...groups.values()]
}
