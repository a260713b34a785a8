/** Owns what conversations no longer show: parking it, moving it off the device when what they do show is slower for it, and bringing it back. */
import { FORGOTTEN } from '../core/contract.js'
import type { ConversationId } from '../core/ids.js'
import { length, type Span, span } from '../core/span.js'
import type { CostModel } from './cost-model.js'
import type { Evictor } from './eviction.js'
import { OffloadedSequence, type OffloadTiers, type SavedState } from './offload.js'
import { neededBy, type Plan } from './plan/plan.js'
import { commonPrefix, isMarker, markerSource, type Prompt, sourcePlace, uneditedOf } from './prompt.js'
import type { Conversations, SequenceTable } from './sequence-table.js'
import type { HeldSequence, Sequence } from './sequence.js'
import type { View } from './views.js'
import { ANSWERS, type ComingTokens, FEWEST, isOutstaying, isWorthMoving } from './tier-policy.js'

export interface ParkingOptions {
  /** What decodes and copies cost; null: nobody knows. */
  readonly costs: { readonly model: CostModel | null }
  /** Cells that must become free for anything to be moved unasked. Default: FEWEST. */
  readonly fewest?: number
}

/**
 * What is parked stays on the device, where a restore finds it at once, until cells are short or it is a burden (tier-policy.ts). Then it goes to the
 * tiers below, but only where nothing is given up for it there: a restore must cost a copy and never a computation that it would not have cost.
 */
export class Parking {
  /** Conversations of which versions went: what is left of them has free cells in between. */
  readonly #scattered = new Set<ConversationId>()

  constructor(
    private readonly table: SequenceTable,
    private readonly conversations: Conversations,
    private readonly offload: OffloadTiers,
    private readonly evictor: Evictor,
    private readonly options: ParkingOptions,
  ) {}

  /** Parks what the plan does not keep of the live sequence, and takes it from the live sequence; says how many tokens were parked. */
  parkGone(own: Sequence, plan: Plan): number {
    const gone = droppedFrom(own, plan)
    this.conversations.views.leave(own, plan)
    const parked = this.#park(own, plan, gone)
    for (const entries of gone.reverse()) this.table.cut(own, entries)
    return parked
  }

  /**
   * Parks these entries of the live sequence, but for those that are parked already, and those that the step computes again though they are what it
   * shows; says how many. When no sequence id can be had they are lost.
   */
  #park(own: Sequence, plan: Plan, gone: readonly Span[]): number {
    const worth = worthParking(own, plan, gone, this.table.parked(own.conversation))
    if (worth.tokens === 0) return 0
    const spare = this.table.victims(neededBy(own, plan)).filter(({ state }) => state === 'parked')
    const version = this.evictor.add(own.conversation, 'parked', spare, own.salt)
    if (version === null) return 0
    version.unedited = own.unedited
    for (const entries of worth.spans) this.table.lend(own, entries, version)
    return worth.tokens
  }

  /**
   * Moves one version of some conversation off the device if its versions are a burden, or rewrites the live sequence of one whose versions went; else one,
   * the longest unused, while more than `share` of the cells are in use. For times when nothing runs. False: there was nothing to do.
   */
  tidy(share: number): boolean {
    return this.#relieveOne() || this.#makeRoom(share)
  }

  /**
   * As `tidy` does for this conversation, all of it at once and on the account of the step that begins, which then passes over none of it. What the
   * step computes takes the places of what goes.
   * @param staying what is not moved
   */
  relieve({ conversation }: Sequence, staying: ReadonlySet<HeldSequence>, coming: ComingTokens): void {
    const started = performance.now()
    for (const version of this.#burdens(conversation, coming, staying)) if (!this.#moveOff(version)) break
    this.#gather(conversation, coming.due)
    this.evictor.spend(performance.now() - started)
  }

  /** Nothing is known of the conversation any more. */
  forget(conversation: ConversationId): void {
    this.#scattered.delete(conversation)
  }

  #relieveOne(): boolean {
    const parked = this.table.all.filter(({ state }) => state === 'parked')
    for (const conversation of new Set([...parked.map((version) => version.conversation), ...this.#scattered])) {
      if (this.conversations.live(conversation)?.running === true) continue
      const [version] = this.#burdens(conversation)
      if ((version !== undefined && this.#moveOff(version)) || this.#gather(conversation)) return true
    }
    return false
  }

  #makeRoom(share: number): boolean {
    const { cells } = this.table
    const [victim] = this.table.victims()
    if (!this.offload.open || victim?.state !== 'parked' || cells.used <= cells.total * share) return false
    this.evictor.evictUnasked(victim)
    return true
  }

  /**
   * The conversation's versions that are to be moved, the longest unused first: those that hold more than others hold of them. One that lent cells
   * to the last step stays, because it may be asked for again.
   */
  #burdens(
    conversation: ConversationId,
    coming: ComingTokens = { due: 0, ahead: ANSWERS },
    staying?: ReadonlySet<HeldSequence>,
  ): readonly Sequence[] {
    const { offload, options, table } = this
    const fewest = this.#fewest
    const versions = (offload.open ? table.parked(conversation) : []).filter(
      (version) => !version.lent && staying?.has(version) !== true && 2 * aloneIn(version) > version.held,
    )
    if (versions.length === 0) return []
    const sum = (of: (version: Sequence) => number) => versions.reduce((total, version) => total + of(version), 0)
    const [held, freed] = [sum((version) => version.held), sum(aloneIn)]
    if (!offload.hasRoom(held)) return []
    const sequence = this.conversations.live(conversation)
    const live = sequence === null || freed - coming.due < fewest ? 0 : aloneIn(sequence)
    // What was begun is brought to an end.
    const isDue = this.#scattered.has(conversation) || isWorthMoving({ held, freed, live }, coming, options.costs.model, fewest)
    return isDue ? [...versions].reverse() : []
  }

  #moveOff(version: Sequence): boolean {
    if (!this.evictor.relieve(version)) return false
    this.#scattered.add(version.conversation)
    return true
  }

  /** Rewrites the live sequence of a conversation whose versions went, unless what is `due` fills their places; false: there was nothing to rewrite. */
  #gather(conversation: ConversationId, due = 0): boolean {
    if (!this.#scattered.delete(conversation)) return false
    const { reach, used } = this.table.cells
    const sequence = this.conversations.live(conversation)
    return sequence !== null && reach - used - due >= this.#fewest && this.table.compact(sequence) > 0
  }

  get #fewest(): number {
    return this.options.fewest ?? FEWEST
  }
}

