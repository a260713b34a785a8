/**
 * Computes the findings of an attention study: the paper's statistics on how a fold changes the attention to each key's value, with
 * intervals over seeds. Also how interference grows with the number of updates.
 */
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
import type { PromptRecord, StudyRecord } from './records.js'
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
  wilson,
} from './statistics.js'

/** A number with its 95 % interval over seeds, mostly a bootstrap. `interval` is null for a single seed. */
export interface FindingFigure {
  readonly value: number
  readonly interval: Interval | null
}

/**
 * Compares the folded with the complete prompts, under one contract. `from`: which tokens of the answer are the queries. Changes are in
 * percent.
 */
export interface Finding {
  readonly contract: Contract
  readonly from: From
  readonly seeds: number
  /** Number of pairs with each status. */
  readonly counts: Readonly<Record<PairStatus, number>>
  /** Number of pairs that were measured in both prompts. The fields below are about these pairs, and null without any. */
  readonly pairs: number
  readonly improved: number
  readonly improvedShare: FindingFigure | null
  readonly meanChange: FindingFigure | null
  readonly medianChange: FindingFigure | null
  /**
   * The change of the mean weight of all pairs. In the mean of the single changes every pair counts alike; here pairs with little weight
   * count little.
   */
  readonly changeOfMean: FindingFigure | null
  /**
   * The change that softmax arithmetic alone would make: each weight divided by the share of attention outside the folded text
   * (`Pair.baseline`).
   */
  readonly baselineMeanChange: FindingFigure | null
  /** The observed change less the change by softmax arithmetic, pair by pair. Only this remainder can be an effect of folding itself. */
  readonly excessMeanChange: FindingFigure | null
  /** Squared Pearson correlation, over pairs, of the observed change and the change by softmax arithmetic. */
  readonly baselineR2: FindingFigure | null
  /** The change in a control: made-up words with as many tokens replace the older updates, and are folded. */
  readonly placeboMeanChange: FindingFigure | null
  /** The change by softmax arithmetic alone in the control with made-up words. */
  readonly placeboBaselineMeanChange: FindingFigure | null
  /**
   * The change in a second control: the older updates, under made-up keys that the question does not ask for, replace the originals and are
   * folded.
   */
  readonly unaskedMeanChange: FindingFigure | null
  readonly unaskedBaselineMeanChange: FindingFigure | null
  /** The excess less that of the control with made-up words, pair by pair: what a fold of real updates adds to a fold of any text. */
  readonly beyondPlacebo: FindingFigure | null
  /** The excess less that of the control with unasked keys, pair by pair: what it adds that the folded text is about the asked keys. */
  readonly beyondUnasked: FindingFigure | null
  /** Mean change of the attention to the stream's other visible tokens: those that no fold hides, without the key's current value. */
  readonly othersMeanChange: FindingFigure | null
  readonly range: readonly [least: number, most: number] | null
  readonly deviation: number | null
  /** Squared Pearson correlation, over pairs, of the weights in the complete and in the folded prompt. */
  readonly r2: FindingFigure | null
  /** Tests over all pairs as if they were independent, as in the paper. */
  readonly overPairs: Tests
  /** Tests over one value per seed, its mean change. Seeds are independent; pairs of one prompt are not. */
  readonly overSeeds: Tests
  /** Tests over each seed's mean excess: the observed change less the change by softmax arithmetic. */
  readonly excessOverSeeds: Tests
  /** Tests over each seed's mean of `beyondUnasked`. */
  readonly beyondUnaskedOverSeeds: Tests
  /** Number of prompts whose step fell back to another contract. They count in no other field. */
  readonly fellBack: number
  /** Findings by the number of updates between a key's current value and the end of the stream. */
  readonly byDistance: readonly DistanceRow[]
  /** Mean attention over the measured pairs: `complete` in the complete prompts, `folded` in the folded ones. */
  readonly complete: Masses | null
  readonly folded: Masses | null
  /**
   * Number of pairs whose value gets less attention in the complete prompt than if all shown tokens got the same. For these pairs the model
   * does not look for the value.
   */
  readonly belowEven: number
}

/** The changes that tables show: the column's title, and the field of the finding. */
export const CHANGES = [
  ['arithmetic alone', 'baselineMeanChange'],
  ['excess', 'excessMeanChange'],
  ['beyond placebo', 'beyondPlacebo'],
  ['beyond unasked', 'beyondUnasked'],
  ['others', 'othersMeanChange'],
] as const satisfies readonly (readonly [title: string, of: keyof Finding])[]

/** The findings about pairs with `from` to `to` updates after their current value. `to` null: no upper limit. */
export interface DistanceRow {
  readonly from: number
  readonly to: number | null
  readonly pairs: number
  /** Number of pairs whose value the answer does not give. They are the model's errors only if the model generated the answer. */
  readonly unanswered: number
  readonly meanChange: FindingFigure | null
  readonly excessMeanChange: FindingFigure | null
}

