/**
 * Computes cell hashes. A cell's hash covers everything that its values depend on: its token, its position, and every cell that it could
 * see when it was computed.
 */
import { commonPrefix } from './prompt.js'
import { type CacheSalt, COMMON } from './tenant-salts.js'

/** Words of 32 bits per cell hash. */
export const WORDS = 4

/** An array of cell hashes, `WORDS` words each. */
export type CellHashes = Int32Array

/** Rounds of Chaskey-12 (ISO/IEC 29192-6). */
const ROUNDS = 12

/** Goes into the hash of a turned cell, to keep it apart from the hashes of computed cells. */
const TURNED = 1

/** Number of cells between two saved states of the hasher, a power of two. Going back re-reads fewer cells than this. */
const STRIDE = 256

/**
 * Computes cell hashes. A cell's hash decides whether the cell may replace a computation: equal hashes of equal tokens mean equal values.
 * Hashes nest: the hash of a cell depends on the hashes of all cells that it saw. So a cell that was computed beside now hidden text has
 * another hash than a fresh prefill's cell. So has every cell computed after it.
 *
 * A state S of 128 bits stands for all cells seen so far; it begins as the salt's `start`. A cell's hash is h = P(S ^ (token, position, 0,
 * 0) ^ K) ^ K. K is the salt's `key`. P is the permutation of the MAC Chaskey-12, used here as the block cipher of Even and Mansour. Once
 * the cell is seen, S becomes 2S ^ h, doubled in GF(2^128) (the doubling of CMAC).
 *
 * A cell that was turned to another position has the hash P(h ^ (0, position, 0, 1) ^ K) ^ K, where h is its hash before.
 *
 * So S is the sum of the start and of all h seen, each times a different power of two. Those powers never coincide, and no cell is seen
 * twice. So the states of two different histories differ by a sum that has at least one h with a factor other than 0. To an attacker
 * without the salt, every h of new inputs is random, and no h is ever shown. After q cells, two inputs, and so two hashes, agree with a
 * probability of about q^2/2^128 (2^-64 after 2^32 cells). That holds for any choice of tokens, of folds and of their order.
 */
export class CellHasher {
  readonly #key: Int32Array
  readonly #state: Int32Array
  #seen = 0
  /** The states after 0, STRIDE, 2 STRIDE, ... cells. */
  readonly #states: number[]

  constructor({ key, start }: CacheSalt = COMMON) {
    this.#key = key
    this.#state = start.slice()
    this.#states = [...start]
  }

  /** Number of cells that the hasher has seen. */
  get seen(): number {
    return this.#seen
  }

  /** Writes, as the `at`th hash of `into`, the hash of a cell with this token and position, computed after all cells seen so far. */
  place(token: number, position: number, into: CellHashes, at: number): void {
    const state = this.#state
    this.#write(state[0]! ^ token, state[1]! ^ position, state[2]!, state[3]!, into, at)
  }

  /**
   * Replaces the `at`th hash by that of the same cell turned to another position. The old hash and the new position determine the turned
   * values, which no computed cell has. TURNED keeps the hashes of turned and computed cells apart by design, not by chance alone.
   */
  turn(position: number, hashes: CellHashes, at: number): void {
    const first = WORDS * at
    this.#write(hashes[first]!, hashes[first + 1]! ^ position, hashes[first + 2]!, hashes[first + 3]! ^ TURNED, hashes, at)
  }

