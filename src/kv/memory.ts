/** The port through which `kv` sees llama.cpp's unified cache; the llama engine implements it, tests use a naive model of it. */
import type { SeqId } from '../core/ids.js'
import type { Span } from '../core/span.js'

/** One occupied cell as llama.cpp reports it: its position and every sequence that tags it. */
export interface Cell {
  readonly position: number
  readonly sequences: readonly SeqId[]
}

/**
 * What llama.cpp's unified cache lets us do (kv-mechanics.md, "Rules of the unified cache"). All spans are of positions.
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
  /** Smallest and largest position `seq` holds, read back from llama.cpp; null when it holds none. */
  positions(seq: SeqId): { readonly min: number; readonly max: number } | null
  /** Every occupied cell, read back from llama.cpp (slow: for integrity checks in tests). */
  readback(): readonly Cell[]
}
