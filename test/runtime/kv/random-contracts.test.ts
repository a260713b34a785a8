/**
 * Runs random folds, summaries and restores under random contracts, with shortages, tiers and aborts, over a naive memory. CacheHarness
 * checks every call.
 */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { CONTRACTS, type Contract } from '../../../src/runtime/core/contract.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { OffloadTiers } from '../../../src/runtime/kv/offload.js'
import type { StepContract } from '../../../src/runtime/kv/plan/parts.js'
import { type CostModel, tierRatesOf } from '../../../src/runtime/kv/cost-model.js'
import { CacheHarness, missing } from './support/cache-harness.js'
import { NaiveDiskTier } from './support/naive-disk-tier.js'
import { PromptDraft } from './support/prompt-draft.js'
import { LONG } from '../../support/long.js'

const NAMES = ['a', 'b', 'c'] as const
const OPENING = [1, 3]
/** Few different tokens, so that spans also coincide by chance. */
const token = fc.integer({ min: 10, max: 13 })
const name = fc.constantFrom(...NAMES)
const some = fc.array(token, { minLength: 1, maxLength: 12 })
const none = fc.constant(undefined)

const terms: fc.Arbitrary<StepContract> = fc.oneof(
  { weight: 2, arbitrary: fc.constant<StepContract>({ contract: 'exact' }) },
  { weight: 6, arbitrary: fc.constant<StepContract>({ contract: 'splice' }) },
  {
    weight: 2,
    arbitrary: fc
      .record({ first: fc.nat(4), messages: fc.nat(2), spread: fc.constantFrom(0, 0.3, 1) }, { requiredKeys: [] })
      .map(({ first, ...blend }): StepContract => ({
        contract: 'blend',
        blend: { ...blend, ...(first === undefined ? {} : { first, echo: first, asked: first }) },
      })),
  },
)

type Operation =
  | { readonly do: 'add'; readonly name: string; readonly tokens: readonly number[] }
  /** Makes a span of a message foldable, and folds it. */
  | {
      readonly do: 'cut'
      readonly name: string
      readonly message: number
      readonly from: number
      readonly size: number
      readonly marker: readonly number[]
    }
  | {
      readonly do: 'fold'
      readonly name: string
      readonly which: number
      readonly marker: readonly number[]
      readonly contract: Contract | undefined
    }
  | { readonly do: 'restore'; readonly name: string; readonly which: number }
  | { readonly do: 'start'; readonly name: string; readonly terms: StepContract }
  | { readonly do: 'advance'; readonly name: string; readonly count: number; readonly tokens: readonly number[] }
  | { readonly do: 'abort'; readonly name: string; readonly count: number; readonly entering: number }
  /** `answer`: whether the next prompt shows the answer as it was generated. */
  | { readonly do: 'finish'; readonly name: string; readonly answer: boolean }
  | { readonly do: 'cancel' | 'forget' | 'compact' | 'closeGaps' | 'refresh' | 'tidy'; readonly name: string }
  /** Folds, and decodes a step in small chunks. One of them aborts after `entering` tokens; then the step continues or is cancelled. */
  | {
      readonly do: 'stumble'
      readonly name: string
      readonly terms: StepContract
      readonly count: number
      readonly entering: number
      readonly goesOn: boolean
      readonly which: number
    }
  /** Runs a whole step. A `trial` then folds, runs another step, may close gaps, restores, and runs a third step. */
  | {
      readonly do: 'ask' | 'trial'
      readonly name: string
      readonly tokens: readonly number[]
      readonly terms: StepContract
      readonly which: number
    }

const marker = fc.oneof(
  { weight: 5, arbitrary: fc.array(fc.integer({ min: 90, max: 92 }), { minLength: 1, maxLength: 3 }) },
  { weight: 1, arbitrary: fc.array(fc.integer({ min: 90, max: 92 }), { minLength: 0, maxLength: 14 }) },
)
const which = fc.nat(7)

