/** Owns the decision how a lane comes to hold what a step shows: what stays, what is borrowed, what is computed. */
import type { Contract } from '../core/contract.js'
import { invariant } from '../core/errors.js'
import { length, span } from '../core/span.js'
import { chooseAgain, type Scores } from './blend.js'
import { stricter, type Terms } from './contract.js'
import { exactBeginning, exactIn, withRest } from './exact-parts.js'
import type { HeldSequence } from './holder.js'
import type { Sequence } from './holding.js'
import { positionAfter, withComputed, type Lenders, type Part } from './part.js'
import { sourceIdsOf, type Prompt } from './shown.js'
import { splicedParts } from './spliced-parts.js'

/** How a step is carried out. A plan holds until the cache changes: make it and begin it in one go. */
export interface Plan {
  readonly shown: Prompt
  readonly sourceIds: Int32Array
  /** What was asked for. */
  readonly asked: Contract
  /** What the step keeps to. */
  readonly contract: Contract
  /** Why it is not what was asked for. */
  readonly fallback: string | null
  /** In order, covering all shown tokens. The last one is computed, because a step needs the logits of its last token. */
  readonly parts: readonly Part[]
  /** 1: everything shown was held already, and the last token is decoded once more for its logits. */
  readonly again: 0 | 1
  /** Shown tokens, to the last, from the first one on that will not be what a fresh prefill would make it. */
  readonly approximate: number
  /** By place: 1 where a token is computed again though it is held, because `blend` chose it. */
  readonly blended?: Uint8Array
  /** Stored sequences that could not be had, and why. */
  readonly without?: ReadonlyMap<HeldSequence, string>
  /** See Terms. */
  readonly anew?: number
}

export interface PlanOptions {
  readonly terms: Terms
  /** Attention scores of shown tokens, for `blend`. */
  readonly scores?: Scores
  /** Positions the model was trained on; from there on a splice falls back to `exact`, which starts counting anew. */
  readonly positions?: number
}

/** Tokens that are decoded: all `compute` parts. */
export const computedIn = ({ parts }: Pick<Plan, 'parts'>): number =>
  parts.reduce((sum, part) => sum + (part.kind === 'compute' ? length(part.span) : 0), 0)

/** Tokens that are not computed; a last token that is decoded again counts as not computed. */
export const reusedIn = (plan: Pick<Plan, 'parts' | 'again' | 'shown'>): number =>
  plan.shown.tokens.length - computedIn(plan) + plan.again

/** The lane, and whom the plan borrows from: what must stay until it has begun. */
export const neededBy = (sequence: HeldSequence, { parts }: Pick<Plan, 'parts'>): ReadonlySet<HeldSequence> =>
  new Set([sequence, ...parts.flatMap((part) => (part.kind === 'borrow' ? [part.from] : []))])

/** Keys of what the lane holds when the plan begins: all that is not computed. */
export function sourceIdsHeld({ parts, sourceIds: keys }: Plan): Int32Array {
  const held = parts.filter(({ kind }) => kind !== 'compute')
  const all = new Int32Array(held.reduce((sum, part) => sum + length(part.span), 0))
  let at = 0
  for (const { span: of } of held) {
    all.set(keys.subarray(of.start, of.end), at)
    at += length(of)
  }
  return all
}

/** Whether tokens in the middle of the lane are computed, which takes a scratch sequence. */
export const needsScratch = ({ parts }: Pick<Plan, 'parts'>): boolean => parts.slice(0, -1).some(({ kind }) => kind === 'compute')

/**
 * Plans `shown`, which must not be empty, for `lane`. Pure.
 *
 * `exact` reuses the longest beginning that can be put together from cells which are what a fresh prefill would make them, whoever holds them.
 * `splice` reuses that, too, and behind it the conversation's own cells that come from the same place of the unedited prompt, if their positions
 * ascend; what is missing is computed at the positions right after the token before it. `blend` computes some of those again.
 *
 * All plans that what was asked for admits are made, and `leastOf` them is taken.
 */
