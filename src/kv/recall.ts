/** Owns bringing sequences that were moved off the device back onto it. */
import type { Attic } from './attic.js'
import type { Holding } from './holding.js'
import type { Holdings } from './holdings.js'
import { neededBy, type Plan } from './plan.js'
import type { Room } from './room.js'
import { Stored } from './stored.js'

/** The stored sequences that the plan borrows from. */
export const borrowedFrom = ({ parts }: Plan): ReadonlySet<Stored> =>
  new Set(parts.flatMap((part) => (part.kind === 'borrow' && part.from instanceof Stored ? [part.from] : [])))

export class Recall {
  constructor(
    private readonly holdings: Holdings,
    private readonly attic: Attic,
    private readonly room: Room,
  ) {}

  /** Puts a stored sequence's values onto the device, as a parked one; false when there is no room, or they were refused. */
  load(own: Holding, plan: Plan, stored: Stored, state: Uint8Array): boolean {
    const { cells, memory } = this.holdings
    const spare = () => this.holdings.victims(neededBy(own, plan))
    this.room.make(stored.held, spare())
    const holding = stored.held <= cells.free ? this.room.add(stored.conversation, 'parked', spare(), own.salt) : null
    if (holding === null) return false
    if (!memory.loadSequence(holding.seq, state, { verify: false })) {
      this.holdings.drop(holding)
      this.attic.drop(stored, true)
      return false
    }
    holding.load(stored.record)
    holding.tier = stored.tier
    this.attic.drop(stored)
    return true
  }
}
