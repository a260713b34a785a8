/** Owns the life of a step in the cache: how a conversation's lane comes to hold what is shown, and what that cost. */
import { invariant } from '../core/errors.js'
import type { ConversationId } from '../core/ids.js'
import { length } from '../core/span.js'
import type { Holding, Lane } from './holding.js'
import { Holdings } from './holdings.js'
import { checkBooks, checkPositions, checkReadback } from './integrity.js'
import type { LedgerEntry } from './ledger.js'
import type { KvMemory } from './memory.js'
import { planStep, type Plan } from './plan.js'
import { commonPrefix } from './prefix.js'
import type { Shown } from './shown.js'
import { Step, type StepPart } from './step.js'

/** What the cache holds right now; in cells unless said otherwise. used + free = cells. */
export interface CacheTotals {
  readonly cells: number
  readonly used: number
  readonly free: number
  /** Held by parked versions alone: what can be had without any conversation losing its place. */
  readonly parked: number
  /** Sequence ids. */
  readonly sequences: { readonly used: number; readonly total: number }
  /** Number of parked versions. */
  readonly versions: number
}

/** What outlives a lane that was dropped for room. */
interface Conversation {
  lane: Holding | null
  readonly ledger: LedgerEntry[]
  /** What the last step that was done showed. */
  before: Shown | null
}

/**
 * The KV cache under contract `exact`: a lane's cells always equal a fresh prefill of its tokens, because a cell is shared or kept only
 * where all tokens up to and including its own are equal. Nothing is computed here: the engine decodes, then reports.
 *
 * One step: open, plan, begin, then reserve, decode, commit (or settle) until the answer ends, then finish. All calls fall between
 * decodes. Steps of different conversations may overlap, those of one conversation may not. What is dropped for room, and in which order:
 * see Holdings.
 */
export class KvCache {
  readonly #holdings: Holdings
  readonly #conversations = new Map<ConversationId, Conversation>()
  /** Cells freed by evictions that are on no step's account yet. */
  #evicted = 0

  /** `memory` must be empty, and nobody else may tag or untag in it. */
  constructor(memory: KvMemory) {
    this.#holdings = new Holdings(memory)
  }

  /**
   * The live lane of a conversation. If there is none it makes an empty one, for which it takes a free sequence id or evicts for one.
   * `full`: every id belongs to a running lane; nothing was changed. A lane handed out before may have been evicted meanwhile.
   */
  open(
    conversation: ConversationId,
  ): { readonly kind: 'lane'; readonly lane: Lane } | { readonly kind: 'full'; readonly reason: string } {
    const known = this.#conversations.get(conversation)
    if (known?.lane) return { kind: 'lane', lane: known.lane }
    const lane = this.#add(conversation, 'idle', this.#holdings.victims())
    if (lane === null) {
      const { total } = this.#holdings.sequences
      const reason = `All ${total} sequences of the context are running; wait for one to end, or load the model with more sequences.`
      return { kind: 'full', reason }
    }
    if (known === undefined) this.#conversations.set(conversation, { lane, ledger: [], before: null })
    else known.lane = lane
    return { kind: 'lane', lane }
  }

