/** Owns the parts of a plan under contract `exact`: the longest beginning that exact cells can be found for, then computation. */
import { span } from '../core/span.js'
import type { Holder } from './holder.js'
import type { Holding } from './holding.js'
import { held, withComputed, type Lenders, type Part } from './part.js'
import type { Shown } from './shown.js'
import type { CellHashes } from './cell-hash.js'

/** How many tokens from `at` on `holder` holds as a fresh prefill would make them, and at which entry. */
export interface Run {
  readonly holder: Holder
  readonly entry: number
  readonly count: number
}

/** The parts for `shown`. Where the lane itself holds what comes next it stays; else whoever holds most of it lends. */
export function exactParts(lane: Holder & Pick<Holding, 'freshHashes'>, { tokens }: Shown, { parked, others }: Lenders): Part[] {
  const fresh = lane.freshHashes(tokens)
  const lenders = [...parked, ...others]
  let parts: Part[] = []
  for (let at = 0; at < tokens.length;) {
    const own = exactRun(lane, at, tokens, fresh)
    const run = own.count > 0 ? own : untilOwn(lane, longestExactRun(lenders, at, tokens, fresh), at, tokens, fresh)
    if (run === null) return withComputed(parts, span(at, tokens.length), at)
    parts = [...parts, held(lane, run.holder, span(at, at + run.count), run.entry)]
    at += run.count
  }
  return parts
}

/** The first of the longest runs; null when nobody holds the token at `at`. */
export function longestExactRun(holders: readonly Holder[], at: number, tokens: Int32Array, fresh: CellHashes): Run | null {
  let best: Run | null = null
  for (const holder of holders) {
    const run = exactRun(holder, at, tokens, fresh)
    if (run.count > (best?.count ?? 0)) best = run
  }
  return best
}

/** The run as far as the lane does not hold it itself; it does not hold the first token. */
export function untilOwn<T extends Run | null>(lane: Holder, run: T, at: number, tokens: Int32Array, fresh: CellHashes): T {
  if (run === null) return run
  for (let entry = lane.atPosition(at + 1); entry < lane.held && lane.position(entry) < at + run.count; entry++) {
    const place = lane.position(entry)
    if (lane.isFresh(entry, place, tokens, fresh)) return { ...run, count: place - at }
  }
  return run
}

/** Possibly empty. */
export function exactRun(holder: Holder, at: number, tokens: Int32Array, fresh: CellHashes): Run {
  const entry = holder.atPosition(at)
  let count = 0
  while (at + count < tokens.length && holder.isFresh(entry + count, at + count, tokens, fresh)) count++
  return { holder, entry, count }
}
