/** Owns what is measured of one key-value pair: where the value's tokens in the answer look, in the complete prompt and in the folded one. */
import type { Contract } from '../../runtime/core/contract.js'
import {
  dividedBy,
  type HeadMap,
  type Measurement,
  massOn,
  overall,
  renormalised,
  type WatchedSet,
} from '../../runtime/attention/measurement.js'
import type { MessageSpan } from '../../runtime/attention/places.js'
import { mean } from '../../runtime/core/mean.js'

/** A key and what the prompt says about it. */
export interface WatchedPair {
  readonly key: string
  readonly value: string
  /** Where the value that counts stands. */
  readonly current: MessageSpan
  /** Where earlier values of the same key stand. */
  readonly older: readonly MessageSpan[]
  /** Updates of any key that come after it. */
  readonly distance: number
}

/** Where the tokens of one value in the answer look. */
export interface ValueAttention extends Masses {
  /** From the token before, from which the value was predicted; null where that was not captured. */
  readonly reading: Masses | null
}

/** Weights averaged over layers, heads and looking tokens. */
export interface Masses {
  /** On one token of the same value in the prompt, in the mean: the paper's score (Sculptor, section 4.3). */
  readonly weight: number
  /** On all tokens of it. */
  readonly current: number
  /** On all tokens of the key's earlier values that are shown: interference. */
  readonly older: number
  /** On all other tokens of the text that stays open: what rises by arithmetic alone rises there, too. */
  readonly others: number
}

/**
 * `measured`: both sides are there. `folded-away`: the value is not shown in the folded prompt. `unanswered`: an answer does not give the value,
 * so there are no tokens to look from.
 */
export type PairStatus = 'measured' | 'folded-away' | 'unanswered'

/** One pair of one prompt under one contract. */
export interface Pair {
  readonly key: string
  readonly value: string
  readonly status: PairStatus
  /** Tokens of the value in the prompt. */
  readonly tokens: number
  /** Updates of any key that come after its current value. */
  readonly distance: number
  /** Earlier values shown in the folded prompt. */
  readonly olderShown: number
  readonly complete: ValueAttention | null
  readonly folded: ValueAttention | null
  /** The weight that the folded prompt would have if a fold were softmax arithmetic alone, from the complete prompt (`renormalised`). */
  readonly baseline: { readonly value: number; readonly reading: number | null } | null
}

/** Mean over the measured pairs of one prompt, of one layer and head. */
export interface HeadRow {
  readonly layer: number
  readonly head: number
  readonly complete: ValueAttention
  readonly folded: ValueAttention
}

/**
 * From which tokens of the answer is looked: `value`, those of the value, as the paper has it; `reading`, the token before them, from which the
 * value was predicted. Many models look a value up there, and look elsewhere once it is written.
 */
export type From = 'value' | 'reading'
export const FROMS: readonly From[] = ['value', 'reading']
/** What the looking tokens are called. */
export const FROM_NAMES: Readonly<Record<From, string>> = {
  value: "from the value's tokens (as in the paper)",
  reading: 'from the token that predicts the value',
}

/** All pairs of one prompt, folded under one contract. */
export interface PairComparison {
  readonly contract: Contract
  /** Why the step did not keep to the contract; null when it did. */
  readonly fallback: string | null
  /** Tokens of the folded prompt, a given answer included. */
  readonly shown: number
  readonly pairs: readonly Pair[]
  readonly heads: readonly HeadRow[]
}

/** The key sets to ask a look for. `open`: the text of the pairs that folds leave; `folded`: what they hide. */
export const watchedSets = (
  pairs: readonly WatchedPair[],
  folded: readonly MessageSpan[] = [],
  open: readonly MessageSpan[] = [],
): WatchedSet[] => [
  ...pairs.flatMap(({ key, current, older }) => [
    { name: currentSet(key), stretches: [current] },
    { name: olderSet(key), stretches: older },
  ]),
  { name: OPEN, stretches: open },
  { name: FOLDED, stretches: folded },
]

const FOLDED = 'all that is folded'
const OPEN = 'all that stays open'

const currentSet = (key: string): string => `current ${key}`
const olderSet = (key: string): string => `older ${key}`

/** Sets the two looks side by side. `said` of a look names keys. */
export function compare(
  pairs: readonly WatchedPair[],
  contract: Contract,
  complete: Measurement,
  folded: Measurement,
): PairComparison {
  const seen = pairs.map((pair) => ({ pair, before: sight(complete, pair.key), after: sight(folded, pair.key) }))
  return {
    contract,
    fallback: folded.fallback,
    shown: folded.prompt.tokens.length,
    pairs: seen.map(({ pair: { key, value, older, distance }, before, after }): Pair => ({
      key,
      value,
      status: statusOf(folded, key, before, after),
      tokens: complete.sets.get(currentSet(key))?.size ?? 0,
      distance,
      olderShown: older.length - (folded.sets.get(olderSet(key))?.hidden ?? 0),
      complete: before === null ? null : glanceOf(before),
      folded: after === null ? null : glanceOf(after),
      baseline:
        before === null
          ? null
          : { value: overall(before.alone), reading: before.reading === null ? null : overall(before.reading.alone) },
    })),
    heads: headRows(seen.flatMap(({ before, after }) => (before === null || after === null ? [] : [{ before, after }]))),
  }
}

