/** Tests drafts on real GGUFs: the text, the ledger and the cells are those without drafts. */
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { Edit } from '../../../src/runtime/chat/message.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import type { JobResult } from '../../../src/runtime/engine/job.js'
import { type Completion, LlamaEngine, type LlamaEngineOptions } from '../../../src/runtime/engine/llama.js'
import { speculateTerms } from '../../../src/runtime/engine/speculate-terms.js'
import { Drafter, Speculation, TurnTimes } from '../../../src/runtime/engine/speculation.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { neverEnding } from '../../../bench/random-tokens.js'
import { adapterFor } from '../../support/adapters.js'
import { TEST_GPU } from '../../support/device.js'
import { mambaModel, slidingModel, tinyModel } from '../../support/models.js'
import { firstPrediction, largestDifference } from '../../support/predictions.js'

let engine: LlamaEngine
let ban: { token: number; bias: number }[]
let count = 0

// Without flash attention rounding differs least between batches.
const SMALL = { sequences: 12, threads: 1, batchThreads: 1, flashAttention: 'off', hostBytes: 0 } as const

async function load(path: string, options: LlamaEngineOptions = {}): Promise<LlamaEngine> {
  return LlamaEngine.load(await openNative({ gpu: TEST_GPU }), path, { cells: 4096, ...SMALL, ...options })
}

beforeAll(async () => {
  engine = await load(await tinyModel())
  ban = neverEnding(engine.model)
})

afterAll(() => engine.dispose())

const NGRAM = { kind: 'ngram' } as const

/**
 * A listener that might end the answer, so no token is sampled before the drafter sees those before it. Without one a tiny model can be
 * done before its run ends for the sake of drafts.
 */
const STEPWISE = { onText: () => undefined }

/** A prompt with repeats: a piece of 20 tokens several times, with another token between. */
const repeating = (salt: number, times = 4) =>
  Int32Array.from(
    Array.from({ length: times }, (_, time) => [
      ...Array.from({ length: 20 }, (_, at) => 1 + ((at * 7 + salt * 13) % 250)),
      1 + ((time * 31 + salt) % 250),
    ]).flat(),
  )

function complete(request: Partial<Completion> & Pick<Completion, 'tokens'>, on = engine): Promise<JobResult> {
  const { sampling, ...rest } = request
  const banned = on === engine ? { logitBias: ban } : {}
  return on.complete({
    conversation: conversationId(`s${++count}`),
    tenant: `alone${count}`,
    maxTokens: 48,
    ...rest,
    sampling: { ...banned, ...sampling },
  })
}

/** The ledger's sums, with drafts. */
function accountsFor({ ledger }: JobResult): void {
  const { shown, reused, recomputed, fresh, side, submitted, drafted = 0, accepted = 0 } = ledger
  expect(accepted).toBeLessThanOrEqual(drafted)
  expect(recomputed + fresh + side).toBe(submitted)
  if (ledger.kind === 'cancelled') return
  expect(reused + recomputed + fresh).toBe(shown)
  expect(side).toBeGreaterThanOrEqual(drafted - accepted)
}

/** The ledger without drafts, times and the place in the conversation. */
const books = ({ ledger }: JobResult) => {
  const { drafted = 0, accepted = 0, side, submitted } = ledger
  const without = { milliseconds: 0, copying: 0, step: 0, drafted: 0, accepted: 0 }
  return { ...ledger, ...without, side: side - (drafted - accepted), submitted: submitted - (drafted - accepted) }
}

