/**
 * Tests attention patterns of the engine on real models: against a first layer computed by hand, against other batch sizes, and refused
 * requests.
 */
import { afterEach, beforeAll, describe, expect, it } from 'vitest'
import { KvfoldError, type ErrorCode } from '../../../src/runtime/core/errors.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { Random } from '../../../src/runtime/core/random.js'
import type { Span } from '../../../src/runtime/core/span.js'
import { type AttentionPattern, attentionPlan, type AttentionRequest } from '../../../src/runtime/engine/attention.js'
import { LlamaEngine, type Completion, type LlamaEngineOptions } from '../../../src/runtime/engine/llama.js'
import type { StepContract } from '../../../src/runtime/kv/plan/parts.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { synthesizeOther, WINDOW, type OtherArchitecture } from '../../support/synthetic-others.js'
import type { Native } from '../../../src/runtime/native/types.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { TEST_GPU } from '../../support/device.js'
import { FirstLayer } from '../../support/first-layer.js'
import { tinyModel } from '../../support/models.js'
import { mkdtemp } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** With f32 everywhere, only the order of sums causes rounding. */
const PRECISE = { keyType: 'f32', valueType: 'f32' } as const
const SETTINGS = { cells: 2048, sequences: 12, threads: 1, batchThreads: 1, attention: true, ...PRECISE } as const
const EXACT: StepContract = { contract: 'exact' }
const SPLICE: StepContract = { contract: 'splice' }
/** How much another order of sums may change. */
const ROUNDING = 1e-5

interface Hole extends Span {
  readonly marker: Int32Array
}

let native: Native
let engine: LlamaEngine
const opened: LlamaEngine[] = []

beforeAll(async () => {
  native = await openNative({ gpu: TEST_GPU })
})
afterEach(async () => {
  for (const each of opened.splice(0)) await each.dispose()
})

async function load(options: LlamaEngineOptions = {}, path?: string): Promise<LlamaEngine> {
  engine = await LlamaEngine.load(native, path ?? (await tinyModel()), { ...SETTINGS, ...options })
  opened.push(engine)
  return engine
}

async function other(architecture: OtherArchitecture): Promise<string> {
  const path = join(await mkdtemp(join(tmpdir(), 'kvfold-attention-')), `${architecture}.gguf`)
  await synthesizeOther(path, architecture)
  return path
}

const ID = conversationId('c')
const text = (count: number, salt: number): Int32Array =>
  Int32Array.from({ length: count }, (_, at) => 260 + ((at * 7919 + salt * 104729 + ((at * at) % 13)) % 100))

/**
 * Returns the tokens and positions of a splice; or of a blend that recomputes the `first` tokens after each fold, right behind the marker.
 */
function folded(base: Int32Array, holes: readonly Hole[], first = 0) {
  const tokens: number[] = []
  const positions: number[] = []
  let at = 0
  let again = 0
  const copy = (end: number) => {
    for (; at < end; at++, again--) {
      tokens.push(base[at]!)
      positions.push(again > 0 ? positions.at(-1)! + 1 : at)
    }
  }
  for (const { start, end, marker } of holes) {
    copy(start)
    tokens.push(...marker)
    positions.push(...Array.from(marker, (_, offset) => start + offset))
    at = end
    again = first
  }
  copy(base.length)
  const origin = { base, holes: holes.map(({ start, end, marker }) => ({ span: { start, end }, marker: marker.length })) }
  return { shown: { tokens: Int32Array.from(tokens), origin }, tokens: Int32Array.from(tokens), positions }
}

/** Requests every output for these queries. */
const all = (queries: AttentionRequest['queries'], more: Partial<AttentionRequest> = {}): AttentionRequest => ({
  queries,
  keys: [
    { name: 'early', tokens: [{ start: 0, end: 40 }] },
    {
      name: 'late',
      tokens: [
        { start: 20, end: 60 },
        { start: 70, end: 71 },
      ],
    },
    { name: 'empty', tokens: [] },
  ],
  rows: true,
  top: 4,
  ...more,
})

