/** Moves sequences off the device in slices, between decodes, so that no running answer waits for a whole copy. */
import { length, span } from '../core/span.js'
import type { OffloadTiers, SavedState } from './offload.js'
import { offloadRecordOf } from './offload.js'
import type { SequenceTable } from './sequence-table.js'
import type { Sequence } from './sequence.js'

/** The fewest cells of a slice. A smaller slice takes hardly less time. */
const FEWEST = 256

/** A sequence that is being copied out. */
interface Moving {
  readonly victim: Sequence
  /** Number of entries and last use when the copy began. If either changes, the copy is discarded. */
  readonly held: number
  readonly lastUse: number
  readonly pieces: Uint8Array[]
  /** Number of entries that were copied so far. */
  done: number
}

/**
 * Moves sequences off the device that no step needs room of at once. Each slice tags some cells with a temporary sequence id, and copies
 * them off the event loop. When all of a sequence is copied, a lower tier stores it, and it leaves the device. A sequence that is used,
 * changed or dropped meanwhile stays, and its copy is discarded.
 */
export class SlicedOffload {
  readonly #waiting = new Set<Sequence>()
  #moving: Moving | null = null
  /** Sequences whose copy failed or found no room, with their last use at that time. They are tried again only after another use. */
  readonly #refused = new WeakMap<Sequence, number>()
  /** Cells copied per millisecond in the last slice; null before the first one. */
  #pace: number | null = null

  /** @param onMoved called when a lower tier has stored the sequence; it must drop the sequence from the device */
  constructor(
    private readonly table: SequenceTable,
    private readonly offload: OffloadTiers,
    private readonly onMoved: (victim: Sequence) => void,
  ) {}

  /** Whether a sequence is being moved or waits for it. */
  get busy(): boolean {
    return this.#moving !== null || this.#waiting.size > 0
  }

  /** Queues this sequence to be moved, behind those that wait already. */
  later(victim: Sequence): void {
    if (this.#moving?.victim !== victim) this.#waiting.add(victim)
  }

  /**
   * Copies the next slice. No other code may touch the memory meanwhile. Returns false when there was nothing to copy.
   * @param milliseconds about how long the slice may take
   */
  async slice(milliseconds: number): Promise<boolean> {
    const moving = this.#next()
    const scratch = moving === null ? null : this.table.sequences.take()
    if (moving === null || scratch === null) {
      this.#waiting.clear()
      this.#moving = null
      return false
    }
    const { memory } = this.table
    const { victim, held, done, pieces } = moving
    const count = this.#pace === null ? FEWEST : Math.max(FEWEST, Math.floor(this.#pace * milliseconds))
    const entries = span(done, Math.min(held, milliseconds === Infinity ? held : done + count))
    const of = victim.positionsOf(entries)
    const begun = performance.now()
    memory.tag(victim.seq, scratch, of)
    const state = await this.table.copying((to) => to.copyOut(scratch)).catch(() => null)
    memory.untag(scratch, of)
    this.table.sequences.give(scratch)
    this.#pace = length(entries) / Math.max(performance.now() - begun, 1e-3)
    if (state === null) {
      this.#moving = null
      this.#refused.set(victim, victim.lastUse)
      return true
    }
    pieces.push(state)
    moving.done = entries.end
    if (moving.done === held) this.#end(moving)
    return true
  }

  /** Returns the sequence that is copied next; null when none is left that may move. */
  #next(): Moving | null {
    const current = this.#moving
    if (current !== null && this.#isAsBefore(current)) return current
    this.#moving = null
    for (const victim of this.#waiting) {
      this.#waiting.delete(victim)
      if (!this.table.has(victim) || victim.running || victim.held === 0 || !victim.settled) continue
      if (this.#refused.get(victim) === victim.lastUse || !this.offload.hasRoom(victim.held)) continue
      return (this.#moving = { victim, held: victim.held, lastUse: victim.lastUse, pieces: [], done: 0 })
    }
    return null
  }

  #isAsBefore({ victim, held, lastUse }: Moving): boolean {
    return this.table.has(victim) && !victim.running && victim.settled && victim.held === held && victim.lastUse === lastUse
  }

  #end({ victim, pieces }: Moving): void {
    this.#moving = null
    const state: SavedState = pieces.length === 1 ? pieces[0]! : pieces
    if (this.offload.offer(offloadRecordOf(victim), state)) this.onMoved(victim)
    else this.#refused.set(victim, victim.lastUse)
  }
}
