/** Holds all sequences on the device, by sequence id. Changes llama.cpp's tags and kvfold's records together. */
import { type ErrorCode, invariant, KvfoldError } from '../core/errors.js'
import { type ConversationId, type SeqId, seqId } from '../core/ids.js'
import { length, span, type Span } from '../core/span.js'
import { type CacheSalt, COMMON, sameSalt } from './tenant-salts.js'
import { CellTable } from './cell-table.js'
import type { Passed } from './tier-policy.js'
import type { LedgerEntry } from './ledger.js'
import type { KvMemory } from './ports.js'
import { type Prompt, uneditedOf } from './prompt.js'
import { Sequence, type SequenceState } from './sequence.js'
import { Views } from './views.js'

const NOTHING: ReadonlySet<unknown> = new Set()

/** More ticks than the clock ever reaches. Subtracting it makes a retired sequence count as the longest unused. */
const LONG_AGO = 2 ** 52

/** The errors for which `save` returns null. The sequence then stays as it is. */
const UNSAVED: readonly ErrorCode[] = ['memory/insufficient', 'native/failed']

/**
 * Live, parked and scratch sequences, by sequence id.
 *
 * To make room, sequences are dropped in this order: first parked ones (also called versions), longest unused first; then idle live ones,
 * longest unused first. Running live sequences are never dropped. Versions go first, because only the undo of an edit needs them, while the
 * next step of a conversation needs its live sequence. Versions go by age, because an old edit is less likely to be undone. A version is
 * used when it is parked and when it lends cells. A live sequence is used when it is opened, when it lends cells, and when one of its steps
 * ends.
 */
export class SequenceTable {
  readonly cells: CellTable
  readonly sequences: SequenceIds
  readonly #bySequence = new Map<SeqId, Sequence>()
  #clock = 0
  /** Grows whenever a sequence gets or loses cells other than by decoding, so that observers see that something changed. */
  revision = 0
  #computed: Passed = { prompt: 0, generated: 0 }
  /** Milliseconds of copies that no step has counted yet. */
  #copied = 0

  constructor(readonly memory: KvMemory) {
    this.cells = new CellTable(memory.cells)
    this.sequences = new SequenceIds(memory.sequences)
  }

