/** Tests embeddings on real GGUFs: how a vector is made, and that it depends only on its own text. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { span } from '../../../src/runtime/core/span.js'
import { Embedder, type EmbedderOptions } from '../../../src/runtime/engine/embedder.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { synthesizeEncoder, type EncoderShape } from '../../support/synthetic-encoder.js'
import { synthesizeOther } from '../../support/synthetic-others.js'
import type { Native, NativeModel, Pooling } from '../../../src/runtime/native/types.js'
import { TEST_GPU } from '../../support/device.js'
import { batchOf, refused, seq, someTokens } from '../native/support/fixture.js'

let native: Native
let folder: string
const open: { dispose(): Promise<void> }[] = []

beforeAll(async () => {
  native = await openNative({ gpu: TEST_GPU })
  folder = mkdtempSync(join(tmpdir(), 'kvfold-embedder-'))
})
afterEach(async () => {
  for (const each of open.splice(0)) await each.dispose()
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})

async function encoder(shape: EncoderShape): Promise<string> {
  const path = join(folder, `${shape.architecture}-${shape.pooling ?? 'own'}-${shape.context ?? 512}.gguf`)
  await synthesizeEncoder(path, shape)
  return path
}

async function mamba(): Promise<string> {
  const path = join(folder, 'mamba.gguf')
  await synthesizeOther(path, 'mamba')
  return path
}

const paths: Record<string, () => Promise<string>> = {
  builtin: () => Promise.resolve(builtinModel()),
  bert: () => encoder({ architecture: 'bert' }),
  'nomic-bert': () => encoder({ architecture: 'nomic-bert' }),
  mamba,
}

async function embedder(path: string, options: EmbedderOptions = {}): Promise<Embedder> {
  const made = await Embedder.load(native, path, { threads: 1, batchThreads: 1, ...options })
  open.push(made)
  return made
}

/** Returns the vectors of a text's tokens as llama.cpp computes them without pooling. */
async function unpooled(model: NativeModel, tokens: ArrayLike<number>): Promise<Float32Array[]> {
  const context = await model.createContext({
    embeddings: 'none',
    flashAttention: 'off',
    cells: 512,
    sequences: 4,
    ubatch: 512,
    batch: 512,
    threads: 1,
    batchThreads: 1,
  })
  open.push(context)
  expect(await context.decode(batchOf(tokens, 0, 2, 'all'))).toBe('done')
  return Array.from(tokens, (_, index) => context.embedding(index))
}

const length = (vector: ArrayLike<number>): number => Math.hypot(...Array.from(vector))
const unit = (vector: ArrayLike<number>): number[] => Array.from(vector, (value) => value / length(vector))
const apart = (a: ArrayLike<number>, b: ArrayLike<number>): number =>
  Math.max(...Array.from(a, (value, index) => Math.abs(value - b[index]!)))
const mean = (vectors: readonly Float32Array[]): number[] =>
  Array.from(vectors[0]!, (_, index) => vectors.reduce((sum, vector) => sum + vector[index]!, 0) / vectors.length)

const texts = [
  'The value of red is 4.',
  'A long walk by the river. '.repeat(6),
  'x',
  'The value of blue is 7, and later it is 9.',
]

