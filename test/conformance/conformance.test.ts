/** Tests what clients of llama-server and vLLM rely on, on kvfold's server over the built-in model; `docs/clients.md` has the count. */
import { afterAll, beforeAll, describe, it } from 'vitest'
import { serving, type Serving } from '../runtime/server/support/serving.js'
import { Api } from './api.js'
import type { Check } from './api.js'
import { LLAMA_SERVER, LOCKED } from './llama-server.js'
import { VLLM } from './vllm.js'

let open: Serving
let locked: Serving

beforeAll(async () => {
  open = await serving()
  locked = await serving({ keys: [{ name: 'one', key: 'secret' }] })
})
afterAll(async () => {
  await open.close()
  await locked.close()
})

const named = (checks: readonly Check[]) => checks.map(({ name, run }) => [name, run] as const)

describe('llama-server', () => {
  it.each(named(LLAMA_SERVER))('%s', (_, run) => run(new Api(open.url)))
  it.each(named(LOCKED))('%s', (_, run) => run(new Api(locked.url, { authorization: 'Bearer secret' })))
})

describe('vLLM', () => {
  it.each(named(VLLM))('%s', (_, run) => run(new Api(open.url)))
})
