import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { span } from '../../../src/runtime/core/span.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { Native, NativeContext, NativeModel } from '../../../src/runtime/native/types.js'
import { F32, f32, parseGguf, serializeGguf, STRING, text, U32, u32 } from '../../outside/gguf-edit.js'
import { keepsKvMemoryContract, SIZE } from '../kv/kv-memory.contract.js'
import { TEST_GPU } from '../../support/device.js'
import { largestDifference } from '../../support/predictions.js'
import { mambaModel, slidingModel, tinyModel } from '../../support/models.js'
import { batchOf, feed, refused, seq, someTokens } from './support/fixture.js'

let native: Native
let model: NativeModel
let context: NativeContext

beforeAll(async () => {
  native = await openNative({ gpu: TEST_GPU })
  model = await native.loadModel(await tinyModel())
})
beforeEach(async () => {
  context = await model.createContext({ ...SIZE, batch: 64, ubatch: 64, threads: 1 })
})
afterEach(() => context.dispose())
afterAll(() => model.dispose())

describe("llama.cpp's memory", () => {
  keepsKvMemoryContract(() => ({
    memory: context,
    strict: false,
    decode: async (to, start, tokens) => (await context.decode(batchOf(tokens, start, to))) === 'done',
    look: async (of, position, token) => {
      await feed(context, [token], position, of)
      return context.logits(0)
    },
    refused: (call) => refused('native/bad-argument', call),
  }))

  test('a shift moves the positions that later tokens see', async () => {
    await feed(context, someTokens(20), 0, 0)
    context.shift(seq(0), span(10, 20), 5)
    expect(context.positions(seq(0))).toEqual({ min: 0, max: 24 })
    await feed(context, [1], 25, 0)
    expect(context.logits(0).every(Number.isFinite)).toBe(true)
  })
})

describe('models whose state is not a table of cells', () => {
  test('a recurrent model decodes, and its state cannot be cut', async () => {
    const mamba = await native.loadModel(await mambaModel())
    expect(mamba.info).toMatchObject({ recurrent: true, architecture: 'mamba', rope: 'none' })
    const own = await mamba.createContext({ cells: 256, sequences: 4, threads: 1 })
    expect(own.canShift).toBe(false)
    await feed(own, someTokens(20))
    await refused('model/unsupported', () => {
      own.untag(seq(0), span(5, 10))
    })
    await refused('model/unsupported', () => {
      own.untag(seq(0), span(5, 20))
    })
    await refused('model/unsupported', () => {
      own.tag(seq(0), seq(1), span(0, 10))
    })
    await refused('model/unsupported', () => {
      own.shift(seq(0), span(0, 10), 1)
    })
    await refused('model/unsupported', () => own.readback())
    own.tag(seq(0), seq(1), span(0, 20))
    expect(own.positions(seq(1))?.max).toBe(19)
    own.untag(seq(0), span(0, 20))
    expect(own.positions(seq(0))).toBeNull()
    await mamba.dispose()
  })

  test('a sliding window that moved on cannot be cut, unless the full cache was kept', async () => {
    const sliding = await native.loadModel(await slidingModel())
    expect(sliding.info.slidingWindow).toBe(64)
    const short = await sliding.createContext({ cells: 512, sequences: 2, batch: 256, ubatch: 64, threads: 1 })
    await feed(short, someTokens(250))
    await feed(short, someTokens(150), 250)
    expect(short.positions(seq(0))?.min).toBeGreaterThan(0)
    await refused('model/unsupported', () => {
      short.untag(seq(0), span(300, 400))
    })
    await refused('model/unsupported', () => {
      short.tag(seq(0), seq(1), span(0, 100))
    })
    short.untag(seq(0), span(0, 400))
    expect(short.positions(seq(0))).toBeNull()

    const full = await sliding.createContext({ cells: 512, sequences: 2, batch: 256, threads: 1, fullSlidingWindow: true })
    await feed(full, someTokens(250))
    await feed(full, someTokens(50), 250)
    full.untag(seq(0), span(200, 300))
    await feed(full, someTokens(10, 1), 200)
    const edited = full.logits(9)
    await feed(full, [...someTokens(200), ...someTokens(10, 1)], 0, 1)
    expect(largestDifference(edited, full.logits(209))).toBeLessThan(0.2)
    await sliding.dispose()
  })
})