/** The first distance of each range, in updates from the end of the stream. The benchmark `interference` uses the same ranges. */
const DISTANCES = [0, 15, 30, 60] as const

export interface Tests {
  readonly t: TTest | null
  readonly wilcoxon: Wilcoxon | null
}

/**
 * One point of the interference curve. In its prompt, every key of the stream (a name such as `island`) gets a new value `n` times.
 * `contract`: the contract under which the outdated values were folded; null for the complete prompt.
 */
export interface InterferencePoint {
  readonly n: number
  readonly contract: Contract | null
  readonly from: From
  readonly seeds: number
  readonly pairs: number
  /** `older`: share of the attention on the key's earlier values. `current`: share on its current value. */
  readonly older: FindingFigure
  readonly current: FindingFigure
}

/** Returns the finding for one contract and one kind of query tokens. All records must have the same number of updates per key. */
export function findingOf(all: readonly PromptRecord[], contract: Contract, from: From): Finding {
  const records = all.filter((record) => kept(record, contract))
  const everyone = records.map((record) => pairsUnder(record.comparisons, contract))
  const groups = everyone.map((pairs, at) => pairs.flatMap((pair) => changed(pair, from, records[at]!.shown)))
  const within = (comparisons: readonly PairComparison[] | null, { shown }: PromptRecord) =>
    pairsUnder(comparisons ?? [], contract).flatMap((pair) => changed(pair, from, shown))
  const placebos = records.map((record) => within(record.placebo, record))
  const unasked = records.map((record) => within(record.unasked, record))
  const meanOver = (sides: readonly (readonly ChangedMass[])[], of: (pair: ChangedMass) => number) =>
    meanOf(sides.map((pairs) => pairs.map(of)))
  const every = groups.flat()
  const changes = every.map(({ change }) => change)
  const beyond = (control: readonly (readonly ChangedMass[])[]) =>
    groups.map((pairs, at) =>
      pairs.flatMap((pair) => {
        const other = control[at]!.find(({ key }) => key === pair.key)
        return other === undefined ? [] : [pair.change - pair.alone - (other.change - other.alone)]
      }),
    )
  const description: Description | null = describe(changes)
  const meansOf = (sides: readonly (readonly number[])[]) => filled(sides).map(mean)
  const seedMeans = (of: (pair: ChangedMass) => number) => meansOf(groups.map((pairs) => pairs.map(of)))
  const count = (status: PairStatus): number => everyone.flat().filter((pair) => pair.status === status).length
  return {
    contract,
    from,
    seeds: records.length,
    counts: { measured: count('measured'), 'folded-away': count('folded-away'), unanswered: count('unanswered') },
    pairs: every.length,
    improved: changes.filter((change) => change > 0).length,
    improvedShare: shareOf(groups.map((pairs) => pairs.map(({ change }) => change > 0))),
    meanChange: meanOver(groups, ({ change }) => change),
    medianChange: medianOf(groups.map((items) => items.map(({ change }) => change))),
    changeOfMean: changeOfMeans(groups),
    baselineMeanChange: meanOver(groups, ({ alone }) => alone),
    excessMeanChange: meanOver(groups, ({ change, alone }) => change - alone),
    baselineR2: correlationOf(groups.map((items) => items.map(({ change, alone }) => [change, alone]))),
    placeboMeanChange: meanOver(placebos, ({ change }) => change),
    placeboBaselineMeanChange: meanOver(placebos, ({ alone }) => alone),
    unaskedMeanChange: meanOver(unasked, ({ change }) => change),
    unaskedBaselineMeanChange: meanOver(unasked, ({ alone }) => alone),
    beyondPlacebo: meanOf(beyond(placebos)),
    beyondUnasked: meanOf(beyond(unasked)),
    othersMeanChange: meanOf(
      everyone.map((pairs) => pairs.flatMap((pair) => (isMeasured(pair) ? (othersChangeOf(pair, from) ?? []) : []))),
    ),
    range: description === null ? null : [description.least, description.most],
    deviation: description?.deviation ?? null,
    r2: correlationOf(groups.map((items) => items.map(({ before, after }) => [before.weight, after.weight]))),
    overPairs: testsOf(changes),
    overSeeds: testsOf(seedMeans(({ change }) => change)),
    excessOverSeeds: testsOf(seedMeans(({ change, alone }) => change - alone)),
    beyondUnaskedOverSeeds: testsOf(meansOf(beyond(unasked))),
    fellBack: all.length - records.length,
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
    complete: meanMasses(every.map(({ before }) => before)),
    folded: meanMasses(every.map(({ after }) => after)),
    belowEven: every.filter(({ before, shown }) => before.weight < 1 / shown).length,
  }
}

/**
 * Returns one point of an interference curve; null if no pair was measured. `contract` null: the complete prompt. All curves use the same
 * pairs: those that were measured under every contract. A contract that every prompt fell back from has no point and does not count.
 */
