/** Owns what a long bench says while it runs, on stderr, and how it is ended early: the first Ctrl-C ends it after the measurement under way. */

/** Milliseconds between two lines where nobody sees them overwritten. */
const QUIET = 15_000

export class Watch {
  #over = false
  #said = -Infinity
  readonly #begun = performance.now()
  readonly #stop = () => {
    this.#over = true
    process.stderr.write('\ninterrupted: what is measured so far follows; once more ends it at once\n')
  }

  constructor() {
    process.once('SIGINT', this.#stop)
  }

  /** Whether it was interrupted. */
  over(): boolean {
    return this.#over
  }

  /** Since it began. */
  get seconds(): number {
    return (performance.now() - this.#begun) / 1000
  }

  say(what: string): void {
    const line = `${this.seconds.toFixed(0)} s  ${what}`
    if (process.stderr.isTTY) process.stderr.write(`\r\u001b[K${line}`)
    else if (performance.now() - this.#said > QUIET) {
      process.stderr.write(`${line}\n`)
      this.#said = performance.now()
    }
  }

  end(): void {
    process.off('SIGINT', this.#stop)
    if (process.stderr.isTTY) process.stderr.write('\r\u001b[K')
  }
}
