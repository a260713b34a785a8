/** Owns what a lane loses when a plan is carried out, and what of that is worth keeping. */
import { span, type Span } from '../core/span.js'
import type { Sequence } from './holding.js'
import type { Plan } from './plan.js'
import { isMarker } from './shown.js'

/** The lane's entries that the plan does not keep, in order. */
export function droppedFrom(sequence: Sequence, { parts }: Plan): Span[] {
  const gone: Span[] = []
  let entry = 0
  for (const part of parts) {
    if (part.kind !== 'keep') continue
    if (part.at > entry) gone.push(span(entry, part.at))
    entry = part.at + part.span.end - part.span.start
  }
  if (sequence.held > entry) gone.push(span(entry, sequence.held))
  return gone
}

/**
 * Of these entries of the lane, those that nothing else of the conversation holds, without the last token if it is only computed for its
 * logits. What `blend` computes again is kept, because a restore asks for it. Of a marker only what begins with its beginning,
 * because the rest says nothing without it and would be found in its place.
 */
export function worthParking(sequence: Sequence, plan: Plan, gone: readonly Span[], parked: readonly Sequence[]): Span[] {
  let known: Set<number> | null = null
  const isKnown = (entry: number): boolean => {
    if (sequence.isAlone(entry)) return false
    known ??= new Set(parked.flatMap(({ cells }) => [...cells]))
    return known.has(sequence.cells[entry]!)
  }
  const renewed = plan.again === 1 ? plan.sourceIds.at(-1) : undefined
  const worth: Span[] = []
  for (const { start, end } of gone)
    for (let entry = start; entry < end; entry++) {
      if (isKnown(entry) || sequence.sourceIds[entry] === renewed) continue
      const last = worth.at(-1)
      if (last?.end === entry) worth[worth.length - 1] = span(last.start, entry + 1)
      else if (!isInside(sequence.sourceIds, entry)) worth.push(span(entry, entry + 1))
    }
  return worth
}

const isInside = (keys: Int32Array, entry: number): boolean => isMarker(keys[entry]!) && keys[entry - 1] === keys[entry]
