/** Tests `/v1/responses/:id`: which responses are kept, for whom, and the effects of deleting them. */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import OpenAI, { NotFoundError } from 'openai'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { KvfoldError } from '../../../../src/runtime/core/errors.js'
import { PUBLIC } from '../../../../src/runtime/server/ask.js'
import { MemoryResponses } from '../../../../src/runtime/server/responses/responses.js'
import { SqliteResponses } from '../../../../src/runtime/server/responses/sqlite-responses.js'
import { ThreadService } from '../../../../src/runtime/server/service.js'
import { ScriptedEngine } from '../../../support/scripted.js'
import { SqliteStore } from '../../../../src/runtime/store/sqlite-store.js'
import { serving, type Serving } from '../support/serving.js'

const model = 'builtin'
const ask = { model, max_output_tokens: 4 }
const clientOf = ({ url }: Serving, apiKey = 'none') => new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 })

/** Removes the field that OpenAI's package adds. */
const bare = ({ output_text: _, ...response }: OpenAI.Responses.Response & { readonly output_text: string }) => response

describe('a response', () => {
  let served: Serving
  let client: OpenAI
  beforeAll(async () => {
    served = await serving()
    client = clientOf(served)
  })
  afterAll(() => served.close())

  it('is returned again as it was sent, whole or streamed', async () => {
    const whole = await client.responses.create({
      ...ask,
      input: 'The value of red is 4.',
      instructions: 'Be short.',
      metadata: { of: 'mine' },
    })
    expect(bare(await client.responses.retrieve(whole.id))).toEqual(bare(whole))
    let told: unknown = null
    const stream = await client.responses.create({ ...ask, input: 'The value of blue is 5.', stream: true })
    for await (const event of stream) if ('response' in event) told = event.response
    expect(told).toMatchObject({ object: 'response', error: null })
    expect(bare(await client.responses.retrieve((told as OpenAI.Responses.Response).id))).toEqual(told)
  })

  it('is not found if it was not stored, or never existed', async () => {
    const unstored = await client.responses.create({ ...ask, input: 'The value of red is 6.', store: false })
    for (const id of [unstored.id, 'resp_thread_0_2', 'nothing', '..%2F..']) {
      await expect(client.responses.retrieve(id)).rejects.toBeInstanceOf(NotFoundError)
      await expect(client.responses.delete(id)).rejects.toBeInstanceOf(NotFoundError)
    }
    const answer = await fetch(`${served.url}/v1/responses/resp_x_2`)
    expect([answer.status, await answer.json()]).toMatchObject([
      404,
      { error: { type: 'invalid_request_error', code: 'server/not-found', param: 'response_id' } },
    ])
  })

  it('is not streamed again', async () => {
    const { id } = await client.responses.create({ ...ask, input: 'The value of red is 7.' })
    const answer = await fetch(`${served.url}/v1/responses/${id}?stream=true`)
    expect([answer.status, await answer.json()]).toMatchObject([400, { error: { param: 'stream' } }])
  })

  it('that is deleted cannot be continued; later responses after it stay', async () => {
    const first = await client.responses.create({ ...ask, input: 'The value of green is 1.' })
    const second = await client.responses.create({ ...ask, input: 'And red?', previous_response_id: first.id })
    const answer = await fetch(`${served.url}/v1/responses/${first.id}`, { method: 'DELETE' })
    expect([answer.status, await answer.json()]).toEqual([200, { id: first.id, object: 'response', deleted: true }])
    await expect(client.responses.retrieve(first.id)).rejects.toBeInstanceOf(NotFoundError)
    await expect(client.responses.delete(first.id)).rejects.toBeInstanceOf(NotFoundError)
    await expect(client.responses.create({ ...ask, input: 'x', previous_response_id: first.id })).rejects.toMatchObject({
      status: 404,
      param: 'previous_response_id',
    })
    const third = await client.responses.create({ ...ask, input: 'And blue?', previous_response_id: second.id })
    expect(third.usage!.input_tokens).toBeGreaterThan(second.usage!.total_tokens)
  })

  it('that is the last of its thread takes the thread with it, in either order', async () => {
    const threads = () => served.service.threads.list(PUBLIC).map(({ id }) => id)
    for (const order of [
      [0, 1],
      [1, 0],
    ] as const) {
      const before = new Set(threads())
      const first = await client.responses.create({ ...ask, input: `The value of order is ${order.join()}.` })
      const second = await client.responses.create({ ...ask, input: 'And red?', previous_response_id: first.id })
      const added = () => threads().filter((id) => !before.has(id))
      const ids = [first.id, second.id]
      expect(added()).toHaveLength(1)
      await client.responses.delete(ids[order[0]]!)
      expect(added()).toHaveLength(1)
      await client.responses.delete(ids[order[1]]!)
      expect(added()).toEqual([])
    }
  })

  it('leaves its thread alone if that was continued in another way', async () => {
    const input = 'The value of grey is 12.'
    const { id, output } = await client.responses.create({ ...ask, input })
    const said = output.flatMap((item) => (item.type === 'message' ? item.content : []))[0] as { text: string }
    const chat = (await client.chat.completions.create({
      model,
      max_completion_tokens: 2,
      messages: [
        { role: 'user', content: input },
        { role: 'assistant', content: said.text },
        { role: 'user', content: 'And red?' },
      ],
      ...{ kvfold: {} },
    })) as unknown as { readonly kvfold: { readonly thread: string } }
    expect(id).toContain(chat.kvfold.thread)
    await client.responses.delete(id)
    expect(served.service.threads.view(PUBLIC, chat.kvfold.thread)).toHaveLength(4)
  })

  it('is deleted with its thread', async () => {
    const { id } = await client.responses.create({ ...ask, input: 'The value of pink is 8.' })
    const [thread] = served.service.threads.list(PUBLIC)
    expect(id).toContain(thread!.id)
    await served.service.threads.delete(PUBLIC, thread!.id)
    await expect(client.responses.retrieve(id)).rejects.toBeInstanceOf(NotFoundError)
  })
})

