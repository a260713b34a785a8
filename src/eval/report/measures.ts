/** Owns what is measured of the answers of one condition, or of one cell of it: outcomes, context, work and time. */
import { mean } from '../../attention/statistics.js'
import type { Answer } from '../run/plan.js'
import { estimate, type Estimate } from './estimates.js'

export interface Measures {
  /** Samples that were answered; errors are counted elsewhere and are in no mean. */
  readonly answered: number
  readonly accuracy: Estimate
  readonly outcomes: Readonly<Record<Answer['score']['outcome'], number>>
  readonly troubles: Troubles
  /** Means over samples, in tokens: the context at the end of the first step, at most, and at the answer. */
  readonly context: Answer['tokens']
  /** `after` as a share of `before`, of these means; null where nothing was shown. */
  readonly kept: number | null
  /** Means over samples, in tokens summed over steps. */
  readonly work: Answer['work']
  /** Share of the tokens shown that were in the cache; null where nothing was shown. */
  readonly reused: number | null
  /** Means over samples; `other` is wall time that none of the three accounts for, such as tools and waiting for other samples. */
  readonly milliseconds: Answer['milliseconds'] & { readonly other: number }
  /** For one right answer: everything spent on right and wrong ones over the sum of points; null where no answer has points. */
  readonly perRight: { readonly milliseconds: number; readonly submitted: number; readonly generated: number } | null
  /** Means over samples of what the scorer counted, such as `older`. */
  readonly details: Readonly<Record<string, number>>
  /** Means over samples of what the agent counted beside its steps, such as passages found. */
  readonly own: Readonly<Record<string, number>>
}

/** How many samples had something go wrong, whatever the answer was worth. */
export interface Troubles {
  /** The answer ran into the limit of tokens. */
  readonly cutOff: number
  readonly cancelled: number
  /** Calls that were not carried out because the turn had used up its own, and the samples with any. */
  readonly refusedCalls: number
  readonly refusedSamples: number
  /** Calls that were answered with an error. */
  readonly failedCalls: number
}

/** Null for no answers. */
export function measure(answers: readonly Answer[]): Measures | null {
  const accuracy = estimate(answers.map(({ score }) => score))
  if (accuracy === null) return null
  const average = (of: (answer: Answer) => number): number => mean(answers.map(of))
  const count = (has: (answer: Answer) => boolean): number => answers.filter(has).length
  const total = (of: (answer: Answer) => number): number => answers.reduce((sum, answer) => sum + of(answer), 0)
  const points = total(({ score }) => score.points)
  const context = {
    before: average(({ tokens }) => tokens.before),
    most: average(({ tokens }) => tokens.most),
    after: average(({ tokens }) => tokens.after),
  }
  const work = {
    steps: average((answer) => answer.work.steps),
    shown: average((answer) => answer.work.shown),
    reused: average((answer) => answer.work.reused),
    submitted: average((answer) => answer.work.submitted),
    generated: average((answer) => answer.work.generated),
  }
  const time = {
    cache: average(({ milliseconds }) => milliseconds.cache),
    prefill: average(({ milliseconds }) => milliseconds.prefill),
    decode: average(({ milliseconds }) => milliseconds.decode),
    total: average(({ milliseconds }) => milliseconds.total),
  }
  return {
    answered: answers.length,
    accuracy,
    outcomes: {
      right: count(({ score }) => score.outcome === 'right'),
      partial: count(({ score }) => score.outcome === 'partial'),
      wrong: count(({ score }) => score.outcome === 'wrong'),
      unparsed: count(({ score }) => score.outcome === 'unparsed'),
    },
    troubles: {
      cutOff: count(({ end }) => end === 'length'),
      cancelled: count(({ end }) => end === 'cancelled'),
      refusedCalls: total(({ refusedCalls }) => refusedCalls),
      refusedSamples: count(({ refusedCalls }) => refusedCalls > 0),
      failedCalls: total(({ calls }) => calls.filter(({ failed }) => failed).length),
    },
    context,
    kept: context.before === 0 ? null : context.after / context.before,
    work,
    reused: work.shown === 0 ? null : work.reused / work.shown,
    milliseconds: { ...time, other: Math.max(0, time.total - time.cache - time.prefill - time.decode) },
    perRight:
      points === 0
        ? null
        : {
            milliseconds: total(({ milliseconds }) => milliseconds.total) / points,
            submitted: total((answer) => answer.work.submitted) / points,
            generated: total((answer) => answer.work.generated) / points,
          },
    details: means(answers.map(({ score }) => score.details)),
    own: means(answers.map(({ details }) => details)),
  }
}

/** Of every name that any of them has; where it is missing it is 0. */
function means(counts: readonly Readonly<Record<string, number>>[]): Readonly<Record<string, number>> {
  const names = [...new Set(counts.flatMap((one) => Object.keys(one)))]
  return Object.fromEntries(names.map((name) => [name, mean(counts.map((one) => one[name] ?? 0))]))
}

// Which tools answers used: how often, how evenly, in which order, and how much of what was folded came back.

export interface ToolUse {
  readonly samples: number
  /** Of all calls, failed ones included. */
  readonly calls: number
  readonly failed: number
  /** Samples without a call. */
  readonly without: number
  /** Calls by tool, over all samples. */
  readonly counts: Readonly<Record<string, number>>
  /** Shannon entropy of `counts` as shares, in bits: 0 for one tool only, 2.58 for six alike. Null without calls. */
  readonly entropy: number | null
  /** Restored fragments for every fold or summary, failed calls left out; null where nothing was folded. */
  readonly restoreRate: number | null
  /** Which tools the first calls of samples were, the second ones, ...: counts by tool. */
  readonly order: readonly Readonly<Record<string, number>>[]
}

const FOLDS: readonly string[] = ['fold_fragment', 'summarize_fragment']
const RESTORE = 'restore_fragment'

export function toolUse(answers: readonly Answer[]): ToolUse {
  const calls = answers.flatMap((answer) => answer.calls)
  const carriedOut = calls.filter(({ failed }) => !failed)
  const folds = carriedOut.filter(({ name }) => FOLDS.includes(name)).length
  const longest = Math.max(0, ...answers.map((answer) => answer.calls.length))
  return {
    samples: answers.length,
    calls: calls.length,
    failed: calls.length - carriedOut.length,
    without: answers.filter((answer) => answer.calls.length === 0).length,
    counts: counted(calls.map(({ name }) => name)),
    entropy: entropy(Object.values(counted(calls.map(({ name }) => name)))),
    restoreRate: folds === 0 ? null : carriedOut.filter(({ name }) => name === RESTORE).length / folds,
    order: Array.from({ length: longest }, (_, at) => counted(answers.flatMap((answer) => answer.calls[at]?.name ?? []))),
  }
}

/** In bits; null where nothing was counted. */
export function entropy(counts: readonly number[]): number | null {
  const all = counts.reduce((sum, count) => sum + count, 0)
  if (all === 0) return null
  const parts = counts.filter((count) => count > 0).map((count) => -(count / all) * Math.log2(count / all))
  // Never -0.
  return Math.max(
    0,
    parts.reduce((sum, part) => sum + part, 0),
  )
}

/** Names are a model's own, so that any may come, `constructor` too. */
function counted(names: readonly string[]): Readonly<Record<string, number>> {
  const counts = new Map<string, number>()
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1)
  return Object.fromEntries(counts)
}
