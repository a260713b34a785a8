/** A sequence: its tokens and, in parallel arrays, their source ids and cells. */
import type { ConversationId, SeqId } from '../core/ids.js'
import { length, lowerBound, span, type Span } from '../core/span.js'
import { CellHasher, type CellHashes, FreshHashes, FreshText, sameHash, WORDS } from './cell-hash.js'
import type { CellTable } from './cell-table.js'
import type { OffloadRecord } from './ports.js'
import type { Passed } from './tier-policy.js'
import { commonPrefix, sourcePlace, tokenSource } from './prompt.js'
import { type CacheSalt, COMMON, sameSalt } from './tenant-salts.js'

// What the planner reads of a sequence, whether it is on the device or in a lower tier.

/** The tier that keeps cells: llama.cpp's context (`device`), this program's memory (`host`), the disk, or the tier that engines share. */
export type Tier = 'device' | 'host' | 'disk' | 'shared'

export interface HeldSequence {
  readonly conversation: ConversationId
  readonly tier: Tier
  /** Number of entries, one per token. */
  readonly held: number
  readonly tokens: Int32Array
  /** The source id of each token (prompt.ts). */
  readonly sourceIds: Int32Array
  /** The unedited prompt that source ids point into. */
  readonly unedited: Int32Array
  position(entry: number): number
  /** Returns the index of the first entry at `position` or behind it; `held` when there is none. */
  atPosition(position: number): number
  /** Returns the index of the first entry whose source id is `key` or larger; `held` when there is none. */
  atKey(key: number): number
  /** Whether the entry's cell equals the cell that a fresh prefill of `text` makes of the token at index `place`. */
  isFresh(entry: number, place: number, text: FreshText): boolean
  /**
   * Returns the first 32-bit word of the entry's cell hash. Callers compare it to tell cells of the same token in one conversation apart.
   */
  cellWord(entry: number): number
  /** Counts the entries from `entry` on whose cells equal those that a fresh prefill of `text` makes of its tokens `place` to `end`. */
  freshRun(entry: number, place: number, end: number, text: FreshText): number
}

/** Implements HeldSequence.freshRun by checking one cell after the other. */
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

// A sequence on the device.

/**
 * `running`: a step is in progress. `idle`: between two steps. `parked`: entries that a conversation no longer shows, kept for their cells;
 * it never grows. `scratch`: a helper of a step or of a compaction, dropped at its end. A step computes in it the tokens that belong in the
 * middle of the live sequence.
 */
export type SequenceState = 'running' | 'idle' | 'parked' | 'scratch'

/** The live sequence of a conversation, as code outside the cache sees it. `tokens` is only valid until the sequence changes. */
export type LiveSequence = Readonly<
  Pick<Sequence, 'conversation' | 'salt' | 'seq' | 'held' | 'tokens' | 'running' | 'exact' | 'next'>
>

/**
 * Entry i of the sequence is `tokens[i]`, with source id `keys[i]`, in `cells[i]`. Positions ascend with i, with gaps where text is hidden
 * under a splice. The methods change only kvfold's records. Their callers make the same change in llama.cpp's memory.
 */
export class Sequence implements HeldSequence {
  /** The tier from which the current step loaded the cells; `device` if they were there already. For the ledger. */
  tier: Tier = 'device'
  /** When it was last used, in ticks of SequenceTable's clock; the smallest is unused for longest. Negative after SequenceTable.retire. */
  lastUse = 0
  /** The count of tokens computed for all conversations when this sequence was last used (SequenceTable.passedSince). */
  passedBefore: Passed = { prompt: 0, generated: 0 }
  /**
   * Whether another step has borrowed or copied cells from this sequence since the last step of its own conversation began. Then a later
   * step may need them again, so the sequence is not moved off the device.
   */
  lent = false
  /** The unedited prompt that source ids point into. The array is never written to. */
  unedited: Int32Array = new Int32Array()
  #tokens = new Int32Array(256)
  #keys = new Int32Array(256)
  #cells = new Int32Array(256)
  #held = 0
  /** Hashes the entries in order. It has processed the first `#hasher.seen` entries; `#catchUp` feeds it the rest. */
  readonly #hasher: CellHasher
  /** Number of exact entries at the beginning, as far as the hasher has processed the entries. */
  #exact = 0
  readonly #expected: CellHashes = new Int32Array(WORDS)
  /** Index of the first entry that changed since the last `takeChanged`. */
  #changed = 0
  #fresh: FreshHashes | null = null

  constructor(
    readonly conversation: ConversationId,
    readonly seq: SeqId,
    private readonly book: CellTable,
    public state: SequenceState,
    /** The salt of the conversation's tenant and adapters, which keys the cell hashes. */
    readonly salt: CacheSalt = COMMON,
  ) {
    this.#hasher = new CellHasher(salt)
  }

  get held(): number {
    return this.#held
  }

  get running(): boolean {
    return this.state === 'running' || this.state === 'scratch'
  }

  /** Shares memory with the sequence: valid until the next change. */
  get tokens(): Int32Array {
    return this.#tokens.subarray(0, this.#held)
  }

  /** Shares memory with the sequence: valid until the next change. */
  get sourceIds(): Int32Array {
    return this.#keys.subarray(0, this.#held)
  }

  /** Shares memory with the sequence: valid until the next change. */
  get cells(): Int32Array {
    return this.#cells.subarray(0, this.#held)
  }

