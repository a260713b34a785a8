/** Finds the longest earlier occurrence of a text's last tokens (prompt lookup). The tokens that followed it may come next. Pure. */

/** The fewest tokens of a match. */
export const SHORTEST_MATCH = 3
/** Matches are not counted beyond this length. */
export const LONGEST_MATCH = 64
/** The most earlier occurrences that one search compares, the latest first. */
const MOST_TRIED = 32
/** The most tokens that one call adds to the index. A text of a million tokens is indexed over several calls. */
const SLICE = 65_536
/** Bounds of the size of the hash table, as powers of two. */
const BITS = { least: 10, most: 18 }

/** Stands between two texts. No match and no proposal crosses it, or any other negative number. */
const BORDER = -1

/** The outcome of one proposal: how many tokens had matched before it, and whether the next token was the proposed one. */
export interface LookupTrial {
  readonly matched: number
  readonly hit: boolean
}

/**
 * An index over texts and the tokens that follow them, to find earlier occurrences of the last tokens. A place is a number of tokens from
 * the beginning. All places that have the same hash of the SHORTEST_MATCH tokens before them form a chain, the latest first. While the
 * proposed tokens are hits, the match just grows; after a miss it is searched again.
 */
export class PromptLookup {
  #tokens: Int32Array
  /** For each place: the previous place of its chain; 0 ends the chain. */
  #earlier: Int32Array
  #length: number
  /** All places up to this one are in the chains. */
  #indexed = SHORTEST_MATCH - 1
  /** For each hash, the latest place of its chain. */
  readonly #latest: Int32Array
  readonly #shift: number
  /** The place of the token that is proposed next; 0 without a match. */
  #source = 0
  #matched = 0

  /** @param texts The texts that may be repeated; `push` continues the last one. Negative numbers in them stand for no token. */
  constructor(texts: readonly Int32Array[]) {
    const size = texts.reduce((sum, text) => sum + text.length + 1, 0)
    this.#tokens = new Int32Array(size + 256)
    this.#earlier = new Int32Array(size + 256)
    this.#length = 0
    for (const [index, text] of texts.entries()) {
      if (index > 0) this.#tokens[this.#length++] = BORDER
      this.#tokens.set(text, this.#length)
      this.#length += text.length
    }
    const bits = Math.min(BITS.most, Math.max(BITS.least, 32 - Math.clz32(size)))
    this.#latest = new Int32Array(2 ** bits)
    this.#shift = 32 - bits
    this.#index()
    this.#search()
  }

  /** How many tokens before the proposal equal the last tokens of the text; 0 without a match. */
  get matched(): number {
    return this.#matched
  }

  /** Adds the next token of the text. Returns whether it was the proposed one; null if none was proposed. */
  push(token: number): LookupTrial | null {
    const { matched } = this
    const hit = matched > 0 && this.#tokens[this.#source] === token
    this.#append(token)
    this.#index()
    if (hit && this.#tokens[this.#source + 1]! >= 0) {
      this.#source++
      this.#matched = Math.min(matched + 1, LONGEST_MATCH)
    } else this.#search()
    return matched === 0 ? null : { matched, hit }
  }

  /**
   * Returns up to `most` tokens that followed the match. If they reach the end of the text, the text repeats with a period, so the proposal
   * repeats them.
   */
  propose(most: number): Int32Array {
    const proposed = new Int32Array(this.#matched === 0 ? 0 : Math.max(0, most))
    const period = this.#length - this.#source
    for (let at = 0; at < proposed.length; at++) {
      const token = at < period ? this.#tokens[this.#source + at]! : proposed[at - period]!
      if (token < 0) return proposed.slice(0, at)
      proposed[at] = token
    }
    return proposed
  }

  #append(token: number): void {
    if (this.#length === this.#tokens.length) {
      const grown = (old: Int32Array) => {
        const array = new Int32Array(2 * old.length)
        array.set(old)
        return array
      }
      this.#tokens = grown(this.#tokens)
      this.#earlier = grown(this.#earlier)
    }
    this.#tokens[this.#length++] = token
  }

  /** Adds places to the chains, except the end of the text, which would match itself. */
  #index(): void {
    const end = Math.min(this.#length - 1, this.#indexed + SLICE)
    while (this.#indexed < end) {
      const place = ++this.#indexed
      const hash = this.#hash(place)
      this.#earlier[place] = this.#latest[hash]!
      this.#latest[hash] = place
    }
  }

  #hash(place: number): number {
    let hash = 0
    for (let back = 1; back <= SHORTEST_MATCH; back++) hash = Math.imul(hash ^ this.#tokens[place - back]!, 0x9e3779b1)
    return ((hash ^ (hash >>> 15)) >>> 0) >>> this.#shift
  }

  /** Finds the longest match of the text's last tokens; of equally long ones the latest. */
  #search(): void {
    this.#source = 0
    this.#matched = 0
    if (this.#length < SHORTEST_MATCH) return
    let place = this.#latest[this.#hash(this.#length)]!
    for (let tried = 0; place > 0 && tried < MOST_TRIED && this.#matched < LONGEST_MATCH; tried++) {
      const length = this.#matchAt(place)
      if (length >= SHORTEST_MATCH && length > this.#matched && this.#tokens[place]! >= 0) {
        this.#source = place
        this.#matched = length
      }
      place = this.#earlier[place]!
    }
  }

  /** Returns how many tokens right before `place` equal the last tokens of the text. */
  #matchAt(place: number): number {
    const most = Math.min(place, LONGEST_MATCH)
    let length = 0
    while (length < most) {
      const token = this.#tokens[place - 1 - length]!
      if (token < 0 || token !== this.#tokens[this.#length - 1 - length]) break
      length++
    }
    return length
  }
}