  /** How the lane would come to hold `shown`, which must not be empty. Changes nothing. */
  plan(lane: Lane, shown: Shown): Plan {
    const { conversation } = this.#own(lane)
    const others = this.#holdings.all.filter((holding) => holding.conversation !== conversation)
    return planStep(lane, shown, this.#holdings.parked(conversation), others)
  }

  /**
   * Carries the plan out: parks the superseded tail (evicting the longest unused version for a sequence id; when none can be had the tail
   * is lost), removes it from the lane, tags what is borrowed. Afterwards lane.held = plan.compute.start and the lane is running.
   * The plan must be this lane's, made since the cache last changed: a plan that would reuse other tokens than it shows is refused.
   */
  begin(lane: Lane, plan: Plan, kind: 'answer' | 'summary'): Step {
    const started = performance.now()
    const own = this.#own(lane)
    const { borrow, keep, compute } = plan
    const { tokens } = plan.shown
    const from = borrow?.from ?? null
    invariant(!own.running, `conversation ${own.conversation} began a step while another is running`)
    invariant(from === null || this.#holdings.has(from), 'the plan borrows from a sequence that is no longer held')
    invariant(
      commonPrefix(own.tokens, tokens) >= keep && commonPrefix(from?.tokens ?? tokens, tokens) >= compute.start,
      `the plan would reuse cells of other tokens for conversation ${own.conversation}`,
    )
    invariant(
      keep + (borrow === null ? 0 : length(borrow.span)) === compute.start &&
        compute.start < compute.end &&
        compute.end === tokens.length,
      `the plan for conversation ${own.conversation} does not add up to what it shows`,
    )

    const parked = plan.park > 0 && this.#park(own, from) ? plan.park : 0
    this.#holdings.truncate(own, keep)
    if (borrow !== null && from !== null) this.#holdings.lend(from, own, borrow.span)
    own.state = 'running'
    const step = new Step(own, plan, kind, parked)
    this.#charge(step)
    step.spend('cache', performance.now() - started)
    return step
  }

  /**
   * Makes sure that `count` cells are free, evicting in the stated order. `full`: evicting everything but the running lanes would not be
   * enough; nothing was evicted. `evicted`: cells whose tokens were lost; they go on the account of the step that commits or begins next.
   */
  reserve(
    count: number,
  ):
    | { readonly kind: 'ok'; readonly evicted: number }
    | { readonly kind: 'full'; readonly needed: number; readonly free: number } {
    const { cells } = this.#holdings
    if (count <= cells.free) return { kind: 'ok', evicted: 0 }
    if (count > cells.total - this.#holdings.cellsOf(({ running }) => running))
      return { kind: 'full', needed: count, free: cells.free }
    let evicted = 0
    for (const victim of this.#holdings.victims()) {
      evicted += this.#evict(victim)
      if (count <= cells.free) break
    }
    invariant(count <= cells.free, `${count} cells were promised and only ${cells.free} are free`)
    return { kind: 'ok', evicted }
  }

  /**
   * `tokens` were decoded into the step's lane, at positions held, held + 1, ...; prompt tokens must be the next shown ones.
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
    const { lane } = step
    const found = this.#holdings.memory.positions(lane.seq)
    const entered = (found?.max ?? -1) + 1 - lane.held
    invariant(
      entered >= 0 && entered <= attempted.length && (found?.min ?? 0) === 0,
      `sequence ${lane.seq} held ${lane.held} tokens and was given ${attempted.length}, but llama.cpp says it holds ${JSON.stringify(found)}`,
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
    // The lane says all that these versions say: their tags are redundant, and cells that only they hold are duplicates.
    for (const version of this.#holdings.parked(own.conversation))
      if (commonPrefix(version.tokens, own.tokens) === version.held) this.#holdings.drop(version)
    step.spend('cache', performance.now() - started)
    const entry = step.entry(record.ledger.length, outcome, pending, record.before)
    step.ended = true
    own.state = 'idle'
    this.#holdings.touch(own)
    record.ledger.push(entry)
    if (outcome === 'done') record.before = { messages: step.shown.messages, tokens: own.tokens.slice() }
    return entry
  }

  /** Drops a conversation: its lane, its versions and its ledger. An unknown one is ignored; a running one is the caller's mistake. */
  forget(conversation: ConversationId): void {
    const running = this.#conversations.get(conversation)?.lane?.running ?? false
    invariant(!running, `conversation ${conversation} cannot be forgotten while a step is running`)
    for (const holding of this.#holdings.all) if (holding.conversation === conversation) this.#holdings.drop(holding)
    this.#conversations.delete(conversation)
  }

  /** The conversation's steps, oldest first; empty for an unknown one. */
  ledger(conversation: ConversationId): readonly LedgerEntry[] {
    return this.#conversations.get(conversation)?.ledger ?? []
  }

  /** Looks at every held cell: not for inner loops. */
  get totals(): CacheTotals {
    const { cells, sequences } = this.#holdings
    return {
      cells: cells.total,
      used: cells.used,
      free: cells.free,
      parked: cells.used - this.#holdings.cellsOf(({ state }) => state !== 'parked'),
      sequences: { used: sequences.used, total: sequences.total },
      versions: this.#holdings.all.filter(({ state }) => state === 'parked').length,
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

  /** Tokens entered the lane. */
  #enter(step: Step, tokens: Int32Array, what: StepPart): void {
    const own = this.#own(step.lane)
    const asked = step.plan.shown.tokens
    invariant(own.running && !step.ended, `tokens were decoded for conversation ${own.conversation} outside of a step`)
    if (what === 'prompt') {
      const next = asked.subarray(own.held, own.held + tokens.length)
      invariant(
        commonPrefix(next, tokens) === tokens.length,
        `other tokens than the next ones of the prompt were decoded for ${own.conversation}`,
      )
    } else
      invariant(own.held >= asked.length, `tokens were generated for conversation ${own.conversation} before its prompt was in`)
    own.append(tokens)
    step.submit(what, tokens.length)
    this.#charge(step)
  }

  /** Makes all that the lane holds a version of its own; false when no sequence id could be had. `needed` is not evicted for it. */
  #park(own: Holding, needed: Holding | null): boolean {
    const versions = this.#holdings.victims().filter((victim) => victim.state === 'parked' && victim !== needed)
    const version = this.#add(own.conversation, 'parked', versions)
    if (version === null) return false
    this.#holdings.lend(own, version, { start: 0, end: own.held })
    return true
  }

  /** A new holding; when no sequence id is free, the first of `victims` gives way. */
  #add(conversation: ConversationId, state: 'idle' | 'parked', victims: readonly Holding[]): Holding | null {
    const [victim] = victims
    if (this.#holdings.sequences.used === this.#holdings.sequences.total && victim !== undefined) this.#evict(victim)
    return this.#holdings.add(conversation, state)
  }

  /** Drops a holding to make room; says how many cells' tokens were lost. */
  #evict(victim: Holding): number {
    const freed = this.#holdings.drop(victim)
    const record = this.#conversations.get(victim.conversation)
    if (record?.lane === victim) record.lane = null
    this.#evicted += freed
    return freed
  }

  /** Puts what was evicted since the last charge on the step's account, so that every eviction is counted once. */
  #charge(step: Step): void {
    step.evicted += this.#evicted
    this.#evicted = 0
  }
}
