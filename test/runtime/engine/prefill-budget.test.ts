/** Tests what goes into turns while prompts wait beside streams: on simulated machines with known costs, and on a real GGUF. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { PrefillBudget } from '../../../src/runtime/engine/batch.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { tinyModel } from '../../support/models.js'
import { neverEnding } from '../../../bench/random-tokens.js'

const ROOM = 512

/** A machine that takes `alone` milliseconds for the streams' tokens, and for prompt tokens `fixed` and `each`. */
interface Machine {
  readonly alone: number
  readonly fixed: number
  readonly each: number
  /** What a batch of streams and prompts takes more than both apart. */
  readonly together: number
}

const machines = fc.record({
  alone: fc.double({ min: 0.2, max: 300, noNaN: true }),
  fixed: fc.constant(0),
  each: fc.double({ min: 0.002, max: 20, noNaN: true }),
  together: fc.double({ min: -0.1, max: 100, noNaN: true }),
})

interface SimulatedTurn {
  readonly streams: boolean
  readonly prompt: number
}

const costOf = ({ alone, fixed, each, together }: Machine, { streams, prompt }: SimulatedTurn): number =>
  (streams ? alone : 0) + (prompt > 0 ? fixed + prompt * each : 0) + (streams && prompt > 0 ? together : 0)

/** Runs `count` turns with prompts always waiting. */
function turns(budget: PrefillBudget, machine: Machine, count: number, streams = 4): SimulatedTurn[] {
  return Array.from({ length: count }, () => {
    const turn = budget.turn(streams, 1e6)
    budget.took({ prompt: turn.prompt, streams: turn.streams ? streams : 0, milliseconds: costOf(machine, turn) })
    return turn
  })
}

/** Returns the milliseconds from each token of the streams to the next one. */
function gapsOf(machine: Machine, all: readonly SimulatedTurn[]): number[] {
  const gaps: number[] = []
  let since = 0
  for (const turn of all) {
    since += costOf(machine, turn)
    if (!turn.streams) continue
    gaps.push(since)
    since = 0
  }
  return gaps
}

const promptsOf = (all: readonly SimulatedTurn[]): number[] => all.map(({ prompt }) => prompt).filter((prompt) => prompt > 0)

