/** Owns the life of a step where a sequence can only be extended: recurrent and hybrid models, and windows that forget. */
import { invariant } from '../core/errors.js'
import { seqId, type ConversationId } from '../core/ids.js'
import { length, span } from '../core/span.js'
import { Attic } from './attic.js'
import type { CacheTotals } from './cache.js'
import { Checkpoints, checkpointPlaces } from './checkpoints.js'
import { EXACT, type Terms } from './contract.js'
import type { Holder } from './holder.js'
import type { Holding, Lane } from './holding.js'
import { Holdings } from './holdings.js'
import { checkBooks } from './integrity.js'
import type { LedgerEntry, StepKind } from './ledger.js'
import type { KvMemory } from './memory.js'
import { held, type Part } from './part.js'
import { keysHeld, type Plan } from './plan.js'
import { commonPrefix } from './prefix.js'
import { baseOf, keysOf, type Shown } from './shown.js'
import type { StepCache } from './step-cache.js'
import { Step, type Chunk, type Seat, type StepPart } from './step.js'
import { Stored } from './stored.js'

export interface LinearCacheOptions {
  /** Why contracts other than exact are not available, for the ledger. */
  readonly refusal: string
  /** Where checkpoints are kept. Default: nowhere, so that every edit computes the whole text again. */
  readonly attic?: Attic
}

/** What outlives a lane that was dropped for room. */
interface Conversation {
  lane: Holding | null
  readonly ledger: LedgerEntry[]
  before: Shown | null
}

/** Beyond any position: a span up to here is the whole of a sequence, whatever it holds. */
const END = 2 ** 31 - 1

/**
 * A cache of sequences that can be extended, emptied, saved whole and loaded whole, and nothing else; so every step keeps to contract `exact`.
 * Where what is shown does not go on from what the lane holds, the lane goes back: it is emptied, the longest checkpoint that is a beginning of
 * what is shown is loaded into it, and the rest is computed. What it held is saved before, because an edit may be undone.
 *
 * The calls and their order are those of KvCache. Sequences share nothing: a checkpoint of another conversation is loaded as a copy.
 *
 * The books count a cell a token, which is what a hybrid model's attention takes; a recurrent state takes none, so there they only bound how
 * many tokens lanes stand for before idle ones are moved to checkpoints, which cost little.
 */
export class LinearCache implements StepCache {
  readonly #holdings: Holdings
  readonly #attic: Attic
  readonly #checkpoints: Checkpoints
  readonly #conversations = new Map<ConversationId, Conversation>()
  /** Where running steps still save their state, in order. */
  readonly #places = new WeakMap<Step, number[]>()
  /** Steps whose sequence was lost under them; they can only be cancelled. */
  readonly #lost = new WeakSet<Step>()
  readonly #running = new Set<Step>()
  /** Cells freed by evictions, tokens parked, and milliseconds spent, that are on no step's account yet. */
  #evicted = 0
  #moved = 0
  #parked = 0
  #milliseconds = 0

  /** `memory` must be empty, and nobody else may change it. */
  constructor(
    private readonly memory: KvMemory,
    private readonly options: LinearCacheOptions,
  ) {
    this.#holdings = new Holdings(memory)
    this.#attic = options.attic ?? new Attic({})
    this.#checkpoints = new Checkpoints(memory, this.#attic)
  }

  open(conversation: ConversationId): ReturnType<StepCache['open']> {
    const known = this.#conversations.get(conversation)
    if (known?.lane) return { kind: 'lane', lane: known.lane }
    const { sequences } = this.#holdings
    const [victim] = this.#holdings.victims()
    if (sequences.used === sequences.total && victim !== undefined) this.#evict(victim)
    const lane = this.#holdings.add(conversation, 'idle')
    if (lane === null) {
      const reason = `All ${sequences.total} sequences of the context are running; wait for one to end, or load the model with more sequences.`
      return { kind: 'full', reason }
    }
    if (known === undefined) this.#conversations.set(conversation, { lane, ledger: [], before: null })
    else known.lane = lane
    return { kind: 'lane', lane }
  }

