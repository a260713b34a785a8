/**
 * The cache for models whose attention keeps a cell for every token. For each step it makes the conversation's live sequence hold the shown
 * tokens, and it counts the cost.
 */
import { invariant } from '../core/errors.js'
import type { ConversationId } from '../core/ids.js'
import { length, span } from '../core/span.js'
import { CacheBase } from './cache-base.js'
import type { CostModel, TierRates } from './cost-model.js'
import type { HeldTexts } from './block-events.js'
import { predictedTime } from './forecast.js'
import { MidSequencePrefill, KeyRotation } from './scratch.js'
import { checkBooks, checkPositions, checkReadback } from './integrity.js'
import type { StepKind } from './ledger.js'
import type { KvMemory } from './ports.js'
import { OffloadedSequence, offloadRecordOf, OffloadTiers, type ReadStates, type SavedState } from './offload.js'
import { borrowedFrom, forgetHidden, IdleOffload, Parking, type ParkingOptions, Reloader } from './parking.js'
import { EXACT, type StepContract } from './plan/parts.js'
import { computedIn, withRedecoded, neededBy, type Plan, spansHeld, verifyPlan } from './plan/plan.js'
import { LOST_BELOW, Planner, type PlannerOptions } from './plan/planner.js'
import { type Prompt, uneditedOf } from './prompt.js'
import { ANSWERS } from './tier-policy.js'
import { type CacheTotals, totalsOf } from './residency.js'
import { SlicedOffload } from './sliced-offload.js'
import { Conversations } from './sequence-table.js'
import { type HeldSequence, type LiveSequence, Sequence } from './sequence.js'
import { SharedCells, type SharedOptions } from './shared-cells.js'
import { type Chunk, type WritePosition, Step, type StepPart } from './step.js'
import type { StepCache } from './step-cache.js'

export interface KvCacheOptions extends PlannerOptions, Pick<ParkingOptions, 'fewest'> {
  /** The tiers below the device. Default: none. */
  readonly offload?: OffloadTiers
  /** The tier through which this engine and others find each other's cells. Default: none. */
  readonly shared?: SharedOptions
  /**
   * Measurements of this machine. Each is null until it was measured, and may be set later. `model` serves predictions in the ledger.
   * `rates` decide whether it pays to move cells off the device; without them, cells move only when others need their room.
   */
  readonly costs?: { readonly model: CostModel | null; readonly rates: TierRates | null }
}

/**
 * The KV cache. Under contract `exact` a live sequence's cells equal a fresh prefill of its tokens. Under `splice` and `blend` some cells
 * may be approximate, and the ledger counts them (Contract). A cell's hash says whether the cell is exact, so approximate cells never count
 * as exact ones. SequenceTable documents which sequences are dropped for room, and in which order.
 */
export class KvCache extends CacheBase implements StepCache {
  readonly #planner: Planner
  readonly #parking: Parking
  readonly #idleOffload: IdleOffload
  readonly #sliced: SlicedOffload
  readonly #reloader: Reloader
  readonly #shared: SharedCells | null
  readonly #middle: MidSequencePrefill
  readonly #turning: KeyRotation

