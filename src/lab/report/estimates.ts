/** Owns what is measured of the answers of one condition or cell, and what that says of all that could have been asked: estimates with intervals, tests of two conditions, and which two are compared. */
import { mean } from '../../runtime/core/mean.js'
import { bootstrap, type Interval } from '../attention/statistics.js'
import { Random } from '../../runtime/core/random.js'
import { accuracyOf } from '../accuracy.js'
import type { AgentKind } from '../agent.js'
import type { SampleAnswer } from '../run/plan.js'
import type { Score } from '../task.js'
import type { Condition, PrintedAnswer, ReportAgent } from './gather.js'

// What some answers say of all that could have been asked: accuracy and differences, each with a 95 % interval.

export interface Estimate {
  /** 0..1: mean points. */
  readonly value: number
  readonly interval: Interval
  readonly method: 'wilson' | 'bootstrap'
}

/** As `kvfold eval` has it (accuracyOf). Null for none. */
export function estimate(scores: readonly Pick<Score, 'points' | 'details'>[]): Estimate | null {
  const found = accuracyOf(scores)
  return found === null ? null : { value: found.accuracy, interval: found.interval, method: found.by }
}

interface Difference {
  readonly value: number
  /** By bootstrap over pairs; null where all differences are the same. */
  readonly interval: Interval | null
}

/** Of points in pairs (ours, theirs): ours less theirs. Null for none. */
export function difference(pairs: readonly (readonly [number, number])[]): Difference | null {
  if (pairs.length === 0) return null
  const apart = pairs.map(([ours, theirs]) => ours - theirs)
  const same = apart.every((one) => Math.abs(one - apart[0]!) < 1e-12)
  return { value: mean(apart), interval: same ? null : bootstrap(apart, (some) => mean(some)) }
}

// Tests of two conditions on the same samples: McNemar's for right and wrong, sign flips for points, and Holm's correction.

interface PairedTest {
  /** `mcnemar`: exact, where every sample is right or wrong. `sign-flip`: permutation of the mean difference, for partial points. */
  readonly test: 'mcnemar' | 'sign-flip'
  /** Samples that both conditions answered. */
  readonly pairs: number
  /** Of them, where the first has more points than the second, and where it has fewer. */
  readonly better: number
  readonly worse: number
  /** Two-sided. */
  readonly p: number
  /** False where signs were drawn by chance instead of all tried. */
  readonly exact: boolean
}

/** Up to so many differences all ways of giving signs are tried. */
const ALL_SIGNS = 16
/** Draws beyond that; the least p they can give is one over this and one. */
const DRAWS = 20_000
/** Sums of the same points in another order differ by less. */
const SAME = 1e-9

/** The test of points 0..1 in pairs (ours, theirs). Null without pairs. */
export function pairedTest(pairs: readonly (readonly [number, number])[]): PairedTest | null {
  if (pairs.length === 0) return null
  const differences = pairs.map(([ours, theirs]) => ours - theirs)
  const better = differences.filter((difference) => difference > SAME).length
  const worse = differences.filter((difference) => difference < -SAME).length
  const counts = { pairs: pairs.length, better, worse }
  if (pairs.flat().every((points) => points === 0 || points === 1))
    return { test: 'mcnemar', ...counts, p: mcnemar(better, worse), exact: true }
  const apart = differences.filter((difference) => Math.abs(difference) > SAME)
  const exact = apart.length <= ALL_SIGNS
  return { test: 'sign-flip', ...counts, p: exact ? allSigns(apart) : drawnSigns(apart), exact }
}

/** McNemar's exact test: of the pairs that differ, each side is equally likely to be the better one. Two-sided; 1 where none differ. */
export function mcnemar(better: number, worse: number): number {
  const all = better + worse
  const fewer = Math.min(better, worse)
  // The chance of exactly k of `all`, from one k to the next, in logarithms: 2 ** -all may be less than numbers go.
  let logChance = -all * Math.LN2
  let sum = 0
  for (let k = 0; k <= fewer; k++) {
    sum += Math.exp(logChance)
    logChance += Math.log((all - k) / (k + 1))
  }
  return Math.min(1, 2 * sum)
}

/** The share of all ways of giving signs whose sum is at least as far from 0. */
function allSigns(differences: readonly number[]): number {
  const observed = Math.abs(differences.reduce((sum, value) => sum + value, 0)) - SAME
  const ways = 2 ** differences.length
  let far = 0
  for (let way = 0; way < ways; way++) {
    let sum = 0
    for (let at = 0; at < differences.length; at++) sum += (way >> at) & 1 ? differences[at]! : -differences[at]!
    if (Math.abs(sum) >= observed) far++
  }
  return far / ways
}

