/** Plays the engine's part over the naive memory, and checks cache, cell table and ledger after every call; for tests of src/runtime/kv. */
import { expect } from 'vitest'
import { conversationId, seqId, type ConversationId, type SeqId } from '../../../../src/runtime/core/ids.js'
import { KvCache, type KvCacheOptions } from '../../../../src/runtime/kv/cache.js'
import type { StepCache } from '../../../../src/runtime/kv/step-cache.js'
import { EXACT, type StepContract } from '../../../../src/runtime/kv/plan/parts.js'
import type { LiveSequence } from '../../../../src/runtime/kv/sequence.js'
import type { LedgerEntry, StepKind } from '../../../../src/runtime/kv/ledger.js'
import type { KvMemory } from '../../../../src/runtime/kv/ports.js'
import { type Plan, turnedIn } from '../../../../src/runtime/kv/plan/plan.js'
import type { Prompt } from '../../../../src/runtime/kv/prompt.js'
import type { Step, StepPart } from '../../../../src/runtime/kv/step.js'
import { CacheSalts } from '../../../../src/runtime/kv/tenant-salts.js'
import { NaiveMemory, WrongContent, type HeldCell } from './naive-memory.js'
import { Places } from './places.js'

/** A running step, with the cells that its live sequence must hold, counted independently of the cache. */
export interface Running {
  readonly name: string
  readonly step: Step
  readonly plan: Plan
  readonly shown: Prompt
  readonly sequence: LiveSequence
  /** For each place of the prompt, whether the live sequence holds it. */
  readonly present: boolean[]
  readonly generated: number[]
  /** How many prompt tokens the live sequence held when the step began. */
  readonly reused: number
  /** Whether its cells were rewritten first. */
  readonly gathered: boolean
  /** How many tokens of this step the naive memory's decodes added. */
  submitted: number
}

export interface HarnessOptions {
  readonly cells?: number
  readonly sequences?: number
  /** Wraps the memory that the cache sees; tests put faults in here. */
  readonly wrap?: (memory: NaiveMemory) => KvMemory
  readonly cache?: new (memory: KvMemory, options?: KvCacheOptions) => StepCache
  readonly options?: KvCacheOptions
  /** Returns the tenant of a conversation. Default: none. */
  readonly tenantOf?: (name: string) => string
  /** Positions of the memory cannot be shifted. */
  readonly fixed?: boolean
  /** Whether a step that begins alone tells the cache so. Default: false. */
  readonly relieves?: boolean
}

/** What the memory held before a step began. */
export interface Before {
  readonly live: readonly HeldCell[]
  /** The cells of each of the conversation's parked sequences. */
  readonly parked: ReadonlyMap<string, readonly HeldCell[]>
  readonly own: readonly HeldCell[]
  readonly others: readonly HeldCell[]
}

const sum = (numbers: readonly number[]): number => numbers.reduce((total, number) => total + number, 0)

/** Returns the tokens that a step's live sequence holds now, in order. */
const contentOf = ({ shown, present, generated }: Running): number[] => [
  ...shown.tokens.filter((_, place) => present[place]),
  ...generated,
]

/** All harnesses of this process share the salts, as conversations of one engine do. */
export const SALTS = new CacheSalts()

/** Returns how many prompt tokens are still to be computed. */
export const missing = ({ present }: Running): number => present.filter((is) => !is).length

/** Makes a `Prompt` of messages given as token lists; the last one is the generation prompt. */
export function shownOf(...messages: readonly (readonly number[])[]): Prompt {
  let start = 0
  return {
    tokens: Int32Array.from(messages.flat()),
    messages: messages.map((tokens, index) => ({ index, role: 'user', span: { start, end: (start += tokens.length) } })),
  }
}

export class CacheHarness {
  readonly memory: NaiveMemory
  readonly cache: StepCache
  readonly running = new Map<ConversationId, Running>()
  /** The contract of the steps from now on. */
  terms: StepContract = EXACT
  readonly #places = new Places()
  readonly #names = new Set<string>()
  readonly #tenantOf: (name: string) => string | undefined
  readonly #relieves: boolean

