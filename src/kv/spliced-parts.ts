/** Owns the parts of a plan under contract `splice`: what the conversation held at the same place stays, at the position it had. */
import { length, span } from '../core/span.js'
import { exactRun, longestExactRun, untilOwn, type Run } from './exact-parts.js'
import type { Holder } from './holder.js'
import type { Holding } from './holding.js'
import { held, positionAfter, withComputed, type Lenders, type Part } from './part.js'
import { commonPrefix } from './prefix.js'
import { baseOf, isMarker, placeOf, type Shown } from './shown.js'

/** One of the conversation's own sequences, and up to where its unedited prompt was the present one. */
interface Own {
  readonly holder: Holder
  readonly agrees: number
}

/**
 * The parts for `shown`. Cells are found by key; positions must ascend, so that a marker may take the positions of what it hides and nothing
 * else. What is missing is computed right after the token before it, since llama.cpp decodes only at the position that follows.
 *
 * @param again 1: the token is to be computed though it is held
 * @returns `blocked`: something held could not stay where it was
 */
export function splicedParts(
  lane: Holder & Pick<Holding, 'freshHashes'>,
  shown: Shown,
  keys: Int32Array,
  { parked, others }: Lenders,
  again: Uint8Array,
): { readonly parts: Part[]; readonly blocked: boolean } {
  const { tokens } = shown
  const base = baseOf(shown)
  const own = [lane, ...parked].map((holder): Own => ({ holder, agrees: commonPrefix(holder.base, base) }))
  const lenders = others.filter((other) => other.held > 0)
  const fresh = lenders.length > 0 ? lane.freshHashes(tokens) : null
  let parts: Part[] = []
  let blocked = false
  /** Whether everything so far is what a fresh prefill would make it; only after that may others lend. */
  let exact = fresh !== null

  for (let at = 0; at < tokens.length;) {
    const next = positionAfter(lane, parts.at(-1))
    let run: Run | null = null
    const inside = isMarker(keys[at]!) && keys[at - 1] === keys[at]
    for (const source of inside ? [] : own) {
      const found = runByKey(source, at, tokens, keys, again)
      if (found.count === 0) continue
      if (found.holder.position(found.entry) >= next) {
        run = found
        break
      }
      blocked = true
    }
    if (run === null && !inside && exact && fresh !== null && again[at] === 0)
      run = untilOwn(lane, longestExactRun(lenders, at, tokens, fresh), at, tokens, fresh)
    if (run === null) {
      let end = at + 1
      // A marker is computed to its end: what an earlier marker said from here on was said after other words.
      while (isMarker(keys[at]!) && keys[end] === keys[at]) end++
      parts = withComputed(parts, span(at, end), next)
      exact &&= next === at
      at = end
      continue
    }
    exact &&= fresh !== null && exactRun(run.holder, at, tokens, fresh).count >= run.count
    parts = [...parts, held(lane, run.holder, span(at, at + run.count), run.entry)]
    at += length(parts.at(-1)!.span)
  }
  return { parts, blocked }
}

/** How many tokens from `at` on come from the same places as entries of the source. Possibly none. */
function runByKey({ holder, agrees }: Own, at: number, tokens: Int32Array, keys: Int32Array, again: Uint8Array): Run {
  const { keys: heldKeys, tokens: heldTokens } = holder
  const entry = holder.atKey(keys[at]!)
  let count = 0
  for (; at + count < tokens.length; count++) {
    const key = keys[at + count]!
    const place = placeOf(key)
    const known = isMarker(key) ? place <= agrees : place < agrees
    if (!known || again[at + count] === 1) break
    if (heldKeys[entry + count] !== key || heldTokens[entry + count] !== tokens[at + count]) break
  }
  return { holder, entry, count }
}
