/** Computes the similarity of two texts by Ratcliff and Obershelp's measure, exactly as CPython's difflib.SequenceMatcher does. */

/** If the second text has at least this many characters, the search for blocks ignores frequent characters (difflib's autojunk). */
const LONG = 200

/**
 * Returns the similarity of two texts, 0 to 1, as Python's `SequenceMatcher(None, a, b).ratio()` computes it over code points. The order of
 * the arguments matters. If `b` is long, the search for blocks ignores characters that occur in it more than length // 100 + 1 times.
 */
export function similarity(a: string, b: string): number {
  const [first, second] = [points(a), points(b)]
  const total = first.length + second.length
  return total === 0 ? 1 : (2 * matches(first, second)) / total
}

const points = (text: string): number[] => Array.from(text, (character) => character.codePointAt(0) ?? 0)

/** Counts the characters in matching blocks: finds the longest block, then the longest to its left and to its right, and so on. */
function matches(a: readonly number[], b: readonly number[]): number {
  const finder = new BlockFinder(a, b)
  const open: Area[] = [{ a: 0, aEnd: a.length, b: 0, bEnd: b.length }]
  let sum = 0
  for (let area = open.pop(); area !== undefined; area = open.pop()) {
    const block = finder.longest(area)
    if (block.size === 0) continue
    sum += block.size
    if (area.a < block.a && area.b < block.b) open.push({ a: area.a, aEnd: block.a, b: area.b, bEnd: block.b })
    const [aAfter, bAfter] = [block.a + block.size, block.b + block.size]
    if (aAfter < area.aEnd && bAfter < area.bEnd) open.push({ a: aAfter, aEnd: area.aEnd, b: bAfter, bEnd: area.bEnd })
  }
  return sum
}

/** A range of each text in which a matching block is searched; the ends are exclusive. */
interface Area {
  readonly a: number
  readonly aEnd: number
  readonly b: number
  readonly bEnd: number
}

interface MatchingBlock {
  readonly a: number
  readonly b: number
  readonly size: number
}

class BlockFinder {
  /** For each character that may begin a block, its indexes in `b`, ascending. */
  readonly #places: ReadonlyMap<number, readonly number[]>
  /** At index i + 1: the length of the block that ends at index i of `b` and at the previous character of `a`. All 0 between two calls. */
  #before: Uint32Array
  #now: Uint32Array

  constructor(
    private readonly a: readonly number[],
    private readonly b: readonly number[],
  ) {
    this.#places = placesIn(b)
    this.#before = new Uint32Array(b.length + 1)
    this.#now = new Uint32Array(b.length + 1)
  }

  /**
   * Finds the longest matching block in the area; of equally long ones the first in `a`, then the first in `b`. Then extends it over equal
   * characters on both sides, including frequent ones.
   */
  longest(area: Area): MatchingBlock {
    let best: MatchingBlock = { a: area.a, b: area.b, size: 0 }
    let previous: readonly number[] = []
    for (let at = area.a; at < area.aEnd; at++) {
      const here = this.#placesOf(this.a[at] ?? -1, area)
      for (const place of here) {
        const size = (this.#before[place] ?? 0) + 1
        this.#now[place + 1] = size
        if (size > best.size) best = { a: at - size + 1, b: place - size + 1, size }
      }
      for (const place of previous) this.#before[place + 1] = 0
      ;[this.#before, this.#now] = [this.#now, this.#before]
      previous = here
    }
    for (const place of previous) this.#before[place + 1] = 0
    return this.#grown(best, area)
  }

  /** Returns the indexes of a character in `b` within the area. */
  #placesOf(character: number, area: Area): readonly number[] {
    const all = this.#places.get(character)
    if (all === undefined) return []
    const [from, to] = [firstFrom(all, area.b), firstFrom(all, area.bEnd)]
    return from === 0 && to === all.length ? all : all.slice(from, to)
  }

  #grown({ a, b, size }: MatchingBlock, area: Area): MatchingBlock {
    while (a > area.a && b > area.b && this.a[a - 1] === this.b[b - 1]) [a, b, size] = [a - 1, b - 1, size + 1]
    while (a + size < area.aEnd && b + size < area.bEnd && this.a[a + size] === this.b[b + size]) size++
    return { a, b, size }
  }
}

/** Returns how many of the ascending numbers are below `least`. */
function firstFrom(ascending: readonly number[], least: number): number {
  let [low, high] = [0, ascending.length]
  while (low < high) {
    const middle = (low + high) >>> 1
    if ((ascending[middle] ?? 0) < least) low = middle + 1
    else high = middle
  }
  return low
}

function placesIn(b: readonly number[]): ReadonlyMap<number, readonly number[]> {
  const places = new Map<number, number[]>()
  for (const [at, character] of b.entries()) {
    const list = places.get(character)
    if (list === undefined) places.set(character, [at])
    else list.push(at)
  }
  if (b.length >= LONG) {
    const most = Math.floor(b.length / 100) + 1
    for (const [character, list] of places) if (list.length > most) places.delete(character)
  }
  return places
}
