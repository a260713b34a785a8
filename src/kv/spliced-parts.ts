/** Owns the parts of a plan under contract `splice`: what is exact, then what the conversation held at the same place, at the position it had. */
import { length, span } from '../core/span.js'
import { align, type Beginning, type Stretch } from './alignment.js'
import type { HeldSequence } from './holder.js'
import { held, positionAfter, withComputed, type Part } from './part.js'
import { commonPrefix } from './prefix.js'
import { uneditedOf, isMarker, sourcePlace, type Prompt } from './shown.js'

export interface SplicedParts {
  readonly parts: readonly Part[]
  /** Computed tokens that the conversation holds at positions where they cannot stay. */
  readonly blocked: number
}

/**
 * The parts for `shown`, of which `beginning` is taken from exact cells. Behind it cells are found by key, and positions must ascend; as many stay
 * as can (alignment.ts). What is missing is computed right after the token before it, since llama.cpp decodes only at the position that
 * follows.
 *
 * @param parked what else the conversation holds, latest used first
 * @param again 1: the token is to be computed though it is held
 */
export function splicedParts(
  sequence: HeldSequence,
  shown: Prompt,
  keys: Int32Array,
  beginning: readonly Part[],
  parked: readonly HeldSequence[],
  again: Uint8Array,
): SplicedParts {
  const { tokens } = shown
  const own = [sequence, ...parked]
  const last = beginning.at(-1)
  const parts: Part[] = [...beginning]
  const from = beginningAfter(sequence, last, own)
  const stretches = stretchesOf(own, shown, keys, from, again)
  const pieces = align(stretches, from)
  for (const { source, span: of, entry } of pieces) {
    const at = parts.at(-1)?.span.end ?? 0
    if (of.start > at) addComputed(parts, sequence, at, of.start)
    const next = held(sequence, own[source]!, of, entry)
    const before = parts.at(-1)
    if (before !== undefined && goesOn(before, next))
      parts[parts.length - 1] = { ...before, span: span(before.span.start, of.end) }
    else parts.push(next)
  }
  const end = parts.at(-1)?.span.end ?? 0
  if (end < tokens.length) addComputed(parts, sequence, end, tokens.length)
  return { parts, blocked: blockedIn(parts, stretches, tokens.length) }
}

const addComputed = (parts: Part[], sequence: HeldSequence, from: number, to: number): void => {
  const position = positionAfter(sequence, parts.at(-1))
  parts.splice(0, parts.length, ...withComputed(parts, span(from, to), position))
}

/** Whether a part takes up the entries right behind those of the one before it. */
function goesOn(before: Part, next: Part): boolean {
  if (before.kind === 'compute' || next.kind === 'compute' || before.kind !== next.kind) return false
  if (before.kind === 'borrow' && next.kind === 'borrow' && before.from !== next.from) return false
  return before.at + length(before.span) === next.at
}

function beginningAfter(sequence: HeldSequence, last: Part | undefined, own: readonly HeldSequence[]): Beginning {
  if (last === undefined || last.kind === 'compute') return { place: 0, offset: 0, source: 0, entry: 0 }
  const source = own.indexOf(last.kind === 'keep' ? sequence : last.from)
  return { place: last.span.end, offset: 0, source, entry: last.at + length(last.span) }
}

/** What the conversation holds of the text behind its beginning. */
function stretchesOf(
  own: readonly HeldSequence[],
  shown: Prompt,
  keys: Int32Array,
  from: Beginning,
  again: Uint8Array,
): Stretch[] {
  const base = uneditedOf(shown)
  const of = (source: number, place: number) => stretchesIn(own[source]!, source, shown.tokens, base, keys, place, again)
  const ofLane = of(0, from.place)
  const others = own.slice(1).map((_, at) => at + 1)
  // A lane that goes on with all there is of it is the usual case; nobody else need be looked at but for what comes after that.
  let next = from
  for (const { source, span: of, entry } of ofLane)
    if (next.source === source && next.place === of.start && next.entry === entry)
      next = { ...next, place: of.end, entry: entry + length(of) }
  const place = next.place
  const isWhole = ofLane.at(-1)?.span.end === place && !again.includes(1)
  if (isWhole && others.every((source) => of(source, place).length === 0)) return ofLane
  return [...ofLane, ...others.flatMap((source) => of(source, from.place))]
}

/** The stretches of the text from `place` on that one of the conversation's sequences holds. */
export function stretchesIn(
  holder: HeldSequence,
  source: number,
  tokens: Int32Array,
  base: Int32Array,
  keys: Int32Array,
  place: number,
  again: Uint8Array | null,
): Stretch[] {
  if (holder.held === 0 || place >= tokens.length) return []
  const { sourceIds: heldKeys, tokens: heldTokens } = holder
  const agrees = commonPrefix(holder.unedited, base)
  const worth = source === 0 ? 2 : holder.tier === 'device' ? 1 : 0
  const found: Stretch[] = []
  let entry = holder.atKey(keys[place]!)
  /** Whether the source says all of the marker up to here. */
  let said = false
  let start = -1
  const close = (at: number) => {
    if (start === -1) return
    const first = entry - (at - start)
    found.push({ source, worth, span: span(start, at), entry: first, offset: holder.position(first) - start })
    start = -1
  }
  let at = place
  for (; at < tokens.length; at++) {
    const key = keys[at]!
    const inMarker = isMarker(key)
    if (inMarker ? sourcePlace(key) > agrees : sourcePlace(key) >= agrees) break
    const inside = inMarker && at > 0 && keys[at - 1] === key
    const skipped = entry
    while (entry < holder.held && heldKeys[entry]! < key) entry++
    const matches: boolean =
      entry < holder.held && heldKeys[entry] === key && heldTokens[entry] === tokens[at] && again?.[at] !== 1 && (!inside || said)
    said = matches
    if (start !== -1 && (!matches || skipped !== entry || holder.position(entry) !== holder.position(entry - 1) + 1)) {
      const here = entry
      entry = skipped
      close(at)
      entry = here
    }
    if (!matches) continue
    if (start === -1) start = at
    entry++
  }
  close(at)
  return found
}

/** Computed places that some stretch covers. */
function blockedIn(parts: readonly Part[], stretches: readonly Stretch[], count: number): number {
  const covered = new Uint8Array(count)
  for (const { span: of } of stretches) covered.fill(1, of.start, of.end)
  let blocked = 0
  for (const part of parts)
    if (part.kind === 'compute') for (let at = part.span.start; at < part.span.end; at++) blocked += covered[at]!
  return blocked
}
