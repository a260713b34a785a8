/** A list in the order of last use, as a doubly linked list. */

interface Link<T> {
  readonly of: T
  older: Link<T> | null
  newer: Link<T> | null
}

/**
 * Keeps items in the order of their last use. Items may be used or deleted during an iteration, which visits no item twice unless it is
 * used meanwhile.
 */
export class UseOrder<T> {
  readonly #links = new Map<T, Link<T>>()
  #oldest: Link<T> | null = null
  #newest: Link<T> | null = null

  get size(): number {
    return this.#links.size
  }

  /** Makes the item the most recently used. */
  use(thing: T): void {
    this.delete(thing)
    const link: Link<T> = { of: thing, older: this.#newest, newer: null }
    if (this.#newest === null) this.#oldest = link
    else this.#newest.newer = link
    this.#newest = link
    this.#links.set(thing, link)
  }

  delete(thing: T): void {
    const link = this.#links.get(thing)
    if (link === undefined) return
    this.#links.delete(thing)
    if (link.older === null) this.#oldest = link.newer
    else link.older.newer = link.newer
    if (link.newer === null) this.#newest = link.older
    else link.newer.older = link.older
  }

  *fromOldest(): Generator<T> {
    for (let link = this.#oldest; link !== null;) {
      const { of, newer } = link
      yield of
      link = newer
    }
  }

  *fromNewest(): Generator<T> {
    for (let link = this.#newest; link !== null;) {
      const { of, older } = link
      yield of
      link = older
    }
  }
}
