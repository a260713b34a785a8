/**
 * The eight-folds episode as plain token lists, so that every runtime gets the same: ten fragments, of which the first eight are folded.
 */
import { Random } from '../../../src/runtime/core/random.js'

export interface Hole {
  /** A half-open span of the unedited tokens. */
  readonly start: number
  readonly end: number
  /** The tokens shown in place of the folded ones. */
  readonly marker: Int32Array
}

export interface EpisodeStep {
  /** The prompt: `base` with every hole replaced by its marker. */
  readonly tokens: Int32Array
  /** The unedited tokens: the prefill and all tool results so far. */
  readonly base: Int32Array
  /** The holes in `base`, in order, never adjacent. */
  readonly holes: readonly Hole[]
}

export interface Episode {
  /** The ten fragments, which are computed beforehand and not counted. */
  readonly prefill: Int32Array
  readonly steps: readonly EpisodeStep[]
}

export const ORDERS = ['first-to-last', 'last-to-first', 'together'] as const
/** The order in which the fragments are folded, one per step; `together` folds all of them in one step. */
export type Order = (typeof ORDERS)[number]

export const PREFILL = 8192
const FRAGMENTS = 10
const FOLDS = 8
const MARKER = 20
const RESULT = 60
/** The first token id used, because lower ids are bytes and control tokens. The last hundred ids are not used either. */
const FIRST_ID = 300
const IDS_LEFT_AT_THE_END = 100
/** The fewest different token ids of the fragments, so that a fragment does not consist of a few tokens. */
const FEWEST_FRAGMENT_IDS = 1000

/**
 * Makes the episode. Each fold leaves a marker of 20 tokens and adds a tool result of 60 at the end, so `together` ends with the same
 * prompt as the other orders. Markers and results consist of tokens that occur nowhere else. The fragments' tokens repeat in a different
 * order each time, so nothing matches by accident. The same seed and vocabulary give the same episode. Fragments have the same length, as
 * far as whole tokens allow.
 * @throws RangeError if the vocabulary is too small
 */
export function eightFolds(order: Order, vocabulary: number, seed: number, length: number = PREFILL): Episode {
  const ids = Array.from({ length: Math.max(0, vocabulary - IDS_LEFT_AT_THE_END - FIRST_ID) }, (_, index) => FIRST_ID + index)
  const least = FOLDS * (MARKER + RESULT) + FEWEST_FRAGMENT_IDS
  if (ids.length < least)
    throw new RangeError(
      `The episode needs a vocabulary of ${least + FIRST_ID + IDS_LEFT_AT_THE_END} tokens; this one has ${vocabulary}.`,
    )
  const random = new Random(seed)
  const drawn = random.shuffled(ids)
  const markers = Array.from({ length: FOLDS }, () => Int32Array.from(drawn.splice(0, MARKER)))
  const results = Array.from({ length: FOLDS }, () => drawn.splice(0, RESULT))
  const content: number[] = []
  // Push one by one: a vocabulary of 262,144 tokens has too many for the arguments of one call.
  while (content.length < length) for (const token of random.shuffled(drawn)) content.push(token)
  const prefill = Int32Array.from(content.slice(0, length))

  const border = (fragment: number) => Math.floor((fragment * length) / FRAGMENTS)
  const steps = foldedAfterEachStep(order).map((folded): EpisodeStep => {
    const base = Int32Array.from([...prefill, ...results.slice(0, folded.length).flat()])
    const holes = folded.map((fragment): Hole => ({
      start: border(fragment),
      end: border(fragment + 1),
      marker: markers[fragment]!,
    }))
    return { tokens: shown(base, holes), base, holes }
  })
  return { prefill, steps }
}

/** Returns the indexes of the folded fragments after every step, ascending. */
function foldedAfterEachStep(order: Order): number[][] {
  const all = Array.from({ length: FOLDS }, (_, fragment) => fragment)
  switch (order) {
    case 'first-to-last':
      return all.map((last) => all.slice(0, last + 1))
    case 'last-to-first':
      return all.map((step) => all.slice(FOLDS - 1 - step))
    case 'together':
      return [all]
  }
}

function shown(base: Int32Array, holes: readonly Hole[]): Int32Array {
  const tokens: number[] = []
  let at = 0
  for (const { start, end, marker } of holes) {
    tokens.push(...base.subarray(at, start), ...marker)
    at = end
  }
  tokens.push(...base.subarray(at))
  return Int32Array.from(tokens)
}