describe('the ids of a thread that its client shortens', () => {
  it('are all different, and each gives its own response', async () => {
    let said = 0
    const served = await serving({ engine: () => new ScriptedEngine(() => ({ content: `Answer ${++said}.` })) })
    try {
      const client = clientOf(served)
      const input: OpenAI.Responses.ResponseInputItem[] = []
      const told: OpenAI.Responses.Response[] = []
      for (let at = 0; at < 4; at++) {
        input.push({ role: 'user', content: `Question ${at}?` })
        const response = await client.responses.create({ model, input: input.slice(-3) })
        told.push(response)
        input.push({ role: 'assistant', content: response.output_text })
      }
      expect(served.service.threads.list(PUBLIC)).toHaveLength(1)
      expect(new Set(told.map(({ id }) => id)).size).toBe(4)
      expect(new Set(told.flatMap(({ output }) => output.map(({ id }) => id))).size).toBe(4)
      for (const response of told) expect(bare(await client.responses.retrieve(response.id))).toEqual(bare(response))
      await expect(client.responses.create({ model, input: 'x', previous_response_id: told[1]!.id })).rejects.toMatchObject({
        status: 404,
      })
      await client.responses.delete(told[1]!.id)
      const last = await client.responses.create({ model, input: 'And now?', previous_response_id: told[3]!.id })
      expect(last.output_text).toBe('Answer 5.')
    } finally {
      await served.close()
    }
  })
})

describe('whose store is full', () => {
  const full = () => {
    throw new KvfoldError('store/full', 'The disk has no room left.')
  }

  it('goes with its thread for clients, and leaves the store at the next deletion', async () => {
    const responses = new MemoryResponses()
    const told: string[] = []
    const models = [{ name: 'm', slots: 1, load: () => Promise.resolve(new ScriptedEngine(() => ({ content: 'So.' }))) }]
    const service = await ThreadService.open({ models, responses, tell: (sentence) => told.push(sentence) })
    const asked = async (id: string) => {
      const messages = [{ role: 'user', content: id } as const]
      const { thread } = await service.ask({ tenant: 't', messages, tools: [], toolChoice: 'auto' }).answer
      await service.responses.keep('t', id, { thread, messages: 2 }, { id })
      return thread
    }
    const [one, two] = [await asked('r1'), await asked('r2')]
    const heard: string[] = []
    service.threads.watch('t', ({ kind }) => heard.push(kind))
    const drop = responses.drop.bind(responses)
    responses.drop = full
    expect(await service.threads.delete('t', one)).toBe(true)
    expect(heard).toEqual(['deleted'])
    expect(told).toEqual([expect.stringContaining('responses of deleted threads') as string])
    expect(await service.responses.get('t', 'r1')).toBeNull()
    expect(await service.responses.delete('t', 'r1')).toBe(false)
    expect(await responses.read('t', 'r1')).not.toBeNull()
    responses.drop = drop
    await service.threads.delete('t', two)
    expect(responses.threads()).toEqual([])
    await service.close()
  })

  it('is not served after a restart, if its thread was deleted meanwhile', async () => {
    const store = new MemoryResponses()
    await store.keep({ tenant: 't', id: 'r1', thread: 'gone', messages: 2, body: '{}' })
    const drop = store.drop.bind(store)
    store.drop = full
    const service = await ThreadService.open({ models: [{ name: 'm', slots: 1, load: full }], responses: store })
    expect(await service.responses.get('t', 'r1')).toBeNull()
    store.drop = drop
    await service.close()
  })
})

