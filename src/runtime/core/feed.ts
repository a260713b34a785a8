/** Owns the hand-over of what a running piece of work tells, and of its end, to whoever asked for it. */

/** Iterate for events, await `answer` for the end; an error ends both. What nobody reads is kept until somebody does. */
export class Feed<Event, Answer> implements AsyncIterable<Event> {
  readonly answer: Promise<Answer>
  readonly #queue: Event[] = []
  #wake: (() => void) | null = null
  #end: { readonly error: unknown } | 'done' | null = null

  constructor(run: (push: (event: Event) => void) => Promise<Answer>) {
    const running = run((event) => {
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
    // Who only iterates meets the error there; without this line the unread promise would end the process.
    this.answer.catch(() => undefined)
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
