/** Tests drafts by a second model, on real GGUFs: answers, ledger and cells are those without drafts. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { conversationId, seqId } from '../../../src/runtime/core/ids.js'
import { DraftModel, DraftSequence } from '../../../src/runtime/engine/draft-model.js'
import { type Completion, LlamaEngine, type LlamaEngineOptions } from '../../../src/runtime/engine/llama.js'
import type { JobResult } from '../../../src/runtime/engine/job.js'
import { speculateTerms } from '../../../src/runtime/engine/speculate-terms.js'
import { Speculation } from '../../../src/runtime/engine/speculation.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { neverEnding } from '../../../bench/random-tokens.js'
import { adapterFor } from '../../support/adapters.js'
import { TEST_GPU } from '../../support/device.js'
import { mambaModel, tinyModel } from '../../support/models.js'

// Without flash attention rounding differs least between batches.
const SMALL = { sequences: 12, threads: 1, batchThreads: 1, flashAttention: 'off', hostBytes: 0 } as const
const DRAFT = { kind: 'draft' } as const

async function load(path: string, options: LlamaEngineOptions = {}): Promise<LlamaEngine> {
  return LlamaEngine.load(await openNative({ gpu: TEST_GPU }), path, { cells: 8192, ...SMALL, ...options })
}

/** The model with a weak adapter, and the model itself as its draft model: most drafts are right, and some are not. */
let engine: LlamaEngine
let ban: { token: number; bias: number }[]

beforeAll(async () => {
  const path = await tinyModel()
  engine = await load(path, { lora: [{ path: await adapterFor(path, 'drafted', { seed: 3 }), scale: 0.2 }], draft: { path } })
  ban = neverEnding(engine.model)
})
afterAll(() => engine.dispose())

let count = 0
function complete(request: Partial<Completion> & Pick<Completion, 'tokens'>, on = engine): Promise<JobResult> {
  const { sampling, ...rest } = request
  const name = `d${++count}`
  const all = { conversation: conversationId(name), tenant: name, maxTokens: 40, ...rest }
  return on.complete({ ...all, sampling: { logitBias: ban, ...sampling } })
}

/** A prompt without repeats. */
const prompt = (salt: number, length = 60) =>
  Int32Array.from({ length }, (_, at) => 1 + ((at * at * 7 + at * 3 + salt * 29) % 250))

/** The ledger without drafts, times and evictions, which depend on what ran before. */
const books = ({ ledger }: JobResult) => {
  const { drafted = 0, accepted = 0, side, submitted } = ledger
  const without = { milliseconds: 0, copying: 0, step: 0, drafted: 0, accepted: 0, evicted: 0 }
  return { ...ledger, ...without, side: side - (drafted - accepted), submitted: submitted - (drafted - accepted) }
}

const sums = (results: readonly JobResult[]) => ({
  drafted: results.reduce((sum, { ledger }) => sum + (ledger.drafted ?? 0), 0),
  accepted: results.reduce((sum, { ledger }) => sum + (ledger.accepted ?? 0), 0),
})

