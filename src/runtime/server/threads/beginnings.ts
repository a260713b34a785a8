/** Owns which threads begin as a request does: it looks at a handful of them, however many there are. */
import { type Chain, common, type MatchCandidate } from './message-match.js'

/** Threads that begin alike, up to which all of them are looked at for the one used last. */
const FEW = 256

/** A thread's chain as it was when it was noted. */
interface Noted<T> {
  readonly of: T
  readonly chain: Chain
  /** Tells equal chains apart. */
  readonly order: number
}

/** How a request begins as a thread does. */
export interface Beginning<T> {
  readonly candidate: T
  /** Messages that both begin with; 1 at least. */
  readonly common: number
}

/** Holds threads in the order of their chains, so that those which begin alike stand together, the shorter before the longer. */
export class Beginnings<T extends MatchCandidate> {
  readonly #sorted: Noted<T>[] = []
  readonly #noted = new Map<T, Noted<T>>()
  #order = 0

  /** @param newest all threads there may be, those used last first */
  constructor(private readonly newest: () => Iterable<T>) {}

  get size(): number {
    return this.#sorted.length
  }

  /** Takes the thread in with the chain that it has now. Call it again when the chain has changed. */
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

  /** The thread used last of those that consist of the request's first `count` messages and nothing else. Null: there is none. */
  ending(request: Chain, count: number, suits: (thread: T) => boolean): T | null {
    const chain = request.beginning(count)
    return this.#last(this.#place(chain, -1), this.#place(chain, Infinity), (noted) => noted.chain.isSameAs(chain), suits)
  }

  /**
   * The thread with the longest beginning of the request. Of equals it is one that the request goes on from as it is, then the one used last.
   * Null: none has any.
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

  /** The thread used last of those between these places, which are those that `isIn` holds for. */
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

  /** The first place from `start` on whose thread lacks what those before it have. */
  #end(start: number, has: (noted: Noted<T>) => boolean): number {
    let [low, high] = [start, this.#sorted.length]
    while (low < high) {
      const middle = (low + high) >> 1
      if (has(this.#sorted[middle]!)) low = middle + 1
      else high = middle
    }
    return low
  }

  /** Where this chain stands, or would stand. */
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
