/** Owns making room on the device: who gives way, and on which step's account that goes. */
import { invariant, KvfoldError } from '../core/errors.js'
import type { ConversationId } from '../core/ids.js'
import { type CacheSalt, COMMON, sameSalt } from './tenant-salts.js'
import type { OffloadTiers } from './offload.js'
import type { Conversations, SequenceTable } from './sequence-table.js'
import type { Sequence, SequenceState } from './sequence.js'
import type { Step } from './step.js'

/** Whether so many cells are free now, and how many were freed for that. */
export type Reservation =
  { readonly kind: 'ok'; readonly evicted: number } | { readonly kind: 'full'; readonly needed: number; readonly free: number }

export class Evictor {
  /** Cells freed by evictions, and milliseconds spent on moves between tiers, that are on no step's account yet. */
  #evicted = 0
  #moved = 0
  #milliseconds = 0

  /** @param keep saves what gives way in a lower tier, `sparing` what is there already; false: it was not saved */
  constructor(
    private readonly table: SequenceTable,
    private readonly conversations: Conversations,
    private readonly keep: (victim: Sequence, sparing: boolean) => boolean,
  ) {}

  /** Milliseconds that were spent on moves and are on no step's account yet. */
  get spent(): number {
    return this.#milliseconds
  }

  /** Frees cells, evicting in the stated order; `full`: evicting everything but the running live sequences would not be enough, nothing was evicted. */
  reserve(count: number): Reservation {
    const { cells } = this.table
    if (count <= cells.free) return { kind: 'ok', evicted: 0 }
    if (count > cells.total - this.table.cellsOf(({ running }) => running))
      return { kind: 'full', needed: count, free: cells.free }
    const evicted = this.make(count, this.table.victims())
    invariant(count <= cells.free, `${count} cells were promised and only ${cells.free} are free`)
    return { kind: 'ok', evicted }
  }

  /** Evicts in this order until so many cells are free, as far as that goes; says how many it freed. */
  make(count: number, victims: readonly Sequence[]): number {
    let freed = 0
    for (const victim of victims) {
      if (count <= this.table.cells.free) break
      freed += this.evict(victim)
    }
    return freed
  }

  /** A new sequence; when no sequence id is free, the first of `victims` gives way. Null: there is none. */
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

  /** The conversation's live sequence, a new one if it has none; see KvCache.open. */
  open(
    conversation: ConversationId,
    salt: CacheSalt = COMMON,
  ): { readonly kind: 'live'; readonly sequence: Sequence } | { readonly kind: 'full'; readonly reason: string } {
    const known = this.conversations.live(conversation)
    if (known !== null) {
      refuseOther(known, salt)
      return { kind: 'live', sequence: known }
    }
    const sequence = this.add(conversation, 'idle', this.table.victims(), salt)
    if (sequence === null) {
      const { total } = this.table.sequences
      const reason = `All ${total} sequences of the context are running; wait for one to end, or load the model with more sequences.`
      return { kind: 'full', reason }
    }
    this.conversations.seat(conversation, sequence)
    return { kind: 'live', sequence }
  }

  /** Takes a holding off the device, into another tier if there is one; says how many cells that freed. */
  evict(victim: Sequence): number {
    const started = performance.now()
    if (victim.state === 'idle') this.conversations.views.keep(victim)
    const kept = this.keep(victim, false)
    const freed = this.table.drop(victim)
    this.conversations.unseat(victim)
    if (kept) this.#moved += freed
    else this.#evicted += freed
    this.spend(performance.now() - started)
    return freed
  }

  /** As `evict`, but only if nothing is given up for it in the tiers below; false: it stays. */
  moveOff(victim: Sequence): boolean {
    const started = performance.now()
    const kept = this.keep(victim, true)
    if (kept) {
      if (victim.state === 'idle') this.conversations.views.keep(victim)
      this.#moved += this.table.drop(victim)
      this.conversations.unseat(victim)
    }
    this.spend(performance.now() - started)
    return kept
  }

  /** As `evict`, at a time when no step waits for it: what was moved goes on the account of its own conversation's next step, the time on nobody's. */
  evictUnasked(victim: Sequence): void {
    const before = [this.#evicted, this.#moved, this.#milliseconds] as const
    this.evict(victim)
    this.#book(victim.conversation, this.#moved - before[1])
    ;[this.#evicted, this.#moved, this.#milliseconds] = before
  }

  /**
   * Moves a version off the device if nothing is given up for it in the tiers below; false: it stays. What was moved goes on the account of its
   * conversation's next step; the time is the caller's to book.
   */
  relieve(version: Sequence): boolean {
    if (!this.keep(version, true)) return false
    this.#book(version.conversation, this.table.drop(version))
    return true
  }

  /** Moves everything that no step uses off the device, the longest unused first. */
  async leave(offload: OffloadTiers): Promise<void> {
    for (const victim of this.table.victims()) {
      this.evictUnasked(victim)
      await offload.settle()
    }
  }

  /** Milliseconds that the step which begins next waited for. */
  spend(milliseconds: number): void {
    this.#milliseconds += milliseconds
  }

  /** Puts what is on no step's account yet on this one's, so that everything is counted once. */
  charge(step: Step): void {
    step.evicted += this.#evicted
    step.moved += this.#moved
    step.spend('cache', this.#milliseconds)
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

/** @throws KvfoldError engine/bad-request when the live sequence is another tenant's */
function refuseOther({ conversation, salt }: Sequence, asked: CacheSalt): void {
  if (sameSalt(salt, asked)) return
  throw new KvfoldError('engine/bad-request', `Conversation ${conversation} is another tenant's; use an id of your own.`)
}
