/** The suite that every `StepCache` passes, over random conversations and case by case. CacheHarness checks the cache after every call. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { conversationId } from '../../../src/runtime/core/ids.js'
import type { Prompt } from '../../../src/runtime/kv/prompt.js'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import type { LedgerEntry } from '../../../src/runtime/kv/ledger.js'
import { missing, shownOf, type CacheHarness, type HarnessOptions, type Running } from './support/cache-harness.js'
import { LONG } from '../../support/long.js'

const NAMES = ['a', 'b', 'c'] as const
/** Few different tokens, so that beginnings, endings and whole messages also coincide by chance. */
const token = fc.integer({ min: 10, max: 12 })
const name = fc.constantFrom(...NAMES)
const some = fc.array(token, { minLength: 1, maxLength: 12 })

type Operation =
  | { readonly do: 'say'; readonly name: string; readonly tokens: readonly number[] }
  /** Shows `tokens` instead of the middle of a message. */
  | {
      readonly do: 'edit'
      readonly name: string
      readonly message: number
      readonly from: number
      readonly size: number
      readonly tokens: readonly number[]
    }
  | { readonly do: 'undo' | 'revert' | 'start' | 'cancel' | 'finish' | 'forget'; readonly name: string }
  | { readonly do: 'advance'; readonly name: string; readonly count: number; readonly tokens: readonly number[] }
  | { readonly do: 'abort'; readonly name: string; readonly count: number; readonly entering: number }
  /** Runs a whole step. A `trial` then edits, runs another step, undoes the edit, and runs a third step. */
  | { readonly do: 'ask' | 'trial'; readonly name: string; readonly tokens: readonly number[] }

const operation: fc.Arbitrary<Operation> = fc.oneof(
  { weight: 3, arbitrary: fc.record({ do: fc.constant('say' as const), name, tokens: some }) },
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constant('edit' as const),
      name,
      message: fc.nat(8),
      from: fc.nat(11),
      size: fc.nat(8),
      tokens: fc.array(token, { maxLength: 3 }),
    }),
  },
  { weight: 3, arbitrary: fc.record({ do: fc.constantFrom('undo' as const, 'revert' as const), name }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('start' as const), name }) },
  {
    weight: 8,
    arbitrary: fc.record({ do: fc.constant('advance' as const), name, count: fc.integer({ min: 1, max: 40 }), tokens: some }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      do: fc.constant('abort' as const),
      name,
      count: fc.integer({ min: 1, max: 20 }),
      entering: fc.nat(20),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constantFrom('cancel' as const, 'forget' as const), name }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('finish' as const), name }) },
  {
    weight: 8,
    arbitrary: fc.record({
      do: fc.constantFrom('ask' as const, 'ask' as const, 'trial' as const),
      name,
      tokens: fc.array(token, { maxLength: 4 }),
    }),
  },
)

interface Message {
  readonly original: readonly number[]
  shown: readonly number[]
}

/** A conversation as its owner sees it: messages, each with the tokens shown for it now. */
class Talk {
  #messages: Message[]
  readonly #undo: (() => void)[] = []

  constructor(system: readonly number[]) {
    this.#messages = [{ original: system, shown: system }]
  }

