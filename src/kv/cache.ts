/** Owns the life of a step in the cache: how a conversation's lane comes to hold what is shown, and what that cost. */
import { invariant } from '../core/errors.js'
import type { ConversationId } from '../core/ids.js'
import { length, span, type Span } from '../core/span.js'
import { Attic, type AtticTotals } from './attic.js'
import type { AttentionScores } from './blend.js'
import { EXACT, type Terms } from './contract.js'
import { Conversations } from './conversations.js'
import type { CostModel } from './cost-model.js'
import { prospectOf, timeOf } from './forecast.js'
import { goneFrom, worthParking } from './gone.js'
import type { Holder } from './holder.js'
import { Holding, type Lane } from './holding.js'
import { Holdings } from './holdings.js'
import { checkBooks, checkPositions, checkReadback } from './integrity.js'
import type { LedgerEntry, StepKind } from './ledger.js'
import type { KvMemory } from './memory.js'
import { keysHeld, needsScratch, planStep, type Plan } from './plan.js'
import { Room, type Reserved } from './room.js'
import { baseOf, withoutContracts, type Shown } from './shown.js'
import { Step, type Chunk, type Seat, type StepPart } from './step.js'
import { recordOf, Stored, type Fetched } from './stored.js'
import type { Seed } from './trail.js'
import { verifyPlan } from './verify.js'
import { whereabouts, type Whereabouts } from './whereabouts.js'

/** What the cache holds right now; in cells unless said otherwise. used + free = cells. */
export interface CacheTotals {
  readonly cells: number
  readonly used: number
  readonly free: number
  /** Held by parked versions alone: what can be had without any conversation losing its place. */
  readonly parked: number
  /** Attention runs over at most this many cells (Cells). */
  readonly reach: number
  /** Sequence ids. */
  readonly sequences: { readonly used: number; readonly total: number }
  /** Number of parked versions. */
  readonly versions: number
  /** What was moved off the device. */
  readonly tiers: AtticTotals
}

export interface KvCacheOptions {
  /** Positions the model was trained on; a splice that would go beyond falls back to `exact`. Default: no limit. */
  readonly positions?: number
  /** For `blend` with a ratio. Default: none. */
  readonly attention?: AttentionScores
  /** The tiers below the device. Default: none. */
  readonly attic?: Attic
  /** For predictions on the ledger; null until there is one. May be set later. */
  readonly costs?: { readonly model: CostModel | null }
}

/**
 * The KV cache. Under contract `exact` a lane's cells equal a fresh prefill of its tokens; under `splice` and `blend` only as far as the ledger
 * says (Contract). Whether a cell is what a fresh prefill would make it is known from its print, so approximate cells are never taken for exact
 * ones, by whomever. Nothing is computed here: the engine decodes, then reports.
 *
 * One step: open, plan, begin, then `next`, reserve, decode, commit (or settle) until the answer ends, then finish. All calls fall between
 * decodes. Steps of different conversations may overlap, those of one conversation may not. What is dropped for room, and in which order:
 * see Holdings.
 */
export class KvCache {
  readonly #holdings: Holdings
  readonly #conversations = new Conversations()
  readonly #attic: Attic
  readonly #room: Room