  constructor({
    cells = 256,
    sequences = 8,
    wrap = (memory) => memory,
    cache = KvCache,
    options,
    tenantOf,
    relieves = false,
    fixed = false,
  }: HarnessOptions = {}) {
    this.#tenantOf = tenantOf ?? (() => undefined)
    this.#relieves = relieves
    this.memory = new NaiveMemory(cells, sequences)
    this.memory.canShift = !fixed
    this.cache = new cache(wrap(this.memory), options)
  }

  /** Begins a step. Returns null when no sequence id is available. */
  start(name: string, shown: Prompt, kind: StepKind = 'answer'): Running | null {
    const sequence = this.#open(name)
    return sequence === null ? null : this.#begin(name, sequence, this.cache.plan(sequence, shown, this.terms), kind)
  }

  /** Reloads the conversation from lower tiers and begins a step. Returns null when no sequence id is available. */
  async fetch(name: string, shown: Prompt, kind: StepKind = 'answer'): Promise<Running | null> {
    const sequence = this.#open(name)
    if (sequence === null) return null
    const before = this.memory.sequence(sequence.seq)
    const plan = await this.cache.prepare(sequence, shown, this.terms)
    this.inspect()
    const left = this.expectGivenWay(sequence, before)
    return this.#begin(name, sequence, plan, kind, left)
  }

  /**
   * Decodes the next chunk of the cache, at most `given` prompt tokens; or these generated tokens. When the decode is aborted, only
   * `entering` of them are added. Returns false when there is no room.
   */
  decode(running: Running, given: number | Int32Array, entering?: number): boolean {
    const { name, sequence, step, present, generated } = running
    const what: StepPart = typeof given === 'number' ? 'prompt' : 'generated'
    const at = present.indexOf(false)
    const { seq, position, tokens } =
      typeof given === 'number' ? this.#next(running, given) : { ...this.cache.seat(step), tokens: given }
    if (what === 'generated') expect([at, seq]).toEqual([-1, sequence.seq])
    this.inspect()
    const before = this.memory.readback()
    const reserved = this.cache.reserve(tokens.length)
    if (reserved.kind === 'full') {
      expect(this.memory.readback()).toEqual(before)
      expect(tokens.length).toBeGreaterThan(this.memory.cells - this.memory.cellsOf(this.runningSeqs()))
      expect(reserved).toEqual({ kind: 'full', needed: tokens.length, free: this.memory.cells - before.length })
      return false
    }
    expect(before.length - this.memory.readback().length).toBe(reserved.evicted)
    this.inspect()
    const entered = entering === undefined ? tokens.length : Math.min(entering, tokens.length)
    this.memory.acting = name
    this.memory.decode(seqId(seq), position, tokens, entered)
    if (entering === undefined) this.cache.commit(step, tokens, what, 1)
    const kept = entering === undefined ? entered : this.settle(running, tokens, what, entered)
    if (what === 'generated') generated.push(...tokens.subarray(0, kept))
    else present.fill(true, at, at + kept)
    running.submitted += entered
    this.inspect()
    this.#note(running)
    return true
  }