describe('with keys', () => {
  it('belongs to its tenant only', async () => {
    const served = await serving({
      keys: [
        { name: 'anna', key: 'sk-anna' },
        { name: 'bob', key: 'sk-bob' },
      ],
    })
    try {
      const [anna, bob] = [clientOf(served, 'sk-anna'), clientOf(served, 'sk-bob')]
      const { id } = await anna.responses.create({ ...ask, input: 'The value of red is 4.' })
      await expect(bob.responses.retrieve(id)).rejects.toBeInstanceOf(NotFoundError)
      await expect(bob.responses.delete(id)).rejects.toBeInstanceOf(NotFoundError)
      const went = bob.responses.create({ ...ask, input: 'x', previous_response_id: id })
      await expect(went).rejects.toMatchObject({ status: 404, param: 'previous_response_id' })
      expect((await anna.responses.retrieve(id)).id).toBe(id)
    } finally {
      await served.close()
    }
  })
})

describe('after a restart', () => {
  let folder: string
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'kvfold-responses-'))
  })
  afterAll(() => {
    rmSync(folder, { recursive: true })
  })

  const within = async <T>(work: (client: OpenAI, served: Serving) => Promise<T>): Promise<T> => {
    const served = await serving({
      service: { store: SqliteStore.open({ folder }), responses: SqliteResponses.open(folder) },
    })
    try {
      return await work(clientOf(served), served)
    } finally {
      await served.close()
    }
  }
  const isOnDisk = (text: string) => readdirSync(folder).some((name) => readFileSync(join(folder, name)).includes(text))

  it('is unchanged; a deleted one leaves no trace on disk', { timeout: 60_000 }, async () => {
    const [kept, gone] = await within(async (client) => {
      const first = await client.responses.create({ ...ask, input: 'The value of red is 4.', metadata: { of: 'keeper' } })
      const second = await client.responses.create({
        ...ask,
        input: 'And?',
        previous_response_id: first.id,
        metadata: { of: 'goner' },
      })
      return [first, second]
    })
    await within(async (client) => {
      expect(bare(await client.responses.retrieve(kept.id))).toEqual(bare(kept))
      expect(isOnDisk('goner')).toBe(true)
      await client.responses.delete(gone.id)
      expect(isOnDisk('goner')).toBe(false)
    })
    await within(async (client) => {
      await expect(client.responses.retrieve(gone.id)).rejects.toBeInstanceOf(NotFoundError)
      const on = client.responses.create({ ...ask, input: 'x', previous_response_id: gone.id })
      await expect(on).rejects.toMatchObject({ status: 404 })
      await client.responses.create({ ...ask, input: 'And blue?', previous_response_id: kept.id })
    })
  })

  it('is dropped if its thread was deleted in the meantime', { timeout: 60_000 }, async () => {
    const { id } = await within((client) =>
      client.responses.create({ ...ask, input: 'The value of jade is 3.', metadata: { of: 'orphan' } }),
    )
    const store = SqliteStore.open({ folder })
    await store.deleteUnusedSince(Date.now() + 1)
    await store.close()
    expect(isOnDisk('orphan')).toBe(true)
    await within(async (client) => {
      expect(isOnDisk('orphan')).toBe(false)
      await expect(client.responses.retrieve(id)).rejects.toBeInstanceOf(NotFoundError)
    })
  })
})
