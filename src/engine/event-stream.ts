/** Owns the hand-over of a running step's events and its reply to whoever asked for them. */
import type { EngineEvent, EngineReply, Generation } from './engine.js'

export class EventStream implements Generation {
  readonly reply: Promise<EngineReply>
  readonly #queue: EngineEvent[] = []
  #wake: (() => void) | null = null
  #end: { readonly error: unknown } | 'done' | null = null
  #resolve!: (reply: EngineReply) => void
  #reject!: (error: unknown) => void

  constructor() {
    this.reply = new Promise((resolve, reject) => {
      this.#resolve = resolve
      this.#reject = reject
    })
    // Who only iterates meets the error there; without this line the unread promise would end the process.
    this.reply.catch(() => undefined)
  }

  /** The stream of a step: what `run` pushes, ended by what it returns or throws. */
  static of(run: (stream: EventStream) => Promise<EngineReply>): EventStream {
    const stream = new EventStream()
    run(stream).then(
      (reply) => {
        stream.succeed(reply)
      },
      (error: unknown) => {
        stream.fail(error)
      },
    )
    return stream
  }

  push(event: EngineEvent): void {
    this.#queue.push(event)
    this.#wake?.()
  }

  succeed(reply: EngineReply): void {
    this.#end ??= 'done'
    this.#resolve(reply)
    this.#wake?.()
  }

  fail(error: unknown): void {
    this.#end ??= { error }
    this.#reject(error)
    this.#wake?.()
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<EngineEvent> {
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
