/** Owns what a lane loses when a plan is carried out, and what of that is worth keeping. */
import { span, type Span } from '../core/span.js'
import type { Holding } from './holding.js'
import type { Plan } from './plan.js'
import { commonPrefix } from './prefix.js'
import { baseOf, isMarker, placeOf } from './shown.js'

/** The lane's entries that the plan does not keep, in order. */
export function goneFrom(lane: Holding, { parts }: Plan): Span[] {
  const gone: Span[] = []
  let entry = 0
  for (const part of parts) {
    if (part.kind !== 'keep') continue
    if (part.at > entry) gone.push(span(entry, part.at))
    entry = part.at + part.span.end - part.span.start
  }
  if (lane.held > entry) gone.push(span(entry, lane.held))
  return gone
}

/**
 * Of these entries of the lane, those that nothing else of the conversation holds, without those for which the plan has others of the same
 * place: the last token for its logits, what `blend` computes again, and what another conversation lends.
 */
export function worthParking(lane: Holding, plan: Plan, gone: readonly Span[], parked: readonly Holding[]): Span[] {
  let known: Set<number> | null = null
  const isKnown = (entry: number): boolean => {
    if (lane.isAlone(entry)) return false
    known ??= new Set(parked.flatMap(({ cells }) => [...cells]))
    return known.has(lane.cells[entry]!)
  }
  const renewed = renewedKeys(lane, plan)
  const worth: Span[] = []
  for (const { start, end } of gone)
    for (let entry = start; entry < end; entry++) {
      if (isKnown(entry) || renewed.has(lane.keys[entry]!)) continue
      const last = worth.at(-1)
      if (last?.end === entry) worth[worth.length - 1] = span(last.start, entry + 1)
      else worth.push(span(entry, entry + 1))
    }
  return worth
}

/** Keys of which the plan has the same text, or the same marker's place, shown by other cells. */
function renewedKeys(lane: Holding, { shown, contract, parts, keys, again }: Plan): ReadonlySet<number> {
  const agrees = commonPrefix(lane.base, baseOf(shown))
  const renewed = new Set(again === 1 ? keys.subarray(-1) : [])
  if (contract === 'exact') return renewed
  for (const part of parts)
    if (part.kind === 'borrow' ? part.source === 'shared' : part.kind === 'compute' && contract === 'blend')
      for (const key of keys.subarray(part.span.start, part.span.end)) if (isMarker(key) || placeOf(key) < agrees) renewed.add(key)
  return renewed
}