  /** Writes a hash: the permutation of these words, with the key added before and after it. */
  #write(w0: number, w1: number, w2: number, w3: number, into: CellHashes, at: number): void {
    const key = this.#key
    let v0 = w0 ^ key[0]!
    let v1 = w1 ^ key[1]!
    let v2 = w2 ^ key[2]!
    let v3 = w3 ^ key[3]!
    for (let round = 0; round < ROUNDS; round++) {
      v0 = (v0 + v1) | 0
      v1 = ((v1 << 5) | (v1 >>> 27)) ^ v0
      v0 = (v0 << 16) | (v0 >>> 16)
      v2 = (v2 + v3) | 0
      v3 = ((v3 << 8) | (v3 >>> 24)) ^ v2
      v0 = (v0 + v3) | 0
      v3 = ((v3 << 13) | (v3 >>> 19)) ^ v0
      v2 = (v2 + v1) | 0
      v1 = ((v1 << 7) | (v1 >>> 25)) ^ v2
      v2 = (v2 << 16) | (v2 >>> 16)
    }
    const first = WORDS * at
    into[first] = v0 ^ key[0]!
    into[first + 1] = v1 ^ key[1]!
    into[first + 2] = v2 ^ key[2]!
    into[first + 3] = v3 ^ key[3]!
  }

  /** Adds a cell to the cells seen; `hashes[at]` is its hash. */
  see(hashes: CellHashes, at: number): void {
    const state = this.#state
    const first = WORDS * at
    const s0 = state[0]!
    const s1 = state[1]!
    const s2 = state[2]!
    const s3 = state[3]!
    state[0] = (s0 << 1) ^ ((s3 >> 31) & 0x87) ^ hashes[first]!
    state[1] = ((s1 << 1) | (s0 >>> 31)) ^ hashes[first + 1]!
    state[2] = ((s2 << 1) | (s1 >>> 31)) ^ hashes[first + 2]!
    state[3] = ((s3 << 1) | (s2 >>> 31)) ^ hashes[first + 3]!
    this.#seen++
    if (this.#seen % STRIDE === 0) this.#states.push(state[0], state[1], state[2], state[3])
  }

  /**
   * Goes back to the state after `seen` cells, or after up to STRIDE - 1 fewer. Returns the number of cells seen then. Changes nothing if
   * no more than `seen` cells were seen.
   */
  goBack(seen: number): number {
    if (seen >= this.#seen) return this.#seen
    const strides = Math.floor(seen / STRIDE)
    this.#states.length = WORDS * (strides + 1)
    this.#state.set(this.#states.slice(-WORDS))
    return (this.#seen = strides * STRIDE)
  }
}

/** Whether the `at`th hash of `a` equals the `bt`th of `b`. */
export function sameHash(a: CellHashes, at: number, b: CellHashes, bt: number): boolean {
  const i = WORDS * at
  const j = WORDS * bt
  return a[i] === b[j] && a[i + 1] === b[j + 1] && a[i + 2] === b[j + 2] && a[i + 3] === b[j + 3]
}

/**
 * Computes the hashes that a fresh prefill gives the cells of a text. Remembers the last text, because the next one mostly begins with it.
 */
export class FreshHashes {
  readonly #hasher: CellHasher
  /**
   * The tokens of the last text, in an array with room for more. Hashes that were returned are never overwritten: a different text gets a
   * new array.
   */
  #tokens = new Int32Array()
  #hashes: CellHashes = new Int32Array()
  #given: CellHashes = new Int32Array()

  constructor(readonly salt: CacheSalt = COMMON) {
    this.#hasher = new CellHasher(salt)
  }

  /** Returns the hash of each of `tokens`, in order. The array never changes; callers must not write to it. */
  of(tokens: Int32Array): CellHashes {
    const known = this.#given.length / WORDS
    const same = commonPrefix(this.#tokens.subarray(0, known), tokens)
    if (same === tokens.length && same === known) return this.#given
    const from = this.#hasher.goBack(same)
    if (same < known || tokens.length > this.#tokens.length) this.#move(same, tokens.length + (tokens.length >> 1))
    this.#tokens.set(tokens.subarray(same), same)
    for (let at = from; at < tokens.length; at++) {
      // Known tokens keep their hashes. They are only fed to the hasher again, to restore its state.
      if (at >= same) this.#hasher.place(tokens[at]!, at, this.#hashes, at)
      this.#hasher.see(this.#hashes, at)
    }
    return (this.#given = this.#hashes.subarray(0, WORDS * tokens.length))
  }

  /** Moves to new arrays of this size, and copies the first `same` entries. */
  #move(same: number, size: number): void {
    const [tokens, hashes] = [new Int32Array(size), new Int32Array(WORDS * size)]
    tokens.set(this.#tokens.subarray(0, same))
    hashes.set(this.#hashes.subarray(0, WORDS * same))
    this.#tokens = tokens
    this.#hashes = hashes
  }
}

/**
 * A text and the hashes that a fresh prefill gives its cells. They are computed on first use: a text that continues exact cells needs none.
 */
export class FreshText {
  #hashes: CellHashes | null = null

  constructor(
    readonly tokens: Int32Array,
    private readonly known: FreshHashes,
  ) {}

  /** The cache salt of the hashes. Only cells under the same salt can match. */
  get salt(): CacheSalt {
    return this.known.salt
  }

  /** The hashes of all its cells. */
  get hashes(): CellHashes {
    return (this.#hashes ??= this.known.of(this.tokens))
  }

  /** Whether the `at`th hash of `hashes` equals that of the text's cell at index `place`. */
  isAt(place: number, hashes: CellHashes, at: number): boolean {
    return sameHash(hashes, at, this.hashes, place)
  }
}
