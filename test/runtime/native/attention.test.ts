/** Tests the attention tap of a context: the weights it reduces, the calls it refuses, and that a failed capture harms no decode. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { CaptureOptions, ContextOptions, NativeContext, NativeModel, Watched } from '../../../src/runtime/native/types.js'
import { TEST_GPU } from '../../support/device.js'
import { tinyModel } from '../../support/models.js'
import { batchOf, feed, refused, seq, someTokens } from './support/fixture.js'

const SETTINGS: ContextOptions = { cells: 512, sequences: 4, threads: 1, batch: 128, ubatch: 32, attention: true }
const OPTIONS: CaptureOptions = { layers: [0, 1], heads: [0, 3], atoms: 2, rows: true }

let model: NativeModel

beforeAll(async () => {
  model = await (await openNative({ gpu: TEST_GPU })).loadModel(await tinyModel())
})
afterAll(() => model.dispose())

/** A capture of the last of `size` tokens, over a sequence of `count` tokens in all. */
function watched(context: NativeContext, size: number, count: number, change: Partial<Watched> = {}, options = OPTIONS): Watched {
  return {
    capture: context.createCapture(options),
    sequence: seq(0),
    queries: Int32Array.of(size - 1),
    positions: Int32Array.from({ length: count }, (_, place) => place),
    atoms: Int32Array.from({ length: count }, (_, place) => (place < 10 ? 0 : place < 20 ? 1 : -1)),
    ...change,
  }
}

describe('a context that captures', () => {
  it('knows the heads of its layers, leaves no trace of its probe, and has no flash attention', async () => {
    const context = await model.createContext(SETTINGS)
    expect(context.attention).toEqual([4, 4])
    expect(context.flashAttention).toBe(false)
    expect(context.submitted).toBe(0)
    expect(context.positions(seq(0))).toBeNull()
    expect(context.readback()).toEqual([])
    await context.dispose()
    await refused('native/disposed', () => context.createCapture(OPTIONS))
  })

  it('reduces rows of two sequences in one batch, each by its own cells', async () => {
    const context = await model.createContext(SETTINGS)
    await feed(context, someTokens(40, 1))
    await feed(context, someTokens(30, 2), 0, 1)
    // A gap that the other sequence fills, so its tokens have cells between those of the first.
    context.untag(seq(0), { start: 10, end: 25 })
    await feed(context, someTokens(20, 3), 30, 1)
    const [a, b] = [someTokens(3, 4), someTokens(2, 5)]
    const batch = {
      tokens: Int32Array.of(...a, ...b),
      positions: Int32Array.of(40, 41, 42, 50, 51),
      sequences: Int32Array.of(0, 0, 0, 1, 1),
      outputs: new Uint8Array(5),
    }
    const left = Array.from({ length: 43 }, (_, position) => position).filter((position) => position < 10 || position >= 25)
    const first = watched(context, 3, 0, {
      queries: Int32Array.of(0, 2),
      positions: Int32Array.from(left),
      atoms: new Int32Array(5),
    })
    const second = watched(context, 5, 52, { sequence: seq(1), queries: Int32Array.of(4) })
    expect(await context.decode(batch, [first, second])).toBe('done')
    const one = first.capture.take()
    const two = second.capture.take()
    expect(one.rows.length).toBe(2 * 2 * 2 * left.length)
    expect(two.rows.length).toBe(2 * 2 * 1 * 52)
    for (const total of [...one.total, ...two.total]) expect(Math.abs(total - 1)).toBeLessThan(1e-5)
    const sum = (values: Float32Array) => values.reduce((all, value) => all + value, 0)
    for (let row = 0; row < 8; row++) {
      expect(one.mass[2 * row]).toBeCloseTo(sum(one.rows.subarray(row * left.length, row * left.length + 5)), 5)
      expect(one.mass[2 * row + 1]).toBe(0)
    }
    for (let row = 0; row < 4; row++)
      expect(two.mass[2 * row + 1]).toBeCloseTo(sum(two.rows.subarray(row * 52 + 10, row * 52 + 20)), 5)
    await context.dispose()
  })

  it('reports a token that sees an unknown position, and the decode is unharmed', async () => {
    const logits = []
    for (const spoilt of [false, true]) {
      const context = await model.createContext(SETTINGS)
      await feed(context, someTokens(40, 1))
      const tokens = someTokens(5, 6)
      const hidden = Int32Array.from({ length: 44 }, (_, place) => (place < 7 ? place : place + 1))
      const watching = watched(context, 5, 45, spoilt ? { positions: hidden, atoms: new Int32Array(9) } : {})
      expect(await context.decode(batchOf(tokens, 40), [watching])).toBe('done')
      if (spoilt) {
        const error = await refused('attention/unavailable', () => watching.capture.take())
        expect(error.message).toContain('position 7')
      } else watching.capture.take()
      logits.push(context.logits(4))
      // The context continues, and captures again.
      const next = watched(context, 1, 46, { capture: watching.capture })
      expect(await context.decode(batchOf(someTokens(1, 7), 45), [next])).toBe('done')
      expect(next.capture.take().total.every((total) => Math.abs(total - 1) < 1e-5)).toBe(true)
      await context.dispose()
    }
    expect(logits[1]).toEqual(logits[0])
  })

  it('finds its cells after a sequence was saved and loaded into others', async () => {
    const context = await model.createContext({ ...SETTINGS, keyType: 'f32', valueType: 'f32' })
    await feed(context, someTokens(60, 1))
    const look = async (sequence: number) => {
      const size = { ...batchOf(someTokens(2, 2), 60, sequence) }
      const watching = watched(context, 2, 62, { sequence: seq(sequence) })
      expect(await context.decode(size, [watching])).toBe('done')
      return watching.capture.take().rows
    }
    const state = context.saveSequence(seq(0))
    const before = await look(0)
    await feed(context, someTokens(17, 3), 0, 2)
    context.untag(seq(0), { start: 0, end: 500 })
    // The first cells are free. The state goes into them and into cells after the other sequence.
    await feed(context, someTokens(11, 4), 0, 3)
    expect(context.loadSequence(seq(1), state)).toBe(true)
    const after = await look(1)
    before.forEach((weight, at) => {
      expect(Math.abs(weight - after[at]!)).toBeLessThan(1e-5)
    })
    await context.dispose()
  })

  it('accepts a batch size below the number of sequences', async () => {
    const context = await model.createContext({ ...SETTINGS, sequences: 16, batch: 2, ubatch: 2 })
    await feed(context, someTokens(2, 1))
    await context.dispose()
  })
})