/** Cells that no other sequence holds. */
export const aloneIn = ({ alone }: Sequence): number => alone.reduce((sum, stretch) => sum + length(stretch), 0)

// Moving off the device what nobody has used while others computed: every token of theirs passes over its cells.

/**
 * A conversation that comes back at once finds its cells in place; one that stays away finds them in the tiers below, and pays for a copy. It
 * goes when it has cost the others as much as that (tier-policy.ts), or at once if it was asked for a single time: most of those never come back.
 * Only where nothing is given up for it below. A spliced live sequence stays: it is made exact where it is (engine/background-recompute.ts).
 */
export class IdleOffload {
  constructor(
    private readonly table: SequenceTable,
    private readonly conversations: Conversations,
    private readonly offload: OffloadTiers,
    private readonly evictor: Evictor,
    private readonly options: ParkingOptions,
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

// What a live sequence loses when a plan is carried out, and what of that is worth keeping.

/** The sequence's entries that the plan does not keep, in order. */
export function droppedFrom(sequence: Sequence, { parts }: Plan): Span[] {
  const gone: Span[] = []
  let entry = 0
  for (const part of parts) {
    if (part.kind !== 'keep') continue
    if (part.at > entry) gone.push(span(entry, part.at))
    entry = part.at + part.span.end - part.span.start
  }
  if (sequence.held > entry) gone.push(span(entry, sequence.held))
  return gone
}

/**
 * Of these entries of the live sequence, those that nothing else of the conversation holds, without the last token if it is computed behind the very
 * cells that it saw. What `blend` computes again is kept, because a restore asks for it. Of a marker that is gone all up to its last such entry is
 * kept, and of one that is shown in part nothing, because the rest says nothing without its beginning and would be found in its place.
 * @returns the spans, and how many of their tokens nothing else holds
 */
export function worthParking(sequence: Sequence, plan: Plan, gone: readonly Span[], parked: readonly Sequence[]) {
  let known: Set<number> | null = null
  const isKnown = (entry: number): boolean => {
    if (sequence.isAlone(entry)) return false
    known ??= new Set(parked.flatMap(({ cells }) => [...cells]))
    return known.has(sequence.cells[entry]!)
  }
  const last = plan.prompt.tokens.length - 1
  const isKept = plan.parts.slice(0, -1).every(({ kind }) => kind === 'keep') && gone[0]?.start === last
  const renewed = plan.redecoded === 1 && isKept ? last : null
  const spans: Span[] = []
  let tokens = 0
  for (const { start, end } of gone)
    for (let entry = start; entry < end; entry++) {
      if (isKnown(entry) || entry === renewed) continue
      const first = firstOfMarker(sequence.sourceIds, entry)
      const before = spans.at(-1)
      if (before !== undefined && before.end >= first) spans[spans.length - 1] = span(before.start, entry + 1)
      else if (first < start) continue
      else spans.push(span(first, entry + 1))
      tokens++
    }
  return { spans, tokens }
}

/** Where the marker that the entry belongs to begins; the entry itself where it belongs to none. */
function firstOfMarker(keys: Int32Array, entry: number): number {
  while (entry > 0 && isMarker(keys[entry]!) && keys[entry - 1] === keys[entry]) entry--
  return entry
}

// Forgetting: nothing stays of what holds a hidden text, or was computed from it.

/**
 * Drops, in every tier, what the conversation has of a text that `shown` is to have forgotten (FORGOTTEN), and of what has read it; of its live
 * sequence only that, or with `whole` all of it. What was computed before the text stays. Resolves when no file of it is left.
 */
export async function forgetHidden(
  {
    table,
    conversations,
    offload,
  }: { readonly table: SequenceTable; readonly conversations: Conversations; readonly offload: OffloadTiers },
  conversation: ConversationId,
  prompt: Prompt,
  whole = false,
): Promise<void> {
  const base = uneditedOf(prompt)
  const last = base.lastIndexOf(FORGOTTEN)
  if (last < 0) return
  /** The first place at which the holder has something that is to go; null: it has nothing. */
  const from = ({ unedited, held, sourceIds }: View): number | null => {
    const agrees = commonPrefix(unedited, base)
    return agrees <= last && held > 0 && sourcePlace(sourceIds[held - 1]!) >= agrees ? agrees : null
  }
  for (const version of table.parked(conversation)) if (from(version) !== null) table.drop(version)
  const live = conversations.live(conversation)
  const place = live === null || live.running ? null : from(live)
  if (live !== null && place !== null) {
    table.cut(live, span(whole ? 0 : live.atKey(markerSource(place)), live.held))
    live.unedited = base
  }
  conversations.views.drop(conversation, (view) => from(view) !== null)
  const stored = offload.all.filter((each) => each.conversation === conversation && from(each) !== null)
  for (const each of stored) offload.drop(each)
  if (stored.length > 0) await offload.settle()
}

// Bringing sequences that were moved off the device back onto it, in the place of what their conversation no longer shows.

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
  load(own: Sequence, plan: Plan, stored: OffloadedSequence, state: SavedState): string | null {
    const { cells, sequences } = this.table
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
    needed.add(sequence)
    // A state is loaded into an empty sequence only, so what comes in pieces goes through another one.
    const isWhole = state instanceof Uint8Array || state.length === 1
    const piece = isWhole ? null : this.evictor.add(stored.conversation, 'parked', spare(), own.salt)
    const isIn = isWhole || piece !== null ? this.#put(sequence, state instanceof Uint8Array ? [state] : state, piece) : null
    if (piece !== null) this.table.drop(piece)
    if (isIn === null) {
      this.table.drop(sequence)
      return `all ${sequences.total} sequences of the context are taken, and they need two`
    }
    if (!isIn) {
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

  /** Loads the values into a sequence that holds nothing, all but the first piece by way of another one; false: they were refused, and nothing is held. */
  #put({ seq }: Sequence, [first, ...rest]: readonly Uint8Array[], piece: Sequence | null): boolean {
    const { memory } = this.table
    if (first === undefined || !memory.loadSequence(seq, first, { verify: false })) return false
    for (const state of rest) {
      const isIn = piece !== null && memory.loadSequence(piece.seq, state, { verify: false })
      const of = memory.positions(isIn ? piece.seq : seq)
      if (!isIn) {
        if (of !== null) memory.untag(seq, span(of.min, of.max + 1))
        return false
      }
      if (of === null) continue
      memory.tag(piece.seq, seq, span(of.min, of.max + 1))
      memory.untag(piece.seq, span(of.min, of.max + 1))
    }
    return true
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
