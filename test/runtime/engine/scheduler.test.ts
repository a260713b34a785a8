/**
 * Tests the llama engine's bare completions on a real GGUF: batching, cancellation, limits, determinism, the ledger against the addon's
 * counter.
 */
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { LlamaEngine, type Completion } from '../../../src/runtime/engine/llama.js'
import type { JobResult } from '../../../src/runtime/engine/job.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { TEST_GPU } from '../../support/device.js'
import { tinyModel } from '../../support/models.js'
import { neverEnding } from '../../../bench/random-tokens.js'

const CELLS = 2048
let engine: LlamaEngine
let ban: { token: number; bias: number }[]
let count = 0

beforeAll(async () => {
  engine = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), await tinyModel(), {
    cells: CELLS,
    sequences: 8,
    threads: 1,
    batchThreads: 1,
    batch: 512,
    // A prompt fills the room of a batch; prefill-budget.test.ts tests how streams limit that.
    maxGap: 1e6,
  })
  // Random weights may end an answer anywhere; these tests need answers of a known length.
  ban = neverEnding(engine.model)
})

afterAll(() => engine.dispose())

const tokens = (size: number, salt = 0) =>
  Int32Array.from({ length: size }, (_, at) => 1 + ((at * 7 + salt * 13 + ((at * at) % 11)) % 250))

function complete(request: Partial<Completion> & { readonly tokens: Int32Array }): Promise<JobResult> {
  const { sampling, ...rest } = request
  return engine.complete({
    conversation: conversationId(`t${++count}`),
    maxTokens: 8,
    ...rest,
    sampling: { logitBias: ban, ...sampling },
  })
}

async function submittedBy(
  work: () => Promise<readonly JobResult[]>,
): Promise<{ results: readonly JobResult[]; submitted: number }> {
  const before = engine.submitted
  const results = await work()
  await engine.check('full')
  return { results, submitted: engine.submitted - before }
}

