/**
 * A minimal KV memory with llama.cpp's rules, and a stand-in for the values that attention leaves in a cell; for tests of src/runtime/kv.
 */
import { KvfoldError } from '../../../../src/runtime/core/errors.js'
import { seqId, type SeqId } from '../../../../src/runtime/core/ids.js'
import { span, type Span } from '../../../../src/runtime/core/span.js'
import type { KvMemory, MemoryCell } from '../../../../src/runtime/kv/ports.js'

/** A cell as a sequence sees it. */
export interface HeldCell {
  /** Unique to one computation. A saved and loaded cell keeps it, so copies share it. */
  readonly id: number
  readonly position: number
  readonly token: number
  /** Equal traces mean the same token, computed at the same position beside equal cells at the same positions. */
  readonly trace: number
}

interface NaiveCell extends HeldCell {
  position: number
  trace: number
  readonly tags: Set<SeqId>
}

/** A call that breaks llama.cpp's rules; never an expected outcome. */
class RuleBroken extends Error {}

/** A sequence whose cells differ from a fresh prefill of the tokens. */
export class WrongContent extends Error {}

const MAGIC = 0x6b76
const FIELDS = 4
const LAST_POSITION = 2 ** 31 - 1

export class NaiveMemory implements KvMemory {
  /** How many tokens decodes have added. */
  submitted = 0
  /** Adds a tag without checking whether the sequence already holds the position, as llama.cpp does. */
  lenient = false
  /** The conversation that owns an empty sequence once it is tagged or decoded into. */
  acting = ''
  /** How many saves and loads were made. */
  readonly moves = { saved: 0, loaded: 0 }
  canShift = true
  #cells: NaiveCell[] = []
  /** Cells that were shifted since the last decode. */
  readonly #turning = new Set<NaiveCell>()
  #ids = 0
  readonly #owners = new Map<SeqId, string>()
  /** How often each empty sequence was filled. */
  readonly #lives = new Map<SeqId, number>()
  readonly #names: string[] = []
  /** One number for each different thing seen: a stand-in for values that cannot coincide by chance. */
  readonly #known = new Map<string, number>()

  constructor(
    readonly cells: number,
    readonly sequences: number,
  ) {}

