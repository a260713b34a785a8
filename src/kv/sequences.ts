/** Owns which sequence ids are free. */
import { invariant } from '../core/errors.js'
import { seqId, type SeqId } from '../core/ids.js'

/** All ids of a context, 0 .. total-1; the lowest free one is lent first, which keeps logs readable. */
export class SequenceIds {
  readonly #free: Set<number>

  /** `total`: n_seq_max. */
  constructor(readonly total: number) {
    this.#free = new Set(Array.from({ length: total }, (_, id) => id))
  }

  get used(): number {
    return this.total - this.#free.size
  }

  /** Lends an id, or null when none is free. */
  take(): SeqId | null {
    if (this.#free.size === 0) return null
    const id = Math.min(...this.#free)
    this.#free.delete(id)
    return seqId(id)
  }

  /** Takes an id back; its sequence must hold nothing. */
  give(id: SeqId): void {
    invariant(!this.#free.has(id), `sequence ${id} was given back twice`)
    this.#free.add(id)
  }

  isFree(id: SeqId): boolean {
    return this.#free.has(id)
  }
}
