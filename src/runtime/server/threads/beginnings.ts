/** Finds threads that begin with the same messages as a request. Compares only a handful of threads, however many there are. */
import { type Chain, common, type MatchCandidate } from './message-match.js'

/** If at most this many threads have the same beginning, all of them are compared to find the one used last. */
const FEW = 256

/** A thread, and its chain at the time when it was indexed by `note`. */
interface Noted<T> {
  readonly of: T
  readonly chain: Chain
  /** Tells threads with equal chains apart. */
  readonly order: number
}

/** The beginning that a request shares with a thread. */
export interface Beginning<T> {
  readonly candidate: T
  /** How many messages both begin with; at least 1. */
  readonly common: number
}

/** Keeps threads sorted by their chains, so that threads with the same beginning are neighbours, the shorter first. */
export class Beginnings<T extends MatchCandidate> {
  readonly #sorted: Noted<T>[] = []
  readonly #noted = new Map<T, Noted<T>>()
  #order = 0

  /** @param newest returns all threads of the tenant, most recently used first */
  constructor(private readonly newest: () => Iterable<T>) {}

  get size(): number {
    return this.#sorted.length
  }

  /** Indexes the thread by its present chain. Call it again when the chain changes. */
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

  /** Of the threads that have exactly the request's first `count` messages, returns the most recently used; null when there is none. */
  ending(request: Chain, count: number, suits: (thread: T) => boolean): T | null {
    const chain = request.beginning(count)
    return this.#last(this.#place(chain, -1), this.#place(chain, Infinity), (noted) => noted.chain.isSameAs(chain), suits)
  }

  /**
   * Returns the thread with the longest common beginning. Among equals it prefers one that the request continues unchanged, then the most
   * recently used. Returns null when no thread shares a message.
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
   * Returns the most recently used thread at places `start` to `end` of the sorted list. `isIn` is true of exactly the threads at these
   * places.
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

  /** Returns the first place from `start` on whose thread does not have the common beginning. */
  #end(start: number, has: (noted: Noted<T>) => boolean): number {
    let [low, high] = [start, this.#sorted.length]
    while (low < high) {
      const middle = (low + high) >> 1
      if (has(this.#sorted[middle]!)) low = middle + 1
      else high = middle
    }
    return low
  }

  /** Returns the place of this chain in the sorted list, or the place to insert it. */
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
