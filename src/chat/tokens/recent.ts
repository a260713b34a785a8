/** A cache of what was made of recent texts, bounded by their total length. */

export class Recent<T> {
  /** In order of use: a Map iterates in insertion order, and a hit is inserted anew. */
  readonly #entries = new Map<string, T>()
  #characters = 0

  constructor(private readonly limit: number) {}

  get(text: string, make: () => T): T {
    const kept = this.#entries.get(text)
    if (kept !== undefined) {
      this.#entries.delete(text)
      this.#entries.set(text, kept)
      return kept
    }
    const made = make()
    this.#entries.set(text, made)
    this.#characters += text.length + 1
    for (const [oldest] of this.#entries) {
      if (this.#characters <= this.limit || oldest === text) break
      this.#entries.delete(oldest)
      this.#characters -= oldest.length + 1
    }
    return made
  }
}