/** The same from draws, the observed signs counted as one of them; the same differences give the same p. */
function drawnSigns(differences: readonly number[]): number {
  const observed = Math.abs(differences.reduce((sum, value) => sum + value, 0)) - SAME
  const random = new Random(differences.length, DRAWS)
  let far = 1
  for (let draw = 0; draw < DRAWS; draw++) {
    let sum = 0
    let bits = 0
    for (let at = 0; at < differences.length; at++) {
      if (at % 32 === 0) bits = random.word()
      sum += bits & 1 ? differences[at]! : -differences[at]!
      bits >>>= 1
    }
    if (Math.abs(sum) >= observed) far++
  }
  return far / (DRAWS + 1)
}

/**
 * Holm's correction of the p values of one family: what each would have to be below for its hypothesis to fall, in the order given.
 * Nulls are comparisons that could not be made; they do not count.
 */
export function holm(values: readonly (number | null)[]): (number | null)[] {
  const ordered = values.flatMap((p, index) => (p === null ? [] : [{ p, index }])).sort((a, b) => a.p - b.p)
  const corrected: (number | null)[] = values.map(() => null)
  let least = 0
  ordered.forEach(({ p, index }, rank) => {
    least = Math.max(least, Math.min(1, p * (ordered.length - rank)))
    corrected[index] = least
  })
  return corrected
}

export interface Baseline {
  readonly agent: AgentKind
  /** Null: the same contract as the one compared, or, where the baseline ran under one only, that. */
  readonly contract: string | null
}

export interface Comparison {
  /** Index of the baseline's condition. */
  readonly with: number
  readonly difference: Difference
  readonly test: PairedTest
  /** The test's p, corrected over all comparisons of its table. */
  readonly holm: number
}

/** Index of the condition that this one is compared with; null for the baseline itself, and where there is none. */
export function baselineOf(
  condition: Condition,
  conditions: readonly Condition[],
  agents: readonly ReportAgent[],
  { agent, contract }: Baseline,
): number | null {
  const candidates = conditions.filter(
    (other) =>
      other.variant === condition.variant &&
      other.task === condition.task &&
      agents[other.agent]!.agent === agent &&
      other.answers.length > 0,
  )
  const wanted = contract ?? condition.contract
  const found =
    candidates.find((other) => other.contract === wanted) ??
    (contract === null && new Set(candidates.map((other) => other.contract)).size === 1 ? candidates[0] : undefined)
  // An agent that runs under several contracts is compared with itself only where a contract is the baseline's.
  const same = found === undefined || found === condition || (contract === null && found.agent === condition.agent)
  return same ? null : conditions.indexOf(found)
}

export type Uncorrected = Omit<Comparison, 'holm'>

/** Null where they have no sample in common. */
export function compared(ours: readonly PrintedAnswer[], theirs: readonly PrintedAnswer[], index: number): Uncorrected | null {
  const by = new Map(theirs.map((answer) => [sampleOf(answer), answer.score.points]))
  const pairs = ours.flatMap((answer): (readonly [number, number])[] => {
    const other = by.get(sampleOf(answer))
    return other === undefined ? [] : [[answer.score.points, other]]
  })
  const [apart, test] = [difference(pairs), pairedTest(pairs)]
  return apart === null || test === null ? null : { with: index, difference: apart, test }
}

/** One family of comparisons, those of one table. */
export function corrected(family: readonly (Uncorrected | null)[]): (Comparison | null)[] {
  const values = holm(family.map((one) => one?.test.p ?? null))
  return family.map((one, index) => {
    const value = values[index]
    return one === null || value === null || value === undefined ? null : { ...one, holm: value }
  })
}

const sampleOf = ({ id, print }: PrintedAnswer): string => `${id}\n${print}`

// What is measured of the answers of one condition, or of one cell of it: outcomes, context, work and time.

export interface Measures {
  /** Samples that were answered; errors are counted elsewhere and are in no mean. */
  readonly answered: number
  readonly accuracy: Estimate
  readonly outcomes: Readonly<Record<SampleAnswer['score']['outcome'], number>>
  readonly troubles: Troubles
  /** Means over samples, in tokens: the context at the end of the first step, at most, and at the answer. */
  readonly context: SampleAnswer['tokens']
  /** `after` as a share of `before`, of these means; null where nothing was shown. */
  readonly kept: number | null
  /** Means over samples, in tokens summed over steps. */
  readonly work: SampleAnswer['work']
  /** Share of the tokens shown that were in the cache; null where nothing was shown. */
  readonly reused: number | null
  /** Means over samples; `other` is wall time that none of the three accounts for, such as tools and waiting for other samples. */
  readonly milliseconds: SampleAnswer['milliseconds'] & { readonly other: number }
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
export function measure(answers: readonly SampleAnswer[]): Measures | null {
  const accuracy = estimate(answers.map(({ score }) => score))
  if (accuracy === null) return null
  const average = (of: (answer: SampleAnswer) => number): number => mean(answers.map(of))
  const count = (has: (answer: SampleAnswer) => boolean): number => answers.filter(has).length
  const total = (of: (answer: SampleAnswer) => number): number => answers.reduce((sum, answer) => sum + of(answer), 0)
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

export function toolUse(answers: readonly SampleAnswer[]): ToolUse {
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
