/** Owns what a study finds: the paper's statistics on the changes of all pairs, intervals over seeds, and the interference against updates. */
import type { Contract } from '../../runtime/core/contract.js'
import {
  baselineChangeOf,
  changeOf,
  othersChangeOf,
  type From,
  FROMS,
  type PairComparison,
  type Masses,
  meanMasses,
  type Pair,
  type PairStatus,
  seenFrom,
} from './pairs.js'
import type { PromptRecord, StudyRecord } from './run-folder.js'
import { mean } from '../../runtime/core/mean.js'
import {
  bootstrap,
  describe,
  type Description,
  type Interval,
  median,
  pairSums,
  squaredCorrelationOf,
  tTest,
  type TTest,
  wilcoxon,
  type Wilcoxon,
} from './statistics.js'

/** A figure with its 95 % bootstrap interval over seeds; no interval for a single seed. */
export interface FindingFigure {
  readonly value: number
  readonly interval: Interval | null
}

/** Folded against complete under one contract, from one kind of tokens: changes in percent. */
export interface Finding {
  readonly contract: Contract
  readonly from: From
  readonly seeds: number
  /** Pairs by what became of them. */
  readonly counts: Readonly<Record<PairStatus, number>>
  /** Measured pairs with a change; what follows is of these, and null where there are none. */
  readonly pairs: number
  readonly improved: number
  readonly improvedShare: FindingFigure | null
  readonly meanChange: FindingFigure | null
  readonly medianChange: FindingFigure | null
  /** What softmax arithmetic alone makes of it: every weight over what is left of 1 without the folded text (Pair.baseline). */
  readonly baselineMeanChange: FindingFigure | null
  /** Observed less that, pair by pair: what is left for folding to have done. */
  readonly excessMeanChange: FindingFigure | null
  /** Squared Pearson correlation of the two changes over pairs. */
  readonly baselineR2: FindingFigure | null
  /** When as many tokens of words of no key are folded, in the place of the older updates; and what arithmetic alone makes of that. */
  readonly placeboMeanChange: FindingFigure | null
  readonly placeboBaselineMeanChange: FindingFigure | null
  /** The same with updates of keys that nobody asks for. */
  readonly unaskedMeanChange: FindingFigure | null
  readonly unaskedBaselineMeanChange: FindingFigure | null
  /** Of the mass on all other tokens of the stream that stay open. */
  readonly othersMeanChange: FindingFigure | null
  readonly range: readonly [least: number, most: number] | null
  readonly deviation: number | null
  /** Squared Pearson correlation of complete and folded weights. */
  readonly r2: FindingFigure | null
  /** As in the paper: every pair counts as independent of the others. */
  readonly overPairs: Tests
  /** On the mean change of each seed: seeds are independent, pairs of one prompt are not. */
  readonly overSeeds: Tests
  /** The same on the mean excess of each seed. */
  readonly excessOverSeeds: Tests
  /** By how far from the end of the stream a key's value stands. */
  readonly byDistance: readonly DistanceRow[]
  /** Means over the measured pairs. */
  readonly complete: Masses | null
  readonly folded: Masses | null
  /** Measured pairs whose weight in the complete prompt is less than if all shown tokens had the same: where a value is not looked for. */
  readonly belowEven: number
}

/** Pairs whose current value has `from` to `to` updates behind it (null: or more). */
export interface DistanceRow {
  readonly from: number
  readonly to: number | null
  readonly pairs: number
  /** Whose value the answer does not give: errors, where the answer is the model's own. */
  readonly unanswered: number
  readonly meanChange: FindingFigure | null
  readonly excessMeanChange: FindingFigure | null
}

/** Updates from the end at which ranges of distance begin; those of the bench of interference. */
const DISTANCES = [0, 15, 30, 60] as const

export interface Tests {
  readonly t: TTest | null
  readonly wilcoxon: Wilcoxon | null
}

/** One point of a curve; null contract: the complete prompt. */
export interface InterferencePoint {
  readonly n: number
  readonly contract: Contract | null
  readonly from: From
  readonly seeds: number
  readonly pairs: number
  /** Mass on the key's earlier values, and on the current one. */
  readonly older: FindingFigure
  readonly current: FindingFigure
}