  plan(lane: Lane, shown: Shown, { contract: asked }: Terms = EXACT, without?: ReadonlySet<Holder>): Plan {
    const own = this.#own(lane)
    const { tokens } = shown
    invariant(tokens.length > 0, `conversation ${lane.conversation} was asked to show no tokens at all`)
    const kept = own.held < tokens.length && commonPrefix(own.tokens, tokens) === own.held ? own.held : 0
    const holder = this.#checkpoints.before(tokens, kept, own.conversation, without) ?? own
    const reused = holder === own ? kept : holder.held
    const parts: Part[] = [{ kind: 'compute', span: span(reused, tokens.length), position: reused }]
    if (reused > 0) parts.unshift(held(own, holder, span(0, reused), 0))
    const fallback = asked === 'exact' ? null : this.options.refusal
    return { shown, keys: keysOf(shown), asked, contract: 'exact', fallback, parts, again: 0 }
  }

  /** The plan for `shown`; if it goes on from a checkpoint the lane holds that now, and what it held is saved. */
  async prepare(lane: Lane, shown: Shown, terms: Terms = EXACT): Promise<Plan> {
    const without = new Set<Holder>()
    for (;;) {
      const plan = this.plan(lane, shown, terms, without)
      const [head] = plan.parts
      if (head?.kind !== 'borrow' || !(head.from instanceof Stored)) return plan
      const started = performance.now()
      const state = await this.#attic.read(head.from)
      const loaded = state !== null && this.#goBack(this.#own(lane), shown, head.from, state)
      this.#milliseconds += performance.now() - started
      if (loaded) return plan
      without.add(head.from)
    }
  }

  /** Begins a step on a lane that holds what the plan reuses (`prepare`); a lane from which it keeps nothing is saved and emptied. */
  begin(lane: Lane, plan: Plan, kind: StepKind): Step {
    const started = performance.now()
    const own = this.#own(lane)
    const { shown } = plan
    invariant(!own.running, `conversation ${own.conversation} began a step while another is running`)
    const [head] = plan.parts
    if (head?.kind === 'compute') this.#leave(own, shown)
    const reused = head === undefined || head.kind === 'compute' ? 0 : length(head.span)
    const same = commonPrefix(own.tokens, shown.tokens)
    invariant(own.held === reused && same === reused, `the lane of ${own.conversation} does not hold what its plan reuses`)
    const step = new Step(own, plan, kind)
    own.state = 'running'
    own.rename(baseOf(shown), keysHeld(plan))
    this.#running.add(step)
    const places = this.#attic.open ? checkpointPlaces(shown).filter((place) => place > reused) : []
    this.#places.set(step, places)
    step.parked = this.#parked
    this.#parked = 0
    this.#charge(step)
    step.spend('cache', performance.now() - started)
    return step
  }

  /** Up to the next place where the state is to be saved. */
  next(step: Step, limit: number): Chunk | null {
    this.#refuseLost(step)
    const { due, lane, plan } = step
    if (due === null) return null
    const { tokens } = plan.shown
    const { start } = due.span
    const [stop = tokens.length] = this.#places.get(step) ?? []
    const end = Math.min(due.span.end, start + limit, stop)
    return { seq: lane.seq, tokens: tokens.slice(start, end), position: due.position, last: end === tokens.length }
  }

  seat(step: Step): Seat {
    this.#refuseLost(step)
    return { seq: step.lane.seq, position: step.lane.next }
  }

