/**
 * Decides which texts are tokenized on other threads: only long ones, and only a few at a time. So decodes and file reads find a free
 * thread in Node's pool.
 */

/** Texts of up to this many characters are tokenized on the event loop's thread, which takes a few milliseconds. */
export const AT_ONCE = 16 * 1024

/** How many calls tokenize on other threads at a time. Node's pool has four threads. */
const AT_A_TIME = 2

/** Lets AT_A_TIME calls run on other threads. The rest wait, the shortest text first. */
class TokenizingLine {
  #running = 0
  readonly #waiting: { readonly size: number; readonly go: () => void }[] = []

  /**
   * Waits until a text of this many characters may be tokenized on another thread. The caller must call the returned function at its end.
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

export const tokenizing = new TokenizingLine()
