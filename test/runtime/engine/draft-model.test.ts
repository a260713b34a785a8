/** Tests drafts by a second model, on real GGUFs: answers, ledger and cells are those without drafts. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { DraftedText, DraftModel, type TextOwner } from '../../../src/runtime/engine/draft-model.js'
import { type Completion, LlamaEngine, type LlamaEngineOptions } from '../../../src/runtime/engine/llama.js'
import type { JobResult } from '../../../src/runtime/engine/job.js'
import { speculateTerms } from '../../../src/runtime/engine/speculate-terms.js'
import { Speculation } from '../../../src/runtime/engine/speculation.js'
import { CacheSalts, type CacheSalt } from '../../../src/runtime/kv/tenant-salts.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { neverEnding } from '../../../bench/random-tokens.js'
import { adapterFor } from '../../support/adapters.js'
import { TEST_GPU } from '../../support/device.js'
import { mambaModel, slidingModel, tinyModel } from '../../support/models.js'

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
  const CONTEXT = { cells: 2048, sequences: 2, threads: 1, batchThreads: 1, flashAttention: 'off' } as const
  const loadDraft = async (path: string, more = {}) =>
    DraftModel.load(await openNative({ gpu: TEST_GPU }), engine.model, { path }, { ...CONTEXT, ...more }, fail)
  const owner = (name: string) => ({ conversation: conversationId(name) })
  /** Proposes for one text until it is read. */
  async function proposed(draft: DraftModel, text: DraftedText, most: number) {
    for (let turn = 0; turn < 64; turn++) {
      const [tokens] = await draft.propose([{ text, most }])
      if (tokens!.length > 0) return tokens!
    }
    throw new Error('nothing was proposed')
  }

  it('proposes its own greedy continuation, wherever the text leaves the proposal', async () => {
    const path = await tinyModel()
    const [plain, draft] = [await load(path), await loadDraft(path)]
    const greedy = async (tokens: readonly number[]) =>
      (await complete({ tokens: Int32Array.from(tokens), maxTokens: 8, sampling: { logitBias: [] } }, plain)).tokens
    try {
      const tokens = Array.from(prompt(7, 50))
      const text = draft.open(Int32Array.from(tokens), owner('a'))
      for (const right of [0, 3, 8, 1]) {
        const made = await proposed(draft, text, 8)
        expect(made).toEqual((await greedy(tokens)).slice(0, made.length))
        const next = [...made.subarray(0, right), 7]
        for (const token of next) text.push(token)
        tokens.push(...next)
      }
    } finally {
      await draft.dispose()
      await plain.dispose()
    }
  })

  it('reads only what is new: of a conversation that comes back, and of a beginning that another one has', async () => {
    const draft = await loadDraft(await tinyModel())
    try {
      const begun = (tokens: Int32Array, name: string, salt?: CacheSalt) =>
        draft.open(tokens, { ...owner(name), ...(salt === undefined ? {} : { salt }) })
      const first = begun(prompt(3, 60), 'a')
      await proposed(draft, first, 4)
      draft.close(first)
      const again = begun(Int32Array.from([...prompt(3, 60), 5, 6, 7]), 'a')
      expect(again.behind).toBeLessThanOrEqual(3)
      const branch = begun(Int32Array.from([...prompt(3, 40), 9, 9, 9, 9]), 'b')
      expect(branch.behind).toBe(3)
      await proposed(draft, again, 4)
      await proposed(draft, branch, 4)
      // The other conversation kept its cells.
      expect(again.behind).toBeLessThanOrEqual(1)
      expect(draft.can(begun(prompt(1), 'c'))).toBe(false)
      draft.close(again)
      draft.close(branch)
      // Another tenant finds nothing of it.
      const salts = new CacheSalts()
      const other = begun(prompt(3, 60), 'a', salts.of('other', ''))
      expect(other.behind).toBe(59)
      // What is forgotten is read anew.
      draft.forget(conversationId('a'))
      draft.forget(conversationId('b'))
      expect(begun(prompt(3, 60), 'a').behind).toBe(59)
    } finally {
      await draft.dispose()
    }
  })

  it('reads a long text in slices, and a short one beside it first', async () => {
    const draft = await loadDraft(await tinyModel())
    try {
      const [long, short] = [draft.open(prompt(3, 1200), owner('long')), draft.open(prompt(4, 20), owner('short'))]
      const [nothing, early] = await draft.propose([
        { text: long, most: 4 },
        { text: short, most: 4 },
      ])
      expect(nothing!.length).toBe(0)
      expect(early!.length).toBeGreaterThan(0)
      expect((await proposed(draft, long, 4)).length).toBeGreaterThan(0)
    } finally {
      await draft.dispose()
    }
  })

  it('leaves out a text that its cells cannot hold, and one with a token that it lacks', async () => {
    const draft = await loadDraft(await tinyModel(), { cells: 256 })
    try {
      const [long, short] = [draft.open(prompt(3, 400), owner('long')), draft.open(prompt(4, 20), owner('short'))]
      for (let turn = 0; turn < 12; turn++) await draft.propose([long, short].map((text) => ({ text, most: 4 })))
      expect(draft.can(long)).toBe(false)
      expect(draft.can(short)).toBe(true)
      expect((await proposed(draft, short, 4)).length).toBeGreaterThan(0)
      short.push(4000)
      expect(draft.can(short)).toBe(false)
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
        message: expect.stringMatching(/no draft model here; start with --speculate draft=MODEL/u) as string,
      })
    } finally {
      await none.dispose()
    }
  })
})

