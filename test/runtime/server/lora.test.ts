/** Tests LoRA adapters over HTTP: `/lora-adapters`, `lora` in requests, and adapters as names of models. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { adaptersOf } from '../../../src/runtime/engine/adapters.js'
import { Embedder } from '../../../src/runtime/engine/embedder.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { NativeModel } from '../../../src/runtime/native/types.js'
import { adapterFor } from '../../support/adapters.js'
import { TEST_GPU } from '../../support/device.js'
import { tinyModel } from '../../support/models.js'
import { serving, type Serving } from './support/serving.js'

const PROMPT = 'Begin here, and then go on. '.repeat(8)
const MESSAGES = [{ role: 'user', content: PROMPT }]
const form = { grammar: 'root ::= [a-z ] root' }

let paths: string[]
let files: { readonly path: string; readonly scale: number }[]

beforeAll(async () => {
  const model = await tinyModel()
  paths = [await adapterFor(model, 'anna', { seed: 1 }), await adapterFor(model, 'bert', { seed: 2 })]
  files = paths.map((path) => ({ path, scale: 0 }))
})

async function started(options: Parameters<typeof serving>[0] = {}): Promise<Serving> {
  const native = await openNative({ gpu: TEST_GPU })
  const model = await tinyModel()
  const load = () => LlamaEngine.load(native, model, { cells: 4096, threads: 1, batchThreads: 1, lora: files })
  const embedder = ({ model: loaded }: { readonly model?: NativeModel }) => Embedder.on(loaded!, { threads: 1, batchThreads: 1 })
  const source = { name: 'tiny', slots: 4, adapters: adaptersOf(files), load, embedder }
  const plain = {
    name: 'plain',
    slots: 1,
    load: () => LlamaEngine.load(native, model, { cells: 512, threads: 1, batchThreads: 1 }),
  }
  return serving({ ...options, service: { models: [source, plain], ...options.service } })
}

interface Told {
  readonly status: number
  readonly body: Record<string, unknown>
}

async function send(served: Serving, path: string, body?: unknown, key?: string): Promise<Told> {
  const answer = await fetch(served.url + path, {
    ...(body === undefined ? {} : { method: 'POST', body: JSON.stringify(body) }),
    headers: { 'content-type': 'application/json', ...(key === undefined ? {} : { authorization: `Bearer ${key}` }) },
  })
  return { status: answer.status, body: (await answer.json()) as Record<string, unknown> }
}

/** Returns the text that the model writes on, without a template. */
async function written(served: Serving, more: object = {}): Promise<string> {
  const { status, body } = await send(served, '/completion', { prompt: PROMPT, n_predict: 24, ...form, ...more })
  expect([status, body]).toEqual([200, body])
  return body['content'] as string
}

async function said(
  served: Serving,
  more: object = {},
): Promise<{ readonly text: string; readonly model: string; readonly reused: number }> {
  const { status, body } = await send(served, '/v1/chat/completions', {
    ...{ messages: MESSAGES, max_tokens: 24, kvfold: { ...form, ledger: true }, ...more },
  })
  expect([status, body]).toEqual([200, body])
  const [{ message }] = body['choices'] as [{ message: { content: string } }]
  const { ledger } = body['kvfold'] as { ledger: { reused: number }[] }
  return { text: message.content, model: body['model'] as string, reused: ledger[0]!.reused }
}

