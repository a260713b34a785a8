/** A cache as plain as can be, with llama.cpp's rules and a stand-in for what attention leaves in a cell; for tests of src/kv. */
import { seqId, type SeqId } from '../../src/core/ids.js'
import { span, type Span } from '../../src/core/span.js'
import type { Cell, KvMemory } from '../../src/kv/memory.js'

interface NaiveCell {
  readonly position: number
  readonly token: number
  /** What a cell's values depend on: its token and everything before it that the sequence showed when it was decoded. */
  readonly trace: number
  readonly tags: Set<SeqId>
}

/** The trace of `token` decoded after a cell with trace `before`. */
const traceOf = (before: number, token: number): number => Math.imul(before ^ (token + 0x9e3779b9), 0x85ebca6b) ^ (before >>> 13)

/** What the rules of llama.cpp forbid; never an expected outcome. */
class RuleBroken extends Error {}

/** A sequence whose cells are not what a fresh prefill of the tokens would make. */
export class WrongContent extends Error {}

export class NaiveMemory implements KvMemory {
  /** Tokens that entered by decode. */
  submitted = 0
  /** Like llama.cpp, which adds a tag without asking whether the sequence holds the position already. */
  lenient = false
  #cells: NaiveCell[] = []

  constructor(
    readonly cells: number,
    readonly sequences: number,
  ) {}

  tag(from: SeqId, to: SeqId, of: Span): void {
    this.#refuseForeign(from, to)
    for (const cell of this.#held(from, of)) {
      if (!this.lenient && !cell.tags.has(to) && this.#held(to, span(cell.position, cell.position + 1)).length > 0)
        throw new RuleBroken(`sequence ${to} holds position ${cell.position} already`)
      cell.tags.add(to)
    }
  }

  untag(seq: SeqId, of: Span): void {
    this.#refuseForeign(seq)
    for (const cell of this.#held(seq, of)) cell.tags.delete(seq)
    this.#cells = this.#cells.filter(({ tags }) => tags.size > 0)
  }

  positions(seq: SeqId): { readonly min: number; readonly max: number } | null {
    this.#refuseForeign(seq)
    const positions = this.#held(seq).map(({ position }) => position)
    return positions.length === 0 ? null : { min: Math.min(...positions), max: Math.max(...positions) }
  }

  readback(): readonly Cell[] {
    return this.#cells.map(({ position, tags }) => ({ position, sequences: [...tags] }))
  }

  /** Decodes `tokens` into `seq` from position `start` on; the first `entering` of them enter. */
  decode(seq: SeqId, start: number, tokens: Int32Array, entering = tokens.length): void {
    this.#refuseForeign(seq)
    const next = (this.positions(seq)?.max ?? -1) + 1
    if (start !== next) throw new RuleBroken(`sequence ${seq} goes on at position ${next}, not ${start}`)
    if (this.#cells.length + entering > this.cells)
      throw new RuleBroken(`no room for ${entering} tokens beside ${this.#cells.length}`)
    for (const [offset, token] of tokens.subarray(0, entering).entries()) {
      const position = start + offset
      const before = this.#held(seq, span(position - 1, position)).at(0)?.trace ?? 0
      this.#cells.push({ position, token, trace: traceOf(before, token), tags: new Set([seq]) })
    }
    this.submitted += entering
  }

  /** Throws WrongContent unless `seq` holds exactly what a fresh prefill of `tokens` would. */
  expectFresh(seq: SeqId, tokens: ArrayLike<number>): void {
    const held = this.#held(seq).sort((a, b) => a.position - b.position)
    if (held.length !== tokens.length)
      throw new WrongContent(`sequence ${seq} holds ${held.length} cells instead of ${tokens.length}`)
    let trace = 0
    for (const [position, cell] of held.entries()) {
      const token = tokens[position] ?? -1
      trace = traceOf(trace, token)
      if (cell.position !== position) throw new WrongContent(`sequence ${seq} has no cell at position ${position}`)
      if (cell.token !== token)
        throw new WrongContent(`sequence ${seq} holds token ${cell.token} instead of ${token} at position ${position}`)
      if (cell.trace !== trace)
        throw new WrongContent(`the cell at position ${position} of sequence ${seq} was computed after other tokens`)
    }
  }

  /** The tokens of every sequence that holds something. */
  contents(): Map<SeqId, number[]> {
    const contents = new Map<SeqId, number[]>()
    for (let id = 0; id < this.sequences; id++) {
      const held = this.#held(seqId(id)).sort((a, b) => a.position - b.position)
      if (held.length > 0)
        contents.set(
          seqId(id),
          held.map(({ token }) => token),
        )
    }
    return contents
  }

  /** Distinct cells that at least one of `seqs` tags. */
  cellsOf(seqs: readonly SeqId[]): number {
    return this.#cells.filter(({ tags }) => seqs.some((seq) => tags.has(seq))).length
  }

  #held(seq: SeqId, of: Span = span(0, Infinity)): NaiveCell[] {
    return this.#cells.filter(({ position, tags }) => tags.has(seq) && position >= of.start && position < of.end)
  }

  #refuseForeign(...seqs: readonly SeqId[]): void {
    for (const seq of seqs) if (seq < 0 || seq >= this.sequences) throw new RuleBroken(`there is no sequence ${seq}`)
  }
}
