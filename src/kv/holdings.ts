/** Owns all sequences that hold something, and changes llama.cpp's tags and our books together. */
import { invariant } from '../core/errors.js'
import type { ConversationId, SeqId } from '../core/ids.js'
import { length, span, type Span } from '../core/span.js'
import type { Passed } from './burden.js'
import { Cells } from './cells.js'
import { Holding, type HoldingState } from './holding.js'
import type { KvMemory } from './memory.js'
import { Sequences } from './sequences.js'
import { COMMON, type CacheSalt } from './salt.js'

const NOTHING: ReadonlySet<unknown> = new Set()

/**
 * Lanes and parked versions, by sequence id.
 *
 * Room is made in this order: parked versions, longest unused first; then idle lanes, longest unused first; running lanes never. Versions
 * go first because losing one costs no more than the undo of an edit, whereas a lane is what its conversation shows next; by age because
 * an edit is the less likely to be undone the longer ago it was made. A version is used when it is parked and when it lends cells; a lane
 * when it is opened, when it lends cells, and when a step of it ends.
 */
export class Holdings {
  readonly cells: Cells
  readonly sequences: Sequences
  readonly #bySequence = new Map<SeqId, Holding>()
  #clock = 0
  #computed: Passed = { prompt: 0, generated: 0 }

  constructor(readonly memory: KvMemory) {
    this.cells = new Cells(memory.cells)
    this.sequences = new Sequences(memory.sequences)
  }

  get all(): readonly Holding[] {
    return [...this.#bySequence.values()]
  }

  /** The earlier versions of a conversation, latest used first, so that the likeliest hit is tried first. */
  parked(conversation: ConversationId): readonly Holding[] {
    return this.all
      .filter((holding) => holding.state === 'parked' && holding.conversation === conversation)
      .sort((a, b) => b.lastUse - a.lastUse)
  }

  /** Whether this very object is still held: ids are lent again after a drop. */
  has(holding: Pick<Holding, 'seq'>): holding is Holding {
    return this.#bySequence.get(holding.seq) === holding
  }

  /** Everything that may be dropped to make room, but these, in the stated order. */
  victims(but: ReadonlySet<unknown> = NOTHING): readonly Holding[] {
    const oldestFirst = (state: HoldingState) =>
      this.all.filter((holding) => holding.state === state && !but.has(holding)).sort((a, b) => a.lastUse - b.lastUse)
    return [...oldestFirst('parked'), ...oldestFirst('idle')]
  }

  /** An empty holding with a free sequence id; null when no id is free. */
  add(conversation: ConversationId, state: HoldingState, salt: CacheSalt = COMMON): Holding | null {
    const seq = this.sequences.take()
    if (seq === null) return null
    const holding = new Holding(conversation, seq, this.cells, state, salt)
    this.#bySequence.set(seq, holding)
    this.touch(holding)
    return holding
  }

  /** Notes that the holding was used just now. */
  touch(holding: Holding): void {
    holding.lastUse = ++this.#clock
    holding.passedBefore = this.#computed
  }

  /** Notes that so many tokens were computed. */
  count(what: keyof Passed, tokens: number): void {
    this.#computed = { ...this.#computed, [what]: this.#computed[what] + tokens }
  }

  /** What was computed since the holding was used. */
  passedSince({ passedBefore }: Holding): Passed {
    const { prompt, generated } = this.#computed
    return { prompt: prompt - passedBefore.prompt, generated: generated - passedBefore.generated }
  }

  /** `to` holds from now on the cells of these entries of `from`, too, before its entry `at`; it must hold none of their positions. */
  lend(from: Holding, entries: Span, to: Holding, at = to.held): void {
    if (length(entries) === 0) return
    const { start, end } = from.positionsOf(entries)
    invariant(
      entries.end <= from.held && (at === 0 || to.position(at - 1) < start) && (at === to.held || to.position(at) >= end),
      `sequence ${from.seq} cannot lend its positions ${start} to ${end} to sequence ${to.seq}`,
    )
    this.memory.tag(from.seq, to.seq, span(start, end))
    to.adopt(from, entries, at)
    this.touch(from)
  }

  /** Takes these entries from the holding; says how many cells that freed. */
  cut(holding: Holding, entries: Span): number {
    if (length(entries) === 0) return 0
    this.memory.untag(holding.seq, holding.positionsOf(entries))
    return holding.cut(entries)
  }

  /** Ends the holding and gives its id back; says how many cells that freed. Never a running one. */
  drop(holding: Holding): number {
    invariant(!holding.running && this.has(holding), `sequence ${holding.seq} cannot be dropped: it is running or already gone`)
    const freed = this.cut(holding, span(0, holding.held))
    this.#bySequence.delete(holding.seq)
    this.sequences.give(holding.seq)
    return freed
  }

  /**
   * Rewrites those cells of a holding that no other holds from the lowest free ones on; says how many. If there are others, that takes a free
   * sequence id: 0 where there is none.
   */
  compact(holding: Holding): number {
    const { alone } = holding
    const count = alone.reduce((sum, stretch) => sum + length(stretch), 0)
    if (count === 0) return 0
    if (count === holding.held) return this.#rewrite(holding)
    const apart = this.add(holding.conversation, 'scratch', holding.salt)
    if (apart === null) return 0
    for (const stretch of alone) this.lend(holding, stretch, apart)
    for (const stretch of [...alone].reverse()) this.cut(holding, stretch)
    const rewritten = this.#rewrite(apart)
    let at = 0
    for (const stretch of rewritten === 0 ? [] : alone) {
      this.lend(apart, span(at, at + length(stretch)), holding, stretch.start)
      at += length(stretch)
    }
    apart.state = 'parked'
    this.drop(apart)
    return rewritten
  }

  /** Moves the entries of a holding, which shares no cell, to positions without gaps; says by how many positions it became shorter. */
  closeGaps(holding: Holding): number {
    if (!this.memory.canShift) return 0
    const before = holding.next
    for (let entry = 0; entry < holding.held;) {
      const run = span(entry, holding.endOfRun(entry))
      const gap = holding.position(entry) - entry
      if (gap > 0) {
        this.memory.shift(holding.seq, holding.positionsOf(run), -gap)
        holding.shift(run, -gap)
      }
      entry = run.end
    }
    return before - holding.next
  }

  /** Of a holding that shares no cell. */
  #rewrite(holding: Holding): number {
    const { held, seq } = holding
    const state = this.memory.saveSequence(seq, { checksum: false })
    this.memory.untag(seq, holding.span)
    // Its own cells were just freed, so there is room; if it cannot be loaded all the same, the books must say that nothing is held.
    if (!this.memory.loadSequence(seq, state, { verify: false })) {
      holding.cut(span(0, held))
      return 0
    }
    if (held === this.cells.used) this.cells.gathered()
    return held
  }

  /** Distinct cells tagged by the holdings that `which` picks, and these. */
  cellsOf(which: (holding: Holding) => boolean, more: readonly Int32Array[] = []): number {
    const seen = new Uint8Array(this.cells.total)
    let count = 0
    for (const cells of [...more, ...this.all.filter(which).map((holding) => holding.cells)])
      for (const cell of cells) {
        if (seen[cell] === 0) count++
        seen[cell] = 1
      }
    return count
  }
}
