/** Owns the decision how a live sequence comes to hold what a step shows: what stays, what is borrowed, what is computed. */
import type { Contract } from '../core/contract.js'
import { invariant } from '../core/errors.js'
import { length, span, type Span } from '../core/span.js'
import type { OffloadTiers } from './offload.js'
import {
  type AttentionScores,
  chooseAgain,
  EXACT,
  exactBeginning,
  exactIn,
  type Lenders,
  type Part,
  positionAfter,
  type Scores,
  stricter,
  type Terms,
  withComputed,
  withRest,
} from './plan-parts.js'
import { commonPrefix, isMarker, type Prompt, sourceIdsOf, sourcePlace, uneditedOf, withoutContracts } from './prompt.js'
import type { SequenceTable } from './sequence-table.js'
import { type HeldSequence, Sequence } from './sequence.js'
import { splicedParts, stretchesIn } from './splice-parts.js'

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

/** The live sequence, and whom the plan borrows from: what must stay until it has begun. */
export const neededBy = (sequence: HeldSequence, { parts }: Pick<Plan, 'parts'>): ReadonlySet<HeldSequence> =>
  new Set([sequence, ...parts.flatMap((part) => (part.kind === 'borrow' ? [part.from] : []))])

/** Source ids of what the live sequence holds when the plan begins: all that is not computed. */
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

/** Whether tokens in the middle of the live sequence are computed, which takes a scratch sequence. */
export const needsScratch = ({ parts }: Pick<Plan, 'parts'>): boolean => parts.slice(0, -1).some(({ kind }) => kind === 'compute')

/**
 * Plans `shown`, which must not be empty, for `sequence`. Pure.
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

// What plans are made from: who may lend, what limits them, and whether there is a sequence to work in.

export interface PlannerOptions {
  /** Positions the model was trained on; a splice that would go beyond falls back to `exact`. Default: no limit. */
  readonly positions?: number
  /** For `blend` with a ratio. Default: none. */
  readonly attention?: AttentionScores
}

export class Planner {
  constructor(
    private readonly table: SequenceTable,
    private readonly offload: OffloadTiers,
    private readonly options: PlannerOptions,
  ) {}

  /** See KvCache.plan. */
  plan(own: Sequence, shown: Prompt, terms: Terms, without: ReadonlyMap<HeldSequence, string> = new Map()): Plan {
    const { conversation } = own
    const lenders = this.#lenders(own, without)
    const { positions, attention } = this.options
    const blends = terms.contract === 'blend' || shown.origin?.holes.some((hole) => hole.contract === 'blend') === true
    const scores = blends ? (attention?.of(conversation, shown) ?? null) : null
    const made = planStep(own, shown, lenders, {
      terms,
      ...(positions === undefined ? {} : { positions }),
      ...(scores === null ? {} : { scores }),
    })
    const plan = { ...made, without }
    if (!needsScratch(plan) || this.#canAdd(own, plan)) return plan
    const reason = `all ${this.table.sequences.total} sequences of the context are taken, and a splice needs one to work in`
    const exact = { ...terms, ...EXACT }
    return { ...planStep(own, withoutContracts(shown), lenders, { terms: exact }), asked: plan.asked, fallback: reason, without }
  }

  /** See LedgerEntry.recomputeReason. @param before the unedited prompt that the conversation's last step was made from */
  recomputeReason(own: Sequence, plan: Plan, before: Int32Array | null): string | null {
    return recomputeReason(own, plan, this.#lenders(own, plan.without), before)
  }

  #lenders({ conversation }: Sequence, without?: ReadonlyMap<HeldSequence, string>): Lenders {
    const stored = this.offload.all.filter((each) => without?.has(each) !== true)
    return {
      parked: [...this.table.parked(conversation), ...stored.filter((each) => each.conversation === conversation)],
      others: [
        ...this.table.all.filter((sequence) => sequence.conversation !== conversation && sequence.state !== 'scratch'),
        ...stored.filter((each) => each.conversation !== conversation),
      ],
    }
  }

  #canAdd(own: Sequence, plan: Plan): boolean {
    const { used, total } = this.table.sequences
    return used < total || this.table.victims(neededBy(own, plan)).length > 0
  }
}

// The last look at a plan before it is carried out: a wrong one would be a wrong cache, not only a slow one.

/**
 * The parts cover what is shown; what is reused is on the device, of the same tokens, in order of position and, under `exact`, what a fresh
 * prefill would make it; what is computed follows on the position before it.
 */
export function verifyPlan(sequence: Sequence, { parts, shown, contract }: Plan, isHeld: (sequence: Sequence) => boolean): void {
  const { tokens } = shown
  const of = `the plan for conversation ${sequence.conversation}`
  const fresh = contract === 'exact' ? sequence.freshHashes(tokens) : null
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
    invariant(holder.position(part.at) >= position, `${of} would reuse cells out of order`)
    position = positionAfter(sequence, part)
    for (let place = start; fresh !== null && place < end; place++)
      invariant(holder.isFresh(part.at + place - start, place, tokens, fresh), `${of} would pass approximate cells off as exact`)
  }
  invariant(at === tokens.length && parts.at(-1)?.kind === 'compute', `${of} does not end with a token to compute`)
}

