/** Owns which threads stay in memory: those that somebody uses, and of the others the ones used last, as far as there is room. */
import type { BookEntry } from './book-entry.js'

/** Nothing is lost with a thread that is put away: all that was told to anybody is in the store. */
export class Loaded {
  /** Longest unused first. */
  readonly #entries = new Set<BookEntry>()

  /** @param room bytes, about, that threads take; those in use may take more */
  constructor(private readonly room: number) {}

  /** Threads in memory. */
  get size(): number {
    return this.#entries.size
  }

  /** The entry, which has its thread, is used now; others may be put away for it. */
  use(entry: BookEntry): void {
    this.#entries.delete(entry)
    this.trim()
    this.#entries.add(entry)
  }

  delete(entry: BookEntry): void {
    this.#entries.delete(entry)
  }

  /** Puts idle threads away until the rest has room. */
  trim(): void {
    let size = 0
    for (const { thread } of this.#entries) size += thread?.size ?? 0
    for (const entry of this.#entries) {
      if (size <= this.room) return
      if (entry.thread?.idle === false) continue
      size -= entry.thread?.size ?? 0
      entry.putAway()
      this.#entries.delete(entry)
    }
  }
}