async function look(tokens: Int32Array, attention: AttentionRequest, more: Partial<Completion> = {}) {
  const result = await engine.complete({ conversation: ID, tokens, maxTokens: 0, attention, ...more })
  await engine.check('full').catch((error: unknown) => {
    if (!(error instanceof KvfoldError) || error.code !== 'model/unsupported') throw error
  })
  return { ...result, pattern: result.attention! }
}

const rowOf = ({ rows, heads, queries }: AttentionPattern, layer: number, head: number, query: number): Float32Array => {
  const width = rows!.shape[3]!
  const at = ((layer * heads.length + head) * queries.length + query) * width
  return rows!.data.subarray(at, at + width)
}

/** Checks that sums, entropy, sink and top agree with the rows, and that each row sums to 1. */
function expectConsistent(pattern: AttentionPattern, request: AttentionRequest): void {
  const { layers, heads, queries, mass, total, entropy, sink, top } = pattern
  expect(mass.shape).toEqual([layers.length, heads.length, queries.length, request.keys.length])
  let slot = 0
  for (let layer = 0; layer < layers.length; layer++)
    for (let head = 0; head < heads.length; head++)
      for (let query = 0; query < queries.length; query++, slot++) {
        const row = rowOf(pattern, layer, head, query)
        const sum = (from: Iterable<number>) => [...from].reduce((a, b) => a + b, 0)
        expect(Math.abs(sum(row) - 1)).toBeLessThan(ROUNDING)
        expect(Math.abs(total.data[slot]! - 1)).toBeLessThan(ROUNDING)
        expect(Math.abs(entropy.data[slot]! - sum([...row].map((w) => (w > 0 ? -w * Math.log(w) : 0))))).toBeLessThan(ROUNDING)
        expect(sink.data[slot]).toBe(row[0])
        expect(row.subarray(queries[query]! + 1).every((weight) => weight === 0)).toBe(true)
        request.keys.forEach(({ tokens }, set) => {
          const expected = sum(tokens.map(({ start, end }) => sum(row.subarray(start, end))))
          expect(Math.abs(mass.data[slot * request.keys.length + set]! - expected)).toBeLessThan(ROUNDING)
        })
        const size = top!.places.shape[3]!
        const best = [...row.keys()].sort((a, b) => row[b]! - row[a]! || a - b).slice(0, Math.min(size, queries[query]! + 1))
        const places = top!.places.data.subarray(slot * size, (slot + 1) * size)
        const weights = top!.weights.data.subarray(slot * size, (slot + 1) * size)
        // All weights outside a window are 0, so their places may come in any order.
        expect([...weights.subarray(0, best.length)]).toEqual(best.map((place) => row[place]))
        best.forEach((place, rank) => {
          if (row[place]! > 0) expect(places[rank]).toBe(place)
        })
      }
}

/** Checks that the first layer's weights equal a computation by hand. */
function expectByHand(
  pattern: AttentionPattern,
  layer: FirstLayer,
  tokens: Int32Array,
  positions: ArrayLike<number>,
  within = ROUNDING,
): void {
  let worst = 0
  for (const head of pattern.heads)
    pattern.queries.forEach((query, at) => {
      const expected = layer.row(head, query, tokens, positions)
      const row = rowOf(pattern, 0, head, at)
      expected.forEach((weight, place) => (worst = Math.max(worst, Math.abs(weight - row[place]!))))
    })
  expect(worst).toBeLessThan(within)
}

const difference = (a: AttentionPattern, b: AttentionPattern): number => {
  expect(b.queries).toEqual(a.queries)
  const of = (x: Float32Array, y: Float32Array) => {
    expect(y.length).toBe(x.length)
    return x.reduce((worst, value, at) => Math.max(worst, Math.abs(value - y[at]!)), 0)
  }
  return Math.max(of(a.mass.data, b.mass.data), of(a.rows!.data, b.rows!.data), of(a.entropy.data, b.entropy.data))
}

const counting = (count: number): number[] => Array.from({ length: count }, (_, at) => at)