  reserve(count: number): ReturnType<StepCache['reserve']> {
    const { cells } = this.#holdings
    if (count <= cells.free) return { kind: 'ok', evicted: 0 }
    if (count > cells.total - this.#holdings.cellsOf(({ running }) => running))
      return { kind: 'full', needed: count, free: cells.free }
    const evicted = this.#makeRoom(count, this.#holdings.victims())
    invariant(count <= cells.free, `${count} cells were promised and only ${cells.free} are free`)
    return { kind: 'ok', evicted }
  }

  /** Nothing to tidy: nothing is parked on the device. */
  tidy(): boolean {
    return false
  }

  commit(step: Step, tokens: Int32Array, what: StepPart, milliseconds: number): void {
    this.#enter(step, tokens, what)
    step.spend(what === 'prompt' ? 'prefill' : 'decode', milliseconds)
    const places = this.#places.get(step)
    if (what !== 'prompt' || places?.[0] !== step.lane.held) return
    places.shift()
    const started = performance.now()
    this.#checkpoints.save(step.lane)
    step.spend('cache', performance.now() - started)
  }

  /**
   * A decode was aborted, failed, or found no room. If anything entered, the state is neither what it was nor what it should be, whatever
   * position it names (llama.cpp moves that before it computes): the lane is emptied, and the step can only be cancelled.
   */
  settle(step: Step, attempted: Int32Array, what: StepPart): number {
    const { lane } = step
    const entered = (this.memory.positions(lane.seq)?.max ?? -1) + 1 - lane.held
    if (entered === 0) return 0
    invariant(
      entered <= attempted.length,
      `sequence ${lane.seq} went on at position ${lane.held} with ${attempted.length} tokens and ended ${entered} further`,
    )
    // Submitted all the same: llama.cpp took them in. Less than nothing when it dropped the whole sequence.
    if (entered > 0) step.submit(what, entered)
    this.#lose(lane)
    return 0
  }

  /** A decode of several sequences failed: states may have been on their way from one place to another, so none is trusted any more. */
  distrust(): void {
    for (const holding of this.#holdings.all) this.#lose(holding)
  }

  finish(step: Step, outcome: 'done' | 'cancelled', pending: number): LedgerEntry {
    const started = performance.now()
    const own = this.#own(step.lane)
    const record = this.#conversations.get(own.conversation)
    invariant(record !== undefined && own.running && !step.ended, `a step of conversation ${own.conversation} was finished twice`)
    if (outcome === 'done') this.#refuseLost(step)
    own.extendBase()
    this.#charge(step)
    step.spend('cache', performance.now() - started)
    const { shown } = step
    const entry = step.entry(record.ledger.length, outcome, pending, record.before)
    step.ended = true
    own.state = 'idle'
    this.#running.delete(step)
    this.#holdings.touch(own)
    record.ledger.push(entry)
    if (outcome === 'done') {
      const origin = { base: own.base, holes: step.plan.shown.origin?.holes ?? [] }
      record.before = { messages: shown.messages, tokens: own.tokens.slice(), origin }
    }
    return entry
  }

  forget(conversation: ConversationId): void {
    const lane = this.#conversations.get(conversation)?.lane ?? null
    invariant(lane?.running !== true, `conversation ${conversation} cannot be forgotten while a step is running`)
    if (lane !== null) this.#holdings.drop(lane)
    this.#attic.forget(conversation)
    this.#conversations.delete(conversation)
  }

  lane(conversation: ConversationId): Lane | null {
    return this.#conversations.get(conversation)?.lane ?? null
  }

  shown(conversation: ConversationId): Shown | null {
    return this.#conversations.get(conversation)?.before ?? null
  }

  /** Rewrites the cells of an idle conversation next to each other; where there is no attention it changes nothing. */
  compact(conversation: ConversationId): number {
    const own = this.#conversations.get(conversation)?.lane ?? null
    return own === null || own.running || own.held === 0 ? 0 : this.#holdings.compact(own)
  }

  /** There are no gaps. */
  closeGaps(): number {
    return 0
  }

  ledger(conversation: ConversationId): readonly LedgerEntry[] {
    return this.#conversations.get(conversation)?.ledger ?? []
  }

  get totals(): CacheTotals {
    const { cells, sequences } = this.#holdings
    return {
      cells: cells.total,
      used: cells.used,
      free: cells.free,
      reach: cells.reach,
      parked: 0,
      sequences: { used: sequences.used, total: sequences.total },
      versions: 0,
      tiers: this.#attic.totals,
    }
  }

  /**
   * `books`: our accounts agree with themselves. Else also: every sequence ends in llama.cpp where the books say. That is all such a memory
   * tells: its first position depends on what it keeps, and cells cannot be read back.
   */
  check(level: 'books' | 'positions' | 'full'): void {
    checkBooks(this.#holdings)
    if (level === 'books') return
    const ends = new Map(this.#holdings.all.map(({ seq, held }) => [seq, held - 1]))
    for (let id = 0; id < this.memory.sequences; id++) {
      const expected = ends.get(seqId(id)) ?? -1
      const found = this.memory.positions(seqId(id))?.max ?? -1
      invariant(expected === found, `sequence ${id} should end at position ${expected} and ends at ${found} (-1: it is empty)`)
    }
  }

  #own(lane: Lane): Holding {
    invariant(this.#holdings.has(lane), `the lane of conversation ${lane.conversation} was dropped; open it again`)
    return lane
  }

  #refuseLost(step: Step): void {
    invariant(!this.#lost.has(step), `the sequence of conversation ${step.lane.conversation} was lost, and its step went on`)
  }

  #enter(step: Step, tokens: Int32Array, what: StepPart): void {
    const own = this.#own(step.lane)
    this.#refuseLost(step)
    invariant(own.running && !step.ended, `tokens were decoded for conversation ${own.conversation} outside of a step`)
    const { due, plan } = step
    if (what === 'prompt') {
      const { start } = due?.span ?? span(0, 0)
      const next = plan.shown.tokens.subarray(start, start + tokens.length)
      invariant(
        due !== null && tokens.length <= length(due.span) && commonPrefix(next, tokens) === tokens.length,
        `other tokens than the next ones of the prompt were decoded for ${own.conversation}`,
      )
      own.append(tokens, plan.keys.subarray(start, start + tokens.length))
    } else {
      invariant(due === null, `tokens were generated for conversation ${own.conversation} before its prompt was in`)
      own.append(tokens, own.keysAfter(tokens.length))
    }
    step.submit(what, tokens.length)
    this.#charge(step)
  }

  /** Puts a checkpoint in the place of what the lane holds; false when there is no room for it, or it was refused. */
  #goBack(own: Holding, shown: Shown, stored: Stored, state: Uint8Array): boolean {
    this.#leave(own, shown)
    this.#makeRoom(
      stored.held,
      this.#holdings.victims().filter((victim) => victim !== own),
    )
    if (stored.held > this.#holdings.cells.free) return false
    if (!this.memory.loadSequence(own.seq, state, { verify: false })) {
      this.#attic.drop(stored, true)
      return false
    }
    own.load(stored.record)
    return true
  }

  /** Saves what the lane holds, and empties it. */
  #leave(own: Holding, shown: Shown): void {
    if (own.held === 0) return
    const gone = own.held - commonPrefix(own.tokens, shown.tokens)
    if (this.#checkpoints.save(own)) this.#parked += gone
    this.#holdings.cut(own, span(0, own.held))
  }

  /** The sequence's state is worth nothing any more. */
  #lose(holding: Holding): void {
    this.memory.untag(holding.seq, span(0, END))
    holding.cut(span(0, holding.held))
    for (const step of this.#running) if (step.lane === holding) this.#lost.add(step)
  }

  #makeRoom(count: number, victims: readonly Holding[]): number {
    let freed = 0
    for (const victim of victims) {
      if (count <= this.#holdings.cells.free) break
      freed += this.#evict(victim)
    }
    return freed
  }

  /** Drops an idle lane for room, saved if it can be; says how many cells that freed. */
  #evict(victim: Holding): number {
    const started = performance.now()
    const kept = this.#checkpoints.save(victim)
    const freed = this.#holdings.drop(victim)
    const record = this.#conversations.get(victim.conversation)
    if (record?.lane === victim) record.lane = null
    if (kept) this.#moved += freed
    else this.#evicted += freed
    this.#milliseconds += performance.now() - started
    return freed
  }

  /** Puts what is on no step's account on this one's. */
  #charge(step: Step): void {
    step.evicted += this.#evicted
    step.moved += this.#moved
    step.spend('cache', this.#milliseconds)
    this.#evicted = 0
    this.#moved = 0
    this.#milliseconds = 0
  }
}
