/**
 * Parks the cells that conversations no longer show, and moves sequences off the device when they slow decodes. Also removes forgotten text
 * from every tier, and loads saved sequences back.
 */
import { FORGOTTEN } from '../core/contract.js'
import type { ConversationId } from '../core/ids.js'
import { length, type Span, span } from '../core/span.js'
import type { TierRates } from './cost-model.js'
import type { Evictor } from './eviction.js'
import { OffloadedSequence, type OffloadTiers, type SavedState } from './offload.js'
import { neededBy, type Plan } from './plan/plan.js'
import { commonPrefix, isMarker, type Prompt, sourceIdsOf, sourcePlace, uneditedOf } from './prompt.js'
import type { Conversations, SequenceTable } from './sequence-table.js'
import type { HeldSequence, Sequence } from './sequence.js'
import { agreement, type View } from './views.js'
import { ANSWERS, type ComingTokens, FEWEST, isOutstaying, isWorthMoving } from './tier-policy.js'

export interface ParkingOptions {
  /**
   * The measured rates that decide whether a move pays. While `rates` is null, nothing was measured, and sequences move only when cells are
   * short.
   */
  readonly costs: { readonly rates: TierRates | null }
  /** The fewest cells that a move must free, unless a step needs the room. Default: FEWEST. */
  readonly fewest?: number
}

/**
 * Parks the cells that a conversation no longer shows, each time as a parked sequence (a "version"). Versions stay on the device, where a
 * restore finds them at once. They leave it when cells are short, or when they slow the conversation down (tier-policy.ts). To gain speed,
 * a version leaves only if a lower tier has room for it. So a restore then costs a copy instead of a recompute.
 */
export class Parking {
  /** Conversations that had versions moved off the device. Free cells may lie between their remaining cells. */
  readonly #scattered = new Set<ConversationId>()

  constructor(
    private readonly table: SequenceTable,
    private readonly conversations: Conversations,
    private readonly offload: OffloadTiers,
    private readonly evictor: Evictor,
    private readonly options: ParkingOptions,
  ) {}

  /** Parks the entries of the live sequence that the plan does not keep, and removes them from it. Returns how many tokens were parked. */
  parkGone(own: Sequence, plan: Plan): number {
    const gone = droppedFrom(own, plan)
    this.conversations.views.leave(own, plan)
    const parked = this.#park(own, plan, gone)
    for (const entries of gone.reverse()) this.table.cut(own, entries)
    return parked
  }

  /** Parks the entries that `worthParking` chooses, and returns their number. If there is no sequence id for them, they are lost. */
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
   * Returns the next version to move off the device. First come versions that slow their conversation down (`burdens`). Then comes the
   * longest unused one, while more than `share` of the cells are in use. Returns null when there is none.
   */
  next(share: number): Sequence | null {
    for (const conversation of this.#idle()) {
      const [version] = this.burdens(conversation)
      if (version !== undefined) return version
    }
    const { cells } = this.table
    const [victim] = this.table.victims()
    const isFull = this.offload.open && cells.used > cells.total * share
    return isFull && victim?.state === 'parked' ? victim : null
  }

  /** Notes that a version left the device, so that `gather` later closes the free cells that it left. */
  moved({ conversation }: Sequence): void {
    this.#scattered.add(conversation)
  }