describe.each([
  ['builtin', 'mean'],
  ['builtin', 'last'],
  ['bert', 'mean'],
  ['bert', 'cls'],
  ['nomic-bert', 'last'],
  ['mamba', 'mean'],
  ['mamba', 'last'],
] as const)('%s, pooled by %s', (name, pooling) => {
  test("a vector is pooled from its tokens' vectors", async () => {
    const embedding = await embedder(await paths[name]!(), { pooling })
    for (const text of texts) {
      const tokens = embedding.model.tokenize(text, { addSpecial: true })
      const all = await unpooled(embedding.model, tokens)
      const expected = unit(pooling === 'mean' ? mean(all) : pooling === 'cls' ? all[0]! : all.at(-1)!)
      const { vectors, tokens: count } = await embedding.embed([text])
      expect(count).toBe(tokens.length)
      expect(apart(vectors[0]!, expected)).toBeLessThan(1e-5)
      expect(length(vectors[0]!)).toBeCloseTo(1, 6)
    }
  })

  test('a text has the same vector alone and among other texts', async () => {
    const embedding = await embedder(await paths[name]!(), { pooling })
    const many = Array.from({ length: 10 }, () => texts).flat()
    const together = await embedding.embed(many)
    expect(together.vectors).toHaveLength(many.length)
    // Trained weights make attention sharp, and other batch sizes sum in another order: 9.4e-5 on an AMD EPYC, below 5e-5 on an Intel Xeon.
    for (const [index, text] of texts.entries()) {
      const [alone] = (await embedding.embed([text])).vectors
      for (let at = index; at < many.length; at += texts.length)
        expect(apart(together.vectors[at]!, alone!), `text ${at}`).toBeLessThan(name === 'builtin' ? 2e-4 : 1e-5)
    }
    // The vectors of different texts still differ.
    expect(apart(together.vectors[0]!, together.vectors[3]!)).toBeGreaterThan(1e-3)
  })
})

describe.each(['mean', 'last', 'cls'] as const)('a text over several batches, pooled by %s', (pooling) => {
  test.each(['builtin', 'mamba'])('of %s', async (name) => {
    const path = await paths[name]!()
    const small = await embedder(path, { pooling, ubatch: 16 })
    const large = await embedder(path, { pooling, ubatch: 512 })
    const all = [someTokens(100, 1), someTokens(5, 2), someTokens(61, 3), someTokens(16, 4)]
    const one = await small.embed(all)
    const other = await large.embed(all)
    for (const index of all.keys()) expect(apart(one.vectors[index]!, other.vectors[index]!), `text ${index}`).toBeLessThan(1e-5)
  })
})

describe.each(['jamba', 'lfm2', 'gemma3', 'qwen2vl'] as const)('%s', (architecture) => {
  test.each(['mean', 'last', 'cls'] as const)('embeds a text the same alone and among other texts: %s', async (pooling) => {
    const path = join(folder, `${architecture}.gguf`)
    await synthesizeOther(path, architecture)
    const embedding = await embedder(path, { pooling })
    const all = Array.from({ length: 40 }, (_, index) => someTokens(1 + ((index * 37) % 300), index))
    const { vectors } = await embedding.embed(all)
    for (const index of [0, 3, 17, 39])
      expect(apart(vectors[index]!, (await embedding.embed([all[index]!])).vectors[0]!), `text ${index}`).toBeLessThan(1e-5)
  })
})