// Why a step computes tokens that its conversation showed before, or that somebody holds: what its ledger entry says of it.

const WATCHED = 'they were asked to be computed, to be watched'
const BLENDED = 'blend computes them again behind what is hidden'
const BEHIND = 'they stand behind others that nobody holds, and contract exact is computed from there on'
const OTHER_TEXT = 'contract exact: they are held only as they were beside other text'
const POSITIONS = 'the positions where they are held are taken by what is shown before them'
const REWOUND = 'sequences of this model can only be extended or go back to a checkpoint, and none is nearer'
const GONE = 'no tier holds them'

/**
 * Why the plan computes what it does, as LedgerEntry.recomputeReason says it. To be asked before anything is carried out.
 * @param before the unedited prompt that the conversation's last step was made from; null: there was none
 */
export function recomputeReason(sequence: Sequence, plan: Plan, lenders: Lenders, before: Int32Array | null): string | null {
  const computed = computedSpans(plan)
  const without = plan.without ?? new Map<HeldSequence, string>()
  const [first] = computed
  const own = [sequence, ...lenders.parked].filter(({ held }) => held > 0)
  if (first === undefined || (before === null && own.length === 0 && without.size === 0)) return null
  const { shown, sourceIds: keys, contract, anew, blended } = plan
  const { tokens } = shown
  const base = uneditedOf(shown)

  /** By place: 1 and the index of the reason; the first one counts. */
  const reasons = new Uint8Array(tokens.length)
  const texts: string[] = []
  const explain = (of: readonly Span[], text: string) => {
    if (!texts.includes(text)) texts.push(text)
    const reason = texts.indexOf(text) + 1
    for (const { start, end } of of) for (let at = start; at < end; at++) if (reasons[at] === 0) reasons[at] = reason
  }
  const heldBy = (holder: HeldSequence) =>
    stretchesIn(holder, 0, tokens, base, keys, first.start, null).map((stretch): Span => stretch.span)
  const fresh = contract === 'exact' || without.size > 0 ? sequence.freshHashes(tokens) : null
  const freshIn = (holder: HeldSequence, of: readonly Span[]) =>
    fresh === null
      ? []
      : placesIn(of).flatMap((at) => (holder.isFresh(holder.atPosition(at), at, tokens, fresh) ? [span(at, at + 1)] : []))

  if (anew !== undefined) explain([span(anew, tokens.length)], WATCHED)
  if (blended !== undefined)
    explain(
      [...blended].flatMap((chosen, at) => (chosen === 1 ? [span(at, at + 1)] : [])),
      BLENDED,
    )
  for (const [holder, reason] of without)
    explain(holder.conversation === sequence.conversation ? heldBy(holder) : freshIn(holder, computed), reason)
  for (const holder of own) {
    const held = heldBy(holder)
    if (contract === 'exact') explain(freshIn(holder, held), BEHIND)
    explain(held, contract === 'exact' ? OTHER_TEXT : POSITIONS)
  }
  const agrees = before === null ? 0 : commonPrefix(before, base)
  const isShownBefore = (at: number) => !isMarker(keys[at]!) && sourcePlace(keys[at]!) < agrees
  explain(
    placesIn(computed).flatMap((at) => (isShownBefore(at) ? [span(at, at + 1)] : [])),
    GONE,
  )

  const counts = new Map<string, number>()
  for (const at of placesIn(computed)) {
    const text = texts[reasons[at]! - 1]
    // What is watched may be new, and needs no reason then.
    if (text !== undefined && (text !== WATCHED || isShownBefore(at))) counts.set(text, (counts.get(text) ?? 0) + 1)
  }
  return counts.size === 0 ? null : [...counts].map(([text, count]) => `${count} tokens: ${text}`).join('; ')
}

/** The same where a sequence can only be extended: of what is computed again nothing more can be said. */
export function rewindReason(plan: Plan, before: Int32Array | null): string | null {
  if (before === null) return null
  const { sourceIds: keys, shown } = plan
  const agrees = commonPrefix(before, uneditedOf(shown))
  const known = placesIn(computedSpans(plan)).filter((at) => !isMarker(keys[at]!) && sourcePlace(keys[at]!) < agrees).length
  return known === 0 ? null : `${known} tokens: ${REWOUND}`
}

const placesIn = (spans: readonly Span[]): number[] =>
  spans.flatMap(({ start, end }) => Array.from({ length: end - start }, (_, offset) => start + offset))

/** The stretches that are computed, but for a last token that is decoded again. */
function computedSpans({ parts, again, shown }: Plan): Span[] {
  const end = shown.tokens.length - again
  return parts.flatMap(({ kind, span: of }) =>
    kind === 'compute' && of.start < end ? [span(of.start, Math.min(of.end, end))] : [],
  )
}