  /**
   * Moves the cells of one live sequence next to each other, after versions of its conversation left the device. Returns false when no
   * sequence was rewritten.
   */
  gather(): boolean {
    for (const conversation of this.#idle()) if (this.#gather(conversation)) return true
    return false
  }

  /**
   * Moves versions of the conversation off the device at the start of a step, if the copies cost less than they save this step. The saving:
   * the attention of its `due` tokens runs over fewer cells. The time counts for the step.
   * @param staying sequences that must not be moved
   */
  relieve({ conversation }: Sequence, staying: ReadonlySet<HeldSequence>, due: number): void {
    const started = performance.now()
    let isRelieved = false
    for (const version of this.burdens(conversation, { due, ahead: 0 }, staying)) {
      if (!this.evictor.relieve(version)) break
      this.moved(version)
      isRelieved = true
    }
    if (isRelieved) this.#gather(conversation, due)
    this.evictor.spend(performance.now() - started)
  }

  /** Forgets that the conversation had versions moved off the device. */
  forget(conversation: ConversationId): void {
    this.#scattered.delete(conversation)
  }

  /** Conversations without a running step that have versions on the device, or had versions moved off it. */
  #idle(): readonly ConversationId[] {
    const parked = this.table.all.filter(({ state }) => state === 'parked').map(({ conversation }) => conversation)
    return [...new Set([...parked, ...this.#scattered])].filter((each) => this.conversations.live(each)?.running !== true)
  }

  /**
   * Returns the conversation's versions that should leave the device, the longest unused first; none if the move would not pay. A version
   * qualifies only if no other sequence holds most of its cells. A version that lent cells to the last step stays, because it may be needed
   * again.
   */
  burdens(
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
    // Once one version of the conversation has moved, the rest follow, even if their move alone would not pay. Steps do not wait for that:
    // for a beginning step `ahead` is 0.
    const isDue =
      (coming.ahead > 0 && this.#scattered.has(conversation)) ||
      isWorthMoving({ held, freed, live }, coming, options.costs.rates, fewest)
    return isDue ? [...versions].reverse() : []
  }

  /**
   * Moves the cells of the conversation's live sequence next to each other, unless the `due` tokens will fill the free cells between them.
   * Returns false when nothing was rewritten.
   */
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

/** Returns the number of the sequence's cells that no other sequence holds. */
export const aloneIn = ({ alone }: Sequence): number => alone.reduce((sum, stretch) => sum + length(stretch), 0)

// Moving idle sequences off the device: the attention of every token that other conversations compute runs over their cells, too.

/**
 * Chooses idle sequences that leave the device. A sequence moves once it has cost other conversations as much time as copying it off and
 * back (tier-policy.ts). So a conversation that soon continues finds its cells in place, and one that continues later pays for a copy.
 *
 * Most conversations with a single step never continue. Their sequences move as soon as the coming tokens pay for the copy. No sequence
 * moves if the lower tiers would have to drop another one for it. A live sequence with approximate cells stays, because the background
 * recompute makes it exact on the device (engine/background-recompute.ts).
 */
export class IdleOffload {
  constructor(
    private readonly table: SequenceTable,
    private readonly conversations: Conversations,
    private readonly offload: OffloadTiers,
    private readonly options: ParkingOptions,
  ) {}

  /**
   * Returns the sequences that should leave the device; none if together they would free fewer than `fewest` cells.
   * @param needed sequences that must stay
   * @param due number of tokens that the step about to begin computes
   */
  due(needed: ReadonlySet<HeldSequence>, due: number): readonly Sequence[] {
    const { fewest = FEWEST } = this.options
    if (!this.offload.open || this.table.cells.used < fewest) return []
    const going = this.table.victims(needed).filter((victim) => this.#isDue(victim, { due, ahead: ANSWERS }))
    return going.reduce((sum, victim) => sum + aloneIn(victim), 0) < fewest ? [] : going
  }

  #isDue(victim: Sequence, coming: ComingTokens): boolean {
    const { held, state, conversation } = victim
    const { rates } = this.options.costs
    const freed = aloneIn(victim)
    if (2 * freed <= held) return false
    if (state === 'idle' && victim.exact < held) return false
    const isSingle = state === 'idle' && this.conversations.get(conversation)?.ledger.length === 1
    if (isSingle && isWorthMoving({ held, freed, live: 0 }, coming, rates, 0)) return true
    return isOutstaying({ held, freed }, this.table.passedSince(victim), rates)
  }
}

// Which entries a live sequence loses when a plan is carried out, and which of them are parked.

/** Returns the sequence's entries that the plan does not keep, in order. */
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
 * Chooses which of the entries in `gone` are parked: those whose cells no parked version of the conversation holds.
 *
 * - The prompt's last token is not parked if the plan keeps all cells before it and decodes it only for its logits.
 * - Tokens that `blend` computes again are parked, because a restore asks for their old cells.
 * - Of a marker, all entries from its first to the last chosen one are parked. Its tokens share one source id, so a later one is found only
 *   behind the first.
 *
 * @returns the chosen spans, and their number of tokens without those that only complete a marker
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
      else spans.push(span(first, entry + 1))
      tokens++
    }
  return { spans, tokens }
}

/** Returns the first entry of the marker that the entry belongs to; the entry itself if it belongs to none. */
function firstOfMarker(keys: Int32Array, entry: number): number {
  while (entry > 0 && isMarker(keys[entry]!) && keys[entry - 1] === keys[entry]) entry--
  return entry
}

// Forgetting: removes all cells that hold a forgotten text or were computed from it.

/**
 * Drops, in every tier, the conversation's cells of a text that `prompt` marks as FORGOTTEN, and all cells that have read it. Cells
 * computed before the text stay, except that `whole` empties the live sequence. A running live sequence is left alone. Resolves when no
 * file of those cells is left.
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
  const keys = sourceIdsOf(prompt)
  /** Returns the first entry whose cell must be dropped, together with all entries behind it; null when all may stay. */
  const from = (view: View): number | null => {
    const agrees = commonPrefix(view.unedited, base)
    if (agrees > last) return null
    const shown = agreement(view, prompt, keys)
    // Text that a client inserted under `splice` has the key of a marker. So a marker that the prompt does not show may be forgotten text.
    const isUnsafe = (key: number, entry: number) => entry >= shown && (isMarker(key) || sourcePlace(key) >= agrees)
    const entry = view.sourceIds.subarray(0, view.held).findIndex(isUnsafe)
    return entry < 0 ? null : entry
  }
  for (const version of table.parked(conversation)) if (from(version) !== null) table.drop(version)
  const live = conversations.live(conversation)
  const entry = live === null || live.running ? null : from(live)
  if (live !== null && entry !== null) {
    table.cut(live, span(whole ? 0 : entry, live.held))
    live.unedited = base
  }
  const record = conversations.get(conversation)
  const before = record?.before ?? null
  if (before !== null && commonPrefix(uneditedOf(before), base) <= last) record!.forgets = true
  conversations.views.drop(conversation, (view) => from(view) !== null)
  const stored = offload.all.filter((each) => each.conversation === conversation && from(each) !== null)
  for (const each of stored) offload.drop(each)
  if (stored.length > 0 || offload.isWriting(conversation)) await offload.settle()
}

// Loading sequences back onto the device. They take the room of cells that their conversation does not show.

/**
 * Returns the stored sequences that the plan borrows from, each with the entries that it needs. Those with the most unneeded entries come
 * first.
 */
export function borrowedFrom({ parts }: Plan): ReadonlyMap<OffloadedSequence, readonly Span[]> {
  const borrowed = new Map<OffloadedSequence, Span[]>()
  for (const part of parts) {
    if ((part.kind !== 'borrow' && part.kind !== 'turn') || !(part.from instanceof OffloadedSequence)) continue
    const entries = span(part.at, part.at + length(part.span))
    borrowed.set(part.from, [...(borrowed.get(part.from) ?? []), entries])
  }
  // Loading a sequence frees the cells of its unneeded entries again, which makes room for the next one.
  const spare = ([{ held }, entries]: [OffloadedSequence, Span[]]) => held - entries.reduce((sum, each) => sum + length(each), 0)
  return new Map([...borrowed].sort((a, b) => spare(b) - spare(a)))
}

export class Reloader {
  /** Tokens that were parked to make room, and that no step has counted yet. */
  #parked = 0
  /** Sequences loaded for steps in preparation, each with the live sequence of its step. */
  readonly #loaded = new Map<HeldSequence, Sequence>()

  constructor(
    private readonly table: SequenceTable,
    private readonly offload: OffloadTiers,
    private readonly evictor: Evictor,
    private readonly parking: Parking,
  ) {}

  /**
   * Loads a stored sequence onto the device, as a parked one. Returns null, or the reason why that failed. Evicts nothing for a sequence
   * that could not fit anyway.
   *
   * To make room, it first parks the entries that the plan drops from the live sequence. Then it evicts in the order stated at
   * SequenceTable. If the sequences that the plan borrows do not fit together, only the needed entries of this one stay on the device. Its
   * saved state then also stays in its tier.
   *
   * A sequence loaded for a step in preparation is never evicted, and each takes a sequence id. So two sequences that do not fit together
   * cannot evict each other for ever.
   */
  async load(own: Sequence, plan: Plan, stored: OffloadedSequence, state: SavedState): Promise<string | null> {
    const { cells, sequences } = this.table
    const needed = new Set([...neededBy(own, plan), ...this.#loaded.keys()])
    const spare = () => this.table.victims(needed)
    const borrowed = borrowedFrom(plan)
    const most = cells.total - this.#staying(own, plan, needed)
    if (stored.held > most) return `the context has no room: they need ${stored.held} cells, and only ${most} can be freed`
    if (sequences.used === sequences.total && spare().length === 0)
      return `all ${sequences.total} sequences of the context are in use, and loading them needs one`
    if (stored.held > cells.free) {
      this.#parked += this.parking.parkGone(own, plan)
      this.evictor.make(stored.held, spare())
    }
    const sequence = this.evictor.add(stored.conversation, 'parked', spare(), own.salt)
    if (sequence === null || stored.held > cells.free) {
      if (sequence !== null) this.table.drop(sequence)
      return `all ${sequences.total} sequences of the context are in use, and loading them needs one`
    }
    needed.add(sequence)
    // A state can only be loaded into an empty sequence, so all pieces but the first go through a second one.
    const isWhole = state instanceof Uint8Array || state.length === 1
    const piece = isWhole ? null : this.evictor.add(stored.conversation, 'parked', spare(), own.salt)
    let isIn: boolean | null = null
    try {
      if (isWhole || piece !== null) isIn = await this.#put(sequence, state instanceof Uint8Array ? [state] : state, piece)
    } catch (error) {
      this.#empty(sequence)
      this.table.drop(sequence)
      throw error
    } finally {
      if (piece !== null) this.table.drop(piece)
    }
    if (isIn === null) {
      this.table.drop(sequence)
      return `all ${sequences.total} sequences of the context are in use, and loading them needs two`
    }
    if (!isIn) {
      this.table.drop(sequence)
      this.offload.drop(stored, true)
      return 'their saved state is damaged, or another model wrote it'
    }
    sequence.load(stored.record)
    sequence.tier = stored.tier
    this.#loaded.set(sequence, own)
    const all = [...borrowed.keys()].reduce((sum, { held }) => sum + held, 0)
    if (all <= most) this.offload.drop(stored)
    else this.#trim(sequence, borrowed.get(stored) ?? [])
    return null
  }

  /** Ends the preparation of a step. From then on, the sequences that were loaded for it may be evicted. */
  end(own: Sequence): void {
    for (const [sequence, by] of this.#loaded) if (by === own) this.#loaded.delete(sequence)
  }

  /** Returns how many tokens were parked to make room since the last call. */
  takeParked(): number {
    const parked = this.#parked
    this.#parked = 0
    return parked
  }

  /** Counts the cells that must stay on the device: those that the step needs, and those of other running sequences. */
  #staying(own: Sequence, plan: Plan, needed: ReadonlySet<HeldSequence>): number {
    const kept = plan.parts.flatMap((part) =>
      part.kind === 'keep' ? [own.cells.subarray(part.at, part.at + length(part.span))] : [],
    )
    return this.table.cellsOf((sequence) => sequence !== own && (sequence.running || needed.has(sequence)), kept)
  }

  /**
   * Loads the pieces of a state into an empty sequence, all but the first through the sequence `piece`. Returns false when a piece was
   * refused; then the sequence is empty.
   */
  async #put({ seq }: Sequence, [first, ...rest]: readonly Uint8Array[], piece: Sequence | null): Promise<boolean> {
    const { memory } = this.table
    if (first === undefined || !(await this.table.copying((memory) => memory.copyIn(seq, first)))) return false
    for (const state of rest) {
      const isIn = piece !== null && (await this.table.copying((memory) => memory.copyIn(piece.seq, state)))
      if (!isIn) {
        this.#empty({ seq })
        return false
      }
      const of = memory.positions(piece.seq)
      if (of === null) continue
      memory.tag(piece.seq, seq, span(of.min, of.max + 1))
      memory.untag(piece.seq, span(of.min, of.max + 1))
    }
    return true
  }

  /** Frees the cells that llama.cpp loaded into a sequence before kvfold recorded them. */
  #empty({ seq }: Pick<Sequence, 'seq'>): void {
    const held = this.table.memory.positions(seq)
    if (held !== null) this.table.memory.untag(seq, span(held.min, held.max + 1))
  }

  /** Removes all entries but the needed ones. */
  #trim(sequence: Sequence, needed: readonly Span[]): void {
    let end = sequence.held
    for (const { start, end: next } of [...needed].sort((a, b) => b.start - a.start)) {
      this.table.cut(sequence, span(next, end))
      end = start
    }
    this.table.cut(sequence, span(0, end))
  }
}