describe('a pattern', () => {
  it('equals the first layer computed by hand, for prompt and generated tokens', async () => {
    await load({ ubatch: 64 })
    const request = all({
      prompt: [
        { start: 0, end: 2 },
        { start: 63, end: 66 },
        { start: 199, end: 200 },
      ],
      generated: true,
    })
    const tokens = text(200, 1)
    const { pattern, tokens: answer } = await look(tokens, request, { maxTokens: 6 })
    // The last token is sampled, and never a query.
    expect([...pattern.queries]).toEqual([0, 1, 63, 64, 65, 199, 200, 201, 202, 203, 204])
    expect(pattern).toMatchObject({ layers: [0, 1], heads: [0, 1, 2, 3], keys: ['early', 'late', 'empty'], skipped: [] })
    expect(pattern.rows!.shape).toEqual([2, 4, 11, 205])
    expectConsistent(pattern, request)
    expectByHand(pattern, new FirstLayer(await tinyModel()), Int32Array.from([...tokens, ...answer]), counting(206))
  })

  it('equals the first layer of the built-in model computed by hand, within the precision of f16 weights', async () => {
    await load({}, builtinModel())
    const { attention } = await engine.respond({
      conversation: ID,
      messages: [{ role: 'user', content: 'cat: 1\ncat: 2\ndog: 3\nWhat is the current value of cat?' }],
      maxTokens: 4,
      attention: { queries: { generated: true, prompt: [{ start: 10, end: 12 }] }, keys: [], rows: true },
    }).reply
    const shown = engine.format.render({
      messages: [{ role: 'user', content: 'cat: 1\ncat: 2\ndog: 3\nWhat is the current value of cat?' }],
      tools: [],
      edits: [],
    }).tokens
    const { layers, heads } = engine.modelInfo
    expect(attention!.mass.shape).toEqual([layers, heads, attention!.queries.length, 0])
    const prompt = { ...attention!, queries: attention!.queries.slice(0, 2) }
    const layer = new FirstLayer(builtinModel())
    for (const head of prompt.heads)
      prompt.queries.forEach((query, at) => {
        const row = rowOf(attention!, 0, head, at)
        layer.row(head, query, shown, counting(shown.length)).forEach((weight, place) => {
          expect(Math.abs(weight - row[place]!)).toBeLessThan(2e-3)
        })
      })
  })

  it('changes nothing: logits equal those of an engine without capture bit by bit', async () => {
    const tokens = text(150, 2)
    const answers = []
    for (const attention of [undefined, all({ prompt: [{ start: 100, end: 150 }], generated: true })]) {
      await load({ ubatch: 64 })
      const more = attention === undefined ? {} : { attention }
      const logprobs = engine.modelInfo.vocabulary
      answers.push(await engine.complete({ conversation: ID, tokens, maxTokens: 5, logprobs, ...more }))
    }
    expect(answers[1]!.logprobs).toEqual(answers[0]!.logprobs)
    expect(answers[0]!.attention).toBeUndefined()
  })

  it('is the same in ubatches of 7 and of 64, and beside other running conversations', async () => {
    const request = all({ prompt: [{ start: 50, end: 130 }], generated: true })
    const tokens = text(130, 3)
    await load()
    const { pattern } = await look(tokens, request, { maxTokens: 4 })
    for (const ubatch of [7, 64]) {
      await load({ ubatch, batch: ubatch })
      expect(difference(pattern, (await look(tokens, request, { maxTokens: 4 })).pattern)).toBeLessThan(ROUNDING)
    }
    await load({ ubatch: 32 })
    const busy = [4, 5].map((salt) =>
      engine.complete({ conversation: conversationId(`busy ${salt}`), tokens: text(90, salt), maxTokens: 40 }),
    )
    const [beside, second] = await Promise.all([
      engine.complete({ conversation: ID, tokens, maxTokens: 4, attention: request }),
      engine.complete({ conversation: conversationId('too'), tokens, maxTokens: 4, attention: request }),
      ...busy,
    ])
    expect(difference(pattern, beside.attention!)).toBeLessThan(ROUNDING)
    expect(difference(pattern, second.attention!)).toBeLessThan(ROUNDING)
  })

  it('of a cached prompt recomputes it from the first query on, and leaves the cache exact', async () => {
    await load()
    const tokens = text(120, 6)
    const request = all({ prompt: [{ start: 100, end: 110 }] })
    const first = await look(tokens, request)
    const again = await look(tokens, request)
    expect(again.ledger).toMatchObject({ submitted: 20, reused: 100, approximate: 0 })
    expect(difference(first.pattern, again.pattern)).toBeLessThan(ROUNDING)
    const { ledger } = await engine.complete({ conversation: ID, tokens, maxTokens: 0 })
    expect(ledger).toMatchObject({ submitted: 1, side: 1, reused: 120, approximate: 0 })
    const lent = await look(tokens, request, { conversation: conversationId('d') })
    expect(lent.ledger).toMatchObject({ submitted: 20, sources: { own: 0, parked: 0, shared: 100 } })
    expect(difference(first.pattern, lent.pattern)).toBeLessThan(ROUNDING)
  })
})

