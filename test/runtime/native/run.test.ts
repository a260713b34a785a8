/**
 * Tests runs of several decodes on a real GGUF: they draw the same tokens as decoding and sampling step by step; how they end; which calls
 * must wait.
 */
import { pbkdf2 } from 'node:crypto'
import { afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest'
import { span } from '../../../src/runtime/core/span.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type {
  DrawnTokens,
  NativeContext,
  NativeModel,
  NativeSampler,
  DecodeRun,
  SamplerOptions,
} from '../../../src/runtime/native/types.js'
import { tinyModel } from '../../support/models.js'
import { batchOf, feed, refused, seq, someTokens } from './support/fixture.js'
import { neverEnding } from '../../../bench/random-tokens.js'

let path: string
let model: NativeModel
let context: NativeContext
let bans: { token: number; bias: number }[]

beforeAll(async () => {
  path = await tinyModel()
})
beforeEach(async () => {
  model = await (await openNative({ gpu: 'cpu' })).loadModel(path)
  context = await model.createContext({ cells: 512, sequences: 4, threads: 1, batchThreads: 1 })
  bans = neverEnding(model)
})
afterEach(() => model.dispose())

const PROMPTS = [someTokens(30, 1), someTokens(41, 2), someTokens(17, 3)]

/** Prefills all prompts except their last tokens, and returns a run that continues from there. */
async function begun(samplers: readonly NativeSampler[], rest: Partial<DecodeRun> = {}): Promise<DecodeRun> {
  for (const [at, prompt] of PROMPTS.entries()) await feed(context, prompt.subarray(0, -1), 0, at)
  return {
    tokens: Int32Array.from(PROMPTS, (prompt) => prompt.at(-1)!),
    positions: Int32Array.from(PROMPTS, (prompt) => prompt.length - 1),
    sequences: Int32Array.of(0, 1, 2),
    samplers,
    limits: Int32Array.of(1000, 1000, 1000),
    steps: 20,
    ...rest,
  }
}

const three = (options: SamplerOptions) =>
  PROMPTS.map((_, at) => model.createSampler({ logitBias: bans, ...options, seed: 7 + at }))

/** Keeps all threads that could carry out a run busy for a while. So the test can act before the run's first step. */
function occupyThreads(): void {
  const threads = Number(process.env.UV_THREADPOOL_SIZE ?? 4)
  for (let i = 0; i < threads; i++) pbkdf2('', '', 500_000, 64, 'sha512', () => undefined)
}

/** Runs it. Returns all reported tokens and times in order, and the result. */
async function told(run: DecodeRun) {
  const tokens: number[] = []
  const times: number[] = []
  const hear = (drawn: DrawnTokens) => {
    tokens.push(...drawn.tokens)
    times.push(...drawn.milliseconds)
  }
  const end = await context.generate(run, hear)
  hear(end.drawn)
  return { tokens, times, end }
}

describe('a run', () => {
  it.each<[string, SamplerOptions]>([
    ['greedy', { temperature: 0 }],
    ['drawn', { temperature: 1.3, topK: 40, topP: 0.9 }],
    ['penalties', { temperature: 0.9, repeatPenalty: 1.3 }],
    ['mirostat', { temperature: 1, mirostat: { version: 2, tau: 4, eta: 0.1 } }],
    ['grammar', { temperature: 1.2, logitBias: [], grammar: 'root ::= [a-z ]*' }],
  ])('draws the same as decoding and sampling step by step: %s', async (_, options) => {
    const run = await begun(three(options))
    const { tokens, times, end } = await told(run)
    expect(end.status).toBe('done')
    const steps = times.length
    expect(tokens.length).toBe(3 * steps)
    expect(context.submitted).toBe(30 + 41 + 17 - 3 + 3 * steps)
    for (const at of [0, 1, 2]) expect(context.positions(seq(at))?.max).toBe(PROMPTS[at]!.length - 2 + steps)

    context.clear()
    const samplers = three(options)
    const again = await begun(samplers)
    const expected: number[] = []
    let next = again.tokens
    for (let step = 0; step < steps; step++) {
      const batch = { tokens: next, positions: again.positions.map((position) => position + step), sequences: again.sequences }
      expect(await context.decode({ ...batch, outputs: Uint8Array.of(1, 1, 1) })).toBe('done')
      next = Int32Array.from(samplers, (sampler, at) => sampler.sample(context, at))
      expected.push(...next)
    }
    expect(tokens).toEqual(expected)
  })

  it('ends with the first sequence that reaches its limit or the end of generation', async () => {
    const { times } = await told(await begun(three({ temperature: 0 }), { limits: Int32Array.of(9, 5, 7) }))
    expect(times.length).toBe(5)
    context.clear()
    const [end = 0] = bans.map(({ token }) => token)
    const samplers = three({ temperature: 0 })
    samplers[1] = model.createSampler({ temperature: 0, logitBias: [{ token: end, bias: 1000 }] })
    const ended = await told(await begun(samplers))
    expect(ended.times.length).toBe(1)
    expect(ended.tokens[1]).toBe(end)
  })

  it('says which draw failed, and keeps the other draws', async () => {
    const samplers = three({ temperature: 0 })
    // This grammar allows one token and no end.
    samplers[2] = model.createSampler({ temperature: 0, logitBias: bans, grammar: 'root ::= "a" "\\x00"' })
    const { tokens, times, end } = await told(await begun(samplers))
    expect(end.status).toBe('done')
    expect(end.refused[0]).toBeNull()
    expect(end.refused[1]).toBeNull()
    expect(end.refused[2]).toMatchObject({ code: 'engine/bad-grammar' })
    expect(tokens.at(-1)).toBe(-1)
    expect(tokens.length).toBe(3 * times.length)
    expect(tokens.at(-2)).toBeGreaterThanOrEqual(0)
  })

  it('ends after the current step when it is interrupted', async () => {
    const run = await begun(three({ temperature: 0 }))
    occupyThreads()
    const running = told(run)
    context.interrupt()
    const { times, end } = await running
    expect(end.status).toBe('done')
    expect(times.length).toBe(1)
    expect(context.positions(seq(0))?.max).toBe(29)
    await feed(context, [1], 30, 0)
  })

  it('ends when cells run out; positions show how far it came', async () => {
    const { times, end } = await told(await begun(three({ temperature: 0 }), { steps: 400 }))
    expect(['no-room', 'done']).toContain(end.status)
    expect(context.positions(seq(0))?.max).toBe(28 + times.length)
    if (end.status === 'no-room') expect(times.length).toBe(Math.floor((512 - 85) / 3))
  })
})

