/** Owns the guess of how long a run still takes: from what samples like those that are left have taken. */

/** Samples that take about as long as each other. */
interface Kind {
  readonly task: number
  readonly agent: string
  readonly contract: string
}

const kindOf = ({ task, agent, contract }: Kind): string => `${task} ${agent} ${contract}`

export class Pace {
  readonly #taken = new Map<string, { count: number; milliseconds: number }>()
  readonly #left = new Map<string, number>()
  #busy = 0

  /** @param parallel samples that are worked on at once, as long as nothing was measured */
  constructor(
    left: readonly Kind[],
    private readonly parallel: number,
    private readonly begun = performance.now(),
  ) {
    for (const kind of left) this.#left.set(kindOf(kind), (this.#left.get(kindOf(kind)) ?? 0) + 1)
  }

  /** What a sample took in an earlier run. */
  knows(kind: Kind, milliseconds: number): void {
    const taken = this.#taken.get(kindOf(kind)) ?? { count: 0, milliseconds: 0 }
    this.#taken.set(kindOf(kind), { count: taken.count + 1, milliseconds: taken.milliseconds + milliseconds })
  }

  /** A sample that was left is done. */
  done(kind: Kind, milliseconds: number): void {
    this.knows(kind, milliseconds)
    this.#busy += milliseconds
    this.#left.set(kindOf(kind), Math.max(0, (this.#left.get(kindOf(kind)) ?? 0) - 1))
  }

  /** Milliseconds; null while nothing is known. */
  left(now = performance.now()): number | null {
    const all = [...this.#taken.values()]
    const count = all.reduce((sum, taken) => sum + taken.count, 0)
    if (count === 0) return null
    const usual = all.reduce((sum, { milliseconds }) => sum + milliseconds, 0) / count
    let work = 0
    for (const [kind, left] of this.#left) {
      const taken = this.#taken.get(kind)
      work += left * (taken === undefined ? usual : taken.milliseconds / taken.count)
    }
    const wall = now - this.begun
    // Measured only once the first samples are behind us: those under way are not in `busy` yet.
    const parallel = this.#busy > 0 && wall > 0 ? Math.min(this.parallel, Math.max(1, this.#busy / wall)) : this.parallel
    return work / parallel
  }
}
