/** Owns bringing sequences that were moved off the device back onto it, in the place of what their conversation no longer shows. */
import { length, span, type Span } from '../core/span.js'
import type { Evictor } from './eviction.js'
import { OffloadedSequence, type OffloadTiers } from './offload.js'
import type { Parking } from './parking.js'
import { neededBy, type Plan } from './plan.js'
import type { SequenceTable } from './sequence-table.js'
import type { HeldSequence, Sequence } from './sequence.js'

/** The stored sequences that the plan borrows from, and which of their entries; those first of which it needs the least. */
export function borrowedFrom({ parts }: Plan): ReadonlyMap<OffloadedSequence, readonly Span[]> {
  const borrowed = new Map<OffloadedSequence, Span[]>()
  for (const part of parts) {
    if ((part.kind !== 'borrow' && part.kind !== 'turn') || !(part.from instanceof OffloadedSequence)) continue
    const entries = span(part.at, part.at + length(part.span))
    borrowed.set(part.from, [...(borrowed.get(part.from) ?? []), entries])
  }
  // The room for what is not needed is free again before the next one comes.
  const spare = ([{ held }, entries]: [OffloadedSequence, Span[]]) => held - entries.reduce((sum, each) => sum + length(each), 0)
  return new Map([...borrowed].sort((a, b) => spare(b) - spare(a)))
}

export class Reloader {
  /** Tokens that were parked to make room, and are on no step's account yet. */
  #parked = 0
  /** What was loaded for steps that are being prepared, and for whose. */
  readonly #loaded = new Map<HeldSequence, Sequence>()

  constructor(
    private readonly table: SequenceTable,
    private readonly offload: OffloadTiers,
    private readonly evictor: Evictor,
    private readonly parking: Parking,
  ) {}

  /**
   * Puts a stored sequence's values onto the device, as a parked one. Where it does not fit beside them, what the plan takes from the live sequence is
   * parked and gives way first, then others in the stated order; where all that the plan borrows does not fit together, only what is needed of
   * it stays, and the stored sequence where it is. What was loaded for a step in preparation never gives way, so that two that do not fit beside
   * each other cannot take turns for ever: every load holds one sequence id more. Says why it cannot be had, or null; then nothing was given up
   * for it, unless its values were refused.
   */
  load(own: Sequence, plan: Plan, stored: OffloadedSequence, state: Uint8Array): string | null {
    const { cells, memory, sequences } = this.table
    const needed = new Set([...neededBy(own, plan), ...this.#loaded.keys()])
    const spare = () => this.table.victims(needed)
    const borrowed = borrowedFrom(plan)
    const most = cells.total - this.#staying(own, plan, needed)
    if (stored.held > most) return `no room: they take ${stored.held} cells of the context, and only ${most} can be freed`
    if (sequences.used === sequences.total && spare().length === 0)
      return `all ${sequences.total} sequences of the context are taken, and they need one`
    if (stored.held > cells.free) {
      this.#parked += this.parking.parkGone(own, plan)
      this.evictor.make(stored.held, spare())
    }
    const sequence = this.evictor.add(stored.conversation, 'parked', spare(), own.salt)
    if (sequence === null || stored.held > cells.free) {
      if (sequence !== null) this.table.drop(sequence)
      return `all ${sequences.total} sequences of the context are taken, and they need one`
    }
    if (!memory.loadSequence(sequence.seq, state, { verify: false })) {
      this.table.drop(sequence)
      this.offload.drop(stored, true)
      return 'their saved state was damaged, or another model wrote it'
    }
    sequence.load(stored.record)
    sequence.tier = stored.tier
    this.#loaded.set(sequence, own)
    const all = [...borrowed.keys()].reduce((sum, { held }) => sum + held, 0)
    if (all <= most) this.offload.drop(stored)
    else this.#trim(sequence, borrowed.get(stored) ?? [])
    return null
  }

  /** The step is prepared: what was loaded for it may give way again. */
  end(own: Sequence): void {
    for (const [sequence, by] of this.#loaded) if (by === own) this.#loaded.delete(sequence)
  }

  /** What was parked to make room since it was last asked for. */
  takeParked(): number {
    const parked = this.#parked
    this.#parked = 0
    return parked
  }

  /** Cells that the step needs, and those of others that run. */
  #staying(own: Sequence, plan: Plan, needed: ReadonlySet<HeldSequence>): number {
    const kept = plan.parts.flatMap((part) =>
      part.kind === 'keep' ? [own.cells.subarray(part.at, part.at + length(part.span))] : [],
    )
    return this.table.cellsOf((sequence) => sequence !== own && (sequence.running || needed.has(sequence)), kept)
  }

  /** Only these entries stay. */
  #trim(sequence: Sequence, needed: readonly Span[]): void {
    let end = sequence.held
    for (const { start, end: next } of [...needed].sort((a, b) => b.start - a.start)) {
      this.table.cut(sequence, span(next, end))
      end = start
    }
    this.table.cut(sequence, span(0, end))
  }
}
