/** Owns Ctrl-C: the first one asks the running step to stop, the second one ends the process. */

/** What a shell expects of a program that SIGINT ended. */
export const INTERRUPTED = 130

/**
 * While it is held, SIGINT (and SIGTERM) aborts `signal` instead of killing the process; the one after that kills it. `renew` forgets an
 * interrupt that was dealt with, for programs that go on after one.
 */
export class Interrupt {
  #controller = new AbortController()
  readonly #onSignal = (): void => {
    this.trigger()
  }

  constructor() {
    process.on('SIGINT', this.#onSignal)
    process.on('SIGTERM', this.#onSignal)
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  get interrupted(): boolean {
    return this.#controller.signal.aborted
  }

  /** What SIGINT does; for terminals in raw mode, which send a key instead of a signal. */
  trigger(): void {
    if (this.interrupted) process.exit(INTERRUPTED)
    this.#controller.abort()
  }

  renew(): void {
    this.#controller = new AbortController()
  }

  release(): void {
    process.off('SIGINT', this.#onSignal)
    process.off('SIGTERM', this.#onSignal)
  }
}
