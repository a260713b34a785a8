/** Owns cell hashes: what a cell's values depend on, as a number: its token, its position, and every cell that could be seen when it was computed. */
import { commonPrefix } from './prompt.js'
import { type CacheSalt, COMMON } from './tenant-salts.js'

/** Words of 32 bits in a cell hash. */
export const WORDS = 4

/** Cell hashes one after the other, `WORDS` words each. */
export type CellHashes = Int32Array

/** Of Chaskey-12 (ISO/IEC 29192-6). */
const ROUNDS = 12

/** Said of a cell that was turned. */
const TURNED = 1

/** Cells between two states that are remembered, a power of two: going back reads fewer than this again. */
const STRIDE = 256

/**
 * Computes cell hashes. A cell's hash decides whether it may stand in for a computation: equal hashes of equal tokens mean that the values are
 * the same. Hashes nest: what was seen enters by the hashes of the cells seen, so one that was computed beside text that is hidden now differs
 * from a fresh prefill's, and so does every cell computed after it.
 *
 * All that was seen is a state S of 128 bits, at first the salt's `start`. A cell's hash is h = P(S ^ (token, position, 0, 0) ^ K) ^ K, with K the
 * salt's `key` and P the permutation of the MAC Chaskey-12, which as used here is the block cipher of Even and Mansour. Once the cell is seen,
 * S becomes 2S ^ h, doubled in GF(2^128) (the doubling of CMAC).
 *
 * A cell that was turned to another position has the hash P(h ^ (0, position, 0, 1) ^ K) ^ K, h being what it had before.
 *
 * Hence S is the sum of the start and of all h seen, each times another power of two; those are never equal, and no cell is seen twice, so the
 * states of two different histories differ by a sum that has at least one h with a factor other than 0. To whoever lacks the salt every h of
 * new inputs is random, and none is ever shown: after q cells two inputs, and so two hashes, agree with a chance of about q^2/2^128 (2^-64
 * after 2^32 cells), whoever chooses the tokens, the folds and their order.
 */
export class CellHasher {
  readonly #key: Int32Array
  readonly #state: Int32Array
  #seen = 0
  /** The states after 0, STRIDE, 2 STRIDE, ... cells seen. */
  readonly #states: number[]

  constructor({ key, start }: CacheSalt = COMMON) {
    this.#key = key
    this.#state = start.slice()
    this.#states = [...start]
  }

  /** Cells seen. */
  get seen(): number {
    return this.#seen
  }

  /** Writes the hash of a cell with this token and position, computed after all that was seen, as the `at`th of `into`. */
  place(token: number, position: number, into: CellHashes, at: number): void {
    const state = this.#state
    this.#write(state[0]! ^ token, state[1]! ^ position, state[2]!, state[3]!, into, at)
  }

  /**
   * The cell with the `at`th of these hashes has another position from now on, its key turned to it: what it was and where it is now say what its
   * values are, which no computed cell has. TURNED keeps the two apart, as it would be by chance alone without it.
   */
  turn(position: number, hashes: CellHashes, at: number): void {
    const first = WORDS * at
    this.#write(hashes[first]!, hashes[first + 1]! ^ position, hashes[first + 2]!, hashes[first + 3]! ^ TURNED, hashes, at)
  }

  /** The permutation of these words, the key before and after it. */
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

  /** The cell with the `at`th of these hashes is seen from now on. */
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

  /** Back to when it had seen this many cells, or up to STRIDE - 1 fewer; says how many. Nothing changes where it has not seen more. */
  goBack(seen: number): number {
    if (seen >= this.#seen) return this.#seen
    const strides = Math.floor(seen / STRIDE)
    this.#states.length = WORDS * (strides + 1)
    this.#state.set(this.#states.slice(-WORDS))
    return (this.#seen = strides * STRIDE)
  }
}

/** Whether the `at`th of `a` is the `bt`th of `b`. */
export function sameHash(a: CellHashes, at: number, b: CellHashes, bt: number): boolean {
  const i = WORDS * at
  const j = WORDS * bt
  return a[i] === b[j] && a[i + 1] === b[j + 1] && a[i + 2] === b[j + 2] && a[i + 3] === b[j + 3]
}

/** The hashes that a fresh prefill gives the cells of a text. Remembers the last text, because the next one mostly begins with it. */
export class FreshHashes {
  readonly #hasher: CellHasher
  /** The last text and its hashes, with room for more. Hashes that were given away are not written over: another text gets an array of its own. */
  #tokens = new Int32Array()
  #hashes: CellHashes = new Int32Array()
  #given: CellHashes = new Int32Array()

  constructor(readonly salt: CacheSalt = COMMON) {
    this.#hasher = new CellHasher(salt)
  }

  /** Of all `tokens`, place by place. The array is nobody's to write to, and never written to again. */
  of(tokens: Int32Array): CellHashes {
    const known = this.#given.length / WORDS
    const same = commonPrefix(this.#tokens.subarray(0, known), tokens)
    if (same === tokens.length && same === known) return this.#given
    const from = this.#hasher.goBack(same)
    if (same < known || tokens.length > this.#tokens.length) this.#move(same, tokens.length + (tokens.length >> 1))
    this.#tokens.set(tokens.subarray(same), same)
    for (let at = from; at < tokens.length; at++) {
      // Those before are seen once more and stay as they are.
      if (at >= same) this.#hasher.place(tokens[at]!, at, this.#hashes, at)
      this.#hasher.see(this.#hashes, at)
    }
    return (this.#given = this.#hashes.subarray(0, WORDS * tokens.length))
  }

  /** Into arrays of this size, as far as the text is the same. */
  #move(same: number, size: number): void {
    const [tokens, hashes] = [new Int32Array(size), new Int32Array(WORDS * size)]
    tokens.set(this.#tokens.subarray(0, same))
    hashes.set(this.#hashes.subarray(0, WORDS * same))
    this.#tokens = tokens
    this.#hashes = hashes
  }
}

/** A text and what a fresh prefill would make of it: hashed when it is first asked, because what goes on from exact cells need not ask. */
export class FreshText {
  #hashes: CellHashes | null = null

  constructor(
    readonly tokens: Int32Array,
    private readonly known: FreshHashes,
  ) {}

  /** Whose cells would do. */
  get salt(): CacheSalt {
    return this.known.salt
  }

  /** Of all its cells. */
  get hashes(): CellHashes {
    return (this.#hashes ??= this.known.of(this.tokens))
  }

  /** Whether the `at`th of these hashes is that of the text's cell at `place`. */
  isAt(place: number, hashes: CellHashes, at: number): boolean {
    return sameHash(hashes, at, this.hashes, place)
  }
}
