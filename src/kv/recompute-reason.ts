/** Owns why a step computes tokens that its conversation showed before, or that somebody holds: what its ledger entry says of it. */
import { span, type Span } from '../core/span.js'
import type { Lenders } from './plan-parts.js'
import type { Plan } from './plan.js'
import { commonPrefix, isMarker, sourcePlace, uneditedOf } from './prompt.js'
import type { HeldSequence, Sequence } from './sequence.js'
import { stretchesIn } from './splice-parts.js'

const WATCHED = 'they were asked to be computed, to be watched'
const BLENDED = 'blend computes them again behind what is hidden'
const BEHIND = 'they stand behind others that nobody holds, and contract exact is computed from there on'
const OTHER_TEXT = 'contract exact: they are held only as they were beside other text'
const POSITIONS = 'the positions where they are held are taken by what is shown before them'
const REWOUND = 'sequences of this model can only be extended or go back to a checkpoint, and none is nearer'
const GONE = 'no tier holds them'
/** What was to be borrowed could not be read. */
export const LOST_BELOW = 'their saved state was damaged, or is gone'

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
  const explain = (of: readonly Span[], why: string) => {
    if (!texts.includes(why)) texts.push(why)
    const reason = texts.indexOf(why) + 1
    for (const { start, end } of of) for (let at = start; at < end; at++) if (reasons[at] === 0) reasons[at] = reason
  }
  const heldBy = (holder: HeldSequence) =>
    stretchesIn(holder, 0, tokens, base, keys, first.start, null).map((stretch): Span => stretch.span)
  const text = sequence.freshText(tokens)
  const freshIn = (holder: HeldSequence, of: readonly Span[]) =>
    placesIn(of).flatMap((at) => (holder.isFresh(holder.atPosition(at), at, text) ? [span(at, at + 1)] : []))

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
    const reason = texts[reasons[at]! - 1]
    // What is watched may be new, and needs no reason then.
    if (reason !== undefined && (reason !== WATCHED || isShownBefore(at))) counts.set(reason, (counts.get(reason) ?? 0) + 1)
  }
  return listed(counts)
}

/** The same where a sequence can only be extended: of what is computed again, and no saved state had, nothing more can be said. */
export function rewindReason(plan: Plan, before: Int32Array | null): string | null {
  const { sourceIds: keys, shown, without = new Map<HeldSequence, string>() } = plan
  const saved = [...without].map(([{ tokens }, reason]) => ({ end: commonPrefix(tokens, shown.tokens), reason }))
  const agrees = before === null ? 0 : commonPrefix(before, uneditedOf(shown))
  const counts = new Map<string, number>()
  for (const at of placesIn(computedSpans(plan))) {
    const isKnown = !isMarker(keys[at]!) && sourcePlace(keys[at]!) < agrees
    const reason = saved.find(({ end }) => at < end)?.reason ?? (isKnown ? REWOUND : undefined)
    if (reason !== undefined) counts.set(reason, (counts.get(reason) ?? 0) + 1)
  }
  return listed(counts)
}

const listed = (counts: ReadonlyMap<string, number>): string | null =>
  counts.size === 0 ? null : [...counts].map(([text, count]) => `${count} tokens: ${text}`).join('; ')

const placesIn = (spans: readonly Span[]): number[] =>
  spans.flatMap(({ start, end }) => Array.from({ length: end - start }, (_, offset) => start + offset))

/** The stretches that are computed, but for a last token that is decoded again. */
function computedSpans({ parts, again, shown }: Plan): Span[] {
  const end = shown.tokens.length - again
  return parts.flatMap(({ kind, span: of }) =>
    kind === 'compute' && of.start < end ? [span(of.start, Math.min(of.end, end))] : [],
  )
}
