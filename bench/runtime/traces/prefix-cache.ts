/** A prefix cache that never forgets: the fewest tokens that a server can compute when each hit is a prefix. */

export class InfinitePrefixCache {
  readonly #vocabulary: number
  /** The node behind each node and token; node 0 is the beginning. */
  readonly #next = new Map<number, number>()

  constructor(vocabulary: number) {
    this.#vocabulary = vocabulary
  }

  /** Adds a prompt. Returns how many of its tokens must be computed: those that no earlier prompt has at its beginning, at least the last one. */
  add(prompt: ArrayLike<number>): number {
    let [node, computed] = [0, 0]
    for (let index = 0; index < prompt.length; index++) {
      const key = node * this.#vocabulary + prompt[index]!
      const next = this.#next.get(key)
      if (next === undefined) computed++
      node = next ?? this.#next.size + 1
      if (next === undefined) this.#next.set(key, node)
    }
    return Math.max(1, computed)
  }
}
