/**
 * Tests models whose cache is not a plain table of cells. The engine lists once the operations that they lack, and never tries them. The
 * others must equal a fresh prefill of the same tokens in a separate context. The tolerance is the difference between two fresh prefills
 * with different chunk sizes.
 */
import { existsSync, mkdirSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeAll, describe, expect, it, test } from 'vitest'
import type { ChatMessage, Edit } from '../../../src/runtime/chat/message.js'
import type { Contract } from '../../../src/runtime/core/contract.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { Random } from '../../../src/runtime/core/random.js'
import { abilitiesOf } from '../../../src/runtime/engine/model-facts.js'
import type { EngineReply } from '../../../src/runtime/engine/engine.js'
import { LlamaEngine, type LlamaEngineOptions } from '../../../src/runtime/engine/llama.js'
import { OffloadTiers } from '../../../src/runtime/kv/offload.js'
import { checkpointPlaces } from '../../../src/runtime/kv/checkpoints.js'
import type { LedgerEntry } from '../../../src/runtime/kv/ledger.js'
import { CheckpointCache } from '../../../src/runtime/kv/checkpoint-cache.js'
import type { Prompt } from '../../../src/runtime/kv/prompt.js'
import type { Step } from '../../../src/runtime/kv/step.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { synthesizeOther, WINDOW, type OtherArchitecture } from '../../support/synthetic-others.js'
import type { Native, NativeContext } from '../../../src/runtime/native/types.js'
import { freshPrediction } from '../../support/predictions.js'
import { tinyModel } from '../../support/models.js'
import { endsOfGeneration } from '../../../bench/random-tokens.js'
import { LONG } from '../../support/long.js'

const HOST = 32 * 2 ** 20
/** Steps of a random history. */
const MOVES = LONG ? 90 : 12
const COMMON = { cells: 1536, threads: 1, batchThreads: 1, flashAttention: 'off' } as const
const LINEAR = ['mamba', 'jamba', 'lfm2'] as const

let native: Native
let engine: LlamaEngine
/** All engines, models and contexts that the test opened. */
const opened: { dispose(): Promise<void> }[] = []
/** Two contexts for fresh prefills, which differ in the size of chunks. */
let contexts: readonly [whole: NativeContext, chunked: NativeContext]

beforeAll(async () => {
  native = await openNative({ gpu: 'cpu' })
})

afterEach(async () => {
  await Promise.all(opened.splice(0).map((each) => each.dispose()))
})

async function modelOf(architecture: OtherArchitecture): Promise<string> {
  const folder = join(tmpdir(), 'kvfold-test-others-2')
  const path = join(folder, `${architecture}.gguf`)
  if (!existsSync(path)) {
    mkdirSync(folder, { recursive: true })
    await synthesizeOther(path, architecture)
  }
  return path
}

async function open(model: OtherArchitecture | 'wide', options: LlamaEngineOptions = {}): Promise<void> {
  // Quantised keys come in blocks of 32 numbers, so heads must be that wide.
  const path = model === 'wide' ? await tinyModel({ embedding: 128 }) : await modelOf(model)
  engine = await LlamaEngine.load(native, path, { ...COMMON, sequences: 6, hostBytes: HOST, ...options })
  const reference = await native.loadModel(path)
  opened.push(engine, reference)
  const { keyType = 'f16' } = options
  const fresh = { ...COMMON, keyType, fullSlidingWindow: true, sequences: 1 }
  contexts = [
    await reference.createContext(fresh),
    await reference.createContext({ ...fresh, cells: 2 * COMMON.cells, sequences: 2, batch: 61, ubatch: 61 }),
  ]
}

const words = (random: Random, count: number): string => {
  const list = ['red', 'stone', 'river', 'a', 'Zürich', '42', 'fold', '\n', 'light', ';', '{"x": 1}', 'quiet', '日本']
  return Array.from({ length: count }, () => list[random.below(list.length)]!).join(' ')
}

