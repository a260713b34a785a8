/**
 * The terms of a step and the parts of its plan: token spans of the prompt, each kept, borrowed, turned or computed. Also chooses the parts
 * under contract `exact`.
 */
import type { BlendChoice, Contract } from '../../core/contract.js'
import { length, span, type Span } from '../../core/span.js'
import type { FreshText } from '../cell-hash.js'
import type { ReuseSource } from '../ledger.js'
import type { Prompt } from '../prompt.js'
import type { HeldSequence } from '../sequence.js'
import type { View } from '../views.js'

// What a step asks for.

/** The contract that a step asks for, and its further options. */
export interface StepContract {
  readonly contract: Contract
  /** Which tokens `blend` computes again. Default: BLEND_DEFAULT. */
  readonly blend?: BlendChoice
  /**
   * The shown tokens from this prompt index on are computed, even if they are held, because the caller wants to capture their attention or
   * log-probabilities. Default: none.
   */
  readonly recomputeFrom?: number
}

export const EXACT: StepContract = { contract: 'exact' }

/** Returns the stricter of two contracts: `exact` is stricter than `blend`, and `blend` than `splice`. */
export const stricter = (a: Contract, b: Contract): Contract => {
  const rank = (of: Contract) => ['splice', 'blend', 'exact'].indexOf(of)
  return rank(a) >= rank(b) ? a : b
}

// The parts of a plan.

/** A span of the shown tokens (`span`), and how the live sequence gets its cells. */
export type Part =
  /** The live sequence holds the span already, in its entries from `at` on. */
  | { readonly kind: 'keep'; readonly span: Span; readonly at: number }
  /** Another sequence, `from`, holds the span in its entries from `at` on, and lends their cells. */
  | {
      readonly kind: 'borrow'
      readonly span: Span
      readonly at: number
      readonly from: HeldSequence
      readonly source: Exclude<ReuseSource, 'own'>
    }
  /**
   * `from`, a sequence of the conversation or of an ancestor, holds the span at other positions. Copies of its entries, from `at` on, are
   * turned to `position` and the positions after it.
   */
  | {
      readonly kind: 'turn'
      readonly span: Span
      readonly at: number
      readonly from: HeldSequence
      readonly source: Exclude<ReuseSource, 'shared'>
      readonly position: number
    }
  /** The span is decoded, at `position` and the positions after it. */
  | { readonly kind: 'compute'; readonly span: Span; readonly position: number }

/**
 * The sequences from which a plan may reuse cells. Those of the conversation and its ancestors lend under any contract; all others lend
 * only exact cells.
 */
export interface Lenders {
  /**
   * The conversation's parked sequences and then its stored ones, each latest used first; then all sequences of its ancestors, nearest
   * first.
   */
  readonly parked: readonly HeldSequence[]
  /** Live, parked and stored sequences of all other conversations that are not its ancestors. */
  readonly others: readonly HeldSequence[]
  /** Earlier views of the conversation, and views of its ancestors, latest first. The live sequence is not included. */
  readonly views: readonly View[]
  /** The prompt of the conversation's last step, or else of its parent's; null when there was none. */
  readonly before: Prompt | null
}

/** Returns the position right behind the part's last token; 0 if there is no part. */
export function positionAfter(sequence: HeldSequence, part: Part | undefined): number {
  if (part === undefined) return 0
  if (part.kind === 'compute' || part.kind === 'turn') return part.position + length(part.span)
  return (part.kind === 'keep' ? sequence : part.from).position(part.at + length(part.span) - 1) + 1
}

/** Returns by how many positions the copies of a `turn` part are moved; negative towards the beginning. */
export const turnOf = ({ from, at, position }: Part & { readonly kind: 'turn' }): number => position - from.position(at)

/** Returns the parts with a further computed span. If the last part is computed, too, it becomes longer instead. */
export function withComputed(parts: readonly Part[], of: Span, position: number): Part[] {
  const last = parts.at(-1)
  if (last?.kind !== 'compute') return [...parts, { kind: 'compute', span: of, position }]
  return [...parts.slice(0, -1), { ...last, span: span(last.span.start, of.end) }]
}