describe('under the contracts', () => {
  it('exact: after edits and restores it is that of a fresh prefill', async () => {
    await load({ ubatch: 64 })
    const base = text(400, 7)
    const hole = { start: 60, end: 220, marker: text(9, 8) }
    const there = folded(base, [hole])
    const request = all({ prompt: [{ start: 200, end: there.tokens.length }], generated: true })
    await look(base, all({ prompt: [{ start: 10, end: 20 }] }))
    await look(text(300, 9), all({ generated: true }), { maxTokens: 3, conversation: conversationId('between') })
    const edited = await look(there.tokens, request, { ...there.shown, terms: EXACT, maxTokens: 3 })
    await look(base, all({ prompt: [{ start: 390, end: 400 }] }), { terms: EXACT })
    const after = await look(there.tokens, request, { ...there.shown, terms: EXACT, maxTokens: 3 })
    await load({ ubatch: 64 })
    const fresh = await look(there.tokens, request, { maxTokens: 3 })
    expect(difference(fresh.pattern, edited.pattern)).toBeLessThan(ROUNDING)
    expect(difference(fresh.pattern, after.pattern)).toBeLessThan(ROUNDING)
    const tokens = Int32Array.from([...there.tokens, ...edited.tokens])
    expectByHand(edited.pattern, new FirstLayer(await tinyModel()), tokens, counting(tokens.length))
  })

  it.each(['splice', 'blend'] as const)(
    '%s: hidden text has no place, marker and suffix keep their positions',
    async (contract) => {
      await load({ ubatch: 64 })
      const base = text(400, 10)
      const layer = new FirstLayer(await tinyModel())
      await engine.complete({ conversation: ID, tokens: base, maxTokens: 0 })
      await engine.complete({ conversation: conversationId('between'), tokens: text(200, 11), maxTokens: 2 })
      const holes = [
        { start: 40, end: 140, marker: text(9, 12) },
        { start: 200, end: 300, marker: text(30, 13) },
      ]
      const first = contract === 'blend' ? 12 : 0
      const there = folded(base, holes, first)
      const size = there.tokens.length
      const terms = { contract, blend: { first: 12 } }
      const {
        pattern,
        tokens: answer,
        ledger,
      } = await look(there.tokens, all({ prompt: [{ start: size - 20, end: size }], generated: true }), {
        ...there.shown,
        terms,
        maxTokens: 4,
      })
      expect(ledger).toMatchObject({ contract, fallback: null })
      expect(ledger.approximate).toBeGreaterThan(0)
      const positions = [...there.positions, 400, 401, 402, 403]
      expect(pattern.rows!.shape[3]).toBe(size + 3)
      expectByHand(pattern, layer, Int32Array.from([...there.tokens, ...answer]), positions)
      // Tokens of the second marker are queries while they are computed in the middle of the live sequence. The text after the marker
      // follows without a gap.
      const second = folded(base, [holes[0]!, { ...holes[1]!, marker: text(25, 14) }], first)
      const marker = holes[0]!.marker.length + 40 + 60
      const inside = await look(second.tokens, all({ prompt: [{ start: marker + 3, end: marker + 30 }] }), {
        ...second.shown,
        terms,
      })
      const last = second.positions[marker + 24]!
      const closed = second.positions.map((position, place) => (place < marker + 25 ? position : last + place - marker - 24))
      expectByHand(inside.pattern, layer, second.tokens, closed)
    },
  )

  it('splice: a random history of folds and restores, beside another conversation', async () => {
    await load({ ubatch: 48, cells: 1024, hostBytes: 2 ** 24 })
    const layer = new FirstLayer(await tinyModel())
    const random = new Random(1)
    const bases = [text(260, 20), text(260, 21)]
    const conversations = [conversationId('one'), conversationId('two')]
    for (const [at, tokens] of bases.entries()) await engine.complete({ conversation: conversations[at]!, tokens, maxTokens: 0 })
    let spliced = 0
    for (let round = 0; round < 24; round++) {
      const which = random.below(2)
      const holes: Hole[] = []
      for (let at = 5 + random.below(60); at < 200; at += 10 + random.below(80)) {
        const length = 8 + random.below(40)
        if (at + length > 230) break
        holes.push({ start: at, end: at + length, marker: text(1 + random.below(8), random.below(3)) })
        at += length
      }
      const there = folded(bases[which]!, holes)
      const size = there.tokens.length
      const { pattern, ledger } = await look(there.tokens, all({ prompt: [{ start: size - 4, end: size }] }), {
        ...there.shown,
        conversation: conversations[which]!,
        terms: SPLICE,
      })
      const kept = ledger.contract === 'splice'
      if (kept) spliced++
      expectByHand(pattern, layer, there.tokens, kept ? there.positions : counting(size))
    }
    expect(spliced).toBeGreaterThan(12)
  })

  it('after closed gaps, compaction and a reload from the host tier', async () => {
    await load({ cells: 512, hostBytes: 2 ** 24, contract: 'splice' })
    const layer = new FirstLayer(await tinyModel())
    const base = text(200, 30)
    const there = folded(base, [{ start: 40, end: 120, marker: text(5, 31) }])
    const size = there.tokens.length
    const request = all({ prompt: [{ start: size - 6, end: size }] })
    const show = () => look(there.tokens, request, { ...there.shown, terms: SPLICE })
    await engine.complete({ conversation: ID, tokens: base, maxTokens: 0 })
    await show()
    // Another conversation pushes it out, and the next step reloads it.
    await engine.complete({ conversation: conversationId('big'), tokens: text(470, 32), maxTokens: 0 })
    expect(engine.cacheTotals.tiers.host.sequences).toBeGreaterThan(0)
    const back = await show()
    expect(back.ledger.tiers.host).toBeGreaterThan(0)
    expectByHand(back.pattern, layer, there.tokens, there.positions)
    engine.forget(conversationId('big'))
    expect(await engine.compact(ID)).toBe(size)
    expectByHand((await show()).pattern, layer, there.tokens, there.positions)
    // The parked version shares cells with the conversation. One more step leaves only the conversation, which can then be moved.
    await engine.complete({ conversation: ID, ...there.shown, terms: SPLICE, maxTokens: 0 })
    expect(await engine.closeGaps(ID)).toBe(75)
    // The keys are rotated once more, which rounds them.
    expectByHand((await show()).pattern, layer, there.tokens, counting(size), 1e-4)
  })
})