/** Makes an edit that folds about these characters of a message. */
const fold = (messages: readonly ChatMessage[], message: number, start: number, end: number): Edit => ({
  message,
  span: engine.snap(messages, [], message, { start, end }),
  replacement: '[folded]',
})

/** One step, with the model's prediction for its first token compared with that of a fresh prefill. */
interface Looked {
  readonly reply: EngineReply
  readonly next: Float32Array
  readonly worst: number
  /** The largest difference between two fresh prefills. */
  readonly floor: number
}

async function step(
  name: string,
  messages: readonly ChatMessage[],
  edits: readonly Edit[] = [],
  contract: Contract = 'exact',
  maxTokens = 3,
): Promise<Looked> {
  const { reply } = engine.respond({
    conversation: conversationId(name),
    messages,
    edits,
    contract,
    maxTokens,
    logprobs: engine.modelInfo.vocabulary,
    // An answer that ends at once would leave no log-probabilities.
    sampling: { logitBias: endsOfGeneration(engine.model).map((token) => ({ token, bias: -1e9 })) },
  })
  const { tokens } = engine.format.render({ messages, edits })
  // The three contexts run in parallel, each with one thread.
  const [answer, whole, chunked] = await Promise.all([
    reply,
    freshPrediction(contexts[0], tokens),
    freshPrediction(contexts[1], tokens, 29),
  ])
  equations(answer.ledger)
  await engine.check('positions')
  const next = new Float32Array(engine.modelInfo.vocabulary).fill(-Infinity)
  for (const { token, logprob } of answer.logprobs![0]!.top) next[token] = logprob
  return { reply: answer, next, worst: apart(next, whole), floor: apart(chunked, whole) }
}

function equations(entry: LedgerEntry): void {
  expect(entry.reused + entry.recomputed + entry.fresh).toBe(entry.shown)
  expect(entry.recomputed + entry.fresh + entry.side).toBe(entry.submitted)
  expect(entry.sources.own + entry.sources.parked + entry.sources.shared).toBe(entry.reused)
}

const apart = (a: Float32Array, b: Float32Array): number =>
  a.reduce((worst, value, at) => (value === -Infinity ? worst : Math.max(worst, Math.abs(value - b[at]!))), 0)

/**
 * Above the noise of these models without flash attention (measured: at most 2.6e-4), and far below the effect of a wrong cell (above
 * 1e-2).
 */
const SAME = 1e-3

const talk = (seed: number): ChatMessage[] => {
  const random = new Random(seed)
  return [
    { role: 'system', content: `Be brief. ${words(random, 12)}` },
    { role: 'user', content: words(random, 60) },
  ]
}

