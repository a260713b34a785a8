/** Finds threads that begin with the same messages as a request, by binary search over their message hashes. */
import { type Chain, common, type MatchCandidate } from './message-match.js'

/**
 * When more threads than this share a beginning, not all are compared. The search walks the tenant's threads from the newest on and takes
 * the first that fits.
 */
const FEW = 256

/** A thread and the chain of its message hashes when `note` indexed it. */
interface Noted<T> {
  readonly of: T
  readonly chain: Chain
  /** Insertion number; it orders threads whose chains are equal. */
  readonly order: number
}

/** A thread that begins with the same messages as a request. */
export interface Beginning<T> {
  readonly candidate: T
  /** How many messages are equal from the beginning on; at least 1. */
  readonly common: number
}

/** Keeps threads sorted by their chains. Threads with a common beginning are then neighbours, and the shorter thread comes first. */
export class Beginnings<T extends MatchCandidate> {
  readonly #sorted: Noted<T>[] = []
  readonly #noted = new Map<T, Noted<T>>()
  #order = 0

  /** @param newest returns all threads of the tenant, most recently used first */
  constructor(private readonly newest: () => Iterable<T>) {}

  get size(): number {
    return this.#sorted.length
  }

  /** Indexes the thread by its current chain. Call it after each change of the chain. */
  note(thread: T): void {
    const { chain } = thread
    const before = this.#noted.get(thread)?.chain
    if (before !== undefined && before.isSameAs(chain)) return
    this.delete(thread)
    const noted = { of: thread, chain: chain.beginning(chain.length), order: this.#order++ }
    this.#sorted.splice(this.#place(noted.chain, noted.order), 0, noted)
    this.#noted.set(thread, noted)
  }

  delete(thread: T): void {
    const noted = this.#noted.get(thread)
    if (noted === undefined) return
    this.#noted.delete(thread)
    this.#sorted.splice(this.#place(noted.chain, noted.order), 1)
  }

  /** Returns the most recently used thread whose messages are exactly the request's first `count` messages and that `suits`; else null. */
  ending(request: Chain, count: number, suits: (thread: T) => boolean): T | null {
    const chain = request.beginning(count)
    return this.#last(this.#place(chain, -1), this.#place(chain, Infinity), (noted) => noted.chain.isSameAs(chain), suits)
  }

  /**
   * Returns the thread with the longest common beginning; null when no thread shares the first message. Among equals it prefers a thread
   * whose messages all begin the request, then the most recently used.
   */
  best(request: Chain): Beginning<T> | null {
    const at = this.#place(request, -1)
    const shared = [this.#sorted[at - 1], this.#sorted[at]].map((noted) =>
      noted === undefined ? 0 : common(noted.chain, request),
    )
    const most = Math.max(...shared)
    if (most === 0) return null
    const has = ({ chain }: Noted<T>) => chain.length >= most && chain.agrees(request, most)
    const whole = this.ending(request, most, () => true)
    const candidate = whole ?? this.#last(this.#place(request.beginning(most), -1), this.#end(at, has), has, () => true)
    return candidate === null ? null : { candidate, common: most }
  }

  /**
   * Returns the most recently used thread that `suits`, at indexes `start` (inclusive) to `end` (exclusive) of the sorted list. `isIn` must
   * be true for exactly the threads in this range.
   */
  #last(start: number, end: number, isIn: (noted: Noted<T>) => boolean, suits: (thread: T) => boolean): T | null {
    if (end - start <= FEW) {
      let last: T | null = null
      for (let at = start; at < end; at++) {
        const { of } = this.#sorted[at]!
        if ((last === null || of.used > last.used) && suits(of)) last = of
      }
      return last
    }
    for (const thread of this.newest()) {
      const noted = this.#noted.get(thread)
      if (noted !== undefined && isIn(noted) && suits(thread)) return thread
    }
    return null
  }

  /** Returns the first index from `start` on for which `has` is false. */
  #end(start: number, has: (noted: Noted<T>) => boolean): number {
    let [low, high] = [start, this.#sorted.length]
    while (low < high) {
      const middle = (low + high) >> 1
      if (has(this.#sorted[middle]!)) low = middle + 1
      else high = middle
    }
    return low
  }

  /** Returns the index of this chain in the sorted list, or the index to insert it at. */
  #place(chain: Chain, order: number): number {
    let [low, high] = [0, this.#sorted.length]
    while (low < high) {
      const middle = (low + high) >> 1
      const other = this.#sorted[middle]!
      const difference = other.chain.compare(chain)
      if (difference < 0 || (difference === 0 && other.order < order)) low = middle + 1
      else high = middle
    }
    return low
  }
}
