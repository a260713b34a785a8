/** Threads that a store fetches for work that reads them. The work itself is synchronous, so that it decides on their present state. */
import { keyOf } from './manifest.js'

/** Stops work that reads a thread which is not fetched yet. */
class Unread extends Error {
  constructor(
    readonly tenant: string,
    readonly id: string,
  ) {
    super(`thread ${id} has to be fetched, and was read outside of ThreadStore.reading`)
  }
}

export class FetchedThreads<T> {
  #fetched: ReadonlyMap<string, T> | null = null

  /** Whether work is running for which threads are fetched. */
  get isReading(): boolean {
    return this.#fetched !== null
  }

  /**
   * Runs the work. Where it reads a thread that is not fetched yet, it is stopped, the thread is fetched, and it is started again. So it must
   * change nothing before its last read. @throws what `work` and `fetch` throw
   */
  async reading<Result>(work: () => Result, fetch: (tenant: string, id: string) => Promise<T>): Promise<Result> {
    const fetched = new Map<string, T>()
    for (;;) {
      let wanted: Unread
      try {
        this.#fetched = fetched
        return work()
      } catch (error) {
        if (!(error instanceof Unread)) throw error
        wanted = error
      } finally {
        this.#fetched = null
      }
      const { tenant, id } = wanted
      fetched.set(keyOf(tenant, id), await fetch(tenant, id))
    }
  }

  /** Returns what was fetched, if it is `current`. Otherwise the work stops, until it is fetched. */
  of(tenant: string, id: string, current: (fetched: T) => boolean): T {
    const fetched = this.#fetched?.get(keyOf(tenant, id))
    if (fetched === undefined || !current(fetched)) throw new Unread(tenant, id)
    return fetched
  }
}
