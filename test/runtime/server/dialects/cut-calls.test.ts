/** Tests a tool call that the token limit or a stop string cuts off: no client sees it, in any dialect, and its conversation continues. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { serving, type Serving } from '../support/serving.js'

let served: Serving
beforeAll(async () => {
  served = await serving()
})
afterAll(() => served.close())

/** The parameters force the same call whatever the model does; the whole call takes 40 to 100 tokens. */
const parameters = { type: 'object', properties: { where: { enum: ['sky'] } }, required: ['where'] }
const question = { role: 'user', content: 'Look.' }
const TOO_FEW = 8
const ENOUGH = 100

const ROUTES = {
  chat: {
    path: '/v1/chat/completions',
    body: (max_tokens: number) => ({
      messages: [question],
      tools: [{ type: 'function', function: { name: 'look', parameters } }],
      tool_choice: 'required',
      parallel_tool_calls: false,
      max_tokens,
    }),
  },
  responses: {
    path: '/v1/responses',
    body: (max_output_tokens: number) => ({
      input: 'Look.',
      tools: [{ type: 'function', name: 'look', parameters }],
      tool_choice: 'required',
      parallel_tool_calls: false,
      max_output_tokens,
    }),
  },
  messages: {
    path: '/v1/messages',
    body: (max_tokens: number) => ({
      messages: [question],
      tools: [{ name: 'look', input_schema: parameters }],
      tool_choice: { type: 'any', disable_parallel_tool_use: true },
      max_tokens,
    }),
  },
}
type Route = keyof typeof ROUTES

const post = (route: Route, body: object) =>
  fetch(served.url + ROUTES[route].path, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  })
const whole = async (route: Route, tokens: number, more: object = {}): Promise<unknown> =>
  (await post(route, { ...ROUTES[route].body(tokens), ...more })).json()
const streamed = async (route: Route, tokens: number, more: object = {}): Promise<string> =>
  (await post(route, { ...ROUTES[route].body(tokens), stream: true, ...more })).text()

describe('a call that the limit cuts off', () => {
  it('is missing from a chat completion, however much of it there is', async () => {
    const called: boolean[] = []
    for (let tokens = 1; tokens <= ENOUGH; tokens += 9) {
      const { choices } = (await whole('chat', tokens)) as {
        choices: [{ finish_reason: string; message: { content: string | null; tool_calls?: { function: object }[] } }]
      }
      const [{ message, finish_reason: reason }] = choices
      called.push(message.tool_calls !== undefined)
      if (message.tool_calls === undefined) expect([reason, message.content]).toEqual(['length', ''])
      else expect(message.tool_calls.map((call) => call.function)).toEqual([{ name: 'look', arguments: '{"where":"sky"}' }])
    }
    // The call is missing until it is complete, and present from then on.
    expect(called[0]).toBe(false)
    expect(called.at(-1)).toBe(true)
    expect([...called].sort()).toEqual(called)
  })

  it('is missing from a response, which is incomplete', async () => {
    expect(await whole('responses', TOO_FEW)).toMatchObject({
      status: 'incomplete',
      incomplete_details: { reason: 'max_output_tokens' },
      output: [{ type: 'message', content: [{ text: '' }] }],
    })
    expect(await whole('responses', ENOUGH)).toMatchObject({ status: 'completed', output: [{ name: 'look' }] })
  })

  it('is missing from a message, which ends at its limit', async () => {
    expect(await whole('messages', TOO_FEW)).toMatchObject({ stop_reason: 'max_tokens', content: [] })
    expect(await whole('messages', ENOUGH)).toMatchObject({ stop_reason: 'tool_use', content: [{ name: 'look' }] })
  })

  it.each<[Route, string, string]>([
    ['chat', '"tool_calls"', '"finish_reason":"length"'],
    ['responses', 'function_call', 'event: response.incomplete'],
    ['messages', 'tool_use', '"stop_reason":"max_tokens"'],
  ])('is missing from a stream of %s', async (route, call, end) => {
    const cut = await streamed(route, TOO_FEW)
    expect(cut).toContain(end)
    // A response repeats the tools and their settings.
    expect(cut.replaceAll('parallel_tool_calls', '')).not.toContain(call)
    expect(await streamed(route, ENOUGH)).toContain(call)
  })

  it('does not stop its conversation from continuing', async () => {
    const first = (await whole('chat', TOO_FEW, { kvfold: {} })) as { kvfold: { thread: string } }
    const more = [question, { role: 'assistant', content: '' }, { role: 'user', content: 'Go on.' }]
    const next = (await whole('chat', ENOUGH, { messages: more, kvfold: {} })) as {
      kvfold: { thread: string; lost: unknown }
      choices: [{ finish_reason: string }]
    }
    expect(next.kvfold).toMatchObject({ thread: first.kvfold.thread, lost: null })
    expect(next.choices[0].finish_reason).toBe('tool_calls')
  })
})

it('a call that a stop string cuts off is missing, too', async () => {
  expect(await whole('chat', ENOUGH, { stop: ['"look'] })).toMatchObject({
    choices: [{ finish_reason: 'stop', stop_reason: '"look', message: { content: '' } }],
  })
  expect(JSON.stringify(await whole('chat', ENOUGH, { stop: ['"look'] }))).not.toContain('tool_calls')
  expect(await whole('messages', ENOUGH, { stop_sequences: ['"look'] })).toMatchObject({
    ...{ stop_reason: 'stop_sequence', stop_sequence: '"look', content: [] },
  })
  const streams = [
    await streamed('chat', ENOUGH, { stop: ['"look'] }),
    await streamed('messages', ENOUGH, { stop_sequences: ['"look'] }),
  ]
  expect(streams[0]).toContain('"finish_reason":"stop","stop_reason":"\\"look"')
  expect(streams[1]).toContain('"stop_reason":"stop_sequence"')
})

it('a response is completed if a whole call came before the one that is cut off', async () => {
  // Where the answer must not end, the model makes one call after the other.
  const endless = { parallel_tool_calls: true, min_tokens: 10_000 }
  const call = { name: 'look', arguments: '{"where":"sky"}' }
  const response = (await whole('responses', ENOUGH, endless)) as { output: readonly object[] }
  expect(response).toMatchObject({ status: 'completed', incomplete_details: null })
  expect(response.output.length).toBeGreaterThan(0)
  for (const item of response.output) expect(item).toMatchObject({ type: 'function_call', ...call })
  const { choices } = (await whole('chat', ENOUGH, endless)) as { choices: [object] }
  expect(choices[0]).toMatchObject({ finish_reason: 'length' })
  expect(JSON.stringify(choices)).toContain('"name":"look"')
})
