/** Owns what one sequence holds: its tokens and, parallel to them, where they come from and the cells that keep them. */
import type { ConversationId, SeqId } from '../core/ids.js'
import { length, lowerBound, span, type Span } from '../core/span.js'
import { CellHasher, type CellHashes, FreshHashes, FreshText, sameHash, WORDS } from './cell-hash.js'
import type { CellTable } from './cell-table.js'
import type { OffloadRecord } from './ports.js'
import type { Passed } from './tier-policy.js'
import { commonPrefix, sourcePlace, tokenSource } from './prompt.js'
import { type CacheSalt, COMMON, sameSalt } from './tenant-salts.js'

// What the planner asks of anyone who holds computed tokens: a sequence on the device, or one that was moved off it.

/** Where cells are: in the context's memory, in the program's, on disk, where other engines put them. */
export type Tier = 'device' | 'host' | 'disk' | 'shared'

export interface HeldSequence {
  readonly conversation: ConversationId
  readonly tier: Tier
  /** Tokens held. */
  readonly held: number
  readonly tokens: Int32Array
  /** From `Prompt`. */
  readonly sourceIds: Int32Array
  /** The unedited prompt that source ids point into. */
  readonly unedited: Int32Array
  position(entry: number): number
  /** The first entry at `position` or after it; `held` when there is none. */
  atPosition(position: number): number
  /** The first entry with this key or a later one; `held` when there is none. */
  atKey(key: number): number
  /** Whether the entry is, at this place of the text, what a fresh prefill would make it. */
  isFresh(entry: number, place: number, text: FreshText): boolean
  /** One word of the entry's cell hash: tells apart the cells of one token of one conversation. */
  cellWord(entry: number): number
  /** How many entries from this one on are that, at the places from `place` on, up to place `end`. */
  freshRun(entry: number, place: number, end: number, text: FreshText): number
}

/** The same, cell by cell. */
export function freshCells(
  holder: Pick<HeldSequence, 'isFresh'>,
  entry: number,
  place: number,
  end: number,
  text: FreshText,
): number {
  let count = 0
  while (place + count < end && holder.isFresh(entry + count, place + count, text)) count++
  return count
}

// What one sequence holds: its tokens and, parallel to them, where they come from and the cells that keep them.

/**
 * `running`: a step is under way. `idle`: between two steps. `parked`: what a conversation no longer shows, kept for its cells; it never
 * grows. `scratch`: where a running step computes tokens in the middle of its live sequence.
 */
export type SequenceState = 'running' | 'idle' | 'parked' | 'scratch'

/** The live sequence of a conversation, as others may see it. `tokens` is a view that holds until the live sequence changes. */
export type LiveSequence = Readonly<
  Pick<Sequence, 'conversation' | 'salt' | 'seq' | 'held' | 'tokens' | 'running' | 'exact' | 'next'>
>

/**
 * Entry i of the sequence is `tokens[i]`, from `keys[i]` (Prompt), in `cells[i]`; positions ascend with i, with gaps where text is hidden under
 * a splice. Mutators keep the books (reference counts) and nothing else; only SequenceTable calls them, always together with the same change to
 * the memory.
 */
export class Sequence implements HeldSequence {
  /** Where its cells were before this step, for the ledger. */
  tier: Tier = 'device'
  /** Ticks of the cache's clock; the smaller, the longer unused. */
  lastUse = 0
  /** What had been computed by then, by anybody. */
  passedBefore: Passed = { prompt: 0, generated: 0 }
  /** Whether a step borrowed from it since the last one of its conversation began: it may be asked for again. */
  lent = false
  /** The unedited prompt that source ids point into; never written to. */
  unedited: Int32Array = new Int32Array()
  #tokens = new Int32Array(256)
  #keys = new Int32Array(256)
  #cells = new Int32Array(256)
  #held = 0
  /** Has seen the first entries, which were not changed since. */
  readonly #hasher: CellHasher
  /** How many of those it has seen, from the first on, are what a fresh prefill would have made of them. */
  #exact = 0
  readonly #expected: CellHashes = new Int32Array(WORDS)
  #fresh: FreshHashes | null = null

  constructor(
    readonly conversation: ConversationId,
    readonly seq: SeqId,
    private readonly book: CellTable,
    public state: SequenceState,
    /** Whose cells these are: other tenants' hashes have another salt. */
    readonly salt: CacheSalt = COMMON,
  ) {
    this.#hasher = new CellHasher(salt)
  }

  /** Tokens held. */
  get held(): number {
    return this.#held
  }

  get running(): boolean {
    return this.state === 'running' || this.state === 'scratch'
  }

  /** A view, good until the next change. */
  get tokens(): Int32Array {
    return this.#tokens.subarray(0, this.#held)
  }

  /** A view, good until the next change. */
  get sourceIds(): Int32Array {
    return this.#keys.subarray(0, this.#held)
  }

