/**
 * The cache for models whose sequences can only be extended: recurrent and hybrid models, and models with a sliding window whose old cells
 * are not kept.
 */
import { invariant } from '../core/errors.js'
import { type ConversationId, seqId } from '../core/ids.js'
import { length, span } from '../core/span.js'
import { CacheBase } from './cache-base.js'
import { checkpointPlaces, Checkpoints } from './checkpoints.js'
import { checkBooks } from './integrity.js'
import type { StepKind } from './ledger.js'
import type { KvMemory } from './ports.js'
import { OffloadedSequence, OffloadTiers, type ReadStates } from './offload.js'
import { forgetHidden } from './parking.js'
import { EXACT, held, type Part, type StepContract } from './plan/parts.js'
import { type Plan, spansHeld } from './plan/plan.js'
import { LOST_BELOW, rewindReason } from './plan/planner.js'
import { commonPrefix, type Prompt, sourceIdsOf, uneditedOf } from './prompt.js'
import type { CacheTotals } from './residency.js'
import type { HeldSequence, LiveSequence, Sequence } from './sequence.js'
import { type Chunk, type WritePosition, Step, type StepPart } from './step.js'
import type { StepCache } from './step-cache.js'

export interface CheckpointCacheOptions {
  /** Why contracts other than `exact` are not available, for the ledger. */
  readonly refusal: string
  /** The tiers that keep checkpoints. Default: none; then every edit computes the whole text again. */
  readonly offload?: OffloadTiers
}

/** Larger than any position, so that a span up to here covers a whole sequence. */
const END = 2 ** 31 - 1

/**
 * A cache of sequences that can only be extended, emptied, saved whole and loaded whole. So every step keeps contract `exact`. If the
 * prompt does not continue the live sequence's tokens, the live sequence is emptied. Then the longest checkpoint that is a beginning of the
 * prompt is loaded into it, and the rest is computed. Its old state is saved before, because an edit may be undone.
 *
 * Sequences share no cells: a checkpoint of another conversation is loaded as a copy. So `distrust` is the only optional member of
 * StepCache that this cache has.
 *
 * The cell table counts one cell per token, as a hybrid model's attention uses them. A recurrent state uses none. For such a model the
 * table only bounds how many tokens live sequences represent before idle ones are moved to checkpoints, which costs little.
 */
export class CheckpointCache extends CacheBase implements StepCache {
  readonly #checkpoints: Checkpoints
  /** Prompt indices at which a running step still has to save its state, ascending. */
  readonly #places = new WeakMap<Step, number[]>()
  /** Steps whose sequence was lost while they ran. They can only be cancelled. */
  readonly #lost = new WeakSet<Step>()
  readonly #running = new Set<Step>()
  /** Parked tokens that no step has counted yet. */
  #parked = 0

  constructor(
    memory: KvMemory,
    private readonly options: CheckpointCacheOptions,
  ) {
    super(memory, options.offload)
    this.#checkpoints = new Checkpoints(this.table, this.offload)
  }

  protected keep(victim: Sequence): boolean {
    return this.#checkpoints.save(victim)
  }

  plan(
    sequence: LiveSequence,
    prompt: Prompt,
    { contract: asked, recomputeFrom }: StepContract = EXACT,
    without?: ReadonlyMap<HeldSequence, string>,
  ): Plan {
    const own = this.own(sequence)
    const { tokens } = prompt
    invariant(tokens.length > 0, `conversation ${sequence.conversation} was given an empty prompt`)
    // Fewer tokens than these may be reused, so that at least their last one is computed.
    const most = recomputeFrom === undefined ? tokens : tokens.subarray(0, recomputeFrom + 1)
    const kept = own.held < most.length && commonPrefix(own.tokens, most) === own.held ? own.held : 0
    const holder = this.#checkpoints.before(most, kept, own, without) ?? own
    const reused = holder === own ? kept : holder.held
    const parts: Part[] = [{ kind: 'compute', span: span(reused, tokens.length), position: reused }]
    if (reused > 0) parts.unshift(held(own, holder, span(0, reused), 0))
    const fallback = asked === 'exact' ? null : this.options.refusal
    return { prompt, sourceIds: sourceIdsOf(prompt), asked, contract: 'exact', fallback, parts, redecoded: 0, approximate: 0 }
  }