describe('abilities', () => {
  const plain = {
    architecture: 'llama',
    recurrent: false,
    hybrid: false,
    slidingWindow: 0,
    layers: 2,
    rope: 'norm',
    metadata: {},
    trainedContext: 4096,
  } as const
  const scaled = (key: string, value: string) => ({ ...plain, metadata: { [`llama.rope.scaling.${key}`]: value } })

  test('a model with attention only can do everything, and there are no notes', () => {
    const all = { contracts: ['exact', 'splice', 'blend'], refusal: null, shift: true, edits: 'tags', notes: [] }
    expect(abilitiesOf(plain)).toEqual(all)
    expect(abilitiesOf(plain, { keyType: 'f32', valueType: 'q8_0' })).toEqual(all)
    expect(abilitiesOf(scaled('type', 'linear'))).toEqual(all)
    expect(abilitiesOf(scaled('attn_factor', '1.000000'))).toEqual(all)
  })

  test('keys are not turned where llama.cpp would turn them otherwise than the model does', () => {
    const shifts = (architecture: string, slidingWindow: number, layers: number = plain.layers) =>
      abilitiesOf({ ...plain, architecture, slidingWindow, layers }).shift
    const partlyRotary = ['afmoe', 'cohere2', 'cohere2moe', 'exaone-moe', 'llama4', 'maple', 'muse-glimmer', 'smollm3']
    const others = [
      'hunyuan-dense',
      'hunyuan-moe',
      'hunyuan_vl',
      'maincoder',
      'deepseek32',
      'dots3note',
      'glm-dsa',
      'hy_v4',
      'deepseek2-ocr',
    ]
    for (const architecture of [...partlyRotary, ...others])
      expect([architecture, shifts(architecture, 0), shifts(architecture, 64)]).toEqual([architecture, false, false])
    for (const architecture of ['exaone4', 'smallthinker'])
      expect([architecture, shifts(architecture, 0), shifts(architecture, 64)]).toEqual([architecture, true, false])
    expect([shifts('baichuan', 0, 32), shifts('baichuan', 0, 40)]).toEqual([true, false])
    expect(shifts('gemma3', 64)).toBe(true)
  })

  test.each([
    [{ ...plain, recurrent: true, architecture: 'mamba' }, {}, { contracts: ['exact'], shift: false, edits: 'checkpoints' }],
    [{ ...plain, hybrid: true, architecture: 'jamba' }, {}, { contracts: ['exact'], shift: false, edits: 'checkpoints' }],
    [{ ...plain, slidingWindow: 64 }, {}, { shift: true, edits: 'tags' }],
    [{ ...plain, slidingWindow: 64 }, { fullSlidingWindow: false }, { contracts: ['exact'], shift: false, edits: 'checkpoints' }],
    [{ ...plain, rope: 'mrope' }, {}, { shift: false, edits: 'tags' }],
    [{ ...plain, architecture: 'smollm3' }, {}, { shift: false, edits: 'tags' }],
    [plain, { keyType: 'q8_0' }, { shift: false, edits: 'tags' }],
    [plain, { keyType: 'bf16' }, { shift: false, edits: 'tags' }],
    [scaled('type', 'yarn'), {}, { shift: false, edits: 'tags' }],
    [scaled('type', 'longrope'), {}, { shift: false, edits: 'tags' }],
    [scaled('attn_factor', '1.190238'), {}, { shift: false, edits: 'tags' }],
    [scaled('yarn_ext_factor', '1.000000'), {}, { shift: false, edits: 'tags' }],
  ] as const)('%j with %j', (info, options, expected) => {
    const abilities = abilitiesOf(info, options)
    expect(abilities).toMatchObject(expected)
    expect(abilities.notes).toHaveLength(1)
    expect(abilities.notes[0]).toMatch(/^\S.*\.$/)
    expect(abilities.refusal === null).toBe(abilities.contracts.includes('splice'))
  })
})

