/** Owns moving off the device what nobody has used while others computed: every token of theirs passes over its cells. */
import type { OffloadTiers } from './attic.js'
import { FEWEST, isOutstaying } from './burden.js'
import type { Conversations } from './conversations.js'
import type { CostModel } from './cost-model.js'
import type { HeldSequence } from './holder.js'
import type { Sequence } from './holding.js'
import type { SequenceTable } from './holdings.js'
import { aloneIn } from './parking.js'
import type { Evictor } from './room.js'

export interface IdlingOptions {
  /** What decodes and copies cost; null: nobody knows. */
  readonly costs: { readonly model: CostModel | null }
  /** Cells that must become free for anything to be moved unasked. Default: FEWEST. */
  readonly fewest?: number
}

/**
 * A conversation that comes back at once finds its cells in place; one that stays away finds them in the tiers below, and pays for a copy. It
 * goes when it has cost the others as much as that (burden.ts), or at once if it was asked for a single time: most of those never come back.
 * Only where nothing is given up for it below. A spliced lane stays: it is made exact where it is (engine/mending.ts).
 */
export class IdleOffload {
  constructor(
    private readonly table: SequenceTable,
    private readonly conversations: Conversations,
    private readonly offload: OffloadTiers,
    private readonly evictor: Evictor,
    private readonly options: IdlingOptions,
  ) {}

  /** Moves what is due, on the account of the step that begins. The cells of that step take the places. @param needed stays */
  relieve(needed: ReadonlySet<HeldSequence>): void {
    const { fewest = FEWEST } = this.options
    if (!this.offload.open || this.table.cells.used < fewest) return
    const due = this.table.victims(needed).filter((victim) => this.#isDue(victim))
    if (due.reduce((sum, victim) => sum + aloneIn(victim), 0) < fewest) return
    for (const victim of due) if (!this.offload.hasRoom(victim.held) || !this.evictor.moveOff(victim)) break
  }

  #isDue(victim: Sequence): boolean {
    const { held, state, conversation } = victim
    const freed = aloneIn(victim)
    if (2 * freed <= held) return false
    if (state === 'idle' && victim.exact < held) return false
    if (state === 'idle' && this.conversations.get(conversation)?.ledger.length === 1) return true
    return isOutstaying({ held, freed }, this.table.passedSince(victim), this.options.costs.model)
  }
}