describe('keys that llama.cpp cannot shift correctly are refused', () => {
  const refusesShift = async (own: NativeContext, why: RegExp) => {
    expect(own.canShift).toBe(false)
    await feed(own, someTokens(20))
    const { message } = await refused('model/unsupported', () => {
      own.shift(seq(0), span(10, 20), 5)
    })
    expect(message).toMatch(why)
    await own.dispose()
  }

  // Heads are 32 wide, as q8_0 needs.
  test.each(['bf16', 'q8_0'] as const)('%s keys', async (keyType) => {
    const wide = await native.loadModel(await tinyModel({ embedding: 128 }))
    await refusesShift(
      await wide.createContext({ cells: SIZE.cells, sequences: 2, batch: 64, threads: 1, keyType }),
      new RegExp(keyType),
    )
    await wide.dispose()
  })

  test('keys of a model with YaRN, because a shift of one sequence would scale those of all', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'kvfold-yarn-'))
    const gguf = parseGguf(readFileSync(await tinyModel()))
    gguf.entries.push(
      { key: 'llama.rope.scaling.type', type: STRING, value: text('yarn') },
      { key: 'llama.rope.scaling.factor', type: F32, value: f32(4) },
      { key: 'llama.rope.scaling.original_context_length', type: U32, value: u32(1024) },
    )
    writeFileSync(join(folder, 'yarn.gguf'), serializeGguf(gguf).bytes)
    const yarn = await native.loadModel(join(folder, 'yarn.gguf'))
    await refusesShift(
      await yarn.createContext({ cells: SIZE.cells, sequences: 2, batch: 64, threads: 1 }),
      /rope\.scaling\.type yarn/,
    )
    await yarn.dispose()
    rmSync(folder, { recursive: true })
  })
})

describe('sequence state', () => {
  test('a saved sequence loads into another context and continues the same', async () => {
    await feed(context, someTokens(30), 0, 2)
    const state = context.saveSequence(seq(2))
    await feed(context, [7], 30, 2)
    const expected = context.logits(0)
    const other = await model.createContext({ cells: SIZE.cells, sequences: 2, threads: 1 })
    expect(other.loadSequence(seq(1), state)).toBe(true)
    expect(other.positions(seq(1))).toEqual({ min: 0, max: 29 })
    await feed(other, [7], 30, 1)
    expect(largestDifference(other.logits(0), expected)).toBeLessThan(0.05)
    await refused('native/bad-argument', () => other.loadSequence(seq(1), state))
  })

  test('copied off the event loop is the same bytes, and the context is busy meanwhile', async () => {
    await feed(context, someTokens(30), 0, 2)
    const state = context.saveSequence(seq(2))
    const copying = context.copyOut(seq(2))
    await refused('native/busy', () => context.saveSequence(seq(2)))
    expect(Buffer.compare(await copying, state)).toBe(0)
    const other = await model.createContext({ cells: SIZE.cells, sequences: 2, threads: 1 })
    const loading = other.copyIn(seq(1), state)
    await refused('native/busy', () => other.positions(seq(1)))
    expect(await loading).toBe(true)
    expect(Buffer.compare(other.saveSequence(seq(1)).subarray(500), state.subarray(500))).toBe(0)
    expect(await other.copyIn(seq(0), state.subarray(0, 60))).toBe(false)
    expect(other.positions(seq(0))).toBeNull()
    const last = other.copyOut(seq(1))
    await other.dispose()
    expect(await last).toHaveLength(state.length)
  })

  test('a state keeps its bytes while memory of earlier ones is used again', async () => {
    await feed(context, someTokens(30), 0, 2)
    const kept = context.saveSequence(seq(2))
    const bytes = Buffer.from(kept)
    await feed(context, someTokens(40), 0, 1)
    for (let round = 0; round < 50; round++) await context.copyOut(seq(1))
    expect(Buffer.compare(kept, bytes)).toBe(0)
  })

  test('of another cache is refused, and changes nothing', async () => {
    await feed(context, someTokens(30))
    const state = context.saveSequence(seq(0))
    const transposed = await model.createContext({ cells: SIZE.cells, sequences: 2, threads: 1, flashAttention: 'off' })
    const quantised = await model.createContext({ cells: SIZE.cells, sequences: 2, threads: 1, keyType: 'f32' })
    for (const other of [transposed, quantised]) {
      expect(other.loadSequence(seq(0), state)).toBe(false)
      expect(other.readback()).toEqual([])
    }
  })
})