describe.each(LINEAR)('%s, whose sequences can only be extended', (architecture) => {
  it('continues from its own state, and returns to checkpoints, exactly', async () => {
    await open(architecture)
    expect(engine.abilities).toMatchObject({ contracts: ['exact'], edits: 'checkpoints' })
    const messages = talk(1)
    const first = await step('a', messages)
    expect(first.reply.ledger).toMatchObject({ reused: 0, contract: 'exact', fallback: null })
    messages.push(first.reply.message, { role: 'user', content: 'And then?' })

    const second = await step('a', messages)
    expect(second.reply.ledger).toMatchObject({ recomputed: 0, sources: { parked: 0, shared: 0 } })
    expect(second.reply.ledger.sources.own).toBe(first.reply.ledger.shown)

    // The answer is generated again, from where it began.
    const again = await step('a', messages)
    expect(again.reply.ledger.sources.own).toBe(0)
    expect(again.reply.ledger.tiers).toEqual({ host: again.reply.ledger.reused, disk: 0 })
    expect(again.reply.ledger.recomputed).toBeLessThan(12)
    messages.push(again.reply.message, { role: 'user', content: 'Go on.' })

    // An edit of the first user message starts from the end of the system message.
    const folded = await step('a', messages, [fold(messages, 1, 5, 150)])
    expect(folded.reply.ledger.sources.parked).toBe(folded.reply.ledger.reused)
    expect(folded.reply.ledger.reused).toBeGreaterThan(10)
    expect(folded.reply.ledger.reused).toBeLessThan(first.reply.ledger.shown)
    expect(folded.reply.ledger.parked).toBeGreaterThan(0)

    // The edit is undone: the state before it was kept.
    const undone = await step('a', messages)
    expect(undone.reply.ledger.recomputed).toBeLessThan(30)
    // The edit is made again, and starts from the edited message or later.
    const redone = await step('a', messages, [fold(messages, 1, 5, 150)])
    expect(redone.reply.ledger.sources.parked).toBeGreaterThanOrEqual(folded.reply.ledger.reused)

    for (const { worst, floor } of [first, second, again, folded, undone, redone]) {
      expect(floor).toBeLessThan(SAME)
      expect(worst).toBeLessThan(SAME)
    }
    // The comparison can distinguish texts.
    expect(apart(folded.next, undone.next)).toBeGreaterThan(10 * SAME)
    await engine.check('full')
  })

  it('falls back to exact when a splice is requested, and says why', async () => {
    await open(architecture)
    const messages = talk(2)
    await step('a', messages)
    for (const contract of ['splice', 'blend'] as const) {
      const { reply, worst } = await step('a', messages, [fold(messages, 1, 5, 100)], contract)
      expect(reply.ledger).toMatchObject({ contract: 'exact', approximate: 0 })
      expect(reply.ledger.fallback).toMatch(/recurrent state/)
      expect(worst).toBeLessThan(SAME)
    }
    expect(await engine.closeGaps(conversationId('a'))).toBe(0)
    expect(await engine.refresh(conversationId('a'))).toMatchObject({ exact: true, ledger: [] })
    // A fold that forgets a text leaves the other cells exact.
    await engine.forgetHidden(conversationId('a'), messages, [], [{ ...fold(messages, 1, 5, 100), forget: true }])
    expect(await engine.refresh(conversationId('a'))).toMatchObject({ exact: true, ledger: [] })
    expect((await step('a', [...messages, { role: 'user', content: 'x' }])).worst).toBeLessThan(SAME)
    await engine.compact(conversationId('a'))
    expect((await step('a', [...messages, { role: 'user', content: 'y' }])).worst).toBeLessThan(SAME)
  })

  it('equals a fresh prefill over random edits of several conversations in little room', { timeout: 120_000 }, async () => {
    await open(architecture, { cells: 768, sequences: 3, slots: 3 })
    expect(await randomEdits(architecture, ['exact', 'splice'])).toBeGreaterThan(1000)
  })

  it('runs several conversations in parallel', async () => {
    await open(architecture)
    const talks = [talk(3), talk(4), talk(5)]
    const replies = await Promise.all(
      talks.map((messages, at) => engine.respond({ conversation: conversationId(`p${at}`), messages, maxTokens: 6 }).reply),
    )
    for (const [at, { message, ledger }] of replies.entries()) {
      equations(ledger)
      const { worst, reply } = await step(`p${at}`, [...talks[at]!, message, { role: 'user', content: 'next' }])
      expect(worst).toBeLessThan(SAME)
      expect(reply.ledger.sources.own).toBe(ledger.shown)
    }
  })

  it.each(['prompt', 'answer'] as const)('is emptied when a decode of its %s is aborted, and continues exactly', async (when) => {
    await open(architecture, { ubatch: 32 })
    const messages = talk(6)
    const id = conversationId('a')
    const first = await step('a', messages)
    const longer: ChatMessage[] = [...messages, first.reply.message, { role: 'user', content: words(new Random(8), 200) }]
    const before = engine.submitted
    const abort = new AbortController()
    const stop = () => {
      abort.abort()
    }
    const generation = engine.respond({ conversation: id, messages: longer, maxTokens: 400, signal: abort.signal })
    let seen = 0
    for await (const event of generation) {
      // The plan is sent right before the decode, so the next turn of the event loop falls into the decode.
      if (when === 'prompt' && event.type === 'plan') setImmediate(stop)
      if (when === 'answer' && event.type === 'tokens' && ++seen === 5) setImmediate(stop)
    }
    const { finish, ledger } = await generation.reply
    expect(finish).toBe('cancelled')
    expect(ledger.side).toBe(ledger.submitted)
    expect(ledger.submitted).toBe(engine.submitted - before)
    await engine.check('full')
    const next = await step('a', longer)
    expect(next.worst).toBeLessThan(SAME)
    expect(next.reply.ledger.reused).toBeGreaterThan(0)
    expect((await step('b', longer)).worst).toBeLessThan(SAME)
  })

  it('works without memory for checkpoints, by computing everything again', async () => {
    await open(architecture, { hostBytes: 0 })
    const messages = talk(9)
    await step('a', messages)
    const { reply, worst } = await step('a', messages, [fold(messages, 1, 5, 60)])
    expect(reply.ledger).toMatchObject({ reused: 0, parked: 0 })
    expect(worst).toBeLessThan(SAME)
  })

  it('evicts the least useful checkpoints when memory is short', async () => {
    await open(architecture, { hostBytes: 150_000 })
    const messages = talk(10)
    for (let turn = 0; turn < 8; turn++) {
      const { reply, worst } = await step('a', messages)
      expect(worst).toBeLessThan(SAME)
      messages.push(reply.message, { role: 'user', content: words(new Random(turn), 8) })
      const { tiers } = engine.cacheTotals
      expect(tiers.host.bytes).toBeLessThanOrEqual(150_000)
    }
    expect((await step('a', messages, [fold(messages, 1, 5, 60)])).worst).toBeLessThan(SAME)
  })
})