describe('drafts by a draft model', () => {
  it('change neither a greedy answer nor its ledger', async () => {
    const drafted: JobResult[] = []
    for (let salt = 0; salt < 12; salt++) {
      const asked = { tokens: prompt(salt, 20 + 9 * salt), maxTokens: 1 + 7 * salt }
      const plain = await complete(asked)
      const before = engine.submitted
      const drafting = await complete({ ...asked, speculate: DRAFT })
      expect(drafting.tokens).toEqual(plain.tokens)
      expect(drafting.text).toBe(plain.text)
      expect(books(drafting)).toEqual(books(plain))
      expect(engine.submitted - before).toBe(drafting.ledger.submitted)
      await engine.check('full')
      drafted.push(drafting)
    }
    const { drafted: all, accepted } = sums(drafted)
    expect(accepted).toBeGreaterThan(all / 4)
    expect(accepted).toBeLessThan(all)
  })

  it('draw the same text with the same seed, with filters and penalties', async () => {
    for (let seed = 0; seed < 6; seed++) {
      const sampling = { temperature: 0.7, topK: 20, topP: 0.95, repeatPenalty: 1.05, seed, logitBias: ban }
      const plain = await complete({ tokens: prompt(seed), sampling })
      const drafting = await complete({ tokens: prompt(seed), sampling, speculate: DRAFT })
      expect(drafting.tokens).toEqual(plain.tokens)
      expect(drafting.ledger.drafted).toBeGreaterThan(0)
    }
  })

  it('leave every stream of a batch as it is alone, also streams without a sequence of the draft model', async () => {
    const asked = Array.from({ length: 6 }, (_, salt) => ({ tokens: prompt(salt + 20, 30 + salt), maxTokens: 24 + 3 * salt }))
    const plain = await Promise.all(asked.map((each) => complete(each)))
    const drafting = await Promise.all(asked.map((each) => complete({ ...each, speculate: DRAFT })))
    for (const [at, each] of drafting.entries()) {
      expect(each.tokens).toEqual(plain[at]!.tokens)
      expect(books(each)).toEqual(books(plain[at]!))
    }
    expect(sums(drafting).accepted).toBeGreaterThan(20)
    await engine.check('full')
  })

  it('leave a cancelled step with whole books', async () => {
    for (const after of [1, 2, 5, 11]) {
      const stop = new AbortController()
      let seen = 0
      const onText = () => {
        if (++seen === after) stop.abort()
        return undefined
      }
      const result = await complete({ tokens: prompt(after), speculate: DRAFT, signal: stop.signal, onText })
      expect(result.finish).toBe('cancelled')
      expect(result.tokens.length).toBe(after)
      await engine.check('full')
    }
  })

  it('auto drafts by the model as far as it pays, and gives the same text', async () => {
    for (let salt = 0; salt < 4; salt++) {
      const asked = { tokens: prompt(salt + 40), maxTokens: 120 }
      const plain = await complete(asked)
      const drafting = await complete({ ...asked, speculate: { kind: 'auto' } })
      expect(drafting.tokens).toEqual(plain.tokens)
      expect(books(drafting)).toEqual(books(plain))
    }
    await engine.check('full')
  })

  it('follow what is shown: behind a fold the model still proposes what the same model answers', async () => {
    const path = await tinyModel()
    const same = await load(path, { draft: { path } })
    try {
      const text = 'The keeper of the lighthouse wrote down every ship that passed.'
      const talk = [
        { role: 'user', content: text.repeat(4) },
        { role: 'assistant', content: 'Noted.' },
        { role: 'user', content: 'Go on.' },
      ] as const
      const edit = { message: 0, span: { start: 20, end: 180 }, replacement: '[folded]' }
      const sampling = { logitBias: ban }
      const conversation = conversationId('folded')
      for (const edits of [[], [edit], []]) {
        const asked = { messages: talk, edits, sampling, maxTokens: 40, speculate: DRAFT, contract: 'exact' } as const
        const { ledger } = await same.respond({ conversation, ...asked }).reply
        expect(ledger.drafted).toBeGreaterThan(20)
        expect(ledger.accepted! / ledger.drafted!).toBeGreaterThan(0.85)
      }
    } finally {
      await same.dispose()
    }
  })

  it('need no room of the answers: a full draft cache only means fewer drafts', async () => {
    const path = await tinyModel()
    const small = await load(path, { cells: 256, slots: 3, draft: { path } })
    try {
      for (let round = 0; round < 3; round++) {
        const asked = [0, 1, 2].map((salt) => ({ tokens: prompt(10 * round + salt, 40), maxTokens: 30 }))
        const plain = await Promise.all(asked.map((each) => complete(each, small)))
        const drafting = await Promise.all(asked.map((each) => complete({ ...each, speculate: DRAFT }, small)))
        for (const [at, each] of drafting.entries()) expect(each.tokens).toEqual(plain[at]!.tokens)
        expect(sums(drafting).drafted).toBeGreaterThan(0)
      }
    } finally {
      await small.dispose()
    }
  })
})

