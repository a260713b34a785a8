/** A subscriber to KV events, which keeps the index that a router would keep: which blocks the server holds, and in which tiers. */
import { decode } from '@msgpack/msgpack'
import { Dealer, Subscriber } from 'zeromq'

/** As msgspec writes them: the name of the event and its fields. */
export type WireEvent = readonly [tag: string, ...fields: unknown[]]

export interface Message {
  readonly topic: string
  readonly sequence: bigint
  readonly time: number
  readonly events: readonly WireEvent[]
  readonly rank: number | bigint
}

export interface Block {
  readonly hash: bigint
  /** All tokens from the beginning of the text to the block's end. */
  readonly text: readonly number[]
  readonly tenant: string | null
  readonly media: Set<string>
}

const read = (payload: Buffer) => decode(payload, { useBigInt64: true }) as [number, WireEvent[], number | bigint]
const big = (value: unknown): bigint => BigInt(value as bigint | number)

function messageOf(topic: Buffer, sequence: Buffer, payload: Buffer): Message {
  const [time, events, rank] = read(payload)
  return { topic: topic.toString(), sequence: sequence.readBigUInt64BE(), time, events, rank }
}

export class Index {
  readonly blocks = new Map<bigint, Block>()
  /** Stored events that named a parent which was not there. */
  orphans = 0

  apply(messages: readonly Message[]): this {
    for (const { events } of messages) for (const event of events) this.#take(event)
    return this
  }

  /** The blocks' texts and tiers in words, in a fixed order. */
  get contents(): string[] {
    return [...this.blocks.values()].map(({ text, media }) => `${[...media].sort().join('+')}: ${text.join(' ')}`).sort()
  }

  /** How many tokens at the beginning of the text the server says it has. */
  has(text: Int32Array, medium = 'GPU'): number {
    const known = new Set([...this.blocks.values()].filter(({ media }) => media.has(medium)).map(({ text: of }) => of.join(' ')))
    let at = 0
    while (at + 16 <= text.length && known.has([...text.subarray(0, at + 16)].join(' '))) at += 16
    return at
  }

  #take([tag, hashes, second, ...fields]: WireEvent): void {
    if (tag === 'AllBlocksCleared') {
      this.blocks.clear()
      return
    }
    const named = (hashes as unknown[]).map(big)
    if (tag === 'BlockRemoved') {
      for (const hash of named) {
        const media = this.blocks.get(hash)?.media
        if (media?.delete(second as string) !== true) throw new Error(`${hash} was removed and never stored`)
        if (media.size === 0) this.blocks.delete(hash)
      }
      return
    }
    const [tokens, size, , medium, , extra] = fields as [unknown[], bigint | number, null, string, null, unknown[][]?]
    if (Number(size) !== 16 || tokens.length !== 16 * named.length) throw new Error('blocks have 16 tokens each')
    let before = second === null ? null : this.blocks.get(big(second))
    if (before === undefined) this.orphans++
    for (const [at, hash] of named.entries()) {
      const text = [...(before?.text ?? []), ...tokens.slice(16 * at, 16 * at + 16).map(Number)]
      const tenant = before === null ? ((extra?.[at]?.[0] as string | undefined) ?? null) : (before?.tenant ?? null)
      const block = this.blocks.get(hash) ?? { hash, text, tenant, media: new Set() }
      block.media.add(medium)
      this.blocks.set(hash, block)
      before = block
    }
  }
}

export class Listener {
  readonly messages: Message[] = []
  readonly #socket = new Subscriber()
  readonly #reading: Promise<void>

  readonly #connected: Promise<unknown>

  private constructor(endpoint: string, topic: string) {
    this.#connected = new Promise((resolve) => {
      this.#socket.events.on('handshake', resolve)
    })
    this.#socket.connect(endpoint)
    this.#socket.subscribe(topic)
    this.#reading = this.#read()
  }

  /** Resolves when the connection stands. */
  static async to(endpoint: string, topic = ''): Promise<Listener> {
    const listener = new Listener(endpoint, topic)
    await listener.#connected
    await new Promise((resolve) => setTimeout(resolve, 100))
    return listener
  }

  async close(): Promise<void> {
    this.#socket.close()
    await this.#reading
  }

  /** Resolves when `until` is true of the index of all messages so far, with that index. */
  async index(until: (index: Index) => boolean, before: readonly Message[] = []): Promise<Index> {
    for (const end = performance.now() + 5000; ;) {
      const index = new Index().apply([...before, ...this.messages])
      if (until(index)) return index
      if (performance.now() > end) throw new Error(`still ${index.contents.length} blocks after 5 seconds`)
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
  }

  async #read(): Promise<void> {
    for await (const [topic, sequence, payload] of this.#socket) this.messages.push(messageOf(topic!, sequence!, payload!))
  }
}

/** Asks for the batches from this number on. */
export async function replay(endpoint: string, from: bigint): Promise<Message[]> {
  const socket = new Dealer({ receiveTimeout: 5000 })
  socket.connect(endpoint)
  const first = Buffer.alloc(8)
  first.writeBigUInt64BE(from)
  await socket.send(['', first])
  const messages: Message[] = []
  for (;;) {
    const [, topic, sequence, payload] = await socket.receive()
    if (sequence!.readBigInt64BE() === -1n) break
    messages.push(messageOf(topic!, sequence!, payload!))
  }
  socket.close()
  return messages
}
