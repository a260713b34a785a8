/**
 * Keeps all cells of a model's sliding-window layers. llama.cpp would reuse cells that the window has passed, and leave them out of saved
 * states. Edits may need these cells again.
 */
import { KvfoldError } from '../core/errors.js'
import { seqId, type SeqId } from '../core/ids.js'
import { span, type Span } from '../core/span.js'
import type { KvMemory, MemoryCell } from '../kv/ports.js'
import type { Batch, DecodeStatus, NativeContext, Watched } from '../native/types.js'

/** Returns how many sequences a context needs for a guard that offers this many: one twin for each, and one for pieces. */
export const guardedSequences = (sequences: number): number => 2 * sequences + 1

/** The most sequences that a guard can offer, because a context has at most 256. */
export const MOST_GUARDED = 127

/**
 * A KvMemory over a context with a full sliding window (`swa_full`). That option alone is not enough for edits (llama.cpp v0.5.0,
 * llama-kv-cache.cpp):
 *
 * - llama.cpp overwrites a cell whose only sequence has moved on by more than the window, even while other cells are free (find_slot). So
 *   every sequence has a twin that sees the same cells, and no cell has only one sequence. A token is unprotected until its twin sees it.
 *   So a batch must be one ubatch: the context's `batch` is at most its `ubatch`.
 * - A saved state leaves out the cells that the window has passed (state_write). So a sequence is saved in pieces no longer than the
 *   window, through an otherwise empty sequence.
 *
 * Sequence s of `sequences` has the twin s + sequences. The last id of the context is for pieces.
 */
export class WindowGuard implements KvMemory {
  readonly cells: number
  readonly sequences: number
  readonly canShift: boolean
  readonly #piece: SeqId

  /**
   * @param window how many tokens the sliding-window layers see
   * @param context no other object may change it
   */
  constructor(
    private readonly context: NativeContext,
    private readonly window: number,
  ) {
    this.cells = context.cells
    this.sequences = (context.sequences - 1) / 2
    this.canShift = context.canShift
    this.#piece = seqId(context.sequences - 1)
  }

  /** Decodes like NativeContext.decode, then tags the new tokens with the twins. */
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

  /** Saves the sequence in pieces, each after its length in 8 bytes. */
  saveSequence(seq: SeqId): Uint8Array {
    const states: Uint8Array[] = []
    for (const of of this.#windows(seq)) {
      try {
        states.push(this.context.saveSequence(this.#piece))
      } finally {
        this.context.untag(this.#piece, of)
      }
    }
    return joined(states)
  }

  async copyOut(seq: SeqId): Promise<Uint8Array> {
    const states: Uint8Array[] = []
    for (const of of this.#windows(seq)) {
      try {
        states.push(await this.context.copyOut(this.#piece))
      } finally {
        this.context.untag(this.#piece, of)
      }
    }
    return joined(states)
  }

  loadSequence(seq: SeqId, state: Uint8Array): boolean {
    const pieces = piecesOf(state)
    const isIn = pieces?.every((piece) => this.context.loadSequence(this.#piece, piece) && this.#takePiece(seq)) ?? false
    if (!isIn) this.untag(seq, WHOLE)
    return isIn
  }

  async copyIn(seq: SeqId, state: Uint8Array): Promise<boolean> {
    const pieces = piecesOf(state)
    for (const piece of pieces ?? []) {
      if ((await this.context.copyIn(this.#piece, piece)) && this.#takePiece(seq)) continue
      this.untag(seq, WHOLE)
      return false
    }
    return pieces !== null
  }

  /**
   * Tags one window of cells after another with the sequence for pieces; the caller untags them each time. Windows begin at multiples of
   * their length, as the windows of some models do.
   */
  *#windows(seq: SeqId): Generator<Span> {
    const held = this.context.positions(seq)
    for (let start = 0; held !== null && start <= held.max; start += this.window) {
      const of = span(start, start + this.window)
      this.context.tag(seq, this.#piece, of)
      if (this.context.positions(this.#piece) !== null) yield of
    }
  }

  /** Moves the cells that were loaded into the sequence for pieces to this sequence. */
  #takePiece(seq: SeqId): boolean {
    this.tag(this.#piece, seq, WHOLE)
    this.context.untag(this.#piece, WHOLE)
    return true
  }

  /** Returns every occupied cell as llama.cpp reports it, without the twins among its sequences. */
  readback(): readonly MemoryCell[] {
    return this.context
      .readback()
      .map(({ position, sequences }) => ({ position, sequences: sequences.filter((seq) => seq < this.sequences) }))
  }

  #twin(seq: SeqId): SeqId {
    return seqId(seq + this.sequences)
  }

  /** Tags the newly decoded tokens with the sequence's twin. */
  #follow(seq: SeqId): void {
    const end = (this.context.positions(seq)?.max ?? -1) + 1
    const start = (this.context.positions(this.#twin(seq))?.max ?? -1) + 1
    if (end > start) this.context.tag(seq, this.#twin(seq), span(start, end))
  }
}

/** Returns the states in one buffer, each after its length in 8 bytes. @throws KvfoldError memory/insufficient */
function joined(states: readonly Uint8Array[]): Uint8Array {
  const whole = bufferOf(states.reduce((sum, { length }) => sum + 8 + length, 0))
  let at = 0
  for (const state of states) {
    whole.writeBigUInt64LE(BigInt(state.length), at)
    whole.set(state, at + 8)
    at += 8 + state.length
  }
  return whole
}

function bufferOf(bytes: number): Buffer {
  try {
    return Buffer.allocUnsafeSlow(bytes)
  } catch (cause) {
    throw new KvfoldError('memory/insufficient', `There is no memory for a saved sequence of ${bytes} bytes.`, { cause })
  }
}

/** Returns the states that were joined; null when the bytes are not joined states. */
function piecesOf(joined: Uint8Array): readonly Uint8Array[] | null {
  const whole = Buffer.from(joined.buffer, joined.byteOffset, joined.byteLength)
  const pieces: Uint8Array[] = []
  for (let at = 0; at < whole.length;) {
    const size = at + 8 <= whole.length ? Number(whole.readBigUInt64LE(at)) : Infinity
    if (at + 8 + size > whole.length) return null
    pieces.push(whole.subarray(at + 8, at + 8 + size))
    at += 8 + size
  }
  return pieces
}

/** A span of all positions. */
const WHOLE = span(0, 2 ** 31 - 1)
