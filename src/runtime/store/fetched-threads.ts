/** Fetches the threads that a piece of work reads. The work itself is synchronous, so no thread changes while it decides. */
import { keyOf } from '../core/ids.js'

/** The error that stops work when it reads a thread that is not fetched yet. */
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

  /** Whether work runs now inside `reading`. */
  get isReading(): boolean {
    return this.#fetched !== null
  }

  /**
   * Runs the work. When the work reads a thread that is not fetched yet, it is stopped, the thread is fetched, and the work starts again.
   * So the work must change nothing before its last read. @throws what `work` and `fetch` throw
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
   * Returns the fetched thread if `current` accepts it. Otherwise stops the work; `reading` then fetches the thread and starts the work
   * again.
   */
  of(tenant: string, id: string, current: (fetched: T) => boolean): T {
    const fetched = this.#fetched?.get(keyOf(tenant, id))
    if (fetched === undefined || !current(fetched)) throw new Unread(tenant, id)
    return fetched
  }
}
