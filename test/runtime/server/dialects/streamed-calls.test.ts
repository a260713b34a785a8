/**
 * Tests arguments of tool calls that are streamed as they are generated. Their sum equals the whole answer's, and calls of server tools are
 * not streamed.
 */
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { ScriptedEngine } from '../../../support/scripted.js'
import { serving, type Serving } from '../support/serving.js'

let served: Serving
let openai: OpenAI
let anthropic: Anthropic
const clients = (of: Serving) => ({
  openai: new OpenAI({ baseURL: `${of.url}/v1`, apiKey: 'none', maxRetries: 0 }),
  anthropic: new Anthropic({ baseURL: of.url, apiKey: 'none', maxRetries: 0 }),
})
beforeAll(async () => {
  served = await serving()
  ;({ openai, anthropic } = clients(served))
})
afterAll(() => served.close())

const model = 'builtin'
/** The schema forces the same arguments whatever the model does. */
const note = 'The quick brown fox jumps over the lazy dog, "twice" at that; pack my box with five dozen liquor jugs.'
const parameters = {
  type: 'object' as const,
  properties: { where: { enum: ['sky'] }, note: { enum: [note] } },
  required: ['where', 'note'],
}
const WHOLE = JSON.stringify({ where: 'sky', note })
const messages = [{ role: 'user' as const, content: 'Look.' }]
const ENOUGH = 300

const chat = async (max: number, { client = openai, more = {} }: { client?: OpenAI; more?: object } = {}) => {
  const stream = await client.chat.completions.create({
    model,
    messages,
    tools: [{ type: 'function', function: { name: 'look', parameters } }],
    tool_choice: 'required',
    parallel_tool_calls: false,
    max_completion_tokens: max,
    stream: true,
    ...more,
  })
  const chunks = []
  for await (const chunk of stream) chunks.push(...chunk.choices)
  return {
    calls: chunks.flatMap(({ delta }) => delta.tool_calls ?? []),
    finish: chunks.at(-1)?.finish_reason,
    text: chunks.map(({ delta }) => delta.content ?? '').join(''),
  }
}

const message = async (max: number) => {
  const stream = anthropic.messages.stream({
    model,
    messages,
    tools: [{ name: 'look', input_schema: parameters }],
    tool_choice: { type: 'any', disable_parallel_tool_use: true },
    max_tokens: max,
  })
  const deltas: string[] = []
  const kinds: string[] = []
  for await (const event of stream) {
    if (kinds.at(-1) !== event.type) kinds.push(event.type)
    if (event.type === 'content_block_delta' && event.delta.type === 'input_json_delta') deltas.push(event.delta.partial_json)
  }
  return { deltas, kinds, final: await stream.finalMessage() }
}

const respond = async (max: number) => {
  // The package joins the items, and throws if the events do not fit.
  const stream = openai.responses.stream({
    model,
    input: 'Look.',
    tools: [{ type: 'function', name: 'look', parameters, strict: true }],
    tool_choice: 'required',
    parallel_tool_calls: false,
    max_output_tokens: max,
  })
  const events: OpenAI.Responses.ResponseStreamEvent[] = []
  for await (const event of stream) events.push(event)
  const deltas = events.flatMap((event) => (event.type === 'response.function_call_arguments.delta' ? [event] : []))
  return { events, deltas, kinds: events.map(({ type }) => type).filter((type, at, all) => type !== all[at - 1]) }
}

it('come piece by piece in a chat completion, and equal those of the whole answer', async () => {
  const whole = await openai.chat.completions.create({
    model,
    messages,
    tools: [{ type: 'function', function: { name: 'look', parameters } }],
    tool_choice: 'required',
    parallel_tool_calls: false,
    max_completion_tokens: ENOUGH,
  })
  expect(whole.choices[0]?.message.tool_calls).toMatchObject([{ function: { arguments: WHOLE } }])
  const { calls, finish } = await chat(ENOUGH)
  const [first, ...rest] = calls
  expect(first).toMatchObject({ index: 0, type: 'function', function: { name: 'look', arguments: '' } })
  expect(first?.id).toMatch(/^call_/)
  expect(rest.length).toBeGreaterThan(10)
  expect(rest.every((delta) => delta.index === 0 && delta.id === undefined && delta.function?.name === undefined)).toBe(true)
  expect(rest.map((delta) => delta.function?.arguments).join('')).toBe(WHOLE)
  expect(finish).toBe('tool_calls')
})

