/**
 * Tests further features of a device that need few kernels: a quantised cache, parallel streams, attention, embeddings, a server with a
 * tool.
 */
import { once } from 'node:events'
import { request, type IncomingMessage } from 'node:http'
import { json } from 'node:stream/consumers'
import { afterEach, beforeAll, expect, it } from 'vitest'
import { conversationId } from '../../src/runtime/core/ids.js'
import { Embedder } from '../../src/runtime/engine/embedder.js'
import { LlamaEngine, type LlamaEngineOptions } from '../../src/runtime/engine/llama.js'
import { openNative } from '../../src/runtime/native/binding.js'
import type { Native } from '../../src/runtime/native/types.js'
import { batchOf, seq, someTokens } from '../runtime/native/support/fixture.js'
import { serving } from '../runtime/server/support/serving.js'
import { TEST_GPU } from '../support/device.js'
import { layerNormModel } from '../support/models.js'
import { firstPrediction, largestDifference } from '../support/predictions.js'
import { neverEnding } from '../../bench/random-tokens.js'

const ALONE = { threads: 1, batchThreads: 1, ubatch: 16 } as const
let native: Native
const open: { dispose(): Promise<void> }[] = []
beforeAll(async () => {
  native = await openNative({ gpu: TEST_GPU })
})
afterEach(async () => {
  for (const each of open.splice(0)) await each.dispose()
})

async function load(options: LlamaEngineOptions = {}, heads: 2 | 4 = 4): Promise<LlamaEngine> {
  const engine = await LlamaEngine.load(native, await layerNormModel(heads), {
    ...ALONE,
    cells: 512,
    hostBytes: 2 ** 24,
    ...options,
  })
  open.push(engine)
  return engine
}

const text = (count: number, salt: number) =>
  Int32Array.from({ length: count }, (_, at) => 260 + ((at * 7919 + salt * 104729) % 100))

it('a cache of 8 bits folds and restores as a fresh prefill into such a cache', async () => {
  const quantised = { keyType: 'q8_0', valueType: 'q8_0', flashAttention: 'on' } as const
  const base = text(160, 1)
  const hole = { start: 48, end: 112 }
  const tokens = Int32Array.from([...base.subarray(0, hole.start), ...text(16, 2), ...base.subarray(hole.end)])
  const folded = { tokens, origin: { base, holes: [{ span: hole, marker: 16 }] } }
  const show = async (engine: LlamaEngine, shown: { tokens: Int32Array }) => {
    const { vocabulary } = engine.modelInfo
    const { ledger, logprobs } = await engine.complete({
      ...{ conversation: conversationId('c'), ...shown, terms: { contract: 'exact' } },
      ...{ maxTokens: 1, logprobs: vocabulary },
    })
    return { ledger, next: firstPrediction(logprobs, vocabulary) }
  }
  // Blocks of 32 need heads of 32.
  const engine = await load(quantised, 2)
  const before = await show(engine, { tokens: base })
  const there = await show(engine, folded)
  const back = await show(engine, { tokens: base })
  expect(back.ledger).toMatchObject({ submitted: 1, approximate: 0 })
  expect(largestDifference(back.next, before.next)).toBeLessThan(0.05)
  const fresh = await show(await load(quantised, 2), { tokens })
  expect(largestDifference(there.next, fresh.next)).toBeLessThan(0.05)
  expect(largestDifference(there.next, before.next)).toBeGreaterThan(0.05)
})

it('parallel streams write the same as each alone', async () => {
  const engine = await load({ slots: 2 })
  const banned = neverEnding(engine.model)
  const ask = (name: string, salt: number) =>
    engine.complete({
      ...{ conversation: conversationId(name), tokens: text(48, salt), maxTokens: 12 },
      sampling: { temperature: 0, logitBias: banned },
    })
  const alone = [await ask('a', 1), await ask('b', 2)]
  const both = await Promise.all([ask('c', 1), ask('d', 2)])
  expect(both.map(({ tokens }) => [...tokens])).toEqual(alone.map(({ tokens }) => [...tokens]))
  expect(both[0].tokens).toHaveLength(12)
})

