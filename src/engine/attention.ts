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
  /** [layer, head, query, key set]: sum of the row's weights on the set. */
  readonly mass: NamedArray<Float32Array>
  /** [layer, head, query]: sum of the whole row; 1 but for rounding and sinks. */
  readonly total: NamedArray<Float32Array>
  /** [layer, head, query]: entropy of the row in nats. */
  readonly entropy: NamedArray<Float32Array>
  /** [layer, head, query]: weight on the first shown token. */
  readonly sink: NamedArray<Float32Array>
  /** [layer, head, query, rank]: places of the most attended tokens, -1 where a row has fewer, and their weights. */
  readonly top: { readonly places: NamedArray<Int32Array>; readonly weights: NamedArray<Float32Array> } | null
  /** [layer, head, query, place]: whole rows; 0 at places after the query. */
  readonly rows: NamedArray<Float32Array> | null
  /** Layers asked for (or all) that have no softmax, and why. */
  readonly skipped: readonly { readonly layer: number; readonly reason: string }[]
}
