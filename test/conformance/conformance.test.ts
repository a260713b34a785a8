/** Tests what clients of llama-server and vLLM rely on, on kvfold's server over the built-in model; `docs/clients.md` has the count. */
import { afterAll, beforeAll, describe, it } from 'vitest'
import { serving, type Serving } from '../runtime/server/support/serving.js'
import { Api } from './api.js'
import type { Check } from './api.js'
import { LLAMA_SERVER, LOCKED } from './llama-server.js'
import { CROSS_ORIGIN, EMBEDDINGS, MORE } from './llama-server-more.js'
import { VLLM } from './vllm.js'
import { MORE as MORE_OF_VLLM, VECTORS } from './vllm-more.js'

let open: Serving
let embeds: Serving
let locked: Serving

beforeAll(async () => {
  open = await serving()
  // `kvfold serve` loads its model before it listens, as llama-server does.
  await open.service.load()
  embeds = await serving({ embeds: true, corsOrigins: ['https://page.example'] })
  locked = await serving({ keys: [{ name: 'one', key: 'secret' }] })
})
afterAll(async () => {
  await open.close()
  await embeds.close()
  await locked.close()
})

const named = (checks: readonly Check[]) => checks.map(({ name, run }) => [name, run] as const)

describe('llama-server', () => {
  it.each(named(LLAMA_SERVER))('%s', (_, run) => run(new Api(open.url)))
  it.each(named(MORE))('%s', (_, run) => run(new Api(open.url)))
  it.each(named([...EMBEDDINGS, ...CROSS_ORIGIN]))('%s', (_, run) => run(new Api(embeds.url)))
  it.each(named(LOCKED))('%s', (_, run) => run(new Api(locked.url, { authorization: 'Bearer secret' })))
})

describe('vLLM', () => {
  it.each(named([...VLLM, ...MORE_OF_VLLM]))('%s', (_, run) => run(new Api(open.url)))
  it.each(named(VECTORS))('%s', (_, run) => run(new Api(embeds.url)))
})
