/** Tests a prompt that does not fit: the error in the words that clients recognise, and where they read how much fits. */
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { TEST_GPU } from '../../support/device.js'
import { serving, type Serving } from './support/serving.js'

const CELLS = 512
const model = 'builtin'
/** Longer than the context, but short enough that the server counts its tokens. */
const long = [{ role: 'user' as const, content: 'x y z '.repeat(CELLS / 2) }]
const short = [{ role: 'user' as const, content: 'Hi.' }]

let served: Serving
let openai: OpenAI
let anthropic: Anthropic
/** The number of tokens in `long`. */
let tokens: number

beforeAll(async () => {
  const options = { cells: CELLS, threads: 1, batchThreads: 1 }
  served = await serving({ engine: async () => LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), options) })
  openai = new OpenAI({ baseURL: `${served.url}/v1`, apiKey: 'none', maxRetries: 0 })
  anthropic = new Anthropic({ baseURL: served.url, apiKey: 'none', maxRetries: 0 })
  tokens = (await anthropic.messages.countTokens({ model, messages: long })).input_tokens
})

afterAll(() => served.close())

describe("over OpenAI's routes", () => {
  const words = () => `This model's maximum context length is ${CELLS} tokens. However, your request has ${tokens} input tokens.`
  const told = () => ({ status: 400, code: 'context_length_exceeded', type: 'invalid_request_error' })

  it('chat and responses say so, whole and streamed', async () => {
    expect(tokens).toBeGreaterThan(CELLS)
    for (const stream of [false, true]) {
      const chat = openai.chat.completions.create({ model, messages: long, stream })
      await expect(chat).rejects.toMatchObject(told())
      await expect(chat).rejects.toThrow(words())
    }
    const whole = openai.responses.create({ model, input: long[0]!.content })
    await expect(whole).rejects.toMatchObject(told())
    await expect(whole).rejects.toThrow(words())
  })

  it('a streamed response fails with the event that Codex expects', async () => {
    const response = await fetch(`${served.url}/v1/responses`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model, input: long[0]!.content, stream: true }),
    })
    expect(response.status).toBe(200)
    const events = (await response.text())
      .split('\n')
      .filter((line) => line.startsWith('data: {'))
      .map((line) => JSON.parse(line.slice(6)) as { type: string; response?: { error?: { code: string; message: string } } })
    expect(events.map(({ type }) => type)).toEqual(['response.created', 'response.in_progress', 'response.failed', 'error'])
    expect(events[2]!.response!.error!.code).toBe('context_length_exceeded')
    expect(events[2]!.response!.error!.message).toContain(words())
  })

  it('a prompt that just fits is not refused', async () => {
    const { input_tokens: one } = await anthropic.messages.countTokens({ model, messages: [{ role: 'user', content: 'x' }] })
    const { input_tokens: two } = await anthropic.messages.countTokens({ model, messages: [{ role: 'user', content: 'x x' }] })
    const ask = (count: number) => {
      const messages = [{ role: 'user' as const, content: `x${' x'.repeat(count)}` }]
      return openai.chat.completions.create({ model, messages, max_completion_tokens: 4 })
    }
    const most = Math.floor((CELLS - 1 - one) / (two - one))
    expect((await ask(most)).usage!.prompt_tokens).toBe(one + most * (two - one))
    await expect(ask(most + 1)).rejects.toMatchObject(told())
  })
})

it('a completion that waited for cells reports none of its own as cached', async () => {
  const prompt = (length: number, salt: number) => Array.from({ length }, (_, at) => 200 + ((at * 7 + salt) % 300))
  const ask = (length: number, salt: number, most: number) => ({
    model,
    prompt: prompt(length, salt),
    max_tokens: most,
    ignore_eos: true,
    kvfold: { ledger: true },
  })
  const first = await openai.completions.create({ ...ask(300, 1, 150), stream: true })
  const pieces = first[Symbol.asyncIterator]()
  await pieces.next()
  const late = openai.completions.create(ask(250, 2, 4))
  for (let done = false; !done;) done = (await pieces.next()).done === true
  const { kvfold, usage } = (await late) as OpenAI.Completion & { kvfold: { ledger: { side: number }[] } }
  expect(kvfold.ledger[0]!.side).toBeGreaterThan(0)
  expect(usage).toMatchObject({ prompt_tokens: 250, completion_tokens: 4, prompt_tokens_details: { cached_tokens: 0 } })
})

it("Anthropic's route uses its words and numbers", async () => {
  for (const stream of [false, true]) {
    const asked = anthropic.messages.create({ model, messages: long, max_tokens: 5, stream })
    await expect(asked).rejects.toMatchObject({
      status: 400,
      error: {
        error: { type: 'invalid_request_error', message: `prompt is too long: ${tokens} tokens > ${CELLS - 1} maximum` },
      },
    })
  }
})

it('the list of models has the limits where clients read them', async () => {
  await openai.chat.completions.create({ model, messages: short, max_completion_tokens: 1 })
  expect((await openai.models.list()).data).toMatchObject([
    { max_model_len: CELLS, context_length: CELLS, context_window: CELLS, meta: { n_ctx: CELLS } },
  ])
  expect((await anthropic.models.retrieve(model)).max_input_tokens).toBe(CELLS - 1)
})