  /** Ends the step and checks its ledger entry against an independent count. */
  finish(name: string, outcome: 'done' | 'cancelled' = 'done', pending = 0, last = false): LedgerEntry {
    const id = conversationId(name)
    const running = this.running.get(id) ?? expect.fail(`${name} is not running`)
    const { step, plan, shown, sequence, submitted, reused } = running
    const entry = this.cache.finish(step, outcome, pending, last)
    this.running.delete(id)
    this.inspect()
    const content = contentOf(running)
    this.#expectContent(running)
    expect(this.cache.ledger(id).at(-1)).toBe(entry)

    expect(entry.reused + entry.recomputed + entry.fresh).toBe(entry.shown)
    expect(entry.recomputed + entry.fresh + entry.side).toBe(entry.submitted)
    expect(entry.submitted).toBe(submitted)
    expect(entry.pending).toBe(pending)
    expect([entry.contract, entry.fallback]).toEqual([plan.contract, plan.fallback])
    expect(sum(Object.values(entry.sources))).toBe(entry.reused)
    expect(sum(Object.values(entry.tiers))).toBeLessThanOrEqual(reused)
    expect(entry.positions).toBe((this.memory.positions(sequence.seq)?.max ?? -1) + 1)
    for (const key of ['shown', 'reused', 'recomputed', 'fresh', 'approximate'] as const)
      expect(sum(entry.messages.map((message) => message[key]))).toBe(entry[key])
    for (const message of entry.messages) expect(message.reused + message.recomputed + message.fresh).toBe(message.shown)
    if (outcome === 'cancelled') {
      expect([entry.kind, entry.shown, entry.side]).toEqual(['cancelled', 0, submitted])
      return entry
    }
    expect(entry.shown).toBe(content.length)
    expect(entry.reused).toBe(reused + plan.redecoded)
    expect(entry.side).toBe(plan.redecoded)
    expect(entry.messages.map(({ index }) => index)).toEqual(shown.messages.map(({ index }) => index))
    const fresh = this.memory.freshBeginning(sequence.seq, content)
    expect(entry.approximate).toBe(content.length - fresh)
    expect(plan.approximate).toBe(Math.max(0, shown.tokens.length - fresh))
    if (entry.recomputed > 0) expect(entry.recomputeReason).not.toBeNull()
    for (const [at, { approximate }] of entry.messages.entries()) {
      const { start, end } = shown.messages[at]!.span
      const ends = at === entry.messages.length - 1 ? content.length : end
      expect(approximate).toBe(content.filter((_, place) => place >= Math.max(start, fresh) && place < ends).length)
    }
    return entry
  }

  /** Runs a whole step: the prompt in chunks, then the generated tokens. Fails the test when there is no room. */
  step(name: string, shown: Prompt, generated: readonly number[] = [], chunk = 7): LedgerEntry {
    const running = this.start(name, shown) ?? expect.fail(`${name} found no sequence`)
    while (missing(running) > 0) expect(this.decode(running, chunk)).toBe(true)
    for (const token of generated) expect(this.decode(running, Int32Array.of(token))).toBe(true)
    return this.finish(name)
  }

  forget(name: string): void {
    this.cache.forget(conversationId(name))
    this.#places.forget(name)
    this.inspect()
    expect(this.cache.ledger(conversationId(name))).toEqual([])
  }

