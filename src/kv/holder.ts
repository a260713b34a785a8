/** What the planner asks of anyone who holds computed tokens: a sequence on the device, or one that was moved off it. */
import type { ConversationId } from '../core/ids.js'
import type { CellHashes } from './cell-hash.js'

/** Where cells are: in the context's memory, in the program's, on disk. */
export type Tier = 'device' | 'host' | 'disk'

export interface HeldSequence {
  readonly conversation: ConversationId
  readonly tier: Tier
  /** Tokens held. */
  readonly held: number
  readonly tokens: Int32Array
  /** From `Shown`. */
  readonly sourceIds: Int32Array
  /** The unedited prompt that keys point into. */
  readonly unedited: Int32Array
  position(entry: number): number
  /** The first entry at `position` or after it; `held` when there is none. */
  atPosition(position: number): number
  /** The first entry with this key or a later one; `held` when there is none. */
  atKey(key: number): number
  /** Whether the entry is, at this place of a text, what a fresh prefill with these cell hashes would make it. */
  isFresh(entry: number, place: number, tokens: Int32Array, fresh: CellHashes): boolean
}

/** The first of `count` entries that is not `before`. */
export function lowerBound(count: number, before: (entry: number) => boolean): number {
  let low = 0
  let high = count
  while (low < high) {
    const middle = (low + high) >> 1
    if (before(middle)) low = middle + 1
    else high = middle
  }
  return low
}