describe('drafts by prompt lookup', () => {
  it('change neither a greedy answer nor its ledger, over random prompts', async () => {
    let drafted = 0
    let accepted = 0
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.array(fc.integer({ min: 1, max: 250 }), { minLength: 3, maxLength: 12 }), { minLength: 1, maxLength: 4 }),
        fc.array(fc.nat(3), { minLength: 1, maxLength: 12 }),
        fc.integer({ min: 1, max: 60 }),
        async (pieces, order, maxTokens) => {
          const tokens = Int32Array.from(order.flatMap((at) => pieces[at % pieces.length]!))
          const plain = await complete({ tokens, maxTokens })
          const before = engine.submitted
          const drafting = await complete({ tokens, maxTokens, speculate: NGRAM })
          expect(drafting.tokens).toEqual(plain.tokens)
          expect(drafting.text).toBe(plain.text)
          expect(books(drafting)).toEqual(books(plain))
          expect(engine.submitted - before).toBe(drafting.ledger.submitted)
          accountsFor(drafting)
          await engine.check('full')
          drafted += drafting.ledger.drafted ?? 0
          accepted += drafting.ledger.accepted ?? 0
        },
      ),
      { numRuns: 40 },
    )
    expect(accepted).toBeGreaterThan(20)
    expect(drafted).toBeGreaterThan(accepted)
  })

  it('draw the same text with the same seed, with penalties and filters', async () => {
    const accepted: number[] = []
    for (let seed = 0; seed < 12; seed++) {
      const sampling = { temperature: 0.1 + 0.1 * (seed % 4), topK: 20, topP: 0.95, repeatPenalty: 1.05, seed, logitBias: ban }
      const tokens = repeating(seed)
      const plain = await complete({ tokens, sampling })
      const drafting = await complete({ tokens, sampling, speculate: NGRAM })
      expect(drafting.tokens).toEqual(plain.tokens)
      accountsFor(drafting)
      accepted.push(drafting.ledger.accepted ?? 0)
    }
    expect(Math.max(...accepted)).toBeGreaterThan(0)
  })

  it('draw the same text with mirostat, which learns from every draw', async () => {
    const sampling = { temperature: 0.8, mirostat: { version: 2, tau: 3, eta: 0.2 }, seed: 5, logitBias: ban } as const
    const plain = await complete({ tokens: repeating(3), sampling })
    const drafting = await complete({ tokens: repeating(3), sampling, speculate: NGRAM })
    expect(drafting.tokens).toEqual(plain.tokens)
  })

  it('advance a grammar by kept tokens only', async () => {
    const grammar = 'root ::= "abcdefgh " "abcdefgh " "abcdefgh " "abcdefgh " "abcdefgx " "abcdefgh"'
    const tokens = engine.model.tokenize('abcdefgh abcdefgh abcdefgh ')
    const plain = await complete({ tokens, grammar, sampling: { logitBias: [] } })
    const drafting = await complete({ tokens, grammar, sampling: { logitBias: [] }, speculate: NGRAM })
    expect(plain.text).toBe('abcdefgh abcdefgh abcdefgh abcdefgh abcdefgx abcdefgh')
    expect(drafting.text).toBe(plain.text)
    expect(drafting.finish).toBe(plain.finish)
    expect(books(drafting)).toEqual(books(plain))
    expect(drafting.ledger.accepted).toBeGreaterThan(10)
    expect(drafting.ledger.drafted).toBeGreaterThan(drafting.ledger.accepted!)
  })

  it('end at a stop string and at the limit in the middle of kept drafts', async () => {
    const grammar = 'root ::= "abcdefgh "+'
    const tokens = engine.model.tokenize('abcdefgh abcdefgh abcdefgh ')
    const asked = { tokens, grammar, sampling: { logitBias: [] } }
    for (const rest of [
      { stop: ['def'] },
      { stop: ['gh abc'] },
      { maxTokens: 1 },
      { maxTokens: 2 },
      { maxTokens: 7 },
      { maxTokens: 24 },
    ]) {
      const plain = await complete({ ...asked, ...rest })
      const drafting = await complete({ ...asked, ...rest, speculate: NGRAM })
      expect(drafting.text).toBe(plain.text)
      expect(drafting.tokens).toEqual(plain.tokens)
      expect([drafting.finish, drafting.stop]).toEqual([plain.finish, plain.stop])
      expect(books(drafting)).toEqual(books(plain))
      accountsFor(drafting)
      await engine.check('full')
    }
  })

  it('keep to limits: a stop token ends the answer within drafts, and a banned word never comes', async () => {
    const grammar = 'root ::= ("abcdefgh " | "abcdefxh ")+'
    const tokens = engine.model.tokenize('abcdefgh abcdefgh abcdefgh ')
    const [end] = engine.model.tokenize('f')
    for (const limits of [{ stopTokens: [end!] }, { stopTokens: [end!], minTokens: 8 }, { badWords: ['efgh'] }]) {
      const asked = { tokens, grammar, limits, sampling: { logitBias: [] } }
      const plain = await complete(asked)
      const drafting = await complete({ ...asked, speculate: NGRAM })
      expect(drafting.text).toBe(plain.text)
      expect([drafting.finish, drafting.stop]).toEqual([plain.finish, plain.stop])
      expect(books(drafting)).toEqual(books(plain))
      accountsFor(drafting)
      await engine.check('full')
    }
  })

  it('leave streams with other adapters as they are alone', async () => {
    const path = await tinyModel()
    const files = [await adapterFor(path, 'anna', { seed: 1 }), await adapterFor(path, 'bert', { seed: 2 })]
    const adapted = await load(path, { lora: files.map((file) => ({ path: file, scale: 0 })) })
    try {
      const asked = [[], [{ id: 0, scale: 1 }], [{ id: 1, scale: 1 }]].map((lora) => ({
        ...{ tokens: engine.model.tokenize('abcdefgh '.repeat(3)), lora, grammar: 'root ::= ("abcdefgh " | "abcdxyz ")+' },
      }))
      const plain: JobResult[] = []
      for (const each of asked) plain.push(await complete(each, adapted))
      const drafting = await Promise.all(asked.map((each) => complete({ ...each, speculate: NGRAM }, adapted)))
      for (const [at, each] of drafting.entries()) {
        expect(each.tokens).toEqual(plain[at]!.tokens)
        expect(books(each)).toEqual(books(plain[at]!))
        expect(each.ledger.drafted).toBeGreaterThan(0)
      }
      await adapted.check('full')
    } finally {
      await adapted.dispose()
    }
  })

  it('report the same log-probabilities', async () => {
    const plain = await complete({ tokens: repeating(8), logprobs: 3 })
    const drafting = await complete({ tokens: repeating(8), logprobs: 3, speculate: NGRAM })
    expect(drafting.logprobs.length).toBe(48)
    for (const [at, { token, logprob }] of drafting.logprobs.entries()) {
      expect(token).toBe(plain.logprobs[at]!.token)
      expect(logprob).toBeCloseTo(plain.logprobs[at]!.logprob, 3)
    }
  })

  it('leave every stream of a batch as it is alone', async () => {
    const asked = ['abcdefgh', 'xyz', 'mnopqrst uvw', 'ijk'].map((word) => ({
      tokens: engine.model.tokenize(`${word} `.repeat(3)),
      grammar: `root ::= "${word} "+`,
      sampling: { logitBias: [] },
    }))
    const plain = await Promise.all(asked.map((each) => complete(each)))
    const before = engine.submitted
    const drafting = await Promise.all(asked.map((each, at) => complete({ ...each, ...(at === 3 ? {} : { speculate: NGRAM }) })))
    expect(engine.submitted - before).toBe(drafting.reduce((sum, { ledger }) => sum + ledger.submitted, 0))
    for (const [at, each] of drafting.entries()) {
      expect(each.tokens).toEqual(plain[at]!.tokens)
      accountsFor(each)
    }
    expect(drafting[3]!.ledger.drafted).toBeUndefined()
    expect(drafting[0]!.ledger.drafted).toBeGreaterThan(0)
    await engine.check('full')
  })

  it('leave a cancelled step with whole books, wherever it is cancelled', async () => {
    const grammar = 'root ::= "abcdefgh "+'
    const tokens = engine.model.tokenize('abcdefgh abcdefgh abcdefgh ')
    for (let after = 1; after < 30; after++) {
      const conversation = conversationId(`cancelled${after}`)
      const stop = new AbortController()
      let seen = 0
      const result = await complete({
        ...{
          conversation,
          tenant: 'stopped',
          tokens,
          grammar,
          sampling: { logitBias: [] },
          speculate: NGRAM,
          signal: stop.signal,
        },
        onText: () => {
          if (++seen === after) stop.abort()
          return undefined
        },
      })
      expect(result.finish).toBe('cancelled')
      expect(result.tokens.length).toBe(after)
      accountsFor(result)
      await engine.check('full')
      const next = await complete({
        ...{ conversation, tenant: 'stopped', maxTokens: 2 },
        tokens: Int32Array.from([...tokens, ...result.tokens]),
      })
      expect(next.ledger.reused).toBeGreaterThanOrEqual(tokens.length + result.tokens.length - 1)
    }
  })

  it('a listener that throws fails its own step, and the books stay whole', async () => {
    const grammar = 'root ::= "abcdefgh "+'
    const tokens = engine.model.tokenize('abcdefgh abcdefgh abcdefgh ')
    let seen = 0
    const failing = complete({
      ...{ tokens, grammar, sampling: { logitBias: [] }, speculate: NGRAM },
      onText: () => {
        if (++seen === 9) throw new Error('enough')
        return undefined
      },
    })
    await expect(failing).rejects.toThrow('enough')
    await engine.check('full')
  })

  it('evict nothing: they use free cells only, and the last cells of a context are the answer’s', async () => {
    const small = await load(await tinyModel(), { cells: 128, sequences: 4 })
    try {
      const kept = await complete(
        { conversation: conversationId('kept'), tenant: 'x', tokens: repeating(1, 2), maxTokens: 1 },
        small,
      )
      expect(kept.ledger.shown).toBe(42)
      const tokens = repeating(2, 3)
      const sampling = { logitBias: neverEnding(small.model) }
      const drafting = await complete({ tokens, sampling, maxTokens: 20, speculate: NGRAM }, small)
      expect(drafting.ledger.evicted).toBe(0)
      const long = { tokens, sampling, maxTokens: 1000 }
      const plain = await complete(long, small)
      const full = await complete({ ...long, speculate: NGRAM }, small)
      expect([plain.finish, full.finish]).toEqual(['length', 'length'])
      expect(full.tokens).toEqual(plain.tokens)
      await small.check('full')
    } finally {
      await small.dispose()
    }
  })

  it('are the same on a window that the engine keeps whole', async () => {
    const sliding = await load(await slidingModel(), { cells: 4096 })
    try {
      const sampling = { logitBias: neverEnding(sliding.model) }
      for (let salt = 0; salt < 4; salt++) {
        const tokens = repeating(salt, 6)
        const plain = await complete({ tokens, sampling }, sliding)
        const drafting = await complete({ tokens, sampling, speculate: NGRAM, ...STEPWISE }, sliding)
        expect(drafting.tokens).toEqual(plain.tokens)
        expect(books(drafting)).toEqual(books(plain))
        expect(drafting.ledger.drafted).toBeGreaterThan(0)
        await sliding.check('full')
      }
    } finally {
      await sliding.dispose()
    }
  })

  it('are refused by name where tokens cannot be taken back; auto is off there', async () => {
    await expect(load(await mambaModel(), { speculate: 'ngram' })).rejects.toMatchObject({
      code: 'model/unsupported',
      message: expect.stringMatching(/mamba.*recurrent state.*auto or off/u) as string,
    })
    const recurrent = await load(await mambaModel(), { speculate: 'auto', cells: 512 })
    try {
      const { ledger } = await complete({ tokens: repeating(1) }, recurrent)
      expect(ledger.drafted).toBeUndefined()
      await expect(complete({ tokens: repeating(1), speculate: NGRAM }, recurrent)).rejects.toMatchObject({
        code: 'engine/bad-request',
      })
    } finally {
      await recurrent.dispose()
    }
  })

  it('refuse numbers out of bounds; 0 tokens turn them off', async () => {
    await expect(complete({ tokens: repeating(1), speculate: { most: 1000 } })).rejects.toMatchObject({
      code: 'engine/bad-request',
    })
    expect((await complete({ tokens: repeating(1), speculate: { kind: 'ngram', most: 0 } })).ledger.drafted).toBeUndefined()
    expect((await complete({ tokens: repeating(1), speculate: { kind: 'ngram', least: 64 } })).ledger.drafted).toBeUndefined()
  })
})