describe('prompt tokens beside streams', () => {
  it('keep the requested gap where 16 tokens do, and always progress', () => {
    fc.assert(
      fc.property(machines, fc.double({ min: 1, max: 2000, noNaN: true }), (machine, maxGap) => {
        const settled = turns(new PrefillBudget(ROOM, maxGap), { ...machine, together: 0 }, 60).slice(30)
        expect(promptsOf(settled).length).toBeGreaterThan(12)
        const least = machine.alone + 16 * machine.each
        for (const gap of gapsOf({ ...machine, together: 0 }, settled))
          expect(gap).toBeLessThanOrEqual(Math.max(maxGap, least) * 1.01)
      }),
    )
  })

  it('use the requested gap', () => {
    fc.assert(
      fc.property(machines, (of) => {
        const machine = { ...of, together: 0 }
        const settled = promptsOf(turns(new PrefillBudget(ROOM, 4 * machine.alone), machine, 60).slice(30))
        // Chunks are whole tiles, and one is a quarter now and then.
        const most = Math.min(ROOM, (3 * machine.alone) / machine.each)
        expect(Math.max(...settled) + (most < 80 ? 16 : 64)).toBeGreaterThan(0.9 * most)
      }),
    )
  })

  it('without a requested gap, none is longer than a second where 16 tokens take less', () => {
    fc.assert(
      fc.property(machines, fc.double({ min: 0, max: 100, noNaN: true }), (of, fixed) => {
        const machine = { ...of, fixed, together: 0 }
        const settled = turns(new PrefillBudget(ROOM), machine, 200).slice(60)
        expect(promptsOf(settled).length).toBeGreaterThan(50)
        for (const gap of gapsOf(machine, settled))
          expect(gap).toBeLessThanOrEqual(Math.max(1000, machine.alone + fixed + 16 * machine.each) * 1.05)
      }),
    )
  })

  it('take the way that costs less', () => {
    fc.assert(
      fc.property(machines, fc.double({ min: 0.02, max: 1, noNaN: true }), ({ alone }, share) => {
        const each = share * alone
        for (const [together, mixed] of [
          [0.5 * each * 16 + 0.5, false],
          [-0.5 * Math.min(alone, 16 * each), true],
        ] as const) {
          const settled = turns(new PrefillBudget(ROOM, alone + 16 * each), { alone, fixed: 0, each, together }, 200).slice(50)
          const chunks = settled.filter(({ prompt }) => prompt > 0)
          expect(chunks.filter(({ streams }) => streams === mixed).length).toBeGreaterThan(0.9 * chunks.length)
        }
      }),
    )
  })

  it('follow a machine that becomes slower, and are not misled by one slow turn', () => {
    const machine = { alone: 5, fixed: 0, each: 0.1, together: 0 }
    const budget = new PrefillBudget(ROOM, 25)
    const last = (count: number, of: Machine = machine) => promptsOf(turns(budget, of, count)).at(-1)
    expect(last(30)).toBe(192)
    budget.took({ prompt: 192, streams: 4, milliseconds: 2000 })
    budget.took({ prompt: 192, streams: 0, milliseconds: 2000 })
    expect(last(2)).toBeGreaterThanOrEqual(128)
    expect(last(20)).toBe(192)
    const slow = last(40, { ...machine, each: 0.4 })
    expect(slow).toBeGreaterThanOrEqual(32)
    expect(slow).toBeLessThanOrEqual(48)
  })

  it('begin with turns without prompts, to measure the streams alone', () => {
    const budget = new PrefillBudget(ROOM, 8)
    expect(turns(budget, { alone: 2, fixed: 0, each: 0.1, together: 0 }, 3).map(({ prompt }) => prompt > 0)).toEqual([
      false,
      false,
      true,
    ])
    // Another number of streams has another cost.
    expect(budget.turn(3, 1000)).toEqual({ streams: true, prompt: 0 })
  })
})

/** A machine with measured or published speeds: milliseconds of a batch by its streams and prompt tokens. */
type Speeds = (streams: number, prompt: number) => number

/** One thread of a server's processor with SmolLM2 135M: fewer than 64 tokens take longer each, and streams spoil the tiles. */
const CPU: Speeds = (streams, prompt) =>
  4 + streams * 8.6 + prompt * (prompt + streams < 64 ? 6.6 : 5.5) + (prompt + streams >= 64 && prompt > 0 ? streams * 15 : 0)
/** 8B in 4 bits on a laptop's card. */
const LAPTOP: Speeds = (streams, prompt) => 25 + streams * 0.5 + (prompt > 0 ? 30 + prompt * 0.4 : 0)
/** 8B on an H200. */
const H200: Speeds = (streams, prompt) => 5 + streams * 0.3 + (prompt > 0 ? 2 + prompt * 0.035 : 0)

interface Outcome {
  readonly tokensPerSecond: number
  /** The numbers of the prompts, in the order of their first tokens. */
  readonly order: readonly number[]
  readonly medianFirst: number
  readonly gap95: number
}

/** Serves prompts of 2000 tokens, all there at once, with answers of 64 tokens on 8 slots. `null`: whole batches, whatever the streams do. */
function served(speeds: Speeds, budget: PrefillBudget | null, count = 64): Outcome {
  const jobs = Array.from({ length: count }, (_, number) => ({ number, left: 2000, generated: 0, last: 0 }))
  const firsts: number[] = []
  const order: number[] = []
  const gaps: number[] = []
  let now = 0
  let done = 0
  while (done < count) {
    const active = jobs.filter(({ generated }) => generated < 64).slice(0, 8)
    const waiting = active.filter(({ left }) => left > 0)
    const streaming = active.filter(({ left }) => left === 0)
    const isFree = waiting.length === 0 || streaming.length === 0 || budget === null
    const turn = isFree
      ? { streams: true, prompt: ROOM }
      : budget.turn(
          streaming.length,
          waiting.reduce((sum, { left }) => sum + left, 0),
        )
    const streams = turn.streams ? streaming : []
    let room = Math.min(turn.prompt, ROOM - streams.length)
    let prompt = 0
    const emitting = [...streams]
    for (const job of waiting) {
      const taken = Math.min(room, job.left)
      room -= taken
      prompt += taken
      job.left -= taken
      if (taken > 0 && job.left === 0) emitting.push(job)
    }
    const milliseconds = speeds(streams.length, prompt)
    now += milliseconds
    budget?.took({ prompt, streams: streams.length, milliseconds })
    for (const job of emitting) {
      if (job.generated === 0) {
        firsts.push(now)
        order.push(job.number)
      } else gaps.push(now - job.last)
      job.last = now
      if (++job.generated === 64) done++
    }
  }
  gaps.sort((a, b) => a - b)
  return {
    tokensPerSecond: (1000 * 64 * count) / now,
    order,
    medianFirst: firsts[count / 2]!,
    gap95: gaps[Math.floor(0.95 * gaps.length)]!,
  }
}

