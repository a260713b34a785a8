/**
 * Measures the answers of one condition (an agent, a contract and a task) or of one of its cells. Estimates the accuracy over all possible
 * samples, with intervals. Chooses each condition's baseline, and tests the condition against it.
 */
import { mean } from '../../runtime/core/mean.js'
import { bootstrap, type Interval } from '../attention/statistics.js'
import { Random } from '../../runtime/core/random.js'
import { type Estimate, estimate } from '../accuracy.js'
import { type AgentKind, fitted } from '../agent.js'
import type { SampleAnswer } from '../run/plan.js'
import type { Score } from '../task.js'
import type { Condition, PrintedAnswer, ReportAgent } from './gather.js'

// Below: estimates of accuracy and differences for all possible samples, each with a 95 % interval.

interface Difference {
  readonly value: number
  /** The bootstrap interval over pairs; null if all differences are equal. */
  readonly interval: Interval | null
}

/** Returns the mean of `ours - theirs`; null without pairs. A pair has the points of two conditions for the same sample. */
export function difference(pairs: readonly (readonly [number, number])[]): Difference | null {
  if (pairs.length === 0) return null
  const apart = pairs.map(([ours, theirs]) => ours - theirs)
  const same = apart.every((one) => Math.abs(one - apart[0]!) < 1e-12)
  return { value: mean(apart), interval: same ? null : bootstrap(apart, (some) => mean(some)) }
}

// Below: tests of two conditions on the same samples: McNemar's for right or wrong, sign flips for partial points, with Holm's correction.

interface PairedTest {
  /**
   * `mcnemar`: the exact test, used if all points are 0 or 1. `sign-flip`: a permutation test of the mean difference, for partial points.
   */
  readonly test: 'mcnemar' | 'sign-flip'
  /** Number of samples that both conditions answered. */
  readonly pairs: number
  /** `better`: number of pairs in which the first condition has more points than the second. `worse`: number in which it has fewer. */
  readonly better: number
  readonly worse: number
  /** The two-sided p value. */
  readonly p: number
  /** False if the test drew random signs and did not try all of them. */
  readonly exact: boolean
}

/** With up to this many non-zero differences, the sign-flip test tries all combinations of signs. */
const ALL_SIGNS = 16
/** Number of random sign combinations for more differences than `ALL_SIGNS`. The smallest possible p is 1 / (DRAWS + 1). */
const DRAWS = 20_000
/** Numbers that differ by less count as equal. Sums of the same points in another order differ a little by rounding. */
const SAME = 1e-9

/** Tests whether two conditions differ. A pair has their points (0 to 1) for one sample. Null without pairs. */
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

/**
 * McNemar's exact test: under the null hypothesis, each side of a differing pair is equally likely to be better. Returns the two-sided p; 1
 * if no pair differs.
 */
export function mcnemar(better: number, worse: number): number {
  const all = better + worse
  const fewer = Math.min(better, worse)
  // The logarithm of the probability that the first condition is better in exactly k of `all` pairs; 2 ** -all itself may underflow.
  let logChance = -all * Math.LN2
  let sum = 0
  for (let k = 0; k <= fewer; k++) {
    sum += Math.exp(logChance)
    logChance += Math.log((all - k) / (k + 1))
  }
  return Math.min(1, 2 * sum)
}

/** Returns the exact p: the share of sign combinations whose sum is at least as far from 0 as the observed sum. */
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

/** Estimates the p of `allSigns` from random signs. The observed signs count as one more draw. The same differences give the same p. */
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
 * Holm's correction of the p values of one family. Returns for each p, in the given order, the smallest significance level at which Holm's
 * procedure rejects its hypothesis. A null is a comparison that could not be made: it stays null and does not count.
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
  /** Null: the same contract as the compared condition; or the baseline's only contract, if it ran under one only. */
  readonly contract: string | null
}

