/** Owns bringing sequences that were moved off the device back onto it, in the place of what their conversation no longer shows. */
import { length, span, type Span } from '../core/span.js'
import type { Attic } from './attic.js'
import type { Holding } from './holding.js'
import type { Holdings } from './holdings.js'
import type { Parking } from './parking.js'
import { neededBy, type Plan } from './plan.js'
import type { Room } from './room.js'
import { Stored } from './stored.js'

/** The stored sequences that the plan borrows from, and which of their entries; those first of which it needs the least. */
export function borrowedFrom({ parts }: Plan): ReadonlyMap<Stored, readonly Span[]> {
  const borrowed = new Map<Stored, Span[]>()
  for (const part of parts) {
    if (part.kind !== 'borrow' || !(part.from instanceof Stored)) continue
    const entries = span(part.at, part.at + length(part.span))
    borrowed.set(part.from, [...(borrowed.get(part.from) ?? []), entries])
  }
  // The room for what is not needed is free again before the next one comes.
  const spare = ([{ held }, entries]: [Stored, Span[]]) => held - entries.reduce((sum, each) => sum + length(each), 0)
  return new Map([...borrowed].sort((a, b) => spare(b) - spare(a)))
}

export class Recall {
  /** Tokens that were parked to make room, and are on no step's account yet. */
  #parked = 0

  constructor(
    private readonly holdings: Holdings,
    private readonly attic: Attic,
    private readonly room: Room,
    private readonly parking: Parking,
  ) {}

  /**
   * Puts a stored sequence's values onto the device, as a parked one. Where it does not fit beside them, what the plan takes from the lane is
   * parked and gives way first, then others in the stated order; where all that the plan borrows does not fit together, only what is needed of
   * it stays, and the stored sequence where it is. Says why it cannot be had, or null; then nothing was given up for it, unless its values
   * were refused.
   */
  load(own: Holding, plan: Plan, stored: Stored, state: Uint8Array): string | null {
    const { cells, memory, sequences } = this.holdings
    const needed = neededBy(own, plan)
    const spare = () => this.holdings.victims(needed)
    const borrowed = borrowedFrom(plan)
    const most = cells.total - this.#staying(own, plan)
    if (stored.held > most) return `no room: they take ${stored.held} cells of the context, and only ${most} can be freed`
    if (sequences.used === sequences.total && spare().length === 0)
      return `all ${sequences.total} sequences of the context are taken, and they need one`
    if (stored.held > cells.free) {
      this.#parked += this.parking.parkGone(own, plan)
      this.room.make(stored.held, spare())
    }
    const holding = this.room.add(stored.conversation, 'parked', spare(), own.salt)
    if (holding === null || stored.held > cells.free) {
      if (holding !== null) this.holdings.drop(holding)
      return `all ${sequences.total} sequences of the context are taken, and they need one`
    }
    if (!memory.loadSequence(holding.seq, state, { verify: false })) {
      this.holdings.drop(holding)
      this.attic.drop(stored, true)
      return 'their saved state was damaged, or another model wrote it'
    }
    holding.load(stored.record)
    holding.tier = stored.tier
    const all = [...borrowed.keys()].reduce((sum, { held }) => sum + held, 0)
    if (all <= most) this.attic.drop(stored)
    else this.#trim(holding, borrowed.get(stored) ?? [])
    return null
  }

  /** What was parked to make room since it was last asked for. */
  takeParked(): number {
    const parked = this.#parked
    this.#parked = 0
    return parked
  }

  /** Cells that the step needs, and those of others that run. */
  #staying(own: Holding, plan: Plan): number {
    const needed = neededBy(own, plan)
    const kept = plan.parts.flatMap((part) =>
      part.kind === 'keep' ? [own.cells.subarray(part.at, part.at + length(part.span))] : [],
    )
    return this.holdings.cellsOf((holding) => holding !== own && (holding.running || needed.has(holding)), kept)
  }

  /** Only these entries stay. */
  #trim(holding: Holding, needed: readonly Span[]): void {
    let end = holding.held
    for (const { start, end: next } of [...needed].sort((a, b) => b.start - a.start)) {
      this.holdings.cut(holding, span(next, end))
      end = start
    }
    this.holdings.cut(holding, span(0, end))
  }
}