describe('a cache of sequences that can only be extended', () => {
  const shownAs = (...messages: readonly (readonly number[])[]): Prompt => {
    let start = 0
    return {
      tokens: Int32Array.from(messages.flat()),
      messages: messages.map((of, index) => ({
        index,
        role: index === 0 ? 'system' : 'user',
        span: { start, end: (start += of.length) },
      })),
    }
  }

  test('saves at the end of the system message, before edited messages, and before the answer', () => {
    const shown = shownAs([1, 2, 3], [4, 5], [6, 7, 8, 9], [10, 11], [12])
    expect(checkpointPlaces(shown)).toEqual([3, 11])
    const base = Int32Array.from([1, 2, 3, 4, 5, 6, 30, 31, 32, 9, 10, 11, 12])
    expect(checkpointPlaces({ ...shown, origin: { base, holes: [{ span: { start: 6, end: 9 }, marker: 2 }] } })).toEqual([
      3, 5, 11,
    ])
    // A fold without a marker.
    const longer = Int32Array.from([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 40, 41, 11, 12])
    expect(
      checkpointPlaces({ ...shown, origin: { base: longer, holes: [{ span: { start: 10, end: 12 }, marker: 0 }] } }),
    ).toEqual([3, 9, 11])
    // A bare completion is saved before its last token.
    expect(checkpointPlaces(shownAs([1, 2, 3, 4]))).toEqual([3])
  })

  test('trusts no state after a decode of several sequences failed', async () => {
    const model = await native.loadModel(await modelOf('jamba'))
    opened.push(model)
    const context = await model.createContext({ ...COMMON, sequences: 4 })
    const cache = new CheckpointCache(context, { refusal: 'no', offload: new OffloadTiers({ hostBytes: HOST }) })
    const begin = async (name: string, shown: Prompt) => {
      const opening = cache.open(conversationId(name))
      if (opening.kind === 'full') throw new Error(opening.reason)
      return cache.begin(opening.sequence, await cache.prepare(opening.sequence, shown), 'answer')
    }
    const compute = async (step: Step) => {
      for (let chunk = cache.next(step, 100); chunk !== null; chunk = cache.next(step, 100)) {
        const { tokens, position, seq } = chunk
        const positions = Int32Array.from(tokens, (_, offset) => position + offset)
        const outputs = new Uint8Array(tokens.length)
        await context.decode({ tokens, positions, sequences: new Int32Array(tokens.length).fill(seq), outputs })
        cache.commit(step, tokens, 'prompt', 0)
      }
    }
    const idle = await begin('idle', shownAs([1, 2], [3, 4, 5], [6]))
    await compute(idle)
    cache.finish(idle, 'done', 0)
    const running = await begin('running', shownAs([1, 2], [7, 8, 9], [6]))
    await compute(running)
    cache.distrust()
    cache.check('full')
    expect(() => cache.seat(running)).toThrow(/was lost/)
    expect(() => cache.finish(running, 'done', 0)).toThrow(/was lost/)
    expect(cache.finish(running, 'cancelled', 0)).toMatchObject({ kind: 'cancelled', side: 4, submitted: 4 })
    expect(cache.live(conversationId('idle'))?.held).toBe(0)
    // The checkpoints are older than the failure.
    const again = await begin('idle', shownAs([1, 2], [3, 4, 5], [6]))
    expect(again.sequence.held).toBe(5)
    await compute(again)
    expect(cache.finish(again, 'done', 0)).toMatchObject({ reused: 5, tiers: { host: 5 } })
    cache.check('full')
    expect(cache.totals).toMatchObject({ used: 6, sequences: { used: 2 } })
  })
})