describe('a draft model', () => {
  const CONTEXT = { cells: 512, sequences: 2, threads: 1, batchThreads: 1, flashAttention: 'off' } as const

  it('proposes its own greedy continuation, and reads only what is new of a text', async () => {
    const path = await tinyModel()
    const native = await openNative({ gpu: TEST_GPU })
    const [plain, draft] = [await load(path), await DraftModel.load(native, engine.model, { path }, CONTEXT, fail)]
    try {
      const tokens = prompt(7, 50)
      const whole = (await complete({ tokens, maxTokens: 24, sampling: { logitBias: [] } }, plain)).tokens
      const sequence = draft.open(tokens)!
      const [first] = await draft.propose([{ sequence, most: 8 }])
      expect(first).toEqual(whole.slice(0, first!.length))
      // Two tokens as proposed, then another one.
      const text = [...tokens, ...whole.slice(0, 2), whole[2] === 9 ? 10 : 9]
      for (const token of text.slice(tokens.length)) sequence.push(token)
      expect(sequence.behind).toBeLessThanOrEqual(1)
      const [second] = await draft.propose([{ sequence, most: 4 }])
      const after = await complete({ tokens: Int32Array.from(text), maxTokens: 4, sampling: { logitBias: [] } }, plain)
      expect(second).toEqual(after.tokens.slice(0, second!.length))
      draft.close(sequence)
      const again = draft.open(Int32Array.from([...text, 5, 6]))!
      expect(again).toBe(sequence)
      expect(again.behind).toBeLessThanOrEqual(2)
      // Both sequences are taken now.
      expect([draft.open(tokens) === null, draft.open(tokens)]).toEqual([false, null])
    } finally {
      await draft.dispose()
      await plain.dispose()
    }
  })

  it('reads a long text in slices, without proposals until it has read it', async () => {
    const path = await tinyModel()
    const draft = await DraftModel.load(
      await openNative({ gpu: TEST_GPU }),
      engine.model,
      { path },
      { ...CONTEXT, cells: 2048 },
      fail,
    )
    try {
      const sequence = draft.open(prompt(3, 1200))!
      const lengths: number[] = []
      for (let turn = 0; turn < 4; turn++) lengths.push((await draft.propose([{ sequence, most: 4 }]))[0]!.length)
      expect(lengths.slice(0, 2)).toEqual([0, 0])
      expect(lengths[3]).toBeGreaterThan(0)
    } finally {
      await draft.dispose()
    }
  })

  it('is refused by name: another vocabulary, a recurrent state, none at all', async () => {
    const path = await tinyModel()
    await expect(load(path, { draft: { path: await tinyModel({ vocabulary: 900 }) } })).rejects.toMatchObject({
      code: 'model/unsupported',
      message: expect.stringMatching(
        /cannot draft: its vocabulary is not that of .* smaller model of the same family/u,
      ) as string,
    })
    await expect(load(path, { draft: { path: await mambaModel() } })).rejects.toMatchObject({
      code: 'model/unsupported',
      message: expect.stringMatching(/cannot draft: mamba keeps a recurrent state/u) as string,
    })
    await expect(load(await mambaModel(), { draft: { path } })).rejects.toMatchObject({ code: 'model/unsupported' })
    await expect(load(path, { speculate: 'draft' })).rejects.toMatchObject({ code: 'engine/bad-request' })
    const none = await load(path)
    try {
      await expect(complete({ tokens: prompt(1), speculate: DRAFT }, none)).rejects.toMatchObject({
        code: 'engine/bad-request',
        message: expect.stringMatching(/no draft model; load one with --speculate draft=PATH/u) as string,
      })
    } finally {
      await none.dispose()
    }
  })
})

describe('auto with a draft model', () => {
  /** Plays turns in which a proposed token comes with the chance `right`; returns the gain over turns without drafts. */
  function play(right: number, share: number, row = 0.1): number {
    let chance = 0.5
    const lucky = () => (chance = (chance * 9301 + 0.49297) % 1) < right
    const milliseconds = (depth: number) => 10 * share * (1 + depth)
    const sequence = new DraftSequence(seqId(0))
    const model = {
      open: (text: Int32Array) => {
        sequence.begin(text, text.length)
        return sequence
      },
      ...{ close: () => undefined, milliseconds, readingTime: () => 0 },
      propose: (asked: readonly { readonly most: number }[]) =>
        Promise.resolve(asked.map(({ most }) => new Int32Array(most).fill(7))),
    }
    const speculation = new Speculation(() => false, model)
    const drafter = speculation.drafter({ tokens: prompt(1), messages: [] }, speculateTerms(undefined, 'auto'))!
    const time = (rows: number) => 10 * (1 + row * (rows - 1))
    speculation.times.tookPrompt(512, 512 * 10 * row)
    let [tokens, spent] = [0, 0]
    for (let turn = 0; turn < 600; turn++) {
      const [most = 0] = speculation.choose([{ drafter, room: 64 }]) ?? []
      const drafts = most === 0 || !drafter.isModels ? [] : drafter.proposed(new Int32Array(most).fill(7))
      let kept = 0
      while (kept < drafts.length && lucky()) {
        drafter.push(7)
        kept++
      }
      drafter.push(1000 + turn)
      tokens += kept + 1
      speculation.took(1 + drafts.length, drafts.length, time(1 + drafts.length))
      spent += time(1 + drafts.length) + (drafts.length === 0 ? 0 : milliseconds(drafts.length))
    }
    return (tokens * time(1)) / spent
  }

  it('drafts where the model is cheap and right', () => {
    expect(play(0.8, 0.05)).toBeGreaterThan(1.6)
  })

  it('is never slower than 0.97 of no drafts: not where the model is dear, nor where it is wrong', () => {
    for (const [right, share, row] of [
      [0.8, 0.5],
      [0.2, 0.05],
      [0, 0.05],
      [0.5, 0.3],
      [0.8, 0.05, 1],
    ] as const)
      expect(play(right, share, row)).toBeGreaterThan(0.97)
  })
})

function fail(sentence: string): never {
  throw new Error(sentence)
}
