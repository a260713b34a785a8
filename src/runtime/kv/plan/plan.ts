/** Owns the decision how a live sequence comes to hold what a step shows: what stays, what is borrowed, what is computed. */
import type { Contract } from '../../core/contract.js'
import { invariant } from '../../core/errors.js'
import { length, span, type Span } from '../../core/span.js'
import {
  chooseRecomputed,
  exactBeginning,
  exactIn,
  type Lenders,
  type Part,
  positionAfter,
  type Scores,
  stricter,
  type Terms,
  turnOf,
  withComputed,
  withRest,
} from './parts.js'
import { commonPrefix, type Prompt, sourceIdsOf } from '../prompt.js'
import { type HeldSequence, Sequence } from '../sequence.js'
import { type Placing, splicedParts, type SplicedParts } from './splice.js'
import { type LatestView, latestView } from '../views.js'

/** How a step is carried out. A plan holds until the cache changes: make it and begin it in one go. */
export interface Plan {
  readonly prompt: Prompt
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
  readonly redecoded: 0 | 1
  /** Shown tokens, to the last, from the first one on that will not be what a fresh prefill would make it. */
  readonly approximate: number
  /** The view that showed most of the prompt's beginning. Null or absent: `exact` was asked for, or there is none. */
  readonly last?: LatestView | null
  /** By place: 1 where a token is computed again though it is held, because `blend` chose it. */
  readonly blended?: Uint8Array
  /** Stored sequences that could not be had, and why. */
  readonly without?: ReadonlyMap<HeldSequence, string>
  /** See Terms. */
  readonly recomputeFrom?: number
}

export interface PlanOptions {
  readonly terms: Terms
  /** Attention scores of shown tokens, for `blend`. */
  readonly scores?: Scores
  /** Positions the model was trained on; before a splice goes beyond them gaps are closed, or else it falls back to `exact`, which starts counting anew. */
  readonly positions?: number
  /** Why what is held can only stay where it is; null: copies of it can be turned to other positions. */
  readonly fixed: string | null
}

/** Tokens that are decoded: all `compute` parts. */
export const computedIn = ({ parts }: Pick<Plan, 'parts'>): number =>
  parts.reduce((sum, part) => sum + (part.kind === 'compute' ? length(part.span) : 0), 0)

/** Tokens that are not computed; a last token that is decoded again counts as not computed. */
export const reusedIn = (plan: Pick<Plan, 'parts' | 'redecoded' | 'prompt'>): number =>
  plan.prompt.tokens.length - computedIn(plan) + plan.redecoded

/** Tokens of which copies are turned to other positions. */
export const turnedIn = ({ parts }: Pick<Plan, 'parts'>): number =>
  parts.reduce((sum, part) => sum + (part.kind === 'turn' ? length(part.span) : 0), 0)

/**
 * Tokens that the plan reuses and does not show by the cells that showed them last behind the same text, nor by exact ones. To be asked before
 * anything is carried out.
 */
export function replacedIn(sequence: HeldSequence, { parts, prompt, approximate, last = null }: Plan): number {
  if (last === null || approximate === 0) return 0
  const { view, places } = last
  const from = prompt.tokens.length - approximate
  let count = 0
  for (const part of parts) {
    if (part.kind === 'compute') continue
    const { start, end } = part.span
    const holder = part.kind === 'keep' ? sequence : part.from
    for (let place = Math.max(start, from); place < Math.min(end, places); place++)
      if (part.kind === 'turn' || holder.cellWord(part.at + place - start) !== view.cellWord(place)) count++
  }
  return count
}

/** The live sequence, and whom the plan borrows from or copies: what must stay until it has begun. */
export const neededBy = (sequence: HeldSequence, { parts }: Pick<Plan, 'parts'>): ReadonlySet<HeldSequence> =>
  new Set([sequence, ...parts.flatMap((part) => (part.kind === 'borrow' || part.kind === 'turn' ? [part.from] : []))])

/** What the live sequence holds when the plan begins: all that is not computed. */
export const spansHeld = ({ parts }: Plan): Span[] => parts.flatMap((part) => (part.kind === 'compute' ? [] : [part.span]))

