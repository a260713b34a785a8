/** Streams changes of threads and models as server-sent events. A stream ends when its client leaves or the server closes. */
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Tenant } from '../../core/ids.js'
import { RateLimited } from '../keys.js'
import { EventWriter, type Frame, type Running } from '../request-lifecycle.js'

/** Milliseconds between comments that keep the connection open. */
const PING = 15_000
/** The most unread changes per client. Beyond it the connection is closed, and the client must fetch the full state again. */
const MOST_UNREAD = 10_000
/** The most open streams of changes per tenant. */
const MOST_STREAMS = 64
/** Seconds after which a client with too many streams may try again. */
const AGAIN = 60

export class ChangeStreams {
  readonly #open = new Map<Tenant, number>()

  constructor(private readonly running: Running) {}

  /**
   * Answers the request with a stream of changes.
   * @param watch starts to send changes, and returns the function that stops this
   * @throws RateLimited when the tenant has too many streams
   */
  open({ tenant }: FastifyRequest, reply: FastifyReply, watch: (send: (frame: Frame) => void) => () => void): void {
    const { raw } = reply
    const streams = this.#open.get(tenant) ?? 0
    if (streams >= MOST_STREAMS)
      throw new RateLimited(`${MOST_STREAMS} streams of changes are open for this key already; close some of them.`, AGAIN)
    const writer = EventWriter.over(reply)
    // The client may have left before the stream began.
    if (raw.destroyed) return
    this.#open.set(tenant, streams + 1)
    writer.begin()
    let unread = 0
    const stop = watch((frame) => {
      if (++unread > MOST_UNREAD) raw.destroy()
      else void writer.write([frame]).then(() => unread--)
    })
    const timer = setInterval(() => void writer.ping(), PING)
    const release = this.running.watch(() => void writer.end())
    raw.once('close', () => {
      clearInterval(timer)
      release()
      stop()
      const left = this.#open.get(tenant)! - 1
      if (left > 0) this.#open.set(tenant, left)
      else this.#open.delete(tenant)
    })
  }
}