describe('refusals', () => {
  it('of arguments that llama.cpp or the tap would misread', async () => {
    const context = await model.createContext(SETTINGS)
    const neighbour = await model.createContext(SETTINGS)
    const without = await model.createContext({ ...SETTINGS, attention: false })
    expect(without.attention).toBeNull()
    await refused('attention/unavailable', () => without.createCapture(OPTIONS))
    const bad = (change: Partial<CaptureOptions>) =>
      refused('native/bad-argument', () => context.createCapture({ ...OPTIONS, ...change }))
    await bad({ layers: [2] })
    await bad({ layers: [1, 0] })
    await bad({ layers: [] })
    await bad({ heads: [4] })
    await bad({ heads: [0.5] })
    await bad({ heads: [] })
    await bad({ atoms: -1 })
    await bad({ top: 1025 })
    const batch = batchOf(someTokens(5, 1))
    const refuse = (change: Partial<Watched>) =>
      refused('native/bad-argument', () => context.decode(batch, [watched(context, 5, 5, change)]))
    await refuse({ capture: neighbour.createCapture(OPTIONS) })
    await refuse({ queries: Int32Array.of(5) })
    await refuse({ queries: Int32Array.of(3, 2) })
    await refuse({ sequence: seq(1) })
    await refuse({ positions: Int32Array.of(0, 1, 1, 3, 4) })
    await refuse({ positions: Int32Array.of(0, 1, 2, 3) })
    await refuse({ atoms: Int32Array.of(2) })
    await refuse({ atoms: new Int32Array(6) })
    await refused('native/bad-argument', () => context.createCapture(OPTIONS).take())
    // Nothing was decoded so far; a correct capture is.
    expect(context.positions(seq(0))).toBeNull()
    const good = watched(context, 5, 5)
    const decoding = context.decode(batch, [good])
    await refused('native/bad-argument', () => good.capture.take())
    expect(await decoding).toBe('done')
    good.capture.take()
    await refused('native/bad-argument', () => good.capture.take())
    await refused('native/bad-argument', () => model.createContext({ ...SETTINGS, flashAttention: 'on' }))
    await refused('native/bad-argument', () => model.createContext({ ...SETTINGS, valueType: 'q8_0' }))
    for (const each of [context, neighbour, without]) await each.dispose()
  })
})
