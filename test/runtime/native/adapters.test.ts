/**
 * Tests LoRA adapters in the addon: predictions equal those of a model into which the adapter was merged by hand, up to the difference
 * between two fresh prefills; bad files are refused before llama.cpp reads them.
 */
import { copyFileSync, mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { openNative } from '../../../src/runtime/native/binding.js'
import { type GgufTensor, type GgufValue, writeGguf } from '../../../src/runtime/native/gguf-writer.js'
import { randomTensor } from '../../../src/runtime/native/synthetic.js'
import type { AppliedAdapter, Native, NativeAdapter } from '../../../src/runtime/native/types.js'
import { adapterFor, merged } from '../../support/adapters.js'
import { TEST_GPU } from '../../support/device.js'
import { layerNormModel, tinyModel } from '../../support/models.js'
import { freshPrediction, largestDifference } from '../../support/predictions.js'
import { runScript } from './support/fixture.js'

/** With keys and values in f16, a last bit of a product may move a whole step of f16. */
const SETTINGS = { cells: 512, threads: 1, batchThreads: 1, flashAttention: 'off', keyType: 'f32', valueType: 'f32' } as const
/** The noise is the largest of a few differences, which is less than the largest of all. */
const MARGIN = 4
const LENGTHS = [40, 150, 300]

let native: Native
let base: string
let folder: string

beforeAll(async () => {
  native = await openNative({ gpu: TEST_GPU })
  base = await tinyModel()
  folder = mkdtempSync(join(tmpdir(), 'kvfold-adapters-'))
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})

const prompt = (length: number) => Int32Array.from({ length }, (_, at) => (at * 7919 + length) % 380)

/** Returns the predictions after a few prompts: in one batch, and in small ones beside another sequence. */
async function predictions(path: string, files: readonly { readonly path: string; readonly scale: number }[] = []) {
  const model = await native.loadModel(path)
  const applied: AppliedAdapter[] = []
  for (const file of files) applied.push({ adapter: await model.loadAdapter(file.path), scale: file.scale })
  const whole = await model.createContext({ ...SETTINGS, sequences: 1 })
  const chunked = await model.createContext({ ...SETTINGS, sequences: 2, batch: 61, ubatch: 61 })
  for (const context of [whole, chunked]) context.useAdapters(applied)
  const all: { readonly whole: Float32Array; readonly chunked: Float32Array }[] = []
  for (const length of LENGTHS)
    all.push({ whole: await freshPrediction(whole, prompt(length)), chunked: await freshPrediction(chunked, prompt(length), 7) })
  await model.dispose()
  return all
}

const apart = (a: readonly Float32Array[], b: readonly Float32Array[]): number =>
  Math.max(...a.map((each, at) => largestDifference(each, b[at]!)))

describe('a model with adapters', () => {
  it.each([
    ['at scale 1', {}, [1]],
    ['at half the scale', {}, [0.5]],
    ['at a negative scale', { seed: 3 }, [-0.8]],
    ['without alpha', { alpha: null, strength: 0.1 }, [0.7]],
    ['of rank 16', { rank: 16, seed: 5 }, [1]],
    ['of the token embeddings', { tensors: /^token_embd\.weight$/, strength: 0.5 }, [1]],
    ['of the output', { tensors: /^output\.weight$/, strength: 0.5 }, [1]],
    ['two at once', {}, [0.6, -1.2]],
  ] as const)('predicts as one into which they were merged: %s', async (name, options, scales) => {
    const files = await Promise.all(
      scales.map(async (scale, at) => ({ path: await adapterFor(base, `merge-${at}`, { seed: 1 + at, ...options }), scale })),
    )
    const [plain, by, hand] = [await predictions(base), await predictions(base, files), await predictions(merged(base, files))]
    const noise = apart(
      hand.map(({ whole }) => whole),
      hand.map(({ chunked }) => chunked),
    )
    const difference = apart(
      by.map(({ whole }) => whole),
      hand.map(({ whole }) => whole),
    )
    expect(difference, `${name}: the noise of two fresh prefills is ${noise}`).toBeLessThanOrEqual(MARGIN * noise)
    expect(
      apart(
        by.map(({ whole }) => whole),
        plain.map(({ whole }) => whole),
      ),
    ).toBeGreaterThan(100 * MARGIN * noise)
  })

  it('computes the very same without them and at scale 0, also after others were applied', async () => {
    const path = await adapterFor(base, 'zero')
    const model = await native.loadModel(base)
    const adapter = await model.loadAdapter(path)
    const context = await model.createContext({ ...SETTINGS, sequences: 1 })
    const [plain] = await predictions(base)
    const now = () => freshPrediction(context, prompt(LENGTHS[0]!))
    expect(await now()).toEqual(plain!.whole)
    context.useAdapters([{ adapter, scale: 1 }])
    const adapted = await now()
    expect(largestDifference(adapted, plain!.whole)).toBeGreaterThan(0.01)
    context.useAdapters([{ adapter, scale: 0 }])
    expect(await now()).toEqual(plain!.whole)
    context.useAdapters([{ adapter, scale: 1 }])
    expect(await now()).toEqual(adapted)
    context.useAdapters([])
    expect(await now()).toEqual(plain!.whole)
    await model.dispose()
  })
})

describe('the life of an adapter', () => {
  it('is loaded and disposed only while its model has no context', async () => {
    const model = await native.loadModel(base)
    const adapter = await model.loadAdapter(await adapterFor(base, 'life'))
    const context = await model.createContext({ ...SETTINGS, sequences: 1 })
    await expect(model.loadAdapter(await adapterFor(base, 'life'))).rejects.toMatchObject({ code: 'native/busy' })
    expect(() => {
      adapter.dispose()
    }).toThrow(expect.objectContaining({ code: 'native/busy' }))
    await context.dispose()
    adapter.dispose()
    adapter.dispose()
    const next = await model.createContext({ ...SETTINGS, sequences: 1 })
    expect(() => {
      next.useAdapters([{ adapter, scale: 1 }])
    }).toThrow(expect.objectContaining({ code: 'native/disposed' }))
    await model.dispose()
    await expect(model.loadAdapter(base)).rejects.toMatchObject({ code: 'native/disposed' })
  })

  it('may end while its model ends', async () => {
    const large = await tinyModel({ layers: 12, embedding: 256, heads: 8, kvHeads: 8, feedForward: 1024 })
    const adapter = await adapterFor(large, 'together')
    // llama.cpp would end the process that frees an adapter twice.
    const { code, stdout, stderr } = await runScript(`
      import { openNative } from 'kvfold/native/binding'
      const native = await openNative({ gpu: 'cpu' })
      for (let times = 0; times < 60; times++) {
        const model = await native.loadModel(${JSON.stringify(large)})
        const adapters = []
        for (let each = 0; each < 3; each++) adapters.push(await model.loadAdapter(${JSON.stringify(adapter)}))
        const gone = model.dispose()
        if (times % 3 === 0) await new Promise((resolve) => setImmediate(resolve))
        for (let turns = times % 7; turns > 0; turns--) await null
        for (const adapter of adapters) adapter.dispose()
        await gone
      }
      console.log('done')`)
    expect({ code, stdout, stderr }).toEqual({ code: 0, stdout: 'done\n', stderr: '' })
  })

  it('lets no context begin while it is loaded', async () => {
    const model = await native.loadModel(base)
    const loading = model.loadAdapter(await adapterFor(base, 'life'))
    await expect(model.createContext({ ...SETTINGS, sequences: 1 })).rejects.toMatchObject({ code: 'native/busy' })
    await loading
    await expect(model.loadAdapter('no-such-file')).rejects.toBeDefined()
    await (await model.createContext({ ...SETTINGS, sequences: 1 })).dispose()
    await model.dispose()
  })

  it('refuses adapters of another model, of no addon, named twice, and scales that are no numbers', async () => {
    const [one, other] = [await native.loadModel(base), await native.loadModel(base)]
    const adapter = await one.loadAdapter(await adapterFor(base, 'life'))
    const context = await one.createContext({ ...SETTINGS, sequences: 1 })
    const foreign = await other.createContext({ ...SETTINGS, sequences: 1 })
    const fake = { path: 'x', ignored: 0, dispose: () => undefined } as unknown as NativeAdapter
    for (const [where, applied] of [
      [foreign, [{ adapter, scale: 1 }]],
      [context, [{ adapter: fake, scale: 1 }]],
      [
        context,
        [
          { adapter, scale: 1 },
          { adapter, scale: 2 },
        ],
      ],
      [context, [{ adapter, scale: NaN }]],
      [context, [{ adapter, scale: Infinity }]],
    ] as const)
      expect(() => {
        where.useAdapters(applied)
      }).toThrow(expect.objectContaining({ code: 'native/bad-argument' }))
    await Promise.all([one.dispose(), other.dispose()])
    expect(() => {
      context.useAdapters([])
    }).toThrow(expect.objectContaining({ code: 'native/disposed' }))
  })
})

describe('a bad file', () => {
  const tensor = (name: string, shape: readonly number[]): GgufTensor =>
    randomTensor({ name, shape, type: 'f32', mean: 0, deviation: 1, seed: 1 })
  const Q = 'blk.0.attn_q.weight'
  const KIND: readonly (readonly [string, GgufValue])[] = [
    ['general.type', { string: 'adapter' }],
    ['general.architecture', { string: 'llama' }],
    ['adapter.type', { string: 'lora' }],
    ['adapter.lora.alpha', { f32: 8 }],
  ]
  const good = [tensor(`${Q}.lora_a`, [64, 4]), tensor(`${Q}.lora_b`, [4, 64])]
  const with_ = (key: string, value: GgufValue | null) => [
    ...KIND.filter(([name]) => name !== key),
    ...(value === null ? [] : [[key, value] as const]),
  ]

  it.each<[string, readonly (readonly [string, GgufValue])[], readonly GgufTensor[], RegExp]>([
    ['is a model', with_('general.type', { string: 'model' }), good, /is not an adapter \(its general.type is model\)/],
    ['says nothing of its type', with_('general.type', null), good, /is not an adapter \(its general.type is missing\)/],
    [
      'is a control vector',
      with_('adapter.type', { string: 'cvec' }),
      good,
      /of type cvec; kvfold applies adapters of type lora/,
    ],
    [
      'is for another architecture',
      with_('general.architecture', { string: 'qwen2' }),
      good,
      /for qwen2 models, but .* is a llama/,
    ],
    [
      'has an alpha that is no f32',
      with_('adapter.lora.alpha', { u32: 8 }),
      good,
      /adapter.lora.alpha that is no number of type f32/,
    ],
    ['has no matrices', KIND, [tensor('blk.0.attn_norm.weight', [64])], /has no LoRA matrices/],
    ['has one matrix of a pair', KIND, good.slice(1), /has only one of the two matrices for blk.0.attn_q.weight/],
    ['has a stray tensor', KIND, [...good, tensor('blk.0.attn_q.bias', [64])], /ends neither in .lora_a nor in .lora_b/],
    [
      'changes an unknown tensor',
      KIND,
      [tensor('blk.7.attn_q.weight.lora_a', [64, 4]), tensor('blk.7.attn_q.weight.lora_b', [4, 64])],
      /changes the tensor blk.7.attn_q.weight, which its model does not have/,
    ],
    [
      'has too wide an A',
      KIND,
      [tensor(`${Q}.lora_a`, [65, 4]), good[1]!],
      /does not fit its model: blk.0.attn_q.weight is 64 x 64/,
    ],
    ['has too tall a B', KIND, [good[0]!, tensor(`${Q}.lora_b`, [4, 65])], /does not fit its model/],
    ['has matrices of two ranks', KIND, [good[0]!, tensor(`${Q}.lora_b`, [5, 64])], /does not fit its model/],
    [
      'has matrices for experts',
      KIND,
      [tensor(`${Q}.lora_a`, [64, 4, 2]), tensor(`${Q}.lora_b`, [4, 64, 2])],
      /does not fit its model/,
    ],
  ])('is refused that %s', async (name, metadata, tensors, sentence) => {
    const path = join(folder, 'bad.gguf')
    await writeGguf(path, new Map(metadata), tensors)
    const model = await native.loadModel(base)
    await expect(model.loadAdapter(path), name).rejects.toMatchObject({
      code: 'model/bad-file',
      message: expect.stringMatching(sentence) as string,
    })
    await model.dispose()
  })

  it('is refused that is missing, truncated, no GGUF, or an activated LoRA', async () => {
    const model = await native.loadModel(base)
    const path = join(folder, 'broken.gguf')
    await expect(model.loadAdapter(join(folder, 'missing.gguf'))).rejects.toMatchObject({ code: 'model/not-found' })
    writeFileSync(path, 'no adapter')
    await expect(model.loadAdapter(path)).rejects.toMatchObject({ code: 'model/bad-file' })
    const whole = await adapterFor(base, 'life')
    copyFileSync(whole, path)
    truncateSync(path, readFileSync(whole).length - 100)
    await expect(model.loadAdapter(path)).rejects.toMatchObject({
      code: 'model/bad-file',
      message: expect.stringContaining('truncated') as string,
    })
    await writeGguf(path, new Map([...KIND, ['adapter.alora.invocation_tokens', { i32s: [1, 2] }]]), good)
    await expect(model.loadAdapter(path)).rejects.toMatchObject({ code: 'native/unsupported' })
    await model.dispose()
  })

  it('is refused that changes embeddings which are the output, too', async () => {
    const path = await layerNormModel()
    const model = await native.loadModel(path)
    const adapter = await adapterFor(path, 'tied', { tensors: /^token_embd\.weight$/ })
    await expect(model.loadAdapter(adapter)).rejects.toMatchObject({ code: 'native/unsupported' })
    await model.dispose()
  })

  it('counts norms that llama.cpp does not apply, and a model is no adapter', async () => {
    const path = join(folder, 'norms.gguf')
    await writeGguf(path, new Map(KIND), [...good, tensor('blk.0.attn_norm.weight', [64])])
    const model = await native.loadModel(base)
    expect((await model.loadAdapter(path)).ignored).toBe(1)
    await expect(native.loadModel(path)).rejects.toMatchObject({
      code: 'model/bad-file',
      message: expect.stringContaining('--lora') as string,
    })
    await model.dispose()
  })
})
