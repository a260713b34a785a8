/** Owns what a capture of attention costs, said before the work: pure figures, for models that are at hand and for those on paper. */

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