  fetch(sequence: LiveSequence, prompt: Prompt, terms: StepContract = EXACT): Promise<ReadStates> | null {
    const started = performance.now()
    const [head] = this.plan(sequence, prompt, terms).parts
    this.evictor.spend(performance.now() - started)
    return this.offload.fetch(head?.kind === 'borrow' && head.from instanceof OffloadedSequence ? [head.from] : [])
  }

  /**
   * Returns the plan for `prompt`. If the plan continues a checkpoint, saves the state of the live sequence, and loads the checkpoint into
   * it.
   */
  async prepare(sequence: LiveSequence, prompt: Prompt, terms: StepContract = EXACT, fetched?: ReadStates): Promise<Plan> {
    await this.forgetHidden(sequence.conversation, prompt)
    const without = new Map<HeldSequence, string>()
    for (const [stored, state] of fetched ?? []) if (state === null) without.set(stored, LOST_BELOW)
    for (;;) {
      const started = performance.now()
      const plan = { ...this.plan(sequence, prompt, terms, without), without }
      const [head] = plan.parts
      if (head?.kind !== 'borrow' || !(head.from instanceof OffloadedSequence)) {
        this.evictor.spend(performance.now() - started)
        return plan
      }
      const state = fetched?.get(head.from) ?? (await this.offload.read(head.from))
      const reason = state instanceof Uint8Array ? this.#goBack(this.own(sequence), prompt, head.from, state) : LOST_BELOW
      this.evictor.spend(performance.now() - started)
      if (reason === null) return plan
      without.set(head.from, reason)
    }
  }

  forgetHidden(conversation: ConversationId, prompt: Prompt): Promise<void> {
    const what = { table: this.table, conversations: this.conversations, offload: this.offload }
    return forgetHidden(what, conversation, prompt, true)
  }

  /**
   * Begins a step on a live sequence that holds exactly the tokens that the plan reuses (`prepare`). If the plan reuses none, saves and
   * empties the live sequence.
   */
  begin(sequence: LiveSequence, plan: Plan, kind: StepKind): Step {
    const started = performance.now()
    const own = this.own(sequence)
    const { prompt } = plan
    invariant(!own.running, `conversation ${own.conversation} began a step while another is running`)
    const [head] = plan.parts
    if (head?.kind === 'compute') this.#leave(own, prompt)
    const reused = head === undefined || head.kind === 'compute' ? 0 : length(head.span)
    const same = commonPrefix(own.tokens, prompt.tokens)
    invariant(
      own.held === reused && same === reused,
      `the live sequence of ${own.conversation} does not hold the tokens that its plan reuses`,
    )
    const step = new Step(own, plan, kind)
    step.recomputeReason = rewindReason(plan, this.conversations.before(own.conversation))
    own.state = 'running'
    own.rename(uneditedOf(prompt), plan.sourceIds, spansHeld(plan))
    this.#running.add(step)
    const places = this.offload.open ? checkpointPlaces(prompt).filter((place) => place > reused) : []
    this.#places.set(step, places)
    step.parked = this.#parked
    this.#parked = 0
    this.evictor.charge(step)
    step.spend('cache', performance.now() - started)
    return step
  }

  /** Returns the next prompt tokens. They end at the next prompt index where a checkpoint is saved. */
  next(step: Step, limit: number): Chunk | null {
    this.#refuseLost(step)
    const { due, sequence, plan } = step
    if (due === null) return null
    const { tokens } = plan.prompt
    const { start } = due.span
    const [stop = tokens.length] = this.#places.get(step) ?? []
    const end = Math.min(due.span.end, start + limit, stop)
    return {
      seq: sequence.seq,
      place: start,
      tokens: tokens.slice(start, end),
      position: due.position,
      last: end === tokens.length,
    }
  }

  seat(step: Step): WritePosition {
    this.#refuseLost(step)
    return { seq: step.sequence.seq, place: step.sequence.held, position: step.sequence.next }
  }

  commit(step: Step, tokens: Int32Array, what: StepPart, milliseconds: number): void {
    this.#enter(step, tokens, what)
    step.spend(what === 'prompt' ? 'prefill' : 'decode', milliseconds)
    const places = this.#places.get(step)
    if (what !== 'prompt' || places?.[0] !== step.sequence.held) return
    places.shift()
    const started = performance.now()
    this.#checkpoints.save(step.sequence)
    step.spend('cache', performance.now() - started)
    step.copying += this.table.takeCopied()
  }

