/** Runs the suite of engines on llama.cpp with a small model, on the same behind a server, and on the scripted engine. */
import { describe } from 'vitest'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { RemoteEngine } from '../../../src/fleet/engines/remote.js'
import { ScriptedEngine } from '../../support/scripted.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { Server } from '../../../src/runtime/server/app.js'
import { ThreadService } from '../../../src/runtime/server/service.js'
import { TEST_GPU } from '../../support/device.js'
import { tinyModel } from '../../support/models.js'
import { keepsEngineContract } from './engine.contract.js'

const load = async () =>
  LlamaEngine.load(await openNative({ gpu: TEST_GPU }), await tinyModel(), {
    cells: 2048,
    sequences: 4,
    threads: 1,
    batchThreads: 1,
  })
const short = { maxTokens: 6 }
const long = { schema: { type: 'array', items: { type: 'integer' }, minItems: 300 }, maxTokens: 1500 }

describe('the llama engine', () => {
  keepsEngineContract(async () => ({ engine: await load(), short, long, tooMany: 3000, another: load }))
})

describe('the remote engine', () => {
  keepsEngineContract(async () => {
    const service = await ThreadService.open({ models: [{ name: 'tiny', slots: 4, load }] })
    const server = await Server.create({ service, version: '0', logLevel: 'silent' })
    const url = await server.listen({ host: '127.0.0.1', port: 0 })
    const another = () => RemoteEngine.connect({ url: `${url}/v1` })
    return { engine: await another(), short, long, tooMany: 3000, another, end: () => server.close() }
  })
})

describe('the scripted engine', () => {
  /** A long answer continues until it is cancelled. */
  const another = () =>
    Promise.resolve(
      new ScriptedEngine(
        async ({ maxTokens, signal }) => {
          if (maxTokens === long.maxTokens)
            await new Promise<void>((resolve) => {
              if (signal?.aborted === true) resolve()
              else
                signal?.addEventListener('abort', () => {
                  resolve()
                })
            })
          return { content: 'One two three.' }
        },
        { context: 2048 },
      ),
    )
  keepsEngineContract(async () => ({ engine: await another(), short, long, tooMany: 3000, another }))
})
