/** Owns the links by which beginnings of conversations are compared without their messages. */
import { createHash } from 'node:crypto'

/** Bytes of a link: enough that two beginnings among one tenant's messages are never taken for each other. */
const LINK = 16

/**
 * Link i stands for messages 0 to i: equal links mean equal beginnings. Stores keep the bytes of chains, so whatever changes links needs a
 * migration that deletes their cards.
 */
export class Chain {
  #bytes: Uint8Array<ArrayBuffer>
  #length: number

  /** @param bytes of another chain; copied */
  constructor(bytes: Uint8Array = new Uint8Array()) {
    this.#bytes = Uint8Array.from(bytes)
    this.#length = bytes.length / LINK
  }

  /** Messages. */
  get length(): number {
    return this.#length
  }

  /** All links, copied. */
  get bytes(): Uint8Array {
    return this.#bytes.slice(0, this.#length * LINK)
  }

  /** Adds a message, which is what it says (`canonical`). */
  push(says: string): void {
    const end = this.#length * LINK
    if (end + LINK > this.#bytes.length) {
      const longer = new Uint8Array(2 * end + LINK)
      longer.set(this.#bytes)
      this.#bytes = longer
    }
    const before = this.#bytes.subarray(Math.max(0, end - LINK), end)
    const digest = createHash('sha256').update(before).update('\n').update(says).digest()
    this.#bytes.set(digest.subarray(0, LINK), end)
    this.#length++
  }

  /** Whether both begin with the same `count` messages, which both have; 1 at least. */
  agrees(other: Chain, count: number): boolean {
    const [start, end] = [(count - 1) * LINK, count * LINK]
    for (let at = start; at < end; at++) if (this.#bytes[at] !== other.#bytes[at]) return false
    return true
  }
}