  get all(): readonly Sequence[] {
    return [...this.#bySequence.values()]
  }

  /** Returns the conversation's parked versions, latest used first, because these are the likeliest to be restored. */
  parked(conversation: ConversationId): readonly Sequence[] {
    return this.all
      .filter((sequence) => sequence.state === 'parked' && sequence.conversation === conversation)
      .sort((a, b) => b.lastUse - a.lastUse)
  }

  /** Whether this object is still in the table. Comparing ids is not enough, because ids are reused. */
  has(holding: Pick<Sequence, 'seq'>): holding is Sequence {
    return this.#bySequence.get(holding.seq) === holding
  }

  /** Returns all sequences that may be dropped to make room, except `but`, in the order stated at the class. */
  victims(but: ReadonlySet<unknown> = NOTHING): readonly Sequence[] {
    const oldestFirst = (state: SequenceState) =>
      this.all.filter((sequence) => sequence.state === state && !but.has(sequence)).sort((a, b) => a.lastUse - b.lastUse)
    return [...oldestFirst('parked'), ...oldestFirst('idle')]
  }

  /** Adds an empty sequence with a free sequence id. Returns null when no id is free. */
  add(conversation: ConversationId, state: SequenceState, salt: CacheSalt = COMMON): Sequence | null {
    const seq = this.sequences.take()
    if (seq === null) return null
    this.revision++
    const sequence = new Sequence(conversation, seq, this.cells, state, salt)
    this.#bySequence.set(seq, sequence)
    this.touch(sequence)
    return sequence
  }

  /** Notes that the sequence was used just now. */
  touch(sequence: Sequence): void {
    sequence.lastUse = ++this.#clock
    sequence.passedBefore = this.#computed
  }

  /** Notes that no later step of the conversation is expected: all its sequences count as the longest unused. */
  retire({ conversation }: Sequence): void {
    // A new value each time: SlicedOffload compares `lastUse` with a remembered value, and must see that the sequence was used since.
    const lastUse = ++this.#clock - LONG_AGO
    for (const sequence of this.all)
      if (sequence.conversation === conversation) {
        sequence.lastUse = lastUse
        sequence.passedBefore = { prompt: 0, generated: 0 }
      }
  }

  /** Runs `copy`, which copies cells out of llama.cpp's memory or into it, and adds its time to `takeCopied`. */
  copying<T extends Uint8Array | boolean | Promise<Uint8Array | boolean>>(copy: (memory: KvMemory) => T): T {
    const begun = performance.now()
    const count = () => {
      this.#copied += performance.now() - begun
    }
    const copied = copy(this.memory)
    if (copied instanceof Promise) void copied.then(count, count)
    else count()
    return copied
  }

  /** Runs `work` without counting the time of its copies, because no step waits for it. */
  uncounted<T>(work: () => T): T {
    const copied = this.#copied
    try {
      return work()
    } finally {
      this.#copied = copied
    }
  }

  /** Returns the milliseconds of all copies since the last call. */
  takeCopied(): number {
    const copied = this.#copied
    this.#copied = 0
    return copied
  }

  /** Adds newly computed tokens to the total of all conversations. */
  count(what: keyof Passed, tokens: number): void {
    this.#computed = { ...this.#computed, [what]: this.#computed[what] + tokens }
  }

  /** Returns how many tokens all conversations have computed since the sequence was last used. */
  passedSince({ passedBefore }: Sequence): Passed {
    const { prompt, generated } = this.#computed
    return { prompt: prompt - passedBefore.prompt, generated: generated - passedBefore.generated }
  }

  /**
   * Lets `to` also hold the cells of these entries of `from`, and inserts them before its entry `at`. `to` must hold no cell at these
   * positions.
   */
  lend(from: Sequence, entries: Span, to: Sequence, at = to.held): void {
    if (length(entries) === 0) return
    const { start, end } = from.positionsOf(entries)
    invariant(
      entries.end <= from.held && (at === 0 || to.position(at - 1) < start) && (at === to.held || to.position(at) >= end),
      `sequence ${from.seq} cannot lend its positions ${start} to ${end} to sequence ${to.seq}`,
    )
    this.revision++
    this.memory.tag(from.seq, to.seq, span(start, end))
    to.adopt(from, entries, at)
    this.touch(from)
  }

  /** Removes these entries from the sequence. Returns how many cells that freed. */
  cut(sequence: Sequence, entries: Span): number {
    if (length(entries) === 0) return 0
    this.revision++
    this.memory.untag(sequence.seq, sequence.positionsOf(entries))
    return sequence.cut(entries)
  }

  /** Removes the sequence and frees its id. Returns how many cells that freed. The sequence must not be running. */
  drop(sequence: Sequence): number {
    invariant(
      !sequence.running && this.has(sequence),
      `sequence ${sequence.seq} cannot be dropped: it is running or already gone`,
    )
    const freed = this.cut(sequence, span(0, sequence.held))
    this.revision++
    this.#bySequence.delete(sequence.seq)
    this.sequences.give(sequence.seq)
    return freed
  }

  /**
   * Moves the cells that only this sequence holds to the lowest free cells. Returns their number. If the sequence shares other cells, this
   * takes a free sequence id. Moves nothing without a free id, or while some keys of the sequence still have to be turned.
   */
  compact(sequence: Sequence): number {
    const { alone } = sequence
    const count = alone.reduce((sum, stretch) => sum + length(stretch), 0)
    if (count === 0 || !sequence.settled) return 0
    if (count === sequence.held) return this.#rewrite(sequence)
    const apart = this.add(sequence.conversation, 'scratch', sequence.salt)
    if (apart === null) return 0
    for (const stretch of alone) this.lend(sequence, stretch, apart)
    for (const stretch of [...alone].reverse()) this.cut(sequence, stretch)
    const rewritten = this.#rewrite(apart)
    let at = 0
    for (const stretch of apart.held === 0 ? [] : alone) {
      this.lend(apart, span(at, at + length(stretch)), sequence, stretch.start)
      at += length(stretch)
    }
    apart.state = 'parked'
    this.drop(apart)
    return rewritten
  }

  /**
   * Moves the entries of a sequence to positions without gaps. It must share no cell behind its first gap. Returns by how many positions it
   * became shorter.
   */
  closeGaps(sequence: Sequence): number {
    if (!this.memory.canShift) return 0
    const before = sequence.next
    for (let entry = 0; entry < sequence.held;) {
      const run = span(entry, sequence.endOfRun(entry))
      const gap = sequence.position(entry) - entry
      this.shift(sequence, run, -gap)
      entry = run.end
    }
    return before - sequence.next
  }

  /** Adds `delta` to the positions of these entries. No other sequence may hold their cells. */
  shift(sequence: Sequence, entries: Span, delta: number): void {
    if (delta === 0) return
    this.revision++
    this.memory.shift(sequence.seq, sequence.positionsOf(entries), delta)
    sequence.shift(entries, delta)
  }

  /** Returns the sequence's state; null if there is no memory for it, or llama.cpp cannot save it. */
  save({ seq }: Sequence): Uint8Array | null {
    try {
      return this.copying((memory) => memory.saveSequence(seq))
    } catch (error) {
      if (error instanceof KvfoldError && UNSAVED.includes(error.code)) return null
      throw error
    }
  }

  /**
   * Saves the sequence, frees its cells, and loads it again into the lowest free cells. It must share no cell. Returns the number of cells
   * that moved.
   */
  #rewrite(sequence: Sequence): number {
    const { held, seq } = sequence
    const state = this.save(sequence)
    if (state === null) return 0
    this.memory.untag(seq, sequence.span)
    // Its own cells were just freed, so there is room. If the load fails all the same, kvfold's records must say that nothing is held.
    if (!this.copying((memory) => memory.loadSequence(seq, state))) {
      sequence.cut(span(0, held))
      return 0
    }
    if (held === this.cells.used) this.cells.gathered()
    return held
  }

