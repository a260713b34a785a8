/** Tests Ollama's routes as its clients use them (`ollama` 0.6.4 was tried by hand). */
import { afterAll, beforeAll, expect, it } from 'vitest'
import { Api } from '../../../conformance/api.js'
import { ScriptedEngine } from '../../../support/scripted.js'
import { PUBLIC } from '../../../../src/runtime/server/ask.js'
import { serving, type Serving } from '../support/serving.js'

let served: Serving
let api: Api

beforeAll(async () => {
  served = await serving({ embeds: true })
  api = new Api(served.url)
})
afterAll(() => served.close())

const HELLO = { model: 'builtin', messages: [{ role: 'user', content: 'Hello' }], options: { num_predict: 6, temperature: 0 } }
const WEATHER = { type: 'function', function: { name: 'weather', parameters: { type: 'object', properties: {} } } }

async function lines(path: string, body: object): Promise<Record<string, unknown>[]> {
  const response = await fetch(`${served.url}${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  })
  expect(response.headers.get('content-type')).toBe('application/x-ndjson')
  return (await response.text())
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, unknown>)
}

it('lists models, shows one, and reports its version', async () => {
  const [model] = (await api.get('/api/tags')).body.models
  expect(model.name).toBe('builtin')
  // The built-in model has no file. Ollama's client shows the first 12 digits.
  expect(model.digest).toMatch(/^[0-9a-f]{64}$/)
  const { capabilities, model_info: info } = (await api.post('/api/show', { model: 'builtin:latest' })).body
  expect(capabilities).toContain('tools')
  expect(info['kvfold.context_length']).toBeGreaterThan(0)
  const [held, ...others] = (await api.get('/api/ps')).body.models
  expect(Date.parse(held.expires_at)).toBeGreaterThan(Date.UTC(2200, 0))
  expect(others).toEqual([])
  // VS Code refuses servers that say less than 0.6.4, and `codex --oss` those below 0.13.4.
  expect((await api.get('/api/version')).body).toEqual({ version: '0.13.4', kvfold: 'test' })
  expect((await api.post('/api/show', { model: 'nobody' })).status).toBe(404)
})

it('answers whole, and in lines that say the same', async () => {
  const { body } = await api.post('/api/chat', { ...HELLO, stream: false })
  expect(body).toMatchObject({ model: 'builtin', message: { role: 'assistant' }, done: true, done_reason: 'stop' })
  expect(body.prompt_eval_count).toBeGreaterThan(0)
  const parts = await lines('/api/chat', HELLO)
  expect(parts.map(({ message }) => (message as { content: string }).content).join('')).toBe(body.message.content)
  expect(parts.map(({ done }) => done)).toEqual([...parts.slice(1).map(() => false), true])
  expect(parts.at(-1)).toMatchObject({ done_reason: 'stop', eval_count: body.eval_count })
})

it('generates from a prompt, with and without the template, and by a schema', async () => {
  const ask = { model: 'builtin', prompt: 'Once', options: { num_predict: 6, temperature: 0 } }
  const { body } = await api.post('/api/generate', { ...ask, raw: true, stream: false })
  expect(body).toMatchObject({ done_reason: 'length', eval_count: 6, prompt_eval_count: 1, context: [] })
  const again = { ...ask, context: body.context, stream: false }
  expect((await api.post('/api/generate', again)).status).toBe(200)
  expect((await lines('/api/generate', { ...ask, raw: true })).map(({ response }) => response).join('')).toBe(body.response)
  const held = { ...ask, system: 'Be kind.', format: { const: '42' }, options: { num_predict: 40 }, stream: false }
  expect((await api.post('/api/generate', held)).body.response).toBe('"42"')
  expect((await api.post('/api/generate', { model: 'builtin' })).body).toMatchObject({ done: true, done_reason: 'load' })
})

it.each([
  ['/api/chat', HELLO],
  ['/api/generate', { prompt: 'Hello' }],
  ['/api/generate', { prompt: 'Hello', raw: true }],
])('%s keeps an answer to kvfold.grammar, alone', async (path, ask) => {
  const given = { ...ask, kvfold: { grammar: 'root ::= "rot" | "blau"' }, options: { num_predict: 20 }, stream: false }
  const { body } = await api.post(path, given)
  expect(body.message?.content ?? body.response).toMatch(/^(rot|blau)$/)
  const refused = await api.post(path, { ...given, format: 'json' })
  expect([refused.status, refused.body.error]).toEqual([400, 'Give kvfold.grammar or format, not both.'])
})

it.each([{ raw: true }, { suffix: 'b' }])('refuses what a prompt without messages cannot have: %o', async (bare) => {
  for (const [name, value] of Object.entries({ thread: 'a', acm: 'tools', contract: 'exact' })) {
    const { status, body } = await api.post('/api/generate', { prompt: 'a', ...bare, kvfold: { [name]: value }, stream: false })
    expect([status, body.error]).toEqual([400, `kvfold.${name} is for conversations; a bare completion has none.`])
  }
})

it('names images among the ignored fields where no template shows their placeholder', async () => {
  const own = await serving({ unsupportedParts: 'placeholder' })
  try {
    const ignored = async (more: object) => {
      const answer = await fetch(`${own.url}/api/generate`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ prompt: 'a', options: { num_predict: 1 }, stream: false, ...more }),
      })
      return ((await answer.json()) as { kvfold?: { ignored: string[] } }).kvfold?.ignored
    }
    expect(await ignored({ raw: true, images: ['AA=='] })).toEqual(['images'])
    expect(await ignored({ raw: true, images: [] })).toBeUndefined()
    expect(await ignored({ images: ['AA=='] })).toBeUndefined()
  } finally {
    await own.close()
  }
})

it('accepts calls and results without ids, in their order', async () => {
  const messages = [
    { role: 'user', content: 'Weather?' },
    {
      role: 'assistant',
      content: '',
      tool_calls: [
        { function: { name: 'weather', arguments: { at: 1 } } },
        { function: { name: 'weather', arguments: { at: 2 } } },
      ],
    },
    { role: 'tool', tool_name: 'weather', content: 'sun' },
    { role: 'tool', tool_name: 'weather', content: 'rain' },
  ]
  expect((await api.post('/api/chat', { ...HELLO, messages, tools: [WEATHER], stream: false })).status).toBe(200)
  const { status, body } = await api.post('/api/chat', {
    ...HELLO,
    messages: [...messages, { role: 'tool', content: 'snow' }],
    stream: false,
  })
  expect(status).toBe(400)
  expect(body.error).toContain('messages[4]')
})

it('takes thoughts as messages of their own, roles in capitals, and a history that begins with a result', async () => {
  const continued = [
    { role: 'User', content: 'Hi' },
    { role: 'thinking', content: 'A greeting.' },
    { role: 'assistant', content: 'Hello.' },
    { role: 'user', content: 'Go on.' },
  ]
  const { status, body } = await api.post('/api/chat', { ...HELLO, messages: continued, stream: false })
  expect(status).toBe(200)
  const whole = continued.flatMap((message) =>
    message.role === 'thinking' ? [] : message.role === 'assistant' ? [{ ...message, thinking: 'A greeting.' }] : [message],
  )
  expect(body.prompt_eval_count).toBe(
    (await api.post('/api/chat', { ...HELLO, messages: whole, stream: false })).body.prompt_eval_count,
  )
  const trimmed = [{ role: 'system', content: 'Be kind.' }, { role: 'tool', content: 'sun' }, ...whole.slice(1)]
  expect((await api.post('/api/chat', { ...HELLO, messages: trimmed, stream: false })).status).toBe(200)
  const foreign = await api.post('/api/chat', { ...HELLO, messages: [{ role: 'moderator', content: 'Hi' }], stream: false })
  expect(foreign).toMatchObject({ status: 400, body: { error: expect.stringContaining('messages[0].role') as string } })
})

it('takes nulls, and loads or unloads a model for a request without messages', async () => {
  const model = 'builtin'
  for (const messages of [{}, { messages: null }, { messages: [] }])
    expect((await api.post('/api/chat', { model, ...messages })).body).toMatchObject({ done: true, done_reason: 'load' })
  expect((await api.post('/api/chat', { model, keep_alive: 0 })).body).toMatchObject({ done: true, done_reason: 'unload' })
  const embed = { model, input: 'one', keep_alive: null, dimensions: null, options: null }
  expect((await api.post('/api/embed', embed)).body.embeddings).toHaveLength(1)
  expect((await api.post('/api/show', { model, verbose: null })).status).toBe(200)
  // A server without a folder of models pulls none, which is not the fault of the nulls.
  expect((await api.post('/api/pull', { model, stream: null, insecure: null })).body.error).toContain('--models FOLDER')
})

it('leaves out the end of a text to embed that is too long, unless the request forbids it', async () => {
  const long = { model: 'builtin', input: ['one', 'The value of red is 4. '.repeat(5000)] }
  const { body } = await api.post('/api/embed', { ...long, truncate: true })
  expect(body.embeddings).toHaveLength(2)
  expect(body.kvfold).toBeUndefined()
  expect((await api.post('/api/embed', long)).body).toEqual(body)
  const refused = await api.post('/api/embed', { ...long, truncate: false })
  expect([refused.status, refused.body.error]).toEqual([400, expect.stringContaining('Text 1 has')])
  expect((await api.post('/api/embeddings', { model: 'builtin', prompt: long.input[1] })).status).toBe(200)
})

it.each([
  ['/api/chat', HELLO],
  ['/api/generate', { model: 'builtin', prompt: 'Once' }],
])('keeps a model loaded after a refused request that would unload it: %s', async (route, body) => {
  const scripted = await serving({ engine: () => new ScriptedEngine(() => ({ content: 'Hi.' })) })
  try {
    const asked = new Api(scripted.url)
    expect((await asked.post(route, { ...body, keep_alive: 0, options: { num_predict: 0 } })).status).toBe(400)
    expect((await asked.post(route, { ...body, stream: false })).status).toBe(200)
    expect(scripted.service.model().state).toBe('loaded')
    expect((await asked.post(route, { ...body, stream: false, keep_alive: 0 })).status).toBe(200)
    await expect.poll(() => scripted.service.model().state).toBe('unloaded')
  } finally {
    await scripted.close()
  }
})

it('finds a model by an alias that ends in :latest', async () => {
  const load = () => Promise.resolve(new ScriptedEngine(() => ({ content: 'Hi.' })))
  const model = { name: 'gpt-oss', aliases: ['small:latest'], slots: 1, load }
  const scripted = await serving({ service: { models: [model] } })
  try {
    const named = new Api(scripted.url)
    for (const name of ['gpt-oss', 'gpt-oss:latest', 'small:latest'])
      expect((await named.post('/api/chat', { ...HELLO, model: name, stream: false })).status).toBe(200)
    expect((await named.post('/api/chat', { ...HELLO, model: 'small' })).status).toBe(404)
  } finally {
    await scripted.close()
  }
})

it('numbers the calls of an answer, whole and streamed', async () => {
  const calls = [{ name: 'weather' }, { name: 'weather' }, { name: 'weather' }]
  const scripted = await serving({ engine: () => new ScriptedEngine(() => ({ calls })) })
  try {
    const indices = async (stream: boolean) => {
      const body = JSON.stringify({ ...HELLO, tools: [WEATHER], stream })
      const told = (await (await fetch(`${scripted.url}/api/chat`, { method: 'POST', body })).text()).trimEnd().split('\n')
      return told.flatMap((line) => [...line.matchAll(/"index":(\d+)/g)].map(([, index]) => Number(index)))
    }
    expect(await indices(false)).toEqual([0, 1, 2])
    expect(await indices(true)).toEqual([0, 1, 2])
  } finally {
    await scripted.close()
  }
})

it('continues the thread of a client that sends calls and results without ids', async () => {
  const calls = [{ name: 'weather' }, { name: 'weather', arguments: { at: 2 } }]
  const scripted = await serving({ engine: () => new ScriptedEngine(() => ({ calls })) })
  try {
    const client = new Api(scripted.url)
    const messages: object[] = [{ role: 'user', content: 'Weather?' }]
    const ids = new Set<string>()
    for (let round = 0; round < 3; round++) {
      const { body } = await client.post('/api/chat', { ...HELLO, messages, tools: [WEATHER], stream: false })
      const { tool_calls: made } = body.message as { tool_calls: { id: string; function: object }[] }
      for (const { id } of made) ids.add(id)
      messages.push({ role: 'assistant', content: '', tool_calls: made.map(({ function: called }) => ({ function: called })) })
      for (const content of ['sun', 'rain']) messages.push({ role: 'tool', tool_name: 'weather', content })
    }
    expect(scripted.service.threads.list(PUBLIC)).toHaveLength(1)
    expect(ids.size).toBe(6)
    // Another conversation with the same calls has ids of its own.
    const other = [{ role: 'user', content: 'Once more?' }]
    const { body } = await client.post('/api/chat', { ...HELLO, messages: other, tools: [WEATHER], stream: false })
    expect(ids).not.toContain(body.message.tool_calls[0].id)
  } finally {
    await scripted.close()
  }
})

it('embeds, and reports errors in its own form', async () => {
  const { body } = await api.post('/api/embed', { model: 'builtin', input: ['one', 'two three'] })
  const [one] = (await api.post('/api/embed', { model: 'builtin', input: 'one' })).body.embeddings
  expect((await api.post('/api/embeddings', { model: 'builtin', prompt: 'one' })).body).toEqual({ embedding: one })
  expect(body.embeddings).toHaveLength(2)
  const refused = await api.post('/api/chat', { ...HELLO, model: 'nobody' })
  expect(refused.status).toBe(404)
  expect(refused.body.error).toContain('nobody')
  expect((await api.post('/api/generate', { prompt: 'a', images: ['AA=='] })).body.error).toContain('images')
  expect((await api.post('/api/generate', { prompt: 'a', suffix: 'b' })).body.error).toContain('suffix')
})
