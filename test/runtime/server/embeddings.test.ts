/** Tests embeddings through the service: the queue, errors and shutdown. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import { Embedder } from '../../../src/runtime/engine/embedder.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { ScriptedEngine } from '../../support/scripted.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { synthesizeEncoder } from '../../support/synthetic-encoder.js'
import { Overloaded } from '../../../src/runtime/server/ask.js'
import { ThreadService, type ServiceOptions } from '../../../src/runtime/server/service.js'
import { refused } from '../native/support/fixture.js'
import { TEST_GPU } from '../../support/device.js'
import { tinyModel } from '../../support/models.js'

let folder: string
let encoder: string
const ONE = { threads: 1, batchThreads: 1 } as const
const served = { name: 'script', slots: 1, load: () => Promise.resolve(new ScriptedEngine(() => ({ content: 'a' }))) }
const ask = { tenant: 'public', inputs: ['a'] }
/** A request that takes a while. */
const long = { tenant: 'public', inputs: Array.from({ length: 300 }, () => 'word '.repeat(80)) }

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-embeddings-'))
  encoder = join(folder, 'encoder.gguf')
  await synthesizeEncoder(encoder, { architecture: 'nomic-bert' })
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})

const load = async () => Embedder.load(await openNative({ gpu: TEST_GPU }), encoder, ONE)

const serviceOf = (options: Partial<ServiceOptions> = {}) =>
  ThreadService.open({ models: [served], embeddings: { name: 'encoder', load }, ...options })

test('a failed load is tried again', async () => {
  let tries = 0
  const service = await serviceOf({
    embeddings: {
      name: 'encoder',
      load: () => (tries++ === 0 ? Promise.reject(new KvfoldError('memory/insufficient', 'No room.')) : load()),
    },
  })
  await refused('memory/insufficient', () => service.embed(ask))
  expect((await service.embed(ask)).vectors).toHaveLength(1)
  await service.embed(ask)
  expect(tries).toBe(2)
  await service.close()
})

test('the queue has a limit', async () => {
  const service = await serviceOf({ queueLimit: 1 })
  // This request must end within the test, so it is shorter.
  const running = service.embed({ ...long, inputs: long.inputs.slice(0, 30) })
  const waiting = service.embed(ask)
  const error = await service.embed(ask).catch((thrown: unknown) => thrown)
  expect(error).toBeInstanceOf(Overloaded)
  await Promise.all([running, waiting])
  await service.close()
})

test('a client that leaves while it waits or runs makes room for the next', async () => {
  const service = await serviceOf()
  const first = new AbortController()
  const second = new AbortController()
  const running = refused('engine/cancelled', () => service.embed({ ...long, signal: first.signal }))
  const waiting = refused('engine/cancelled', () => service.embed({ ...ask, signal: second.signal }))
  const next = service.embed(ask)
  second.abort()
  await waiting
  first.abort()
  await running
  expect((await next).vectors).toHaveLength(1)
  await service.close()
})

test('a request may time out', async () => {
  const service = await serviceOf({ timeoutMs: 5 })
  await refused('server/timeout', () => service.embed(long))
  await service.close()
})

test('closing refuses waiting requests, and cancels the running one', async () => {
  const service = await serviceOf()
  await service.embed(ask)
  const running = refused('server/closing', () => service.embed(long))
  const waiting = refused('server/closing', () => service.embed(ask))
  await service.close()
  await Promise.all([running, waiting])
  await refused('server/closing', () => service.embed(ask))
})

test('the embedder of a served model is unloaded and loaded with it', async () => {
  const path = await tinyModel()
  let made = 0
  const service = await ThreadService.open({
    keepAliveMs: 1,
    models: [
      {
        name: 'tiny',
        slots: 1,
        load: async () => LlamaEngine.load(await openNative({ gpu: TEST_GPU }), path, { ...ONE, cells: 256 }),
        embedder: ({ model }) => {
          made++
          return Embedder.on(model!, ONE)
        },
      },
    ],
  })
  const first = await service.embed(ask)
  await expect.poll(() => service.models()[0]?.state, { timeout: 5000 }).toBe('unloaded')
  const again = await service.embed(ask)
  expect(made).toBe(2)
  expect([...again.vectors[0]!]).toEqual([...first.vectors[0]!])
  await service.close()
})
