/** Runs packages for building agents against the server, each in a separate process, installed by this test; only in the long run. */
import { execFile } from 'node:child_process'
import { copyFileSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { EngineAround, type EngineRequest, type Generation } from '../../../src/runtime/engine/engine.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { SpokenEngine } from '../../../src/lab/taught-engine.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { TEST_GPU } from '../../support/device.js'
import { endless, serving, type Serving } from './support/serving.js'
import { LONG } from '../../support/long.js'

const run = promisify(execFile)
const SCRIPTS = join(import.meta.dirname, 'clients')

/** docs/clients.md names the same versions. */
const VERSIONS = {
  ...{ ai: '6.0.326', '@ai-sdk/openai': '3.0.141', '@ai-sdk/anthropic': '3.0.140', '@ai-sdk/openai-compatible': '2.0.92' },
  ...{ '@openai/agents': '0.20.0', openai: '6.49.0' },
  ...{ '@langchain/core': '1.4.0', '@langchain/openai': '1.5.8', '@langchain/anthropic': '1.5.11' },
  ...{ llamaindex: '0.12.1', '@llamaindex/openai': '0.4.22', zod: '4.6.7' },
}

/** An engine whose answers do not end. */
class Endless extends EngineAround {
  respond({ tools: _, ...request }: EngineRequest): Generation {
    return this.engine.respond({ ...request, toolChoice: 'none', grammar: endless.kvfold.grammar })
  }
}

/** Plays a model that calls the weather tool for the city in the prompt, and then says its result. */
function weatherman({ messages }: EngineRequest) {
  const last = messages.at(-1)!
  if (last.role === 'tool') return { content: `It is ${last.content}.` }
  const [city] = /Oslo|Rome/.exec(last.content) ?? []
  return city === undefined ? null : { calls: [{ name: 'weather', arguments: { city } }] }
}

describe.runIf(LONG)('packages of clients', { timeout: 600_000 }, () => {
  let folder: string
  let engine: LlamaEngine
  let served: Serving

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'kvfold-clients-'))
    writeFileSync(join(folder, 'package.json'), JSON.stringify({ private: true, type: 'module', dependencies: VERSIONS }))
    for (const name of readdirSync(SCRIPTS)) copyFileSync(join(SCRIPTS, name), join(folder, name))
    await run('npm', ['install', '--no-audit', '--no-fund', '--ignore-scripts'], { cwd: folder })
    engine = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), {
      ...{ threads: 1, batchThreads: 1, slots: 2, cells: 8192 },
    })
    const engines = { spoken: new SpokenEngine(engine, weatherman), plain: engine, endless: new Endless(engine) }
    const models = Object.entries(engines).map(([name, each]) => ({ name, slots: 2, load: () => Promise.resolve(each) }))
    served = await serving({ service: { models } })
  }, 600_000)

  afterAll(async () => {
    await served.close()
    rmSync(folder, { recursive: true })
  })

  it.each([
    ['ai-sdk', 'responses', /context length is 8192 tokens/],
    ['ai-sdk', 'chat', /context length is 8192 tokens/],
    ['ai-sdk', 'anthropic', /prompt is too long/],
    ['ai-sdk', 'compatible', /context length is 8192 tokens/],
    ['openai-agents', 'responses', /context length is 8192 tokens/],
    ['openai-agents', 'chat_completions', /context length is 8192 tokens/],
    ['langchain', 'chat', /^ContextOverflowError/],
    ['langchain', 'responses', /^ContextOverflowError/],
    ['langchain', 'anthropic', /^ContextOverflowError/],
    ['llamaindex', 'chat', /context length is 8192 tokens/],
  ])(
    '%s over %s: two turns with a tool each, an object by a schema, a prompt that does not fit, a cancel',
    async (name, api, full) => {
      const before = served.service.status().asks.cancelled
      const { stdout } = await run(process.execPath, [`${name}.mjs`, api], {
        cwd: folder,
        env: { ...process.env, KVFOLD_URL: served.url },
        timeout: 120_000,
      })
      const { turns, output, overflow, cancelled } = JSON.parse(stdout.trim().split('\n').at(-1)!) as Record<string, unknown>
      expect(turns).toEqual(['It is sunny in Oslo.', 'It is sunny in Rome.'])
      expect(output).toEqual({
        city: 'Oslo',
        degrees: expect.toSatisfy((value) => Number.isInteger(value) && value >= 0 && value <= 9) as unknown,
      })
      expect(overflow).toMatch(full)
      expect(cancelled).toBe('cancelled')
      await expect.poll(() => served.service.status().asks.cancelled, { timeout: 20_000 }).toBe(before + 1)
      expect(served.service.status().running).toBe(0)
      await engine.check('books')
    },
  )
})
