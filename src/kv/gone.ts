/** Owns what a lane loses when a plan is carried out, and what of that is worth keeping. */
import { span, type Span } from '../core/span.js'
import type { Holding } from './holding.js'
import type { Plan } from './plan.js'
import { isMarker } from './shown.js'

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
 * Of these entries of the lane, those that nothing else of the conversation holds, without the last token if it is only computed for its
 * logits. What `blend` computes again is kept, because a restore asks for it. Of a marker only what begins with its beginning,
 * because the rest says nothing without it and would be found in its place.
 */
export function worthParking(lane: Holding, plan: Plan, gone: readonly Span[], parked: readonly Holding[]): Span[] {
  let known: Set<number> | null = null
  const isKnown = (entry: number): boolean => {
    if (lane.isAlone(entry)) return false
    known ??= new Set(parked.flatMap(({ cells }) => [...cells]))
    return known.has(lane.cells[entry]!)
  }
  const renewed = plan.again === 1 ? plan.keys.at(-1) : undefined
  const worth: Span[] = []
  for (const { start, end } of gone)
    for (let entry = start; entry < end; entry++) {
      if (isKnown(entry) || lane.keys[entry] === renewed) continue
      const last = worth.at(-1)
      if (last?.end === entry) worth[worth.length - 1] = span(last.start, entry + 1)
      else if (!isInside(lane.keys, entry)) worth.push(span(entry, entry + 1))
    }
  return worth
}

const isInside = (keys: Int32Array, entry: number): boolean => isMarker(keys[entry]!) && keys[entry - 1] === keys[entry]
