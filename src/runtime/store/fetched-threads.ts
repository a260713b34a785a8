/**
 * Lets synchronous work read threads that must first be fetched. Because the work itself is synchronous, no thread changes while it runs.
 */
import { keyOf } from '../core/ids.js'

/** Thrown by a read of a thread that is not fetched yet. It stops the work, so that `reading` can fetch the thread. */
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

  get isReading(): boolean {
    return this.#fetched !== null
  }

  /**
   * Runs the work. If the work reads a thread that is not fetched, it is stopped, the thread is fetched, and the work runs again from the
   * start. So the work must change nothing before its last read. @throws what `work` and `fetch` throw
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

  /**
   * Returns the fetched thread. If it is not fetched, or `current` rejects it as outdated, stops the work; `reading` then fetches the
   * thread and runs the work again.
   */
  of(tenant: string, id: string, current: (fetched: T) => boolean): T {
    const fetched = this.#fetched?.get(keyOf(tenant, id))
    if (fetched === undefined || !current(fetched)) throw new Unread(tenant, id)
    return fetched
  }
}