/** Returns the part for a token span whose cells `holder` holds from its entry `at` on. */
export function held(sequence: HeldSequence, holder: HeldSequence, of: Span, at: number): Part {
  if (holder === sequence) return { kind: 'keep', span: of, at }
  const source = holder.conversation === sequence.conversation ? 'parked' : 'shared'
  return { kind: 'borrow', span: of, at, from: holder, source }
}

// Contract `exact`: the longest beginning that exact cells can make up is reused, and the rest is computed.

/**
 * A sequence off the device is loaded whole, which takes time and evicts other cells. One of another conversation is loaded only if it
 * saves more than this share of its own tokens. Most prompts of one application begin with the same few tokens, and these are not worth a load.
 */
const LEAST_LENT = 1 / 32

/**
 * Returns the parts for the longest beginning of the text that exact cells of any sequences can make up. If the live sequence holds the
 * next token exactly, its cells stay. Otherwise the sequence that saves most lends its run of exact cells from there; of equal ones, the
 * first. A sequence saves the tokens of its run, less the price of loading it (`LEAST_LENT`).
 */
export function exactBeginning(sequence: HeldSequence, text: FreshText, { parked, others }: Lenders): Part[] {
  const { tokens } = text
  const lenders = [...parked, ...others]
  const priceOf = (lender: HeldSequence) =>
    (lender.tier === 'host' || lender.tier === 'disk') && !parked.includes(lender) ? LEAST_LENT * lender.held : 0
  const parts: Part[] = []
  for (let at = 0; at < tokens.length;) {
    let best = exactRun(sequence, at, tokens.length, text)
    if (best.count === 0) {
      const able = lenders.filter((lender) => lender.isFresh(lender.atPosition(at), at, text))
      const limit = able.length === 0 ? at : nextFresh(sequence, at, text)
      let most = 0
      for (const lender of able) {
        const run = exactRun(lender, at, limit, text)
        const saved = run.count - priceOf(lender)
        if (saved > most) [best, most] = [run, saved]
      }
    }
    if (best.count === 0) break
    parts.push(held(sequence, best.holder, span(at, at + best.count), best.entry))
    at += best.count
  }
  return parts
}

/** Returns the parts of `beginning`, plus a part that computes the rest of the prompt. */
export function withRest(beginning: readonly Part[], tokens: Int32Array): readonly Part[] {
  const at = beginning.at(-1)?.span.end ?? 0
  return at === tokens.length ? beginning : withComputed(beginning, span(at, tokens.length), at)
}

/** Counts the exact cells that `holder` has for the text's tokens from index `at` up to `limit`. Also returns its entry of token `at`. */
function exactRun(holder: HeldSequence, at: number, limit: number, text: FreshText) {
  const entry = holder.atPosition(at)
  return { holder, entry, count: holder.freshRun(entry, at, limit, text) }
}

/** Returns the first index from `at` on at which the live sequence holds an exact cell of the text; the text's length if there is none. */
function nextFresh(sequence: HeldSequence, at: number, text: FreshText): number {
  const { tokens } = text
  for (let entry = sequence.atPosition(at); entry < sequence.held; entry++) {
    const place = sequence.position(entry)
    if (place >= tokens.length) break
    if (sequence.isFresh(entry, place, text)) return place
  }
  return tokens.length
}

/**
 * Returns the length of the exact beginning that the parts show. A computed token counts if its position equals its prompt index and all
 * tokens before it are exact.
 */
export function exactIn(sequence: HeldSequence, parts: readonly Part[], text: FreshText): number {
  let at = 0
  for (const part of parts) {
    if (part.kind === 'compute') {
      if (part.position !== at) return at
      at = part.span.end
      continue
    }
    if (part.kind === 'turn') return at
    const holder = part.kind === 'keep' ? sequence : part.from
    at += holder.freshRun(part.at, at, part.span.end, text)
    if (at < part.span.end) return at
  }
  return at
}
