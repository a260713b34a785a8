/** Owns computing tokens in the middle of a lane, which llama.cpp refuses: in a sequence of their own, that holds what they see and nothing else. */
import { invariant } from '../core/errors.js'
import type { SeqId } from '../core/ids.js'
import { span } from '../core/span.js'
import type { Holding } from './holding.js'
import type { Holdings } from './holdings.js'
import { neededBy, needsScratch, type Plan } from './plan.js'
import type { Room } from './room.js'
import type { Step } from './step.js'

export class Middle {
  constructor(
    private readonly holdings: Holdings,
    private readonly room: Room,
  ) {}

  /** Takes a sequence for the step if its plan needs one. */
  open(step: Step, own: Holding, plan: Plan): void {
    if (!needsScratch(plan)) return
    step.scratch = this.room.add(own.conversation, 'scratch', this.holdings.victims(neededBy(own, plan)), own.salt)
    invariant(step.scratch !== null, 'no sequence was left for a plan that needs one')
  }

  /** Where tokens are computed that go into the step's lane at `position`: it comes to hold what the lane holds before that. */
  seat({ lane, scratch }: Step, position: number): SeqId {
    invariant(scratch !== null, 'tokens in the middle of a lane have no scratch sequence')
    this.holdings.lend(lane, span(lane.atPosition(scratch.next), lane.atPosition(position)), scratch)
    return scratch.seq
  }

  /** Tokens were computed there; the lane holds them, too, from now on. */
  enter({ lane, scratch }: Step, tokens: Int32Array, keys: Int32Array): void {
    invariant(scratch !== null, 'tokens in the middle of a lane have no scratch sequence')
    const { held, next } = scratch
    scratch.append(tokens, keys)
    this.holdings.lend(scratch, span(held, scratch.held), lane, lane.atPosition(next))
  }

  /** The step needs none any more. */
  close(step: Step): void {
    const { scratch } = step
    if (scratch === null) return
    step.scratch = null
    scratch.state = 'parked'
    this.holdings.drop(scratch)
  }
}