export function interferenceOf(
  n: number,
  records: readonly PromptRecord[],
  contract: Contract | null,
  from: From,
): InterferencePoint | null {
  const all = new Set(records.flatMap(({ comparisons }) => comparisons.map((one) => one.contract)))
  const contracts = [...all].filter((each) => records.some((record) => kept(record, each)))
  if (contract !== null && !contracts.includes(contract)) return null
  const own = records.filter((record) => contracts.every((each) => kept(record, each)))
  const groups = own.map((record): Masses[] => {
    const isThere = measuredUnder(contracts, record)
    const pairs = contract === null ? (record.comparisons[0]?.pairs ?? []) : pairsUnder(record.comparisons, contract)
    return pairs.flatMap((pair, at) =>
      isThere[at] === true ? (seenFrom(contract === null ? pair.complete : pair.folded, from) ?? []) : [],
    )
  })
  const average = (of: 'older' | 'current'): FindingFigure | null =>
    meanOf(groups.map((items) => items.map((masses) => masses[of])))
  const [older, current] = [average('older'), average('current')]
  if (older === null || current === null) return null
  return { n, contract, from, seeds: own.length, pairs: groups.flat().length, older, current }
}

interface ChangedMass {
  readonly key: string
  readonly change: number
  /** The change that softmax arithmetic alone would make, in percent. */
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
    : [{ key: pair.key, change, alone, before, after, shown, distance: pair.distance }]
}

/**
 * Returns for each pair whether it was measured under all the contracts. The comparisons of one prompt list the same pairs in the same
 * order.
 */
const measuredUnder = (contracts: readonly Contract[], { comparisons }: PromptRecord): readonly boolean[] =>
  (comparisons[0]?.pairs ?? []).map((_, at) =>
    comparisons.every((one) => !contracts.includes(one.contract) || isMeasured(one.pairs[at]!)),
  )

/** Whether no step of the prompt fell back from the contract, including the controls. */
export const kept = ({ comparisons, placebo, unasked }: PromptRecord, contract: Contract): boolean =>
  [...comparisons, ...(placebo ?? []), ...(unasked ?? [])].every((one) => one.contract !== contract || one.fallback === null)

const pairsUnder = (comparisons: readonly PairComparison[], contract: Contract): readonly Pair[] =>
  comparisons.find((comparison) => comparison.contract === contract)?.pairs ?? []

/** Computes `of` over all groups, with its bootstrap interval. Null without groups, or if `of` returns null. No group may be empty. */
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

/**
 * Returns the share of true values. If all are true or all false, a bootstrap interval has no width. Then the interval is Wilson's, with
 * one question per prompt, which is wide.
 */
function shareOf(groups: readonly (readonly boolean[])[]): FindingFigure | null {
  const share = meanOf(groups.map((items) => items.map(Number)))
  if (share === null || share.interval === null || (share.value !== 0 && share.value !== 1)) return share
  const prompts = filled(groups).length
  return { ...share, interval: wilson(share.value * prompts, prompts) }
}

/** The change of the mean weight of all pairs, in percent. */
function changeOfMeans(groups: readonly (readonly ChangedMass[])[]): FindingFigure | null {
  const weights = (pairs: readonly ChangedMass[], side: 'before' | 'after') =>
    pairs.reduce((sum, pair) => sum + pair[side].weight, 0)
  const sums = filled(groups).map((pairs) => ({ before: weights(pairs, 'before'), after: weights(pairs, 'after') }))
  return figureOf(sums, (drawn) => {
    let [before, after] = [0, 0]
    for (const sum of drawn) {
      before += sum.before
      after += sum.after
    }
    return 100 * (after / before - 1)
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

// Below: the summary of a study as plain data, with the paper's numbers beside its findings.

/** Name and version of the summary's format. Increase the version when a field changes its meaning. */
export const SCHEMA = 'kvfold.attention/1'

/** The paper's numbers (Sculptor, section 4.3 and figure 5) for its own model and one prompt with 46 pairs; changes in percent. */
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
  /** Versions of llama.cpp and of kvfold. */
  readonly versions: Readonly<Record<string, string>>
  readonly date: string
  /** The command that repeats the study. */
  readonly command: string
  readonly options: Readonly<Record<string, unknown>>
  /** Updates per key in the prompts that `findings` are about. */
  readonly n: number
  readonly contracts: readonly Contract[]
  readonly records: readonly StudyRecord[]
}

export interface StudySummary extends Omit<SummaryInput, 'records'> {
  readonly schema: typeof SCHEMA
  /** Two findings per contract. In the first, the value's tokens are the queries, as in the paper; in the second, the token before them. */
  readonly findings: readonly Finding[]
  readonly interference: readonly InterferencePoint[]
  readonly paper: typeof PAPER
}

/** Computes the summary of a study from its records. Pure. */
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
