/** A prefix cache without eviction. It gives the fewest tokens that a server can compute if only prefixes hit. */

export class InfinitePrefixCache {
  readonly #vocabulary: number
  /** A trie: the node that follows a node by a token. The key is node * vocabulary + token; node 0 is the root. */
  readonly #next = new Map<number, number>()

  constructor(vocabulary: number) {
    this.#vocabulary = vocabulary
  }

  /**
   * Adds a prompt. Returns how many of its tokens must be computed: all behind the longest beginning that it shares with an earlier prompt,
   * and at least the last one.
   */
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