describe('while a run is in progress', () => {
  it.each<[string, () => unknown]>([
    ['decode', () => context.decode(batchOf([1], 0, 3))],
    ['logits', () => context.logits(0)],
    ['untag', () => { context.untag(seq(0), span(0, 1)) }],
    ['positions', () => context.positions(seq(0))],
  ])('%s is refused', async (_, call) => {
    const running = told(await begun(three({ temperature: 0 }), { steps: 100 }))
    await refused('native/busy', call)
    expect((await running).end.status).toBe('done')
  }) // prettier-ignore

  it('an error of the caller ends it and is thrown', async () => {
    const heard = vi.fn(() => {
      throw new Error('no more')
    })
    // A run waits when it is eight steps ahead of the event loop, so one may end before the caller hears of it.
    const isHeard = () => heard.mock.calls.length > 0
    for (let tries = 0; tries < 50 && !isHeard(); tries++) {
      for (const at of PROMPTS.keys()) context.untag(seq(at), span(0, 512))
      const running = context.generate(await begun(three({ temperature: 0 }), { steps: 100 }), heard)
      const thrown = await running.then(
        () => null,
        (error: unknown) => error,
      )
      expect(thrown).toEqual(isHeard() ? new Error('no more') : null)
    }
    expect(heard).toHaveBeenCalledTimes(1)
    expect(await context.decode(batchOf([1], 0, 3))).toBe('done')
  })

  it('disposing a sampler ends it', async () => {
    const samplers = three({ temperature: 0 })
    const run = await begun(samplers)
    occupyThreads()
    const running = told(run)
    samplers[1]!.dispose()
    expect((await running).end.refused[1]).toMatchObject({ code: 'native/disposed' })
  })

  it('dispose stops it', async () => {
    const running = told(await begun(three({ temperature: 0 }), { steps: 130 }))
    await model.dispose()
    expect(['done', 'aborted']).toContain((await running).end.status)
    await refused('native/disposed', () => context.positions(seq(0)))
  })
})

describe('refused before anything is decoded', () => {
  it.each<[string, Partial<DecodeRun>]>([
    ['no steps', { steps: 0 }],
    ['a limit of nothing', { limits: Int32Array.of(1, 0, 1) }],
    ['a sequence twice', { sequences: Int32Array.of(0, 1, 1), positions: Int32Array.of(29, 40, 41) }],
    ['too few samplers', { samplers: [] }],
    ['a wrong position', { positions: Int32Array.of(29, 40, 17) }],
    ['a token out of the vocabulary', { tokens: Int32Array.of(1, 1, 1e6) }],
  ])('%s', async (_, rest) => {
    const run = await begun(three({ temperature: 0 }), rest)
    const before = context.submitted
    await refused('native/bad-argument', () => context.generate(run, () => undefined))
    expect(context.submitted).toBe(before)
  })

  it('after dispose', async () => {
    const run = await begun(three({ temperature: 0 }))
    await context.dispose()
    await refused('native/disposed', () => context.generate(run, () => undefined))
    context.interrupt()
  })
})
