/** Tests vectors and scores by ONNX models, each on a thread of its own: the model that we ship as ONNX, and one that the test writes. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { OnnxEmbedder, OnnxReranker } from '../../../src/runtime/engine/onnx.js'
import { onnxNamed } from '../../../src/runtime/engine/onnx-model.js'
import { writePairScorer } from './support/onnx-file.js'

const SHIPPED = fileURLToPath(new URL('../../../native-models/builtin/onnx', import.meta.url))
const dot = (one: Float32Array, other: Float32Array) => one.reduce((sum, value, at) => sum + value * other[at]!, 0)

let folder: string
let pairs: string
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-onnx-'))
  pairs = join(folder, 'pairs')
  writePairScorer(pairs)
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})

it('names ONNX models by a folder, or by onnx: before a folder or a name on the hub', () => {
  mkdirSync(join(folder, 'empty'))
  writeFileSync(join(folder, 'a.gguf'), '')
  expect(onnxNamed('onnx:Xenova/all-MiniLM-L6-v2')).toBe('Xenova/all-MiniLM-L6-v2')
  expect(onnxNamed(SHIPPED)).toBe(SHIPPED)
  for (const other of [join(folder, 'empty'), join(folder, 'a.gguf'), 'hf:owner/repo']) expect(onnxNamed(other)).toBeNull()
})

describe('an embedder', () => {
  let embedder: OnnxEmbedder
  beforeAll(async () => {
    embedder = await OnnxEmbedder.load(SHIPPED, 64)
  })
  afterAll(() => embedder.dispose())

  it('makes vectors of length 1 that do not depend on the other texts', async () => {
    expect(embedder).toMatchObject({ title: expect.stringContaining('Transformers.js') as string, tokens: 64 })
    const texts = [
      'The hat is red.',
      'animal: amberbell; bird: ashbloom;',
      ...Array.from({ length: 20 }, (_, at) => `Text ${at}`),
    ]
    const { vectors, tokens } = await embedder.embed(texts)
    expect(vectors).toHaveLength(texts.length)
    expect(tokens).toBeGreaterThan(texts.length)
    for (const vector of vectors) expect(dot(vector, vector)).toBeCloseTo(1, 4)
    const [alone] = (await embedder.embed([texts[0]!])).vectors
    expect(dot(vectors[0]!, alone!)).toBeCloseTo(1, 4)
    expect(dot(vectors[0]!, vectors[1]!)).toBeLessThan(0.999)
    const [short] = (await embedder.embed([texts[0]!], { dimensions: 8 })).vectors
    expect([short!.length, Math.round(1000 * dot(short!, short!))]).toEqual([8, 1000])
    expect(await embedder.embed([])).toEqual({ vectors: [], tokens: 0 })
  })

  it('refuses a text that is too long, token ids, too many dimensions, and a request that was cancelled', async () => {
    const long = 'animal: amberbell; '.repeat(60)
    await expect(embedder.embed(['a', long])).rejects.toMatchObject({
      code: 'context/full',
      message: expect.stringMatching(/^Text 1 has \d+ tokens, but only 64 fit/u) as string,
    })
    const truncated = await embedder.embed(['a', long, long.slice(0, -9)], { truncate: true })
    expect(dot(truncated.vectors[1]!, truncated.vectors[2]!)).toBeCloseTo(1, 5)
    expect(truncated.tokens).toBe((await embedder.embed(['a'])).tokens + 128)
    await expect(embedder.embed([[1, 2]])).rejects.toMatchObject({ code: 'engine/bad-request' })
    await expect(embedder.embed(['a'], { dimensions: 100_000 })).rejects.toMatchObject({ code: 'engine/bad-request' })
    await expect(embedder.embed(['a'], { signal: AbortSignal.abort() })).rejects.toMatchObject({ code: 'engine/cancelled' })
  })

  it('ends its thread, and says so to the calls that run and to later ones', async () => {
    const other = await OnnxEmbedder.load(SHIPPED)
    const running = expect(other.embed(['a'])).rejects.toMatchObject({ code: 'engine/disposed' })
    await other.dispose()
    await running
    await other.dispose()
    await expect(other.embed(['a'])).rejects.toMatchObject({ code: 'engine/disposed' })
  })

  it('says what a folder without a model lacks', async () => {
    await expect(OnnxEmbedder.load(folder)).rejects.toMatchObject({
      code: 'model/not-found',
      message: expect.stringContaining('config.json') as string,
    })
  })
})

describe('a reranker', () => {
  let reranker: OnnxReranker
  beforeAll(async () => {
    reranker = await OnnxReranker.load(pairs)
  })
  afterAll(() => reranker.dispose())

  it('scores each document, read with the query', async () => {
    // The scorer counts the tokens of both texts.
    const documents = Array.from({ length: 20 }, (_, at) => 'word '.repeat(at + 1))
    const { scores, tokens } = await reranker.rank('word', documents)
    expect(scores).toEqual(documents.map((_, at) => at + 5))
    expect(tokens).toBe(scores.reduce((sum, score) => sum + score, 0))
  })

  it('refuses a document that is too long with the query', async () => {
    await expect(reranker.rank('word', ['word', 'word '.repeat(61)])).rejects.toMatchObject({
      code: 'context/full',
      message: expect.stringMatching(/^Text 1 has 65 tokens, but only 64 fit/u) as string,
    })
  })
})
