/** Tests answers that clients send back with small changes: they still continue their thread. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { writeJson } from '../../../src/runtime/core/written-json.js'
import { inputRest } from '../../../src/runtime/server/dialects/tools.js'
import { ScriptedEngine } from '../../support/scripted.js'
import { serving, type Serving } from './support/serving.js'

interface Body {
  readonly [key: string]: unknown
}

const engine = new ScriptedEngine(({ messages }) =>
  messages.at(-1)?.role === 'tool'
    ? { content: 'It is here.\n', reasoning: 'I see it.' }
    : {
        content: 'I look.\n\n',
        reasoning: 'Where may it be?',
        calls: [{ id: `call_of_${messages.length}`, name: 'look', arguments: { at: 1, of: { name: 'Zürich/A', deep: true } } }],
      },
)
let served: Serving
beforeAll(async () => {
  served = await serving({ engine: () => engine })
})
afterAll(() => served.close())

async function post(route: string, body: Body): Promise<Body> {
  const response = await fetch(`${served.url}${route}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'builtin', kvfold: {}, ...body }),
  })
  const text = await response.text()
  expect([response.status, text]).toEqual([200, text])
  return JSON.parse(text) as Body
}

const threads = () => served.service.threads.list('public').length
/** Checks that the request continues the thread of the one before it, without an edit. */
async function goesOn(route: string, body: Body): Promise<Body> {
  const [before, conversation] = [threads(), engine.requests.at(-1)!.conversation]
  const told = await post(route, body)
  expect(engine.requests.at(-1)!.conversation).toBe(conversation)
  expect(threads()).toBe(before)
  expect(told['kvfold']).toMatchObject({ edits: null })
  return told
}

const OPENAI_TOOLS = [{ type: 'function', function: { name: 'look', parameters: { type: 'object' } } }]
interface Echo {
  readonly role: 'assistant'
  readonly content: string | null
  readonly reasoning_content?: string
  readonly tool_calls?: readonly {
    readonly id: string
    readonly function: { readonly name: string; readonly arguments: string }
  }[]
}
const answerOf = (told: Body): Echo => (told['choices'] as readonly { readonly message: Echo }[])[0]!.message
const withArguments = (echo: Echo, text: string): Echo => ({
  ...echo,
  tool_calls: echo.tool_calls!.map((call) => ({ ...call, function: { ...call.function, arguments: text } })),
})

describe('/v1/chat/completions', () => {
  it.each<[string, (echo: Echo) => object]>([
    ['as it came', (echo) => echo],
    ['with other white space around it', (echo) => ({ ...echo, content: ` ${echo.content!.trim()}\n` })],
    ['trimmed', (echo) => ({ ...echo, content: echo.content!.trim() })],
    ['without reasoning', ({ reasoning_content: _, ...echo }) => echo],
    ['with empty reasoning', (echo) => ({ ...echo, reasoning_content: '' })],
    ['with its content as a part', (echo) => ({ ...echo, content: [{ type: 'text', text: echo.content }] })],
    ['with other keys first', (echo) => withArguments(echo, '{"of":{"deep":true,"name":"Zürich/A"},"at":1}')],
    ['with spaces', (echo) => withArguments(echo, '{\n  "at": 1,\n  "of": { "name": "Zürich/A", "deep": true }\n}')],
    ['with 1.0 for 1', (echo) => withArguments(echo, '{"at":1.0,"of":{"name":"Zürich/A","deep":true}}')],
    ['with 1e0 for 1', (echo) => withArguments(echo, '{"at":1e0,"of":{"name":"Zürich/A","deep":true}}')],
    [
      'with characters escaped',
      (echo) => withArguments(echo, String.raw`{"at":1,"of":{"name":"Z\u00fcrich\/\u0041","deep":true}}`),
    ],
    [
      'with an index beside each call',
      (echo) => ({ ...echo, tool_calls: echo.tool_calls?.map((call, index) => ({ ...call, index })) }),
    ],
    ['with nulls', (echo) => ({ ...echo, refusal: null, annotations: null, audio: null, function_call: null })],
  ])('%s', async (name, change) => {
    const messages: object[] = [{ role: 'user', content: `Where is ${name}?` }]
    const ask = { messages, tools: OPENAI_TOOLS }
    const called = answerOf(await post('/v1/chat/completions', ask))
    messages.push(change(called), { role: 'tool', tool_call_id: called.tool_calls![0]!.id, content: 'A pen.' })
    const { content } = answerOf(await goesOn('/v1/chat/completions', ask))
    messages.push({ role: 'assistant', content: content!.trim() })
    messages.push({ role: 'user', content: 'And now?' })
    await goesOn('/v1/chat/completions', ask)
  })
})

it('/v1/messages: without thinking, with keys in other order and text trimmed', async () => {
  const tools = [{ name: 'look', input_schema: { type: 'object' } }]
  const messages: object[] = [{ role: 'user', content: 'Where is it, Claude?' }]
  const ask = { messages, tools, max_tokens: 100 }
  const { content } = await post('/v1/messages', ask)
  const blocks = content as readonly { readonly type: string; readonly text?: string; readonly id?: string }[]
  const { id } = blocks.find(({ type }) => type === 'tool_use')!
  messages.push(
    {
      role: 'assistant',
      content: blocks
        .filter(({ type }) => type !== 'thinking')
        .map((block) => {
          if (block.type === 'text') return { ...block, text: block.text!.trim() }
          return { ...block, input: { of: { deep: true, name: 'Zürich/A' }, at: 1 } }
        }),
    },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: id, content: 'A pen.' }] },
  )
  await goesOn('/v1/messages', ask)
})