describe('completions', () => {
  it('repeats itself greedily, and with a seed', async () => {
    const greedy = await complete({ tokens: tokens(40) })
    expect((await complete({ tokens: tokens(40) })).tokens).toEqual(greedy.tokens)
    const sampling = { temperature: 1.5, seed: 7 }
    const drawn = await complete({ tokens: tokens(40), sampling })
    expect((await complete({ tokens: tokens(40), sampling })).tokens).toEqual(drawn.tokens)
    expect((await complete({ tokens: tokens(40), sampling: { ...sampling, seed: 8 } })).tokens).not.toEqual(drawn.tokens)
  })

  it('accounts for every submitted token, one token pending', async () => {
    const conversation = conversationId('account')
    const { results, submitted } = await submittedBy(async () => [await complete({ conversation, tokens: tokens(50, 1) })])
    const { ledger } = results[0]!
    expect(ledger).toMatchObject({ shown: 57, reused: 0, recomputed: 0, fresh: 57, side: 0, submitted: 57, pending: 1 })
    expect(submitted).toBe(57)
    const again = await submittedBy(async () => [await complete({ conversation, tokens: tokens(50, 1), maxTokens: 1 })])
    expect(again.results[0]!.ledger).toMatchObject({ shown: 50, reused: 50, recomputed: 0, fresh: 0, side: 1, submitted: 1 })
    expect(again.submitted).toBe(1)
  })

  it('shares the beginning of two conversations', async () => {
    const common = tokens(100, 2)
    await complete({ conversation: conversationId('first'), tokens: common, maxTokens: 1 })
    const { ledger } = await complete({
      conversation: conversationId('second'),
      tokens: Int32Array.from([...common, 5, 6, 7]),
      maxTokens: 1,
    })
    expect(ledger.sources).toEqual({ own: 0, parked: 0, shared: 100 })
    expect(ledger.submitted).toBe(3)
  })

  it('runs several in one batch, each with the same tokens as alone, and their sum is the counter', async () => {
    const prompts = [0, 1, 2, 3, 4, 5].map((salt) => tokens(60 + 10 * salt, 10 + salt))
    const { results, submitted } = await submittedBy(() => Promise.all(prompts.map((prompt) => complete({ tokens: prompt }))))
    expect(results.reduce((sum, { ledger }) => sum + ledger.recomputed + ledger.fresh + ledger.side, 0)).toBe(submitted)
    for (const [index, prompt] of prompts.entries()) {
      const conversation = conversationId(`alone${index}`)
      const alone = await complete({ conversation, tokens: prompt })
      expect(results[index]!.tokens.length).toBe(8)
      // Kernels differ beside other sequences (kv-mechanics.md), so the test compares the first token and counts the rest.
      expect(alone.tokens[0]).toBe(results[index]!.tokens[0])
    }
  })

  it('puts at most two batches of prompt tokens between two tokens of a stream, and takes one prompt after the other', async () => {
    let computed = 0
    let most = 0
    let streaming = false
    const orders: number[] = []
    const prompts = [0, 1, 2].map((salt) => tokens(550, 40 + salt))
    const waiting: Promise<JobResult>[] = []
    const stream = complete({
      tokens: tokens(20, 43),
      maxTokens: 12,
      onText: () => {
        if (streaming) most = Math.max(most, computed)
        computed = 0
        if (streaming) return
        streaming = true
        for (const [index, prompt] of prompts.entries()) {
          let before = 0
          const onPrefill = (done: number) => {
            computed += done - before
            before = done
            orders.push(index)
          }
          waiting.push(complete({ tokens: prompt, maxTokens: 1, onPrefill }))
        }
      },
    })
    await stream
    await Promise.all(waiting)
    expect(most).toBeGreaterThan(256)
    // A batch with a token of the stream and one without it may come between two tokens here, because that token comes first.
    expect(most).toBeLessThanOrEqual(1024)
    expect(orders).toEqual([...orders].sort((a, b) => a - b))
    expect(new Set(orders).size).toBe(3)
  })

  it('computes a short prompt before the rest of a long one, and a long one before short ones that arrive after it is due', async () => {
    const ended: string[] = []
    const run = async (name: string, prompt: Int32Array, onPrefill?: () => void) => {
      await complete({ tokens: prompt, maxTokens: 1, ...(onPrefill === undefined ? {} : { onPrefill }) })
      ended.push(name)
    }
    const short: Promise<void>[] = []
    let heard = 0
    const long = run('long', tokens(1200, 90), () => {
      if (heard++ === 0) short.push(run('short', tokens(100, 91)), run('later', tokens(1150, 92)))
    })
    await long
    await Promise.all(short)
    expect(ended).toEqual(['short', 'long', 'later'])
  })

  it('draws ahead the same tokens as one by one, with the same ledger', async () => {
    const sampling = { temperature: 1.2, topK: 50, seed: 3 }
    const answers = async (name: string, rest: Partial<Completion>) => {
      const before = engine.submitted
      const texts: string[] = []
      const results = await Promise.all(
        [0, 1, 2].map((salt) =>
          complete({
            conversation: conversationId(`${name}${salt}`),
            // Separate tenants share nothing, whichever runs first.
            tenant: name,
            tokens: tokens(40, 70 + salt),
            maxTokens: 30 + 7 * salt,
            sampling,
            ...rest,
            onText: (text) => {
              texts[salt] = (texts[salt] ?? '') + text
              return undefined
            },
          }),
        ),
      )
      await engine.check('full')
      expect(results.map(({ text }) => text)).toEqual(texts)
      const counts = results.map(({ ledger: { messages, shown, submitted, pending, positions, fresh } }) => ({
        messages,
        shown,
        submitted,
        pending,
        positions,
        fresh,
      }))
      return { tokens: results.map((result) => [...result.tokens]), counts, submitted: engine.submitted - before }
    }
    const ahead = await answers('ahead', { ahead: true })
    expect(ahead).toEqual(await answers('behind', {}))
    expect(ahead.tokens.map(({ length }) => length)).toEqual([30, 37, 44])
  })

  it('stops drawing ahead when a request, a cancel or a check arrives', async () => {
    const abort = new AbortController()
    let heard = 0
    let other: Promise<JobResult> | null = null
    const checks: Promise<void>[] = []
    const long = complete({
      tokens: tokens(30, 80),
      maxTokens: 1500,
      ahead: true,
      signal: abort.signal,
      onText: () => {
        heard++
        if (heard === 20) other = complete({ tokens: tokens(60, 81), maxTokens: 5 })
        if (heard % 10 === 0) checks.push(engine.check('full'))
        if (heard === 60) abort.abort()
        return undefined
      },
    })
    const { finish, ledger } = await long
    expect(finish).toBe('cancelled')
    // A few steps were running when it was cancelled, never the rest.
    expect(ledger.submitted).toBeGreaterThanOrEqual(30 + 59)
    expect(ledger.submitted).toBeLessThan(30 + 59 + 40)
    expect((await other!).tokens.length).toBe(5)
    await Promise.all(checks)
    await engine.check('full')
  })

  it('an error in a listener ends its own answer, not the others', async () => {
    let heard = 0
    const bad = complete({
      tokens: tokens(30, 82),
      maxTokens: 60,
      ahead: true,
      onText: () => {
        if (++heard === 7) throw new Error('wanted')
        return undefined
      },
    })
    const good = complete({ tokens: tokens(30, 83), maxTokens: 60 })
    await expect(bad).rejects.toThrow('wanted')
    expect((await good).tokens.length).toBe(60)
    const worse = complete({
      tokens: tokens(30, 84),
      onPrefill: () => {
        throw new Error('wanted, too')
      },
    })
    const fine = complete({ tokens: tokens(30, 85), maxTokens: 20 })
    await expect(worse).rejects.toThrow('wanted, too')
    expect((await fine).tokens.length).toBe(20)
    await engine.check('full')
  })

  it('ends at a stop string and does not show it', async () => {
    const free = await complete({ tokens: tokens(30, 3), maxTokens: 12 })
    const stop = free.text.slice(3, 5)
    const stopped = await complete({ tokens: tokens(30, 3), maxTokens: 12, stop: [stop] })
    expect(stopped.finish).toBe('stop-string')
    expect(stopped.text).toBe(free.text.slice(0, free.text.indexOf(stop)))
  })

  it('keeps to a grammar', async () => {
    const result = await engine.complete({
      conversation: conversationId('grammar'),
      tokens: tokens(20),
      maxTokens: 30,
      grammar: 'root ::= "ab" [0-9]+ "c"',
    })
    expect(result.text).toMatch(/^ab[0-9]*c?$/)
  })

  it('counts no pending token for a stream whose last token entered the cache while another stream cancelled it', async () => {
    const aborts = [new AbortController(), new AbortController()]
    const texts = [0, 0]
    const streams = aborts.map((abort, at) =>
      complete({
        tokens: tokens(20, 80 + at),
        maxTokens: 12,
        signal: abort.signal,
        // Each stream cancels the other at its own fourth token, so one of them is cancelled behind its place in the batch.
        onText: () => {
          texts[at]!++
          if (texts[at] === 4 + at) aborts[1 - at]!.abort()
        },
      }),
    )
    const pending: number[] = []
    for (const { finish, ledger, timing } of await Promise.all(streams)) {
      if (finish !== 'cancelled') continue
      expect(ledger.submitted + ledger.pending).toBe(timing.prefillTokens + timing.generatedTokens)
      pending.push(ledger.pending)
    }
    expect(pending).toContain(0)
  })

  it('cancels in the middle of a prefill, keeps the computed cells, and continues afterwards', async () => {
    const conversation = conversationId('cancelled')
    const long = tokens(1900, 4)
    const abort = new AbortController()
    const running = complete({ conversation, tokens: long, signal: abort.signal })
    setTimeout(() => {
      abort.abort()
    }, 5)
    const { finish, ledger } = await running
    expect(finish).toBe('cancelled')
    expect(ledger).toMatchObject({ kind: 'cancelled', shown: 0, side: ledger.submitted })
    await engine.check('full')
    const next = await complete({ conversation, tokens: long, maxTokens: 1 })
    expect(next.ledger.reused).toBeGreaterThanOrEqual(ledger.submitted)
    expect(next.ledger.shown).toBe(1900)
  })

  it('refuses a prompt larger than the context and loses nothing', async () => {
    const conversation = conversationId('kept')
    await complete({ conversation, tokens: tokens(64, 5), maxTokens: 1 })
    await expect(async () => complete({ conversation, tokens: tokens(CELLS + 1, 5) })).rejects.toMatchObject({
      code: 'context/full',
    })
    const { ledger } = await complete({ conversation, tokens: tokens(65, 5), maxTokens: 1 })
    expect(ledger.reused).toBe(64)
  })

  it('offloads parked or idle cells before it reports full, and ends an answer that fills the context', async () => {
    for (let salt = 20; salt < 26; salt++) await complete({ tokens: tokens(700, salt), maxTokens: 1 })
    await engine.check('full')
    const full = await complete({ tokens: tokens(2040, 30), maxTokens: 100 })
    expect(full.finish).toBe('length')
    expect(full.ledger.evicted + full.ledger.moved).toBeGreaterThan(0)
    expect(full.tokens.length).toBeLessThan(20)
    await engine.check('full')
  })

  it('a prompt that fits waits while other answers hold the cells', async () => {
    let late: Promise<JobResult> | null = null
    const plans: { readonly shown: number; readonly reused: number }[] = []
    const asked = () => complete({ tokens: tokens(600, 44), maxTokens: 4, onPlan: (plan) => plans.push(plan) })
    const others = [1, 2].map((salt) =>
      complete({
        ...{ tokens: tokens(900, 40 + salt), maxTokens: 400 },
        onText: () => {
          late ??= asked()
          return undefined
        },
      }),
    )
    expect((await Promise.all(others)).map(({ finish }) => finish)).toEqual(['length', 'length'])
    const { tokens: said, ledger, timing } = await late!
    expect([said.length, ledger.shown]).toEqual([4, 603])
    expect(plans.map(({ shown }) => shown)).toEqual([600, 600])
    expect(timing.prefillTokens + plans[0]!.reused).toBeGreaterThanOrEqual(600)
    expect(ledger.submitted + ledger.pending).toBe(timing.prefillTokens + timing.generatedTokens)
    expect(ledger.plain).toBe(ledger.submitted)
    expect(said).toEqual((await asked()).tokens)
    await engine.check('full')
  })

  it('a prompt that waits for cells cuts no answer that began meanwhile, and its lost tokens are on its ledger', async () => {
    const later: Promise<JobResult>[] = []
    const once = (ask: () => Promise<JobResult>) => {
      let asked = false
      return () => {
        if (!asked) later.push(ask())
        asked = true
        return undefined
      }
    }
    const young = () => complete({ tokens: tokens(50, 53), maxTokens: 150 })
    const short = complete({ tokens: tokens(300, 51), maxTokens: 200 })
    const runaway = complete({
      ...{ tokens: tokens(900, 50), maxTokens: 700 },
      onText: once(() => complete({ tokens: tokens(900, 52), maxTokens: 4, onPlan: once(young) })),
    })
    await Promise.all([short, runaway])
    const [late, during] = await Promise.all([later[0]!, later[0]!.then(() => later[1]!)])
    expect([late.finish, late.tokens.length]).toEqual(['length', 4])
    expect(during.tokens.length).toBe(150)
    expect((await runaway).tokens.length).toBe(700)
    expect(late.ledger.submitted).toBe(late.ledger.recomputed + late.ledger.fresh + late.ledger.side)
    expect(late.ledger.side).toBeGreaterThan(0)
    await engine.check('full')
  })

  it('prompts whose logprobs are wanted wait for cells, too', async () => {
    const asked = (salt: number) => complete({ tokens: tokens(1200, salt), promptLogprobs: 0, maxTokens: 1 })
    const both = await Promise.all([asked(100), asked(101)])
    expect(both.map(({ promptLogprobs }) => promptLogprobs?.length)).toEqual([1199, 1199])
  })

  it('a prompt whose logprobs are wanted cuts no answer that began meanwhile', async () => {
    let young: Promise<JobResult> | null = null
    const old = complete({
      ...{ tokens: tokens(1200, 102), promptLogprobs: 0, maxTokens: 1 },
      onPrefill: () => {
        young ??= complete({ tokens: tokens(835, 103), maxTokens: 100 })
      },
    })
    expect((await old).promptLogprobs?.length).toBe(1199)
    expect((await young!).tokens.length).toBe(100)
  })

  it('a prompt that has waited long is not put off again and again by new answers', async () => {
    const real = performance.now.bind(performance)
    let later = 0
    const clock = vi.spyOn(performance, 'now').mockImplementation(() => real() + later)
    let answers = 0
    let isDone = false
    const client = async (salt: number) => {
      for (let at = 0; at < 8 && !isDone; at++) {
        await complete({ tokens: tokens(500, salt + at), maxTokens: 60 })
        answers++
        later = 60_000
      }
    }
    const clients: Promise<void>[] = []
    const old = await complete({
      ...{ tokens: tokens(1400, 104), promptLogprobs: 0, maxTokens: 1 },
      onPrefill: () => {
        if (clients.length === 0) clients.push(client(110), client(120), client(130))
      },
    })
    isDone = true
    expect(old.promptLogprobs?.length).toBe(1399)
    expect(answers).toBeLessThan(9)
    await Promise.all(clients)
    clock.mockRestore()
  })

  it('a later step of the conversation waits behind its prompt that waits for cells', async () => {
    const order: string[] = []
    const conversation = conversationId('put-off')
    const asked: Promise<unknown>[] = []
    const both = () =>
      Promise.all(
        ['first', 'second'].map((name, at) =>
          complete({ conversation, tokens: tokens(700 - 300 * at, 62), maxTokens: 2 }).then(() => order.push(name)),
        ),
      )
    const others = [1, 2].map((salt) =>
      complete({
        ...{ tokens: tokens(800, 62 + salt), maxTokens: 400 },
        onText: () => {
          if (asked.length === 0) asked.push(both())
          return undefined
        },
      }),
    )
    await Promise.all(others)
    await Promise.all(asked)
    expect(order).toEqual(['first', 'second'])
  })

  it('refuses tokens that are not in the vocabulary', async () => {
    await expect(async () => complete({ tokens: Int32Array.of(1, 99999) })).rejects.toMatchObject({ code: 'engine/bad-request' })
  })
})
