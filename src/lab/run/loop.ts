/**
 * The loop that runs samples or episodes in several slots at the same time. Also divides a cache's cells among samples, and estimates the
 * time that a run still takes.
 */

/**
 * Runs all items. Each of `places` (slots of engines, for example) runs one item after another. The first error stops all of them and is
 * thrown. If `signal` stops the loop and no item throws, it ends early without an error.
 * @param play runs one item at a place; its signal aborts with the loop's signal, and when an item at another place fails
 */
export async function playAll<Item, Place>(
  items: readonly Item[],
  places: readonly Place[],
  signal: AbortSignal,
  play: (item: Item, place: Place, signal: AbortSignal) => Promise<void>,
): Promise<void> {
  const left = [...items]
  const stop = new AbortController()
  const either = AbortSignal.any([signal, stop.signal])
  const failures: Error[] = []
  const work = async (place: Place): Promise<void> => {
    for (let item = left.shift(); item !== undefined && !either.aborted; item = left.shift())
      try {
        await play(item, place, either)
      } catch (error) {
        // The item threw only because the loop was stopped; it did not fail.
        if (error === either.reason) return
        failures.push(error instanceof Error ? error : new Error(String(error)))
        stop.abort()
      }
  }
  await Promise.all(places.map(work))
  if (failures.length > 0) throw failures[0]!
}

// Below: divides one cache's cells among samples. A sample that does not fit waits until others end. Samples get cells in order of arrival.

export class Cells {
  readonly #waiting: { readonly count: number; readonly admit: () => void }[] = []
  #free: number

  /** @param total the number of cells; null: no limit */
  constructor(private readonly total: number | null) {
    this.#free = total ?? Infinity
  }

  /**
   * Waits until `wanted` cells are free, and takes them. If `wanted` exceeds the total, it takes all cells. Returns the function that gives
   * them back.
   * @throws the reason of `signal` when it aborts
   */
  async take(wanted: number, signal: AbortSignal): Promise<() => void> {
    const count = Math.min(wanted, this.total ?? wanted)
    await new Promise<void>((resolve, reject) => {
      signal.throwIfAborted()
      const leave = () => {
        this.#waiting.splice(this.#waiting.indexOf(waiter), 1)
        reject(signal.reason as Error)
      }
      const waiter = {
        count,
        admit: () => {
          signal.removeEventListener('abort', leave)
          this.#free -= count
          resolve()
        },
      }
      signal.addEventListener('abort', leave, { once: true })
      this.#waiting.push(waiter)
      this.#admit()
    })
    let given = false
    return () => {
      if (given) return
      given = true
      this.#free += count
      this.#admit()
    }
  }

  #admit(): void {
    while (this.#waiting.length > 0 && this.#waiting[0]!.count <= this.#free) this.#waiting.shift()!.admit()
  }
}

// Below: estimates how long a run will still take, from the times of similar samples.

/** What samples are grouped by. Samples of one kind take a similar time. */
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

  /** @param parallel the most samples that run at once; the estimate uses it until the real number has been measured */
  constructor(
    left: readonly Kind[],
    private readonly parallel: number,
    private readonly begun = performance.now(),
  ) {
    for (const kind of left) this.#left.set(kindOf(kind), (this.#left.get(kindOf(kind)) ?? 0) + 1)
  }

  /** Adds the time of a sample from an earlier run. */
  knows(kind: Kind, milliseconds: number): void {
    const taken = this.#taken.get(kindOf(kind)) ?? { count: 0, milliseconds: 0 }
    this.#taken.set(kindOf(kind), { count: taken.count + 1, milliseconds: taken.milliseconds + milliseconds })
  }

  /** Adds the time of a sample that this run finished. */
  done(kind: Kind, milliseconds: number): void {
    this.knows(kind, milliseconds)
    this.#busy += milliseconds
    this.#left.set(kindOf(kind), Math.max(0, (this.#left.get(kindOf(kind)) ?? 0) - 1))
  }

  /** Returns the estimated milliseconds until all samples are done; null if no sample's time is known yet. */
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
    // `busy` leaves out the samples in progress, so the real parallelism is known only after the first sample is done.
    const parallel = this.#busy > 0 && wall > 0 ? Math.min(this.parallel, Math.max(1, this.#busy / wall)) : this.parallel
    return work / parallel
  }
}