it('come piece by piece in a message', async () => {
  const { deltas, kinds, final } = await message(ENOUGH)
  expect(deltas.length).toBeGreaterThan(10)
  expect(deltas.join('')).toBe(WHOLE)
  const block = ['content_block_start', 'content_block_delta', 'content_block_stop']
  expect(kinds).toEqual(['message_start', ...block, 'message_delta', 'message_stop'])
  expect(final).toMatchObject({ stop_reason: 'tool_use', content: [{ type: 'tool_use', input: { where: 'sky', note } }] })
})

it('come piece by piece in a response', async () => {
  const { events, deltas, kinds } = await respond(ENOUGH)
  expect(deltas.length).toBeGreaterThan(10)
  expect(deltas.map(({ delta }) => delta).join('')).toBe(WHOLE)
  const item = ['response.output_item.added', 'response.function_call_arguments.delta']
  const done = ['response.function_call_arguments.done', 'response.output_item.done', 'response.completed']
  expect(kinds).toEqual(['response.created', 'response.in_progress', ...item, ...done])
  expect(events.map(({ sequence_number: number }) => number)).toEqual(events.map((_, at) => at))
  const completed = events.at(-1)!
  const [call] = completed.type === 'response.completed' ? completed.response.output : []
  expect(call).toMatchObject({ type: 'function_call', status: 'completed', name: 'look', arguments: WHOLE })
  for (const { item_id: id, output_index: index } of deltas) expect([id, index]).toEqual([call!.id, 0])
  expect(events.find(({ type }) => type === 'response.output_item.added')).toMatchObject({
    item: { id: call!.id, status: 'in_progress', arguments: '' },
  })
})

it('end where the limit cuts them off, which is reported', async () => {
  // The limit falls in the middle of the note.
  const cut = (await message(ENOUGH)).final.usage.output_tokens - 25
  const expectCut = (told: string) => {
    expect(WHOLE.startsWith(told)).toBe(true)
    expect(told.length).toBeGreaterThan(2)
    expect(told.length).toBeLessThan(WHOLE.length)
  }
  const completion = await chat(cut)
  expect(completion.finish).toBe('length')
  expectCut(completion.calls.map((delta) => delta.function?.arguments).join(''))
  const said = await message(cut)
  expectCut(said.deltas.join(''))
  expect(said.final.stop_reason).toBe('max_tokens')
  expect(said.kinds.slice(-3)).toEqual(['content_block_stop', 'message_delta', 'message_stop'])
  const { events, deltas, kinds } = await respond(cut)
  expectCut(deltas.map(({ delta }) => delta).join(''))
  expect(kinds).not.toContain('response.function_call_arguments.done')
  const last = events.at(-1)!
  expect(last).toMatchObject({ type: 'response.incomplete', response: { incomplete_details: { reason: 'max_output_tokens' } } })
  expect(last.type === 'response.incomplete' ? last.response.output : null).toEqual([])
})

it('name one item, also behind text', async () => {
  const scripted = await serving({
    engine: () => new ScriptedEngine([{ content: 'So.', calls: [{ name: 'look', arguments: { where: 'sky', note } }] }]),
  })
  try {
    const stream = clients(scripted).openai.responses.stream({
      ...{ model, input: 'Look.' },
      tools: [{ type: 'function', name: 'look', parameters, strict: true }],
    })
    const ids = new Set<string | undefined>()
    for await (const event of stream) {
      if (!('output_index' in event) || event.output_index !== 1) continue
      ids.add('item' in event ? event.item.id : event.item_id)
    }
    const { output } = await stream.finalResponse()
    expect([...ids]).toEqual([output[1]!.id])
  } finally {
    await scripted.close()
  }
})

it('are not sent for calls of server tools', async () => {
  const scripted = await serving({
    engine: () =>
      new ScriptedEngine([
        { calls: [{ name: 'search_context', arguments: { query: 'never told' } }] },
        { content: 'So.', calls: [{ name: 'look', arguments: { where: 'sky', note } }] },
      ]),
  })
  try {
    const more = { tool_choice: 'auto', kvfold: { acm: 'tools' } }
    const { calls, text } = await chat(ENOUGH, { client: clients(scripted).openai, more })
    expect(calls.map(({ index }) => index)).toEqual([0, 0, 0])
    expect(calls.map((delta) => delta.function?.arguments).join('')).toBe(WHOLE)
    expect(text).toBe('So.')
  } finally {
    await scripted.close()
  }
})
