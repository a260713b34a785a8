import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { span } from '../../../src/runtime/core/span.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { Batch, Native, NativeContext, NativeModel } from '../../../src/runtime/native/types.js'
import { ON_GPU, TEST_GPU } from '../../support/device.js'
import { tinyModel } from '../../support/models.js'
import { batchOf, feed, refused, seq, someTokens } from './support/fixture.js'

let native: Native
let model: NativeModel
let context: NativeContext

beforeAll(async () => {
  native = await openNative({ gpu: TEST_GPU })
  model = await native.loadModel(await tinyModel())
})
beforeEach(async () => {
  context = await model.createContext({ cells: 512, sequences: 4, batch: 256, ubatch: 64, threads: 1 })
})
afterEach(() => context.dispose())
afterAll(() => model.dispose())

const argmax = (values: Float32Array): number =>
  values.reduce((best, value, index) => (value > (values[best] ?? 0) ? index : best), 0)

describe('decode', () => {
  test('the same tokens give the same logits, other tokens give others', async () => {
    const tokens = someTokens(100)
    await feed(context, tokens, 0, 0)
    const first = context.logits(99)
    expect(first).toHaveLength(model.info.vocabulary)
    context.clear()
    await feed(context, tokens, 0, 0)
    expect(context.logits(99)).toEqual(first)
    context.clear()
    await feed(context, someTokens(100, 1), 0, 0)
    const other = context.logits(99)
    expect(Math.max(...other.map((value, index) => Math.abs(value - (first[index] ?? 0))))).toBeGreaterThan(0.1)
  })

  test('shapes of qwen2 decode, too', async () => {
    const qwen = await native.loadModel(await tinyModel({ architecture: 'qwen2', type: 'f16' }))
    expect(qwen.info.rope).toBe('neox')
    const own = await qwen.createContext({ cells: 256, threads: 1 })
    await feed(own, someTokens(10))
    expect(own.logits(9).every(Number.isFinite)).toBe(true)
    await qwen.dispose()
  })

  test('logits are read by batch index, for every token that requested them', async () => {
    await context.decode(batchOf(someTokens(20), 0, 0, 'all'))
    const all = Array.from({ length: 20 }, (_, index) => argmax(context.logits(index)))
    context.clear()
    for (const [index, token] of someTokens(20).entries()) {
      await feed(context, [token], index)
      expect(argmax(context.logits(0))).toBe(all[index])
    }
  })

  test('reading logits that were not requested is refused', async () => {
    await refused('native/bad-argument', () => context.logits(0))
    await feed(context, someTokens(8))
    await refused('native/bad-argument', () => context.logits(6))
    await refused('native/bad-argument', () => context.logits(8))
    await refused('native/bad-argument', () => context.logits(-1))
    context.clear()
    await refused('native/bad-argument', () => context.logits(7))
  })

  test('several sequences in one batch do not see each other', async () => {
    const [one, two] = [someTokens(12, 1), someTokens(9, 2)]
    await feed(context, one, 0, 0)
    const alone = context.logits(11)
    context.clear()
    const batch: Batch = {
      tokens: Int32Array.of(...one, ...two),
      positions: Int32Array.of(...one.keys(), ...two.keys()),
      sequences: Int32Array.of(...one.map(() => 1), ...two.map(() => 3)),
      outputs: new Uint8Array(21).fill(1),
    }
    expect(await context.decode(batch)).toBe('done')
    const together = context.logits(11)
    expect(Math.max(...together.map((value, index) => Math.abs(value - (alone[index] ?? 0))))).toBeLessThan(0.05)
    expect(context.positions(seq(1))).toEqual({ min: 0, max: 11 })
    expect(context.positions(seq(3))).toEqual({ min: 0, max: 8 })
    expect(context.positions(seq(0))).toBeNull()
  })

  test('submitted tokens are counted; a decode without room changes nothing', async () => {
    await feed(context, someTokens(200), 0, 0)
    await feed(context, someTokens(200), 0, 1)
    expect(context.submitted).toBe(400)
    expect(await context.decode(batchOf(someTokens(113), 0, 2))).toBe('no-room')
    expect(context.submitted).toBe(400)
    expect(context.positions(seq(2))).toBeNull()
    await feed(context, someTokens(112), 0, 2)
    expect(context.submitted).toBe(512)
  })

  test('the caller may reuse the arrays as soon as decode was called', async () => {
    const tokens = someTokens(50)
    const batch = batchOf(tokens)
    const running = context.decode(batch)
    batch.tokens.fill(1)
    batch.outputs.fill(0)
    expect(await running).toBe('done')
    const logits = context.logits(49)
    context.clear()
    await feed(context, tokens)
    expect(context.logits(49)).toEqual(logits)
  })

  const good = batchOf(someTokens(4))
  test.each<[string, Partial<Batch>]>([
    [
      'no tokens',
      { tokens: new Int32Array(), positions: new Int32Array(), sequences: new Int32Array(), outputs: new Uint8Array() },
    ],
    ['more tokens than a batch', batchOf(someTokens(257))],
    ['arrays of different lengths', { positions: Int32Array.of(0) }],
    ['a token below the vocabulary', { tokens: Int32Array.of(1, 2, -3, 4) }],
    ['a token beyond the vocabulary', { tokens: Int32Array.of(1, 2, 400, 4) }],
    ['a negative sequence', { sequences: Int32Array.of(0, 0, -1, 0) }],
    ['a sequence that does not exist', { sequences: Int32Array.of(4, 4, 4, 4) }],
    ['a start beyond the end', { positions: Int32Array.of(1, 2, 3, 4) }],
    ['a negative position', { positions: Int32Array.of(-1, 0, 1, 2) }],
    ['a gap', { positions: Int32Array.of(0, 1, 3, 4) }],
    ['a repeated position', { positions: Int32Array.of(0, 1, 1, 2) }],
    ['positions out of order', { positions: Int32Array.of(1, 0, 2, 3) }],
  ])('refuses %s', async (_, change) => {
    await refused('native/bad-argument', () => context.decode({ ...good, ...change }))
    expect(context.positions(seq(0))).toBeNull()
    expect(context.submitted).toBe(0)
    await feed(context, good.tokens)
    expect(context.submitted).toBe(4)
  })
})

