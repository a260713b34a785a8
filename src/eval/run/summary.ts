/** Owns what a run came to: one row for every task, cell, agent and contract, and one over all cells. */
import { accuracyOf } from '../accuracy.js'
import type { Cell } from '../task.js'
import type { Answer, Result } from './plan.js'

/** Means over the samples that were answered; null where none was. */
export interface Row {
  /** Index of the run's task. */
  readonly task: number
  readonly agent: string
  readonly contract: string
  /** Null: all cells together. */
  readonly cell: Cell | null
  /** Answered; those that were not are `errors`. */
  readonly samples: number
  readonly errors: number
  /** 0..1. */
  readonly accuracy: number | null
  /** 95 %; see accuracyOf. */
  readonly interval: readonly [low: number, high: number] | null
  /** Tokens in context at the end of the first step, at most, and at the end of the answering step. */
  readonly tokensBefore: number | null
  readonly tokensMost: number | null
  readonly tokensAfter: number | null
  /** Tokens, summed over the steps of a sample. */
  readonly tokensShown: number | null
  readonly tokensComputed: number | null
  readonly steps: number | null
  readonly calls: number | null
  readonly milliseconds: number | null
}

/** In the order in which cells come up; of each cell agents and contracts in theirs. */
export function rowsOf(results: readonly Result[]): Row[] {
  const cells = grouped(results, ({ task, cell }) => `${task} ${JSON.stringify(cell)}`)
  return inTaskOrder(cells).flatMap((cell) => conditions(cell).map((of) => row(of, of[0]!.cell)))
}

/** One row for every task, agent and contract. */
export const totalsOf = (results: readonly Result[]): Row[] =>
  inTaskOrder(grouped(results, ({ task }) => `${task}`)).flatMap((task) => conditions(task).map((of) => row(of, null)))

/** One row for everything: for runs of one task, agent and contract. */
export const totalOf = (results: readonly Result[]): Row | null => (results.length === 0 ? null : row(results, null))

const conditions = (results: readonly Result[]) => grouped(results, ({ agent, contract }) => `${agent} ${contract}`)

const inTaskOrder = (groups: readonly (readonly Result[])[]) => [...groups].sort((a, b) => a[0]!.task - b[0]!.task)

function row(of: readonly Result[], cell: Cell | null): Row {
  const { task, agent, contract } = of[0]!
  const answers = of.filter((result): result is Answer => result.kind === 'sample')
  const mean = (value: (answer: Answer) => number): number | null =>
    answers.length === 0 ? null : answers.reduce((sum, answer) => sum + value(answer), 0) / answers.length
  const found = accuracyOf(answers.map(({ score }) => score))
  return {
    task,
    agent,
    contract,
    cell,
    samples: answers.length,
    errors: of.length - answers.length,
    accuracy: found?.accuracy ?? null,
    interval: found?.interval ?? null,
    tokensBefore: mean(({ tokens }) => tokens.before),
    tokensMost: mean(({ tokens }) => tokens.most),
    tokensAfter: mean(({ tokens }) => tokens.after),
    tokensShown: mean(({ work }) => work.shown),
    tokensComputed: mean(({ work }) => work.submitted),
    steps: mean(({ work }) => work.steps),
    calls: mean(({ calls }) => calls.length),
    milliseconds: mean(({ milliseconds }) => milliseconds.total),
  }
}

/** Groups in the order of their first items. */
function grouped(results: readonly Result[], name: (result: Result) => string): readonly (readonly Result[])[] {
  const groups = new Map<string, Result[]>()
  for (const result of results) {
    const group = groups.get(name(result))
    if (group === undefined) groups.set(name(result), [result])
    else group.push(result)
  }
  return [...groups.values()]
}