describe('gemma3, whose first layer has a sliding window', () => {
  it('is exact under every edit with the full cache of the window', async () => {
    await open('gemma3')
    expect(engine.abilities).toMatchObject({ edits: 'tags', shift: true })
    const messages: ChatMessage[] = [
      { role: 'system', content: 'Be brief.' },
      { role: 'user', content: words(new Random(1), 150) },
      { role: 'user', content: words(new Random(2), 60) },
    ]
    const looked = [await step('a', messages)]
    expect(looked[0]!.reply.ledger.shown).toBeGreaterThan(4 * WINDOW)
    looked.push(await step('a', messages, [fold(messages, 1, 100, 400)]))
    looked.push(await step('a', messages))
    // Only the last token is computed again, because the hidden cells were parked.
    expect(looked[2]!.reply.ledger).toMatchObject({ recomputed: 0, side: 1 })
    looked.push(await step('a', messages, [fold(messages, 0, 0, 5), fold(messages, 2, 10, 60)]))
    for (const { worst } of looked) expect(worst).toBeLessThan(SAME)
    await engine.check('full')
  })

  it.each([[['exact']], [['exact', 'splice', 'blend']]] as const)(
    'is exact whenever it reports so, over random edits of several conversations in little room under %j',
    { timeout: 120_000 },
    async (contracts) => {
      await open('gemma3', { cells: 768, sequences: 6 })
      expect(await randomEdits('gemma3', contracts)).toBeGreaterThan(300)
      await engine.check('full')
    },
  )

  it('splices, and an immediate restore is exact', async () => {
    await open('gemma3')
    const messages: ChatMessage[] = [
      { role: 'user', content: words(new Random(3), 200) },
      { role: 'user', content: words(new Random(4), 30) },
    ]
    await restoreIsExact(messages, () => [fold(messages, 0, 100, 500)])
    // The conversation is left spliced; its gaps can be closed, in the windowed layers, too.
    const id = conversationId('restored')
    const { positions, shown } = engine.ledger(id).at(-1)!
    expect(await engine.closeGaps(id)).toBe(positions - shown)
    await engine.check('full')
    const next = await step('restored', [...messages, { role: 'user', content: 'more' }])
    expect(next.worst).toBeLessThan(SAME)
  })

  it('copies the cells after a long marker, in the windowed layers, too, and the restore is exact', async () => {
    await open('gemma3')
    await restoreIsExact(talk(15), (messages) => [fold(messages, 1, 20, 22)])
    expect(engine.ledger(conversationId('restored')).map(({ turned = 0 }) => turned > 20)).toEqual([false, true, false, false])
  })

  it('with the smaller cache, which forgets, returns to checkpoints', async () => {
    await open('gemma3', { fullSlidingWindow: false, ubatch: 64, batch: 64 })
    expect(engine.abilities).toMatchObject({ contracts: ['exact'], edits: 'checkpoints' })
    const messages: ChatMessage[] = [
      { role: 'system', content: 'Be brief.' },
      { role: 'user', content: words(new Random(5), 150) },
    ]
    const looked = [await step('a', messages)]
    messages.push(looked[0]!.reply.message, { role: 'user', content: 'more' })
    looked.push(await step('a', messages))
    expect(looked[1]!.reply.ledger.recomputed).toBe(0)
    looked.push(await step('a', messages))
    expect(looked[2]!.reply.ledger.tiers.host).toBeGreaterThan(100)
    looked.push(await step('a', messages, [fold(messages, 1, 50, 400)], 'splice'))
    expect(looked[3]!.reply.ledger.fallback).toMatch(/forget/)
    looked.push(await step('a', messages))
    for (const { worst } of looked) expect(worst).toBeLessThan(SAME)
    await engine.check('full')
  })
})