describe('auto with a draft model', () => {
  /**
   * Plays turns in which a proposed token comes with the chance `right`. Returns the gain over turns without drafts. `repeats`: the answer
   * repeats itself with this period, which n-grams find.
   */
  function play(right: number, share: number, row = 0.1, repeats = 0): number {
    let chance = 0.5
    const lucky = () => (chance = (chance * 9301 + 0.49297) % 1) < right
    const milliseconds = (depth: number) => 10 * share * (1 + depth)
    const model = {
      open: (text: Int32Array, of: TextOwner) => new DraftedText(text, of, 10_000),
      ...{ close: () => undefined, can: () => true, milliseconds, readingTime: () => 0 },
      propose: () => Promise.reject(new Error('not asked here')),
    }
    const speculation = new Speculation(() => false, model)
    const conversation = conversationId('played')
    const drafter = speculation.drafter({ tokens: prompt(1), messages: [] }, speculateTerms(undefined, 'auto'), { conversation })!
    const time = (rows: number) => 10 * (1 + row * (rows - 1))
    speculation.times.tookPrompt(512, 512 * 10 * row)
    let [tokens, spent] = [0, 0]
    const answer = (at: number) => (repeats === 0 ? 1000 + at : 300 + (at % repeats))
    drafter.push(answer(0))
    for (let turn = 0; turn < 600; turn++) {
      const [{ count, byModel } = { count: 0, byModel: false }] = speculation.choose([{ drafter, room: 64 }]) ?? []
      // What the model proposes is right or wrong by chance.
      const own = Int32Array.from({ length: count }, (_, at) => (lucky() ? answer(tokens + 1 + at) : 9999))
      const drafts = count === 0 ? [] : byModel ? drafter.proposed(own) : drafter.propose(count)
      let kept = 0
      while (kept < drafts.length && drafts[kept] === answer(tokens + 1)) {
        drafter.push(answer(++tokens))
        kept++
      }
      drafter.push(answer(++tokens))
      speculation.took(1 + drafts.length, drafts.length, time(1 + drafts.length))
      spent += time(1 + drafts.length) + (byModel && count > 0 ? milliseconds(count) : 0)
    }
    return (tokens * time(1)) / spent
  }

  it('drafts where the model is cheap and right', () => {
    expect(play(0.8, 0.05)).toBeGreaterThan(1.6)
  })

  it('takes repeats where the model does not pay for them', () => {
    expect(play(0.8, 2, 0.1, 50)).toBeGreaterThan(2)
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

describe('a draft model with a sliding window', () => {
  it('drafts on when conversations alternate and one of them goes back to an earlier place', async () => {
    const told: string[] = []
    const path = await slidingModel()
    const options = { cells: 4096, slots: 2, draft: { path }, tell: (sentence: string) => void told.push(sentence) }
    const own = await load(path, options)
    const sampling = { logitBias: neverEnding(own.model) }
    const ask = (name: string, tokens: Int32Array) =>
      complete({ conversation: conversationId(name), tenant: 't', tokens, maxTokens: 24, sampling, speculate: DRAFT }, own)
    const b = prompt(2, 1000)
    await ask('a', prompt(1, 100))
    await ask('b', b)
    await ask('c', prompt(3, 1500))
    const back = await ask('b', Int32Array.from([...b.subarray(0, 300), ...prompt(4, 60)]))
    expect(told).toEqual([])
    expect(back.ledger.drafted).toBeGreaterThan(0)
    await own.dispose()
  })
})

function fail(sentence: string): never {
  throw new Error(sentence)
}