describe('a load of 64 prompts on 8 slots', () => {
  it.each([
    ['one thread of a CPU', CPU, 450],
    ['a laptop', LAPTOP, 270],
    ['an H200', H200, 50],
  ] as const)('on %s has short gaps, and loses at most a twentieth of throughput', (_, speeds, gap) => {
    const whole = served(speeds, null)
    const chosen = served(speeds, new PrefillBudget(ROOM))
    expect(chosen.order).toEqual(whole.order)
    expect(chosen.tokensPerSecond).toBeGreaterThan(0.95 * whole.tokensPerSecond)
    expect(chosen.medianFirst).toBeLessThan(1.05 * whole.medianFirst)
    expect(chosen.gap95).toBeLessThan(gap)
  })
})

describe('on a real model', () => {
  const tokens = (size: number, salt: number) =>
    Int32Array.from({ length: size }, (_, at) => 1 + ((at * 7 + salt * 13 + ((at * at) % 11)) % 250))

  /**
   * Runs prompts beside a stream. Returns the prompt tokens between two tokens of the stream, where there were some; the answers; and the
   * tokens computed in all.
   */
  async function beside(
    maxGap: number,
  ): Promise<{ readonly chunks: readonly number[]; readonly answers: readonly string[]; readonly computed: number }> {
    const engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), await tinyModel(), {
      cells: 2048,
      threads: 1,
      batchThreads: 1,
      maxGap,
    })
    try {
      const sampling = { logitBias: neverEnding(engine.model) }
      let computed = 0
      const chunks: number[] = []
      const prompts: ReturnType<LlamaEngine['complete']>[] = []
      const stream = engine.complete({
        conversation: conversationId('stream'),
        tokens: tokens(20, 1),
        maxTokens: 60,
        sampling,
        onText: () => {
          if (prompts.length > 0 && computed > 0) chunks.push(computed)
          computed = 0
          for (let salt = prompts.length; salt < 2; salt++) {
            let before = 0
            const onPrefill = (done: number) => {
              computed += done - before
              before = done
            }
            const conversation = conversationId(`prompt${salt}`)
            prompts.push(engine.complete({ conversation, tokens: tokens(800, 2 + salt), maxTokens: 1, sampling, onPrefill }))
          }
          return undefined
        },
      })
      const results = [await stream, ...(await Promise.all(prompts))]
      await engine.check('full')
      const submitted = results.reduce((sum, { ledger }) => sum + ledger.submitted, 0)
      expect(submitted).toBe(engine.submitted)
      return { chunks, answers: results.slice(1).map(({ text }) => text), computed: submitted }
    } finally {
      await engine.dispose()
    }
  }

  it('the least gap makes the smallest chunks, a large one whole batches; answers and counts are the same', async () => {
    const small = await beside(0.001)
    const large = await beside(1e6)
    expect(Math.max(...large.chunks)).toBeGreaterThan(512)
    expect(Math.max(...large.chunks)).toBeLessThanOrEqual(2048)
    // A chunk with a token of the stream and one without it may come between two tokens here, because that token comes first.
    for (const chunk of small.chunks) expect([16, 32]).toContain(chunk)
    expect(small.computed).toBe(large.computed)
    expect(small.answers).toEqual(large.answers)
  })
})
