/**
 * Publishes KV events in vLLM's format over ZeroMQ: which blocks of tokens this server holds. Routers (llm-d, NVIDIA Dynamo) subscribe to
 * them. The libraries are loaded only when a publisher opens.
 */
import type { Publisher, Router } from 'zeromq'
import { KvfoldError } from '../../runtime/core/errors.js'
import { turn } from '../../runtime/core/turns.js'
import type { BlockOutlet } from '../../runtime/engine/block-watch.js'
import { type BlockEvent, EVENT_BLOCK, type EventTier } from '../../runtime/kv/block-events.js'

export interface KvEventsOptions {
  /**
   * The address for events. As in vLLM, the publisher binds an address that contains `*` or `::` or starts with `ipc://`. It connects to
   * any other address.
   * @example 'tcp://*:5557'
   */
  readonly endpoint: string
  /** The address at which subscribers ask for batches that they missed; the publisher binds it. Default: no replay. */
  readonly replay?: string
  /** The ZeroMQ topic of all messages. `{model}` stands for the model's name. Default: empty. */
  readonly topic?: string
  /** How many batches are kept for replay. Default 10,000. */
  readonly bufferSteps?: number
}

/** The most events in one batch, so that packing one does not hold up the event loop. */
const MOST_EVENTS = 8
/** The most bytes that the batches kept for replay may take. */
const MOST_BYTES = 256 * 2 ** 20
/** The most messages in the queue of a slow subscriber. It loses further ones, and can ask for a replay. */
const HIGH_WATER = 100_000
/** The sequence number that marks the end of a replay: -1. */
const END = Buffer.alloc(8, 0xff)
const NOTHING = Buffer.alloc(0)

/** vLLM's names for the tiers. The device's memory is called GPU even on other devices. */
const MEDIUM: Record<EventTier, string> = { device: 'GPU', host: 'CPU', disk: 'DISK' }

interface Batch {
  readonly sequence: Buffer
  readonly topic: string
  readonly payload: Buffer
}

export class KvEventPublisher {
  readonly #kept: Batch[] = []
  #bytes = 0
  #sequence = 0n
  #sending: Promise<void> = Promise.resolve()
  #told = false
  #closed = false

  private constructor(
    private readonly pub: Publisher,
    private readonly router: Router | null,
    private readonly pack: (value: unknown) => Uint8Array,
    private readonly options: KvEventsOptions,
  ) {}

  /**
   * Opens the sockets.
   * @throws KvfoldError cli/bad-usage for an unusable address, and when the library is not installed
   */
  static async open(options: KvEventsOptions): Promise<KvEventPublisher> {
    const [zmq, { Encoder }] = await Promise.all([loadZmq(), import('@msgpack/msgpack')])
    const encoder = new Encoder({ useBigInt64: true })
    const pub = new zmq.Publisher({ sendHighWaterMark: HIGH_WATER, linger: 0 })
    const { endpoint, replay } = options
    try {
      if (/\*|::|^ipc:/.test(endpoint)) await pub.bind(endpoint)
      else pub.connect(endpoint)
    } catch (error) {
      pub.close()
      throw unusable(endpoint, '--kv-events', error)
    }
    const router = replay === undefined ? null : new zmq.Router({ linger: 0 })
    try {
      if (replay !== undefined) await router?.bind(replay)
    } catch (error) {
      pub.close()
      router?.close()
      throw unusable(replay ?? '', '--kv-events-replay', error)
    }
    const publisher = new KvEventPublisher(pub, router, (value) => encoder.encode(value), options)
    if (router !== null) void publisher.#answer(router)
    return publisher
  }

  /** The addresses in use. With `tcp://*:0` the system chooses the port, so it is known only after `open`. */
  get addresses(): { readonly endpoint: string; readonly replay: string | null } {
    return { endpoint: this.pub.lastEndpoint ?? this.options.endpoint, replay: this.router?.lastEndpoint ?? null }
  }