it('/v1/responses: items without reasoning, and arguments written again', async () => {
  const tools = [{ type: 'function', name: 'look', parameters: { type: 'object' } }]
  const input: object[] = [{ role: 'user', content: 'Where is it, Codex?' }]
  const { output } = await post('/v1/responses', { input, tools })
  const items = output as readonly { readonly type: string; readonly call_id?: string }[]
  const call = items.find(({ type }) => type === 'function_call')!
  for (const item of items)
    if (item.type === 'message') input.push({ role: 'assistant', content: [{ type: 'output_text', text: 'I look.' }] })
  input.push({ ...call, arguments: '{ "of": {"deep": true, "name": "Zürich/A"}, "at": 1.0 }' })
  input.push({ type: 'function_call_output', call_id: call.call_id, output: 'A pen.' })
  await goesOn('/v1/responses', { input, tools })
})

describe('answers of other servers', () => {
  const user = (content: string) => ({ role: 'user', content })

  it('/v1/messages: redacted thinking is left out', async () => {
    const content = [
      { type: 'redacted_thinking', data: 'AA==' },
      { type: 'text', text: 'It is there.' },
    ]
    await post('/v1/messages', { messages: [user('Hi.'), { role: 'assistant', content }, user('Where?')], max_tokens: 9 })
    expect(engine.requests.at(-1)?.messages[1]).toEqual({ role: 'assistant', content: 'It is there.' })
  })

  it('/v1/chat/completions: a refusal is the text of a message without content', async () => {
    const refused = { role: 'assistant', content: null, refusal: 'No.' }
    await post('/v1/chat/completions', { messages: [user('Hi.'), refused, user('Why?')] })
    expect(engine.requests.at(-1)?.messages[1]).toEqual({ role: 'assistant', content: 'No.' })
  })
})

describe('arguments that are no JSON', () => {
  const MALFORMED = "{'a': 1}"
  const WHOLE = { INVALID_JSON: MALFORMED }
  const user = { role: 'user', content: 'Where is it?' }
  let broken: Serving
  const broke = new ScriptedEngine(({ messages }) =>
    messages.at(-1)?.role === 'tool' ? { content: 'No.' } : { calls: [{ name: 'look', malformed: MALFORMED }] },
  )
  beforeAll(async () => {
    broken = await serving({ engine: () => broke })
  })
  afterAll(() => broken.close())

  async function send(route: string, body: Body): Promise<string> {
    const response = await fetch(`${broken.url}${route}`, { method: 'POST', body: JSON.stringify({ kvfold: {}, ...body }) })
    expect(response.status).toBe(200)
    return response.text()
  }

  it('stand under one key in a message, whole and streamed, and come back as they were', async () => {
    const body = { messages: [user], max_tokens: 9, tools: [{ name: 'look', input_schema: { type: 'object' } }] }
    const { content } = JSON.parse(await send('/v1/messages', body)) as { content: readonly { id: string; input: object }[] }
    expect(content).toMatchObject([{ type: 'tool_use', input: WHOLE }])
    expect(content[0]!.input).toEqual(WHOLE)
    const result = { role: 'user', content: [{ type: 'tool_result', tool_use_id: content[0]!.id, content: 'Bad.' }] }
    const next = { ...body, messages: [user, { role: 'assistant', content }, result] }
    expect(JSON.parse(await send('/v1/messages', next))).toMatchObject({ kvfold: { edits: null, lost: null } })
    const stream = await send('/v1/messages', { ...body, stream: true })
    const parts = [...stream.matchAll(/^data: (.*"partial_json".*)$/gm)].map(
      ([, data]) => (JSON.parse(data!) as { delta: { partial_json: string } }).delta.partial_json,
    )
    expect(JSON.parse(parts.join(''))).toEqual(WHOLE)
  })

  it('stand under one key in /api/chat, whole and streamed, and come back as they were', async () => {
    const body = { messages: [user], tools: [{ type: 'function', function: { name: 'look' } }] }
    interface Told {
      readonly message: { readonly tool_calls?: readonly { readonly function: { readonly arguments: object } }[] }
    }
    const { message } = JSON.parse(await send('/api/chat', { ...body, stream: false })) as Told
    expect(message.tool_calls?.[0]?.function.arguments).toEqual(WHOLE)
    const lines = (await send('/api/chat', body)).trimEnd().split('\n')
    const calls = lines.flatMap((line) => (JSON.parse(line) as Told).message.tool_calls ?? [])
    expect(calls.map((call) => call.function.arguments)).toEqual([WHOLE])
    await send('/api/chat', { ...body, messages: [user, message, { role: 'tool', content: 'Bad.' }] })
    expect(broke.requests.at(-1)?.messages[1]?.toolCalls).toMatchObject([{ arguments: {}, malformed: MALFORMED }])
  })

  it('that were sent in part become an object that has all of their text', () => {
    const sent = String.raw`{"a":[1,{"b":"x\"y"},[]],"c":{"d":"","e":null},"f":"z`
    const call = { id: '1', name: 'look', arguments: {}, malformed: MALFORMED }
    for (let end = 0; end <= sent.length; end++) {
      const told = sent.slice(0, end)
      // Half an escape, and half a word, are never sent.
      if (/\\$|nu?l?$/.test(told)) continue
      const whole = told + inputRest(call, told)
      expect(writeJson(JSON.parse(whole))).toContain(MALFORMED)
    }
  })
})