/** Whether tokens in the middle of the live sequence are computed, or copies turned, which takes a scratch sequence. */
export const needsScratch = ({ parts }: Pick<Plan, 'parts'>): boolean =>
  parts.slice(0, -1).some(({ kind }) => kind === 'compute' || kind === 'turn')

/**
 * Plans `prompt`, which must not be empty, for `sequence`. Pure.
 *
 * `exact` reuses the longest beginning that can be put together from cells which are what a fresh prefill would make them, whoever holds them.
 * `splice` reuses that, too, and behind it the conversation's own cells that come from the same place of the unedited prompt, where they are if
 * their positions ascend, else copies of them at others; what is missing is computed at the positions right after the token before it. `blend`
 * computes some of those again.
 *
 * All plans that what was asked for admits are made, and `leastOf` them is taken.
 */
export function planStep(sequence: Sequence, prompt: Prompt, lenders: Lenders, options: PlanOptions): Plan {
  const { terms, scores, positions = Infinity, fixed } = options
  invariant(prompt.tokens.length > 0, `conversation ${sequence.conversation} was asked to show no tokens at all`)
  const { tokens } = prompt
  const asked = contractOf(prompt, terms)
  const keys = sourceIdsOf(prompt)
  const text = sequence.freshText(tokens)
  const { recomputeFrom = tokens.length } = terms
  let recomputed: Uint8Array | null = null
  const last = asked === 'exact' ? null : latestView([sequence, ...lenders.views], prompt, keys)
  const planned = (contract: Contract, { parts, redecoded = 0, blocked = 0 }: CandidateParts): PlanCandidate => {
    const isWatched = recomputeFrom < tokens.length
    const whole = withLast(sequence, computedFrom(sequence, parts, recomputeFrom))
    const approximate = tokens.length - exactIn(sequence, whole.parts, text)
    const why = {
      ...(terms.recomputeFrom === undefined ? {} : { recomputeFrom }),
      ...(contract === 'blend' && recomputed !== null ? { blended: recomputed } : {}),
    }
    const common = { prompt, sourceIds: keys, asked, contract, fallback: null, last }
    return { ...common, ...whole, ...(redecoded === 1 && !isWatched ? { redecoded } : {}), approximate, blocked, ...why }
  }
  const beginning = exactBeginning(sequence, text, lenders)
  const exact = planned('exact', { parts: withRest(beginning, tokens) })
  if (asked === 'exact') return exact

  const placed = (placing: Placing) => splicedParts(sequence, prompt, keys, beginning, lenders.parked, last, recomputed, placing)
  const placing = fixed === null ? 'turn' : 'stay'
  if (asked === 'blend') {
    const { parts } = placed(placing)
    const known = Math.max(exactIn(sequence, parts, text), last?.places ?? 0)
    recomputed = chooseRecomputed(sequence, prompt, parts, known, lenders.before, terms.blend ?? {}, scores ?? null)
  }
  const wanted = planned(asked, placed(placing))
  const end = endOf(wanted)
  const gaps = end - tokens.length
  if (fixed === null && isShort(end, gaps, positions))
    return leastOf(planned(asked, { ...placed('close'), blocked: 0 }), exact, fixed)
  if (end > positions && gaps > 0)
    return {
      ...exact,
      fallback: `position ${end} is beyond the ${positions} that the model was trained on, and gaps cannot be closed otherwise: ${fixed ?? ''}`,
    }
  return leastOf(wanted, exact, fixed)
}

/** What is left of the trained positions, as a share, when gaps that make up as much are closed: room for an answer. */
const RESERVE = 1 / 8

/** Whether gaps have to go. @param end the position that comes next */
const isShort = (end: number, gaps: number, positions: number): boolean =>
  gaps > 0 && (end > positions || (end > (1 - RESERVE) * positions && gaps >= RESERVE * positions))

/** A plan, and how many of the tokens it computes are held at positions where they cannot stay. */
type PlanCandidate = Plan & { readonly blocked: number }

type CandidateParts = Pick<SplicedParts, 'parts'> & Partial<SplicedParts>

/**
 * The rule for every contract: a step computes no more than it would under `exact`, and makes nothing approximate that can be had exactly for no
 * more. Of the plan for what was asked and the exact one that with fewer tokens to compute is taken, of equals that with fewer approximate
 * ones, of equals what was asked for, unless it is in nothing better because nothing could stay where it was.
 */