export function planStep(sequence: Sequence, shown: Prompt, lenders: Lenders, { terms, scores, positions }: PlanOptions): Plan {
  invariant(shown.tokens.length > 0, `conversation ${sequence.conversation} was asked to show no tokens at all`)
  const { tokens } = shown
  const asked = contractOf(shown, terms)
  const keys = sourceIdsOf(shown)
  const fresh = sequence.freshHashes(tokens)
  const { anew = tokens.length } = terms
  let again: Uint8Array | null = null
  const planned = (contract: Contract, parts: readonly Part[], blocked = 0): Candidate => {
    const last = withLast(sequence, computedFrom(sequence, parts, anew))
    const approximate = tokens.length - exactIn(sequence, last.parts, tokens, fresh)
    const why = {
      ...(terms.anew === undefined ? {} : { anew }),
      ...(contract === 'blend' && again !== null ? { blended: again } : {}),
    }
    return { shown, sourceIds: keys, asked, contract, fallback: null, ...last, approximate, blocked, ...why }
  }
  const beginning = exactBeginning(sequence, tokens, lenders, fresh)
  const exact = planned('exact', withRest(beginning, tokens))
  if (asked === 'exact') return exact

  const spliced = splicedParts(sequence, shown, keys, beginning, lenders.parked, new Uint8Array(tokens.length))
  const within = exactIn(sequence, spliced.parts, tokens, fresh)
  again = asked === 'blend' ? chooseAgain(sequence, shown, spliced.parts, within, terms.blend ?? {}, scores ?? null) : null
  const { parts, blocked } = again === null ? spliced : splicedParts(sequence, shown, keys, beginning, lenders.parked, again)
  const wanted = planned(asked, parts, blocked)
  const end = endOf(wanted)
  if (positions !== undefined && end > positions && end > tokens.length)
    return {
      ...exact,
      fallback: `position ${end} is beyond the ${positions} that the model was trained on, so the gaps were closed`,
    }
  return leastOf(wanted, exact)
}

/** A plan, and how many of the tokens it computes are held at positions where they cannot stay. */
type Candidate = Plan & { readonly blocked: number }

/**
 * The rule for every contract: a step computes no more than it would under `exact`, and makes nothing approximate that can be had exactly for no
 * more. Of the plan for what was asked and the exact one that with fewer tokens to compute is taken, of equals that with fewer approximate
 * ones, of equals what was asked for, unless it is in nothing better because nothing could stay where it was.
 */
function leastOf(wanted: Candidate, exact: Candidate): Plan {
  const more = computedIn(wanted) - computedIn(exact) || wanted.approximate - exact.approximate || (wanted.blocked > 0 ? 1 : -1)
  if (more < 0) return wanted
  const fallback =
    wanted.blocked > 0
      ? 'what is shown needs more positions than it has there (a marker longer than what it hides, or closed gaps)'
      : `nothing is computed less often for it than under exact, which leaves nothing approximate`
  return { ...exact, fallback }
}

/**
 * What the step keeps to: the strictest of what the edits in force ask for, each its own contract or else the step's; without edits, the
 * step's. It depends on nothing but what is shown, so a cancelled step changes nothing about the next.
 */
function contractOf({ origin }: Prompt, { contract }: Terms): Contract {
  const [first, ...rest] = (origin?.holes ?? []).map((hole) => hole.contract ?? contract)
  return first === undefined ? contract : rest.reduce(stricter, first)
}

/** The position after the last part's. */
function endOf({ parts }: Plan): number {
  const last = parts.at(-1)
  return last?.kind === 'compute' ? last.position + length(last.span) : 0
}

/** The parts with every token from place `anew` on computed, at the positions right after the token before it. */
function computedFrom(sequence: Sequence, parts: readonly Part[], anew: number): readonly Part[] {
  const end = parts.at(-1)?.span.end ?? 0
  if (anew >= end) return parts
  const before = parts
    .filter((part) => part.span.start < anew)
    .map((part) => ({ ...part, span: span(part.span.start, Math.min(part.span.end, anew)) }))
  return withComputed(before, span(anew, end), positionAfter(sequence, before.at(-1)))
}

/** The parts with the last token computed, whoever holds it. */
function withLast(sequence: Sequence, parts: readonly Part[]): Pick<Plan, 'parts' | 'again'> {
  const last = parts.at(-1)
  invariant(last !== undefined, 'a plan has no parts')
  if (last.kind === 'compute') return { parts, again: 0 }
  const { start, end } = last.span
  const before = end - start > 1 ? [...parts.slice(0, -1), { ...last, span: span(start, end - 1) }] : parts.slice(0, -1)
  return { parts: withComputed(before, span(end - 1, end), positionAfter(sequence, before.at(-1))), again: 1 }
}

/** The plan with its last token decoded `again`, if it is computed alone. */
export function lastAgain(plan: Plan, again: 0 | 1): Plan {
  const last = plan.parts.at(-1)
  return again === 1 && last?.kind === 'compute' && length(last.span) === 1 ? { ...plan, again } : plan
}
