/** Owns a stream of server-sent events, or of lines of JSON, on its way out: frames in order, no faster than the client reads. */
import type { OutgoingHttpHeaders, ServerResponse } from 'node:http'

/** One event; `data` is written as JSON, or as it is when it is text (`[DONE]`). */
export interface Frame {
  readonly event?: string
  readonly data: unknown
}

export class EventWriter {
  #last: Promise<void> = Promise.resolve()

  /**
   * @param headers called once, when the stream begins; what is in them goes out beside the stream's own
   * @param lines a JSON object a line, and no server-sent events
   */
  constructor(
    private readonly response: ServerResponse,
    private readonly headers: () => OutgoingHttpHeaders,
    private readonly lines = false,
  ) {}

  /** True once the status line is out: what goes wrong from then on can only be said in the stream. */
  get begun(): boolean {
    return this.response.headersSent
  }

  begin(): void {
    if (this.begun || this.response.destroyed) return
    this.response.writeHead(200, {
      ...this.headers(),
      'content-type': this.lines ? 'application/x-ndjson' : 'text/event-stream; charset=utf-8',
      'cache-control': 'no-cache, no-transform',
      connection: 'keep-alive',
      'x-accel-buffering': 'no',
    })
    this.response.flushHeaders()
  }

  /** Resolves when the client has room for more, or is gone. Calls of several callers go out one after another. */
  write(frames: readonly Frame[]): Promise<void> {
    return frames.length === 0 ? this.#last : this.#send(frames.map(this.lines ? line : text).join(''))
  }

  /** A line clients do not see; it keeps the connection from being taken for dead. */
  ping(): Promise<void> {
    return this.#send(': ping\n\n')
  }

  async end(): Promise<void> {
    await this.#last
    this.response.end()
  }

  #send(chunk: string): Promise<void> {
    this.begin()
    return (this.#last = this.#last.then(() => this.#put(chunk)))
  }

  #put(chunk: string): Promise<void> | undefined {
    const { response } = this
    if (response.destroyed || response.writableEnded || response.write(chunk)) return undefined
    return new Promise((resolve) => {
      const done = () => {
        response.off('drain', done).off('close', done)
        resolve()
      }
      response.once('drain', done).once('close', done)
    })
  }
}

function text({ event, data }: Frame): string {
  const body = typeof data === 'string' ? data : JSON.stringify(data)
  return `${event === undefined ? '' : `event: ${event}\n`}data: ${body}\n\n`
}

const line = ({ data }: Frame): string => `${JSON.stringify(data)}\n`
