/** The port through which `kv` sees llama.cpp's unified cache; the llama engine implements it, tests use a naive model of it. */
import type { SeqId } from '../core/ids.js'
import type { Span } from '../core/span.js'

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
