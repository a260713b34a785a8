/**
 * The three ports of `kv`: llama.cpp's unified cache, the disk, and the tier that engines share. The llama engine provides the first two,
 * and `src/fleet/cells` the third. Tests use naive models of the first two.
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
 * The operations that llama.cpp's unified cache allows (docs/kv-cache.md, "What llama.cpp allows"). All spans are of positions. No call
 * here computes anything; only decoding creates cells.
 */
export interface KvMemory {
  /** n_ctx: cells shared by all sequences. */
  readonly cells: number
  /** n_seq_max: sequence ids 0 .. sequences-1 exist. */
  readonly sequences: number
  /**
   * Adds tag `to` to the cells that `from` holds in `span` (llama_memory_seq_cp). No data moves. `to` must hold none of those positions.
   */
  tag(from: SeqId, to: SeqId, span: Span): void
  /** Removes tag `seq` from its cells in `span` (llama_memory_seq_rm); a cell without tags is free. */
  untag(seq: SeqId, span: Span): void
  /** Whether the positions of existing cells can be changed. */
  readonly canShift: boolean
  /**
   * Adds `delta` to the positions of the cells that `seq` holds in `span`, for every sequence that tags them (llama_memory_seq_add). The
   * next decode turns their keys. A state saved before that has the new positions and the old keys.
   */
  shift(seq: SeqId, span: Span, delta: number): void
  /** Returns the smallest and largest position that `seq` holds, read back from llama.cpp; null when it holds none. */
  positions(seq: SeqId): { readonly min: number; readonly max: number } | null
  /** Copies all that `seq` holds out of the cache (llama_state_seq_get_data). */
  saveSequence(seq: SeqId): Uint8Array
  /**
   * Loads a saved sequence into `seq`, which must hold nothing. Returns false, and changes nothing, when there is no room, when another
   * model wrote the data, or when its end is missing. Values in it are not checked.
   */
  loadSequence(seq: SeqId, state: Uint8Array): boolean
  /** Like saveSequence, but off the event loop. No other code may use the memory until the promise settles. */
  copyOut(seq: SeqId): Promise<Uint8Array>
  /** Like loadSequence, but off the event loop. No other code may use the memory until the promise settles. */
  copyIn(seq: SeqId, state: Uint8Array): Promise<boolean>
  /** Returns every occupied cell, read back from llama.cpp (slow: for integrity checks in tests). */
  readback(): readonly MemoryCell[]
}

// The disk tier: saved sequences that are found again after a restart.

/**
 * A saved sequence without its cells' values, entry by entry as in Sequence. All arrays but `unedited` have one element per entry; `hashes`
 * has WORDS elements per entry.
 */
export interface OffloadRecord {
  readonly conversation: ConversationId
  /** The unedited prompt that the source ids point into, up to the token of the last entry. */
  readonly unedited: Int32Array
  readonly tokens: Int32Array
  readonly sourceIds: Int32Array
  readonly positions: Int32Array
  /** The cell hashes: what each cell's values depend on. */
  readonly hashes: CellHashes
}

export interface DiskItem {
  /** A name that is never used again. */
  readonly id: string
  readonly record: OffloadRecord
  /** Size in bytes: state, record and file format. */
  readonly bytes: number
  /** When it was last used, in milliseconds since 1970. */
  readonly lastUse: number
}

/** Counts of lost items since the disk tier was opened. */
export interface DiskCounts {
  /** Items that were damaged, in another format or under another secret. They were deleted and not returned. */
  readonly refused: number
  /** Items that the system did not let us read. Their files stay. */
  readonly unreadable: number
  /** Items that another process deleted. */
  readonly gone: number
  /** Items that were deleted to stay within the budget. */
  readonly evicted: number
  /** Items that could not be written. */
  readonly failed: number
}

/** Saved sequences of exactly this model and cache, by id. A lost one costs only a recompute, so no call throws for errors of the disk. */
export interface DiskTier {
  /** All items, unordered. Their records are verified; callers must not write to them. A state is verified when it is taken. */
  readonly items: readonly DiskItem[]
  readonly counts: DiskCounts

  /**
   * Writes the record and the state to the disk tier, and returns the new item. If the budget requires it, deletes the items of least
   * benefit (tier-policy.ts). The record is copied at once; the caller must not write to the state until the promise settles. Resolves to
   * null when the item exceeds the whole budget or could not be written; then no part of it is left.
   */
  put(record: OffloadRecord, state: Uint8Array): Promise<DiskItem | null>

  /**
   * Returns the state, byte for byte as it was put. The item stays and counts as used. Returns null if there is no such item or it cannot
   * be read. A damaged item is deleted.
   */
  take(id: string): Promise<Uint8Array | null>

  /** Deletes the item if it exists. It disappears from `items` at once, before the promise resolves. */
  drop(id: string): Promise<void>

  /** Sets the item's last use to the present time. */
  touch(id: string): void

  /** Resolves when all earlier calls are done. After that, `take` finds nothing and `put` keeps nothing. */
  close(): Promise<void>
}

// The shared tier: engines on several machines find each other's cells in it.

/** Number of tokens in a block, the unit in which cells are shared. */
export const BLOCK = 256

/** A block to look for: BLOCK tokens, their positions, and the hashes that a fresh prefill gives their cells. */
export type WantedBlock = Pick<OffloadRecord, 'tokens' | 'positions' | 'hashes'>

/** Counts of blocks since the shared tier was opened. */
export interface SharedCounts {
  readonly read: number
  readonly written: number
  /** Blocks that were damaged, or whose content did not match their name. They were deleted and not returned. */
  readonly refused: number
  /** Blocks that were deleted to stay within the budget. */
  readonly evicted: number
  /** Blocks that could not be written or read. */
  readonly failed: number
}

/**
 * Blocks of cells of exactly this model and cache, under one secret. A block's name is the hash of its last cell, which covers everything
 * that its values depend on, so no directory is needed. A lost block costs only a recompute, so no call throws for errors of the medium.
 */
export interface SharedTier {
  readonly counts: SharedCounts
  /**
   * Stores a block of a fresh prefill. Its record names the conversation, so that `forget` finds it. Returns false if it could not be
   * written.
   * @param isWanted called before any other engine can see the block; if it returns false, the block is not kept
   */
  put(record: OffloadRecord, state: Uint8Array, isWanted: () => boolean): Promise<boolean>
  /** Marks the block as used, which delays its eviction. Returns false if there is no such block. */
  renew(wanted: WantedBlock): Promise<boolean>
  /** Returns the state of exactly this block; null when there is none. */
  take(wanted: WantedBlock): Promise<Uint8Array | null>
  /** Deletes the conversation's blocks, even those being written, but not those that `keeps` accepts. Resolves when all are gone. */
  forget(conversation: ConversationId, keeps?: (record: OffloadRecord) => boolean): Promise<void>
  /** Resolves when all earlier calls are done. */
  close(): Promise<void>
}