  get shown(): Prompt {
    return shownOf(...this.#messages.map(({ shown }) => [1, ...shown, 2]), [1, 3])
  }

  say(tokens: readonly number[]): void {
    this.#messages.push({ original: tokens, shown: tokens })
  }

  edit(which: number, from: number, size: number, tokens: readonly number[]): void {
    const message = this.#messages[which % this.#messages.length]!
    const before = message.shown
    message.shown = [...before.slice(0, from), ...tokens, ...before.slice(from + size)]
    this.#undo.push(() => (message.shown = before))
  }

  undo(): void {
    this.#undo.pop()?.()
  }

  revert(): void {
    for (const message of this.#messages) message.shown = message.original
  }
}

/** Counts events over all random conversations, so that the test can check that each kind occurred. */
const nothing = () => ({
  steps: 0,
  own: 0,
  parked: 0,
  shared: 0,
  again: 0,
  noCells: 0,
  noSequence: 0,
  evicted: 0,
  moved: 0,
  cancelled: 0,
  parks: 0,
})
type Seen = ReturnType<typeof nothing>

async function play(harness: CacheHarness, operations: readonly Operation[], seen: Seen): Promise<void> {
  const fresh = (of: string) => new Talk(of === 'c' ? [11, 10, 12, 11, 10] : [10, 11, 12, 10, 11, 12])
  const talks = new Map<string, Talk>(NAMES.map((each) => [each, fresh(each)]))
  const runningOf = (of: string) => harness.running.get(conversationId(of))

  /** Returns how many prompt tokens are still to be computed. */
  const missingOf = (of: string) => {
    const running = runningOf(of)
    return running === undefined ? 0 : missing(running)
  }

  const finish = (of: string, outcome: 'done' | 'cancelled') => {
    const { generated } = runningOf(of)!
    const entry = harness.finish(of, outcome)
    if (outcome === 'done') talks.get(of)!.say([3, ...generated])
    seen.steps++
    if (outcome === 'cancelled') seen.cancelled++
    seen.own += entry.sources.own
    seen.parked += entry.sources.parked
    seen.shared += entry.sources.shared
    seen.again += outcome === 'done' ? entry.side : 0
    seen.evicted += entry.evicted
    seen.moved += entry.moved
    seen.parks += entry.parked
  }
  const start = async (of: string) => {
    if ((await harness.fetch(of, talks.get(of)!.shown)) === null) seen.noSequence++
  }
  /** Decodes once. If there is no room, the step ends. */
  const advance = (of: string, count: number, tokens: readonly number[]) => {
    const running = runningOf(of)!
    const isIn = missing(running) === 0
    if (harness.decode(running, isIn ? Int32Array.from(tokens) : count)) return
    seen.noCells++
    finish(of, isIn ? 'done' : 'cancelled')
  }

  const ask = async (of: string, tokens: readonly number[]) => {
    await start(of)
    while (runningOf(of) !== undefined && missingOf(of) > 0) advance(of, 16, [])
    for (const token of tokens) if (runningOf(of) !== undefined) advance(of, 1, [token])
    if (runningOf(of) !== undefined) finish(of, 'done')
  }

  for (const op of operations) {
    const talk = talks.get(op.name)!
    const running = runningOf(op.name)
    if (op.do === 'say') talk.say(op.tokens)
    else if (op.do === 'edit') talk.edit(op.message, op.from, op.size, op.tokens)
    else if (op.do === 'undo') talk.undo()
    else if (op.do === 'revert') talk.revert()
    else if (op.do === 'start' && running === undefined) await start(op.name)
    else if (running !== undefined && harness.isLost(running)) finish(op.name, 'cancelled')
    else if (op.do === 'advance' && running !== undefined) advance(op.name, op.count, op.tokens)
    else if (op.do === 'abort' && running !== undefined && missing(running) > 0) {
      if (harness.decode(running, op.count, op.entering) && op.entering % 2 === 0) finish(op.name, 'cancelled')
    } else if (op.do === 'cancel' && running !== undefined) finish(op.name, 'cancelled')
    else if (op.do === 'finish' && running !== undefined && missing(running) === 0) finish(op.name, 'done')
    else if (op.do === 'forget' && running === undefined) {
      harness.forget(op.name)
      talks.set(op.name, fresh(op.name))
    } else if (op.do === 'ask' && running === undefined) await ask(op.name, op.tokens)
    else if (op.do === 'trial' && running === undefined) {
      await ask(op.name, op.tokens)
      talk.edit(op.tokens.length, 1, 4, op.tokens)
      await ask(op.name, [])
      talk.undo()
      await ask(op.name, op.tokens)
    }
  }
}

/** Returns `count` tokens that occur in no other text. */
const text = (from: number, count: number): number[] => Array.from({ length: count }, (_, offset) => from + offset)

const system = text(100, 10)
const long = text(200, 40)
const tail = text(300, 15)
const prompt = [1, 2]

export interface StepCacheOnTrial {
  readonly make: (options?: Pick<HarnessOptions, 'cells' | 'sequences'>) => CacheHarness
  /** Events that must occur in the random conversations, besides steps. */
  readonly meets: readonly (keyof Seen)[]
  /** How many random conversations run; the long tests run 20 times as many. */
  readonly conversations: number
}

/** Declares the tests of one cache. */
export function keepsStepCacheContract({ make, meets, conversations }: StepCacheOnTrial): void {
  const runs = LONG ? 20 * conversations : conversations / 2

  it(`random conversations hold the cells of a fresh prefill, and the ledger accounts for them, in ${runs} sequences`, async () => {
    const seen = nothing()
    await fc.assert(
      fc.asyncProperty(
        fc.array(operation, { minLength: 10, maxLength: 60, size: 'max' }),
        fc.integer({ min: 40, max: 240 }),
        fc.integer({ min: 1, max: 8 }),
        (operations, cells, sequences) => play(make({ cells, sequences }), operations, seen),
      ),
      { numRuns: runs },
    )
    for (const what of ['steps', ...meets] as const)
      expect(seen[what], `no run came by "${what}" often enough`).toBeGreaterThan(runs / 20)
  }, 600_000)

  /**
   * Computes the missing prompt tokens, at most `chunk` in a decode. Returns the number of decodes; a cache may need more than the minimum.
   */
  const fill = (harness: CacheHarness, running: Running, chunk = 50): number => {
    let decodes = 0
    for (; missing(running) > 0; decodes++) expect(harness.decode(running, chunk)).toBe(true)
    return decodes
  }

  /** Runs a whole step. */
  const step = async (
    harness: CacheHarness,
    name: string,
    messages: readonly (readonly number[])[],
    generated: readonly number[] = [],
  ): Promise<LedgerEntry> => {
    const running = (await harness.fetch(name, shownOf(...messages))) ?? expect.fail(`${name} found no sequence`)
    fill(harness, running)
    for (const token of generated) expect(harness.decode(running, Int32Array.of(token))).toBe(true)
    return harness.finish(name)
  }

  describe('a conversation that grows', () => {
    it('computes only new tokens, which include those of generated messages', async () => {
      const harness = make()
      const first = await step(harness, 'a', [system, long, prompt], [50, 51])
      expect(first).toMatchObject({
        step: 0,
        kind: 'answer',
        contract: 'exact',
        shown: 54,
        reused: 0,
        recomputed: 0,
        fresh: 54,
        side: 0,
      })
      const second = await step(harness, 'a', [system, long, [...prompt, 50, 51, 3], tail, prompt], [60])
      expect(second).toMatchObject({
        step: 1,
        shown: 73,
        reused: 54,
        recomputed: 0,
        fresh: 19,
        sources: { own: 54, parked: 0, shared: 0 },
        parked: 0,
      })
      expect(second.messages).toEqual([
        { index: 0, role: 'user', shown: 10, reused: 10, recomputed: 0, fresh: 0, approximate: 0 },
        { index: 1, role: 'user', shown: 40, reused: 40, recomputed: 0, fresh: 0, approximate: 0 },
        { index: 2, role: 'user', shown: 5, reused: 4, recomputed: 0, fresh: 1, approximate: 0 },
        { index: 3, role: 'user', shown: 15, reused: 0, recomputed: 0, fresh: 15, approximate: 0 },
        { index: 4, role: 'user', shown: 3, reused: 0, recomputed: 0, fresh: 3, approximate: 0 },
      ])
    })

    it('recomputes nothing in a read-only step: only the new messages are computed', async () => {
      const harness = make()
      await step(harness, 'a', [system, long, prompt], [50, 51])
      for (let turn = 1; turn < 5; turn++) {
        const answers = Array.from({ length: turn }, (_, at) => [[...prompt, 50, 51, 3], text(400 + 10 * at, 6)]).flat()
        const entry = await step(harness, 'a', [system, long, ...answers, prompt], [50, 51])
        expect(entry.recomputed).toBe(0)
        expect(entry.fresh).toBe(1 + 6 + 2 + 2)
      }
    })

    it('counts the pending token, and records a summary as a summary', async () => {
      const harness = make()
      const running = (await harness.fetch('a', shownOf(system, prompt), 'summary'))!
      fill(harness, running)
      expect(harness.finish('a', 'done', 1)).toMatchObject({ kind: 'summary', pending: 1, shown: 12 })
    })

    it('charges times to the parts of the step', async () => {
      const harness = make()
      const running = (await harness.fetch('a', shownOf(system, prompt)))!
      const prefill = fill(harness, running, 7)
      expect(prefill).toBeGreaterThan(1)
      harness.decode(running, Int32Array.of(50))
      const { milliseconds } = harness.finish('a')
      expect(milliseconds).toMatchObject({ prefill, decode: 1 })
      expect(milliseconds.cache).toBeGreaterThan(0)
    })
  })

  describe('a step', () => {
    it('with an unchanged prompt computes something for the logits, and counts no token twice', async () => {
      const harness = make()
      await step(harness, 'a', [system, long, prompt], [50])
      const entry = await step(harness, 'a', [system, long, prompt])
      expect(entry.shown).toBe(52)
      expect(entry.submitted).toBeGreaterThan(0)
      expect(entry.fresh).toBe(0)
    })

    it('that is cancelled before it computes costs nothing, and an aborted prompt can be run again', async () => {
      const harness = make()
      const first = (await harness.fetch('a', shownOf(system, prompt)))!
      harness.decode(first, 12, 0)
      expect(harness.finish('a', 'cancelled')).toMatchObject({ kind: 'cancelled', side: 0, submitted: 0, messages: [] })
      const second = (await harness.fetch('a', shownOf(system, prompt)))!
      harness.decode(second, 12, 5)
      expect(harness.finish('a', 'cancelled')).toMatchObject({ kind: 'cancelled', shown: 0, side: 5, submitted: 5 })
      expect(await step(harness, 'a', [system, prompt])).toMatchObject({ step: 2, shown: 12 })
    })

    it('compares with the last finished step: a cancelled one does not change what "before" is', async () => {
      const harness = make()
      await step(harness, 'a', [system, long, prompt])
      const shown = harness.cache.prompt(conversationId('a'))
      expect([...shown!.tokens]).toEqual([...system, ...long, ...prompt])
      const running = (await harness.fetch('a', shownOf(tail, prompt)))!
      harness.decode(running, 5)
      harness.finish('a', 'cancelled')
      expect(harness.cache.prompt(conversationId('a'))).toEqual(shown)
      expect((await step(harness, 'a', [tail, long, prompt])).recomputed).toBeGreaterThan(0)
    })
  })

  describe('when room runs out', () => {
    it('it reports full, having lost nothing, if evicting every idle sequence is not enough', async () => {
      const harness = make({ cells: 60 })
      await step(harness, 'idle', [text(1, 10)])
      const a = (await harness.fetch('a', shownOf(text(1000, 60))))!
      const b = (await harness.fetch('b', shownOf(text(2000, 60))))!
      expect(harness.decode(a, 20) && harness.decode(b, 25)).toBe(true)
      expect(harness.cache.reserve(16)).toEqual({ kind: 'full', needed: 16, free: 5 })
      expect(harness.decode(a, 16)).toBe(false)
      expect(harness.cache.totals.used).toBe(55)
      expect(harness.decode(a, 15)).toBe(true)
      expect(harness.decode(a, 1)).toBe(false)
      harness.finish('b', 'cancelled')
      fill(harness, a)
      harness.finish('a')
    })

    it('idle sequences give their ids to new ones; if none is idle, it reports full', async () => {
      const harness = make({ sequences: 2 })
      await step(harness, 'a', [text(1000, 20)])
      await harness.fetch('b', shownOf(text(2000, 20)))
      await harness.fetch('c', shownOf(text(3000, 20)))
      const before = harness.memory.readback()
      expect(await harness.fetch('d', shownOf(text(4000, 20)))).toBeNull()
      expect(harness.memory.readback()).toEqual(before)
      const reason = expect.stringContaining('All 2 sequences') as string
      expect(harness.cache.open(conversationId('d'))).toMatchObject({ kind: 'full', reason })
    })
  })

  describe('a mistake of the caller', () => {
    const invariant = (mistake: () => unknown) => {
      let thrown: unknown
      try {
        mistake()
      } catch (error) {
        thrown = error
      }
      expect(thrown).toBeInstanceOf(KvfoldError)
      expect(thrown).toMatchObject({ code: 'internal/invariant' })
    }

    it('is refused before anything changes', async () => {
      const harness = make({ sequences: 2 })
      const running = (await harness.fetch('a', shownOf(system, prompt)))!
      const { cache, memory } = harness
      const { sequence, step, plan } = running
      invariant(() => cache.begin(sequence, plan, 'answer'))
      invariant(() => {
        cache.forget(conversationId('a'))
      })
      invariant(() => cache.plan(sequence, shownOf([])))
      invariant(() => {
        cache.commit(step, Int32Array.of(5), 'prompt', 0)
      })
      invariant(() => {
        cache.commit(step, Int32Array.of(5), 'generated', 0)
      })
      invariant(() => cache.finish(step, 'done', 0))
      fill(harness, running)
      invariant(() => {
        cache.commit(step, Int32Array.of(5), 'prompt', 0)
      })
      memory.decode(sequence.seq, 12, Int32Array.of(5, 6))
      invariant(() => cache.settle(step, Int32Array.of(5), 'generated'))
      memory.untag(sequence.seq, { start: 12, end: 14 })
      harness.finish('a')
      invariant(() => cache.finish(step, 'done', 0))
      invariant(() => {
        cache.commit(step, Int32Array.of(5), 'generated', 0)
      })
      await harness.fetch('b', shownOf(tail))
      await harness.fetch('c', shownOf(long))
      invariant(() => cache.plan(sequence, shownOf(system)))
      harness.inspect()
    })

    it('does not include forgetting an unknown conversation', () => {
      const harness = make()
      harness.forget('nobody')
      expect(harness.cache.totals).toMatchObject({ used: 0, sequences: { used: 0 } })
    })
  })
}