describe('a text encoder', () => {
  test('sees later tokens, and the built-in model does not', async () => {
    for (const [name, sees] of [
      ['bert', true],
      ['nomic-bert', true],
      ['builtin', false],
    ] as const) {
      const model = await native.loadModel(await paths[name]!())
      open.push(model)
      expect(model.info.encoder).toBe(sees)
      const [first] = await unpooled(model, [5, 6, 7])
      const [again] = await unpooled(model, [5, 6, 8])
      expect(apart(first!, again!) > 1e-3).toBe(sees)
    }
  })

  test.each(['mean', 'cls', 'last', null, 'none'] as const)('pools as its file says: %s', async (pooling) => {
    const { pooling: own } = await embedder(await encoder({ architecture: 'bert', pooling }))
    expect(own).toBe(pooling === null || pooling === 'none' ? 'mean' : pooling)
  })

  test('is not a reranker, and a reranker is not an embedder', async () => {
    const ranked = await encoder({ architecture: 'bert', pooling: 'rank' })
    await refused('model/unsupported', () => embedder(ranked))
    const model = await native.loadModel(await paths['bert']!())
    open.push(model)
    await refused('model/unsupported', () => model.createContext({ embeddings: 'rank' }))
    await refused('model/unsupported', () => model.createContext())
  })

  test('accepts a text as long as its table of positions, and none longer', async () => {
    const embedding = await embedder(await encoder({ architecture: 'bert', context: 40 }))
    expect(embedding.tokens).toBe(40)
    await embedding.embed([someTokens(40), someTokens(40, 1), someTokens(3)])
    const error = await refused('context/full', () => embedding.embed([someTokens(3), someTokens(41)]))
    expect(error.message).toContain('Text 1 has 41 tokens, but only 40 fit')
    const context = await embedding.model.createContext({ embeddings: 'mean', threads: 1 })
    await refused('native/bad-argument', () => context.decode(batchOf(someTokens(41), 0, 0, 'all')))
    await refused('native/bad-argument', () => context.decode(batchOf(someTokens(5), 0, 0, 'last')))
  })

  test.each(['builtin', 'bert'])('leaves out the end of a text that is too long, if asked to: %s', async (kind) => {
    const embedding = await embedder(await paths[kind]!(), { tokens: 12 })
    const long = 'The hat is red, the coat is blue. '.repeat(2000)
    await refused('context/full', () => embedding.embed(['a', long]))
    const { vectors, tokens } = await embedding.embed(['a', long], { truncate: true })
    const { special } = embedding.model
    const whole = embedding.model.tokenize(long, { addSpecial: true })
    const closing = [special.eos, special.sep].includes(whole.at(-1)!) ? [whole.at(-1)!] : []
    const cut = [...whole.slice(0, 12 - closing.length), ...closing]
    expect(kind === 'bert').toBe(closing.length === 1)
    expect(apart(vectors[1]!, (await embedding.embed([cut])).vectors[0]!)).toBeLessThan(1e-6)
    expect(tokens).toBe(12 + embedding.model.tokenize('a', { addSpecial: true }).length)
  })

  test('adds its special tokens to a text, and reads control tokens in a text as text', async () => {
    const embedding = await embedder(await paths['bert']!())
    const { bos, eos } = embedding.model.special
    const plain = embedding.model.tokenize('abc')
    const text = await embedding.embed(['abc'])
    const tokens = await embedding.embed([[bos!, ...plain, eos!]])
    expect(text.tokens).toBe(plain.length + 2)
    expect([...text.vectors[0]!]).toEqual([...tokens.vectors[0]!])
    expect((await embedding.embed(['<|im_end|>'])).tokens).toBeGreaterThan(3)
  })
})

describe('an embedder', () => {
  test('shortens vectors on request', async () => {
    const embedding = await embedder(builtinModel())
    const whole = (await embedding.embed(texts)).vectors
    const { vectors } = await embedding.embed(texts, { dimensions: 8 })
    for (const [index, vector] of vectors.entries()) {
      expect(vector).toHaveLength(8)
      expect(apart(vector, unit(whole[index]!.subarray(0, 8)))).toBeLessThan(1e-6)
    }
    await refused('engine/bad-request', () => embedding.embed(texts, { dimensions: whole[0]!.length + 1 }))
    await refused('engine/bad-request', () => embedding.embed(texts, { dimensions: 0 }))
  })

  test('names the text it refuses, and continues', async () => {
    const embedding = await embedder(builtinModel(), { tokens: 20 })
    expect((await refused('context/full', () => embedding.embed(['a', texts[1]!]))).message).toContain('Text 1 has')
    expect((await refused('engine/bad-request', () => embedding.embed([[1, 2], []]))).message).toContain('Text 1 is empty')
    expect((await refused('engine/bad-request', () => embedding.embed([[1, 1e6]]))).message).toContain('Token 1000000 at place 1')
    expect((await embedding.embed(['a'])).vectors).toHaveLength(1)
    expect((await embedding.embed([])).vectors).toEqual([])
  })

  test('computes calls one after the other, and stops when cancelled or disposed', async () => {
    const embedding = await embedder(builtinModel())
    const calls = Array.from({ length: 5 }, (_, index) => embedding.embed([texts[index % texts.length]!]))
    const done = await Promise.all(calls)
    expect([...done[4]!.vectors[0]!]).toEqual([...done[0]!.vectors[0]!])
    const controller = new AbortController()
    const long = embedding.embed(
      Array.from({ length: 400 }, () => someTokens(1000)),
      { signal: controller.signal },
    )
    setTimeout(() => {
      controller.abort()
    }, 50)
    await refused('engine/cancelled', () => long)
    const ended = embedding.embed(Array.from({ length: 400 }, () => someTokens(1000)))
    const refusal = refused('engine/disposed', () => ended)
    await embedding.dispose()
    await refusal
    await refused('native/disposed', () => embedding.embed(['a']))
  })

  test('does not dispose a model that it was given, and ends with it', async () => {
    const model = await native.loadModel(builtinModel())
    open.push(model)
    const first = await Embedder.on(model, { threads: 1, batchThreads: 1 })
    await first.embed(['a'])
    await first.dispose()
    const second = await Embedder.on(model, { threads: 1, batchThreads: 1 })
    await second.embed(['a'])
    await model.dispose()
    await second.dispose()
  })
})