export interface Comparison {
  /** Index of the baseline's condition in the summary's list. */
  readonly with: number
  readonly difference: Difference
  readonly test: PairedTest
  /** The measures of both conditions over the samples that both answered. */
  readonly ours: Measures
  readonly theirs: Measures
  /** The test's p value with Holm's correction over all comparisons of its table. */
  readonly holm: number
}

/** Returns the index of the condition that is this one's baseline. Null for the baseline itself, and if no condition fits. */
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
  // An agent is compared with itself under another contract only if the baseline names a contract.
  const same = found === undefined || found === condition || (contract === null && found.agent === condition.agent)
  return same ? null : conditions.indexOf(found)
}

export type Uncorrected = Omit<Comparison, 'holm'>

/** Compares two conditions on the samples that both answered; null if there are none. `index`: the index of `theirs` in the summary. */
export function compared(ours: readonly PrintedAnswer[], theirs: readonly PrintedAnswer[], index: number): Uncorrected | null {
  const by = new Map(theirs.map((answer) => [sampleOf(answer), answer]))
  const both = ours.flatMap((answer): (readonly [PrintedAnswer, PrintedAnswer])[] => {
    const other = by.get(sampleOf(answer))
    return other === undefined ? [] : [[answer, other]]
  })
  const points = both.map(([one, other]) => [one.score.points, other.score.points] as const)
  const [apart, test] = [difference(points), pairedTest(points)]
  const [own, others] = [measure(both.map(([one]) => one)), measure(both.map(([, other]) => other))]
  return apart === null || test === null || own === null || others === null
    ? null
    : { with: index, difference: apart, test, ours: own, theirs: others }
}

/** Adds the p value with Holm's correction to each comparison. `family`: all comparisons of one table. */
export function corrected(family: readonly (Uncorrected | null)[]): (Comparison | null)[] {
  const values = holm(family.map((one) => one?.test.p ?? null))
  return family.map((one, index) => {
    const value = values[index]
    return one === null || value === null || value === undefined ? null : { ...one, holm: value }
  })
}

const sampleOf = ({ id, print }: PrintedAnswer): string => `${id}\n${print}`

// Below: measures of the answers of one condition or cell: outcomes, context, work and time.

export interface Measures {
  /** Number of answered samples. Samples that ended with an error are only in `MeasuredResult.errors`. */
  readonly answered: number
  readonly accuracy: Estimate
  readonly outcomes: Readonly<Record<SampleAnswer['score']['outcome'], number>>
  readonly troubles: Troubles
  /**
   * Mean tokens in the context: `before` at the end of the first step, `most` at the largest step, `after` at the answer. `after` leaves
   * out samples that overflowed the context, because they have no answering step; null if all did.
   */
  readonly context: Omit<SampleAnswer['tokens'], 'after'> & { readonly after: number | null }
  /** Mean of `after` divided by the mean of `before`, over the samples that count for `after`. Null without such samples. */
  readonly kept: number | null
  /** Means over samples: the number of steps, and tokens summed over the steps. */
  readonly work: SampleAnswer['work']
  /** The share of the shown tokens that were in the cache; null if no tokens were shown. */
  readonly reused: number | null
  /** Means over samples. `other`: wall time outside cache, prefill and decode, such as tools and waiting for other samples. */
  readonly milliseconds: SampleAnswer['milliseconds'] & { readonly other: number }
  /** The cost per right answer: time or tokens of all answers, divided by the sum of their points. Null if no answer has points. */
  readonly perRight: { readonly milliseconds: number; readonly submitted: number; readonly generated: number } | null
  /** Means over samples of the scorer's counts, such as `older`. */
  readonly details: Readonly<Record<string, number>>
  /** Means over samples of the agent's own counts, such as the passages found. */
  readonly own: Readonly<Record<string, number>>
}