  /** @param memory An empty memory. No other object may tag or untag cells in it. */
  constructor(
    memory: KvMemory,
    private readonly options: KvCacheOptions = {},
  ) {
    super(memory, options.offload)
    const { fewest, costs = { model: null, rates: null }, shared } = options
    this.#planner = new Planner(this.table, this.conversations, this.offload, options)
    const pays = { costs, ...(fewest === undefined ? {} : { fewest }) }
    this.#parking = new Parking(this.table, this.conversations, this.offload, this.evictor, pays)
    this.#idleOffload = new IdleOffload(this.table, this.conversations, this.offload, pays)
    this.#sliced = new SlicedOffload(this.table, this.offload, (victim) => {
      this.evictor.moved(victim)
      if (victim.state === 'parked') this.#parking.moved(victim)
    })
    this.#reloader = new Reloader(this.table, this.offload, this.evictor, this.#parking)
    this.#shared = shared === undefined ? null : new SharedCells(this.table, this.conversations, shared)
    this.#middle = new MidSequencePrefill(this.table, this.evictor)
    this.#turning = new KeyRotation(this.table, this.evictor)
  }

  inherit(...args: Parameters<Conversations['inherit']>): void {
    this.conversations.inherit(...args)
  }

  plan(sequence: LiveSequence, prompt: Prompt, terms: StepContract = EXACT): Plan {
    return this.#planner.plan(this.own(sequence), prompt, terms)
  }

  fetch(sequence: LiveSequence, prompt: Prompt, terms: StepContract = EXACT): Promise<ReadStates> | null {
    if (!this.offload.hasDisk && this.#shared === null) return null
    const started = performance.now()
    const plan = this.plan(sequence, prompt, terms)
    this.evictor.spend(performance.now() - started)
    const below = this.offload.fetch(borrowedFrom(plan).keys())
    return this.#shared?.fetch(this.own(sequence), plan, below) ?? below
  }

  forgetting(conversation: ConversationId, prompt: Prompt): Promise<void> | null {
    return this.#shared?.hasForgotten(conversation, prompt) === false ? this.forgetHidden(conversation, prompt) : null
  }

  async publish(...of: Parameters<SharedCells['publish']>): Promise<void> {
    await this.#shared?.publish(...of)
  }

  async prepare(sequence: LiveSequence, prompt: Prompt, terms: StepContract = EXACT, fetched?: ReadStates): Promise<Plan> {
    const own = this.own(sequence)
    await this.forgetHidden(own.conversation, prompt)
    const without = new Map<HeldSequence, string>()
    const states = new Map<OffloadedSequence, SavedState>()
    const incoming = new Set([...(fetched?.keys() ?? [])].filter(({ tier }) => tier === 'shared'))
    for (const [stored, state] of fetched ?? [])
      if (state === null) without.set(stored, LOST_BELOW)
      else states.set(stored, state)
    /**
     * 1 once a plan found the prompt's last token in the cache, so that it is decoded only for its logits. It survives the loop, because
     * making room may take that token out of the live sequence.
     */
    let redecoded: 0 | 1 = 0
    try {
      for (;;) {
        const started = performance.now() - this.evictor.evicting
        const plan = this.#planner.plan(own, prompt, terms, without, incoming)
        const wanted = [...borrowedFrom(plan).keys()]
        const [first] = wanted
        if (first === undefined) {
          this.evictor.spend(performance.now() - started - this.evictor.evicting)
          return withRedecoded(plan, redecoded)
        }
        redecoded = plan.redecoded
        // Loading the first sequence may push the others out of host memory, so all of them are read first.
        for (const each of wanted) {
          const state = states.get(each) ?? (await this.offload.read(each))
          if (state !== null) states.set(each, state)
          else without.set(each, LOST_BELOW)
        }
        const state = states.get(first)
        if (state !== undefined && wanted.every((each) => states.has(each))) {
          this.offload.claim(wanted)
          const reason = await this.#reloader.load(own, plan, first, state)
          if (reason !== null) without.set(first, reason)
          else incoming.delete(first)
        }
        // `make` and `evict` record the time of evictions themselves.
        this.evictor.spend(performance.now() - started - this.evictor.evicting)
      }
    } finally {
      this.offload.claim([])
      this.#reloader.end(own)
    }
  }

  /**
   * Carries out a plan:
   *
   * - Parks the entries that the live sequence no longer shows, and removes them from it. If no sequence id is free, the longest unused
   *   parked version is evicted for one. If there is none, the entries are lost.
   * - Tags the borrowed cells, and copies the cells that go to other positions.
   *
   * If no other step runs (`alone`), it also moves parked versions off the device, if this step's own tokens pay for that (tier-policy.ts).
   * These may be versions of earlier steps and of this one. Between the decodes that follow, `SlicedOffload` moves other versions that slow
   * decodes, and sequences that have been idle for long.
   *
   * If a change of the cells fails, for instance for lack of memory, the conversation loses its live sequence.
   */
  begin(sequence: LiveSequence, plan: Plan, kind: StepKind, alone = false): Step {
    const own = this.own(sequence)
    invariant(!own.running, `conversation ${own.conversation} began a step while another is running`)
    const [due, needed, held] = [computedIn(plan), neededBy(own, plan), own.held]
    if (alone) this.#parking.relieve(own, needed, due)
    const burdens = this.#parking.burdens(own.conversation, { due, ahead: ANSWERS }, needed)
    for (const victim of [...burdens, ...this.#idleOffload.due(needed, due)]) this.#sliced.later(victim)
    const started = performance.now() - this.evictor.spent
    verifyPlan(own, plan, (holder) => this.table.has(holder))
    const step = new Step(own, plan, kind)
    own.state = 'running'
    try {
      this.#carryOut(step, alone, due)
    } catch (error) {
      this.#middle.close(step)
      own.state = 'idle'
      this.table.drop(own)
      this.conversations.unseat(own)
      throw error
    }
    step.predicted = predictedTime(this.options.costs?.model ?? null, plan, held, this.table.cells.used)
    for (const sequence of this.table.all) sequence.tier = 'device'
    // The time of evictions is charged below, so it is not counted here.
    step.spend('cache', performance.now() - started - this.evictor.spent)
    this.evictor.charge(step)
    return step
  }

  #carryOut(step: Step, alone: boolean, due: number): void {
    const { plan, sequence: own } = step
    this.#middle.open(step, own, plan)
    step.recomputeReason = this.#planner.recomputeReason(own, plan, this.conversations.before(own.conversation))
    const lenders = this.table.parked(own.conversation).filter(({ lent }) => lent)
    for (const lender of lenders) lender.lent = false
    const copies = this.#turning.take(step, plan)
    step.parked = this.#reloader.takeParked() + this.#parking.parkGone(own, plan)
    for (const part of plan.parts)
      if (part.kind === 'borrow' && part.from instanceof Sequence) {
        const entries = span(part.at, part.at + length(part.span))
        this.table.lend(part.from, entries, own, own.atPosition(part.from.position(part.at)))
        part.from.lent = true
      }
    this.#turning.put(step, copies)
    if (!step.inMiddle) this.#middle.close(step)
    own.rename(uneditedOf(plan.prompt), plan.sourceIds, spansHeld(plan))
    if (alone) this.#parking.relieve(own, new Set(lenders), due)
  }

  /**
   * Returns the next prompt tokens and where they go. Tokens in the middle of the live sequence go to a scratch sequence, which first gets
   * the cells before them.
   */
  next(step: Step, limit: number): Chunk | null {
    const { due, sequence } = step
    if (due === null) return null
    const { start, end } = span(due.span.start, Math.min(due.span.end, due.span.start + limit))
    const { tokens } = step.plan.prompt
    const chunk = { tokens: tokens.slice(start, end), place: start, position: due.position, last: end === tokens.length }
    return { ...chunk, seq: step.inMiddle ? this.#middle.seat(step, due.position) : sequence.seq }
  }

  seat(step: Step): WritePosition {
    return { seq: step.sequence.seq, place: step.sequence.held, position: step.sequence.next }
  }

  get spare(): number {
    return this.table.cells.free
  }

  get moving(): boolean {
    return this.#sliced.busy
  }

  async moveOn(milliseconds: number): Promise<void> {
    const started = performance.now()
    await this.#sliced.slice(milliseconds)
    this.evictor.spend(performance.now() - started)
  }

  async tidy(share = 0.75, milliseconds = Infinity): Promise<boolean> {
    const next = this.#sliced.busy ? null : this.#parking.next(share)
    if (next !== null) this.#sliced.later(next)
    const isBusy = (await this.#sliced.slice(milliseconds)) || this.#parking.gather()
    // No step waited for these copies, so their time counts for no step.
    this.table.takeCopied()
    return isBusy
  }

  commit(step: Step, tokens: Int32Array, what: StepPart, milliseconds: number): void {
    this.#enter(step, tokens, what)
    step.spend(what === 'prompt' ? 'prefill' : 'decode', milliseconds)
  }

  settle(step: Step, attempted: Int32Array, what: StepPart): number {
    const sequence = step.inMiddle ? step.scratch! : step.sequence
    const found = this.table.memory.positions(sequence.seq)
    const entered = (found?.max ?? -1) + 1 - sequence.next
    invariant(
      entered >= 0 && entered <= attempted.length,
      `sequence ${sequence.seq} continued at position ${sequence.next} with ${attempted.length} tokens, but llama.cpp says it holds ${JSON.stringify(found)}`,
    )
    this.#enter(step, attempted.subarray(0, entered), what)
    return entered
  }

  verified(step: Step, accepted: number, rejected: number): void {
    const own = this.own(step.sequence)
    invariant(own.running && !step.ended, `drafts of conversation ${own.conversation} were verified outside of a step`)
    this.table.cut(own, span(own.held - rejected, own.held))
    step.drafted(accepted, rejected)
  }

  protected ending(step: Step, own: Sequence): void {
    this.#middle.close(step)
    own.extendBase()
    // Drop every parked version whose tokens the live sequence holds at the same positions with the same values.
    for (const parked of this.table.parked(own.conversation)) if (own.covers(parked)) this.table.drop(parked)
  }

  override forget(conversation: ConversationId): void {
    super.forget(conversation)
    this.#parking.forget(conversation)
  }

  override async erase(conversation: ConversationId): Promise<void> {
    await Promise.all([super.erase(conversation), this.#shared?.forget(conversation)])
  }

  async forgetHidden(conversation: ConversationId, prompt: Prompt): Promise<void> {
    await forgetHidden({ table: this.table, conversations: this.conversations, offload: this.offload }, conversation, prompt)
    await this.#shared?.forgetHidden(conversation, prompt)
  }

  closeGaps(conversation: ConversationId): number {
    const own = this.conversations.live(conversation)
    if (own?.running !== false || own.held === 0) return 0
    // Only the cells behind the first gap move. Those before it may be shared.
    const from = own.position(0) > 0 ? 0 : own.endOfRun(0)
    const isAlone = own.alone.some(({ start, end }) => start <= from && end === own.held)
    return isAlone ? this.table.closeGaps(own) : 0
  }

  held(): HeldTexts {
    const device = this.table.all
      .filter(({ state }) => state !== 'scratch')
      .map((holder) => ({
        ...{ holder, salt: holder.salt, tokens: holder.tokens, exact: holder.exact },
        changed: holder.takeChanged(),
      }))
    const stored = this.offload.all.flatMap(({ record, tier }) => {
      const salt = this.conversations.get(record.conversation)?.salt
      return salt === undefined ? [] : [{ record, tier, salt }]
    })
    return { device, stored }
  }

  get revision(): number {
    return this.table.revision + this.offload.revision
  }

  get totals(): CacheTotals {
    return totalsOf(this.table, this.offload, this.#shared?.counts)
  }

  check(level: 'books' | 'positions' | 'full'): void {
    checkBooks(this.table)
    if (level !== 'books') checkPositions(this.table)
    if (level === 'full') checkReadback(this.table)
  }

  /** Records tokens that a decode added to the cache, and counts them for the step. */
  #enter(step: Step, tokens: Int32Array, what: StepPart): void {
    const own = this.own(step.sequence)
    const keys = step.keysOf(tokens, what)
    if (what === 'prompt' && step.inMiddle) this.#middle.enter(step, tokens, keys)
    else own.append(tokens, keys)
    if (tokens.length > 0) this.table.cells.settle()
    step.submit(what, tokens.length)
    this.table.count(what, tokens.length)
    if (!step.inMiddle) this.#middle.close(step)
    this.evictor.charge(step)
  }

  protected keep(victim: Sequence, sparing: boolean): boolean {
    if (!this.offload.open || victim.held === 0 || !victim.settled) return false
    const state = this.table.save(victim)
    if (state === null) return false
    return this.offload[sparing ? 'offer' : 'put'](offloadRecordOf(victim), state)
  }
}
