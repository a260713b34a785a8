/** Owns the parts of a plan under contract `exact`: the longest beginning that exact cells can be found for, then computation. */
import { span } from '../core/span.js'
import type { HeldSequence } from './holder.js'
import { held, withComputed, type Lenders, type Part } from './part.js'
import type { CellHashes } from './cell-hash.js'

/**
 * The longest beginning of `tokens` that can be put together from cells which are what a fresh prefill would make them, whoever holds them.
 * Where the lane itself holds what comes next it stays; else whoever holds most of it lends, of equals the first.
 */
export function exactBeginning(
  sequence: HeldSequence,
  tokens: Int32Array,
  { parked, others }: Lenders,
  fresh: CellHashes,
): Part[] {
  const lenders = [...parked, ...others]
  const parts: Part[] = []
  for (let at = 0; at < tokens.length;) {
    let best = exactRun(sequence, at, tokens.length, tokens, fresh)
    if (best.count === 0) {
      const limit = nextFresh(sequence, at, tokens, fresh)
      for (const lender of lenders) {
        const run = exactRun(lender, at, limit, tokens, fresh)
        if (run.count > best.count) best = run
      }
    }
    if (best.count === 0) break
    parts.push(held(sequence, best.holder, span(at, at + best.count), best.entry))
    at += best.count
  }
  return parts
}

/** The parts, and behind them the rest of what is shown, computed in its place. */
export function withRest(beginning: readonly Part[], tokens: Int32Array): readonly Part[] {
  const at = beginning.at(-1)?.span.end ?? 0
  return at === tokens.length ? beginning : withComputed(beginning, span(at, tokens.length), at)
}

/** How many tokens from `at` on `holder` holds as a fresh prefill would make them, up to place `limit`, and from which entry on. */
function exactRun(holder: HeldSequence, at: number, limit: number, tokens: Int32Array, fresh: CellHashes) {
  const entry = holder.atPosition(at)
  let count = 0
  while (at + count < limit && holder.isFresh(entry + count, at + count, tokens, fresh)) count++
  return { holder, entry, count }
}

/** The first place from `at` on that the lane holds as a fresh prefill would make it. */
function nextFresh(sequence: HeldSequence, at: number, tokens: Int32Array, fresh: CellHashes): number {
  for (let entry = sequence.atPosition(at); entry < sequence.held; entry++) {
    const place = sequence.position(entry)
    if (place >= tokens.length) break
    if (sequence.isFresh(entry, place, tokens, fresh)) return place
  }
  return tokens.length
}

/** How many tokens at the beginning the parts show as a fresh prefill would make them; what is computed in its place after them counts. */
export function exactIn(sequence: HeldSequence, parts: readonly Part[], tokens: Int32Array, fresh: CellHashes): number {
  let at = 0
  for (const part of parts) {
    if (part.kind === 'compute') {
      if (part.position !== at) return at
      at = part.span.end
      continue
    }
    const holder = part.kind === 'keep' ? sequence : part.from
    for (const { start } = part.span; at < part.span.end; at++)
      if (!holder.isFresh(part.at + at - start, at, tokens, fresh)) return at
  }
  return at
}
