/** Makes room on the device by evicting sequences. Counts the evicted cells and the time until a step takes over the counts. */
import { invariant, KvfoldError } from '../core/errors.js'
import type { ConversationId } from '../core/ids.js'
import { length, span } from '../core/span.js'
import { type CacheSalt, COMMON, sameSalt } from './tenant-salts.js'
import type { OffloadTiers } from './offload.js'
import type { Conversations, SequenceTable } from './sequence-table.js'
import type { Plan } from './plan/plan.js'
import { Sequence, type SequenceState } from './sequence.js'
import type { Step } from './step.js'

/** Whether the requested cells are free, and how many cells were evicted for them. */
export type Reservation =
  { readonly kind: 'ok'; readonly evicted: number } | { readonly kind: 'full'; readonly needed: number; readonly free: number }

export class Evictor {
  /** Counts that no step has taken over yet: cells lost, cells moved to a lower tier, and milliseconds spent on moves. */
  #evicted = 0
  #moved = 0
  #milliseconds = 0
  /** Milliseconds of all evictions so far; never reset. */
  #evicting = 0

  /**
   * @param keep saves an evicted sequence in a lower tier; with `sparing` only if the tier drops no saved sequence for it. Returns false
   * when it was not saved.
   */
  constructor(
    private readonly table: SequenceTable,
    private readonly conversations: Conversations,
    private readonly keep: (victim: Sequence, sparing: boolean) => boolean,
  ) {}

  /** Milliseconds spent on moves that no step has taken over yet. */
  get spent(): number {
    return this.#milliseconds
  }

  /** Milliseconds of all evictions so far; it only grows. */
  get evicting(): number {
    return this.#evicting
  }

  /**
   * Makes sure that `count` cells are free, evicting in the order stated at SequenceTable. Returns `full`, and evicts nothing, if there
   * would not be enough even without all parked and idle sequences.
   */
  reserve(count: number): Reservation {
    const { cells } = this.table
    if (count <= cells.free) return { kind: 'ok', evicted: 0 }
    if (count > cells.total - this.table.cellsOf(({ running }) => running))
      return { kind: 'full', needed: count, free: cells.free }
    const evicted = this.make(count, this.table.victims())
    invariant(count <= cells.free, `${count} cells were reserved, but only ${cells.free} are free`)
    return { kind: 'ok', evicted }
  }

  /** Whether the plan's new cells fit beside the cells that it keeps and those of running steps. Evicts nothing. */
  fits(own: Sequence, { parts }: Plan): boolean {
    const { cells } = this.table
    let coming = 0
    const staying: Int32Array[] = []
    for (const part of parts) {
      const holder = part.kind === 'keep' ? own : part.kind === 'borrow' ? part.from : null
      if (part.kind !== 'compute' && holder instanceof Sequence)
        staying.push(holder.cells.subarray(part.at, part.at + length(part.span)))
      else coming += length(part.span)
    }
    return coming <= cells.total - this.table.cellsOf(({ running }) => running, staying)
  }

  /** Evicts in the given order until `count` cells are free or no victim is left. Returns how many cells it freed. */
  make(count: number, victims: readonly Sequence[]): number {
    let freed = 0
    for (const victim of victims) {
      if (count <= this.table.cells.free) break
      freed += this.evict(victim)
    }
    return freed
  }

  /** Adds a new sequence. When no sequence id is free, evicts the first of `victims`. Returns null when there is no victim either. */
  add(
    conversation: ConversationId,
    state: SequenceState,
    victims: readonly Sequence[],
    salt: CacheSalt = COMMON,
  ): Sequence | null {
    const [victim] = victims
    const { sequences } = this.table
    if (sequences.used === sequences.total && victim !== undefined) this.evict(victim)
    return this.table.add(conversation, state, salt)
  }

