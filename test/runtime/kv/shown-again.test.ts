/**
 * Runs random histories of one conversation under `splice` and `blend` beside twins under `exact`, with room for everything. No step
 * computes more than its twin, and text that was shown before is shown again by the same cells.
 */
import { describe, expect, it } from 'vitest'
import { conversationId, seqId } from '../../../src/runtime/core/ids.js'
import { Random } from '../../../src/runtime/core/random.js'
import { KvCache } from '../../../src/runtime/kv/cache.js'
import type { LedgerEntry } from '../../../src/runtime/kv/ledger.js'
import { EXACT, type StepContract } from '../../../src/runtime/kv/plan/parts.js'
import type { Plan } from '../../../src/runtime/kv/plan/plan.js'
import type { Prompt } from '../../../src/runtime/kv/prompt.js'
import { NaiveMemory } from './support/naive-memory.js'
import { PromptDraft } from './support/prompt-draft.js'
import { LONG } from '../../support/long.js'

const HISTORIES = LONG ? 1000 : 12

const TERMS: readonly StepContract[] = [
  { contract: 'splice' },
  { contract: 'blend', blend: { spread: 0.2 } },
  { contract: 'blend', blend: { spread: 1 } },
  { contract: 'blend', blend: { first: 3, messages: 1 } },
]

/** A random history: steps, each after some edits. */
class History {
  readonly random: Random
  readonly prompt: PromptDraft
  readonly #stretches: { readonly start: number; readonly end: number }[] = []

