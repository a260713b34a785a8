/** Owns computing tokens in the middle of a live sequence, which llama.cpp refuses: in a sequence of their own, that holds what they see and nothing else. */
import { invariant } from '../core/errors.js'
import type { SeqId } from '../core/ids.js'
import { span } from '../core/span.js'
import type { Evictor } from './eviction.js'
import { neededBy, needsScratch, type Plan } from './plan.js'
import type { SequenceTable } from './sequence-table.js'
import type { Sequence } from './sequence.js'
import type { Step } from './step.js'

export class Insertion {
  constructor(
    private readonly table: SequenceTable,
    private readonly evictor: Evictor,
  ) {}

  /** Takes a sequence for the step if its plan needs one. */
  open(step: Step, own: Sequence, plan: Plan): void {
    if (!needsScratch(plan)) return
    step.scratch = this.evictor.add(own.conversation, 'scratch', this.table.victims(neededBy(own, plan)), own.salt)
    invariant(step.scratch !== null, 'no sequence was left for a plan that needs one')
  }

  /** Where tokens are computed that go into the step's live sequence at `position`: it comes to hold what the live sequence holds before that. */
  seat({ sequence, scratch }: Step, position: number): SeqId {
    invariant(scratch !== null, 'tokens in the middle of a lane have no scratch sequence')
    this.table.lend(sequence, span(sequence.atPosition(scratch.next), sequence.atPosition(position)), scratch)
    return scratch.seq
  }

  /** Tokens were computed there; the live sequence holds them, too, from now on. */
  enter({ sequence, scratch }: Step, tokens: Int32Array, keys: Int32Array): void {
    invariant(scratch !== null, 'tokens in the middle of a lane have no scratch sequence')
    const { held, next } = scratch
    scratch.append(tokens, keys)
    this.table.lend(scratch, span(held, scratch.held), sequence, sequence.atPosition(next))
  }

  /** The step needs none any more. */
  close(step: Step): void {
    const { scratch } = step
    if (scratch === null) return
    step.scratch = null
    scratch.state = 'parked'
    this.table.drop(scratch)
  }
}
