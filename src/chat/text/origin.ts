/** Where a stretch of rendered text comes from, and to which message it belongs. */

/** A part of the conversation that templates copy text from. */
export type Field = 'content' | 'note' | 'reasoning' | 'call' | 'tool'

/**
 * `template`: written by the template itself or by something we vouch for (roles, BOS, EOS), so control tokens in it count.
 * `unknown`: made by an operation that does not track; treated like foreign text. Otherwise the message it was copied from
 * (tool definitions belong to no message).
 */
export type Origin = 'template' | 'unknown' | { readonly field: Field; readonly message: number }

/** `prompt`: the generation prompt. A number: the index of a message. */
export type Owner = number | 'prompt'

/** A stretch of text of one origin and one owner. */
export interface Piece {
  readonly text: string
  readonly origin: Origin
  /** Characters of the original that this stretch shows, half-open; both 0 for `template` and `unknown`. */
  readonly from: number
  readonly to: number
  /** True when every character stands for exactly one original character, in order. */
  readonly exact: boolean
  readonly owner: Owner | null
}

/** True when `right` continues `left`, so that both can be one piece. */
export function continues(left: Piece, right: Piece): boolean {
  if (left.origin !== right.origin || left.owner !== right.owner) return false
  return typeof left.origin === 'string' || (left.exact && right.exact && left.to === right.from)
}

/** The characters `[start, end)` of a piece. A piece that is not exact keeps the whole range it stands for. */
export function cutPiece(piece: Piece, start: number, end: number): Piece {
  if (start <= 0 && end >= piece.text.length) return piece
  const text = piece.text.slice(start, end)
  if (typeof piece.origin === 'string' || !piece.exact) return { ...piece, text }
  return { ...piece, text, from: piece.from + start, to: piece.from + start + text.length }
}
