/** Tests Anthropic's package against the server. */
import Anthropic, { APIUserAbortError, BadRequestError, NotFoundError } from '@anthropic-ai/sdk'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { ScriptedEngine } from '../../../support/scripted.js'
import { endless, serving, type Serving } from '../support/serving.js'

let served: Serving
let client: Anthropic

beforeAll(async () => {
  served = await serving()
  client = new Anthropic({ baseURL: served.url, apiKey: 'none', maxRetries: 0 })
})

afterAll(() => served.close())

const model = 'builtin'
const user = (content: string) => ({ role: 'user' as const, content })
const tools = [
  {
    name: 'get_time',
    description: 'Time',
    input_schema: { type: 'object' as const, properties: { zone: { enum: ['UTC'] } }, required: ['zone'] },
  },
]

describe('messages', () => {
  it('answers, and counts the prompt in computed and cached tokens', async () => {
    const ask = { model, system: 'Be short.', messages: [user('The value of red is 4. What is red?')], max_tokens: 6 }
    const first = await client.messages.create(ask)
    expect(first.type).toBe('message')
    expect(['end_turn', 'max_tokens', 'tool_use']).toContain(first.stop_reason)
    const { input_tokens: counted } = await client.messages.countTokens({ model, system: 'Be short.', messages: ask.messages })
    expect(first.usage.input_tokens + (first.usage.cache_read_input_tokens ?? 0)).toBe(counted)
    const again = await client.messages.create(ask)
    expect(again.usage.cache_read_input_tokens).toBeGreaterThan(counted / 2)
    expect(again.usage.input_tokens + again.usage.cache_read_input_tokens!).toBe(counted)
    expect(again.content).toEqual(first.content)
  })

  it('streams the same message as it returns whole', async () => {
    const ask = { model, messages: [user('The value of blue is 9. What is blue?')], max_tokens: 12 }
    const whole = await client.messages.create(ask)
    const streamed = await client.messages.stream(ask).finalMessage()
    expect(streamed.content).toEqual(whole.content)
    expect(streamed.stop_reason).toBe(whole.stop_reason)
    expect(streamed.usage.output_tokens).toBe(whole.usage.output_tokens)
  })

  it('names the stop sequence that ended it', async () => {
    const ask = { model, messages: [user('Hello.')], max_tokens: 20, ...{ kvfold: { grammar: 'root ::= "one two three"' } } }
    const stopped = { ...ask, stop_sequences: ['three', ' two'] }
    const whole = await client.messages.create(stopped)
    expect(whole).toMatchObject({ stop_reason: 'stop_sequence', stop_sequence: ' two', content: [{ text: 'one' }] })
    const streamed = await client.messages.stream(stopped).finalMessage()
    expect(streamed).toMatchObject({ stop_reason: 'stop_sequence', stop_sequence: ' two', content: [{ text: 'one' }] })
    expect(await client.messages.create(ask)).toMatchObject({ stop_reason: 'end_turn', stop_sequence: null })
  })

  it('makes a requested call, and accepts its result', async () => {
    const messages = [user('Time?')]
    const choice = { type: 'tool' as const, name: 'get_time', disable_parallel_tool_use: true }
    const asked = await client.messages.create({ model, messages, tools, tool_choice: choice, max_tokens: 200 })
    // The model would make more calls, but the turn ends with the first one.
    expect(asked.stop_reason).toBe('tool_use')
    expect(asked.usage.output_tokens).toBeLessThan(100)
    const call = asked.content.find((block) => block.type === 'tool_use')!
    expect(call.input).toEqual({ zone: 'UTC' })
    const streamed = await client.messages.stream({ model, messages, tools, tool_choice: choice, max_tokens: 200 }).finalMessage()
    expect(streamed.content.find((block) => block.type === 'tool_use')?.input).toEqual({ zone: 'UTC' })
    const said = await client.messages.create({
      model,
      messages: [
        ...messages,
        { role: 'assistant', content: asked.content },
        { role: 'user', content: [{ type: 'tool_result', tool_use_id: call.id, content: [{ type: 'text', text: 'Noon.' }] }] },
      ],
      tools,
      tool_choice: { type: 'none' },
      max_tokens: 6,
    })
    expect(said.content.every((block) => block.type === 'text')).toBe(true)
    // The sampled call is in the cache; its last token was never submitted.
    const { input_tokens: prompt, output_tokens: sampled } = asked.usage
    expect(said.usage.cache_read_input_tokens).toBeGreaterThanOrEqual(
      prompt + (asked.usage.cache_read_input_tokens ?? 0) + sampled - 1,
    )
  })

  it('returns several calls', async () => {
    const calls = [
      { id: 'toolu_a', name: 'get_time', arguments: { zone: 'UTC' } },
      { id: 'toolu_b', name: 'get_time', arguments: {} },
    ]
    const scripted = await serving({ engine: () => new ScriptedEngine(() => ({ content: 'Looking.', calls })) })
    try {
      const other = new Anthropic({ baseURL: scripted.url, apiKey: 'none', maxRetries: 0 })
      const expected = [
        { type: 'text', text: 'Looking.' },
        ...calls.map(({ id, name, arguments: input }) => ({ type: 'tool_use', id, name, input })),
      ]
      const ask = { model, messages: [user('Times?')], tools, max_tokens: 50 }
      expect((await other.messages.create(ask)).content).toEqual(expected)
      expect((await other.messages.stream(ask).finalMessage()).content).toEqual(expected)
    } finally {
      await scripted.close()
    }
  })

  it('keeps to a JSON schema', async () => {
    const schema = {
      type: 'object',
      properties: { colour: { enum: ['red', 'blue'] } },
      required: ['colour'],
      additionalProperties: false,
    }
    const answer = await client.messages.create({
      model,
      messages: [user('Red or blue?')],
      max_tokens: 60,
      output_config: { format: { type: 'json_schema', schema } },
    })
    const [block] = answer.content
    expect(['red', 'blue']).toContain((JSON.parse(block?.type === 'text' ? block.text : '') as { colour: string }).colour)
  })

  it('stops computing when the client leaves', async () => {
    const stream = client.messages.stream({ model, messages: [user('Go on for ever.')], max_tokens: 3000, ...endless })
    stream.on('streamEvent', (event) => {
      if (event.type === 'content_block_delta') stream.abort()
    })
    await expect(stream.finalMessage()).rejects.toBeInstanceOf(APIUserAbortError)
    await expect.poll(() => served.service.status().running, { timeout: 5000 }).toBe(0)
  })

  it('reports errors so that the package recognises them', async () => {
    const unknown = client.messages.create({ model: 'claude-9', messages: [user('Hi')], max_tokens: 5 })
    await expect(unknown).rejects.toBeInstanceOf(NotFoundError)
    await expect(unknown).rejects.toMatchObject({ status: 404, error: { type: 'error', error: { type: 'not_found_error' } } })
    const unlimited = client.messages.create({ model, messages: [user('Hi')] } as never)
    await expect(unlimited).rejects.toBeInstanceOf(BadRequestError)
    await expect(unlimited).rejects.toThrow(/max_tokens is missing/)
    const long = client.messages.create({ model, messages: [user('word '.repeat(40_000))], max_tokens: 5, stream: true })
    await expect(long).rejects.toMatchObject({ status: 400, type: 'invalid_request_error' })
    const said: unknown = await long.catch((error: unknown) => (error as Error).message)
    const [, tokens, maximum] = /prompt is too long: (?:at least )?(\d+) tokens > (\d+) maximum/.exec(String(said)) ?? []
    expect(Number(tokens)).toBeGreaterThan(Number(maximum))
  })

  it('lists models', async () => {
    expect((await client.models.list()).data.map(({ id }) => id)).toEqual([model])
    expect((await client.models.retrieve(model)).display_name).toBeTypeOf('string')
  })
})