  /** Returns the number of distinct cells in the sequences that `which` picks and in `more`. */
  cellsOf(which: (sequence: Sequence) => boolean, more: readonly Int32Array[] = []): number {
    const seen = new Uint8Array(this.cells.total)
    let count = 0
    for (const cells of [...more, ...this.all.filter(which).map((sequence) => sequence.cells)])
      for (const cell of cells) {
        if (seen[cell] === 0) count++
        seen[cell] = 1
      }
    return count
  }
}

// Sequence ids.

/** Lends the sequence ids of a context, 0 to total - 1. It lends the lowest free id first, which keeps logs readable. */
export class SequenceIds {
  readonly #free: Set<number>

  /** @param total number of sequences that the context has (llama.cpp's n_seq_max) */
  constructor(readonly total: number) {
    this.#free = new Set(Array.from({ length: total }, (_, id) => id))
  }

  get used(): number {
    return this.total - this.#free.size
  }

  /** Lends a free sequence id. Returns null when none is free. */
  take(): SeqId | null {
    if (this.#free.size === 0) return null
    const id = Math.min(...this.#free)
    this.#free.delete(id)
    return seqId(id)
  }

  /** Takes a sequence id back. No cell may be tagged with it. */
  give(id: SeqId): void {
    invariant(!this.#free.has(id), `sequence ${id} was given back twice`)
    this.#free.add(id)
  }

  isFree(id: SeqId): boolean {
    return this.#free.has(id)
  }
}

// Conversations, which outlive their live sequences.

/** The state of a conversation. It stays when the live sequence is dropped for room. */
export interface ConversationRecord {
  /** The salt of its tenant. */
  readonly salt: CacheSalt
  sequence: Sequence | null
  readonly ledger: LedgerEntry[]
  /** The prompt of the last step whose whole prompt was computed. */
  before: Prompt | null
  /** Whether `before` holds text that was forgotten since. Then it must not be computed again. */
  forgets: boolean
  /** How many of its cells were moved to a lower tier since its last step. Its next step counts them. */
  moved: number
}

/** How many ancestors of a fork are remembered: the conversation that it was forked from, the parent of that one, and so on. */
const MOST_KIN = 8

export class Conversations {
  readonly #records = new Map<ConversationId, ConversationRecord>()
  readonly #kin = new Map<ConversationId, readonly ConversationId[]>()
  readonly views = new Views()

  /**
   * Notes that the conversation was forked from `from`. Under `splice` and `blend` it may then reuse cells of `from` like its own. Changes
   * nothing when `from` is unknown or another tenant's, or when the conversation has an ancestor already.
   * @param salt the salt of the conversation's tenant
   */
  inherit(conversation: ConversationId, salt: CacheSalt, from: ConversationId): void {
    const known = this.#records.get(from)
    if (known === undefined || conversation === from || this.#kin.has(conversation) || !sameSalt(known.salt, salt)) return
    this.#kin.set(conversation, [from, ...this.kin(from)].slice(0, MOST_KIN))
  }

  /** Returns the last prompt of the conversation that this one was forked from; null if there is none, or if it was forgotten. */
  inherited(conversation: ConversationId): Prompt | null {
    const [parent] = this.kin(conversation)
    return parent === undefined ? null : (this.#records.get(parent)?.before ?? null)
  }

  /** Returns the conversation's ancestors, nearest first. */
  kin(conversation: ConversationId): readonly ConversationId[] {
    return this.#kin.get(conversation) ?? []
  }

  get(conversation: ConversationId): ConversationRecord | undefined {
    return this.#records.get(conversation)
  }

  /** Returns the conversation's live sequence; null when it has none or is unknown. */
  live(conversation: ConversationId): Sequence | null {
    return this.#records.get(conversation)?.sequence ?? null
  }

  /** Returns the unedited prompt of the last step whose whole prompt was computed, its answer included; null when there is none. */
  before(conversation: ConversationId): Int32Array | null {
    const before = this.#records.get(conversation)?.before ?? null
    return before === null ? null : uneditedOf(before)
  }

  /** Makes `sequence` the live sequence of the conversation, which may be new. */
  seat(conversation: ConversationId, sequence: Sequence): void {
    const known = this.#records.get(conversation)
    if (known === undefined)
      this.#records.set(conversation, { salt: sequence.salt, sequence, ledger: [], before: null, forgets: false, moved: 0 })
    else known.sequence = sequence
  }

  /** Notes that a sequence was dropped. If it was a live sequence, its conversation has none now. */
  unseat(dropped: Sequence): void {
    const record = this.#records.get(dropped.conversation)
    if (record?.sequence === dropped) record.sequence = null
  }

  delete(conversation: ConversationId): void {
    this.#records.delete(conversation)
    this.#kin.delete(conversation)
    this.views.forget(conversation)
  }
}