  position(entry: number): number {
    return this.book.positions[this.#cells[entry]!]!
  }

  /** The position at which the next token is decoded. */
  get next(): number {
    return this.#held === 0 ? 0 : this.position(this.#held - 1) + 1
  }

  /** Number of exact entries at the beginning: their cells equal those of a fresh prefill. */
  get exact(): number {
    this.#catchUp()
    return this.#exact
  }

  /** The positions from the first to the last entry, gaps included. */
  get span(): Span {
    return this.#held === 0 ? span(0, 0) : span(this.position(0), this.next)
  }

  /** Returns the span of positions from the first to the last of these entries, gaps included. */
  positionsOf(entries: Span): Span {
    return length(entries) === 0 ? span(0, 0) : span(this.position(entries.start), this.position(entries.end - 1) + 1)
  }

  /** Returns the index of the first entry at `position` or behind it; `held` when there is none. */
  atPosition(position: number): number {
    return lowerBound(this.#held, (entry) => this.position(entry) < position)
  }

  /** Returns the index of the first entry whose source id is `key` or larger; `held` when there is none. */
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
    // Exact cells match every text that begins with their tokens, so it is enough to compare tokens. The entry at index `known` does not
    // match.
    const known = commonPrefix(this.#tokens.subarray(0, this.exact), text.tokens)
    return place > known ? freshCells(this, entry, place, end, text) : Math.min(known, end) - place
  }

  /** Returns these tokens as a text with the cell hashes of a fresh prefill, under this sequence's salt. */
  freshText(tokens: Int32Array): FreshText {
    this.#fresh ??= new FreshHashes(this.salt)
    return new FreshText(tokens, this.#fresh)
  }

  /** Returns the index of the first entry that changed since the last call; `held` if none did. Only `KvCache.held` calls it. */
  takeChanged(): number {
    const changed = Math.min(this.#changed, this.#held)
    this.#changed = this.#held
    return changed
  }

  /** Records tokens that were decoded at the end of the sequence, from position `next` on. */
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
      // A new cell is exact if all cells before it are exact.
      if (this.#exact === this.#held && position === this.#held) this.#exact++
      this.#cells[this.#held++] = cell
      position++
    }
  }

  /** Records that this sequence also holds the cells of these entries of `from`. They are inserted before its own entry `at`. */
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

  /** Removes entries from the records, after llama.cpp removed this sequence's tag from their cells. Returns how many cells became free. */
  cut(entries: Span): number {
    const freed = this.book.untag(this.cells.subarray(entries.start, entries.end))
    for (const array of [this.#tokens, this.#keys, this.#cells]) array.copyWithin(entries.start, entries.end, this.#held)
    this.#held -= length(entries)
    this.#changedFrom(entries.start)
    return freed
  }

  /** Returns the end (exclusive) of the run of consecutive positions that begins at `entry`. */
  endOfRun(entry: number): number {
    let end = entry + 1
    while (end < this.#held && this.position(end) === this.position(end - 1) + 1) end++
    return end
  }

  /** Adds `delta` to the positions of these entries' cells, which no other sequence may hold. Their hashes become those of turned cells. */
  shift(entries: Span, delta: number): void {
    const cells = this.cells.subarray(entries.start, entries.end)
    this.book.shift(cells, delta)
    for (const cell of cells) this.#hasher.turn(this.book.positions[cell]!, this.book.hashes, cell)
    this.#changedFrom(entries.start)
  }

  /** Whether the keys of all its cells are rotated to their positions (CellTable.settledOf). */
  get settled(): boolean {
    return this.settledBeginning === this.#held
  }

  /** Number of entries at the beginning whose keys are rotated to their positions. */
  get settledBeginning(): number {
    return this.book.settledOf(this.cells)
  }

  /**
   * Gives the entries other source ids, because the unedited prompt changed.
   * @param base the new unedited prompt
   * @param keys the source ids of all tokens that the step shows
   * @param spans the spans of `keys` that belong to the entries, in order
   */
  rename(base: Int32Array, keys: Int32Array, spans: readonly Span[]): void {
    this.unedited = base
    let at = 0
    for (const { start, end } of spans) {
      this.#keys.set(keys.subarray(start, end), at)
      at += end - start
    }
  }

  /** Returns source ids for the next `count` generated tokens. They name the indices right after the end of the unedited prompt. */
  keysAfter(count: number): Int32Array {
    const last = this.#held === 0 ? -1 : sourcePlace(this.#keys[this.#held - 1]!)
    const from = Math.max(this.unedited.length, last + 1)
    return Int32Array.from({ length: count }, (_, offset) => tokenSource(from + offset))
  }

  /** Appends the generated tokens to the unedited prompt, because the next step's prompt contains them there. */
  extendBase(): void {
    const generated = this.tokens.subarray(this.atKey(tokenSource(this.unedited.length)))
    if (generated.length === 0) return
    const base = new Int32Array(this.unedited.length + generated.length)
    base.set(this.unedited)
    base.set(generated, this.unedited.length)
    this.unedited = base
  }

  /** Whether this sequence holds all tokens of `other` at the same positions, in cells with the same values. */
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

  /** Returns the position and the cell hash of every entry, in order. */
  readCells(): { readonly positions: Int32Array; readonly hashes: CellHashes } {
    const { positions, hashes } = this.book
    const { cells } = this
    const own = new Int32Array(WORDS * cells.length)
    for (const [entry, cell] of cells.entries()) own.set(hashes.subarray(WORDS * cell, WORDS * (cell + 1)), WORDS * entry)
    return { positions: cells.map((cell) => positions[cell]!), hashes: own }
  }

  /** Records the entries of a saved sequence whose cells were just loaded into this empty one. No other sequence holds these cells. */
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

  /** Spans of the entries whose cells no other sequence holds, in order. */
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
    this.#changed = Math.min(this.#changed, entry)
    this.#exact = Math.min(this.#exact, this.#hasher.goBack(entry))
  }

  /** Feeds the hasher the entries that it has not processed yet, and extends the count of exact entries. */
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

  /** Opens a gap of `by` entries before entry `at`. Enlarges the arrays if they are too short. */
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