/** Findings for one contract, from the records of prompts with the same number of updates. */
export function findingOf(records: readonly PromptRecord[], contract: Contract, from: From): Finding {
  const everyone = records.map((record) => pairsUnder(record.comparisons, contract))
  const groups = everyone.map((pairs, at) => pairs.flatMap((pair) => changed(pair, from, records[at]!.shown)))
  const within = (comparisons: readonly PairComparison[] | null, { shown }: PromptRecord) =>
    pairsUnder(comparisons ?? [], contract).flatMap((pair) => changed(pair, from, shown))
  const placebos = records.map((record) => within(record.placebo, record))
  const unasked = records.map((record) => within(record.unasked, record))
  const meanOver = (sides: readonly (readonly ChangedMass[])[], of: (pair: ChangedMass) => number) =>
    meanOf(sides.map((pairs) => pairs.map(of)))
  const all = groups.flat()
  const changes = all.map(({ change }) => change)
  const description: Description | null = describe(changes)
  const seedMeans = (of: (pair: ChangedMass) => number) =>
    groups.flatMap((pairs) => (pairs.length === 0 ? [] : [mean(pairs.map(of))]))
  const count = (status: PairStatus): number => everyone.flat().filter((pair) => pair.status === status).length
  return {
    contract,
    from,
    seeds: records.length,
    counts: { measured: count('measured'), 'folded-away': count('folded-away'), unanswered: count('unanswered') },
    pairs: all.length,
    improved: changes.filter((change) => change > 0).length,
    improvedShare: meanOver(groups, ({ change }) => Number(change > 0)),
    meanChange: meanOver(groups, ({ change }) => change),
    medianChange: medianOf(groups.map((items) => items.map(({ change }) => change))),
    baselineMeanChange: meanOver(groups, ({ alone }) => alone),
    excessMeanChange: meanOver(groups, ({ change, alone }) => change - alone),
    baselineR2: correlationOf(groups.map((items) => items.map(({ change, alone }) => [change, alone]))),
    placeboMeanChange: meanOver(placebos, ({ change }) => change),
    placeboBaselineMeanChange: meanOver(placebos, ({ alone }) => alone),
    unaskedMeanChange: meanOver(unasked, ({ change }) => change),
    unaskedBaselineMeanChange: meanOver(unasked, ({ alone }) => alone),
    othersMeanChange: meanOf(
      everyone.map((pairs) => pairs.flatMap((pair) => (isMeasured(pair) ? (othersChangeOf(pair, from) ?? []) : []))),
    ),
    range: description === null ? null : [description.least, description.most],
    deviation: description?.deviation ?? null,
    r2: correlationOf(groups.map((items) => items.map(({ before, after }) => [before.weight, after.weight]))),
    overPairs: testsOf(changes),
    overSeeds: testsOf(seedMeans(({ change }) => change)),
    excessOverSeeds: testsOf(seedMeans(({ change, alone }) => change - alone)),
    byDistance: DISTANCES.map((start, at): DistanceRow => {
      const end = DISTANCES[at + 1] ?? Infinity
      const near = ({ distance }: { readonly distance: number }) => distance >= start && distance < end
      const own = groups.map((pairs) => pairs.filter(near))
      return {
        from: start,
        to: end === Infinity ? null : end - 1,
        pairs: own.flat().length,
        unanswered: everyone.flat().filter((pair) => near(pair) && pair.status === 'unanswered').length,
        meanChange: meanOver(own, ({ change }) => change),
        excessMeanChange: meanOver(own, ({ change, alone }) => change - alone),
      }
    }),
    complete: meanMasses(all.map(({ before }) => before)),
    folded: meanMasses(all.map(({ after }) => after)),
    belowEven: all.filter(({ before, shown }) => before.weight < 1 / shown).length,
  }
}

/** One point of the curve. Null where no pair has the side. */
export function interferenceOf(
  n: number,
  records: readonly PromptRecord[],
  contract: Contract | null,
  from: From,
): InterferencePoint | null {
  const groups = records.map((record): Masses[] => {
    const pairs = contract === null ? (record.comparisons[0]?.pairs ?? []) : pairsUnder(record.comparisons, contract)
    return pairs.flatMap((pair) => seenFrom(contract === null ? pair.complete : pair.folded, from) ?? [])
  })
  const average = (of: 'older' | 'current'): FindingFigure | null =>
    meanOf(groups.map((items) => items.map((masses) => masses[of])))
  const [older, current] = [average('older'), average('current')]
  if (older === null || current === null) return null
  return { n, contract, from, seeds: records.length, pairs: groups.flat().length, older, current }
}

interface ChangedMass {
  readonly change: number
  /** What softmax arithmetic alone makes of it. */
  readonly alone: number
  readonly before: Masses
  readonly after: Masses
  readonly shown: number
  readonly distance: number
}

