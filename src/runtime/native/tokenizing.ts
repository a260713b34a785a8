/**
 * Decides which texts are tokenized on other threads. Only long texts are, and only few at a time, so that decodes and file reads find a
 * free thread in Node's pool.
 */

/** Texts of up to this many characters are tokenized on the event loop's thread, which takes a few milliseconds. */
export const AT_ONCE = 16 * 1024

/** How many calls tokenize on other threads at a time. Node's pool has four threads. */
const AT_A_TIME = 2

/** The calls that wait for a thread, the shortest first. */
class TokenizingLine {
  #running = 0
  readonly #waiting: { readonly size: number; readonly go: () => void }[] = []

  /**
   * Waits until a text of this many characters may be tokenized on another thread. Resolves to a function that lets the next call begin.
   */
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

/** The line of waiting calls, one for the whole process. */
export const tokenizing = new TokenizingLine()
