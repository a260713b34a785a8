/** The common part of both caches: the sequences of each conversation on the device and in lower tiers, eviction, and the ledger. */
import { invariant } from '../core/errors.js'
import type { ConversationId } from '../core/ids.js'
import type { Span } from '../core/span.js'
import { Evictor, type Reservation } from './eviction.js'
import type { LedgerEntry } from './ledger.js'
import { OffloadTiers } from './offload.js'
import type { KvMemory } from './ports.js'
import type { Plan } from './plan/plan.js'
import type { Prompt } from './prompt.js'
import { type Residency, residencyOf } from './residency.js'
import type { LiveSequence, Sequence } from './sequence.js'
import { type ConversationRecord, Conversations, SequenceTable } from './sequence-table.js'
import type { Step } from './step.js'
import type { OpenedSequence } from './step-cache.js'
import type { CacheSalt } from './tenant-salts.js'

export abstract class CacheBase {
  protected readonly table: SequenceTable
  protected readonly conversations = new Conversations()
  protected readonly evictor: Evictor

  /** @param memory An empty memory. No other object may change it. */
  constructor(
    protected readonly memory: KvMemory,
    protected readonly offload = new OffloadTiers({}),
  ) {
    this.table = new SequenceTable(memory)
    this.evictor = new Evictor(this.table, this.conversations, (victim, sparing) => this.keep(victim, sparing))
  }

  /**
   * Saves an evicted sequence in a lower tier. Returns false when that is impossible, for example because memory is short. With `sparing`,
   * also returns false when another saved sequence would be dropped for it.
   */
  protected abstract keep(victim: Sequence, sparing: boolean): boolean

  /** Cleans up at the end of a step, before the step's ledger entry is made. */
  protected abstract ending(step: Step, own: Sequence, outcome: 'done' | 'cancelled'): void

  /**
   * Whether later steps are compared with the prompt of this cancelled step. True if all of its prompt was computed, and no text was
   * forgotten since the last finished step.
   */
  protected keepsCancelled(step: Step, { forgets }: ConversationRecord): boolean {
    return step.due === null && !forgets
  }

  open(conversation: ConversationId, salt?: CacheSalt): OpenedSequence {
    return this.evictor.open(conversation, salt)
  }

  fits(sequence: LiveSequence, plan: Plan): boolean {
    return this.evictor.fits(this.own(sequence), plan)
  }

  reserve(count: number): Reservation {
    return this.evictor.reserve(count)
  }

  async leave(): Promise<void> {
    if (this.offload.open) await this.evictor.leave(this.offload)
  }

  finish(step: Step, outcome: 'done' | 'cancelled', pending: number, last = false): LedgerEntry {
    const started = performance.now()
    const own = this.own(step.sequence)
    const record = this.conversations.get(own.conversation)
    invariant(record !== undefined && own.running && !step.ended, `a step of conversation ${own.conversation} was finished twice`)
    this.ending(step, own, outcome)
    step.spend('cache', performance.now() - started)
    const inherited = this.conversations.inherited(own.conversation)
    const entry = step.entry(record.ledger.length, outcome, pending, record.before, inherited)
    step.ended = true
    step.compared = record.before !== null || inherited !== null
    own.state = 'idle'
    this.table[last ? 'retire' : 'touch'](own)
    record.ledger.push(entry)
    if (outcome === 'done') {
      record.before = step.left
      record.forgets = false
    } else if (this.keepsCancelled(step, record)) record.before = step.left
    return entry
  }

  forget(conversation: ConversationId): void {
    const running = this.conversations.live(conversation)?.running ?? false
    invariant(!running, `conversation ${conversation} cannot be forgotten while a step is running`)
    for (const sequence of this.table.all) if (sequence.conversation === conversation) this.table.drop(sequence)
    this.offload.forget(conversation)
    this.conversations.delete(conversation)
  }

  async erase(conversation: ConversationId): Promise<void> {
    this.forget(conversation)
    await this.offload.settle()
  }

  live(conversation: ConversationId): LiveSequence | null {
    return this.conversations.live(conversation)
  }

  prompt(conversation: ConversationId): Prompt | null {
    const record = this.conversations.get(conversation)
    return record === undefined || record.forgets ? null : record.before
  }

  compact(conversation: ConversationId): number {
    const own = this.conversations.live(conversation)
    return own === null || own.running ? 0 : this.table.uncounted(() => this.table.compact(own))
  }

  ledger(conversation: ConversationId): readonly LedgerEntry[] {
    return this.conversations.get(conversation)?.ledger ?? []
  }

  residency(conversation: ConversationId, base: Int32Array, stretches: readonly Span[]): readonly Residency[] {
    const own = this.table.all.filter((each) => each.conversation === conversation && each.state !== 'scratch')
    const stored = this.offload.all.filter((each) => each.conversation === conversation)
    return residencyOf(base, stretches, [
      ...own.map((holder) => ({ holder, where: holder.state === 'parked' ? ('parked' as const) : ('live' as const) })),
      ...stored.map((holder) => ({ holder, where: holder.tier })),
    ])
  }

  /** Returns the sequence behind a handle. A handle to a dropped live sequence is the caller's mistake. */
  protected own(sequence: LiveSequence): Sequence {
    invariant(this.table.has(sequence), `the live sequence of conversation ${sequence.conversation} was dropped; open it again`)
    return sequence
  }
}
