/** Owns which threads stay in memory: those that somebody uses, and of the others the ones used last, as far as there is room. */
import type { BookEntry } from './book-entry.js'

/**
 * Nothing is lost with a thread that is put away: all that was told to anybody is in the store. As long as there is room, the use of one looks at
 * no other.
 */
export class Loaded {
  /** The bytes that each was counted with; longest unused first. */
  readonly #entries = new Map<BookEntry, number>()
  /** Their sum. */
  #bytes = 0

  /** @param room bytes, about, that threads take; those in use may take more */
  constructor(private readonly room: number) {}

  /** Threads in memory. */
  get size(): number {
    return this.#entries.size
  }

  /** The entry, which has its thread, is used now; others may be put away for it. */
  use(entry: BookEntry): void {
    this.delete(entry)
    this.trim()
    this.#count(entry)
  }

  /** Counts the entry again. */
  grown(entry: BookEntry): void {
    if (this.#entries.has(entry)) this.#count(entry)
  }

  delete(entry: BookEntry): void {
    this.#bytes -= this.#entries.get(entry) ?? 0
    this.#entries.delete(entry)
  }

  /** Puts idle threads away until the rest has room. */
  trim(): void {
    for (const entry of this.#entries.keys()) {
      if (this.#bytes <= this.room) return
      if (entry.thread?.idle === false) continue
      entry.putAway()
      this.delete(entry)
    }
  }

  #count(entry: BookEntry): void {
    const bytes = entry.thread?.size ?? 0
    this.#bytes += bytes - (this.#entries.get(entry) ?? 0)
    this.#entries.set(entry, bytes)
  }
}
