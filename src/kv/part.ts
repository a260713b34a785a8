/** The parts of a plan: stretches of the shown tokens, each with how the lane comes by it. */
import { length, span, type Span } from '../core/span.js'
import type { HeldSequence } from './holder.js'
import type { ReuseSource } from './ledger.js'

/** Spans are of shown tokens. */
export type Part =
  /** The lane holds it: its entries from `at` on. */
  | { readonly kind: 'keep'; readonly span: Span; readonly at: number }
  /** Another sequence holds it: its entries from `at` on. */
  | {
      readonly kind: 'borrow'
      readonly span: Span
      readonly at: number
      readonly from: HeldSequence
      readonly source: Exclude<ReuseSource, 'own'>
    }
  /** It is decoded at `position` and the positions after it. */
  | { readonly kind: 'compute'; readonly span: Span; readonly position: number }

/** Who may lend: the lane's own conversation under any contract, others only what equals a fresh prefill. */
export interface Lenders {
  /** What the conversation no longer shows, latest used first. */
  readonly parked: readonly HeldSequence[]
  /** Lanes and parked entries of other conversations. */
  readonly others: readonly HeldSequence[]
}

/** The position that comes after the part's; 0 after none. */
export function positionAfter(sequence: HeldSequence, part: Part | undefined): number {
  if (part === undefined) return 0
  if (part.kind === 'compute') return part.position + length(part.span)
  return (part.kind === 'keep' ? sequence : part.from).position(part.at + length(part.span) - 1) + 1
}

/** The parts, and after them a stretch to compute; as one with the last part if that is computed, too. */
export function withComputed(parts: readonly Part[], of: Span, position: number): Part[] {
  const last = parts.at(-1)
  if (last?.kind !== 'compute') return [...parts, { kind: 'compute', span: of, position }]
  return [...parts.slice(0, -1), { ...last, span: span(last.span.start, of.end) }]
}

/** A stretch that `holder` holds from entry `at` on. */
export function held(sequence: HeldSequence, holder: HeldSequence, of: Span, at: number): Part {
  if (holder === sequence) return { kind: 'keep', span: of, at }
  const source = holder.conversation === sequence.conversation ? 'parked' : 'shared'
  return { kind: 'borrow', span: of, at, from: holder, source }
}