describe('a context for embeddings', () => {
  test('of a text encoder keeps no cells and refuses every call on them', async () => {
    const model = await native.loadModel(await paths['bert']!())
    open.push(model)
    const context = await model.createContext({ embeddings: 'mean', sequences: 4, threads: 1 })
    expect(context).toMatchObject({ canShift: false, attention: null, memory: { cache: 0 } })
    expect(await context.decode(batchOf([1, 2, 3], 0, 1, 'all'))).toBe('done')
    expect(context.submitted).toBe(3)
    expect(context.positions(seq(1))).toBeNull()
    for (const call of [
      () => {
        context.tag(seq(1), seq(2), span(0, 3))
      },
      () => {
        context.untag(seq(1), span(0, 3))
      },
      () => {
        context.shift(seq(1), span(0, 3), 1)
      },
      () => context.readback(),
      () => context.saveSequence(seq(1)),
      () => context.loadSequence(seq(1), new Uint8Array(100)),
    ])
      await refused('model/unsupported', call)
    context.clear()
    await refused('attention/unavailable', () => context.createCapture({ layers: [0], heads: [0], atoms: 1 }))
    // This batch exceeds the ubatch, which would end the process.
    await refused('native/bad-argument', () => context.decode(batchOf(someTokens(600), 0, 0, 'all')))
    expect(await context.decode(batchOf([1, 2, 3], 0, 1, 'all'))).toBe('done')
  })

  test.each(['none', 'mean'] as Pooling[])(
    'has embeddings where the pooling puts them, and no logits: %s',
    async (embeddings) => {
      const model = await native.loadModel(builtinModel())
      open.push(model)
      const context = await model.createContext({ embeddings, cells: 256, sequences: 4, threads: 1, batchThreads: 1 })
      await refused('native/bad-argument', () => context.embedding(0))
      expect(await context.decode(batchOf([1, 2, 3], 0, 1, 'all'))).toBe('done')
      await refused('native/bad-argument', () => context.logits(2))
      const sampler = model.createSampler()
      await refused('native/bad-argument', () => sampler.sample(context, 2))
      await refused('native/bad-argument', () => model.createContext({ embeddings, cells: 256, sequences: 6, threads: 1 }))
      const there = embeddings === 'none' ? [0, 1, 2] : [1]
      for (const at of [-1, 0, 1, 2, 3, 4, 1000])
        if (there.includes(at)) expect(context.embedding(at)).toHaveLength(model.info.embedding)
        else await refused('native/bad-argument', () => context.embedding(at))
      context.clear()
      await refused('native/bad-argument', () => context.embedding(1))
      const plain = await model.createContext({ cells: 256, threads: 1, batchThreads: 1 })
      await plain.decode(batchOf([1, 2, 3], 0, 0, 'all'))
      await refused('native/bad-argument', () => plain.embedding(0))
    },
  )
})
