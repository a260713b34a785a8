/** The adapter `acm` on its base, over HTTP: the model folds a stream by itself, and answers plain questions without a call. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { acmAdapter } from '../../src/runtime/cli/builtin.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { ownWords, piSample, piScore } from '../../src/lab/pi-llm.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { TEST_GPU } from '../support/device.js'
import { serving, type Serving } from '../runtime/server/support/serving.js'
import { NEEDED, REAL_MODELS } from './support/models.js'

const MODEL = REAL_MODELS['qwen-0.5b']
if (MODEL === undefined) it.skip(NEEDED)

interface Completion {
  readonly choices: readonly [
    { readonly message: { readonly content: string; readonly tool_calls?: unknown }; readonly finish_reason: string },
  ]
  readonly kvfold: { readonly context_calls: number; readonly ledger: readonly { readonly shown: number }[] }
}
const SYSTEM = { role: 'system', content: 'You are a careful assistant.' }

describe.skipIf(MODEL === undefined)('the adapter acm', { timeout: 600_000 }, () => {
  let served: Serving
  beforeAll(async () => {
    served = await serving({
      engine: async () =>
        LlamaEngine.load(await openNative({ gpu: TEST_GPU }), MODEL!, { cells: 8192, slots: 1, lora: [{ path: acmAdapter() }] }),
    })
  }, 600_000)
  afterAll(() => served.close())

  async function ask(...messages: readonly object[]): Promise<Completion> {
    const body = { model: 'builtin', messages, temperature: 0, max_tokens: 400, kvfold: { acm: 'tools', ledger: true } }
    const headers = { 'content-type': 'application/json' }
    const response = await fetch(`${served.url}/v1/chat/completions`, { method: 'POST', headers, body: JSON.stringify(body) })
    const text = await response.text()
    expect([response.status, text]).toEqual([200, text])
    return JSON.parse(text) as Completion
  }

  it.each([
    ['with a system message', [SYSTEM]],
    ['without one', []],
  ])('cuts and folds a long stream of updates %s, and says the last values', async (_, system) => {
    const sample = piSample({ words: ownWords(), updates: 16, keys: 6, seed: 9001 })
    const { choices, kvfold } = await ask(...system, { role: 'user', content: sample.prompt })
    expect(choices[0].finish_reason).toBe('stop')
    expect(kvfold.context_calls).toBeGreaterThan(1)
    const shown = kvfold.ledger.map((each) => each.shown)
    // About half of the stream, which has some 400 tokens.
    expect(Math.max(...shown) - shown.at(-1)!).toBeGreaterThan(150)
    expect(piScore(sample, choices[0].message.content).correct).toBeGreaterThanOrEqual(5)
  })

  it.each(['What is the capital of France?', 'Write a JavaScript function that adds two numbers.', 'Was ist ein Apfel?'])(
    'answers "%s" without a call',
    async (content) => {
      for (const system of [[SYSTEM], []]) {
        const { choices, kvfold } = await ask(...system, { role: 'user', content })
        expect(kvfold.context_calls).toBe(0)
        expect(choices[0].message.content).toMatch(/\w/u)
      }
    },
  )
})
