/** Owns which conditions are compared with which: with the baseline's answers to the same samples, and corrected for how many comparisons there are. */
import type { AgentKind } from '../agent.js'
import { difference, type Difference, holm, pairedTest, type PairedTest } from './estimates.js'
import type { Condition, PrintedAnswer, ReportAgent } from './gather.js'

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
