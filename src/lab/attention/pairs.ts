/** Measures the attention of one key-value pair: from the value's tokens in the answer to the prompt, complete and folded. */
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

/** A key, and the spans of its values in the prompt, to which the study measures the attention. */
export interface WatchedPair {
  readonly key: string
  readonly value: string
  /** The span of the current value. */
  readonly current: MessageSpan
  /** The spans of the key's earlier values. */
  readonly older: readonly MessageSpan[]
  /** Number of updates, of any key, behind the current value. */
  readonly distance: number
}

/** How much attention one value in the answer gives to the prompt. In the inherited fields, the value's own tokens are the queries. */
export interface ValueAttention extends Masses {
  /** The same with the token just before the value as the query, which predicted the value. Null if that was not captured. */
  readonly reading: Masses | null
}

/** Attention weights, averaged over layers, heads and query tokens. */
export interface Masses {
  /** Mean weight on one token of the current value in the prompt: the paper's score (Sculptor, section 4.3). */
  readonly weight: number
  /** Total attention to all tokens of the current value in the prompt. */
  readonly current: number
  /** Total attention to all shown tokens of the key's earlier values: the interference. */
  readonly older: number
  /** Total attention to the stream's other tokens that no fold hides. If softmax arithmetic alone raises `weight`, it raises this too. */
  readonly others: number
}

/**
 * `measured`: in both prompts. `folded-away`: the folded prompt does not show the value. `unanswered`: one of the answers does not give the
 * value, so there are no query tokens.
 */
export type PairStatus = 'measured' | 'folded-away' | 'unanswered'

/** One pair, measured in one prompt: complete, and folded under one contract. */
export interface Pair {
  readonly key: string
  readonly value: string
  readonly status: PairStatus
  /** Number of tokens of the key's current value in the unedited prompt. */
  readonly tokens: number
  /** Number of updates, of any key, behind the current value. */
  readonly distance: number
  /** Number of earlier values of the key that the folded prompt shows. */
  readonly olderShown: number
  readonly complete: ValueAttention | null
  readonly folded: ValueAttention | null
  /**
   * The weight that the folded prompt would have if a fold changed only the softmax's denominator; computed from the complete prompt
   * (`renormalised`). Null if the complete prompt was not measured.
   */
  readonly baseline: { readonly value: number; readonly reading: number | null } | null
}

/** The mean attention over one prompt's measured pairs, for one layer and head. */
export interface HeadRow {
  readonly layer: number
  readonly head: number
  readonly complete: ValueAttention
  readonly folded: ValueAttention
}

/**
 * Which tokens of the answer are the queries. `value`: the value's own tokens, as in the paper. `reading`: the token before them, which
 * predicts the value. Many models look the value up at the reading token, and attend elsewhere once the value is written.
 */
export type From = 'value' | 'reading'
export const FROMS: readonly From[] = ['value', 'reading']
/** The names of the two kinds of query tokens in figures and reports. */
export const FROM_NAMES: Readonly<Record<From, string>> = {
  value: "from the value's tokens (as in the paper)",
  reading: 'from the token that predicts the value',
}

/** All pairs of one prompt, compared: complete, and folded under one contract. */
export interface PairComparison {
  readonly contract: Contract
  /** Why the step did not keep its contract; null if it did. */
  readonly fallback: string | null
  /** Number of tokens of the folded prompt, with a given answer. */
  readonly shown: number
  readonly pairs: readonly Pair[]
  readonly heads: readonly HeadRow[]
}

/**
 * Returns the sets of tokens to which attention is measured. `folded`: the spans that the folds hide. `open`: the spans that stay shown.
 */
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

const FOLDED = 'all folded text'
const OPEN = 'all text that stays open'

const currentSet = (key: string): string => `current ${key}`
const olderSet = (key: string): string => `older ${key}`

/** Compares the complete with the folded prompt, pair by pair. The `said` of both measurements must have the pairs' keys. */
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

/** One pair's attention in one measurement, by layer and head. `reading`: with the token before the value as the query. */
interface Sight extends Maps {
  readonly reading: Maps | null
}

/** The fields of `Masses`, by layer and head. `alone`: the `weight` there would be if the softmax left out the folded text. */
type Maps = { readonly [Of in keyof Masses | 'alone']: HeadMap }

function sight({ pattern, sets, said }: Measurement, key: string): Sight | null {
  const one = said.get(key)
  const size = sets.get(currentSet(key))?.size ?? 0
  if (pattern === null || one === undefined || size === 0) return null
  const from = (places: readonly number[]): Maps | null => {
    const current = massOn(pattern, places, currentSet(key))
    if (current === null) return null
    // A set without tokens was not captured; the attention to it is 0.
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

/** Returns the mean of each number; null without items. Items without `reading` are left out of the mean of `reading`. */
export function meanGlance(glances: readonly ValueAttention[]): ValueAttention | null {
  const own = meanMasses(glances)
  return own === null ? null : { ...own, reading: meanMasses(glances.flatMap(({ reading }) => reading ?? [])) }
}

/** Returns the mean of each number; null without items. */
export function meanMasses(of: readonly Masses[]): Masses | null {
  if (of.length === 0) return null
  const over = (name: keyof Masses): number => mean(of.map((masses) => masses[name]))
  return { weight: over('weight'), current: over('current'), older: over('older'), others: over('others') }
}

/** Returns the attention from the query tokens that `from` names; null if it was not captured. */
export const seenFrom = (glance: ValueAttention | null, from: From): Masses | null =>
  glance === null || from === 'value' ? glance : glance.reading

/** Returns the change of `weight` by folding, in percent. Null if one prompt was not measured, or if the complete prompt's weight is 0. */
export function changeOf({ complete, folded }: Pair, from: From): number | null {
  const [before, after] = [seenFrom(complete, from), seenFrom(folded, from)]
  return before === null || after === null || before.weight === 0 ? null : 100 * (after.weight / before.weight - 1)
}

/**
 * Returns the change of `others` by folding, in percent. Null if one prompt was not measured, or if the complete prompt's `others` is 0.
 */
export function othersChangeOf({ complete, folded }: Pair, from: From): number | null {
  const [before, after] = [seenFrom(complete, from), seenFrom(folded, from)]
  return before === null || after === null || before.others === 0 ? null : 100 * (after.others / before.others - 1)
}

/**
 * Returns the change of `weight` that softmax arithmetic alone would make, in percent. Null if the complete prompt has no weight, or weight
 * 0.
 */
export function baselineChangeOf({ complete, baseline }: Pair, from: From): number | null {
  const [before, after] = [seenFrom(complete, from), baseline?.[from] ?? null]
  return before === null || after === null || before.weight === 0 ? null : 100 * (after / before.weight - 1)
}
