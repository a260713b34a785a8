/** Owns what is studied: a long context, all cached, the same after a fold, and the arms of a turn from there. */
import { type Contract, CONTRACTS } from '../../core/contract.js'
import { KvfoldError } from '../../core/errors.js'
import { Random } from '../../core/random.js'
import { span } from '../../core/span.js'
import { EXACT, type Terms } from '../../kv/plan-parts.js'
import type { Prompt } from '../../kv/prompt.js'

// The situation that is studied: a long context, all cached, and the same after a fold, as token lists.

/** Tokens before and after the fold. */
export interface Point {
  readonly before: number
  readonly after: number
  /** Share (0..1) of what is still shown that stands before the fold; what follows it is computed again under `exact`. */
  readonly share: number
}

/** Tokens shown instead of what is folded: about as many as kvfold's own markers take. */
export const MARKER = 20

/** So many random tokens, for times do not depend on what a text says; a longer one of the same seed begins with it. */
export function randomText(length: number, vocabulary: number, seed: number): Int32Array {
  const random = new Random(seed)
  return Int32Array.from({ length }, () => random.below(vocabulary))
}

/** The whole text, nothing folded. */
export const open = (text: Int32Array): Prompt => ({ tokens: text, messages: asOne(text.length) })

/** The text with one fold, so that as many tokens are left as the point says, the marker's included. */
export function folded(text: Int32Array, point: Point, marker: Int32Array): Prompt {
  const { start, end } = holeOf(point, marker.length)
  const tokens = new Int32Array(point.after)
  tokens.set(text.subarray(0, start))
  tokens.set(marker, start)
  tokens.set(text.subarray(end), start + marker.length)
  return {
    tokens,
    messages: asOne(tokens.length),
    origin: { base: text, holes: [{ span: span(start, end), marker: marker.length }] },
  }
}

/** What is folded, half-open. At least one token follows: a turn always ends with what is asked. */
function holeOf({ before, after, share }: Point, marker: number): { readonly start: number; readonly end: number } {
  const left = after - marker
  const start = Math.min(left - 1, Math.round(share * left))
  return { start, end: before - (left - start) }
}

/** @throws KvfoldError cli/bad-usage where nothing would be folded, or nothing left */
export function checkPoint({ before, after }: Point): void {
  if (after < MARKER + 2)
    throw new KvfoldError('cli/bad-usage', `Nothing is left of a context folded to ${after} tokens; give ${MARKER + 2} at least.`)
  if (before < after + MARKER)
    throw new KvfoldError(
      'cli/bad-usage',
      `A fold from ${before} to ${after} tokens hides less than its marker of ${MARKER}; give a longer context before, or a shorter one after.`,
    )
}

const asOne = (length: number) => [{ index: 0, role: 'text', span: span(0, length) }]

// The alternatives of a turn: go on with the long context, or fold it under a contract.

/** `keep`: nothing is folded, and all of it is cached. */
export type Way = 'keep' | Contract

export const WAYS: readonly Way[] = ['keep', ...CONTRACTS]

/** `blend`: the share of what follows the fold that it computes again. */
export function termsOf(way: Way, blend: number): Terms {
  if (way === 'keep') return EXACT
  return way === 'blend' ? { contract: way, blend: { ratio: blend } } : { contract: way }
}