describe('qwen2vl, whose positions have several dimensions', () => {
  it('is exact under edits', async () => {
    await open('qwen2vl')
    expect(engine.abilities).toMatchObject({ edits: 'tags', shift: false })
    const messages = talk(11)
    const looked = [await step('a', messages), await step('a', messages, [fold(messages, 1, 5, 100)]), await step('a', messages)]
    expect(looked[2]!.reply.ledger).toMatchObject({ recomputed: 0, side: 1 })
    for (const { worst } of looked) expect(worst).toBeLessThan(SAME)
  })

  it.each([[['exact']], [['exact', 'splice', 'blend']]] as const)(
    'is exact whenever it reports so, over random edits of several conversations in little room under %j',
    { timeout: 120_000 },
    async (contracts) => {
      await open('qwen2vl', { cells: 768, sequences: 6 })
      expect(await randomEdits('qwen2vl', contracts)).toBeGreaterThan(300)
    },
  )

  it('splices and restores, and does not close gaps', async () => {
    await open('qwen2vl')
    await restoreIsExact(talk(12), (messages) => [fold(messages, 1, 20, 150)])
    await gapsStay(/several dimensions/)
    await engine.check('full')
  })

  it('is reloaded from memory unchanged', async () => {
    await open('qwen2vl', { cells: 512, sequences: 3 })
    for (const name of ['a', 'b', 'c', 'd', 'a', 'b']) {
      const { worst, reply } = await step(name, talk(name.charCodeAt(0)), [], 'exact', 1)
      expect(worst).toBeLessThan(SAME)
      if (name === 'a' && reply.ledger.step === 1) expect(reply.ledger.tiers.host).toBeGreaterThan(0)
    }
  })
})

describe('keys in q8_0', () => {
  it('are exact, splice and restore, and gaps stay open', async () => {
    await open('wide', { keyType: 'q8_0' })
    expect(engine.abilities).toMatchObject({ edits: 'tags', shift: false })
    const messages = talk(13)
    const looked = [await step('a', messages), await step('a', messages, [fold(messages, 1, 5, 100)]), await step('a', messages)]
    for (const { worst } of looked) expect(worst).toBeLessThan(SAME)
    await restoreIsExact(talk(14), (messages) => [fold(messages, 1, 20, 150)])
    await gapsStay(/q8_0/)
  })
})