/** Numbers of samples and calls in which something went wrong, whatever the score. */
export interface Troubles {
  /** Number of samples whose answer hit the token limit. */
  readonly cutOff: number
  readonly cancelled: number
  /**
   * `refusedCalls`: number of calls refused because the turn had used up its calls. `refusedSamples`: number of samples with such calls.
   */
  readonly refusedCalls: number
  readonly refusedSamples: number
  /** Number of calls that returned an error. */
  readonly failedCalls: number
}

/** Computes the measures of these answers; null without answers. */
export function measure(answers: readonly SampleAnswer[]): Measures | null {
  const accuracy = estimate(answers.map(({ score }) => score))
  if (accuracy === null) return null
  const count = (has: (answer: SampleAnswer) => boolean): number => answers.filter(has).length
  const total = (of: (answer: SampleAnswer) => number): number => answers.reduce((sum, answer) => sum + of(answer), 0)
  const outcomes = (of: Score['outcome']) => count(({ score }) => score.outcome === of)
  const points = total(({ score }) => score.points)
  const { before, most } = means(answers.map(({ tokens }) => tokens))
  const ended = answers.filter(fitted).map(({ tokens }) => tokens)
  const whole = ended.length === 0 ? null : means(ended)
  const work = means(answers.map((answer) => answer.work))
  const time = means(answers.map(({ milliseconds }) => milliseconds))
  return {
    answered: answers.length,
    accuracy,
    outcomes: {
      ...{ right: outcomes('right'), partial: outcomes('partial') },
      ...{ wrong: outcomes('wrong'), unparsed: outcomes('unparsed') },
    },
    troubles: {
      cutOff: count(({ end }) => end === 'length'),
      cancelled: count(({ end }) => end === 'cancelled'),
      refusedCalls: total(({ refusedCalls }) => refusedCalls),
      refusedSamples: count(({ refusedCalls }) => refusedCalls > 0),
      failedCalls: total(({ calls }) => calls.filter(({ failed }) => failed).length),
    },
    context: { before, most, after: whole?.after ?? null },
    kept: whole === null || whole.before === 0 ? null : whole.after / whole.before,
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

/** Returns the mean of each named count over all records. A record without a name counts as 0. */
function means<Counts extends Readonly<Record<string, number>>>(counts: readonly Counts[]): Counts {
  const names = [...new Set(counts.flatMap((one) => Object.keys(one)))]
  return Object.fromEntries(names.map((name) => [name, mean(counts.map((one) => one[name] ?? 0))])) as Counts
}

// Below: how the answers used tools: how often, how evenly, in which order, and how many folds they restored.

export interface ToolUse {
  readonly samples: number
  /** Number of calls, including failed ones. */
  readonly calls: number
  readonly failed: number
  /** Number of samples without a call. */
  readonly without: number
  /** Number of calls per tool, over all samples. */
  readonly counts: Readonly<Record<string, number>>
  /** Shannon entropy of the tools' shares of the calls, in bits: 0 for one tool, 2.58 for six equally frequent ones. Null without calls. */
  readonly entropy: number | null
  /** Successful restore calls per successful fold or summary call; null without folds and summaries. */
  readonly restoreRate: number | null
  /** Calls per tool, by position in the sample: entry 0 counts the first calls of all samples, entry 1 the second calls, and so on. */
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

/** Returns the Shannon entropy in bits; null if all counts are 0. */
export function entropy(counts: readonly number[]): number | null {
  const all = counts.reduce((sum, count) => sum + count, 0)
  if (all === 0) return null
  const parts = counts.filter((count) => count > 0).map((count) => -(count / all) * Math.log2(count / all))
  // A single tool would give -0.
  return Math.max(
    0,
    parts.reduce((sum, part) => sum + part, 0),
  )
}

/** Counts how often each name occurs. Uses a Map, because a model may write any name, for example `constructor`. */
function counted(names: readonly string[]): Readonly<Record<string, number>> {
  const counts = new Map<string, number>()
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1)
  return Object.fromEntries(counts)
}
