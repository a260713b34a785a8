/**
 * The two ports through which `kv` sees the world: llama.cpp's unified cache, and the disk. The llama engine implements them, tests use naive
 * models of them.
 */
import type { ConversationId, SeqId } from '../core/ids.js'
import type { Span } from '../core/span.js'
import type { CellHashes } from './cell-hash.js'

/** One occupied cell as llama.cpp reports it: its position and every sequence that tags it. */
export interface MemoryCell {
  readonly position: number
  readonly sequences: readonly SeqId[]
}

/**
 * What llama.cpp's unified cache lets us do (docs/kv-cache.md, "What llama.cpp allows"). All spans are of positions.
 * No call here computes anything; cells come into being only by decoding.
 */
export interface KvMemory {
  /** n_ctx: cells shared by all sequences. */
  readonly cells: number
  /** n_seq_max: sequence ids 0 .. sequences-1 exist. */
  readonly sequences: number
  /** Adds tag `to` to the cells that `from` holds in `span` (llama_memory_seq_cp; no data moves). `to` must hold none of those positions. */
  tag(from: SeqId, to: SeqId, span: Span): void
  /** Removes tag `seq` from its cells in `span` (llama_memory_seq_rm); a cell without tags is free. */
  untag(seq: SeqId, span: Span): void
  /** Whether positions can be changed after the fact. */
  readonly canShift: boolean
  /**
   * Adds `delta` to the positions of the cells that `seq` holds in `span`, for every sequence that tags them (llama_memory_seq_add). Their keys are
   * turned by the next decode: what is saved before that has the new positions and the old keys.
   */
  shift(seq: SeqId, span: Span, delta: number): void
  /** Smallest and largest position `seq` holds, read back from llama.cpp; null when it holds none. */
  positions(seq: SeqId): { readonly min: number; readonly max: number } | null
  /** Copies all that `seq` holds out of the cache (llama_state_seq_get_data). `checksum`: so that damage is noticed. */
  saveSequence(seq: SeqId, options: { readonly checksum: boolean }): Uint8Array
  /**
   * Puts a saved sequence into `seq`, which must hold nothing; false when there is no room or the data is foreign or,
   * with `verify`, damaged: nothing changed.
   */
  loadSequence(seq: SeqId, state: Uint8Array, options: { readonly verify: boolean }): boolean
  /** Every occupied cell, read back from llama.cpp (slow: for integrity checks in tests). */
  readback(): readonly MemoryCell[]
}

// Keeps saved sequences where the next start of the program finds them.

/** What a saved sequence holds, entry by entry as in Sequence; all arrays but `unedited` have one element an entry, `hashes` has WORDS. */
export interface OffloadRecord {
  readonly conversation: ConversationId
  /** The unedited prompt that the source ids point into. */
  readonly unedited: Int32Array
  readonly tokens: Int32Array
  readonly sourceIds: Int32Array
  readonly positions: Int32Array
  /** What the cells' values depend on: the provenance. */
  readonly hashes: CellHashes
}

export interface DiskItem {
  /** Never given to another item. */
  readonly id: string
  readonly record: OffloadRecord
  /** Room taken: the state, the record and what surrounds them. */
  readonly bytes: number
  /** Milliseconds since 1970; changes with each use. */
  readonly lastUse: number
}

/** What befell items since the disk tier was opened. */
export interface DiskCounts {
  /** Items that were damaged, of another format or under another secret, hence deleted and not handed out. */
  readonly refused: number
  /** Items that could not be read, for reasons other than theirs; they stay. */
  readonly unreadable: number
  /** Items that another process deleted. */
  readonly gone: number
  /** Items given up for the budget. */
  readonly evicted: number
  /** Items that could not be written. */
  readonly failed: number
}

/** Saved sequences of this very model and cache, by id. Losing one costs a recompute, never more; so no call throws over the medium. */
export interface DiskTier {
  /** In no order. Their records are checked and not to be written to; a state is checked when it is taken. */
  readonly items: readonly DiskItem[]
  readonly counts: DiskCounts

  /**
   * Keeps copies, and gives up what has the least benefit (tier-policy.ts) where the budget asks for it. The record is copied at once; the state
   * must not be written to until this is settled. Null: larger than the whole budget, or it could not be written; nothing is left of it then.
   */
  put(record: OffloadRecord, state: Uint8Array): Promise<DiskItem | null>

  /**
   * The state, byte for byte as it was put; the item stays and counts as used. Null: no such item, or no longer; a damaged one is deleted.
   */
  take(id: string): Promise<Uint8Array | null>

  /** Deletes the item, if there is one. It is not among the items from the moment of the call. */
  drop(id: string): Promise<void>

  /** Notes that the item was used just now. */
  touch(id: string): void

  /** Ends once everything asked for before is done. Later calls find nothing and keep nothing. */
  close(): Promise<void>
}

// Where engines on several machines find each other's cells.

/** Tokens of a block. */
export const BLOCK = 256

/** A block as it is asked for: BLOCK tokens at their positions, and the hashes that a fresh prefill gives their cells. */
export type WantedBlock = Pick<OffloadRecord, 'tokens' | 'positions' | 'hashes'>

/** What befell blocks since the tier was opened. */
export interface SharedCounts {
  readonly read: number
  readonly written: number
  /** Found damaged, or not what their name says: deleted, and not handed out. */
  readonly refused: number
  /** Given up for the budget. */
  readonly evicted: number
  /** Not written, or not to be read. */
  readonly failed: number
}

/**
 * Blocks of cells of this very model and cache under one secret, by what they are: the hash of a block's last cell says all that its values depend on,
 * so nobody has to be asked where one is. Losing one costs a recompute, never more; so no call throws over the medium.
 */
export interface SharedTier {
  readonly counts: SharedCounts
  /**
   * Keeps a block of a fresh prefill, whose record names the conversation that it goes with when that is to be forgotten. False: it could not be written.
   * @param isWanted asked before anything is seen of it by others; false: it is not kept after all
   */
  put(record: OffloadRecord, state: Uint8Array, isWanted: () => boolean): Promise<boolean>
  /** The state of exactly this block; null: there is none. */
  take(wanted: WantedBlock): Promise<Uint8Array | null>
  /** Deletes the conversation's blocks, those that are being written included, but for those that `keeps`. Resolves when none is left. */
  forget(conversation: ConversationId, keeps?: (record: OffloadRecord) => boolean): Promise<void>
  /** Ends once everything asked for before is done. */
  close(): Promise<void>
}