  /**
   * Reports that a decode was aborted, failed, or found no room. If any token entered, the state is neither the old nor the new one. So the
   * live sequence is emptied, and the step can only be cancelled. llama.cpp's position does not show how far the decode got, because
   * llama.cpp advances it before it computes. Always returns 0.
   */
  settle(step: Step, attempted: Int32Array, what: StepPart): number {
    const { sequence } = step
    const entered = (this.memory.positions(sequence.seq)?.max ?? -1) + 1 - sequence.held
    if (entered === 0) return 0
    invariant(
      entered <= attempted.length,
      `sequence ${sequence.seq} continued at position ${sequence.held} with ${attempted.length} tokens, but grew by ${entered}`,
    )
    // llama.cpp took these tokens in, so they count as submitted. `entered` is negative if llama.cpp dropped the whole sequence.
    if (entered > 0) step.submit(what, entered)
    this.#lose(sequence)
    return 0
  }

  /** Drops all sequences after a decode of several sequences failed, because llama.cpp may have been moving their states. */
  distrust(): void {
    for (const sequence of this.table.all) this.#lose(sequence)
  }

  protected ending(step: Step, own: Sequence, outcome: 'done' | 'cancelled'): void {
    if (outcome === 'done') this.#refuseLost(step)
    own.extendBase()
    this.evictor.charge(step)
    this.#running.delete(step)
  }

  protected override keepsCancelled(step: Step): boolean {
    return step.due === null && !this.#lost.has(step)
  }

  /** The cells are always exact, so a fold that forgets does not hide the prompt from a refresh. */
  override prompt(conversation: ConversationId): Prompt | null {
    return this.conversations.get(conversation)?.before ?? null
  }

  get totals(): CacheTotals {
    const { cells, sequences } = this.table
    return {
      cells: cells.total,
      used: cells.used,
      free: cells.free,
      reach: cells.reach,
      parked: 0,
      sequences: { used: sequences.used, total: sequences.total },
      versions: 0,
      tiers: this.offload.totals,
    }
  }

  /**
   * Checks kvfold's records. `books`: whether they are consistent. The other levels also check that every sequence ends in llama.cpp at the
   * position that these records say. The memory of such models reports no more: a sequence's first position depends on the memory's kind,
   * and cells cannot be read back.
   */
  check(level: 'books' | 'positions' | 'full'): void {
    checkBooks(this.table)
    if (level === 'books') return
    const ends = new Map(this.table.all.map(({ seq, held }) => [seq, held - 1]))
    for (let id = 0; id < this.memory.sequences; id++) {
      const expected = ends.get(seqId(id)) ?? -1
      const found = this.memory.positions(seqId(id))?.max ?? -1
      invariant(expected === found, `sequence ${id} should end at position ${expected}, but ends at ${found} (-1: empty)`)
    }
  }

  #refuseLost(step: Step): void {
    invariant(
      !this.#lost.has(step),
      `the sequence of conversation ${step.sequence.conversation} was lost, but its step continued`,
    )
  }

  #enter(step: Step, tokens: Int32Array, what: StepPart): void {
    const own = this.own(step.sequence)
    this.#refuseLost(step)
    own.append(tokens, step.keysOf(tokens, what))
    step.submit(what, tokens.length)
    this.evictor.charge(step)
  }

  /** Replaces the live sequence's state by a checkpoint. Returns why that failed, or null. */
  #goBack(own: Sequence, prompt: Prompt, stored: OffloadedSequence, state: Uint8Array): string | null {
    this.#leave(own, prompt)
    this.evictor.make(
      stored.held,
      this.table.victims().filter((victim) => victim !== own),
    )
    if (stored.held > this.table.cells.free) return 'no room for their saved state in the context'
    if (!this.table.copying((memory) => memory.loadSequence(own.seq, state))) {
      this.offload.drop(stored, true)
      return LOST_BELOW
    }
    own.load(stored.record)
    return null
  }

  /** Saves the live sequence's state, and empties it. */
  #leave(own: Sequence, prompt: Prompt): void {
    if (own.held === 0) return
    const gone = own.held - commonPrefix(own.tokens, prompt.tokens)
    if (this.#checkpoints.save(own)) this.#parked += gone
    this.table.cut(own, span(0, own.held))
  }

  /** Empties a sequence whose state cannot be trusted, and marks its running step as lost. */
  #lose(sequence: Sequence): void {
    this.memory.untag(sequence.seq, span(0, END))
    sequence.cut(span(0, sequence.held))
    for (const step of this.#running) if (step.sequence === sequence) this.#lost.add(step)
  }
}
