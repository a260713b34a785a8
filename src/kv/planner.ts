/** Owns what plans are made from: who may lend, what limits them, and whether there is a sequence to work in. */
import type { Attic } from './attic.js'
import type { AttentionScores } from './blend.js'
import { EXACT, type Terms } from './contract.js'
import type { Holder } from './holder.js'
import type { Holding } from './holding.js'
import type { Holdings } from './holdings.js'
import type { Lenders } from './part.js'
import { needsScratch, neededBy, planStep, type Plan } from './plan.js'
import { recomputeReason } from './recompute.js'
import { withoutContracts, type Shown } from './shown.js'

export interface PlannerOptions {
  /** Positions the model was trained on; a splice that would go beyond falls back to `exact`. Default: no limit. */
  readonly positions?: number
  /** For `blend` with a ratio. Default: none. */
  readonly attention?: AttentionScores
}

export class Planner {
  constructor(
    private readonly holdings: Holdings,
    private readonly attic: Attic,
    private readonly options: PlannerOptions,
  ) {}

  /** See KvCache.plan. */
  plan(own: Holding, shown: Shown, terms: Terms, without: ReadonlyMap<Holder, string> = new Map()): Plan {
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
    const reason = `all ${this.holdings.sequences.total} sequences of the context are taken, and a splice needs one to work in`
    const exact = { ...terms, ...EXACT }
    return { ...planStep(own, withoutContracts(shown), lenders, { terms: exact }), asked: plan.asked, fallback: reason, without }
  }

  /** See LedgerEntry.recomputeReason. @param before the unedited prompt that the conversation's last step was made from */
  recomputeReason(own: Holding, plan: Plan, before: Int32Array | null): string | null {
    return recomputeReason(own, plan, this.#lenders(own, plan.without), before)
  }

  #lenders({ conversation }: Holding, without?: ReadonlyMap<Holder, string>): Lenders {
    const stored = this.attic.all.filter((each) => without?.has(each) !== true)
    return {
      parked: [...this.holdings.parked(conversation), ...stored.filter((each) => each.conversation === conversation)],
      others: [
        ...this.holdings.all.filter((holding) => holding.conversation !== conversation && holding.state !== 'scratch'),
        ...stored.filter((each) => each.conversation !== conversation),
      ],
    }
  }

  #canAdd(own: Holding, plan: Plan): boolean {
    const { used, total } = this.holdings.sequences
    return used < total || this.holdings.victims(neededBy(own, plan)).length > 0
  }
}
