/**
 * Tests deferred tools as clients of Anthropic's and OpenAI's APIs see them. A script gives the model's answers, and a real engine computes
 * them.
 */
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { EngineRequest } from '../../../src/runtime/engine/engine.js'
import { serving, type Serving } from './support/serving.js'

const CITIES = ['Lisbon', 'Oslo', 'Quito', 'Hanoi', 'Dakar']
const THINGS = ['weather', 'population', 'altitude', 'mayor', 'area']
/** 500 tools, 25 of them with a topic. */
const TOOLS = Array.from({ length: 500 }, (_, at) => {
  const [thing, city] = at < 25 ? [THINGS[at % 5]!, CITIES[Math.floor(at / 5)]!] : ['ledger', `account ${at}`]
  return {
    name: `${thing}_${city.toLowerCase().replace(' ', '_')}`,
    description: `The ${thing} of ${city}.`,
    schema: { type: 'object' as const, properties: { day: { type: 'string' } } },
  }
})

let served: Serving
let asked: EngineRequest[] = []
beforeAll(async () => {
  served = await serving({
    slots: 1,
    // The model searches for the user's text, calls the tool found, and says its result.
    teacher: (request) => {
      asked.push(request)
      const { messages, tools = [], unlisted = [] } = request
      const last = messages.at(-1)!
      if (last.role === 'tool' && !/search/.test(last.name ?? '')) return { content: `It is ${last.content}.` }
      if (last.role === 'tool') return { calls: unlisted.slice(-1).map(({ name }) => ({ name, arguments: { day: 'today' } })) }
      const search = tools.find(({ name }) => name.includes('search'))!
      const words = last.content
      return {
        content: 'Let me look.',
        calls: [{ name: search.name, arguments: search.name.endsWith('regex') ? { pattern: words } : { query: words } }],
      }
    },
  })
})
afterAll(() => served.close())

const threads = () => served.service.threads.list('public').length
const submitted = (thread: string) =>
  served.service.threads.get('public', thread).ledger.reduce((sum, entry) => sum + entry.submitted, 0)