it('attention of a token is the same alone and in a batch, and its weights sum to 1', async () => {
  const model = await native.loadModel(await layerNormModel())
  open.push(model)
  const rows: Float32Array[] = []
  for (const alone of [true, false]) {
    const context = await model.createContext({ cells: 256, threads: 1, batch: 64, ubatch: 16, attention: true })
    const tokens = someTokens(48, 3)
    const before = alone ? 47 : 32
    await context.decode(batchOf(tokens.subarray(0, before)))
    const capture = context.createCapture({ layers: [0, 1], heads: [0, 1, 2, 3], atoms: 1, rows: true })
    const positions = Int32Array.from({ length: 48 }, (_, at) => at)
    const watched = { capture, sequence: seq(0), queries: Int32Array.of(47 - before), positions, atoms: Int32Array.of(0) }
    expect(await context.decode(batchOf(tokens.subarray(before), before), [watched])).toBe('done')
    const taken = capture.take()
    expect(taken.rows).toHaveLength(2 * 4 * 48)
    for (const total of taken.total) expect(Math.abs(total - 1)).toBeLessThan(1e-4)
    expect(Math.max(...taken.rows) - Math.min(...taken.rows)).toBeGreaterThan(0.01)
    rows.push(taken.rows)
    await context.dispose()
  }
  expect(largestDifference(rows[0]!, rows[1]!)).toBeLessThan(1e-3)
})

it('the embedding of a text is the same beside other texts', async () => {
  const embedder = await Embedder.load(native, await layerNormModel(), ALONE)
  open.push(embedder)
  const texts = [text(16, 1), text(16, 2)]
  const { vectors } = await embedder.embed(texts)
  const own = await embedder.embed([texts[1]!])
  expect(largestDifference(vectors[1]!, own.vectors[0]!)).toBeLessThan(1e-3)
  expect(largestDifference(vectors[0]!, vectors[1]!)).toBeGreaterThan(0.01)
})

it('a server makes a required call, and continues from its result', async () => {
  const served = await serving({ engine: () => load({ cells: 2048 }), slots: 1 })
  try {
    const parameters = { type: 'object', properties: { where: { enum: ['sky'] } }, required: ['where'] }
    const question = { role: 'user', content: 'Look.' }
    const chat = async (messages: readonly object[], more: object) => {
      const body = { messages, tools: [{ type: 'function', function: { name: 'look', parameters } }], ...more }
      // fetch waits five minutes for an answer to begin, and a device may compile for longer.
      const asked = request(`${served.url}/v1/chat/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
      })
      asked.end(JSON.stringify(body))
      const [answer] = (await once(asked, 'response')) as [IncomingMessage]
      expect(answer.statusCode).toBe(200)
      return (await json(answer)) as {
        choices: {
          finish_reason: string
          message: { tool_calls?: { id: string; function: { name: string; arguments: string } }[] }
        }[]
        usage: { prompt_tokens: number; prompt_tokens_details: { cached_tokens: number } }
      }
    }
    const first = await chat([question], { tool_choice: 'required', parallel_tool_calls: false, max_tokens: 100 })
    const { finish_reason, message } = first.choices[0]!
    expect(finish_reason).toBe('tool_calls')
    const [call] = message.tool_calls!
    expect(call!.function.name).toBe('look')
    expect(JSON.parse(call!.function.arguments)).toEqual({ where: 'sky' })
    const result = { role: 'tool', tool_call_id: call!.id, content: 'It is blue, and there is not one cloud.' }
    const next = await chat([question, message, result], { tool_choice: 'none', max_tokens: 8 })
    expect(next.usage.prompt_tokens_details.cached_tokens).toBeGreaterThanOrEqual(first.usage.prompt_tokens)
  } finally {
    await served.close()
  }
})