describe('other models', () => {
  it('a sliding window has no weight outside, and is the same whatever happened before', async () => {
    const path = await other('gemma3')
    await load({ ubatch: 64, sequences: 6 }, path)
    const tokens = text(250, 40)
    const request = all({
      prompt: [
        { start: 60, end: 70 },
        { start: 200, end: 250 },
      ],
      generated: true,
    })
    const { pattern } = await look(tokens, request, { maxTokens: 4 })
    expectConsistent(pattern, request)
    pattern.queries.forEach((query, at) => {
      const row = rowOf(pattern, 0, 1, at)
      const first = Math.max(0, query - WINDOW + 1)
      expect(row.subarray(0, first).every((weight) => weight === 0)).toBe(true)
      expect(row.subarray(first, query + 1).every((weight) => weight > 0)).toBe(true)
      expect(
        rowOf(pattern, 1, 1, at)
          .subarray(0, query + 1)
          .every((weight) => weight > 0),
      ).toBe(true)
    })
    // The text was folded and restored, and has its cells between those of another conversation.
    const there = folded(tokens, [{ start: 30, end: 100, marker: text(6, 41) }])
    const spliced = await look(there.tokens, all({ prompt: [{ start: 60, end: 70 }] }), { ...there.shown, terms: SPLICE })
    expect(spliced.ledger.contract).toBe('splice')
    // The window counts positions, including hidden ones.
    spliced.pattern.queries.forEach((query, at) => {
      const row = rowOf(spliced.pattern, 0, 1, at)
      const inside = there.positions.map((position, place) => place <= query && position > there.positions[query]! - WINDOW)
      expect([...row].map((weight) => weight > 0)).toEqual(inside.slice(0, row.length))
    })
    await engine.complete({ conversation: conversationId('between'), tokens: text(200, 42), maxTokens: 2 })
    await look(tokens, all({ prompt: [{ start: 20, end: 30 }] }), { terms: EXACT })
    expect(difference(pattern, (await look(tokens, request, { maxTokens: 4 })).pattern)).toBeLessThan(ROUNDING)
    // Now the cache forgets cells outside the window.
    await load({ ubatch: 64, sequences: 6, fullSlidingWindow: false }, path)
    expect(difference(pattern, (await look(tokens, request, { maxTokens: 4 })).pattern)).toBeLessThan(ROUNDING)
  })

  it.each(['jamba', 'lfm2'] as const)('%s: recurrent layers are skipped and named', async (architecture) => {
    const path = await other(architecture)
    await load({ ubatch: 64 }, path)
    const tokens = text(150, 43)
    const request = all({
      prompt: [
        { start: 20, end: 40 },
        { start: 140, end: 150 },
      ],
      generated: true,
    })
    const { pattern } = await look(tokens, request, { maxTokens: 4 })
    expect(pattern.layers).toEqual([1])
    expect(pattern.skipped).toEqual([{ layer: 0, reason: `${architecture} keeps a recurrent state there` }])
    expectConsistent(pattern, request)
    await load({ ubatch: 16 }, path)
    const busy = engine.complete({ conversation: conversationId('busy'), tokens: text(90, 44), maxTokens: 30 })
    const beside = await engine.complete({ conversation: ID, tokens, maxTokens: 4, attention: request })
    await busy
    expect(difference(pattern, beside.attention!)).toBeLessThan(ROUNDING)
    expect(difference(pattern, (await look(tokens, request, { maxTokens: 4 })).pattern)).toBeLessThan(ROUNDING)
    await refused('attention/bad-request', { ...request, layers: [0] }, tokens, 'recurrent state')
  })

  it('a model with several position dimensions has a pattern', async () => {
    await load({ ubatch: 64 }, await other('qwen2vl'))
    const request = all({ prompt: [{ start: 90, end: 100 }], generated: true })
    const { pattern } = await look(text(100, 45), request, { maxTokens: 3 })
    expectConsistent(pattern, request)
  })

  it('a recurrent model refuses capture when it is loaded', async () => {
    const path = await other('mamba')
    await expect(LlamaEngine.load(native, path, SETTINGS)).rejects.toMatchObject({ code: 'attention/unavailable' })
  })
})