  constructor(seed: number) {
    this.random = new Random(seed, 7)
    this.prompt = new PromptDraft([this.#text(3 + this.random.below(8)), this.#text(10 + this.random.below(40))], [1, 2])
    for (let count = 2 + this.random.below(4); count > 0; count--) this.#cut()
  }

  /** Makes random edits. Returns the tokens that the coming step generates. */
  edit(): readonly number[] {
    const { random, prompt } = this
    for (let count = random.below(3); count > 0; count--) {
      const stretch = this.#stretches[random.below(this.#stretches.length)]
      if (stretch === undefined) continue
      const isFolded = prompt.folds.some(({ start }) => start === stretch.start)
      if (isFolded) prompt.restore(stretch.start)
      else prompt.fold(stretch.start, stretch.end, this.#marker())
    }
    if (random.below(5) === 0) this.#cut()
    if (random.below(4) === 0) prompt.add(this.#text(1 + random.below(12)))
    return this.#text(random.below(4))
  }

  /** Whether the gaps are closed after this step. */
  get closes(): boolean {
    return this.random.below(8) === 0
  }

  /** Keeps the generated answer, or asks for another. */
  answer(generated: readonly number[]): void {
    if (this.random.below(2) === 0) this.prompt.say([...generated, 3], this.#text(1 + this.random.below(9)))
  }

  #text(count: number): number[] {
    return Array.from({ length: count }, () => 10 + this.random.below(40))
  }

  #marker(): number[] {
    return Array.from(
      { length: this.random.below(4) === 0 ? this.random.below(15) : 1 + this.random.below(4) },
      () => 90 + this.random.below(3),
    )
  }

  #cut(): void {
    const { messages } = this.prompt
    const message = this.random.below(messages.length)
    const first = this.prompt.startOf(message)
    const length = messages[message]!.length
    const last = this.#stretches.at(-1)
    // The span often begins right after the one before.
    const start = last !== undefined && this.random.below(2) === 0 ? last.end : first + this.random.below(length)
    const index = messages.findIndex((_, at) => start < this.prompt.startOf(at) + messages[at]!.length)
    if (index < 0) return
    const end = Math.min(start + 1 + this.random.below(9), this.prompt.startOf(index) + messages[index]!.length)
    if (!this.#stretches.some((other) => other.start < end && start < other.end)) this.#stretches.push({ start, end })
  }
}

const keyOf = ({ tokens, origin }: Prompt): string => JSON.stringify([[...tokens], origin?.holes])

const ID = conversationId('a')

/** A cache over a naive memory with room for everything; it plays the engine's part. */
class Stage {
  readonly memory = new NaiveMemory(6000, 128)
  readonly cache = new KvCache(this.memory)

  constructor(
    private readonly terms: StepContract,
    fixed: boolean,
  ) {
    this.memory.canShift = !fixed
  }

  step(prompt: Prompt, generated: readonly number[]): { readonly entry: LedgerEntry; readonly plan: Plan } {
    const { cache, memory } = this
    const opened = cache.open(ID)
    if (opened.kind === 'full') throw new Error(opened.reason)
    const { sequence } = opened
    const plan = cache.plan(sequence, prompt, this.terms)
    const step = cache.begin(sequence, plan, 'answer')
    for (let chunk = cache.next(step, 64); chunk !== null; chunk = cache.next(step, 64)) {
      memory.decode(seqId(chunk.seq), chunk.position, chunk.tokens)
      cache.commit(step, chunk.tokens, 'prompt', 0)
    }
    for (const token of generated) {
      const { seq, position } = cache.seat(step)
      memory.decode(seqId(seq), position, Int32Array.of(token))
      cache.commit(step, Int32Array.of(token), 'generated', 0)
    }
    const entry = cache.finish(step, 'done', 0)
    cache.check('full')
    return { entry, plan }
  }

  /** Returns the traces of the live sequence's first cells, in order. Equal traces mean the same computation at the same position. */
  traces(count: number): readonly number[] {
    const { seq } = this.cache.live(ID)!
    return this.memory
      .sequence(seq)
      .slice(0, count)
      .map(({ trace }) => trace)
  }

  get held(): ReadonlySet<number> {
    return new Set(this.memory.cellsOwnedBy('').map(({ trace }) => trace))
  }
}

interface Seen {
  steps: number
  again: number
  replaced: number
}

function play(seed: number, terms: StepContract, fixed: boolean, seen: Seen): readonly string[] {
  const history = new History(seed)
  const own = new Stage(terms, fixed)
  const twin = new Stage(EXACT, fixed)
  const shown = new Map<string, readonly number[]>()
  const complaints: string[] = []
  for (let step = 0; step < 14; step++) {
    const generated = history.edit()
    const prompt = history.prompt.shown
    const held = own.held
    const { entry, plan } = own.step(prompt, generated)
    const { entry: other } = twin.step(prompt, generated)
    seen.steps++
    if (entry.submitted > other.submitted)
      complaints.push(`step ${step}: ${entry.submitted} tokens, ${other.submitted} under exact: ${entry.recomputeReason ?? ''}`)
    // The last token is computed in any case.
    const traces = own.traces(prompt.tokens.length - 1)
    const known = shown.get(keyOf(prompt))
    if (known !== undefined) {
      seen.again++
      const fresh = own.memory.fresh(prompt.tokens)
      const others = [...traces.keys()].filter((at) => traces[at] !== known[at] && traces[at] !== fresh[at])
      const had = others.filter((at) => held.has(known[at]!))
      if (had.length > 0) complaints.push(`step ${step}: ${had.length} tokens by other cells than before, which are held`)
      const reused = others.filter((at) =>
        plan.parts.some(({ kind, span }) => kind !== 'compute' && span.start <= at && at < span.end),
      )
      if (reused.length !== entry.replaced)
        complaints.push(`step ${step}: ${reused.length} tokens by other cells, ${entry.replaced ?? 0} on the ledger`)
      seen.replaced += others.length
    }
    shown.set(keyOf(prompt), traces)
    history.answer(generated)
    // A step in between, because moved cells can be copied only after a decode.
    if (history.closes && own.cache.closeGaps(ID) > 0) {
      const again = history.prompt.shown
      own.step(again, [])
      twin.step(again, [])
      shown.set(keyOf(again), own.traces(again.tokens.length - 1))
    }
  }
  return complaints
}

describe.each([false, true])('random histories beside their twins under exact (fixed: %s)', (fixed) => {
  it.each(TERMS)(
    'compute no more than their twins, and show earlier text by the same cells: %j',
    (terms) => {
      const seen: Seen = { steps: 0, again: 0, replaced: 0 }
      const all: string[] = []
      for (let seed = 1; seed <= HISTORIES; seed++)
        all.push(...play(seed, terms, fixed, seen).map((each) => `seed ${seed}, ${each}`))
      expect(all).toEqual([])
      expect(seen.again).toBeGreaterThan(HISTORIES / 2)
    },
    600_000,
  )
})
