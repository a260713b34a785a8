/**
 * Keeps the bytes of streams whose requests carry `X-Conversation-Id`, as llama-server's web page sends it. A page that was reloaded or
 * lost its connection can continue to read.
 */
import { keyOf, type Tenant } from '../core/ids.js'

/** The most bytes kept of a stream; older ones are dropped. */
const MOST_BYTES = 4 * 2 ** 20
/** The most streams kept at once. */
const MOST_STREAMS = 64
/** Milliseconds that a stream is kept after its end. */
const KEPT = 5 * 60_000
/** Milliseconds without a reader after which a running answer is cancelled. */
const ALONE = 60_000

export class Replay {
  /** Start time in Unix seconds. */
  readonly started = Math.floor(Date.now() / 1000)
  /** End time in Unix seconds; 0 while the stream runs. */
  ended = 0
  /** How many bytes from the beginning are no longer kept. */
  dropped = 0
  readonly #chunks: Buffer[] = []
  readonly #waiting = new Set<() => void>()
  #kept = 0
  #readers = 0
  #alone: NodeJS.Timeout | null = null

  /** @param cancel cancels the answer */
  constructor(
    readonly id: string,
    readonly cancel: () => void,
    private readonly alone: number,
  ) {}

  /** Bytes of the stream so far, dropped ones included. */
  get size(): number {
    return this.dropped + this.#kept
  }

  append(text: string): void {
    const chunk = Buffer.from(text)
    this.#chunks.push(chunk)
    this.#kept += chunk.length
    while (this.#kept > MOST_BYTES) {
      const { length } = this.#chunks.shift()!
      this.#kept -= length
      this.dropped += length
    }
    this.#wake()
  }

  end(): void {
    if (this.ended === 0) this.ended = Math.floor(Date.now() / 1000)
    this.#watch()
    this.#wake()
  }

  /** Registers a reader, which keeps the answer from being cancelled. Returns a function that unregisters it; call it once. */
  enter(): () => void {
    this.#readers++
    this.#watch()
    return () => {
      this.#readers--
      this.#watch()
    }
  }

  /** Returns the bytes from offset `place` on as they arrive. Ends with the stream, or when the next bytes are no longer kept. */
  async *from(place: number): AsyncGenerator<Buffer> {
    for (let at = place; at >= this.dropped;) {
      if (at < this.size) {
        const bytes = this.#since(at)
        at += bytes.length
        yield bytes
      } else if (this.ended !== 0) return
      else await new Promise<void>((resolve) => this.#waiting.add(resolve))
    }
  }

  #since(place: number): Buffer {
    const chunks: Buffer[] = []
    let start = this.size
    for (let at = this.#chunks.length - 1; start > place; at--) {
      const chunk = this.#chunks[at]!
      start -= chunk.length
      chunks.unshift(chunk)
    }
    return Buffer.concat(chunks).subarray(place - start)
  }

  #watch(): void {
    if (this.#alone !== null) clearTimeout(this.#alone)
    this.#alone = this.#readers > 0 || this.ended !== 0 ? null : setTimeout(this.cancel, this.alone).unref()
  }

  #wake(): void {
    for (const resolve of this.#waiting) resolve()
    this.#waiting.clear()
  }
}

export class Replays {
  readonly #streams = new Map<string, Replay>()

  /** @param alone milliseconds without a reader after which a running answer is cancelled; only tests set it */
  constructor(private readonly alone = ALONE) {}

  /** Starts to keep a stream, and cancels a running earlier one of the same conversation. Returns null when `MOST_STREAMS` are running. */
  begin(tenant: Tenant, id: string, cancel: () => void): Replay | null {
    this.stop(tenant, id)
    if (this.#streams.size >= MOST_STREAMS) {
      const ended = [...this.#streams].find(([, stream]) => stream.ended !== 0)
      if (ended === undefined) return null
      this.#streams.delete(ended[0])
    }
    const stream = new Replay(id, cancel, this.alone)
    this.#streams.set(keyOf(tenant, id), stream)
    return stream
  }

  /** Ends a stream and keeps it for `KEPT`; an empty stream is not kept. */
  end(tenant: Tenant, stream: Replay): void {
    stream.end()
    const key = keyOf(tenant, stream.id)
    const forget = () => {
      if (this.#streams.get(key) === stream) this.#streams.delete(key)
    }
    if (stream.size === 0) forget()
    else setTimeout(forget, KEPT).unref()
  }

  find(tenant: Tenant, id: string): Replay | null {
    return this.#streams.get(keyOf(tenant, id)) ?? null
  }

  /** Returns the streams of these conversations. With several models the page appends `::` and the model's name to a conversation's id. */
  of(tenant: Tenant, ids: ReadonlySet<string>): readonly Replay[] {
    return [...this.#streams]
      .filter(([key, { id }]) => key === keyOf(tenant, id) && (ids.has(id) || ids.has(id.split('::', 1)[0]!)))
      .map(([, stream]) => stream)
  }

  /** Cancels the conversation's answer, if one runs, and forgets its stream. */
  stop(tenant: Tenant, id: string): void {
    const stream = this.find(tenant, id)
    if (stream === null) return
    this.#streams.delete(keyOf(tenant, id))
    if (stream.ended === 0) stream.cancel()
    stream.end()
  }
}