  /**
   * Returns the object to which an engine reports its blocks (`LlamaEngineOptions.blocks`). Until the first report, each call publishes
   * `AllBlocksCleared`, because a restarted server holds none of the blocks that subscribers may remember.
   * @param model the value of `{model}` in the topic
   */
  outlet(model: string): BlockOutlet {
    if (!this.#told) void this.#publish([['AllBlocksCleared']], model)
    return {
      tell: async (events) => {
        this.#told = true
        for (let at = 0; at < events.length; at += MOST_EVENTS) {
          await turn()
          await this.#publish(events.slice(at, at + MOST_EVENTS).map(wireOf), model)
        }
      },
    }
  }

  /** Sends what is queued, then closes the sockets. Later events are dropped. */
  async close(): Promise<void> {
    if (this.#closed) return
    await this.#sending
    this.#closed = true
    this.pub.close()
    this.router?.close()
  }

  #publish(events: readonly unknown[], model: string): Promise<void> {
    const sequence = Buffer.alloc(8)
    sequence.writeBigUInt64BE(this.#sequence++)
    const payload = Buffer.from(this.pack([seconds(), events, 0]))
    const topic = (this.options.topic ?? '').replaceAll('{model}', model)
    const batch = { sequence, topic, payload }
    this.#keep(batch)
    // A ZeroMQ socket sends one message at a time.
    const sent = this.#sending.then(async () => {
      if (!this.#closed) await this.pub.send([topic, sequence, payload])
    })
    // A message that fails is lost for subscribers, but they can ask for a replay.
    return (this.#sending = sent.catch(() => undefined))
  }

  #keep(batch: Batch): void {
    if (this.router === null) return
    this.#kept.push(batch)
    this.#bytes += batch.payload.byteLength
    while (this.#kept.length > (this.options.bufferSteps ?? 10_000) || (this.#bytes > MOST_BYTES && this.#kept.length > 1))
      this.#bytes -= this.#kept.shift()!.payload.byteLength
  }

  /** Answers replay requests, [identity, empty, first sequence number]. Sends the kept batches from that number on, one message each. */
  async #answer(router: Router): Promise<void> {
    for await (const [identity, empty, first, ...more] of router) {
      if (identity === undefined || empty?.length !== 0 || first?.length !== 8 || more.length > 0) continue
      const from = first.readBigUInt64BE()
      const wanted = this.#kept.filter(({ sequence }) => sequence.readBigUInt64BE() >= from)
      const messages = [...wanted, { topic: '', sequence: END, payload: NOTHING }]
      // A subscriber may disconnect during the replay; its errors are ignored.
      for (const { topic, sequence, payload } of messages)
        await router.send([identity, NOTHING, topic, sequence, payload]).catch(() => undefined)
    }
  }
}

/** Returns an event as an array of its name and fields, the form in which vLLM's msgspec writes tagged structs. */
function wireOf(event: BlockEvent): readonly unknown[] {
  const medium = MEDIUM[event.tier]
  if (event.kind === 'removed') return ['BlockRemoved', event.hashes, medium]
  const { hashes, parent, tokens, tenant, adapters } = event
  const fields = ['BlockStored', hashes, parent, tokens, EVENT_BLOCK, null, medium, adapters === '' ? null : adapters]
  // As with vLLM's cache_salt, the first block of a text carries the tenant.
  return tenant === null ? fields : [...fields, hashes.map((_, at) => (at === 0 && parent === null ? [tenant] : null))]
}

/** Returns the Unix time in seconds, never a whole number, because msgpack would encode that as an integer. */
function seconds(): number {
  const now = Date.now() / 1000
  return Number.isInteger(now) ? now + 1e-6 : now
}

async function loadZmq(): Promise<typeof import('zeromq')> {
  try {
    return await import('zeromq')
  } catch (error) {
    throw new KvfoldError(
      'cli/bad-usage',
      '--kv-events needs the package zeromq, which is not installed or not made for this machine; run `npm install zeromq`.',
      { cause: error },
    )
  }
}

function unusable(endpoint: string, option: string, error: unknown): KvfoldError {
  const reason = error instanceof Error ? error.message : String(error)
  return new KvfoldError(
    'cli/bad-usage',
    `The address ${endpoint} given to ${option} cannot be used (${reason}); give one such as tcp://*:5557.`,
    { cause: error },
  )
}