  /** Rewrites a live sequence in place and returns how many cells moved. The contents of all sequences must stay the same. */
  compact(name: string): number {
    const before = this.#look()
    const moved = this.cache.compact(conversationId(name))
    this.inspect()
    expect(this.#look()).toEqual(before)
    return moved
  }

  /** Closes the gaps of a live sequence. Returns how many positions became free. */
  closeGaps(name: string): number {
    const sequence = this.cache.live(conversationId(name))
    const before = sequence === null ? [] : this.memory.sequence(sequence.seq)
    const positions = before.map(({ position }) => position)
    const closed = this.cache.closeGaps?.(conversationId(name)) ?? 0
    this.inspect()
    if (sequence === null) return closed
    const after = this.memory.sequence(sequence.seq)
    expect(after.map(({ id }) => id)).toEqual(before.map(({ id }) => id))
    if (closed === 0) expect(after.map(({ position }) => position)).toEqual(positions)
    else expect([after.length, after.at(-1)?.position]).toEqual([positions.at(-1)! + 1 - closed, after.length - 1])
    return closed
  }

  /** Moves what waits to be moved between decodes. No live sequence that runs may change. */
  async moveOn(): Promise<void> {
    while (this.cache.moving === true) {
      const held = this.#look((seq) => this.runningSeqs().includes(seq))
      await this.cache.moveOn?.(Infinity)
      this.inspect()
      expect(this.#look((seq) => this.runningSeqs().includes(seq))).toEqual(held)
    }
  }

  /** Moves something parked off the device, if there is too much on it or it is a burden. No live sequence may change. */
  async tidy(share: number): Promise<boolean> {
    const before = this.memory.readback().length
    const cellsOf = ({ seq }: LiveSequence) => this.#look((other) => other === seq)
    const held = new Map(this.#live().map((sequence) => [sequence, cellsOf(sequence)]))
    const running = this.runningSeqs()
    const moved = (await this.cache.tidy?.(share)) ?? false
    this.inspect()
    // An idle one may have left as a whole.
    const left = new Set(this.#live())
    for (const [sequence, cells] of held)
      if (left.has(sequence) || running.includes(sequence.seq)) expect(cellsOf(sequence)).toEqual(cells)
    if (!moved) expect(this.memory.readback().length).toBe(before)
    return moved
  }

  /** Whether an aborted decode spoilt the step, so that it can only be cancelled. */
  isLost(_running: Running): boolean {
    return false
  }

  /** Returns the sequences that no eviction may touch. */
  runningSeqs(): SeqId[] {
    return [...this.running.values()].flatMap(({ sequence, step }) => [
      sequence.seq,
      ...(step.scratch === null ? [] : [step.scratch.seq]),
    ])
  }

  /** Checks the cell table against the memory, and the cells of every running live sequence against its prompt. */
  inspect(): void {
    this.cache.check('full')
    for (const running of this.running.values()) this.#expectContent(running)
    const { used, free, cells, sequences } = this.cache.totals
    expect([used + free, used]).toEqual([cells, this.memory.readback().length])
    expect(sequences.used).toBeLessThanOrEqual(sequences.total)
  }

  /** Returns the cells of these sequences. */
  #look(counts: (seq: SeqId) => boolean = () => true): unknown {
    return Array.from({ length: this.memory.sequences }, (_, id) => seqId(id))
      .filter(counts)
      .map((seq) => this.memory.sequence(seq).map(({ tags: _tags, ...cell }: HeldCell & { readonly tags?: unknown }) => cell))
  }

  /** Returns the live sequences of all conversations that ever ran. */
  #live(): LiveSequence[] {
    return [...this.#names].flatMap((name) => this.cache.live(conversationId(name)) ?? [])
  }

  #open(name: string): LiveSequence | null {
    const runningSeqs = this.runningSeqs()
    this.memory.acting = name
    this.#names.add(name)
    const opened = this.cache.open(conversationId(name), SALTS.of(this.#tenantOf(name)))
    this.inspect()
    if (opened.kind === 'live') return opened.sequence
    expect(runningSeqs.length).toBe(this.memory.sequences)
    return null
  }

  #begin(name: string, sequence: LiveSequence, plan: Plan, kind: StepKind, left = 0): Running {
    const { memory } = this
    const { prompt: shown } = plan
    const own = memory.cellsOwnedBy(name)
    const before: Before = {
      live: memory.sequence(sequence.seq),
      parked: memory.heldBeside(sequence.seq, name),
      own,
      others: memory.cellsOfOthers(name, (other) => this.#tenantOf(other) === this.#tenantOf(name)),
    }
    memory.acting = name
    const { loaded } = memory.moves
    const step = this.cache.begin(sequence, plan, kind, this.#relieves && this.running.size === 0)
    const present = plan.parts.flatMap((part) =>
      Array.from<boolean>({ length: part.span.end - part.span.start }).fill(part.kind !== 'compute'),
    )
    const reused = memory.sequence(sequence.seq).length
    const gathered = memory.moves.loaded > loaded
    const running: Running = {
      name,
      step,
      plan,
      shown,
      sequence,
      present,
      generated: [],
      reused,
      gathered,
      submitted: 0,
    }
    this.running.set(conversationId(name), running)
    this.inspect()
    expect([present.length, present.filter(Boolean).length]).toEqual([shown.tokens.length, reused])
    this.#expectProvenance(running)
    this.expectBest(running, before)
    this.expectParked(running, before, left)
    this.#note(running)
    return running
  }

  /**
   * Checks the next chunk: it is the first missing one, after the token before it. Its sequence must show the same cells before it as the
   * live sequence.
   */
  #next(running: Running, limit: number) {
    const { name, step, sequence, shown, present } = running
    this.memory.acting = name
    const chunk = this.cache.next(step, limit) ?? expect.fail('the cache says that the prompt is in')
    const at = present.indexOf(false)
    const end = at + chunk.tokens.length
    expect(chunk.tokens.length).toBeGreaterThan(0)
    expect(chunk.tokens.length).toBeLessThanOrEqual(limit)
    expect([...chunk.tokens]).toEqual([...shown.tokens.subarray(at, end)])
    expect(present.slice(at, end)).not.toContain(true)
    expect(chunk.last).toBe(end === shown.tokens.length)
    const seen = this.memory.sequence(sequence.seq).slice(0, at)
    expect(chunk.position).toBe((seen.at(-1)?.position ?? -1) + 1)
    const sees = this.memory.sequence(seqId(chunk.seq))
    if (sees.map(({ id }) => id).join() !== seen.map(({ id }) => id).join())
      throw new WrongContent(`tokens of ${name} from place ${at} on would be computed beside other cells than are shown`)
    return chunk
  }

  /** Checks that the live sequence shows exactly its prompt, and under `exact` the cells of a fresh prefill. */
  #expectContent(running: Running): void {
    const { sequence, plan } = running
    if (plan.contract === 'exact') this.memory.expectFresh(sequence.seq, contentOf(running))
    else this.memory.expectShows(sequence.seq, contentOf(running))
  }

  /** Checks that every cell that a live sequence took over equals a fresh prefill's, or is the conversation's own for the same place. */
  #expectProvenance({ name, shown, sequence, present }: Running): void {
    const fresh = this.memory.fresh(shown.tokens)
    const names = this.#places.of(shown, [])
    const held = this.memory.sequence(sequence.seq).values()
    for (const place of present.keys()) {
      if (present[place] !== true) continue
      const cell = held.next().value!
      const isFresh = cell.position === place && cell.trace === fresh[place]
      if (!isFresh && !this.#places.has(name, cell, names[place]!))
        throw new WrongContent(`place ${place} of ${name} is shown by a cell of another place or conversation`)
    }
  }

  /** Settles an aborted decode in the cache. Returns how many of the added tokens stay. */
  protected settle({ step }: Running, tokens: Int32Array, what: StepPart, entered: number): number {
    expect(this.cache.settle(step, tokens, what)).toBe(entered)
    return entered
  }

  /** Checks that a reload replaced only cells that the step does not keep. Returns how many were replaced. */
  protected expectGivenWay(sequence: LiveSequence, before: readonly HeldCell[]): number {
    const now = new Set(this.memory.sequence(sequence.seq).map(({ id }) => id))
    const left = before.filter(({ id }) => !now.has(id)).length
    expect([left, before.length - left]).toEqual([before.length - now.size, now.size])
    return left
  }

  /** Checks that the plan computes nothing that was available. `before`: the memory before the step began. */
  protected expectBest(running: Running, before: Before): void {
    const { plan, shown } = running
    if (plan.asked !== plan.contract)
      expect(plan.fallback).toMatch(
        /longer marker than the hidden text|of the \d+ that the model was trained on|sequences of the context are in use|tokens behind the hidden text again/,
      )
    else expect(plan.fallback).toBeNull()
    const fresh = this.memory.fresh(shown.tokens)
    const size = shown.tokens.length
    const best = this.#beginningOf(fresh, before)
    const computed = missing(running)
    // The rule for every contract: a step computes no more than under `exact`, and nothing is approximate that could be exact for no more.
    const exactly = Math.max(1, size - best)
    expect(computed).toBeLessThanOrEqual(exactly)
    if (plan.approximate > 0) expect(computed).toBeLessThan(exactly)
    if (plan.contract === 'exact') this.#expectLongest(running, fresh, before, best)
    if (plan.asked === 'splice' && !/was trained on|sequences of/.test(plan.fallback ?? ''))
      expect(computed - plan.redecoded).toBeLessThanOrEqual(size - this.#most(running, before, best))
  }

  /** Returns how many tokens at the beginning some sequence holds as a fresh prefill would make them. */
  #beginningOf(fresh: readonly number[], { own, others }: Before): number {
    const held = new Set([...own, ...others].map(({ position, trace }) => `${position} ${trace}`))
    let best = 0
    while (best < fresh.length && held.has(`${best} ${fresh[best]}`)) best++
    return best
  }

  /** Checks that `exact` reuses the longest beginning whose every token some sequence holds, and its own cells before those of others. */
  #expectLongest({ plan, shown, present }: Running, fresh: readonly number[], { live }: Before, best: number): void {
    const size = shown.tokens.length
    const holds = (cells: readonly HeldCell[], place: number) =>
      cells.some(({ position, trace }) => position === place && trace === fresh[place])
    expect(present.indexOf(false)).toBe(Math.min(best, size - 1))
    expect(plan.redecoded).toBe(best === size ? 1 : 0)
    for (const { kind, span } of plan.parts)
      for (let place = span.start; place < span.end; place++)
        if (kind !== 'compute') expect(kind === 'keep').toBe(holds(live, place))
  }

  /**
   * Returns the most tokens that can stay where the conversation holds them for the same place, or behind the beginning that any sequence
   * holds exactly. The tokens in between are computed at the positions after. A marker is taken from its beginning on. Tries every pair.
   * When copies go to other positions, all of the conversation's cells count.
   */
  #most({ name, shown, plan }: Running, { own }: Before, beginning: number): number {
    const moves = turnedIn(plan) > 0
    const names = this.#places.of(shown, [])
    const ends: { readonly place: number; readonly position: number; readonly count: number }[] = []
    let most = 0
    for (const [place, of] of names.entries()) {
      const [hole, said] = of.split(':')
      const inside = said !== undefined && names[place - 1]?.split(':')[0] === hole && names[place - 1]?.includes(':') === true
      const held = own.filter((cell) => this.#places.isAt(name, cell, of)).map(({ position }) => position)
      for (const position of new Set(place < beginning ? [place, ...held] : held)) {
        const before = ends.filter(
          (end) =>
            end.place < place && (moves || position - end.position >= place - end.place) && (!inside || end.place === place - 1),
        )
        if ((!moves && position < place) || (inside && before.length === 0)) continue
        const count = 1 + before.reduce((max, end) => Math.max(max, end.count), 0)
        ends.push({ place, position, count })
        most = Math.max(most, count)
      }
    }
    return most
  }

  /**
   * Checks the ledger's count of parked cells: those the live sequence lost, the conversation still holds, and no other sequence of it held
   * before.
   */
  protected expectParked(
    { name, step, sequence, plan }: Running,
    { live: before, parked, own, others }: Before,
    left: number,
  ): void {
    const now = new Set(this.memory.sequence(sequence.seq))
    const beside = this.memory.heldBeside(sequence.seq, name)
    const kept = new Set([...beside.values()].flat())
    const known = new Set([...parked].flatMap(([seq, cells]) => (beside.has(seq) ? cells : [])))
    // The live sequence may have been rewritten first; then another cell holds the same computation.
    const old = new Set([...own, ...others])
    const here = ({ id, position }: HeldCell) => `${id} at ${position}`
    const rewritten = new Map([...now, ...kept].filter((cell) => !old.has(cell)).map((cell) => [here(cell), cell]))
    const held = before.map((cell) => rewritten.get(here(cell)) ?? cell)
    const count = held.filter((cell) => !now.has(cell) && kept.has(cell) && !known.has(cell)).length
    // Cells may already be below the device: evicted before the step, for its copies, or offloaded to speed it up.
    const lost = turnedIn(plan) > 0 || this.#relieves ? held.filter((cell) => !now.has(cell)).length : count
    expect(step.parked).toBeGreaterThanOrEqual(count)
    expect(step.parked).toBeLessThanOrEqual(lost + left)
  }

  /** Records these cells as computed, or taken over, by this conversation for these places. */
  #note({ name, shown, generated, present, sequence }: Running): void {
    const names = this.#places.of(shown, generated).filter((_, place) => present[place] ?? true)
    for (const [at, cell] of this.memory.sequence(sequence.seq).entries()) this.#places.note(name, cell, names[at]!)
  }
}
