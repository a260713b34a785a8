/** Owns which texts are tokenized on other threads: long ones, few at a time, so that decodes and files find a free thread of the pool. */

/** Characters that are tokenized on the event loop's thread: they take a few milliseconds. */
export const AT_ONCE = 16 * 1024

/** Calls at a time, of the four threads that the pool has. */
const AT_A_TIME = 2

/** Those that wait, the shortest first. */
class TokenizingLine {
  #running = 0
  readonly #waiting: { readonly size: number; readonly go: () => void }[] = []

  /** Resolves when there is a thread for a text of this many characters, to how to give it back. */
  async enter(size: number): Promise<() => void> {
    if (this.#running < AT_A_TIME) this.#running++
    else
      await new Promise<void>((go) => {
        const longer = this.#waiting.findIndex((each) => each.size > size)
        this.#waiting.splice(longer < 0 ? this.#waiting.length : longer, 0, { size, go })
      })
    return () => {
      const next = this.#waiting.shift()
      if (next === undefined) this.#running--
      else next.go()
    }
  }
}

/** Of this process. */
export const tokenizing = new TokenizingLine()