  /** Returns the conversation's live sequence, a new one if it has none; see CacheSteps.open. */
  open(
    conversation: ConversationId,
    salt: CacheSalt = COMMON,
  ): { readonly kind: 'live'; readonly sequence: Sequence } | { readonly kind: 'full'; readonly reason: string } {
    const record = this.conversations.get(conversation)
    if (record !== undefined) refuseOther(conversation, record.salt, salt)
    const known = this.conversations.live(conversation)
    if (known !== null) return { kind: 'live', sequence: known }
    const sequence = this.add(conversation, 'idle', this.table.victims(), salt)
    if (sequence === null) {
      const { total } = this.table.sequences
      const reason = `All ${total} sequences of the context are running; wait for one to end, or load the model with more sequences.`
      return { kind: 'full', reason }
    }
    this.conversations.seat(conversation, sequence)
    return { kind: 'live', sequence }
  }

  /** Takes a sequence off the device, into a lower tier if possible. Returns how many cells that freed. */
  evict(victim: Sequence): number {
    const started = performance.now()
    if (victim.state === 'idle') this.conversations.views.keep(victim)
    // Cells whose keys the next decode must still rotate cannot be saved. Drop them, and save those before them.
    const lost = this.table.cut(victim, span(victim.settledBeginning, victim.held))
    const kept = this.keep(victim, false)
    const freed = this.table.drop(victim)
    this.conversations.unseat(victim)
    this.#evicted += lost
    if (kept) this.#moved += freed
    else this.#evicted += freed
    const took = performance.now() - started
    this.#evicting += took
    this.spend(took)
    return lost + freed
  }

  /**
   * Drops a sequence from the device after a lower tier has stored it. The cells of a parked version count for its conversation's next
   * step, those of an idle conversation for the next step that commits or begins.
   */
  moved(victim: Sequence): void {
    if (victim.state === 'idle') this.conversations.views.keep(victim)
    const freed = this.table.drop(victim)
    this.conversations.unseat(victim)
    if (victim.state === 'idle') this.#moved += freed
    else this.#book(victim.conversation, freed)
  }

  /**
   * Evicts a sequence although no step needs its room. Moved cells count for the next step of the victim's own conversation. Lost cells and
   * the time count for no step.
   */
  evictUnasked(victim: Sequence): void {
    const before = [this.#evicted, this.#moved, this.#milliseconds] as const
    this.evict(victim)
    this.#book(victim.conversation, this.#moved - before[1])
    ;[this.#evicted, this.#moved, this.#milliseconds] = before
  }

  /**
   * Moves a parked version to a lower tier, but only if no other sequence is dropped there for it. Returns false when it stays. Its cells
   * count for its conversation's next step. The caller records the time.
   */
  relieve(version: Sequence): boolean {
    if (!this.keep(version, true)) return false
    this.#book(version.conversation, this.table.drop(version))
    return true
  }

  /** Moves all sequences that no step uses off the device, in the order stated at SequenceTable. */
  async leave(offload: OffloadTiers): Promise<void> {
    for (const victim of this.table.victims()) {
      // While another sequence was written to disk, this one may have been dropped.
      if (!this.table.has(victim)) continue
      this.evictUnasked(victim)
      await offload.settle()
    }
  }

  /** Records milliseconds for the step that commits or begins next. */
  spend(milliseconds: number): void {
    this.#milliseconds += milliseconds
  }

  /** Adds the counts that no step has taken over yet to this step, and resets them. */
  charge(step: Step): void {
    step.evicted += this.#evicted
    step.moved += this.#moved
    step.spend('cache', this.#milliseconds)
    step.copying += this.table.takeCopied()
    this.#evicted = 0
    this.#moved = 0
    this.#milliseconds = 0
    const record = this.conversations.get(step.sequence.conversation)
    if (record === undefined) return
    step.moved += record.moved
    record.moved = 0
  }

  #book(conversation: ConversationId, moved: number): void {
    const record = this.conversations.get(conversation)
    if (record !== undefined) record.moved += moved
  }
}

/** @throws KvfoldError engine/bad-request when the conversation is another tenant's */
function refuseOther(conversation: ConversationId, salt: CacheSalt, asked: CacheSalt): void {
  if (sameSalt(salt, asked)) return
  throw new KvfoldError('engine/bad-request', `Conversation ${conversation} belongs to another tenant; use an id of your own.`)
}
