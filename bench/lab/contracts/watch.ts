/** Prints a long benchmark's progress on stderr. The first Ctrl-C ends the run after the current measurement. */

/** Milliseconds between two lines if stderr is not a terminal, where a line could be overwritten. */
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

  /** Returns whether Ctrl-C was pressed. */
  over(): boolean {
    return this.#over
  }

  /** Seconds since the start. */
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
