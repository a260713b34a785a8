/** Tests rankings as clients see them, over real GGUFs, and beside llama-server's if it was built. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { builtLlamaServer } from '../../bench/runtime/peers/llama-server.js'
import { startServer } from '../../bench/server-process.js'
import { Embedder } from '../../src/runtime/engine/embedder.js'
import { Reranker } from '../../src/runtime/engine/reranker.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { Api } from './api.js'
import { TEST_GPU } from '../support/device.js'
import { synthesizeEncoder } from '../support/synthetic-encoder.js'
import { synthesizeOther } from '../support/synthetic-others.js'
import { serving, type Serving } from '../runtime/server/support/serving.js'

const query = 'Machine learning is'
const documents = [
  'A machine is a physical system that uses power.',
  'Learning is the process of acquiring new understanding.',
  'Machine learning is a field of study.',
  'Paris, capitale de la France.',
]
const PATHS = ['/rerank', '/reranking', '/v1/rerank', '/v1/reranking', '/v2/rerank']

let folder: string
let server: Serving
let api: Api
const fileOf = (name: string): string => join(folder, `${name}.gguf`)

const rankedBy = async (name: string): Promise<Serving> => {
  const native = await openNative({ gpu: TEST_GPU })
  const load = () => Reranker.load(native, fileOf(name), { threads: 1, batchThreads: 1 })
  return serving({ service: { reranker: { name: 'ranker', load } } })
}

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-rerank-'))
  await synthesizeEncoder(fileOf('bert'), { architecture: 'bert', pooling: 'rank' })
  await synthesizeOther(fileOf('qwen3'), 'qwen3')
  await synthesizeEncoder(fileOf('embedder'), { architecture: 'nomic-bert' })
  server = await rankedBy('bert')
  api = new Api(server.url)
})
afterAll(async () => {
  await server.close()
  rmSync(folder, { recursive: true })
})

it.each(PATHS)('%s: the best first, each with its index', async (path) => {
  const { status, body } = await api.post(path, { model: 'ranker', query, documents })
  expect(status).toBe(200)
  expect(body).toMatchObject({ object: 'list', model: 'ranker', usage: { prompt_tokens: body.usage.total_tokens } })
  const results = body.results as { index: number; relevance_score: number }[]
  expect(results.map(({ index }) => index).sort()).toEqual([0, 1, 2, 3])
  const scores = results.map(({ relevance_score: score }) => score)
  expect(scores).toEqual([...scores].sort((a, b) => b - a))
})

it('accepts documents as objects, and returns them on request', async () => {
  const plain = await api.post('/v1/rerank', { query, documents })
  const { body } = await api.post('/v1/rerank', { query, documents: documents.map((text) => ({ text })), return_documents: true })
  for (const [at, { index, document, relevance_score: score }] of body.results.entries()) {
    expect(document).toEqual({ text: documents[index] })
    expect(score).toBe(plain.body.results[at].relevance_score)
  }
})

it('answers texts as Text Embeddings Inference does', async () => {
  const { body } = await api.post('/rerank', { query, texts: documents, return_text: true, raw_scores: true })
  expect(body).toHaveLength(4)
  expect(Object.keys(body[0])).toEqual(['index', 'score', 'text'])
  expect((await api.post('/rerank', { query, texts: documents })).body[0]).not.toHaveProperty('text')
})

it.each([
  [undefined, 4],
  [null, 4],
  [2, 2],
  [99, 4],
])('top_n %s: %d results', async (top_n, count) => {
  expect((await api.post('/rerank', { query, documents, top_n })).body.results).toHaveLength(count)
  expect((await api.post('/rerank', { query, texts: documents, top_n })).body).toHaveLength(count)
})

it.each([
  ['no documents', { query, documents: [] }, 'documents'],
  ['null', { query, documents: null }, 'documents'],
  ['no list', { query, documents: 123 }, 'documents'],
  ['numbers', { query, documents: [1, 2] }, 'documents'],
  ['no query', { documents }, 'query'],
  ['a query that is no text', { query: [1], documents }, 'query'],
  ['what would change scores', { query, documents, max_tokens_per_doc: 5 }, 'max_tokens_per_doc'],
  ['scores of another range', { query, texts: documents, raw_scores: false }, 'raw_scores'],
])('refuses %s', async (_, body, field) => {
  const { status, body: said } = await api.post('/v1/rerank', body)
  expect(status).toBe(400)
  expect(said.error.message).toContain(field)
})

it('says which text is too long', async () => {
  const { status, body } = await api.post('/v1/rerank', { query, documents: ['a', 'word '.repeat(600)] })
  expect(status).toBe(400)
  expect(body.error.message).toContain('Text 1 has')
})

it('is offered by a model that only ranks', async () => {
  const listed = (await api.get('/v1/models')).body.data as { id: string }[]
  expect(listed.map(({ id }) => id)).toEqual(['builtin', 'ranker'])
  expect((await api.get('/v1/models/ranker')).body.kvfold).toMatchObject({ rankings_only: true, state: 'loaded', context: 512 })
  const chat = await api.post('/v1/chat/completions', { model: 'ranker', messages: [{ role: 'user', content: 'a' }] })
  expect(chat.body.error.message).toContain('makes only rankings')
  const other = await api.post('/v1/rerank', { model: 'builtin', query, documents })
  expect(other.status).toBe(404)
  const figures = (await api.get('/metrics')).body as string
  expect(figures).toMatch(/kvfold_reranked_documents_total\{[^}]*"ranker"\} [1-9]/)
})

it('without a reranker says how to get one', async () => {
  const none = await serving()
  const { status, body } = await new Api(none.url).post('/rerank', { query, documents })
  expect(status).toBe(501)
  expect(body.error.message).toContain('--reranking')
  await none.close()
})

const binary = builtLlamaServer()
describe.skipIf(binary === null)('beside llama-server', () => {
  it.each(['bert', 'qwen3'])('%s: the same scores, order and tokens', async (name) => {
    const peer = await startServer('llama-server', binary!, (port) => [
      ...['--model', fileOf(name), '--reranking', '--host', '127.0.0.1', '--port', String(port), '--offline', '--no-ui'],
      ...['--ctx-size', '2048', '--batch-size', '512', '--ubatch-size', '512', '--threads', '1'],
    ])
    const own = await rankedBy(name)
    try {
      const theirs = await new Api(peer.url).post('/v1/rerank', { query, documents })
      const ours = await new Api(own.url).post('/v1/rerank', { query, documents })
      expect(theirs.status).toBe(200)
      expect(ours.body.usage).toEqual(theirs.body.usage)
      for (const [at, { index, relevance_score: score }] of theirs.body.results.entries()) {
        expect(ours.body.results[at].index).toBe(index)
        expect(Math.abs(ours.body.results[at].relevance_score - score)).toBeLessThan(1e-3)
      }
    } finally {
      await own.close()
      await peer.close()
    }
  })
})

it.each(['/score', '/v1/score'])('%s: the scores of pairs, in order, as in rankings', async (path) => {
  const ranked = await api.post('/v1/rerank', { query, documents })
  const byIndex = new Map(
    (ranked.body.results as { index: number; relevance_score: number }[]).map((one) => [one.index, one.relevance_score]),
  )
  const { status, body } = await api.post(path, { model: 'ranker', text_1: query, text_2: documents })
  expect(status).toBe(200)
  expect(body).toMatchObject({ object: 'list', model: 'ranker', usage: { prompt_tokens: ranked.body.usage.total_tokens } })
  expect(body.data).toEqual(documents.map((_, index) => ({ index, object: 'score', score: byIndex.get(index) })))
  const pairs = await api.post(path, { queries: [query, query], documents: [documents[2], documents[0]] })
  const scores = (pairs.body.data as { score: number }[]).map(({ score }) => score)
  // Texts that are computed in other batches differ in the last digits.
  expect(scores[0]).toBeCloseTo(byIndex.get(2)!, 4)
  expect(scores[1]).toBeCloseTo(byIndex.get(0)!, 4)
})

it.each(['/score', '/v1/score'])('%s: without a reranker the cosine of embeddings', async (path) => {
  const native = await openNative({ gpu: TEST_GPU })
  const load = () => Embedder.load(native, fileOf('embedder'), { threads: 1, batchThreads: 1 })
  const own = await serving({ service: { embeddings: { name: 'embedder', load } } })
  const other = new Api(own.url)
  try {
    const ask = { model: 'embedder', input: [query, ...documents] }
    const vectors = (await other.post('/v1/embeddings', ask)).body.data.map(({ embedding }: any) => embedding) as number[][]
    const cosines = vectors.slice(1).map((vector) => vector.reduce((sum, value, at) => sum + value * vectors[0]![at]!, 0))
    const { status, body } = await other.post(path, { model: 'embedder', text_1: query, text_2: documents })
    expect(status).toBe(200)
    expect(body).toMatchObject({ object: 'list', model: 'embedder' })
    for (const [at, { index, score }] of body.data.entries()) {
      expect(index).toBe(at)
      expect(score).toBeCloseTo(cosines[at]!, 5)
    }
    const pairs = await other.post(path, { text_1: [query, query], text_2: [documents[1], query] })
    expect(pairs.body.data[0].score).toBeCloseTo(cosines[1]!, 5)
    expect(pairs.body.data[1].score).toBeCloseTo(1, 5)
    // Rankings need a reranker: clients expect its scores there.
    expect((await other.post('/v1/rerank', { query, documents })).status).toBe(501)
  } finally {
    await own.close()
  }
})

it('scores nothing without a reranker and an embedder, and says how to get one', async () => {
  const none = await serving()
  const { status, body } = await new Api(none.url).post('/score', { text_1: 'a', text_2: 'b' })
  expect(status).toBe(501)
  expect(body.error.message).toContain('--reranking')
  expect(body.error.message).toContain('--embeddings')
  await none.close()
})

it('names what is wrong with pairs, and has no classifier', async () => {
  expect(await api.post('/score', { text_1: ['a', 'b'], text_2: ['a', 'b', 'c'] })).toMatchObject({
    status: 400,
    body: { error: { param: 'text_2', message: expect.stringContaining('2 texts') as string } },
  })
  expect(await api.post('/score', { text_1: 'a' })).toMatchObject({ status: 400, body: { error: { param: 'text_2' } } })
  expect(await api.post('/classify', { input: 'a' })).toMatchObject({
    status: 501,
    body: { error: { code: 'model/unsupported', message: expect.stringContaining('classifier') as string } },
  })
})
