/** A small seeded random generator: the same seed gives the same numbers on every machine. */

import { invariant } from './errors.js'

/** Yields words for the state of a generator. Nearby seeds give very different words (splitmix: a Weyl sequence through `mix`). */
function* seedWords(seed: number): Generator<number, never> {
  let state = seed >>> 0
  for (;;) {
    state = (state + 0x9e3779b9) >>> 0
    yield mix(state)
  }
}

/** Maps 32-bit integers one to one to 32-bit integers, such that every input bit affects every output bit. */
export function mix(value: number): number {
  let x = value >>> 0
  x = Math.imul(x ^ (x >>> 16), 0x21f0aaad)
  x = Math.imul(x ^ (x >>> 15), 0x735a2d97)
  return (x ^ (x >>> 15)) >>> 0
}

/** A random generator: xoshiro128** (Blackman and Vigna) with 128 bits of state, 32 bits per draw. Not for secrets. */
export class Random {
  readonly #state: Uint32Array

  /**
   * @param seed any integer; its low 32 bits are used
   * @param stream further numbers: each list of them gives another, unrelated sequence of draws from the same seed
   */
  constructor(seed: number, ...stream: readonly number[]) {
    const words = seedWords(stream.reduce((mixed, number) => mix(mixed ^ mix(number + 1)), seed >>> 0))
    this.#state = Uint32Array.from({ length: 4 }, () => words.next().value)
  }

  /** Returns an integer, uniform in 0 .. 2^32 - 1. */
  word(): number {
    const [a = 0, b = 0, c = 0, d = 0] = this.#state
    const drawn = Math.imul(rotate(Math.imul(b, 5), 7), 9) >>> 0
    const third = c ^ a
    const fourth = d ^ b
    this.#state.set([a ^ fourth, b ^ third, third ^ (b << 9), rotate(fourth, 11)])
    return drawn
  }

  /** Returns an integer, uniform in 0 .. below - 1, without bias. Requires 1 <= below <= 2^32. */
  below(below: number): number {
    // Without this check, a bound below 1 would make the loop endless.
    invariant(below >= 1, `a draw needs at least one number, not ${below}`)
    const limit = 2 ** 32 - (2 ** 32 % below)
    for (;;) {
      const word = this.word()
      if (word < limit) return word % below
    }
  }

  /** Returns a shuffled copy of the items. All orders are equally likely. */
  shuffled<T>(items: readonly T[]): T[] {
    const order = [...items]
    for (let last = order.length - 1; last > 0; last--) {
      const other = this.below(last + 1)
      const kept = order[last] as T
      order[last] = order[other] as T
      order[other] = kept
    }
    return order
  }
}

const rotate = (word: number, bits: number): number => (word << bits) | (word >>> (32 - bits))
