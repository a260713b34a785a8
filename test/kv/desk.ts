/** Plays the engine's part over the naive memory, and looks after every call whether cache, books and ledger are right; for tests of src/kv. */
import { expect } from 'vitest'
import { KvCache } from '../../src/kv/cache.js'
import { conversationId, type ConversationId, type SeqId } from '../../src/core/ids.js'
import type { Lane } from '../../src/kv/holding.js'
import type { LedgerEntry } from '../../src/kv/ledger.js'
import type { KvMemory } from '../../src/kv/memory.js'
import type { Plan } from '../../src/kv/plan.js'
import type { Shown } from '../../src/kv/shown.js'
import type { Step, StepPart } from '../../src/kv/step.js'
import { NaiveMemory } from './naive-memory.js'

/** A step under way, with what its lane must hold, counted without the cache's help. */
export interface Running {
  readonly step: Step
  readonly plan: Plan
  readonly shown: Shown
  readonly lane: Lane
  readonly content: number[]
  /** Tokens given to the naive memory's decode for this step that entered. */
  submitted: number
}

export interface DeskOptions {
  readonly cells?: number
  readonly sequences?: number
  /** Stands between the cache and the memory: faults are put in here. */
  readonly wrap?: (memory: NaiveMemory) => KvMemory
  readonly cache?: new (memory: KvMemory) => KvCache
}

const sum = (numbers: readonly number[]): number => numbers.reduce((total, number) => total + number, 0)

function commonLength(a: ArrayLike<number>, b: ArrayLike<number>): number {
  for (let at = 0; ; at++) if (at >= a.length || at >= b.length || a[at] !== b[at]) return at
}

/** A `Shown` of messages given as token lists; the last one is the generation prompt. */
export function shownOf(...messages: readonly (readonly number[])[]): Shown {
  let start = 0
  return {
    tokens: Int32Array.from(messages.flat()),
    messages: messages.map((tokens, index) => ({ index, role: 'user', span: { start, end: (start += tokens.length) } })),
  }
}

export class Desk {
  readonly memory: NaiveMemory
  readonly cache: KvCache
  readonly running = new Map<ConversationId, Running>()

  constructor({ cells = 256, sequences = 8, wrap = (memory) => memory, cache = KvCache }: DeskOptions = {}) {
    this.memory = new NaiveMemory(cells, sequences)
    this.cache = new cache(wrap(this.memory))
  }

  /** Begins a step; null when no sequence id can be had. */
  start(name: string, shown: Shown, kind: 'answer' | 'summary' = 'answer'): Running | null {
    const id = conversationId(name)
    const runningSeqs = this.runningSeqs()
    const opened = this.cache.open(id)
    this.inspect()
    if (opened.kind === 'full') {
      expect(runningSeqs.length).toBe(this.memory.sequences)
      return null
    }
    const { lane } = opened
    const contents = this.memory.contents()
    const plan = this.cache.plan(lane, shown)
    this.expectBest(lane, plan, contents)
    const step = this.cache.begin(lane, plan, kind)
    expect(lane.held).toBe(plan.compute.start)
    const running: Running = { step, plan, shown, lane, content: [...shown.tokens.subarray(0, plan.compute.start)], submitted: 0 }
    this.running.set(id, running)
    this.inspect()
    return running
  }

  /** Decodes the next `count` prompt tokens, or `tokens`; only `entering` of them enter when the decode is aborted. False: no room. */
  decode(running: Running, given: number | Int32Array, entering?: number): boolean {
    const { shown, lane, step, content } = running
    const what: StepPart = typeof given === 'number' ? 'prompt' : 'generated'
    const tokens = typeof given === 'number' ? shown.tokens.slice(lane.held, lane.held + given) : given
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
    const entered = entering ?? tokens.length
    this.memory.decode(lane.seq, lane.held, tokens, entered)
    if (entering === undefined) this.cache.commit(step, tokens, what, 1)
    else expect(this.cache.settle(step, tokens, what)).toBe(entered)
    content.push(...tokens.subarray(0, entered))
    running.submitted += entered
    this.inspect()
    return true
  }

  /** Ends the step and holds its ledger entry against what was really done. */
  finish(name: string, outcome: 'done' | 'cancelled' = 'done', pending = 0): LedgerEntry {
    const id = conversationId(name)
    const { step, plan, shown, lane, content, submitted } = this.running.get(id) ?? expect.fail(`${name} is not running`)
    const entry = this.cache.finish(step, outcome, pending)
    this.running.delete(id)
    this.inspect()
    this.memory.expectFresh(lane.seq, content)
    expect(this.cache.ledger(id).at(-1)).toBe(entry)

    expect(entry.reused + entry.recomputed + entry.fresh).toBe(entry.shown)
    expect(entry.recomputed + entry.fresh + entry.side).toBe(entry.submitted)
    expect(entry.submitted).toBe(submitted)
    expect(entry.pending).toBe(pending)
    expect(sum(Object.values(entry.sources))).toBe(entry.reused)
    for (const key of ['shown', 'reused', 'recomputed', 'fresh'] as const)
      expect(sum(entry.messages.map((message) => message[key]))).toBe(entry[key])
    for (const message of entry.messages) expect(message.reused + message.recomputed + message.fresh).toBe(message.shown)
    if (outcome === 'done') {
      expect(entry.shown).toBe(content.length)
      expect(entry.reused).toBe(plan.compute.start + plan.again)
      expect(entry.side).toBe(plan.again)
      expect(entry.messages.map(({ index }) => index)).toEqual(shown.messages.map(({ index }) => index))
    } else expect([entry.kind, entry.shown, entry.side]).toEqual(['cancelled', 0, submitted])
    return entry
  }

  /** A whole step: prompt in chunks, then the generated tokens. Fails the test when there is no room. */
  step(name: string, shown: Shown, generated: readonly number[] = [], chunk = 7): LedgerEntry {
    const running = this.start(name, shown) ?? expect.fail(`${name} found no sequence`)
    while (running.lane.held < shown.tokens.length)
      expect(this.decode(running, Math.min(chunk, shown.tokens.length - running.lane.held))).toBe(true)
    for (const token of generated) expect(this.decode(running, Int32Array.of(token))).toBe(true)
    return this.finish(name)
  }

  forget(name: string): void {
    this.cache.forget(conversationId(name))
    this.inspect()
    expect(this.cache.ledger(conversationId(name))).toEqual([])
  }

  runningSeqs(): SeqId[] {
    return [...this.running.values()].map(({ lane }) => lane.seq)
  }

  /** Books against memory, and every running lane's cells against a fresh prefill. */
  inspect(): void {
    this.cache.check('full')
    for (const { lane, content } of this.running.values()) this.memory.expectFresh(lane.seq, content)
    const { used, free, cells, sequences } = this.cache.totals
    expect([used + free, used]).toEqual([cells, this.memory.readback().length])
    expect(sequences.used).toBeLessThanOrEqual(sequences.total)
  }

  /** The plan reuses the longest beginning that anything in the memory holds. */
  protected expectBest(lane: Lane, plan: Plan, contents: Map<SeqId, number[]>): void {
    const { tokens } = plan.shown
    const best = Math.max(0, ...[...contents.values()].map((held) => commonLength(held, tokens)))
    expect(plan.compute).toEqual({ start: Math.min(best, tokens.length - 1), end: tokens.length })
    const own = commonLength(contents.get(lane.seq) ?? [], tokens)
    expect(plan.keep).toBe(Math.min(own, tokens.length - 1))
    expect(plan.again).toBe(best === tokens.length && own !== tokens.length - 1 ? 1 : 0)
  }
}
