/**
 * Uses a step's scratch sequence for two tasks. It computes tokens that belong in the middle of a live sequence, because llama.cpp decodes
 * only at a sequence's end. And it copies cells to other positions.
 */
import { invariant } from '../core/errors.js'
import type { SeqId } from '../core/ids.js'
import { length, span, type Span } from '../core/span.js'
import type { OffloadRecord } from './ports.js'
import type { Evictor } from './eviction.js'
import { offloadRecordOf } from './offload.js'
import { type Part, turnOf } from './plan/parts.js'
import { neededBy, needsScratch, type Plan } from './plan/plan.js'
import type { SequenceTable } from './sequence-table.js'
import { Sequence } from './sequence.js'
import type { Step } from './step.js'

export class MidSequencePrefill {
  constructor(
    private readonly table: SequenceTable,
    private readonly evictor: Evictor,
  ) {}

  /** Takes a scratch sequence for the step if its plan needs one. */
  open(step: Step, own: Sequence, plan: Plan): void {
    if (!needsScratch(plan)) return
    step.scratch = this.evictor.add(own.conversation, 'scratch', this.table.victims(neededBy(own, plan)), own.salt)
    invariant(step.scratch !== null, 'no sequence was left for a plan that needs one')
  }

  /**
   * Returns the sequence in which to compute tokens that belong into the live sequence at `position`. Lets it hold the live sequence's
   * cells before that position.
   */
  seat({ sequence, scratch }: Step, position: number): SeqId {
    invariant(scratch !== null, 'tokens in the middle of a live sequence need a scratch sequence')
    this.table.lend(sequence, span(sequence.atPosition(scratch.next), sequence.atPosition(position)), scratch)
    return scratch.seq
  }

  /** Records tokens that were computed in the scratch sequence, and lends their cells to the live sequence. */
  enter({ sequence, scratch }: Step, tokens: Int32Array, keys: Int32Array): void {
    invariant(scratch !== null, 'tokens in the middle of a live sequence need a scratch sequence')
    const { held, next } = scratch
    scratch.append(tokens, keys)
    this.table.lend(scratch, span(held, scratch.held), sequence, sequence.atPosition(next))
  }

  /** Drops the step's scratch sequence, if it has one. */
  close(step: Step): void {
    const { scratch } = step
    if (scratch === null) return
    step.scratch = null
    scratch.state = 'parked'
    this.table.drop(scratch)
  }
}

// Copies cells to other positions. A shift moves a cell for every sequence that sees it, so copies are shifted, and the originals stay.

/** Saved cells of one sequence that are to be loaded again at other positions. */
interface Copies {
  readonly record: OffloadRecord
  readonly state: Uint8Array
  /** Runs of the record's entries that move by the same distance (`by` positions), in order. */
  readonly runs: readonly { readonly entries: Span; readonly by: number }[]
}

/**
 * Copies cells to other positions without computing tokens. It saves the cells, loads them back, and shifts the copies. The next decode
 * rotates their keys, in one pass over all keys; until then the copies are unsettled (CellTable). All cells are saved before anything is
 * evicted for the copies, so even the originals may be evicted.
 */
export class KeyRotation {
  constructor(
    private readonly table: SequenceTable,
    private readonly evictor: Evictor,
  ) {}

  /** Saves all cells that the plan turns, through the step's scratch sequence. Changes nothing in the cache. */
  take({ scratch }: Step, { parts }: Plan): Copies[] {
    const byHolder = new Map<Sequence, (Part & { readonly kind: 'turn' })[]>()
    for (const part of parts)
      if (part.kind === 'turn' && part.from instanceof Sequence)
        byHolder.set(part.from, [...(byHolder.get(part.from) ?? []), part])
    return [...byHolder].map(([holder, turned]) => {
      invariant(scratch !== null, 'copying cells needs a scratch sequence')
      // A later step may need the originals again. This keeps their sequence on the device.
      holder.lent = true
      const runs = turned.map((part) => {
        const { held } = scratch
        this.table.lend(holder, span(part.at, part.at + length(part.span)), scratch)
        return { entries: span(held, scratch.held), by: turnOf(part) }
      })
      const state = this.table.copying((memory) => memory.saveSequence(scratch.seq))
      const record = offloadRecordOf(scratch)
      this.table.cut(scratch, span(0, scratch.held))
      return { record, state, runs }
    })
  }

  /** Puts the copies into the step's live sequence, at their new positions. Makes room by evicting in the order stated at SequenceTable. */
  put({ scratch, sequence }: Step, copies: readonly Copies[]): void {
    for (const { record, state, runs } of copies) {
      invariant(scratch !== null, 'putting copied cells back needs a scratch sequence')
      this.evictor.make(record.tokens.length, this.table.victims())
      const isIn = this.table.copying((memory) => memory.loadSequence(scratch.seq, state))
      invariant(isIn, `llama.cpp did not take back ${record.tokens.length} cells that it had given out`)
      scratch.load(record)
      // No run may pass over another run that is still at its old position. So runs that move down go from the first on, and runs that move
      // up from the last on.
      for (const { entries, by } of runs) if (by < 0) this.table.shift(scratch, entries, by)
      for (const { entries, by } of [...runs].reverse()) if (by > 0) this.table.shift(scratch, entries, by)
      for (let entry = 0; entry < scratch.held; entry = scratch.endOfRun(entry)) {
        const at = sequence.atPosition(scratch.position(entry))
        this.table.lend(scratch, span(entry, scratch.endOfRun(entry)), sequence, at)
      }
      this.table.cut(scratch, span(0, scratch.held))
    }
  }
}