function statusOf(folded: Measurement, key: string, before: Sight | null, after: Sight | null): PairStatus {
  if ((folded.sets.get(currentSet(key))?.size ?? 0) === 0) return 'folded-away'
  return before === null || after === null ? 'unanswered' : 'measured'
}

/** One pair in one look, by layer and head. */
interface Sight extends Maps {
  readonly reading: Maps | null
}

/** `alone`: what of `weight` is left or gained where the folded text is taken out of the softmax. */
type Maps = { readonly [Of in keyof Masses | 'alone']: HeadMap }

function sight({ pattern, sets, said }: Measurement, key: string): Sight | null {
  const one = said.get(key)
  const size = sets.get(currentSet(key))?.size ?? 0
  if (pattern === null || one === undefined || size === 0) return null
  const from = (places: readonly number[]): Maps | null => {
    const current = massOn(pattern, places, currentSet(key))
    if (current === null) return null
    // A set without tokens was not asked for: nothing is on it.
    const none = { ...current, values: new Float64Array(current.values.length) }
    const older = massOn(pattern, places, olderSet(key)) ?? none
    const open = massOn(pattern, places, OPEN)
    const others = open === null ? none : { ...open, values: open.values.map((mass, at) => mass - current.values[at]!) }
    const alone = dividedBy(renormalised(pattern, places, currentSet(key), FOLDED)!, size)
    return { weight: dividedBy(current, size), current, older, others, alone }
  }
  const seen = from(one.value)
  return seen === null ? null : { ...seen, reading: from([one.reading]) }
}

const massesOf = ({ weight, current, older, others }: Maps, of: (map: HeadMap) => number): Masses => ({
  weight: of(weight),
  current: of(current),
  older: of(older),
  others: of(others),
})

const glanceOf = (sight: Sight, of: (map: HeadMap) => number = overall): ValueAttention => ({
  ...massesOf(sight, of),
  reading: sight.reading === null ? null : massesOf(sight.reading, of),
})

function headRows(pairs: readonly { readonly before: Sight; readonly after: Sight }[]): HeadRow[] {
  const [first] = pairs
  if (first === undefined) return []
  const { layers, heads } = first.before.weight
  const side = (index: number, of: 'before' | 'after'): ValueAttention =>
    meanGlance(pairs.map((pair) => glanceOf(pair[of], ({ values }) => values[index]!)))!
  return layers.flatMap((layer, row) =>
    heads.map((head, column): HeadRow => {
      const index = row * heads.length + column
      return { layer, head, complete: side(index, 'before'), folded: side(index, 'after') }
    }),
  )
}

/** The mean of each number, `reading` over those that have it; null for none. */
export function meanGlance(glances: readonly ValueAttention[]): ValueAttention | null {
  const own = meanMasses(glances)
  return own === null ? null : { ...own, reading: meanMasses(glances.flatMap(({ reading }) => reading ?? [])) }
}

/** The mean of each number; null for none. */
export function meanMasses(of: readonly Masses[]): Masses | null {
  if (of.length === 0) return null
  const over = (name: keyof Masses): number => mean(of.map((masses) => masses[name]))
  return { weight: over('weight'), current: over('current'), older: over('older'), others: over('others') }
}

/** What is seen from there; null where that was not captured. */
export const seenFrom = (glance: ValueAttention | null, from: From): Masses | null =>
  glance === null || from === 'value' ? glance : glance.reading

/** Change of that weight by folding, in percent of the complete prompt's; null where there are not both, or that is 0. */
export function changeOf({ complete, folded }: Pair, from: From): number | null {
  const [before, after] = [seenFrom(complete, from), seenFrom(folded, from)]
  return before === null || after === null || before.weight === 0 ? null : 100 * (after.weight / before.weight - 1)
}

/** Change of the mass on all other tokens that stay open, in percent; null as `changeOf`. */
export function othersChangeOf({ complete, folded }: Pair, from: From): number | null {
  const [before, after] = [seenFrom(complete, from), seenFrom(folded, from)]
  return before === null || after === null || before.others === 0 ? null : 100 * (after.others / before.others - 1)
}

/** The change that softmax arithmetic alone would make; null as `changeOf`. */
export function baselineChangeOf({ complete, baseline }: Pair, from: From): number | null {
  const [before, after] = [seenFrom(complete, from), baseline?.[from] ?? null]
  return before === null || after === null || before.weight === 0 ? null : 100 * (after / before.weight - 1)
}