describe('/v1/messages', () => {
  const client = () => new Anthropic({ baseURL: served.url, apiKey: 'none', maxRetries: 0 })
  const deferred = TOOLS.map(({ name, description, schema }) => ({
    name,
    description,
    input_schema: schema,
    defer_loading: true,
  }))
  const searching = (kind: 'bm25' | 'regex') => [
    { type: `tool_search_tool_${kind}_20251119`, name: `tool_search_tool_${kind}` } as Anthropic.ToolUnion,
    ...deferred,
  ]
  const ask = (messages: Anthropic.MessageParam[], tools: Anthropic.ToolUnion[]) =>
    client().messages.create({ model: 'builtin', max_tokens: 64, messages, tools })

  it.each(['bm25', 'regex'] as const)(
    '%s: found tools are shown and callable, and stay so when the client sends the result back',
    async (kind) => {
      asked = []
      const words = kind === 'bm25' ? 'weather of Oslo' : 'weather_oslo'
      const messages: Anthropic.MessageParam[] = [{ role: 'user', content: words }]
      const tools = searching(kind)
      const first = await ask(messages, tools)
      expect(first.content.map(({ type }) => type)).toEqual(['text', 'server_tool_use', 'tool_search_tool_result', 'tool_use'])
      expect(first.content[2]).toMatchObject({ content: { type: 'tool_search_tool_search_result' } })
      const found = (first.content[2] as unknown as { content: { tool_references: { tool_name: string }[] } }).content
        .tool_references
      expect(found.length).toBeLessThanOrEqual(5)
      expect(found[0]).toEqual({ type: 'tool_reference', tool_name: 'weather_oslo' })
      expect(first.stop_reason).toBe('tool_use')
      // The list at the top has only the search.
      expect(asked.map((request) => request.tools!.map(({ name }) => name))).toEqual([
        [`tool_search_tool_${kind}`],
        [`tool_search_tool_${kind}`],
      ])

      const before = threads()
      const call = first.content[3] as Anthropic.ToolUseBlock
      messages.push({ role: 'assistant', content: first.content as Anthropic.ContentBlockParam[] })
      messages.push({ role: 'user', content: [{ type: 'tool_result', tool_use_id: call.id, content: 'rain' }] })
      const second = await ask(messages, tools)
      expect(second.content).toEqual([{ type: 'text', text: 'It is rain.' }])
      expect(threads()).toBe(before)
      const [entry] = served.service.threads.get('public', served.service.threads.list('public')[0]!.id).ledger.slice(-1)
      expect(entry!.recomputed).toBe(0)
    },
  )

  it('a client with 500 deferred tools pays only for those it finds', async () => {
    const messages: Anthropic.MessageParam[] = [{ role: 'user', content: 'altitude of Quito' }]
    const all = await client().messages.countTokens({
      model: 'builtin',
      messages,
      tools: deferred.map(({ defer_loading: _, ...tool }) => tool),
    })
    const some = await client().messages.countTokens({ model: 'builtin', messages, tools: searching('bm25') })
    const { usage } = await ask(messages, searching('bm25'))
    expect(all.input_tokens).toBeGreaterThan(7000)
    expect(some.input_tokens).toBeLessThan(400)
    // The prompt has the tools found, the search and its call, and nothing of the other 495.
    expect(usage.input_tokens + (usage.cache_read_input_tokens ?? 0)).toBeLessThan(all.input_tokens / 10)
  })

  it('streams the search as blocks', async () => {
    const stream = client().messages.stream({
      ...{ model: 'builtin', max_tokens: 64, messages: [{ role: 'user', content: 'mayor of Dakar' }] },
      tools: searching('bm25'),
    })
    const types: string[] = []
    stream.on('streamEvent', (event) => {
      if (event.type === 'content_block_start') types.push(event.content_block.type)
    })
    const whole = await stream.finalMessage()
    expect(types).toEqual(['text', 'server_tool_use', 'tool_search_tool_result', 'tool_use'])
    expect(whole.content[1]!).toMatchObject({ type: 'server_tool_use', input: { query: 'mayor of Dakar' } })
  })

  it("a client's own search: references in its result become definitions; a reference to an unknown tool is refused", async () => {
    asked = []
    const tools: Anthropic.ToolUnion[] = [
      { name: 'my_search', description: 'Finds.', input_schema: { type: 'object' } },
      ...deferred,
    ]
    const result = (name: string): Anthropic.MessageParam[] => [
      { role: 'user', content: 'area of Hanoi' },
      { role: 'assistant', content: [{ type: 'tool_use', id: 'a', name: 'my_search', input: {} }] },
      {
        role: 'user',
        content: [{ type: 'tool_result', tool_use_id: 'a', content: [{ type: 'tool_reference', tool_name: name }] }],
      },
    ]
    const { content } = await ask(result('area_hanoi'), tools)
    expect(content).toMatchObject([{ type: 'tool_use', name: 'area_hanoi' }])
    expect(asked[0]!.messages.find(({ role }) => role === 'tool')!.content).toMatch(/^\{"name": "area_hanoi"/)
    await expect(ask(result('area_of_nothing'), tools)).rejects.toThrow(/names no tool of this request/)
  })
})

describe('/v1/responses', () => {
  const client = () => new OpenAI({ baseURL: `${served.url}/v1`, apiKey: 'none', maxRetries: 0 })
  const functions = TOOLS.map(({ name, description, schema }) => ({
    ...{ type: 'function' as const, name, description, parameters: schema, strict: false, defer_loading: true },
  }))

  it('the server searches; the thread continues by items or by id', async () => {
    const tools = [{ type: 'tool_search' as const }, ...functions]
    const input: OpenAI.Responses.ResponseInput = [{ role: 'user', content: 'population of Lisbon' }]
    const first = await client().responses.create({ model: 'builtin', input, tools })
    const types = first.output.map(({ type }) => type)
    expect(types).toEqual(['message', 'tool_search_call', 'tool_search_output', 'function_call'])
    expect(first.output[2]).toMatchObject({
      execution: 'server',
      status: 'completed',
      tools: expect.arrayContaining([functions[1]]) as unknown,
    })
    const call = first.output[3] as OpenAI.Responses.ResponseFunctionToolCall
    const result = { type: 'function_call_output' as const, call_id: call.call_id, output: '545,000' }
    const before = threads()
    const byId = await client().responses.create({ model: 'builtin', tools, previous_response_id: first.id, input: [result] })
    expect(byId.output_text).toBe('It is 545,000.')
    const byItems = await client().responses.create({
      ...{ model: 'builtin', tools },
      input: [...input, ...(first.output as OpenAI.Responses.ResponseInputItem[]), result],
    })
    expect(byItems.output_text).toBe('It is 545,000.')
    // The second request repeats the first one, so it is a fork.
    expect(threads()).toBeLessThanOrEqual(before + 1)
  })

  it('streams the search as items', async () => {
    const stream = client().responses.stream({
      ...{ model: 'builtin', tools: [{ type: 'tool_search' as const }, ...functions] },
      input: [{ role: 'user', content: 'area of Dakar' }],
    })
    const items: string[] = []
    for await (const event of stream) {
      if (event.type === 'response.output_item.added') items.push(`begins ${event.item.type}`)
      if (event.type === 'response.output_item.done') items.push(event.item.type)
    }
    const types = ['message', 'tool_search_call', 'tool_search_output', 'function_call']
    expect(items).toEqual(types.flatMap((type) => [`begins ${type}`, type]))
    const { output } = await stream.finalResponse()
    expect(output.map(({ type }) => type)).toEqual(types)
    expect(output[1]).toMatchObject({ execution: 'server', arguments: { query: 'area of Dakar' } })
    const found = output[2] as OpenAI.Responses.ResponseToolSearchOutputItem
    expect(found.tools).toContainEqual(functions[24])
    expect(output[3]).toMatchObject({ name: (found.tools.at(-1) as { name: string }).name, arguments: '{"day":"today"}' })
  })

  it('a deleted response that searched takes its thread with it', async () => {
    const tools: OpenAI.Responses.Tool[] = [{ type: 'tool_search' }, ...functions.map((of) => ({ ...of, defer_loading: true }))]
    const input: OpenAI.Responses.ResponseInput = [{ role: 'user', content: 'mayor of Lima' }]
    const before = threads()
    const { id, output } = await client().responses.create({ model: 'builtin', input, tools })
    expect(output.map(({ type }) => type)).toContain('tool_search_call')
    expect(threads()).toBe(before + 1)
    await client().responses.delete(id)
    expect(threads()).toBe(before)
  })

  it('the client searches: the tools in its output can be called', async () => {
    const tools = [{ type: 'tool_search' as const, execution: 'client' as const, description: 'Finds tools.' }]
    const input: OpenAI.Responses.ResponseInput = [{ role: 'user', content: 'mayor of Quito' }]
    const first = await client().responses.create({ model: 'builtin', input, tools })
    const search = first.output[1] as OpenAI.Responses.ResponseToolSearchCall
    expect(search).toMatchObject({ type: 'tool_search_call', execution: 'client', arguments: { query: 'mayor of Quito' } })
    const output = {
      ...{ type: 'tool_search_output' as const, execution: 'client' as const, call_id: search.call_id },
      ...{ status: 'completed' as const, tools: [functions[13]!] },
    }
    const before = threads()
    const second = await client().responses.create({ model: 'builtin', tools, previous_response_id: first.id, input: [output] })
    expect(second.output).toMatchObject([{ type: 'function_call', name: functions[13]!.name }])
    expect(threads()).toBe(before)
    const thread = served.service.threads.list('public')[0]!.id
    expect(submitted(thread)).toBeLessThan(500)
  })
})
