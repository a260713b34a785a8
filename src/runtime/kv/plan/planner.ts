/**
 * Collects what a plan needs: the sequences that may lend cells, the limits, and whether a scratch sequence can be had. Also explains, for
 * the ledger, why a step computes tokens that were shown or held before.
 */
import { length, placesOf, span, type Span } from '../../core/span.js'
import type { OffloadTiers } from '../offload.js'
import { BLEND_REASONS } from './blend.js'
import { EXACT, type Lenders, type StepContract } from './parts.js'
import { neededBy, needsScratch, type Plan, planStep, turnedIn } from './plan.js'
import { commonPrefix, isMarker, type Prompt, sourcePlace, uneditedOf, withoutContracts } from '../prompt.js'
import type { Conversations, SequenceTable } from '../sequence-table.js'
import { type HeldSequence, Sequence } from '../sequence.js'
import { stretchesIn } from './splice.js'

export interface PlannerOptions {
  /**
   * Number of positions that the model was trained on. A splice that would go beyond them closes gaps or falls back to `exact`. Default: no
   * limit.
   */
  readonly positions?: number
}

export class Planner {
  constructor(
    private readonly table: SequenceTable,
    private readonly conversations: Conversations,
    private readonly offload: OffloadTiers,
    private readonly options: PlannerOptions,
  ) {}

  /**
   * Plans a step; see CacheSteps.plan.
   * @param without stored sequences that must not be used, each with the reason
   * @param incoming sequences that were read from the shared tier for this step
   */
  plan(
    own: Sequence,
    prompt: Prompt,
    terms: StepContract,
    without: ReadonlyMap<HeldSequence, string> = new Map(),
    incoming: Iterable<HeldSequence> = [],
  ): Plan {
    const lenders = this.#lenders(own, without, incoming)
    const { positions } = this.options
    const made = (fixed: string | null) =>
      planStep(own, prompt, lenders, {
        terms,
        fixed,
        ...(positions === undefined ? {} : { positions }),
      })
    const wanted = made(this.#fixed([own, ...lenders.parked]))
    const short = turnedIn(wanted) === 0 ? null : this.#shortOf(own, wanted)
    const plan = { ...(short === null ? wanted : made(short)), without }
    if (!needsScratch(plan) || this.#canAdd(own, plan)) return plan
    const reason = `all ${this.table.sequences.total} sequences of the context are in use, and a splice needs a free one`
    const exact = { ...terms, ...EXACT }
    return {
      ...planStep(own, withoutContracts(prompt), lenders, { terms: exact, fixed: reason }),
      asked: plan.asked,
      fallback: reason,
      without,
    }
  }

  /** Returns why cells of these sequences cannot be turned to other positions; null when they can. */
  #fixed(holders: readonly HeldSequence[]): string | null {
    if (!this.table.memory.canShift) return 'the keys of this model cannot be rotated to other positions'
    if (holders.every((holder) => !(holder instanceof Sequence) || holder.settled)) return null
    return 'they were just moved, and nothing was computed since'
  }

  /** Returns why there is no room for the copies that the plan turns; null when there is. */
  #shortOf(own: Sequence, plan: Plan): string | null {
    if (!this.#canAdd(own, plan)) return 'no sequence is free to copy them'
    let coming = turnedIn(plan)
    const staying: Int32Array[] = []
    for (const part of plan.parts) {
      if (part.kind !== 'keep' && part.kind !== 'borrow') continue
      const holder = part.kind === 'keep' ? own : part.from
      if (holder instanceof Sequence) staying.push(holder.cells.subarray(part.at, part.at + length(part.span)))
      else coming += length(part.span)
    }
    const { cells } = this.table
    const most = cells.total - this.table.cellsOf((sequence) => sequence !== own && sequence.running, staying)
    return coming > most ? `their copies take ${coming} cells, and only ${most} can be freed` : null
  }

  /**
   * Returns why the plan computes tokens that were shown or held before, as text for LedgerEntry.recomputeReason.
   * @param before the unedited prompt that the conversation's last step was made from
   */
  recomputeReason(own: Sequence, plan: Plan, before: Int32Array | null): string | null {
    return recomputeReason(own, plan, this.#lenders(own, plan.without), before)
  }

  #lenders(
    { conversation }: Sequence,
    without?: ReadonlyMap<HeldSequence, string>,
    incoming: Iterable<HeldSequence> = [],
  ): Lenders {
    const stored = [...this.offload.all, ...incoming].filter((each) => without?.has(each) !== true)
    const kin = this.conversations.kin(conversation)
    const { views } = this.conversations
    const rank = (each: HeldSequence) => kin.indexOf(each.conversation)
    const others = [
      ...this.table.all.filter((sequence) => sequence.conversation !== conversation && sequence.state !== 'scratch'),
      ...stored.filter((each) => each.conversation !== conversation),
    ]
    return {
      parked: [
        ...this.table.parked(conversation),
        ...stored.filter((each) => each.conversation === conversation),
        ...others.filter((each) => rank(each) >= 0).sort((a, b) => rank(a) - rank(b)),
      ],
      others: others.filter((each) => rank(each) < 0),
      views: [...views.of(conversation), ...kin.flatMap((of) => [this.conversations.live(of) ?? [], views.of(of)].flat())],
      before: this.conversations.get(conversation)?.before ?? this.conversations.inherited(conversation),
    }
  }

  #canAdd(own: Sequence, plan: Plan): boolean {
    const { used, total } = this.table.sequences
    return used < total || this.table.victims(neededBy(own, plan)).length > 0
  }
}