  /** `memory` must be empty, and nobody else may tag or untag in it. */
  constructor(
    memory: KvMemory,
    private readonly options: KvCacheOptions = {},
  ) {
    this.#holdings = new Holdings(memory)
    this.#attic = options.attic ?? new Attic({})
    this.#room = new Room(this.#holdings, this.#conversations, (victim) => {
      const keeps = this.#attic.open && victim.held > 0
      if (keeps) this.#attic.put(recordOf(victim), memory.saveSequence(victim.seq, { checksum: false }))
      return keeps
    })
  }

  /**
   * The live lane of a conversation, whose tenant's prints begin with `seed`. If there is none it makes an empty one, for which it takes a
   * free sequence id or evicts for one.
   * `full`: every id belongs to a running lane; nothing was changed. A lane handed out before may have been evicted meanwhile.
   */
  open(
    conversation: ConversationId,
    seed?: Seed,
  ): { readonly kind: 'lane'; readonly lane: Lane } | { readonly kind: 'full'; readonly reason: string } {
    return this.#room.open(conversation, seed)
  }

  /**
   * How the lane would come to hold `shown`, which must not be empty. Changes nothing; what it borrows may be in any tier.
   * @param without stored sequences not to borrow from
   */
  plan(lane: Lane, shown: Shown, terms: Terms = EXACT, without?: ReadonlySet<Holder>): Plan {
    const own = this.#own(lane)
    const { conversation } = own
    const stored = this.#attic.all.filter((each) => without?.has(each) !== true)
    const lenders = {
      parked: [...this.#holdings.parked(conversation), ...stored.filter((each) => each.conversation === conversation)],
      others: [
        ...this.#holdings.all.filter((holding) => holding.conversation !== conversation && holding.state !== 'scratch'),
        ...stored.filter((each) => each.conversation !== conversation),
      ],
    }
    const { positions, attention } = this.options
    const blends = terms.contract === 'blend' || shown.origin?.holes.some((hole) => hole.contract === 'blend') === true
    const scores = blends ? (attention?.of(conversation, shown) ?? null) : null
    const plan = planStep(own, shown, lenders, {
      terms,
      ...(positions === undefined ? {} : { positions }),
      ...(scores === null ? {} : { scores }),
    })
    if (!needsScratch(plan) || this.#canAdd(own, plan)) return plan
    const reason = `all ${this.#holdings.sequences.total} sequences of the context are taken, and a splice needs one to work in`
    const exact = { ...terms, ...EXACT }
    return { ...planStep(own, withoutContracts(shown), lenders, { terms: exact }), asked: plan.asked, fallback: reason }
  }

  /**
   * Reads what `prepare` would have to read from disk, if anything: decodes and steps of others may go on meanwhile. Null: nothing.
   * Changes nothing on the device.
   */
  fetch(lane: Lane, shown: Shown, terms: Terms = EXACT): Promise<Fetched> | null {
    return this.#attic.fetch(borrowedFrom(this.plan(lane, shown, terms)))
  }

  /**
   * The plan for `shown`, with all that it borrows brought onto the device; where that fails it is computed.
   * @param fetched what was read before; the rest is read now
   */
  async prepare(lane: Lane, shown: Shown, terms: Terms = EXACT, fetched?: Fetched): Promise<Plan> {
    const without = new Set<Holder>()
    for (;;) {
      const plan = this.plan(lane, shown, terms, without)
      const stored = borrowedFrom(plan)
      if (stored.size === 0) return plan
      for (const each of stored) {
        const started = performance.now()
        const state = fetched?.get(each) ?? (await this.#attic.read(each))
        if (state === null || !this.#load(this.#own(lane), plan, each, state)) without.add(each)
        this.#room.spend(performance.now() - started)
      }
    }
  }

  /**
   * Carries the plan out: parks what the lane no longer shows (evicting the longest unused for a sequence id; when none can be had it is
   * lost), removes it from the lane, tags what is borrowed. Afterwards the lane is running and holds all that is not to be computed.
   * The plan must be this lane's, made since the cache last changed, and borrow from the device only (`prepare`): a plan that would reuse
   * other tokens than it shows is refused.
   */
  begin(lane: Lane, plan: Plan, kind: StepKind): Step {
    const started = performance.now()
    const own = this.#own(lane)
    invariant(!own.running, `conversation ${own.conversation} began a step while another is running`)
    verifyPlan(own, plan, (holder) => this.#holdings.has(holder))
    const step = new Step(own, plan, kind)
    own.state = 'running'
    if (needsScratch(plan)) {
      step.scratch = this.#room.add(own.conversation, 'scratch', this.#spare(own, plan), own.seed)
      invariant(step.scratch !== null, 'no sequence was left for a plan that needs one')
    }
    step.predicted = this.#predicted(own, plan)
    const gone = goneFrom(own, plan)
    step.parked = this.#park(own, plan, gone)
    for (const entries of gone.reverse()) this.#holdings.cut(own, entries)
    for (const part of plan.parts)
      if (part.kind === 'borrow' && part.from instanceof Holding) {
        const entries = span(part.at, part.at + length(part.span))
        this.#holdings.lend(part.from, entries, own, own.atPosition(part.from.position(part.at)))
      }
    own.rename(baseOf(plan.shown), keysHeld(plan))
    for (const holding of this.#holdings.all) holding.tier = 'device'
    this.#room.charge(step)
    step.spend('cache', performance.now() - started)
    return step
  }

  /**
   * The prompt tokens that come next, `limit` at most, and where they go; null when the prompt is in. Tokens in the middle of the lane go to a
   * scratch sequence, which is made to hold what they see.
   */
  next(step: Step, limit: number): Chunk | null {
    const { due, lane, scratch } = step
    if (due === null) return null
    const { start, end } = span(due.span.start, Math.min(due.span.end, due.span.start + limit))
    const { tokens } = step.plan.shown
    const chunk = { tokens: tokens.slice(start, end), place: start, position: due.position, last: end === tokens.length }
    if (!step.inMiddle) return { ...chunk, seq: lane.seq }
    invariant(scratch !== null, 'tokens in the middle of a lane have no scratch sequence')
    this.#holdings.lend(lane, span(lane.atPosition(scratch.next), lane.atPosition(due.position)), scratch)
    return { ...chunk, seq: scratch.seq }
  }

  /** Where the next generated token goes. */
  seat(step: Step): Seat {
    return { seq: step.lane.seq, place: step.lane.held, position: step.lane.next }
  }

  /**
   * Makes sure that `count` cells are free, evicting in the stated order. `full`: evicting everything but the running lanes would not be
   * enough; nothing was evicted. `evicted`: cells that were freed, their tokens moved to another tier or lost; they go on the account of the step that commits or begins next.
   */
  reserve(count: number): Reserved {
    return this.#room.reserve(count)
  }

  /**
   * Moves what is parked, the longest unused first, off the device while more than `share` of the cells are in use, so that a later step need
   * not wait for it; one sequence a call, for times when nothing runs. False: nothing to do.
   */
  tidy(share = 0.75): boolean {
    const { cells } = this.#holdings
    const [victim] = this.#holdings.victims()
    if (!this.#attic.open || victim === undefined || victim.state !== 'parked' || cells.used <= cells.total * share) return false
    this.#room.evictUnasked(victim)
    return true
  }

  /**
   * Moves everything off the device while no step runs, the longest unused first, so that the next start of the program finds it. Does nothing
   * without tiers.
   */
  async leave(): Promise<void> {
    if (this.#attic.open) await this.#room.leave(this.#attic)
  }

  /**
   * `tokens` were decoded where `next` or `seat` said; prompt tokens must be the next shown ones.
   * @param milliseconds the step's share of the decode's wall time
   */
  commit(step: Step, tokens: Int32Array, what: StepPart, milliseconds: number): void {
    this.#enter(step, tokens, what)
    step.spend(what === 'prompt' ? 'prefill' : 'decode', milliseconds)
  }

  /**
   * A decode was aborted or failed: re-reads from llama.cpp how many of the `attempted` tokens entered and takes those into the books.
   * Says how many; the step may go on from there.
   */
  settle(step: Step, attempted: Int32Array, what: StepPart): number {
    const holding = step.inMiddle ? step.scratch! : step.lane
    const found = this.#holdings.memory.positions(holding.seq)
    const entered = (found?.max ?? -1) + 1 - holding.next
    invariant(
      entered >= 0 && entered <= attempted.length,
      `sequence ${holding.seq} went on at position ${holding.next} with ${attempted.length} tokens, but llama.cpp says it holds ${JSON.stringify(found)}`,
    )
    this.#enter(step, attempted.subarray(0, entered), what)
    return entered
  }

  /**
   * Ends the step and enters it in the ledger; the lane is idle again. `done` needs the whole prompt committed. `cancelled`: all that was
   * submitted counts as side work; the cells stay with the lane, and the next step reuses them.
   * @param pending tokens that were sampled and not submitted
   */
  finish(step: Step, outcome: 'done' | 'cancelled', pending: number): LedgerEntry {
    const started = performance.now()
    const own = this.#own(step.lane)
    const record = this.#conversations.get(own.conversation)
    invariant(record !== undefined && own.running && !step.ended, `a step of conversation ${own.conversation} was finished twice`)
    this.#dropScratch(step)
    own.extendBase()
    // The lane holds the same: their tags are redundant, and cells that only they hold are duplicates.
    for (const parked of this.#holdings.parked(own.conversation)) if (own.covers(parked)) this.#holdings.drop(parked)
    step.spend('cache', performance.now() - started)
    const entry = step.entry(record.ledger.length, outcome, pending, record.before)
    step.ended = true
    own.state = 'idle'
    this.#holdings.touch(own)
    record.ledger.push(entry)
    if (outcome === 'done') record.before = step.left
    return entry
  }

  /** Drops a conversation: its lane, its versions and its ledger. An unknown one is ignored; a running one is the caller's mistake. */
  forget(conversation: ConversationId): void {
    const running = this.#conversations.lane(conversation)?.running ?? false
    invariant(!running, `conversation ${conversation} cannot be forgotten while a step is running`)
    for (const holding of this.#holdings.all) if (holding.conversation === conversation) this.#holdings.drop(holding)
    this.#attic.forget(conversation)
    this.#conversations.delete(conversation)
  }

  /** The conversation's live lane; null when it has none. */
  lane(conversation: ConversationId): Lane | null {
    return this.#conversations.lane(conversation)
  }

  /** What the conversation's last finished step showed, generated tokens included, without the edits' contracts; null before the first. */
  shown(conversation: ConversationId): Shown | null {
    return this.#conversations.get(conversation)?.before ?? null
  }

  /**
   * Rewrites an idle conversation's cells next to each other, from the lowest free ones on, so that attention need not run over the cells
   * between them that were freed (kv-mechanics.md: there is no defragmentation). Values and positions stay. Says how many cells were
   * rewritten: 0 where the conversation is running, holds nothing, or shares cells with others, who would keep the old ones alive.
   */
  compact(conversation: ConversationId): number {
    const own = this.#movable(conversation)
    return own === null ? 0 : this.#holdings.compact(own)
  }

  /**
   * Closes the gaps that splices left in an idle conversation's positions, by turning its keys to lower ones: an approximation, which the
   * ledger counts from the next step on. Says by how many positions the conversation became shorter: 0 where it is running, holds nothing,
   * has no gaps, shares cells with others (a shift moves them for all), or where the model's positions cannot be shifted.
   */
  closeGaps(conversation: ConversationId): number {
    const own = this.#movable(conversation)
    return own === null ? 0 : this.#holdings.closeGaps(own)
  }

  /** The lane of a conversation that is idle and shares no cell; null when there is none. */
  #movable(conversation: ConversationId): Holding | null {
    const own = this.#conversations.lane(conversation)
    if (own === null || own.running || own.held === 0) return null
    for (let entry = 0; entry < own.held; entry++) if (!own.isAlone(entry)) return null
    return own
  }

  /** The conversation's steps, oldest first; empty for an unknown one. */
  ledger(conversation: ConversationId): readonly LedgerEntry[] {
    return this.#conversations.get(conversation)?.ledger ?? []
  }

  /** Where the conversation's cells of these tokens of its unedited prompt are. Changes nothing; what is not the conversation's does not count. */
  whereabouts(conversation: ConversationId, base: Int32Array, stretches: readonly Span[]): readonly Whereabouts[] {
    const own = this.#holdings.all.filter((each) => each.conversation === conversation && each.state !== 'scratch')
    const stored = this.#attic.all.filter((each) => each.conversation === conversation)
    return whereabouts(base, stretches, [
      ...own.map((holder) => ({ holder, where: holder.state === 'parked' ? ('parked' as const) : ('live' as const) })),
      ...stored.map((holder) => ({ holder, where: holder.tier })),
    ])
  }

  /** Looks at every held cell: not for inner loops. */
  get totals(): CacheTotals {
    const { cells, sequences } = this.#holdings
    return {
      cells: cells.total,
      used: cells.used,
      free: cells.free,
      reach: cells.reach,
      parked: cells.used - this.#holdings.cellsOf(({ state }) => state !== 'parked'),
      sequences: { used: sequences.used, total: sequences.total },
      versions: this.#holdings.all.filter(({ state }) => state === 'parked').length,
      tiers: this.#attic.totals,
    }
  }

  /**
   * Integrity. `books`: our accounts agree with themselves. `positions`: also the positions of every sequence, read back from llama.cpp
   * (cheap enough after every step). `full`: also every cell's position and tags (copies the cache: for tests).
   * @throws KvfoldError internal/invariant naming what differs
   */
  check(level: 'books' | 'positions' | 'full'): void {
    checkBooks(this.#holdings)
    if (level !== 'books') checkPositions(this.#holdings)
    if (level === 'full') checkReadback(this.#holdings)
  }

  /** The lane behind a handle; a handle to a lane that was dropped is the caller's mistake. */
  #own(lane: Lane): Holding {
    invariant(this.#holdings.has(lane), `the lane of conversation ${lane.conversation} was dropped; open it again`)
    return lane
  }

  /** Tokens entered the cache. */
  #enter(step: Step, tokens: Int32Array, what: StepPart): void {
    const own = this.#own(step.lane)
    const keys = step.keysOf(tokens, what)
    if (what === 'prompt' && step.inMiddle) this.#enterMiddle(own, step.scratch!, tokens, keys)
    else own.append(tokens, keys)
    step.submit(what, tokens.length)
    if (!step.inMiddle) this.#dropScratch(step)
    this.#room.charge(step)
  }

  /** The scratch sequence computed tokens; the lane holds them, too, from now on. */
  #enterMiddle(own: Holding, scratch: Holding, tokens: Int32Array, keys: Int32Array): void {
    const { held, next } = scratch
    scratch.append(tokens, keys)
    this.#holdings.lend(scratch, span(held, scratch.held), own, own.atPosition(next))
  }

  #dropScratch(step: Step): void {
    const { scratch } = step
    if (scratch === null) return
    step.scratch = null
    scratch.state = 'parked'
    this.#holdings.drop(scratch)
  }

  /**
   * Parks these entries of the lane, but for those that are parked already, and those that the step computes again though they are what it
   * shows; says how many. When no sequence id can be had they are lost.
   */
  #park(own: Holding, plan: Plan, gone: readonly Span[]): number {
    const worth = worthParking(own, plan, gone, this.#holdings.parked(own.conversation))
    if (worth.length === 0) return 0
    const version = this.#room.add(
      own.conversation,
      'parked',
      this.#spare(own, plan).filter(({ state }) => state === 'parked'),
      own.seed,
    )
    if (version === null) return 0
    version.base = own.base
    for (const entries of worth) this.#holdings.lend(own, entries, version)
    return version.held
  }

  /** Milliseconds that the plan will take until the first token can be sampled, as far as the machine's costs are known. */
  #predicted(own: Holding, plan: Plan): number | null {
    const model = this.options.costs?.model ?? null
    if (model === null) return null
    const { used } = this.#holdings.cells
    return timeOf(model, prospectOf(plan, own.held, { before: used, after: used }))
  }

  /** What may be dropped for a sequence id without harm to the plan, in the stated order. */
  #spare(own: Holding, { parts }: Plan): readonly Holding[] {
    const needed = new Set<Holder>([own, ...parts.flatMap((part) => (part.kind === 'borrow' ? [part.from] : []))])
    return this.#holdings.victims().filter((victim) => !needed.has(victim))
  }

  #canAdd(own: Holding, plan: Plan): boolean {
    const { used, total } = this.#holdings.sequences
    return used < total || this.#spare(own, plan).length > 0
  }

  /** Brings a stored sequence onto the device, as a parked one; false when there is no room, or its values were refused. */
  #load(own: Holding, plan: Plan, stored: Stored, state: Uint8Array): boolean {
    const { cells, memory } = this.#holdings
    const spare = this.#spare(own, plan)
    this.#room.make(stored.held, spare)
    const holding =
      stored.held <= cells.free ? this.#room.add(stored.conversation, 'parked', this.#spare(own, plan), own.seed) : null
    if (holding === null) return false
    if (!memory.loadSequence(holding.seq, state, { verify: false })) {
      this.#holdings.drop(holding)
      this.#attic.drop(stored, true)
      return false
    }
    holding.load(stored.record)
    holding.tier = stored.tier
    this.#attic.drop(stored)
    return true
  }
}

/** The stored sequences that the plan borrows from. */
const borrowedFrom = ({ parts }: Plan): ReadonlySet<Stored> =>
  new Set(parts.flatMap((part) => (part.kind === 'borrow' && part.from instanceof Stored ? [part.from] : [])))