describe('/lora-adapters', () => {
  let served: Serving
  beforeAll(async () => {
    served = await started()
  })
  afterAll(() => served.close())

  it('lists the adapters, and sets the scales for requests that name none', async () => {
    const list = (scales: readonly number[]) =>
      paths.map((path, id) => ({ id, name: ['anna', 'bert'][id], path, scale: scales[id] }))
    const [none, anna, bert] = [
      await written(served),
      await written(served, { lora: [{ id: 0, scale: 1 }] }),
      await written(served, { lora: [{ id: 1, scale: 1 }] }),
    ]
    expect(new Set([none, anna, bert]).size).toBe(3)
    expect((await send(served, '/lora-adapters')).body).toEqual(list([0, 0]))
    expect((await send(served, '/lora-adapters', [{ id: 1, scale: 1 }])).body).toEqual({ success: true })
    expect((await send(served, '/lora-adapters')).body).toEqual(list([0, 1]))
    expect(await written(served)).toBe(bert)
    // A request's own list overrules them.
    expect(await written(served, { lora: [{ id: 0, scale: 1 }] })).toBe(anna)
    expect(await written(served, { lora: [] })).toBe(none)
    expect(await written(served, { lora: [{ id: 0, scale: 0 }] })).toBe(none)
    await send(served, '/lora-adapters', [])
    expect(await written(served)).toBe(none)
    expect((await send(served, '/lora-adapters?model=plain')).body).toEqual([])
  })

  it('answers all at once what each would be answered alone', async () => {
    const lists = [[], [{ id: 0, scale: 1 }], [{ id: 1, scale: 1 }], [{ id: 0, scale: 0.5 }]]
    const alone: string[] = []
    for (const lora of lists) alone.push(await written(served, { lora }))
    expect(await Promise.all(lists.map((lora) => written(served, { lora })))).toEqual(alone)
  })

  it.each([
    ['/completion', { prompt: PROMPT }],
    ['/v1/completions', { prompt: PROMPT }],
    ['/v1/chat/completions', { messages: MESSAGES }],
    ['/v1/responses', { input: PROMPT }],
  ])('%s refuses an unknown id and a bad list with 400', async (path, body) => {
    const unknown = await send(served, path, { ...body, lora: [{ id: 7, scale: 1 }] })
    expect([unknown.status, JSON.stringify(unknown.body)]).toEqual([
      400,
      expect.stringContaining('lora[0] names the adapter 7, but the model has the adapters 0 to 1.'),
    ])
    for (const lora of [{ id: 0 }, [{ id: 0 }], [{ scale: 1 }], [{ id: -1, scale: 1 }], [{ id: 0, scale: 'much' }], [0]])
      expect((await send(served, path, { ...body, lora })).status, JSON.stringify(lora)).toBe(400)
    const none = await send(served, path, { ...body, model: 'plain', lora: [{ id: 0, scale: 1 }] })
    expect([none.status, JSON.stringify(none.body)]).toEqual([400, expect.stringContaining('the model has no adapters')])
  })

  it('refuses scales of unknown adapters', async () => {
    expect((await send(served, '/lora-adapters', [{ id: 5, scale: 1 }])).status).toBe(400)
    expect((await send(served, '/lora-adapters', { id: 0, scale: 1 })).status).toBe(400)
    expect((await send(served, '/lora-adapters?model=nothing')).status).toBe(404)
  })
})

describe('adapters as names of models', () => {
  let served: Serving
  beforeAll(async () => {
    served = await started()
  })
  afterAll(() => served.close())

  it('are listed with their model, and apply at scale 1', async () => {
    const { body } = await send(served, '/v1/models')
    const named = (body['data'] as { id: string; parent?: string }[]).map(({ id, parent }) => [id, parent])
    expect(named).toEqual([
      ['tiny', undefined],
      ['anna', 'tiny'],
      ['bert', 'tiny'],
      ['plain', undefined],
    ])
    expect((await send(served, '/v1/models/bert')).body['parent']).toBe('tiny')
    const anna = await said(served, { model: 'anna' })
    expect([anna.model, anna.reused]).toEqual(['anna', 0])
    // The same messages under another name are computed anew; under the same name they are found again.
    expect(await said(served, { model: 'tiny' })).toMatchObject({ model: 'tiny', reused: 0 })
    expect(await said(served, { model: 'bert' })).toMatchObject({ model: 'bert', reused: 0 })
    const again = await said(served, { model: 'anna' })
    expect([again.text, again.reused > 40]).toEqual([anna.text, true])
    expect(await said(served, { model: 'tiny', lora: [{ id: 0, scale: 1 }] })).toMatchObject({ text: anna.text, model: 'tiny' })
    expect(await written(served, { model: 'bert' })).toBe(await written(served, { lora: [{ id: 1, scale: 1 }] }))
    const { status } = await send(served, '/v1/messages', { model: 'bert', max_tokens: 4, messages: MESSAGES })
    expect(status).toBe(200)
  })

  it('make no embeddings, which apply none', async () => {
    const embeddings = await send(served, '/v1/embeddings', { model: 'anna', input: 'a' })
    expect([embeddings.status, JSON.stringify(embeddings.body)]).toEqual([
      501,
      expect.stringContaining('anna is an adapter, and embeddings apply none; ask for those of tiny.'),
    ])
    expect((await send(served, '/v1/embeddings', { model: 'tiny', input: 'a' })).status).toBe(200)
  })

  it('must not be names of models', async () => {
    const source = { name: 'anna', slots: 1, adapters: adaptersOf(files), load: () => Promise.reject(new Error('unused')) }
    await expect(serving({ service: { models: [source] } })).rejects.toMatchObject({
      code: 'engine/bad-request',
      message: 'A model and an adapter are called anna; give the model another name, as --model name=file.',
    })
  })
})

describe('a server with keys', () => {
  it('lets only the admin set scales for all', async () => {
    const keys = [
      { name: 'admin', key: 'sk-admin-of-all' },
      { name: 'carl', key: 'sk-carl-himself' },
    ]
    const served = await started({ keys })
    const scales = [{ id: 0, scale: 1 }]
    expect((await send(served, '/lora-adapters', scales, 'sk-carl-himself')).status).toBe(403)
    expect((await send(served, '/lora-adapters', undefined, 'sk-carl-himself')).status).toBe(200)
    expect((await send(served, '/lora-adapters', scales, 'sk-admin-of-all')).status).toBe(200)
    await served.close()
  })
})
