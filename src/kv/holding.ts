/** Owns what one sequence holds: its tokens and, parallel to them, the cells that keep them. */
import type { ConversationId, SeqId } from '../core/ids.js'
import { length, span, type Span } from '../core/span.js'
import type { Cells } from './cells.js'

/** `running`: a step is under way. `idle`: between two steps. `parked`: an earlier version, kept for its cells; it never grows. */
export type HoldingState = 'running' | 'idle' | 'parked'

/** The live sequence of a conversation, as others may see it. `tokens` is a view that holds until the lane changes. */
export type Lane = Readonly<Pick<Holding, 'conversation' | 'seq' | 'held' | 'tokens' | 'running'>>

/** An earlier version of a conversation, as others may see it. */
export type Version = Readonly<Pick<Holding, 'conversation' | 'seq' | 'held' | 'tokens'>>

/**
 * Position i of the sequence holds `tokens[i]` in `cells[i]`: under `exact`, positions are 0 .. held-1 without gaps. Mutators keep the
 * books (reference counts) and nothing else; only KvCache calls them, always together with the same change to the memory.
 */
export class Holding {
  /** Ticks of the cache's clock; the smaller, the longer unused. */
  lastUse = 0
  #tokens = new Int32Array(256)
  #cells = new Int32Array(256)
  #held = 0

  constructor(
    readonly conversation: ConversationId,
    readonly seq: SeqId,
    private readonly book: Cells,
    public state: HoldingState,
  ) {}

  /** Tokens held; also the position that comes next. */
  get held(): number {
    return this.#held
  }

  get running(): boolean {
    return this.state === 'running'
  }

  /** A view, good until the next change. */
  get tokens(): Int32Array {
    return this.#tokens.subarray(0, this.#held)
  }

  /** A view, good until the next change. */
  get cells(): Int32Array {
    return this.#cells.subarray(0, this.#held)
  }

  /** Tokens were decoded at the end of the sequence. */
  append(tokens: Int32Array): void {
    this.#grow(tokens.length)
    this.#tokens.set(tokens, this.#held)
    for (let offset = 0; offset < tokens.length; offset++) this.#cells[this.#held + offset] = this.book.take(this.#held + offset)
    this.#held += tokens.length
  }

  /** The cells that `from` holds in `of` were tagged with this sequence, too; `of` starts where this one ends. */
  adopt(from: Holding, of: Span): void {
    const cells = from.cells.subarray(of.start, of.end)
    this.#grow(length(of))
    this.#tokens.set(from.tokens.subarray(of.start, of.end), this.#held)
    this.#cells.set(cells, this.#held)
    this.book.tag(cells)
    this.#held += length(of)
  }

  /** The tags of [`keep`, held) were removed; says how many cells that set free. */
  truncate(keep: number): number {
    const freed = this.book.untag(this.cells.subarray(keep))
    this.#held = keep
    return freed
  }

  /** All positions held. */
  get span(): Span {
    return span(0, this.#held)
  }

  #grow(by: number): void {
    const needed = this.#held + by
    if (needed <= this.#tokens.length) return
    const size = Math.max(needed, 2 * this.#tokens.length)
    const grown = (old: Int32Array) => {
      const array = new Int32Array(size)
      array.set(old)
      return array
    }
    this.#tokens = grown(this.#tokens)
    this.#cells = grown(this.#cells)
  }
}
