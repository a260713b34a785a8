/**
 * Tests answers that the request begins (prefill). The model continues from there, the client gets only the new text, and the thread has
 * both.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { LlamaEngine } from '../../../../src/runtime/engine/llama.js'
import { builtinModel } from '../../../../src/runtime/cli/builtin.js'
import { openNative } from '../../../../src/runtime/native/binding.js'
import { PUBLIC } from '../../../../src/runtime/server/ask.js'
import { realTemplates } from '../../../support/bundle.js'
import { TEST_GPU } from '../../../support/device.js'
import { serving, type Serving } from '../support/serving.js'

const BEGINNING = 'The value of red is'
const question = { role: 'user', content: 'The value of red is 4. What is the value of red?' }
const messages = [question, { role: 'assistant', content: BEGINNING }]
const tools = [{ type: 'function', function: { name: 'look', parameters: { type: 'object', properties: {} } } }]

let engine: LlamaEngine
let served: Serving
let thinking: Serving

beforeAll(async () => {
  const own = { threads: 1, batchThreads: 1, slots: 2 }
  const load = async (more: object) => LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), { ...own, ...more })
  engine = await load({})
  served = await serving({ engine: () => engine })
  const chatTemplate = realTemplates().find(({ name }) => name === 'Qwen-Qwen3-0.6B')!.source
  thinking = await serving({ engine: () => load({ chatTemplate }) })
})

afterAll(async () => {
  await served.close()
  await thinking.close()
})

async function post(route: string, body: object, on = served): Promise<{ readonly status: number; readonly text: string }> {
  const response = await fetch(`${on.url}/v1/${route}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ max_tokens: 12, ...body }),
  })
  return { status: response.status, text: await response.text() }
}

interface Reply {
  readonly content?: readonly { readonly text: string }[]
  readonly choices?: readonly { readonly message: { readonly content: string } }[]
  readonly usage: { readonly prompt_tokens: number; readonly prompt_tokens_details?: { readonly cached_tokens: number } }
  readonly kvfold: { readonly thread: string }
}

async function reply(route: string, body: object, on = served): Promise<Reply> {
  const { status, text } = await post(route, { kvfold: {}, ...body }, on)
  expect(text).not.toContain('"error":{')
  expect(status).toBe(200)
  return JSON.parse(text) as Reply
}

const said = ({ content, choices }: Reply): string => content?.[0]?.text ?? choices?.[0]?.message.content ?? ''

/** Returns the model's continuation, by a bare completion of the same prompt. */
async function expected(): Promise<string> {
  const { tokens } = engine.format.render({
    messages: [question, { role: 'assistant', content: BEGINNING }] as Parameters<typeof engine.format.render>[0]['messages'],
    continues: true,
  })
  const { text } = await post('completions', { prompt: [...tokens] })
  return (JSON.parse(text) as { choices: { text: string }[] }).choices[0]!.text
}