// The reasons for LedgerEntry.recomputeReason: why a step computes tokens that its conversation showed before, or that a sequence holds.

const WATCHED = 'they are computed again so that their attention can be captured'
const BEHIND = 'contract exact computes everything after the first token that no cells hold'
const OTHER_TEXT = 'contract exact: their cells were computed after other text'
const POSITIONS = 'earlier text of the prompt now takes the positions of their cells'
const REWOUND = 'this model can only extend a sequence or return to a checkpoint, and no checkpoint is nearer'
const GONE = 'no cache tier holds them'
/** The saved state of a sequence that the plan borrows from could not be read. */
export const LOST_BELOW = 'their saved state is damaged or missing'

/**
 * Returns why the plan computes tokens that were shown or held before. Must be called before the plan is carried out.
 * @param before the unedited prompt that the conversation's last step was made from; null when there was none
 */
function recomputeReason(sequence: Sequence, plan: Plan, lenders: Lenders, before: Int32Array | null): string | null {
  const computed = computedSpans(plan)
  const computedPlaces = computed.flatMap(placesOf)
  const without = plan.without ?? new Map<HeldSequence, string>()
  const [first] = computed
  const own = [sequence, ...lenders.parked].filter(({ held }) => held > 0)
  if (first === undefined || (before === null && own.length === 0 && without.size === 0)) return null
  const { prompt, sourceIds: keys, contract, recomputeFrom, repair } = plan
  const { tokens } = prompt
  const base = uneditedOf(prompt)

  /** For each prompt token: 1 plus the index of its reason in `texts`, or 0 for none. The first reason given to a token stays. */
  const reasons = new Uint8Array(tokens.length)
  const texts: string[] = []
  const explain = (of: readonly Span[], why: string) => {
    if (!texts.includes(why)) texts.push(why)
    const reason = texts.indexOf(why) + 1
    for (const { start, end } of of) for (let at = start; at < end; at++) if (reasons[at] === 0) reasons[at] = reason
  }
  const heldBy = (holder: HeldSequence) =>
    stretchesIn(holder, 0, tokens, base, keys, first.start, null).map((stretch): Span => stretch.span)
  const text = sequence.freshText(tokens)
  const freshIn = (holder: HeldSequence, of: readonly Span[]) =>
    of.flatMap(placesOf).flatMap((at) => (holder.isFresh(holder.atPosition(at), at, text) ? [span(at, at + 1)] : []))

  if (recomputeFrom !== undefined) explain([span(recomputeFrom, tokens.length)], WATCHED)
  if (repair !== undefined)
    for (const [index, reason] of BLEND_REASONS.entries())
      explain(
        computedPlaces.filter((at) => repair.places[at] === index + 1).map((at) => span(at, at + 1)),
        reason,
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
    computedPlaces.flatMap((at) => (isShownBefore(at) ? [span(at, at + 1)] : [])),
    GONE,
  )

  const counts = new Map<string, number>()
  for (const at of computedPlaces) {
    const reason = texts[reasons[at]! - 1]
    // WATCHED also covers new tokens after `recomputeFrom`. They would be computed anyway, so they need no reason.
    if (reason !== undefined && (reason !== WATCHED || isShownBefore(at))) counts.set(reason, (counts.get(reason) ?? 0) + 1)
  }
  return listed(counts)
}

/**
 * Explains computed tokens like `recomputeReason`, for a sequence that can only be extended. The reasons are saved states that could not be
 * loaded, and the lack of a nearer checkpoint.
 */
export function rewindReason(plan: Plan, before: Int32Array | null): string | null {
  const { sourceIds: keys, prompt, without = new Map<HeldSequence, string>() } = plan
  const saved = [...without].map(([{ tokens }, reason]) => ({ end: commonPrefix(tokens, prompt.tokens), reason }))
  const agrees = before === null ? 0 : commonPrefix(before, uneditedOf(prompt))
  const counts = new Map<string, number>()
  for (const at of computedSpans(plan).flatMap(placesOf)) {
    const isKnown = !isMarker(keys[at]!) && sourcePlace(keys[at]!) < agrees
    const reason = saved.find(({ end }) => at < end)?.reason ?? (isKnown ? REWOUND : undefined)
    if (reason !== undefined) counts.set(reason, (counts.get(reason) ?? 0) + 1)
  }
  return listed(counts)
}

const listed = (counts: ReadonlyMap<string, number>): string | null =>
  counts.size === 0 ? null : [...counts].map(([text, count]) => `${count} tokens: ${text}`).join('; ')

/** Returns the computed spans, without a last token that is only decoded again. */
function computedSpans({ parts, redecoded, prompt }: Plan): Span[] {
  const end = prompt.tokens.length - redecoded
  return parts.flatMap(({ kind, span: of }) =>
    kind === 'compute' && of.start < end ? [span(of.start, Math.min(of.end, end))] : [],
  )
}