function leastOf(wanted: PlanCandidate, exact: PlanCandidate, fixed: string | null): Plan {
  const more = computedIn(wanted) - computedIn(exact) || wanted.approximate - exact.approximate || (wanted.blocked > 0 ? 1 : -1)
  if (more < 0) return wanted
  const fallback =
    wanted.blocked > 0
      ? `what is shown needs more positions than it has there (a marker longer than what it hides, or closed gaps), and what is held cannot be moved: ${fixed ?? ''}`
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

/** The parts with every token from place `recomputeFrom` on computed, at the positions right after the token before it. */
function computedFrom(sequence: Sequence, parts: readonly Part[], recomputeFrom: number): readonly Part[] {
  const end = parts.at(-1)?.span.end ?? 0
  if (recomputeFrom >= end) return parts
  const before = parts
    .filter((part) => part.span.start < recomputeFrom)
    .map((part) => ({ ...part, span: span(part.span.start, Math.min(part.span.end, recomputeFrom)) }))
  return withComputed(before, span(recomputeFrom, end), positionAfter(sequence, before.at(-1)))
}

/** The parts with the last token computed, whoever holds it. */
function withLast(sequence: Sequence, parts: readonly Part[]): Pick<Plan, 'parts' | 'redecoded'> {
  const last = parts.at(-1)
  invariant(last !== undefined, 'a plan has no parts')
  if (last.kind === 'compute') return { parts, redecoded: 0 }
  const { start, end } = last.span
  const before = end - start > 1 ? [...parts.slice(0, -1), { ...last, span: span(start, end - 1) }] : parts.slice(0, -1)
  return { parts: withComputed(before, span(end - 1, end), positionAfter(sequence, before.at(-1))), redecoded: 1 }
}

/** The plan with its last token `redecoded`, if it is computed alone. */
export function withRedecoded(plan: Plan, redecoded: 0 | 1): Plan {
  const last = plan.parts.at(-1)
  return redecoded === 1 && last?.kind === 'compute' && length(last.span) === 1 ? { ...plan, redecoded } : plan
}

// The last look at a plan before it is carried out: a wrong one would be a wrong cache, not only a slow one.

/**
 * The parts cover what is shown; what is reused is on the device, of the same tokens, in order of position and, under `exact`, what a fresh
 * prefill would make it; what is computed follows on the position before it. What is copied is one run of positions, here and there.
 */
export function verifyPlan(sequence: Sequence, { parts, prompt, contract }: Plan, isHeld: (sequence: Sequence) => boolean): void {
  const { tokens } = prompt
  const of = `the plan for conversation ${sequence.conversation}`
  const text = sequence.freshText(tokens)
  let at = 0
  let position = 0
  for (const part of parts) {
    const { start, end } = part.span
    invariant(start === at && end > start, `${of} does not add up to what it shows`)
    at = end
    if (part.kind === 'compute') {
      invariant(part.position === position, `${of} leaves a gap that llama.cpp cannot make`)
      position += end - start
      continue
    }
    const holder = part.kind === 'keep' ? sequence : part.from
    invariant(holder instanceof Sequence && isHeld(holder), `${of} borrows from a sequence that is not on the device`)
    const same = commonPrefix(holder.tokens.subarray(part.at), tokens.subarray(start, end)) === end - start
    invariant(same, `${of} would reuse cells of other tokens`)
    invariant(
      (part.kind === 'turn' ? part.position : holder.position(part.at)) >= position,
      `${of} would reuse cells out of order`,
    )
    position = positionAfter(sequence, part)
    if (part.kind === 'turn') {
      const last = part.at + end - start - 1
      invariant(holder.position(last) + turnOf(part) + 1 === position, `${of} would move cells by different distances at once`)
    }
    const isExact = contract !== 'exact' || (part.kind !== 'turn' && holder.freshRun(part.at, start, end, text) === end - start)
    invariant(isExact, `${of} would pass approximate cells off as exact`)
  }
  invariant(at === tokens.length && parts.at(-1)?.kind === 'compute', `${of} does not end with a token to compute`)
}
