import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { openNative } from '../../../src/runtime/native/binding.js'
import {
  CHATML_TEMPLATE,
  randomTensor,
  SMALLEST_VOCABULARY,
  synthesizeModel,
  toHalf,
} from '../../../src/runtime/native/synthetic.js'
import type { Native } from '../../../src/runtime/native/types.js'
import { TINY } from '../../support/models.js'
import { feed, refused, someTokens } from './support/fixture.js'

let native: Native
let folder: string

beforeAll(async () => {
  native = await openNative({ gpu: 'cpu' })
  folder = mkdtempSync(join(tmpdir(), 'kvfold-synthetic-'))
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})

describe('a synthetic model', () => {
  test('is the same for the same seed, and another for another seed', async () => {
    const [a, b, c] = ['a', 'b', 'c'].map((name) => join(folder, name)) as [string, string, string]
    await synthesizeModel(a, TINY)
    await synthesizeModel(b, TINY)
    await synthesizeModel(c, { ...TINY, seed: 2 })
    expect(readFileSync(a).equals(readFileSync(b))).toBe(true)
    expect(readFileSync(a).equals(readFileSync(c))).toBe(false)
    expect(readdirSync(folder).sort()).toEqual(['a', 'b', 'c'])
  })

  test.each([
    { ...TINY, layers: 3, embedding: 96, heads: 6, kvHeads: 3, feedForward: 200, vocabulary: SMALLEST_VOCABULARY, context: 777 },
    { ...TINY, architecture: 'qwen2', type: 'f16', vocabulary: 5000, kvHeads: 1, ropeBase: 1e6 } as const,
  ])('has the shape it was given: $architecture $vocabulary', async (shape) => {
    const path = join(folder, 'shape.gguf')
    await synthesizeModel(path, shape)
    const model = await native.loadModel(path)
    const { architecture, layers, embedding, heads, kvHeads, vocabulary, context: trainedContext } = shape
    expect(model.info).toMatchObject({
      architecture,
      layers,
      embedding,
      heads,
      kvHeads,
      vocabulary,
      trainedContext,
      vocabType: 'bpe',
    })
    expect(model.info.chatTemplate).toBe(CHATML_TEMPLATE)
    const context = await model.createContext({ cells: 256, threads: 1 })
    await feed(context, someTokens(50))
    const logits = context.logits(49)
    const deviation = Math.sqrt(logits.reduce((sum, logit) => sum + logit * logit, 0) / logits.length)
    expect(deviation).toBeGreaterThan(1)
    expect(deviation).toBeLessThan(6)
    await model.dispose()
  })

  test.each([
    { heads: 3 },
    { embedding: 36, heads: 4 },
    { kvHeads: 3 },
    { vocabulary: 260 },
    { layers: 0 },
    { ropeBase: 0 },
    { context: 1.5 },
  ])('refuses %o', async (change) => {
    await refused('native/bad-argument', () => synthesizeModel(join(folder, 'refused.gguf'), { ...TINY, ...change }))
    expect(readdirSync(folder)).not.toContain('refused.gguf')
  })

  test('leaves no file when it cannot write', async () => {
    await expect(synthesizeModel(join(folder, 'missing', 'x.gguf'), TINY)).rejects.toMatchObject({ code: 'ENOENT' })
  })
})

describe('random weights', () => {
  test('are normally distributed', () => {
    const tensor = randomTensor({ name: 'w', shape: [1000, 300], type: 'f32', mean: 1, deviation: 2, seed: 5 })
    const values = [...tensor.chunks()].flatMap((chunk) => [...new Float32Array(chunk.buffer)])
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length
    const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length
    expect(values).toHaveLength(300_000)
    expect(mean).toBeCloseTo(1, 1)
    expect(Math.sqrt(variance)).toBeCloseTo(2, 1)
    expect(values.filter((value) => value < 1 - 2 * 1.96).length / values.length).toBeCloseTo(0.025, 2)
  })

  test('half precision rounds to the nearest', () => {
    const toNumber = (bits: number): number => {
      const sign = bits & 0x8000 ? -1 : 1
      const exponent = (bits >> 10) & 31
      const fraction = bits & 0x3ff
      if (exponent === 31) return sign * (fraction ? NaN : Infinity)
      return sign * (exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15))
    }
    for (let bits = 0; bits < 0x10000; bits++) {
      const value = toNumber(bits)
      if (!Number.isNaN(value)) expect(toHalf(value)).toBe(bits)
    }
    fc.assert(
      fc.property(fc.float({ min: -65000, max: 65000, noNaN: true }), (value) => {
        const bits = toHalf(value)
        const error = Math.abs(toNumber(bits) - value)
        for (const other of [bits - 1, bits + 1])
          if (other >= 0 && (other & 0x7c00) !== 0x7c00)
            expect(error).toBeLessThanOrEqual(Math.abs(toNumber(other & 0xffff) - value))
      }),
    )
  })
})