const isMeasured = ({ status }: Pair): boolean => status === 'measured'

function changed(pair: Pair, from: From, shown: number): ChangedMass[] {
  const [change, alone] = [changeOf(pair, from), baselineChangeOf(pair, from)]
  const [before, after] = [seenFrom(pair.complete, from), seenFrom(pair.folded, from)]
  return change === null || alone === null || before === null || after === null
    ? []
    : [{ change, alone, before, after, shown, distance: pair.distance }]
}

const pairsUnder = (comparisons: readonly PairComparison[], contract: Contract): readonly Pair[] =>
  comparisons.find((comparison) => comparison.contract === contract)?.pairs ?? []

/** Null where the figure of all groups is; groups without items count for nothing. */
function figureOf<Group>(groups: readonly Group[], of: (drawn: readonly Group[]) => number | null): FindingFigure | null {
  const value = groups.length === 0 ? null : of(groups)
  return value === null ? null : { value, interval: bootstrap(groups, of) }
}

const filled = <Item>(groups: readonly (readonly Item[])[]): readonly (readonly Item[])[] =>
  groups.filter(({ length }) => length > 0)

function meanOf(groups: readonly (readonly number[])[]): FindingFigure | null {
  const sums = filled(groups).map((items) => ({ sum: items.reduce((a, b) => a + b, 0), count: items.length }))
  return figureOf(sums, (drawn) => {
    let [sum, count] = [0, 0]
    for (const group of drawn) {
      sum += group.sum
      count += group.count
    }
    return sum / count
  })
}

const medianOf = (groups: readonly (readonly number[])[]): FindingFigure | null =>
  figureOf(filled(groups), (drawn) => median(drawn.flat()))

function correlationOf(groups: readonly (readonly (readonly [number, number])[])[]): FindingFigure | null {
  const all = groups.flat()
  if (all.length === 0) return null
  const centre = [mean(all.map(([x]) => x)), mean(all.map(([, y]) => y))] as const
  return figureOf(
    filled(groups).map((pairs) => pairSums(pairs, centre)),
    squaredCorrelationOf,
  )
}

const testsOf = (values: readonly number[]): Tests => ({ t: tTest(values), wilcoxon: wilcoxon(values) })

// The summary of a study as plain data: what was found, beside what the paper says.

/** Raised when a field changes its meaning. */
export const SCHEMA = 'kvfold.attention/1'

/** Sculptor, section 4.3 and figure 5: another model (theirs), one prompt with 46 pairs, changes in percent. Not ours. */
export const PAPER = {
  source: 'Sculptor, section 4.3 (their model, their prompt)',
  pairs: 46,
  improved: 43,
  improvedShare: 0.935,
  meanChange: 9.87,
  medianChange: 9.9,
  range: [-6.86, 37.56],
  r2: 0.97,
  p: '< 0.001',
} as const

export interface SummaryInput {
  readonly model: { readonly name: string; readonly fingerprint: string; readonly layers: number; readonly heads: number }
  /** llama.cpp's, and ours. */
  readonly versions: Readonly<Record<string, string>>
  readonly date: string
  /** The command that makes it again. */
  readonly command: string
  readonly options: Readonly<Record<string, unknown>>
  /** Updates of every key in the comparison. */
  readonly n: number
  readonly contracts: readonly Contract[]
  readonly records: readonly StudyRecord[]
}

export interface StudySummary extends Omit<SummaryInput, 'records'> {
  readonly schema: typeof SCHEMA
  /** For each contract first from the value's tokens, as in the paper, then from the token before. */
  readonly findings: readonly Finding[]
  readonly interference: readonly InterferencePoint[]
  readonly paper: typeof PAPER
}

/** Pure. */
export function summarise({ records, ...input }: SummaryInput): StudySummary {
  const prompts = records.filter((record): record is PromptRecord => record.part === 'prompt')
  const own = prompts.filter(({ n }) => n === input.n)
  const sizes = [...new Set(prompts.map(({ n }) => n))].sort((a, b) => a - b)
  return {
    schema: SCHEMA,
    ...input,
    findings: input.contracts.flatMap((contract) => FROMS.map((from) => findingOf(own, contract, from))),
    interference: FROMS.flatMap((from) =>
      sizes.flatMap((n) => {
        const of = prompts.filter((prompt) => prompt.n === n)
        return [null, ...input.contracts].flatMap((contract) => interferenceOf(n, of, contract, from) ?? [])
      }),
    ),
    paper: PAPER,
  }
}
