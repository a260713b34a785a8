/** Owns what is known of a sequence that was moved off the device. */
import type { ConversationId } from '../core/ids.js'
import { lowerBound, type Holder } from './holder.js'
import type { Holding } from './holding.js'
import type { ShelfRecord } from './shelf.js'
import { sameHash, type CellHashes } from './cell-hash.js'

/** Where its cells' values are: in memory, or under an id of the shelf. */
export type Place = { readonly tier: 'host'; readonly state: Uint8Array } | { readonly tier: 'disk'; readonly id: string }

export class Stored implements Holder {
  /** Milliseconds since 1970. */
  lastUse = Date.now()

  constructor(
    readonly record: ShelfRecord,
    readonly place: Place,
    /** Room it takes in its tier. */
    readonly bytes: number,
  ) {}

  get tier(): 'host' | 'disk' {
    return this.place.tier
  }

  get conversation(): ConversationId {
    return this.record.conversation
  }

  get held(): number {
    return this.record.tokens.length
  }

  get tokens(): Int32Array {
    return this.record.tokens
  }

  get keys(): Int32Array {
    return this.record.keys
  }

  get base(): Int32Array {
    return this.record.base
  }

  position(entry: number): number {
    return this.record.positions[entry]!
  }

  atPosition(position: number): number {
    return lowerBound(this.held, (entry) => this.record.positions[entry]! < position)
  }

  atKey(key: number): number {
    return lowerBound(this.held, (entry) => this.record.keys[entry]! < key)
  }

  isFresh(entry: number, place: number, tokens: Int32Array, fresh: CellHashes): boolean {
    const { record } = this
    return (
      entry < this.held &&
      record.tokens[entry] === tokens[place] &&
      record.positions[entry] === place &&
      sameHash(record.hashes, entry, fresh, place)
    )
  }
}

/** Everything about the sequence but its cells' values. */
export function recordOf(holding: Holding): ShelfRecord {
  const { conversation, base } = holding
  return { conversation, base, tokens: holding.tokens.slice(), keys: holding.keys.slice(), ...holding.readCells() }
}

/** Values that were read from below before a step needed them. */
export type Fetched = ReadonlyMap<Stored, Uint8Array>