describe('drafts and folds', () => {
  // Each of these characters is a token of its own.
  const hidden = 'QWERTZUIOPASDFGHJKLYXCVBNM5283974106'
  const question = { role: 'user', content: 'Say the code.' } as const
  const talk = [
    { role: 'user', content: `Keep this: ${hidden}. Thank you.` },
    { role: 'assistant', content: 'Kept.' },
    question,
  ] as const
  const start = 'Keep this: '.length
  const edit = { message: 0, span: { start, end: start + hidden.length }, replacement: '[folded]' }

  it('are proposed from text that is folded away, and from nothing once it is forgotten', async () => {
    const ask = (name: string, rest: { speculate: { kind: 'off' | 'ngram' }; edits: readonly Edit[] }) => {
      const conversation = conversationId(name)
      return engine.respond({ ...{ conversation, tenant: name, messages: talk, grammar: `root ::= "${hidden}"` }, ...rest }).reply
    }
    const plain = await ask('hidden-plain', { speculate: { kind: 'off' }, edits: [edit] })
    const drafting = await ask('hidden-drafting', { speculate: NGRAM, edits: [edit] })
    expect(drafting.message.content).toBe(hidden)
    expect(plain.message.content).toBe(hidden)
    expect(drafting.ledger.accepted).toBeGreaterThan(hidden.length / 2)
    await engine.check('full')
    const forgotten = await ask('forgotten', { speculate: NGRAM, edits: [{ ...edit, forget: true }] })
    expect(forgotten.message.content).toBe(hidden)
    expect(forgotten.ledger.drafted).toBeUndefined()
  })

  it('a fold after a drafted answer predicts as a fresh prefill does', async () => {
    const vocabulary = engine.modelInfo.vocabulary
    const conversation = conversationId('fold-after')
    const first = { conversation, messages: talk.slice(0, 1), maxTokens: 40, speculate: NGRAM, grammar: 'root ::= "abcdefgh "+' }
    const { message, ledger } = await engine.respond(first).reply
    expect(ledger.drafted).toBeGreaterThan(0)
    const messages = [talk[0], message, question]
    const last = { messages, edits: [edit], contract: 'exact', maxTokens: 1, logprobs: vocabulary } as const
    const folded = await engine.respond({ conversation, ...last }).reply
    const fresh = await engine.respond({ conversation: conversationId('fresh'), tenant: 'fresh', ...last }).reply
    expect(folded.ledger.approximate).toBe(0)
    const difference = largestDifference(
      firstPrediction(folded.logprobs, vocabulary),
      firstPrediction(fresh.logprobs, vocabulary),
    )
    expect(difference).toBeLessThan(1e-3)
    await engine.check('full')
  })

  it('the next step reuses the whole drafted answer, in exact cells', async () => {
    const conversation = conversationId('goes-on')
    const tokens = repeating(40)
    const answer = await complete({ conversation, tenant: 'goes', tokens, speculate: NGRAM, ...STEPWISE })
    expect(answer.ledger.accepted).toBeGreaterThan(0)
    const next = await complete({
      conversation,
      tenant: 'goes',
      tokens: Int32Array.from([...tokens, ...answer.tokens, 5]),
      maxTokens: 1,
    })
    expect(next.ledger).toMatchObject({ reused: tokens.length + answer.tokens.length - 1, approximate: 0 })
  })
})