async function refused(
  code: ErrorCode,
  attention: AttentionRequest,
  tokens: Int32Array,
  says: string,
  maxTokens = 0,
): Promise<void> {
  const before = engine.submitted
  const error = await engine
    .complete({ conversation: conversationId('refused'), tokens, maxTokens, attention })
    .catch((thrown: unknown) => thrown)
  expect(error).toBeInstanceOf(KvfoldError)
  expect(error).toMatchObject({ code })
  expect((error as Error).message).toContain(says)
  expect(engine.submitted).toBe(before)
}

describe('refusals before anything is computed', () => {
  const good: AttentionRequest = { queries: { prompt: [{ start: 5, end: 6 }] }, keys: [] }

  it('of layers, heads and tokens that do not exist, and of too large a result', async () => {
    await load()
    const tokens = text(50, 50)
    const bad = (change: Partial<AttentionRequest>, says: string, maxTokens = 0) =>
      refused('attention/bad-request', { ...good, ...change }, tokens, says, maxTokens)
    await bad({ layers: [2] }, 'layer 2 does not exist; the model has layers 0 to 1')
    await bad({ layers: [-1] }, 'layer -1')
    await bad({ layers: [] }, 'no layers')
    await bad({ heads: [4] }, 'heads 0 to 3')
    await bad({ heads: [] }, 'no heads')
    await bad({ queries: {} }, 'no token looks')
    await bad({ queries: { prompt: [{ start: 3, end: 3 }] } }, 'no token looks')
    await bad({ queries: { generated: true } }, 'maxTokens is 0')
    await bad({ queries: { prompt: [{ start: 40, end: 51 }] } }, 'the 50 shown tokens')
    await bad({ keys: [{ name: 'far', tokens: [{ start: 0, end: 51 }] }] }, "key set 'far'")
    await bad(
      {
        keys: [
          {
            name: 'twice',
            tokens: [
              { start: 0, end: 5 },
              { start: 4, end: 6 },
            ],
          },
        ],
      },
      'overlap',
    )
    await bad({ top: -1 }, 'top is -1')
    await bad({ rows: true, maxRowBytes: 2 * 4 * 50 * 4 - 1 }, 'maxRowBytes is 1599')
    await bad({ rows: true, queries: { generated: true }, maxRowBytes: 2 ** 20 }, 'maxTokens', 400)
    // This is the largest allowed request.
    await look(tokens, {
      ...good,
      rows: true,
      maxRowBytes: 2 * 4 * 50 * 4,
      keys: [{ name: 'all', tokens: [{ start: 0, end: 50 }] }],
    })
  })

  it('of an engine that was loaded without capture, or with flash attention', async () => {
    await load({ attention: false, flashAttention: 'off' })
    await refused('attention/unavailable', good, text(50, 51), 'Load it with')
    await expect(LlamaEngine.load(native, await tinyModel(), { ...SETTINGS, flashAttention: 'on' })).rejects.toMatchObject({
      code: 'native/bad-argument',
    })
  })

  it('a cancelled step has no pattern', async () => {
    await load()
    const stop = new AbortController()
    const { finish, attention } = await engine.complete({
      conversation: ID,
      tokens: text(50, 52),
      maxTokens: 400,
      attention: { ...good, queries: { generated: true } },
      signal: stop.signal,
      onText: () => {
        stop.abort()
      },
    })
    expect(finish).toBe('cancelled')
    expect(attention).toBeUndefined()
  })
})

