/** Tests tools that a provider's API knows by their type alone, and small routes that clients of other servers ask for. */
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { serving, type Serving } from '../support/serving.js'

let served: Serving
let anthropic: Anthropic
let openai: OpenAI

beforeAll(async () => {
  served = await serving({ embeds: true })
  anthropic = new Anthropic({ baseURL: served.url, apiKey: 'none', maxRetries: 0 })
  openai = new OpenAI({ baseURL: `${served.url}/v1`, apiKey: 'none', maxRetries: 0 })
})
afterAll(() => served.close())

const model = 'builtin'
const user = (content: string) => ({ role: 'user' as const, content })
const post = async (path: string, body: object) => {
  const answer = await fetch(served.url + path, { method: 'POST', body: JSON.stringify(body) })
  return { status: answer.status, body: (await answer.json()) as Record<string, never> }
}

describe("Anthropic's tools", () => {
  it.each([
    ['bash_20250124', 'bash', ['command', 'restart']],
    ['bash_20241022', 'bash', ['command', 'restart']],
    ['text_editor_20250728', 'str_replace_based_edit_tool', ['command', 'path', 'insert_text']],
    ['text_editor_20250429', 'str_replace_based_edit_tool', ['command', 'path', 'insert_text']],
    ['text_editor_20250124', 'str_replace_editor', ['command', 'path', 'new_str']],
    ['memory_20250818', 'memory', ['command', 'old_path', 'file_text']],
  ])('%s is a tool with its documented parameters', async (type, name, fields) => {
    const tools = [{ type, name }] as unknown as Anthropic.Tool[]
    const asked = await anthropic.messages.create({
      ...{ model, messages: [user('List the files.')], tools, max_tokens: 400 },
      tool_choice: { type: 'tool', name, disable_parallel_tool_use: true },
    })
    const call = asked.content.find((block) => block.type === 'tool_use')
    expect(call).toMatchObject({ name })
    for (const field of Object.keys(call!.input as object))
      expect([...fields, 'view_range', 'old_str', 'new_str', 'insert_line', 'file_text', 'path', 'new_path']).toContain(field)
    // The model sees the parameters.
    const plain = await anthropic.messages.countTokens({ model, messages: [user('List the files.')] })
    const withTool = await anthropic.messages.countTokens({ model, messages: [user('List the files.')], tools })
    expect(withTool.input_tokens - plain.input_tokens).toBeGreaterThan(10)
  })

  it('leaves out what only its servers can do, and says so; refuses other types by name', async () => {
    const tools = [{ type: 'web_search_20250305', name: 'web_search', max_uses: 3 }] as unknown as Anthropic.Tool[]
    const ask = { model, messages: [user('Hi')], tools, max_tokens: 4 }
    expect(await anthropic.messages.create(ask)).toMatchObject({ kvfold: { ignored: ['tools[0]: web_search_20250305'] } })
    const events: string[] = []
    for await (const event of await anthropic.messages.create({ ...ask, stream: true })) events.push(JSON.stringify(event))
    expect(events.join()).toContain('tools[0]: web_search_20250305')
    expect(await post('/v1/messages', { ...ask, tools: [{ type: 'computer_20250124', name: 'computer' }] })).toMatchObject({
      status: 400,
      body: { error: { message: expect.stringContaining('computer_20250124') as string } },
    })
  })
})

describe("OpenAI's", () => {
  it('web search is left out of a chat, and said so', async () => {
    const body = { model, messages: [user('Hi')], max_tokens: 4, web_search_options: {}, tools: [{ type: 'web_search' }] }
    expect(await post('/v1/chat/completions', body)).toMatchObject({
      status: 200,
      body: { kvfold: { ignored: ['tools[0]: web_search', 'web_search_options'] } },
    })
    expect(await post('/v1/chat/completions', { ...body, tools: [{ type: 'nonsense' }] })).toMatchObject({ status: 400 })
  })

  it('input items of a response are what it answered, page by page', async () => {
    const first = await openai.responses.create({ model, instructions: 'Be short.', input: 'Say red.', max_output_tokens: 4 })
    const second = await openai.responses.create({
      ...{ model, previous_response_id: first.id, max_output_tokens: 4 },
      input: [{ role: 'user', content: [{ type: 'input_text', text: 'Say blue.' }] }],
    })
    const items = []
    for await (const item of openai.responses.inputItems.list(second.id, { order: 'asc' })) items.push(item)
    expect(items).toMatchObject([
      { type: 'message', role: 'user', content: [{ type: 'input_text', text: 'Say red.' }] },
      { type: 'message', role: 'assistant', content: [{ type: 'output_text', text: first.output_text }] },
      { type: 'message', role: 'user', content: [{ type: 'input_text', text: 'Say blue.' }] },
    ])
    const backwards = []
    for await (const item of openai.responses.inputItems.list(second.id, { limit: 1 })) backwards.push(item)
    expect(backwards).toEqual([...items].reverse())
    expect((await openai.responses.inputItems.list(first.id)).data).toMatchObject([{ role: 'user' }])
    await expect(openai.responses.inputItems.list('resp_none_2')).rejects.toMatchObject({ status: 404 })
    await expect(openai.responses.inputItems.list(second.id, { after: 'x' })).rejects.toMatchObject({
      status: 400,
      param: 'after',
    })
  })

  it('input tokens are those that the response counts', async () => {
    const ask = { model, instructions: 'Be short.', input: 'The value of red is 4. What is red?' }
    const counted = await openai.responses.inputTokens.count(ask)
    const answered = await openai.responses.create({ ...ask, max_output_tokens: 2 })
    expect(counted).toEqual({ object: 'response.input_tokens', input_tokens: answered.usage!.input_tokens })
  })
})

it('answers /v1/health and /version without a key, and pools texts', async () => {
  const health = await fetch(`${served.url}/v1/health`)
  expect([health.status, await health.json()]).toEqual([200, { status: 'ok' }])
  expect(await (await fetch(`${served.url}/version`)).json()).toEqual({ version: 'test' })
  const { status, body } = await post('/pooling', { model, input: ['a', 'b'] })
  const embedded = await openai.embeddings.create({ model, input: ['a', 'b'], encoding_format: 'float' })
  expect(status).toBe(200)
  expect(body).toMatchObject({ object: 'list', model, usage: { prompt_tokens: embedded.usage.prompt_tokens } })
  expect((body['data'] as unknown as { data: number[] }[]).map(({ data }) => data)).toEqual(
    embedded.data.map(({ embedding }) => embedding),
  )
  expect(await post('/pooling', { input: 'a', task: 'classify' })).toMatchObject({
    status: 400,
    body: { error: { param: 'task' } },
  })
  expect(await post('/score', { text_1: 'a', text_2: 'b' })).toMatchObject({
    status: 200,
    body: { object: 'list', model, data: [{ index: 0, object: 'score' }] },
  })
})