describe('auto', () => {
  const row = (rows: number) => 10 + 0.5 * (rows - 1)
  const steep = (rows: number) => 10 * rows

  /** Plays turns of an answer that repeats the prompt `share` of the time; returns tokens and time with and without drafts. */
  function play(time: (rows: number) => number, period: number, turns = 400) {
    const speculation = new Speculation(() => false)
    const text = Int32Array.from({ length: 600 }, (_, at) => 1 + ((at * at * 7 + at * 3) % 900))
    const drafter = new Drafter2(speculation, text)
    speculation.times.tookPrompt(512, 512 * (time(2) - time(1)))
    let [tokens, spent] = [0, 0]
    const next = () => (tokens % period === period - 1 ? 1000 + tokens : text[tokens % text.length]!)
    drafter.push(next())
    for (let turn = 0; turn < turns; turn++) {
      const [{ count: most } = { count: 0 }] = speculation.choose([{ drafter, room: 64 }]) ?? []
      const drafts = drafter.propose(most)
      let kept = 0
      tokens++
      while (kept < drafts.length && drafts[kept] === next()) {
        drafter.push(next())
        tokens++
        kept++
      }
      drafter.push(next())
      const took = time(1 + drafts.length)
      speculation.took(1 + drafts.length, drafts.length, took)
      spent += took
    }
    return (tokens * time(1)) / spent
  }

  class Drafter2 extends Drafter {
    constructor(speculation: Speculation, text: Int32Array) {
      super({ tokens: text, messages: [] }, speculateTerms(undefined, 'auto'), speculation.outcomes, () => false)
    }
  }

  it('drafts where the answer repeats and rows are cheap', () => {
    expect(play(row, 60)).toBeGreaterThan(3)
    expect(play(row, 12)).toBeGreaterThan(1.5)
  })

  it('is never slower than 0.97 of no drafts: not where nothing repeats, nor where a row costs a turn', () => {
    expect(play(row, 2)).toBeGreaterThan(0.97)
    expect(play(row, 4)).toBeGreaterThan(0.97)
    for (const period of [2, 4, 6, 12, 60]) expect(play(steep, period)).toBeGreaterThan(0.97)
  })

  it('learns the time of rows between and beyond those that it measured', () => {
    const times = new TurnTimes()
    expect(times.of(4)).toBe(Infinity)
    times.took(1, 10)
    expect(times.of(3)).toBe(20)
    times.tookPrompt(100, 200)
    expect(times.of(3)).toBe(14)
    times.took(5, 30)
    expect(times.of(3)).toBe(20)
    expect(times.of(9)).toBe(50)
  })

  it('gives the same text on an engine as no drafts', async () => {
    const auto = await load(await tinyModel(), { speculate: 'auto' })
    try {
      for (let salt = 0; salt < 6; salt++) {
        const tokens = repeating(salt)
        const sampling = { logitBias: ban }
        const plain = await complete({ tokens, sampling, maxTokens: 200, speculate: { kind: 'off' } }, auto)
        const drafting = await complete({ tokens, sampling, maxTokens: 200 }, auto)
        expect(drafting.tokens).toEqual(plain.tokens)
        expect(books(drafting)).toEqual(books(plain))
        accountsFor(drafting)
      }
      await auto.check('full')
    } finally {
      await auto.dispose()
    }
  })
})