const operation: fc.Arbitrary<Operation> = fc.oneof(
  { weight: 3, arbitrary: fc.record({ do: fc.constant('add' as const), name, tokens: some }) },
  {
    weight: 6,
    arbitrary: fc.record({
      do: fc.constant('cut' as const),
      name,
      message: fc.nat(8),
      from: fc.nat(9),
      size: fc.integer({ min: 1, max: 9 }),
      marker,
    }),
  },
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constant('fold' as const),
      name,
      which,
      marker,
      contract: fc.oneof(none, fc.constantFrom(...CONTRACTS)),
    }),
  },
  { weight: 5, arbitrary: fc.record({ do: fc.constant('restore' as const), name, which }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('start' as const), name, terms }) },
  {
    weight: 8,
    arbitrary: fc.record({ do: fc.constant('advance' as const), name, count: fc.integer({ min: 1, max: 12 }), tokens: some }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constant('abort' as const),
      name,
      count: fc.integer({ min: 1, max: 12 }),
      entering: fc.nat(12),
    }),
  },
  {
    weight: 5,
    arbitrary: fc.record({
      do: fc.constant('stumble' as const),
      name,
      terms,
      count: fc.integer({ min: 1, max: 3 }),
      entering: fc.nat(3),
      goesOn: fc.boolean(),
      which,
    }),
  },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('finish' as const), name, answer: fc.boolean() }) },
  {
    weight: 8,
    arbitrary: fc.record({
      do: fc.constantFrom(...(['cancel', 'forget', 'compact', 'closeGaps', 'closeGaps', 'refresh', 'tidy', 'tidy'] as const)),
      name,
    }),
  },
  {
    weight: 12,
    arbitrary: fc.record({
      do: fc.constantFrom('ask' as const, 'ask' as const, 'trial' as const),
      name,
      tokens: fc.array(token, { maxLength: 4 }),
      terms,
      which,
    }),
  },
)

interface Setting {
  readonly cells: number
  readonly sequences: number
  readonly positions: number | undefined
  readonly host: number
  readonly disk: number
  /** From how many parked cells on they are offloaded, and whether a step that runs alone has this done first. */
  readonly fewest: number
  readonly relieves: boolean
  /** Positions cannot be shifted. */
  readonly fixed: boolean
}

const fit = <Term extends string>(rates: Record<Term, number>) => ({ rates, residual: { median: 0, worst: 0 }, samples: 9 })

/** The costs of a machine whose copies take almost no time. */
const COPIER = {
  on: { ubatch: 64 },
  prefill: fit({ call: 1, token: 1, read: 0, attended: 0, scanned: 0.001 }),
  decode: fit({ token: 1, attended: 0.001, scanned: 0.001 }),
  books: fit({ step: 1, shown: 0, moved: 0 }),
  host: { saveBytesPerSecond: 1e9, loadBytesPerSecond: 1e9, bytesPerCell: 16 },
} as CostModel

const setting: fc.Arbitrary<Setting> = fc.record({
  cells: fc.integer({ min: 80, max: 400 }),
  sequences: fc.integer({ min: 1, max: 9 }),
  positions: fc.oneof(none, none, fc.integer({ min: 30, max: 80 })),
  host: fc.constantFrom(0, 500, 4000, 4000),
  disk: fc.constantFrom(0, 3),
  fewest: fc.constantFrom(1, 5, 1000),
  relieves: fc.boolean(),
  fixed: fc.boolean(),
})

/** A conversation's owner: its prompt, and the spans of it that can be folded. */
class Talk {
  readonly prompt: PromptDraft
  readonly #stretches: { readonly start: number; readonly end: number }[] = []

  constructor(of: string) {
    const system = of === 'c' ? [11, 10, 12, 11, 10] : [10, 11, 12, 10, 11, 12]
    this.prompt = new PromptDraft([system, Array.from({ length: 28 }, (_, at) => 10 + ((at * at) % 5))], OPENING)
    for (const from of [2, 7, 15, 20]) this.cut(1, from, 5)
  }

