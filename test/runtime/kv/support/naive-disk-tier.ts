/**
 * A minimal disk tier: it keeps a fixed number of items, drops the oldest, and finds every fourth one damaged; for tests of src/runtime/kv.
 */
import type { DiskItem, DiskTier, OffloadRecord } from '../../../../src/runtime/kv/ports.js'

export class NaiveDiskTier implements DiskTier {
  readonly counts = { refused: 0, unreadable: 0, gone: 0, evicted: 0, failed: 0 }
  readonly #damages: boolean
  #items: { readonly item: DiskItem; readonly state: Uint8Array }[] = []
  #puts = 0
  #closed = false

  /** @param damages Whether every fourth item is damaged when it is taken. */
  constructor(
    private readonly room: number,
    damages = true,
  ) {
    this.#damages = damages
  }

  get items(): readonly DiskItem[] {
    return this.#closed ? [] : this.#items.map(({ item }) => item)
  }

  async put(record: OffloadRecord, state: Uint8Array): Promise<DiskItem | null> {
    const copy = structuredClone(record)
    const open = !this.#closed
    await Promise.resolve()
    if (this.room === 0 || !open) return null
    const item = { id: `item ${this.#puts++}`, record: copy, bytes: state.byteLength, lastUse: this.#puts }
    this.#items.push({ item, state: state.slice() })
    return item
  }

  async take(id: string): Promise<Uint8Array | null> {
    await Promise.resolve()
    while (this.#items.length > this.room) this.#items.shift()
    const found = this.#closed ? undefined : this.#items.find(({ item }) => item.id === id)
    if (found === undefined) return null
    if (!this.#damages || !id.endsWith('3')) return found.state.slice()
    this.counts.refused++
    await this.drop(id)
    return null
  }

  async drop(id: string): Promise<void> {
    this.#items = this.#items.filter(({ item }) => item.id !== id)
    await Promise.resolve()
  }

  touch(): void {
    return
  }

  async close(): Promise<void> {
    this.#closed = true
    await Promise.resolve()
  }
}
