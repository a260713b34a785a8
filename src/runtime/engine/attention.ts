/**
 * The request for a step's attention, and its result. A row is the attention of one token (the query) on all tokens that it sees. Rows are
 * reduced to sums over sets of tokens while they are computed.
 */
import type { Span } from '../core/span.js'

/** A named set of shown tokens over which attention is summed. Sets may overlap. */
export interface KeySet {
  readonly name: string
  /** Half-open, disjoint spans of the shown tokens: those of the prompt as rendered under the edits, then the generated ones. */
  readonly tokens: readonly Span[]
}

export interface AttentionRequest {
  /** Layers from 0. Default: every layer that has a softmax. @throws KvfoldError attention/bad-request for one that does not exist */
  readonly layers?: readonly number[]
  /** Query heads from 0, the same in every layer. Default: all. */
  readonly heads?: readonly number[]
  /**
   * The tokens whose attention is captured (queries). `prompt`: spans of prompt tokens, which are computed again if the cache has them.
   * `generated`: whether to capture the generated tokens, too.
   */
  readonly queries: { readonly prompt?: readonly Span[]; readonly generated?: boolean }
  readonly keys: readonly KeySet[]
  /** How many of the most attended tokens to report for every query. Default 0. */
  readonly top?: number
  /** Whether whole rows are kept, too: the weights on every shown token. Refused if they take more than `maxRowBytes` (default 64 MiB). */
  readonly rows?: boolean
  readonly maxRowBytes?: number
}

/** A dense array; the last axis varies fastest. */
export interface NamedArray<Data extends Float32Array | Int32Array> {
  readonly data: Data
  readonly shape: readonly number[]
  readonly axes: readonly string[]
}

/**
 * The captured attention: weights after the softmax. The weight on tokens outside all sets is 1 minus the sum of the sets. That holds if
 * the sets do not overlap and the model has no attention sinks of its own. A place is an index among the shown tokens.
 */
export interface AttentionPattern {
  /** The captured layers, ascending. */
  readonly layers: readonly number[]
  readonly heads: readonly number[]
  /** Places of the tokens whose attention was captured. */
  readonly queries: Int32Array
  /** Names of the key sets. */
  readonly keys: readonly string[]
  /** `[layer, head, query, key set]`: sum of the row's weights on the set. */
  readonly mass: NamedArray<Float32Array>
  /** `[layer, head, query]`: sum of the whole row: 1, apart from rounding and attention sinks. */
  readonly total: NamedArray<Float32Array>
  /** `[layer, head, query]`: entropy of the row in nats. */
  readonly entropy: NamedArray<Float32Array>
  /** `[layer, head, query]`: weight on the first shown token. */
  readonly sink: NamedArray<Float32Array>
  /** `[layer, head, query, rank]`: places of the most attended tokens, -1 if a row has fewer, and their weights. Null unless requested. */
  readonly top: { readonly places: NamedArray<Int32Array>; readonly weights: NamedArray<Float32Array> } | null
  /** `[layer, head, query, place]`: whole rows; 0 at places after the query. Null unless requested. */
  readonly rows: NamedArray<Float32Array> | null
  /** Requested layers that have no softmax, and why. */
  readonly skipped: readonly { readonly layer: number; readonly reason: string }[]
}

// Computes the cost of a capture beforehand, from figures of the model alone.

/** The figures of a model, and of a context without flash attention, that determine the cost of a capture. */
export interface AttentionShape {
  /** How many layers are captured. */
  readonly layers: number
  /** Number of query heads captured per layer, and (`modelHeads`) computed per layer. Default of `modelHeads`: the same number. */
  readonly heads: number
  readonly modelHeads?: number
  /** Number of cells and size of a ubatch of the context (llama.cpp's n_ctx and n_ubatch). */
  readonly cells: number
  readonly ubatch: number
}

export interface AttentionSize {
  /** Number of tokens whose attention is captured. */
  readonly queries: number
  /** Number of key sets. */
  readonly sets: number
  /** How many of the most attended tokens are reported per row. Default 0. */
  readonly top?: number
  /** Number of shown tokens, if whole rows are kept. Default: rows are not kept. */
  readonly places?: number
}

/** The cost of a capture; all figures are bytes. */
export interface AttentionCost {
  /** Sums over the key sets. */
  readonly mass: number
  /** Totals, entropies and sinks of all rows. */
  readonly figures: number
  readonly top: number
  readonly rows: number
  /** The sum of the fields above: the size of a pattern. */
  readonly pattern: number
  /**
   * Memory of the addon in addition to the pattern, while it decodes a ubatch of queries: its part of the pattern, and buffers of a row.
   */
  readonly decode: number
  /**
   * Memory of the context for attention without flash attention: the scores of a layer, and the mask. Its other buffers are not counted.
   */
  readonly compute: number
  /** The size of all captured rows if they were kept whole, for comparison. */
  readonly unreduced: number
}

const FLOAT = 4
/** Number of 4-byte buffers per cell while a row is read: mask, weights, visible cells, positions, places and more. */
const ROW_BUFFERS = 6

/** Returns the cost of a capture, in bytes. Captures nothing. */
export function attentionPlan(shape: AttentionShape, { queries, sets, top = 0, places = 0 }: AttentionSize): AttentionCost {
  const { layers, heads, modelHeads = heads, cells, ubatch } = shape
  const rows = layers * heads * queries
  const row = { mass: FLOAT * sets, figures: FLOAT * 3, top: 2 * FLOAT * top, rows: FLOAT * places }
  const kept = row.mass + row.figures + row.top + row.rows
  return {
    mass: rows * row.mass,
    figures: rows * row.figures,
    top: rows * row.top,
    rows: rows * row.rows,
    pattern: rows * kept,
    decode: layers * heads * Math.min(queries, ubatch) * kept + FLOAT * ROW_BUFFERS * cells,
    compute: FLOAT * cells * ubatch * (modelHeads + 1),
    unreduced: rows * FLOAT * cells,
  }
}