  tag(from: SeqId, to: SeqId, of: Span): void {
    this.#refuseForeign(from, to)
    this.#refuseNoSpan(of)
    if (this.#held(to).length === 0) this.#revive(to, this.acting)
    for (const cell of this.#held(from, of)) {
      if (!this.lenient && !cell.tags.has(to) && this.#held(to, span(cell.position, cell.position + 1)).length > 0)
        throw new RuleBroken(`sequence ${to} holds position ${cell.position} already`)
      cell.tags.add(to)
    }
  }

  untag(seq: SeqId, of: Span): void {
    this.#refuseForeign(seq)
    this.#refuseNoSpan(of)
    for (const cell of this.#held(seq, of)) cell.tags.delete(seq)
    this.#cells = this.#cells.filter(({ tags }) => tags.size > 0)
  }

  shift(seq: SeqId, of: Span, delta: number): void {
    this.#refuseForeign(seq)
    this.#refuseNoSpan(of)
    if (!Number.isInteger(delta) || of.start + delta < 0 || (this.positions(seq)?.max ?? 0) + delta > LAST_POSITION)
      throw new RuleBroken(`a shift by ${delta} would take [${of.start}, ${of.end}) out of the positions`)
    const moved = this.#held(seq, of)
    if (!this.canShift) throw new RuleBroken('the positions of this memory cannot be shifted')
    for (const cell of moved) {
      cell.position += delta
      cell.trace = this.#number(`${cell.trace} turned to ${cell.position}`)
      this.#turning.add(cell)
    }
    if (moved.some(({ position }) => position < 0))
      throw new RuleBroken(`a shift takes cells of sequence ${seq} below position 0`)
    for (const { position, tags } of moved)
      for (const other of tags)
        if (!this.lenient && this.#held(other, span(position, position + 1)).length > 1)
          throw new RuleBroken(`a shift makes sequence ${other} hold position ${position} twice`)
  }

  positions(seq: SeqId): { readonly min: number; readonly max: number } | null {
    this.#refuseForeign(seq)
    const positions = this.#held(seq).map(({ position }) => position)
    return positions.length === 0 ? null : { min: Math.min(...positions), max: Math.max(...positions) }
  }

  readback(): readonly MemoryCell[] {
    return this.#cells.map(({ position, tags }) => ({ position, sequences: [...tags] }))
  }

  saveSequence(seq: SeqId): Uint8Array {
    this.#refuseForeign(seq)
    const held = this.sequence(seq)
    if (this.#held(seq).some((cell) => this.#turning.has(cell)))
      throw new RuleBroken(`sequence ${seq} is saved before its keys are turned to their positions`)
    this.moves.saved++
    const values = held.flatMap(({ id, position, token, trace }) => [id, position, token, trace])
    const content = [this.#name(this.ownerOf(seq)), ...values]
    return new Uint8Array(Int32Array.from([MAGIC, held.length, ...content]).buffer)
  }

  loadSequence(seq: SeqId, state: Uint8Array): boolean {
    this.#refuseForeign(seq)
    if (this.#held(seq).length > 0)
      throw new KvfoldError('native/bad-argument', `A state is loaded into sequence ${seq}, which holds something.`)
    if (state.length % Int32Array.BYTES_PER_ELEMENT !== 0) return false
    const [magic, cells = 0, owner = 0, ...numbers] = new Int32Array(state.slice().buffer)
    if (magic !== MAGIC || numbers.length !== cells * FIELDS) return false
    if (this.#cells.length + cells > this.cells) return false
    this.moves.loaded++
    this.#revive(seq, this.#names[owner] ?? '')
    for (let at = 0; at < numbers.length; at += FIELDS) {
      const [id = 0, position = 0, token = 0, trace = 0] = numbers.slice(at, at + FIELDS)
      this.#cells.push({ id, position, token, trace, tags: new Set([seq]) })
    }
    return true
  }

  async copyOut(seq: SeqId): Promise<Uint8Array> {
    await Promise.resolve()
    return this.saveSequence(seq)
  }

  async copyIn(seq: SeqId, state: Uint8Array): Promise<boolean> {
    await Promise.resolve()
    return this.loadSequence(seq, state)
  }

  /** Decodes `tokens` into `seq` from position `start` on; the first `entering` of them enter. */
  decode(seq: SeqId, start: number, tokens: Int32Array, entering = tokens.length): void {
    this.#refuseForeign(seq)
    const next = (this.positions(seq)?.max ?? -1) + 1
    if (start !== next) throw new RuleBroken(`sequence ${seq} goes on at position ${next}, not ${start}`)
    if (this.#cells.length + entering > this.cells)
      throw new RuleBroken(`no room for ${entering} tokens beside ${this.#cells.length}`)
    const held = this.sequence(seq)
    if (held.length === 0) this.#revive(seq, this.acting)
    let seen = held.reduce((all, cell) => this.#seen(all, cell), 0)
    for (const [offset, token] of tokens.subarray(0, entering).entries()) {
      const position = start + offset
      const cell = { id: this.#ids++, position, token, trace: this.#traceOf(token, position, seen), tags: new Set([seq]) }
      this.#cells.push(cell)
      seen = this.#seen(seen, cell)
    }
    this.submitted += entering
    this.#turning.clear()
  }

  /** Returns the cells of `seq`, in order of position. */
  sequence(seq: SeqId): readonly HeldCell[] {
    return this.#held(seq).sort((a, b) => a.position - b.position)
  }

  /** Returns the conversation that the sequence belongs to. */
  ownerOf(seq: SeqId): string {
    return this.#owners.get(seq) ?? ''
  }

  /** Returns all cells of the conversation's sequences. */
  cellsOwnedBy(owner: string): readonly HeldCell[] {
    return this.#cells.filter(({ tags }) => [...tags].some((seq) => this.ownerOf(seq) === owner))
  }

  /** Returns all cells of other conversations' sequences. */
  cellsOfOthers(owner: string, counts: (other: string) => boolean = () => true): readonly HeldCell[] {
    const isOther = (other: string) => other !== owner && counts(other)
    return this.#cells.filter(({ tags }) => [...tags].some((seq) => isOther(this.ownerOf(seq))))
  }

  /** Returns the cells of the conversation's other sequences. Each sequence's key changes once it has been emptied. */
  heldBeside(seq: SeqId, owner: string): Map<string, readonly HeldCell[]> {
    const all = Array.from({ length: this.sequences }, (_, id) => seqId(id))
    const beside = all.filter((other) => other !== seq && this.ownerOf(other) === owner && this.#held(other).length > 0)
    return new Map(beside.map((other) => [`${other} in its life ${this.#lives.get(other) ?? 0}`, this.sequence(other)]))
  }

  /** Returns the traces that a fresh prefill of `tokens` leaves, place by place. */
  fresh(tokens: ArrayLike<number>): number[] {
    let seen = 0
    return Array.from(tokens, (token, position) => {
      const trace = this.#traceOf(token, position, seen)
      seen = this.#seen(seen, { trace, position })
      return trace
    })
  }

  /** Returns how many cells at the beginning of `seq` equal a fresh prefill of `tokens`. */
  freshBeginning(seq: SeqId, tokens: ArrayLike<number>): number {
    const traces = this.fresh(tokens)
    const held = this.sequence(seq)
    let place = 0
    while (place < held.length && held[place]?.position === place && held[place]?.trace === traces[place]) place++
    return place
  }

  /** Throws WrongContent unless `seq` shows exactly `tokens`, in order of position. */
  expectShows(seq: SeqId, tokens: ArrayLike<number>): void {
    const held = this.sequence(seq)
    if (held.length !== tokens.length)
      throw new WrongContent(`sequence ${seq} holds ${held.length} cells instead of ${tokens.length}`)
    for (const [place, { token, position }] of held.entries()) {
      if (token !== tokens[place])
        throw new WrongContent(`sequence ${seq} shows token ${token} instead of ${tokens[place] ?? -1} at place ${place}`)
      if (place > 0 && held[place - 1]?.position === position)
        throw new WrongContent(`sequence ${seq} holds position ${position} twice`)
    }
  }

  /** Throws WrongContent unless `seq` holds exactly the cells of a fresh prefill of `tokens`. */
  expectFresh(seq: SeqId, tokens: ArrayLike<number>): void {
    this.expectShows(seq, tokens)
    const fresh = this.freshBeginning(seq, tokens)
    if (fresh === tokens.length) return
    const position = this.sequence(seq)[fresh]?.position
    if (position !== fresh) throw new WrongContent(`sequence ${seq} has no cell at position ${fresh}`)
    throw new WrongContent(`the cell at position ${fresh} of sequence ${seq} was computed after other tokens`)
  }

  /** Returns the tokens of every sequence that is not empty. */
  contents(): Map<SeqId, number[]> {
    const contents = new Map<SeqId, number[]>()
    for (let id = 0; id < this.sequences; id++) {
      const held = this.sequence(seqId(id))
      if (held.length > 0)
        contents.set(
          seqId(id),
          held.map(({ token }) => token),
        )
    }
    return contents
  }

  /** Returns how many distinct cells at least one of `seqs` tags. */
  cellsOf(seqs: readonly SeqId[]): number {
    return this.#cells.filter(({ tags }) => seqs.some((seq) => tags.has(seq))).length
  }

  /** Returns a number for all that a cell's values depend on: its token, its position, and the cells its sequence held before it. */
  #traceOf(token: number, position: number, seen: number): number {
    return this.#number(`${token} at ${position} after ${seen}`)
  }

  /** Returns a number for the cells seen so far and one more. */
  #seen(before: number, { trace, position }: Pick<HeldCell, 'trace' | 'position'>): number {
    return this.#number(`${before} and ${trace} at ${position}`)
  }

  #number(what: string): number {
    const known = this.#known.get(what)
    if (known !== undefined) return known
    this.#known.set(what, this.#known.size + 1)
    return this.#known.size
  }

  #revive(seq: SeqId, owner: string): void {
    this.#owners.set(seq, owner)
    this.#lives.set(seq, (this.#lives.get(seq) ?? 0) + 1)
  }

  #name(owner: string): number {
    if (!this.#names.includes(owner)) this.#names.push(owner)
    return this.#names.indexOf(owner)
  }

  #held(seq: SeqId, of: Span = span(0, Infinity)): NaiveCell[] {
    return this.#cells.filter(({ position, tags }) => tags.has(seq) && position >= of.start && position < of.end)
  }

  #refuseNoSpan({ start, end }: Span): void {
    if (!Number.isInteger(start) || !Number.isInteger(end) || start < 0 || end < start || end > LAST_POSITION)
      throw new RuleBroken(`[${start}, ${end}) is no span of positions`)
  }

  #refuseForeign(...seqs: readonly SeqId[]): void {
    for (const seq of seqs)
      if (!Number.isInteger(seq) || seq < 0 || seq >= this.sequences) throw new RuleBroken(`there is no sequence ${seq}`)
  }
}