/** Folds by a splice without generating, restores, and compares with never having folded. Then folds again. */
async function restoreIsExact(messages: readonly ChatMessage[], of: (messages: readonly ChatMessage[]) => Edit[]): Promise<void> {
  const edits = of(messages)
  const id = conversationId('restored')
  const show = (of: readonly Edit[]) => {
    const { tokens, origin, messages: spans } = engine.format.render({ messages, edits: of })
    expect(spans.length).toBeGreaterThan(0)
    return engine.complete({ conversation: id, tokens, origin, terms: { contract: 'splice' }, maxTokens: 0 })
  }
  const whole = await show([])
  expect(whole.ledger.approximate).toBe(0)
  const { ledger: folded } = await show(edits)
  expect(folded).toMatchObject({ contract: 'splice', fallback: null })
  expect(folded.approximate).toBeGreaterThan(0)
  expect(folded.submitted).toBeLessThan(20)
  const restored = await step('restored', messages, [], 'splice', 1)
  expect(restored.reply.ledger).toMatchObject({ contract: 'splice', recomputed: 0, submitted: 1 })
  expect(restored.worst).toBeLessThan(SAME)
  await show(edits)
}

/** Checks that the conversation `restored` has gaps in its positions, which are not closed. */
async function gapsStay(why: RegExp): Promise<void> {
  const id = conversationId('restored')
  const { positions, shown } = engine.ledger(id).at(-1)!
  expect(positions).toBeGreaterThan(shown)
  expect(await engine.closeGaps(id)).toBe(0)
  expect(engine.abilities.notes.join(' ')).toMatch(why)
  await engine.check('positions')
}

/** Runs steps of several conversations with random messages and edits. Returns how many tokens were reloaded from memory. */
async function randomEdits(what: string, contracts: readonly Contract[]): Promise<number> {
  const random = new Random(7)
  let [worst, floor, exact, back, recomputed] = [0, 0, 0, 0, 0]
  const talks = Array.from({ length: 5 }, (_, at) => ({ name: `c${at}`, messages: talk(at % 2), edits: [] as Edit[] }))
  for (let move = 0; move < MOVES; move++) {
    const each = talks[random.below(talks.length)]!
    const kind = random.below(4)
    if (kind === 0 && each.messages.length < 9) each.messages.push({ role: 'user', content: words(random, 1 + random.below(20)) })
    if (kind === 1) {
      const message = random.below(each.messages.length)
      const { content } = each.messages[message]!
      const start = random.below(Math.max(1, content.length - 12))
      const edit = fold(each.messages, message, start, Math.min(content.length, start + 10 + random.below(100)))
      if (edit.span.end > edit.span.start && !each.edits.some((other) => other.message === message)) each.edits.push(edit)
      each.edits.sort((a, b) => a.message - b.message)
    }
    if (kind === 2) each.edits.splice(random.below(Math.max(1, each.edits.length)), 1)
    const contract = contracts[random.below(contracts.length)]!
    const { reply, ...looked } = await step(each.name, each.messages, each.edits, contract, 1 + random.below(3))
    floor = Math.max(floor, looked.floor)
    // Steps that the ledger calls approximate may differ.
    if (reply.ledger.approximate === 0) {
      worst = Math.max(worst, looked.worst)
      exact++
    }
    back += reply.ledger.tiers.host
    recomputed += reply.ledger.recomputed
    if (each.messages.length < 9) each.messages.push(reply.message)
    if (random.below(5) === 0) await engine.compact(conversationId(each.name))
  }
  const figures = `worst difference ${worst.toExponential(2)}, noise floor ${floor.toExponential(2)}`
  console.log(
    `${what}, ${contracts.join(', ')}: ${figures}; ${exact} exact steps, ${back} tokens from memory, ${recomputed} recomputed`,
  )
  expect(worst).toBeLessThan(SAME)
  expect(exact).toBeGreaterThan(MOVES / 3)
  await engine.check('positions')
  return back
}
