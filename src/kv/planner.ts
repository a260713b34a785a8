/** Owns what plans are made from: who may lend, what limits them, and whether there is a sequence to work in. */
import type { OffloadTiers } from './attic.js'
import type { AttentionScores } from './blend.js'
import { EXACT, type Terms } from './contract.js'
import type { HeldSequence } from './holder.js'
import type { Sequence } from './holding.js'
import type { SequenceTable } from './holdings.js'
import type { Lenders } from './part.js'
import { needsScratch, neededBy, planStep, type Plan } from './plan.js'
import { recomputeReason } from './recompute.js'
import { withoutContracts, type Prompt } from './shown.js'

export interface PlannerOptions {
  /** Positions the model was trained on; a splice that would go beyond falls back to `exact`. Default: no limit. */
  readonly positions?: number
  /** For `blend` with a ratio. Default: none. */
  readonly attention?: AttentionScores
}

export class Planner {
  constructor(
    private readonly table: SequenceTable,
    private readonly offload: OffloadTiers,
    private readonly options: PlannerOptions,
  ) {}

  /** See KvCache.plan. */
  plan(own: Sequence, shown: Prompt, terms: Terms, without: ReadonlyMap<HeldSequence, string> = new Map()): Plan {
    const { conversation } = own
    const lenders = this.#lenders(own, without)
    const { positions, attention } = this.options
    const blends = terms.contract === 'blend' || shown.origin?.holes.some((hole) => hole.contract === 'blend') === true
    const scores = blends ? (attention?.of(conversation, shown) ?? null) : null
    const made = planStep(own, shown, lenders, {
      terms,
      ...(positions === undefined ? {} : { positions }),
      ...(scores === null ? {} : { scores }),
    })
    const plan = { ...made, without }
    if (!needsScratch(plan) || this.#canAdd(own, plan)) return plan
    const reason = `all ${this.table.sequences.total} sequences of the context are taken, and a splice needs one to work in`
    const exact = { ...terms, ...EXACT }
    return { ...planStep(own, withoutContracts(shown), lenders, { terms: exact }), asked: plan.asked, fallback: reason, without }
  }

  /** See LedgerEntry.recomputeReason. @param before the unedited prompt that the conversation's last step was made from */
  recomputeReason(own: Sequence, plan: Plan, before: Int32Array | null): string | null {
    return recomputeReason(own, plan, this.#lenders(own, plan.without), before)
  }

  #lenders({ conversation }: Sequence, without?: ReadonlyMap<HeldSequence, string>): Lenders {
    const stored = this.offload.all.filter((each) => without?.has(each) !== true)
    return {
      parked: [...this.table.parked(conversation), ...stored.filter((each) => each.conversation === conversation)],
      others: [
        ...this.table.all.filter((sequence) => sequence.conversation !== conversation && sequence.state !== 'scratch'),
        ...stored.filter((each) => each.conversation !== conversation),
      ],
    }
  }

  #canAdd(own: Sequence, plan: Plan): boolean {
    const { used, total } = this.table.sequences
    return used < total || this.table.victims(neededBy(own, plan)).length > 0
  }
}
