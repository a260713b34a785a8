/** A memory with nothing behind it: for finding out what steps would do to a cache, of which KvCache keeps all the books itself. */
import type { MemoryCell, KvMemory } from './memory.js'

/** Has as many cells and sequences as it says and agrees to everything; nothing can be saved in it or read back from it. */
export class DryRunMemory implements KvMemory {
  readonly canShift = true

  constructor(
    readonly cells: number,
    readonly sequences: number,
  ) {}

  tag(): void {
    // There is nothing to tag.
  }

  untag(): void {
    // There is nothing to untag.
  }

  shift(): void {
    // There is nothing to shift.
  }

  positions(): null {
    return null
  }

  saveSequence(): Uint8Array {
    return new Uint8Array()
  }

  loadSequence(): boolean {
    return false
  }

  readback(): readonly MemoryCell[] {
    return []
  }
}
