/** What a step can be asked to say about where its tokens look, and what it says: patterns reduced to sums over spans while they are computed. */
import type { Span } from '../core/span.js'

/** A named set of shown tokens that attention is summed over. Sets may overlap. */
export interface KeySet {
  readonly name: string
  /** Places among the shown tokens (prompt as rendered under the edits, then generated tokens), half-open, disjoint. */
  readonly tokens: readonly Span[]
}

export interface AttentionRequest {
  /** Layers from 0. Default: every layer that has a softmax. @throws KvfoldError attention/bad-request for one that does not exist */
  readonly layers?: readonly number[]
  /** Query heads from 0, the same in every layer. Default: all. */
  readonly heads?: readonly number[]
  /** The tokens that look: places of the prompt (they are computed anew if they were in the cache), and whether generated tokens, too. */
  readonly queries: { readonly prompt?: readonly Span[]; readonly generated?: boolean }
  readonly keys: readonly KeySet[]
  /** The k most attended tokens of every query. Default 0. */
  readonly top?: number
  /** Whole rows too. Refused where they would take more than `maxRowBytes` (default 64 MiB). */
  readonly rows?: boolean
  readonly maxRowBytes?: number
}

/** A dense array; the last axis varies fastest. */
export interface NamedArray<Data extends Float32Array | Int32Array> {
  readonly data: Data
  readonly shape: readonly number[]
  readonly axes: readonly string[]
}

/** Weights after the softmax; what a row's sets leave out is 1 - their sum, where sets do not overlap and the model has no attention sinks of its own. */
export interface AttentionPattern {
  /** The layers captured, in order. */
  readonly layers: readonly number[]
  readonly heads: readonly number[]
  /** Places of the looking tokens among the shown ones. */
  readonly queries: Int32Array
  /** Names of the key sets. */
  readonly keys: readonly string[]
  /** `[layer, head, query, key set]`: sum of the row's weights on the set. */
  readonly mass: NamedArray<Float32Array>
  /** `[layer, head, query]`: sum of the whole row; 1 but for rounding and sinks. */
  readonly total: NamedArray<Float32Array>
  /** `[layer, head, query]`: entropy of the row in nats. */
  readonly entropy: NamedArray<Float32Array>
  /** `[layer, head, query]`: weight on the first shown token. */
  readonly sink: NamedArray<Float32Array>
  /** `[layer, head, query, rank]`: places of the most attended tokens, -1 where a row has fewer, and their weights. */
  readonly top: { readonly places: NamedArray<Int32Array>; readonly weights: NamedArray<Float32Array> } | null
  /** `[layer, head, query, place]`: whole rows; 0 at places after the query. */
  readonly rows: NamedArray<Float32Array> | null
  /** Layers asked for (or all) that have no softmax, and why. */
  readonly skipped: readonly { readonly layer: number; readonly reason: string }[]
}

// What a capture of attention costs, said before the work: pure figures, for models that are at hand and for those on paper.

/** A model, and a context of it without flash attention. */
export interface AttentionShape {
  /** Layers captured. */
  readonly layers: number
  /** Query heads captured, and those that a layer computes; default: the same. */
  readonly heads: number
  readonly modelHeads?: number
  /** n_ctx, and n_ubatch. */
  readonly cells: number
  readonly ubatch: number
}

export interface AttentionSize {
  /** Tokens that look. */
  readonly queries: number
  /** Key sets. */
  readonly sets: number
  /** Most attended tokens a row. Default 0. */
  readonly top?: number
  /** Shown tokens, if whole rows are kept. Default: they are not. */
  readonly places?: number
}

/** Bytes. */
export interface AttentionCost {
  /** Sums over key sets. */
  readonly mass: number
  /** Total, entropy and sink. */
  readonly figures: number
  readonly top: number
  readonly rows: number
  /** All of these: what a pattern keeps. */
  readonly pattern: number
  /** What the native side holds beside that while one decode of a whole ubatch of queries runs: its part of the pattern, and buffers of a row. */
  readonly decode: number
  /** What a context takes to compute attention without flash attention: the scores of a layer and the mask. The rest of its buffers comes on top. */
  readonly compute: number
  /** What all captured rows would take if they were kept; for comparison. */
  readonly unreduced: number
}

const FLOAT = 4
/** Per cell: mask, weights, visible cells, positions and places. */
const ROW_BUFFERS = 6

/** Pure. */
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