  /** A view, good until the next change. */
  get cells(): Int32Array {
    return this.#cells.subarray(0, this.#held)
  }

  position(entry: number): number {
    return this.book.positions[this.#cells[entry]!]!
  }

  /** The position that comes next. */
  get next(): number {
    return this.#held === 0 ? 0 : this.position(this.#held - 1) + 1
  }

  /** How many entries from the beginning are what a fresh prefill of their tokens would have made of them. */
  get exact(): number {
    this.#catchUp()
    return this.#exact
  }

  /** All positions held: from the first to the last, gaps included. */
  get span(): Span {
    return this.#held === 0 ? span(0, 0) : span(this.position(0), this.next)
  }

  /** The positions of these entries, gaps included. */
  positionsOf(entries: Span): Span {
    return length(entries) === 0 ? span(0, 0) : span(this.position(entries.start), this.position(entries.end - 1) + 1)
  }

  /** The first entry at `position` or after it; `held` when there is none. */
  atPosition(position: number): number {
    return lowerBound(this.#held, (entry) => this.position(entry) < position)
  }

  /** The first entry with this key or a later one; `held` when there is none. */
  atKey(key: number): number {
    return lowerBound(this.#held, (entry) => this.#keys[entry]! < key)
  }

  isFresh(entry: number, place: number, text: FreshText): boolean {
    if (entry >= this.#held || this.#tokens[entry] !== text.tokens[place]) return false
    const cell = this.#cells[entry]!
    return this.book.positions[cell] === place && text.isAt(place, this.book.hashes, cell)
  }

  cellWord(entry: number): number {
    return this.book.hashes[WORDS * this.#cells[entry]!]!
  }

  freshRun(entry: number, place: number, end: number, text: FreshText): number {
    if (entry !== place || !sameSalt(this.salt, text.salt)) return freshCells(this, entry, place, end, text)
    // Cells that were found exact when they came are so for every text that begins as they do; the one behind them is not.
    const known = commonPrefix(this.#tokens.subarray(0, this.exact), text.tokens)
    return place > known ? freshCells(this, entry, place, end, text) : Math.min(known, end) - place
  }

  /** These tokens as a fresh prefill would make them for this sequence's tenant. */
  freshText(tokens: Int32Array): FreshText {
    this.#fresh ??= new FreshHashes(this.salt)
    return new FreshText(tokens, this.#fresh)
  }

  /** Tokens were decoded at the end of the sequence, at `next` and the positions after it. */
  append(tokens: Int32Array, keys: Int32Array): void {
    this.#makeRoom(this.#held, tokens.length)
    this.#tokens.set(tokens, this.#held)
    this.#keys.set(keys, this.#held)
    this.#catchUp()
    const { hashes } = this.book
    let position = this.next
    for (const token of tokens) {
      const cell = this.book.take(position)
      this.#hasher.place(token, position, hashes, cell)
      this.#hasher.see(hashes, cell)
      // Just computed, so it is what it should be if all before it is.
      if (this.#exact === this.#held && position === this.#held) this.#exact++
      this.#cells[this.#held++] = cell
      position++
    }
  }

  /** The cells of these entries of `from` were tagged with this sequence, too; they go in before entry `at`. */
  adopt(from: Sequence, entries: Span, at: number): void {
    const cells = from.cells.subarray(entries.start, entries.end)
    this.#makeRoom(at, cells.length)
    this.#tokens.set(from.tokens.subarray(entries.start, entries.end), at)
    this.#keys.set(from.sourceIds.subarray(entries.start, entries.end), at)
    this.#cells.set(cells, at)
    this.#held += cells.length
    this.book.tag(cells)
    this.#changedFrom(at)
  }

  /** The tags of these entries were removed; says how many cells that set free. */
  cut(entries: Span): number {
    const freed = this.book.untag(this.cells.subarray(entries.start, entries.end))
    for (const array of [this.#tokens, this.#keys, this.#cells]) array.copyWithin(entries.start, entries.end, this.#held)
    this.#held -= length(entries)
    this.#changedFrom(entries.start)
    return freed
  }

  /** The entry after the last one whose position follows on `entry` without a gap. */
  endOfRun(entry: number): number {
    let end = entry + 1
    while (end < this.#held && this.position(end) === this.position(end - 1) + 1) end++
    return end
  }

  /** The cells of these entries, which no other sequence holds, have other positions from now on; their hashes say that they were turned. */
  shift(entries: Span, delta: number): void {
    const cells = this.cells.subarray(entries.start, entries.end)
    this.book.shift(cells, delta)
    for (const cell of cells) this.#hasher.turn(this.book.positions[cell]!, this.book.hashes, cell)
    this.#changedFrom(entries.start)
  }

  /** Whether all its cells' keys are what their positions say (CellTable.areSettled). */
  get settled(): boolean {
    return this.book.areSettled(this.cells)
  }

  /** The same entries are known by other keys from now on, because the unedited prompt is another one: by these spans of `keys`. */
  rename(base: Int32Array, keys: Int32Array, spans: readonly Span[]): void {
    this.unedited = base
    let at = 0
    for (const { start, end } of spans) {
      this.#keys.set(keys.subarray(start, end), at)
      at += end - start
    }
  }

  /** Source ids of the next `count` generated tokens: they stand behind the unedited prompt. */
  keysAfter(count: number): Int32Array {
    const last = this.#held === 0 ? -1 : sourcePlace(this.#keys[this.#held - 1]!)
    const from = Math.max(this.unedited.length, last + 1)
    return Int32Array.from({ length: count }, (_, offset) => tokenSource(from + offset))
  }

  /** Generated tokens become part of the unedited prompt, as they are when it is shown next. */
  extendBase(): void {
    const generated = this.tokens.subarray(this.atKey(tokenSource(this.unedited.length)))
    if (generated.length === 0) return
    const base = new Int32Array(this.unedited.length + generated.length)
    base.set(this.unedited)
    base.set(generated, this.unedited.length)
    this.unedited = base
  }

  /** Whether this sequence holds, at the same positions, all that `other` does: cells whose values are the same. */
  covers(other: Sequence): boolean {
    const { positions, hashes } = this.book
    let at = 0
    for (let entry = 0; entry < other.#held; entry++, at++) {
      const theirs = other.#cells[entry]!
      const position = positions[theirs]!
      if (at >= this.#held || positions[this.#cells[at]!] !== position) at = this.atPosition(position)
      if (at === this.#held) return false
      const ours = this.#cells[at]!
      const same = positions[ours] === position && this.#tokens[at] === other.#tokens[entry]
      if (!same || !sameHash(hashes, ours, hashes, theirs)) return false
    }
    return true
  }

  /** Positions and cell hashes, entry by entry. */
  readCells(): { readonly positions: Int32Array; readonly hashes: CellHashes } {
    const { positions, hashes } = this.book
    const { cells } = this
    const own = new Int32Array(WORDS * cells.length)
    for (const [entry, cell] of cells.entries()) own.set(hashes.subarray(WORDS * cell, WORDS * (cell + 1)), WORDS * entry)
    return { positions: cells.map((cell) => positions[cell]!), hashes: own }
  }

  /** The sequence, which held nothing, was loaded with all that is stored: cells that no other sequence holds. */
  load({ unedited: base, tokens, sourceIds: keys, positions, hashes }: OffloadRecord): void {
    this.unedited = base
    this.#makeRoom(0, tokens.length)
    this.#tokens.set(tokens)
    this.#keys.set(keys)
    for (let entry = 0; entry < tokens.length; entry++) {
      const cell = this.book.take(positions[entry]!)
      this.book.hashes.set(hashes.subarray(WORDS * entry, WORDS * (entry + 1)), WORDS * cell)
      this.#cells[entry] = cell
    }
    this.#held = tokens.length
  }

  /** The entries whose cells no other sequence holds, as stretches in order. */
  get alone(): Span[] {
    const stretches: Span[] = []
    for (let entry = 0; entry < this.#held; entry++) {
      const start = entry
      while (entry < this.#held && this.isAlone(entry)) entry++
      if (entry > start) stretches.push(span(start, entry))
    }
    return stretches
  }

  /** Whether no other sequence holds the entry's cell. */
  isAlone(entry: number): boolean {
    return this.book.references[this.#cells[entry]!] === 1
  }

  #changedFrom(entry: number): void {
    this.#exact = Math.min(this.#exact, this.#hasher.goBack(entry))
  }

  /** Follows the entries that were added since the last look. */
  #catchUp(): void {
    const { hashes, positions } = this.book
    for (let entry = this.#hasher.seen; entry < this.#held; entry++) {
      const cell = this.#cells[entry]!
      if (this.#exact === entry && positions[cell] === entry) {
        this.#hasher.place(this.#tokens[entry]!, entry, this.#expected, 0)
        if (sameHash(hashes, cell, this.#expected, 0)) this.#exact++
      }
      this.#hasher.see(hashes, cell)
    }
  }

  /** Moves what is held from entry `at` on by `by` entries, growing the arrays as needed. */
  #makeRoom(at: number, by: number): void {
    const needed = this.#held + by
    if (needed > this.#tokens.length) {
      const size = Math.max(needed, 2 * this.#tokens.length)
      const grown = (old: Int32Array) => {
        const array = new Int32Array(size)
        array.set(old)
        return array
      }
      this.#tokens = grown(this.#tokens)
      this.#keys = grown(this.#keys)
      this.#cells = grown(this.#cells)
    }
    if (at < this.#held) for (const array of [this.#tokens, this.#keys, this.#cells]) array.copyWithin(at + by, at, this.#held)
  }
}