describe.each([
  ['messages', {}],
  ['chat/completions', {}],
  ['chat/completions', { continue_final_message: true, add_generation_prompt: false }],
  ['chat/completions', { add_generation_prompt: false }],
])('%s %j', (route, more) => {
  it('continues a last message of the assistant, and returns only the new text', async () => {
    const answer = said(await reply(route, { messages, ...more }))
    expect(answer).toBe(await expected())
    expect(answer).not.toBe('')
    expect(answer).not.toContain(BEGINNING)
    const { text } = await post(route, { messages, stream: true, ...more })
    const pieces = [...text.matchAll(/"(?:text_delta","text|content)":("(?:[^"\\]|\\.)*")/g)]
    expect(pieces.map(([, piece]) => JSON.parse(piece!) as string).join('')).toBe(answer)
  })

  it('keeps both parts in the thread, and reuses their cells', async () => {
    const first = await reply(route, { messages, ...more })
    const whole = { role: 'assistant', content: BEGINNING + said(first) }
    const next = { role: 'user', content: 'And of blue?' }
    const second = await reply(route, { messages: [question, whole, next] })
    expect(second.kvfold).toMatchObject({ thread: first.kvfold.thread, lost: null, edits: null })
    const { all, ledger } = served.service.threads.get(PUBLIC, first.kvfold.thread)
    expect(all.slice(0, 3).map(({ message: { role, content } }) => ({ role, content }))).toEqual([question, whole, next])
    const [begun, after] = ledger.slice(-2)
    expect(begun!.shown).toBe(begun!.reused + begun!.recomputed + begun!.fresh)
    // All tokens are reused up to the end of the turn.
    expect(after!.reused).toBeGreaterThanOrEqual(begun!.shown)
    expect(after!.messages[1]).toMatchObject({ recomputed: 0 })
    await engine.check('full')
  })
})

it("continues a last message of the assistant of Ollama's clients, unless the answer must have a format or think", async () => {
  const asked = async (more: object) => {
    const body = JSON.stringify({ messages, stream: false, options: { num_predict: 12 }, ...more })
    return (await (await fetch(`${served.url}/api/chat`, { method: 'POST', body })).json()) as {
      readonly message: { readonly content: string }
      readonly prompt_eval_count: number
    }
  }
  const going = await asked({})
  expect(going.message.content).toBe(await expected())
  expect((await asked({ think: false })).prompt_eval_count).toBe(going.prompt_eval_count)
  const anew = engine.count(messages as Parameters<typeof engine.count>[0], [])
  for (const more of [{ format: 'json' }, { think: true }]) expect((await asked(more)).prompt_eval_count).toBe(anew)
})

it('starts a new answer if the request says so, or if its format cannot continue this one', async () => {
  const shown = (more: object) => reply('chat/completions', { messages, ...more }).then(({ usage }) => usage.prompt_tokens)
  const anew = engine.count(messages as Parameters<typeof engine.count>[0], [])
  const going = await shown({})
  expect(going).toBeLessThan(anew)
  expect(await shown({ continue_final_message: false })).toBe(anew)
  expect(await shown({ add_generation_prompt: true })).toBe(anew)
  expect(await shown({ response_format: { type: 'json_object' } })).toBe(anew)
})

it('a thinking model continues without thinking, and its empty thought stays out of the answer', async () => {
  const first = await reply('messages', { messages }, thinking)
  const { all } = thinking.service.threads.get(PUBLIC, first.kvfold.thread)
  expect(all[1]!.message.sampled).toMatchObject({ prompt: '<|im_start|>assistant\n<think>\n\n</think>\n\n' })
  expect(all[1]!.message.content).toBe(BEGINNING + said(first))
  expect(all[1]!.message.reasoning).toBeUndefined()
})

describe('refuses', () => {
  const last = 'messages[1]'
  it.each([
    ['messages', { thinking: { type: 'enabled' } }, 'not thought about any more'],
    ['messages', { tools: [{ name: 'look' }], tool_choice: { type: 'any' } }, 'forced tool call'],
    ['messages', { output_config: { format: { type: 'json_schema', schema: {} } } }, 'in a format'],
    ['messages', { messages: [question, { role: 'assistant', content: [{ type: 'thinking', thinking: 'Hm.' }] }] }, last],
    ['chat/completions', { continue_final_message: true, enable_thinking: true }, 'not thought about any more'],
    ['chat/completions', { continue_final_message: true, tools, tool_choice: 'required' }, 'forced tool call'],
    ['chat/completions', { continue_final_message: true, response_format: { type: 'json_object' } }, 'in a format'],
    ['chat/completions', { continue_final_message: true, add_generation_prompt: true }, 'cannot both be true'],
    ['chat/completions', { continue_final_message: true, messages: [question] }, 'messages[0] is not one of the assistant'],
    ['chat/completions', { add_generation_prompt: false, messages: [question] }, 'messages[0] is not one of the assistant'],
  ])('%s %j', async (route, body, why) => {
    const { status, text } = await post(route, { messages, ...body })
    expect(text).toContain(why)
    expect(status).toBe(400)
  })
})
