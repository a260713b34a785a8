/** Owns how many conversations fit into one cache: who does not fit waits, in order of arrival. */

export class Cells {
  readonly #waiting: { readonly count: number; readonly admit: () => void }[] = []
  #free: number

  /** @param total null: there is no limit */
  constructor(private readonly total: number | null) {
    this.#free = total ?? Infinity
  }

  /** Waits for room; whoever needs more than there is gets all of it. Returns what gives it back. @throws the reason of `signal` when it was aborted */
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
