/** Passes the events and the result of a running task to the code that started it. */

/**
 * The events and the result of a running task. Iterate for the events, and await `answer` for the result; an error ends both. Unread events
 * wait in a queue. Or call `each` instead of iterating: then no event waits.
 */
export class Feed<Event, Answer> implements AsyncIterable<Event> {
  readonly answer: Promise<Answer>
  readonly #queue: Event[] = []
  #wake: (() => void) | null = null
  #listener: ((event: Event) => void) | null = null
  #end: { readonly error: unknown } | 'done' | null = null

  constructor(run: (push: (event: Event) => void) => Promise<Answer>) {
    const running = run((event) => {
      if (this.#listener !== null) {
        this.#listener(event)
        return
      }
      this.#queue.push(event)
      this.#wake?.()
    })
    this.answer = running.then(
      (answer) => {
        this.#end = 'done'
        this.#wake?.()
        return answer
      },
      (error: unknown) => {
        this.#end = { error }
        this.#wake?.()
        throw error
      },
    )
    // Code that only iterates gets the error from the iteration. Without this line, the unhandled rejection of `answer` would end the
    // process.
    this.answer.catch(() => undefined)
  }

  /**
   * Passes every event to `listener`: first those that wait, then each one as it is pushed. Returns the answer. If the listener throws, it
   * gets no more events, and the promise rejects with its error; the task continues.
   */
  each(listener: (event: Event) => void): Promise<Answer> {
    return new Promise((resolve, reject) => {
      this.#listener = (event) => {
        try {
          listener(event)
        } catch (error) {
          this.#listener = () => undefined
          reject(error instanceof Error ? error : new Error(String(error)))
        }
      }
      for (const event of this.#queue.splice(0)) this.#listener(event)
      this.answer.then(resolve, reject)
    })
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Event> {
    for (;;) {
      const next = this.#queue.shift()
      if (next !== undefined) yield next
      else if (this.#end === 'done') return
      else if (this.#end !== null) throw this.#end.error
      else
        await new Promise<void>((resolve) => {
          this.#wake = resolve
        })
    }
  }
}