  cut(message: number, from: number, size: number): number | null {
    const { messages } = this.prompt
    const index = message % messages.length
    const first = this.prompt.startOf(index)
    const start = first + from
    const end = Math.min(start + size, first + messages[index]!.length)
    if (start >= end || this.#stretches.some((other) => other.start < end && start < other.end)) return null
    return this.#stretches.push({ start, end }) - 1
  }

  fold(which: number, tokens: readonly number[], contract?: Contract): void {
    const stretch = this.#stretches[which % this.#stretches.length]
    if (stretch !== undefined) this.prompt.fold(stretch.start, stretch.end, tokens, contract)
  }

  restore(which: number): void {
    const stretch = this.#stretches[which % this.#stretches.length]
    if (stretch !== undefined) this.prompt.restore(stretch.start)
  }
}

/** Counts events over all random histories, so that the test can check that each kind occurred. */
const seen = {
  operations: 0,
  exact: 0,
  splice: 0,
  blend: 0,
  ownContract: 0,
  tooLong: 0,
  beyond: 0,
  noScratch: 0,
  inMiddle: 0,
  abortedInMiddle: 0,
  cancelledInMiddle: 0,
  cancelled: 0,
  approximate: 0,
  exactAgain: 0,
  refreshed: 0,
  compacted: 0,
  closed: 0,
  turned: 0,
  turnedBlending: 0,
  closedByItself: 0,
  shared: 0,
  parked: 0,
  host: 0,
  disk: 0,
  moved: 0,
  relieved: 0,
  relievedFirst: 0,
  gathered: 0,
  evicted: 0,
  lost: 0,
  noCells: 0,
  noSequence: 0,
}

async function play(
  operations: readonly Operation[],
  { cells, sequences, positions, host, disk, fewest, relieves, fixed }: Setting,
): Promise<void> {
  const shelf = new NaiveDiskTier(disk)
  const offload = new OffloadTiers({ hostBytes: host, ...(disk > 0 ? { disk: shelf } : {}) })
  const options = {
    offload,
    fewest,
    costs: { model: COPIER, rates: tierRatesOf(COPIER) },
    ...(positions === undefined ? {} : { positions }),
  }
  const harness = new CacheHarness({ cells, sequences, options, relieves, fixed })
  const talks = new Map<string, Talk>(NAMES.map((each) => [each, new Talk(each)]))
  const runningOf = (of: string) => harness.running.get(conversationId(of))

  const missingOf = (of: string) => {
    const running = runningOf(of)
    return running === undefined ? 0 : missing(running)
  }

  const finish = (of: string, outcome: 'done' | 'cancelled', answer = true) => {
    const { generated, plan, step } = runningOf(of)!
    const before = harness.cache.ledger(conversationId(of)).findLast(({ kind }) => kind !== 'cancelled')
    if (outcome === 'cancelled' && step.inMiddle) seen.cancelledInMiddle++
    const entry = harness.finish(of, outcome)
    if (entry.kind === 'answer') talks.get(of)!.prompt.say(answer ? [...generated, 3] : [7, ...generated.slice(1), 3])
    if (outcome === 'cancelled') seen.cancelled++
    else {
      seen[entry.contract]++
      if (entry.kind === 'refresh') expect([entry.contract, entry.approximate]).toEqual(['exact', 0])
      if (entry.approximate > 0) seen.approximate++
      else if (entry.kind === 'refresh') seen.refreshed++
      else if ((before?.approximate ?? 0) > 0) seen.exactAgain++
    }
    if (plan.fallback?.includes('longer') === true) seen.tooLong++
    if (plan.fallback?.includes('was trained on') === true) seen.beyond++
    if (plan.fallback?.includes('sequences') === true) seen.noScratch++
    const { turned = 0 } = entry
    if (turned > 0) seen.turned++
    if (turned > 0 && entry.contract === 'blend') seen.turnedBlending++
    if (turned > 0 && entry.shown === entry.positions && entry.approximate > 0) seen.closedByItself++
    seen.parked += entry.sources.parked
    if (entry.contract !== 'exact') seen.shared += entry.sources.shared
    seen.host += entry.tiers.host
    seen.disk += entry.tiers.disk
    seen.moved += entry.moved
    seen.evicted += entry.evicted
  }
  const start = async (of: string, asked: StepContract) => {
    harness.terms = asked
    const running = await harness.fetch(of, talks.get(of)!.prompt.shown)
    if (running?.gathered === true) seen.relievedFirst++
    if (running === null) seen.noSequence++
    else if (running.plan.asked !== asked.contract) seen.ownContract++
  }
  /** Decodes once. If there is no room, the step ends. */
  const advance = (of: string, count: number, tokens: readonly number[], entering?: number) => {
    const running = runningOf(of)!
    const isIn = missing(running) === 0
    if (running.step.inMiddle) seen.inMiddle++
    if (running.step.inMiddle && entering !== undefined) seen.abortedInMiddle++
    if (harness.decode(running, isIn ? Int32Array.from(tokens) : count, entering)) return
    seen.noCells++
    finish(of, isIn ? 'done' : 'cancelled')
  }
  const complete = (of: string, tokens: readonly number[]) => {
    while (missingOf(of) > 0) advance(of, 16, [])
    for (const each of tokens) if (runningOf(of) !== undefined) advance(of, 1, [each])
    if (runningOf(of) !== undefined) finish(of, 'done')
  }
  const ask = async (of: string, tokens: readonly number[], asked: StepContract) => {
    await start(of, asked)
    complete(of, tokens)
  }

  /** All that is a burden: the cache is never fuller than this share. */
  const relieve = async (): Promise<boolean> => {
    const { loaded } = harness.memory.moves
    if (!(await harness.tidy(1))) return false
    if (harness.memory.moves.loaded > loaded) seen.gathered++
    else seen.relieved++
    await relieve()
    return true
  }

  for (const op of operations) {
    seen.operations++
    const talk = talks.get(op.name)!
    const id = conversationId(op.name)
    const running = runningOf(op.name)
    if (op.do === 'add') talk.prompt.add(op.tokens)
    else if (op.do === 'cut') {
      const stretch = talk.cut(op.message, op.from, op.size)
      if (stretch !== null) talk.fold(stretch, op.marker)
    } else if (op.do === 'fold') talk.fold(op.which, op.marker, op.contract)
    else if (op.do === 'restore') talk.restore(op.which)
    else if (op.do === 'start' && running === undefined) await start(op.name, op.terms)
    else if (op.do === 'advance' && running !== undefined) advance(op.name, op.count, op.tokens)
    else if (op.do === 'stumble' && running === undefined) {
      talk.fold(op.which, [92, 91, 90])
      await start(op.name, op.terms)
      for (let chunk = 0; chunk < op.entering; chunk++) if (missingOf(op.name) > 0) advance(op.name, op.count, [])
      if (missingOf(op.name) > 0) advance(op.name, op.count, [], op.count - 1)
      if (op.goesOn) complete(op.name, [12])
      else if (runningOf(op.name) !== undefined) finish(op.name, 'cancelled')
    } else if (op.do === 'abort' && running !== undefined && missing(running) > 0) {
      advance(op.name, op.count, [], op.entering)
      if (op.entering % 2 === 0 && runningOf(op.name) !== undefined) finish(op.name, 'cancelled')
    } else if (op.do === 'cancel' && running !== undefined) finish(op.name, 'cancelled')
    else if (op.do === 'finish' && running !== undefined && missing(running) === 0) finish(op.name, 'done', op.answer)
    else if (op.do === 'forget' && running === undefined) {
      harness.forget(op.name)
      talks.set(op.name, new Talk(op.name))
    } else if (op.do === 'compact') {
      if (harness.compact(op.name) > 0) seen.compacted++
    } else if (op.do === 'closeGaps') {
      if (harness.closeGaps(op.name) > 0) seen.closed++
    } else if (op.do === 'tidy') {
      if (!(await relieve())) await harness.tidy(0.3)
    } else if (op.do === 'refresh' && running === undefined) {
      const shown = harness.cache.prompt(id)
      if (shown === null) continue
      harness.terms = { contract: 'exact' }
      if ((await harness.fetch(op.name, shown, 'refresh')) === null) continue
      complete(op.name, [])
    } else if ((op.do === 'ask' || op.do === 'trial') && running === undefined) {
      await ask(op.name, op.tokens, op.terms)
      if (op.do === 'ask') continue
      talk.fold(op.which, [90, 91])
      await ask(op.name, [], op.terms)
      if (op.which % 2 === 0 && harness.closeGaps(op.name) > 0) seen.closed++
      if (op.which % 3 === 0) await relieve()
      if (op.which % 3 === 1) await ask(op.name, [], op.terms)
      talk.restore(op.which)
      await ask(op.name, op.tokens, op.terms)
    }
    if (seen.operations % 2 === 0) await harness.moveOn()
    await offload.settle()
  }
  seen.lost += harness.cache.totals.tiers.lost
}

describe('random conversations under random contracts', () => {
  const runs = LONG ? 600 : 60
  it(`show the right prompt, and report its approximate tokens, in ${runs} sequences`, async () => {
    await fc.assert(fc.asyncProperty(fc.array(operation, { minLength: 10, maxLength: 60, size: 'max' }), setting, play), {
      numRuns: runs,
      endOnFailure: true,
      ...(LONG ? {} : { seed: 20261128 }),
    })
    for (const [what, count] of Object.entries(seen))
      expect(count, `no run came by "${what}" often enough: ${JSON.stringify(seen)}`).toBeGreaterThan(runs / 20)
  }, 900_000)
})