describe('abort', () => {
  test('ends a prefill early, and the cache continues from there', { timeout: 120_000 }, async () => {
    // A GPU stops only between ubatches, and is quick, so it gets many small ones.
    const shape = ON_GPU ? {} : { embedding: 512, heads: 8, kvHeads: 8, feedForward: 2048, layers: 4 }
    const large = await native.loadModel(await tinyModel(shape))
    const own = await large.createContext({ cells: 4096, batch: 4096, ubatch: ON_GPU ? 8 : 128, threads: 1, sequences: 2 })
    const tokens = someTokens(4096)
    const running = own.decode(batchOf(tokens))
    setTimeout(
      () => {
        own.abort()
      },
      ON_GPU ? 20 : 700,
    )
    expect(await running).toBe('aborted')
    const entered = (own.positions(seq(0))?.max ?? -1) + 1
    expect(entered).toBeLessThan(4096)
    expect(own.submitted).toBe(entered)
    expect(own.readback()).toHaveLength(entered)
    await refused('native/bad-argument', () => own.logits(4095))
    await feed(own, tokens.subarray(entered, entered + 16), entered)
    expect(own.submitted).toBe(entered + 16)
    const resumed = own.logits(15)
    await feed(own, tokens.subarray(0, entered + 16).slice(0, 4096), 0, 1)
    const whole = own.logits(entered + 15)
    expect(Math.max(...whole.map((value, index) => Math.abs(value - (resumed[index] ?? 0))))).toBeLessThan(0.1)
    await large.dispose()
  })

  test('turns no key twice: the first decode after a shift runs to its end', async () => {
    // Its keys take long enough to turn for the stop to come meanwhile.
    const large = await native.loadModel(await tinyModel({ embedding: 512, heads: 8, kvHeads: 8, layers: 4 }))
    const own = await large.createContext({ cells: 8192, threads: 1 })
    const tokens = someTokens(100)
    const next = async (stop: boolean) => {
      own.clear()
      await feed(own, tokens)
      own.shift(seq(0), span(50, 100), 5)
      const running = own.decode(batchOf([7], 105))
      if (stop) own.abort()
      if ((await running) !== 'done') await feed(own, [7], 105)
      return own.logits(0)
    }
    expect(await next(true)).toEqual(await next(false))
    await large.dispose()
  })

  test('does nothing while idle', async () => {
    context.abort()
    await feed(context, someTokens(4))
    expect(context.submitted).toBe(4)
  })
})
