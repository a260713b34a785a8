/** Owns what plans are made from: who may lend, what limits them, and whether there is a sequence to work in. */
import { length } from '../core/span.js'
import type { OffloadTiers } from './offload.js'
import { type AttentionScores, EXACT, type Lenders, type Terms } from './plan-parts.js'
import { neededBy, needsScratch, type Plan, planStep, turnedIn } from './plan.js'
import { type Prompt, withoutContracts } from './prompt.js'
import { recomputeReason } from './recompute-reason.js'
import type { Conversations, SequenceTable } from './sequence-table.js'
import { type HeldSequence, Sequence } from './sequence.js'

export interface PlannerOptions {
  /** Positions the model was trained on; a splice that would go beyond falls back to `exact`. Default: no limit. */
  readonly positions?: number
  /** For `blend` with a ratio. Default: none. */
  readonly attention?: AttentionScores
}

export class Planner {
  constructor(
    private readonly table: SequenceTable,
    private readonly conversations: Conversations,
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
    const made = (fixed: string | null) =>
      planStep(own, shown, lenders, {
        terms,
        fixed,
        ...(positions === undefined ? {} : { positions }),
        ...(scores === null ? {} : { scores }),
      })
    const wanted = made(this.#fixed([own, ...lenders.parked]))
    const short = turnedIn(wanted) === 0 ? null : this.#shortOf(own, wanted)
    const plan = { ...(short === null ? wanted : made(short)), without }
    if (!needsScratch(plan) || this.#canAdd(own, plan)) return plan
    const reason = `all ${this.table.sequences.total} sequences of the context are taken, and a splice needs one to work in`
    const exact = { ...terms, ...EXACT }
    return {
      ...planStep(own, withoutContracts(shown), lenders, { terms: exact, fixed: reason }),
      asked: plan.asked,
      fallback: reason,
      without,
    }
  }

  /** See PlanOptions. */
  #fixed(holders: readonly HeldSequence[]): string | null {
    if (!this.table.memory.canShift) return 'the keys of this model cannot be turned to other positions'
    if (holders.every((holder) => !(holder instanceof Sequence) || holder.settled)) return null
    return 'they were moved just now, and nothing was computed since'
  }

  /** Why the plan's copies cannot be made; null when they can. */
  #shortOf(own: Sequence, plan: Plan): string | null {
    if (!this.#canAdd(own, plan)) return 'no sequence is left to copy them with'
    let coming = turnedIn(plan)
    const staying: Int32Array[] = []
    for (const part of plan.parts) {
      if (part.kind !== 'keep' && part.kind !== 'borrow') continue
      const holder = part.kind === 'keep' ? own : part.from
      if (holder instanceof Sequence) staying.push(holder.cells.subarray(part.at, part.at + length(part.span)))
      else coming += length(part.span)
    }
    const { cells } = this.table
    const most = cells.total - this.table.cellsOf((sequence) => sequence !== own && sequence.running, staying)
    return coming > most ? `copies take ${coming} cells, and only ${most} can be freed` : null
  }

  /** See LedgerEntry.recomputeReason. @param before the unedited prompt that the conversation's last step was made from */
  recomputeReason(own: Sequence, plan: Plan, before: Int32Array | null): string | null {
    return recomputeReason(own, plan, this.#lenders(own, plan.without), before)
  }

  #lenders({ conversation }: Sequence, without?: ReadonlyMap<HeldSequence, string>): Lenders {
    const stored = this.offload.all.filter((each) => without?.has(each) !== true)
    const kin = this.conversations.kin(conversation)
    const rank = (each: HeldSequence) => kin.indexOf(each.conversation)
    const others = [
      ...this.table.all.filter((sequence) => sequence.conversation !== conversation && sequence.state !== 'scratch'),
      ...stored.filter((each) => each.conversation !== conversation),
    ]
    return {
      parked: [
        ...this.table.parked(conversation),
        ...stored.filter((each) => each.conversation === conversation),
        ...others.filter((each) => rank(each) >= 0).sort((a, b) => rank(a) - rank(b)),
      ],
      others: others.filter((each) => rank(each) < 0),
    }
  }

  #canAdd(own: Sequence, plan: Plan): boolean {
    const { used, total } = this.table.sequences
    return used < total || this.table.victims(neededBy(own, plan)).length > 0
  }
}
