/** Owns an answer's tokens as places among the shown ones, and which of them carry a stretch of its text. */
import { align, type Aligned } from '../chat/tokens/aligned.js'
import type { Span } from '../core/span.js'

/** The tokens of one stretch of an answer. */
export interface Said {
  /** Places of the tokens that have at least one of its characters. */
  readonly value: readonly number[]
  /** The token before them, which the first of them was predicted from: where the value is looked up, if anywhere. */
  readonly reading: number
}

/** A generated answer as it came: text and tokens, the first of them at place `first`. */
export class Generated {
  readonly #aligned: Aligned

  constructor(
    readonly text: string,
    tokens: Int32Array,
    private readonly first: number,
    piece: (token: number) => Uint8Array,
  ) {
    this.#aligned = align(text, tokens, piece)
  }

  /** Null when no token has these characters. Only token borders that are known count, so the tokens may be a few too many. */
  said({ start, end }: Span): Said | null {
    const { tokens, starts } = this.#aligned
    const value: number[] = []
    for (let index = 0; index < tokens.length; index++) {
      const next = starts[index + 1] ?? this.text.length
      if (starts[index]! < end && next > start) value.push(this.first + index)
    }
    return value.length === 0 ? null : { value, reading: value[0]! - 1 }
  }
}

/** The tokens of a given answer's stretch, from where it is shown. */
export const saidAt = ({ start, end }: Span): Said => ({
  value: Array.from({ length: end - start }, (_, index) => start + index),
  reading: start - 1,
})
