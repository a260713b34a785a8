/** Owns what is known of a sequence that was moved off the device. */
import type { ConversationId } from '../core/ids.js'
import { lowerBound, type HeldSequence } from './holder.js'
import type { Sequence } from './holding.js'
import type { OffloadRecord } from './shelf.js'
import { sameHash, type CellHashes } from './cell-hash.js'

/** Where its cells' values are: in memory, or under an id of the shelf. */
export type OffloadPlace = { readonly tier: 'host'; readonly state: Uint8Array } | { readonly tier: 'disk'; readonly id: string }

export class OffloadedSequence implements HeldSequence {
  /** Milliseconds since 1970. */
  lastUse = Date.now()

  constructor(
    readonly record: OffloadRecord,
    readonly place: OffloadPlace,
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

  get sourceIds(): Int32Array {
    return this.record.sourceIds
  }

  get unedited(): Int32Array {
    return this.record.unedited
  }

  position(entry: number): number {
    return this.record.positions[entry]!
  }

  atPosition(position: number): number {
    return lowerBound(this.held, (entry) => this.record.positions[entry]! < position)
  }

  atKey(key: number): number {
    return lowerBound(this.held, (entry) => this.record.sourceIds[entry]! < key)
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
export function offloadRecordOf(sequence: Sequence): OffloadRecord {
  const { conversation, unedited: base } = sequence
  return {
    conversation,
    unedited: base,
    tokens: sequence.tokens.slice(),
    sourceIds: sequence.sourceIds.slice(),
    ...sequence.readCells(),
  }
}

/** Values that were read from below before a step needed them. */
export type ReadStates = ReadonlyMap<OffloadedSequence, Uint8Array>
