/** Tests vectors and rankings by ONNX models as clients see them. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { OnnxEmbedder, OnnxReranker } from '../../src/runtime/engine/onnx.js'
import { writePairScorer } from '../runtime/engine/support/onnx-file.js'
import { serving, type Serving } from '../runtime/server/support/serving.js'
import { Api } from './api.js'

const SHIPPED = fileURLToPath(new URL('../../native-models/builtin/onnx', import.meta.url))

describe('over HTTP', () => {
  let served: Serving
  let api: Api
  let pairs: string
  beforeAll(async () => {
    pairs = mkdtempSync(join(tmpdir(), 'kvfold-onnx-'))
    writePairScorer(pairs)
    served = await serving({
      service: {
        embeddings: { name: 'mini', load: () => OnnxEmbedder.load(SHIPPED) },
        reranker: { name: 'pairs', load: () => OnnxReranker.load(pairs) },
      },
    })
    api = new Api(served.url)
  })
  afterAll(async () => {
    await served.close()
    rmSync(pairs, { recursive: true })
  })

  it('an ONNX embedder answers /v1/embeddings', async () => {
    const { status, body } = await api.post('/v1/embeddings', { model: 'mini', input: ['a', 'b'] })
    expect(status).toBe(200)
    expect(body.data).toHaveLength(2)
    expect((await api.get('/v1/models/mini')).body.kvfold).toMatchObject({ embeddings_only: true, state: 'loaded' })
    const mixed = await api.post('/v1/embeddings', { model: 'mini', input: [1, 'b'] })
    expect([mixed.status, mixed.body.error.message]).toEqual([400, expect.stringContaining('takes texts only')])
  })

  it('an ONNX reranker answers /v1/rerank and /score', async () => {
    // The scorer counts the tokens of both texts.
    const documents = ['word', 'word word word', 'word word']
    const { status, body } = await api.post('/v1/rerank', { query: 'word', documents })
    expect(status).toBe(200)
    expect(body.results.map(({ index }: { index: number }) => index)).toEqual([1, 2, 0])
    const { data } = (await api.post('/score', { text_1: 'word', text_2: documents })).body
    const scores = data.map(({ score }: { score: number }) => score) as number[]
    expect(scores).toEqual([5, 7, 6])
  })
})
