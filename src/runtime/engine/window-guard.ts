/** Owns keeping whole what the sliding-window layers of a model hold: llama.cpp gives up and leaves out what a growing text would not see again. */
import { seqId, type SeqId } from '../core/ids.js'
import { span, type Span } from '../core/span.js'
import type { KvMemory, MemoryCell } from '../kv/ports.js'
import type { Batch, DecodeStatus, NativeContext, Watched } from '../native/types.js'

/** Sequences of the context that the guard needs for so many of its own. */
export const guardedSequences = (sequences: number): number => 2 * sequences + 1

/** The most sequences it can offer: llama.cpp has 256. */
export const MOST_GUARDED = 127

/**
 * A memory over a context with a full sliding window (`swa_full`), which alone is not enough for edits (llama.cpp v0.5.0, llama-kv-cache.cpp):
 *
 * - A cell whose only sequence has moved on by more than the window is taken for new tokens, free cells or not (find_slot). So every sequence has
 *   a twin that holds the same, which makes two. Until the twin has it a token is unprotected, so a batch must be one ubatch: `batch` of the
 *   context at most its `ubatch`.
 * - A saved state leaves out what the window has moved on from (state_write). So a sequence is saved in pieces no longer than the window, by way
 *   of a sequence that holds nothing else.
 *
 * Sequence s of `sequences` has the twin s + sequences; the last id of the context is for pieces.
 */
export class WindowGuard implements KvMemory {
  readonly cells: number
  readonly sequences: number
  readonly canShift: boolean
  readonly #piece: SeqId

  /** `window`: tokens that the windowed layers see. Nobody else may change the context. */
  constructor(
    private readonly context: NativeContext,
    private readonly window: number,
  ) {
    this.cells = context.cells
    this.sequences = (context.sequences - 1) / 2
    this.canShift = context.canShift
    this.#piece = seqId(context.sequences - 1)
  }

  /** NativeContext.decode, after which the tokens that entered are protected. */
  async decode(batch: Batch, watched: readonly Watched[] = []): Promise<DecodeStatus> {
    try {
      return await this.context.decode(batch, watched)
    } finally {
      for (const seq of new Set(batch.sequences)) this.#follow(seqId(seq))
    }
  }

  tag(from: SeqId, to: SeqId, of: Span): void {
    this.context.tag(from, to, of)
    this.context.tag(from, this.#twin(to), of)
  }

  untag(seq: SeqId, of: Span): void {
    this.context.untag(seq, of)
    this.context.untag(this.#twin(seq), of)
  }

  shift(seq: SeqId, of: Span, delta: number): void {
    this.context.shift(seq, of, delta)
  }

  positions(seq: SeqId): { readonly min: number; readonly max: number } | null {
    return this.context.positions(seq)
  }

  /** Pieces, one after another, each behind its length in 8 bytes. */
  saveSequence(seq: SeqId, options: { readonly checksum: boolean }): Uint8Array {
    const held = this.context.positions(seq)
    const states: Uint8Array[] = []
    // Pieces begin at multiples of the window, as the windows of some models do.
    for (let start = 0; held !== null && start <= held.max; start += this.window) {
      const of = span(start, start + this.window)
      this.context.tag(seq, this.#piece, of)
      if (this.context.positions(this.#piece) === null) continue
      states.push(this.context.saveSequence(this.#piece, options))
      this.context.untag(this.#piece, of)
    }
    const whole = Buffer.alloc(states.reduce((sum, { length }) => sum + 8 + length, 0))
    let at = 0
    for (const state of states) {
      whole.writeBigUInt64LE(BigInt(state.length), at)
      whole.set(state, at + 8)
      at += 8 + state.length
    }
    return whole
  }

  loadSequence(seq: SeqId, state: Uint8Array, options: { readonly verify: boolean }): boolean {
    const whole = Buffer.from(state.buffer, state.byteOffset, state.byteLength)
    for (let at = 0; at < whole.length;) {
      const size = at + 8 <= whole.length ? Number(whole.readBigUInt64LE(at)) : Infinity
      const fits = at + 8 + size <= whole.length
      if (!fits || !this.context.loadSequence(this.#piece, whole.subarray(at + 8, at + 8 + size), options)) {
        this.untag(seq, WHOLE)
        return false
      }
      this.tag(this.#piece, seq, WHOLE)
      this.context.untag(this.#piece, WHOLE)
      at += 8 + size
    }
    return true
  }

  /** Without the twins. */
  readback(): readonly MemoryCell[] {
    return this.context
      .readback()
      .map(({ position, sequences }) => ({ position, sequences: sequences.filter((seq) => seq < this.sequences) }))
  }

  #twin(seq: SeqId): SeqId {
    return seqId(seq + this.sequences)
  }

  /** The twin comes to hold what was decoded. */
  #follow(seq: SeqId): void {
    const end = (this.context.positions(seq)?.max ?? -1) + 1
    const start = (this.context.positions(this.#twin(seq))?.max ?? -1) + 1
    if (end > start) this.context.tag(seq, this.#twin(seq), span(start, end))
  }
}

/** All positions there are. */
const WHOLE = span(0, 2 ** 31 - 1)