describe('the predicted cost', () => {
  it('is that of the arrays', async () => {
    await load()
    const { pattern } = await look(text(80, 60), all({ prompt: [{ start: 30, end: 50 }] }))
    const cost = attentionPlan({ layers: 2, heads: 4, cells: 2048, ubatch: 512 }, { queries: 20, sets: 3, top: 4, places: 80 })
    const bytes = (...arrays: readonly { readonly data: ArrayBufferView }[]) =>
      arrays.reduce((sum, { data }) => sum + data.byteLength, 0)
    expect(cost).toMatchObject({
      mass: bytes(pattern.mass),
      figures: bytes(pattern.total, pattern.entropy, pattern.sink),
      top: bytes(pattern.top!.places, pattern.top!.weights),
      rows: bytes(pattern.rows!),
    })
    expect(cost.pattern).toBe(cost.mass + cost.figures + cost.top + cost.rows)
  })

  it('of an 8B model at 64K does not grow with its context', () => {
    const shape = { layers: 32, heads: 32, cells: 65_536, ubatch: 512 }
    const at64 = attentionPlan(shape, { queries: 300, sets: 132 })
    const at8 = attentionPlan({ ...shape, cells: 8192 }, { queries: 300, sets: 132 })
    expect(at64.pattern).toBe(at8.pattern)
    // As kv-mechanics.md says, one token takes 268 MB unreduced.
    expect(attentionPlan(shape, { queries: 1, sets: 0 }).unreduced).toBe(268_435_456)
  })
})
