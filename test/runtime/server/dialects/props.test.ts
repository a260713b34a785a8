/** Tests `/tokenize` on a model whose texts begin with a BOS token. */
import { afterAll, beforeAll, expect, it } from 'vitest'
import { LlamaEngine } from '../../../../src/runtime/engine/llama.js'
import { openNative } from '../../../../src/runtime/native/binding.js'
import { CHATML_TEMPLATE } from '../../../../src/runtime/native/synthetic.js'
import { Api } from '../../../conformance/api.js'
import { TEST_GPU } from '../../../support/device.js'
import { layerNormModel } from '../../../support/models.js'
import { serving, type Serving } from '../support/serving.js'

let served: Serving
let api: Api
let engine: LlamaEngine

beforeAll(async () => {
  const path = await layerNormModel(4, [['tokenizer.ggml.add_bos_token', { bool: true }]])
  const options = { threads: 1, batchThreads: 1, slots: 1, chatTemplate: CHATML_TEMPLATE }
  engine = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), path, options)
  served = await serving({ engine: () => engine })
  api = new Api(served.url)
})
afterAll(() => served.close())

interface Tokenized {
  readonly tokens: readonly number[]
  readonly max_model_len: number
}

const tokenize = async (body: object) => (await api.post('/tokenize', body)).body as Tokenized
const tokensOf = async (body: object) => (await tokenize(body)).tokens

it('content reads control tokens and adds none, as in llama-server', async () => {
  expect(await tokensOf({ content: '<|im_end|>' })).toHaveLength(1)
  expect((await tokensOf({ content: '<|im_end|>', parse_special: false })).length).toBeGreaterThan(1)
  expect((await tokensOf({ content: '<|im_end|>', add_special: true })).length).toBe(2)
})

it('prompt begins with BOS, and the answer has the context, as in vLLM', async () => {
  const { bos } = engine.model.special
  const { tokens, max_model_len: context } = await tokenize({ prompt: '<|im_end|>' })
  expect(tokens).toEqual([bos, ...(await tokensOf({ prompt: '<|im_end|>', add_special_tokens: false }))])
  expect(tokens).toHaveLength(2)
  expect(context).toBe(engine.info.context)
})

const question = { role: 'user', content: 'a <|im_end|> b' }
const answer = { role: 'assistant', content: 'c' }

it('messages are the tokens that the model sees: BOS, and control tokens of clients as text', async () => {
  const asked = { messages: [question], max_tokens: 1, return_token_ids: true }
  const { prompt_token_ids: seen } = (await api.post('/v1/chat/completions', asked)).body as { prompt_token_ids: number[] }
  expect(seen[0]).toBe(engine.model.special.bos)
  expect(await tokensOf({ messages: [question] })).toEqual(seen)
})

it('messages end as vLLM’s fields say', async () => {
  const text = async (more: object) => {
    const tokens = await tokensOf({ messages: [question, answer], ...more })
    return ((await api.post('/detokenize', { tokens })).body as { content: string }).content
  }
  expect(await text({})).toMatch(/c<\|im_end\|>\n<\|im_start\|>assistant\n$/)
  expect(await text({ add_generation_prompt: false })).toMatch(/c<\|im_end\|>\n$/)
  expect(await text({ continue_final_message: true })).toMatch(/assistant\nc$/)
  expect(await text({ continue_final_message: true, add_generation_prompt: false })).toMatch(/assistant\nc$/)
  const both = { messages: [question, answer], continue_final_message: true, add_generation_prompt: true }
  expect((await api.post('/tokenize', both)).body).toMatchObject({ error: { param: 'continue_final_message' } })
})
