/** What clients of llama-server rely on, as its own server tests (v0.5.0) describe it. */
import { expect } from 'vitest'
import { type Api, check, type Check } from './api.js'

const SYSTEM = { role: 'system', content: 'Book' }
const user = (content: unknown) => ({ role: 'user', content })
const ASK = { max_tokens: 8, temperature: 0, messages: [SYSTEM, user('What is the best book?')] }
const CHAT = '/v1/chat/completions'
const PROMPT = 'The meaning of life is'
const ENDLESS = { grammar: 'root ::= [a-z ]{200}' }

const TOOL = {
  type: 'function',
  function: {
    name: 'test',
    description: '',
    parameters: { type: 'object', properties: { success: { type: 'boolean', const: true } }, required: ['success'] },
  },
}

async function chat(api: Api, more: object) {
  const reply = await api.post(CHAT, { ...ASK, ...more })
  expect(reply.body.error?.message ?? null).toBeNull()
  expect(reply.status).toBe(200)
  return reply.body
}

async function complete(api: Api, more: object) {
  const reply = await api.post('/completion', { prompt: PROMPT, n_predict: 8, temperature: 0, ...more })
  expect(reply.body.error?.message ?? null).toBeNull()
  expect(reply.status).toBe(200)
  return reply.body
}

const contentOf = async (api: Api, more: object): Promise<string> => (await chat(api, more)).choices[0].message.content

const refuses = (name: string, path: string, body: unknown): Check =>
  check(name, async (api) => {
    const { status, body: said } = await api.post(path, body)
    expect([400, 500]).toContain(status)
    expect(said.error).toBeDefined()
  })

const isProbability = (token: { id: number; token: string; logprob: number; bytes: number[] }) => {
  expect(token.id).toBeGreaterThanOrEqual(0)
  expect(typeof token.token).toBe('string')
  expect(token.logprob).toBeLessThanOrEqual(0)
  expect(Array.isArray(token.bytes)).toBe(true)
}

const itself: readonly Check[] = [
  check('/health is 200', async (api) => {
    expect((await api.get('/health')).status).toBe(200)
  }),
  check('/props tells the context, the slots and the model', async (api) => {
    const { body } = await api.get('/props')
    expect(body.total_slots).toBe(2)
    expect(body.default_generation_settings.n_ctx).toBeGreaterThan(0)
    expect(typeof body.model_path).toBe('string')
  }),
  check('/props has the chat template, and the texts of BOS and EOS', async (api) => {
    const { body } = await api.get('/props')
    expect(body.chat_template).toContain('messages')
    for (const name of ['bos_token', 'eos_token']) expect(typeof body[name]).toBe('string')
  }),
  check('/v1/chat/completions/input_tokens counts the prompt', async (api) => {
    const asked = { messages: [{ role: 'user', content: 'Hello' }], max_tokens: 1 }
    const { prompt_tokens: tokens } = (await api.post('/v1/chat/completions', asked)).body.usage
    for (const path of ['/v1/chat/completions/input_tokens', '/chat/completions/input_tokens'])
      expect((await api.post(path, asked)).body).toEqual({ object: 'response.input_tokens', input_tokens: tokens })
  }),
  check('/models lists the one model', async (api) => {
    const { body } = await api.get('/models')
    expect(body.data).toHaveLength(1)
    expect(body.data[0].id).toBe('builtin')
  }),
  check('/v1/models tells the context as meta.n_ctx', async (api) => {
    await chat(api, {})
    expect((await api.get('/v1/models')).body.data[0].meta.n_ctx).toBeGreaterThan(0)
  }),
  check('/slots has an entry a slot', async (api) => {
    await chat(api, {})
    const { body } = await api.get('/slots')
    expect(body).toHaveLength(2)
    expect(body[0].is_processing).toBe(false)
    expect(body[0].n_ctx).toBeGreaterThan(0)
  }),
  check('/slots of a model that is not there is a 404', async (api) => {
    expect((await api.get('/slots?model=nowhere')).status).toBe(404)
  }),
  check('/metrics is for Prometheus', async (api) => {
    const { status, body } = await api.get('/metrics')
    expect(status).toBe(200)
    expect(body).toMatch(/^# TYPE \S+ \w+$/mu)
  }),
  check('a page is at /', async (api) => {
    const { status, body } = await api.get('/')
    expect(status).toBe(200)
    expect(String(body).toLowerCase()).toContain('<!doctype html>')
  }),
  check('an unknown path is 404 with an error', async (api) => {
    const { status, body } = await api.get('/nowhere')
    expect(status).toBe(404)
    expect(body.error).toBeDefined()
  }),
]

const chats: readonly Check[] = [
  check('a chat completion has id, role, counts and a reason', async (api) => {
    const body = await chat(api, {})
    expect(body.id).toContain('cmpl')
    expect(body.object).toBe('chat.completion')
    expect(body.choices[0].message.role).toBe('assistant')
    expect(body.usage.prompt_tokens).toBeGreaterThan(0)
    expect(body.usage.completion_tokens).toBeLessThanOrEqual(8)
    expect(['stop', 'length']).toContain(body.choices[0].finish_reason)
  }),
  check('/chat/completions is the same route', async (api) => {
    const { status, body } = await api.post('/chat/completions', ASK)
    expect(status).toBe(200)
    expect(body.object).toBe('chat.completion')
  }),
  check('an answer that is cut off ends with length', async (api) => {
    const body = await chat(api, ENDLESS)
    expect(body.choices[0].finish_reason).toBe('length')
    expect(body.usage.completion_tokens).toBe(8)
  }),
  check('content in parts of text is text', async (api) => {
    const parts = [
      { type: 'text', text: 'What is' },
      { type: 'text', text: 'the best book' },
    ]
    expect((await chat(api, { messages: [SYSTEM, user(parts)] })).usage.prompt_tokens).toBeGreaterThan(0)
  }),
  check('what was asked before is cached', async (api) => {
    await chat(api, { messages: [SYSTEM, user('one two three four five six')] })
    const { usage } = await chat(api, { messages: [SYSTEM, user('one two three four five six')] })
    expect(usage.prompt_tokens_details.cached_tokens).toBeGreaterThanOrEqual(usage.prompt_tokens - 1)
  }),
  check('a stream begins with the role, keeps its id, and ends with a reason', async (api) => {
    const events = (await api.stream(CHAT, ASK)).filter(({ choices }) => choices.length > 0)
    expect(events[0].choices[0].delta.role).toBe('assistant')
    expect(new Set(events.map(({ id }) => id)).size).toBe(1)
    for (const { choices } of events.slice(1)) expect(choices[0].delta.role).toBeUndefined()
    for (const { choices } of events.slice(0, -1)) expect(choices[0].finish_reason).toBeNull()
    expect(['stop', 'length']).toContain(events.at(-1).choices[0].finish_reason)
  }),
  check('a stream says what the whole answer says', async (api) => {
    const events = await api.stream(CHAT, ASK)
    const text = events.map(({ choices }) => choices[0]?.delta.content ?? '').join('')
    expect(text).toBe(await contentOf(api, {}))
  }),
  check('a stream counts where include_usage asks for it', async (api) => {
    const last = (await api.stream(CHAT, { ...ASK, stream_options: { include_usage: true } })).at(-1)
    expect(last.choices).toEqual([])
    expect(last.usage.prompt_tokens).toBeGreaterThan(0)
  }),
  check('a stream tells times where timings_per_token asks for it', async (api) => {
    const asked = { ...ASK, stream_options: { include_usage: true }, timings_per_token: true }
    const { timings } = (await api.stream(CHAT, asked)).at(-1)
    for (const name of ['prompt_per_second', 'predicted_per_second', 'predicted_n']) expect(timings[name]).toBeTypeOf('number')
  }),
  check('two answers to one prompt', async (api) => {
    for (let time = 0; time < 2; time++) expect((await chat(api, { n: 2, id_slot: 0 })).choices).toHaveLength(2)
  }),
  check('a JSON object by its schema', async (api) => {
    const said = await contentOf(api, {
      max_tokens: 40,
      response_format: { type: 'json_object', schema: { const: '42' } },
    })
    expect(said).toBe('"42"')
  }),
  check('a JSON schema', async (api) => {
    const said = await contentOf(api, {
      max_tokens: 40,
      response_format: { type: 'json_schema', json_schema: { schema: { const: 'foooooo' } } },
    })
    expect(said).toBe('"foooooo"')
  }),
  check('json_schema beside the messages', async (api) => {
    expect(await contentOf(api, { max_tokens: 40, json_schema: { const: '42' } })).toBe('"42"')
  }),
  check('a grammar', async (api) => {
    expect(await contentOf(api, { max_tokens: 12, grammar: 'root ::= "a"{5,5}' })).toBe('aaaaa')
  }),
  refuses('a grammar that is none', CHAT, { ...ASK, grammar: 'root ::= this is (not valid GBNF' }),
  refuses('a response format that is none', CHAT, { ...ASK, response_format: { type: 'sound' } }),
  refuses('a schema whose type is a number', CHAT, { ...ASK, response_format: { type: 'json_object', schema: { type: 123 } } }),
  refuses('a schema of no known type', CHAT, { ...ASK, response_format: { type: 'json_object', schema: { type: 'hiccup' } } }),
  refuses('no messages', CHAT, { messages: null }),
  refuses('messages that are a text', CHAT, { messages: 'string' }),
  refuses('a message that is a number', CHAT, { messages: [123] }),
  refuses('an empty message', CHAT, { messages: [{}] }),
  refuses('a role that is a number', CHAT, { messages: [{ role: 123 }] }),
  refuses('content that is a number', CHAT, { messages: [{ role: 'system', content: 123 }] }),
  refuses('an empty message behind one', CHAT, { messages: [{ role: 'system', content: 'test' }, {}] }),
  check('log-probabilities of each token, and of alternatives', async (api) => {
    const body = await chat(api, { max_tokens: 5, logprobs: true, top_logprobs: 10 })
    const { message, logprobs } = body.choices[0]
    for (const token of logprobs.content) {
      expect(token.logprob).toBeLessThanOrEqual(0)
      expect(token.bytes).not.toBeUndefined()
      expect(token.top_logprobs.length).toBeGreaterThan(0)
    }
    expect(logprobs.content.map(({ token }: { token: string }) => token).join('')).toContain(message.content)
  }),
  check('the same in a stream', async (api) => {
    const events = await api.stream(CHAT, { ...ASK, max_tokens: 5, logprobs: true, top_logprobs: 3 })
    const tokens = events.flatMap(({ choices }) => choices[0]?.logprobs?.content ?? [])
    expect(tokens.length).toBeGreaterThan(0)
    for (const { top_logprobs: top } of tokens) expect(top.length).toBeGreaterThan(0)
  }),
  check('a token that logit_bias forbids is not said', async (api) => {
    const said = await contentOf(api, {})
    const { body } = await api.post('/tokenize', { content: said })
    const bias = Object.fromEntries(body.tokens.map((token: number) => [token, -100]))
    expect(await contentOf(api, { logit_bias: bias })).not.toContain(said)
  }),
  check('a prompt that is too long is 400, with its size', async (api) => {
    const { status, body } = await api.post(CHAT, {
      ...ASK,
      messages: Array.from({ length: 4000 }, (_, at) => user(`What is the best book, asked for time ${at}?`)),
    })
    expect(status).toBe(400)
    expect(body.error.message).toMatch(/context/iu)
  }),
  check('a forced tool is called with arguments of its schema', async (api) => {
    const body = await chat(api, { max_tokens: 200, tools: [TOOL], tool_choice: 'required', parallel_tool_calls: false })
    const [call] = body.choices[0].message.tool_calls
    expect(body.choices[0].finish_reason).toBe('tool_calls')
    expect(call.function.name).toBe('test')
    expect(JSON.parse(call.function.arguments)).toEqual({ success: true })
  }),
  check('a forced tool in a stream', async (api) => {
    const events = await api.stream(CHAT, {
      ...ASK,
      max_tokens: 200,
      tools: [TOOL],
      tool_choice: 'required',
      parallel_tool_calls: false,
    })
    const calls = events.flatMap(({ choices }) => choices[0]?.delta.tool_calls ?? [])
    expect(calls[0].function.name).toBe('test')
    expect(JSON.parse(calls.map((call) => call.function.arguments ?? '').join(''))).toEqual({ success: true })
  }),
  check('tools with tool_choice none are not called', async (api) => {
    expect((await chat(api, { tools: [TOOL], tool_choice: 'none' })).choices[0].message.tool_calls ?? []).toEqual([])
  }),
  check('results of tools are messages', async (api) => {
    const messages = [
      user('Test.'),
      {
        role: 'assistant',
        content: null,
        tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'test', arguments: '{"success":true}' } }],
      },
      { role: 'tool', tool_call_id: 'call_1', content: 'done' },
    ]
    expect((await chat(api, { messages, tools: [TOOL] })).usage.prompt_tokens).toBeGreaterThan(0)
  }),
]

const completions: readonly Check[] = [
  check('/completion tells what was computed and why it ended', async (api) => {
    const body = await complete(api, ENDLESS)
    expect(body.timings.predicted_n).toBe(8)
    expect(body.tokens_predicted).toBe(8)
    expect(body.stop_type).toBe('limit')
    expect(body.truncated).toBe(false)
    expect(typeof body.has_new_line).toBe('boolean')
    expect(body.tokens).toEqual([])
  }),
  check('return_tokens', async (api) => {
    const { tokens } = await complete(api, { ...ENDLESS, return_tokens: true })
    expect(tokens).toHaveLength(8)
    for (const token of tokens) expect(Number.isInteger(token)).toBe(true)
  }),
  check('/completion streams text and tokens, and what was computed at the end', async (api) => {
    const events = await api.stream('/completion', { prompt: PROMPT, n_predict: 8, temperature: 0, ...ENDLESS })
    for (const event of events.slice(0, -1)) expect(event.stop).toBe(false)
    const last = events.at(-1)
    expect(last.stop).toBe(true)
    expect(last.timings.predicted_n).toBe(8)
    expect(last.generation_settings.n_predict).toBe(8)
    const text = events.map(({ content }) => content).join('')
    expect(text).toBe((await complete(api, ENDLESS)).content)
  }),
  check('the same seed says the same', async (api) => {
    const said = async () => (await complete(api, { seed: 42, temperature: 1, n_predict: 16, ...ENDLESS })).content
    expect(await said()).toBe(await said())
  }),
  check('other seeds say other things', async (api) => {
    const said = async (seed: number) =>
      (await complete(api, { seed, temperature: 2, n_predict: 24, top_k: 0, top_p: 1, min_p: 0, ...ENDLESS })).content
    const all = [await said(1), await said(2), await said(3), await said(4)]
    expect(new Set(all).size).toBeGreaterThan(1)
  }),
  check('a prompt of token ids', async (api) => {
    const { body } = await api.post('/tokenize', { content: PROMPT, add_special: true })
    expect((await complete(api, { prompt: body.tokens })).content).toBe((await complete(api, {})).content)
  }),
  check('several prompts', async (api) => {
    const { body } = await api.post('/tokenize', { content: PROMPT, add_special: true })
    const answers = await complete(api, { prompt: [body.tokens, PROMPT] })
    expect(answers).toHaveLength(2)
    expect(answers[0].content).toBe(answers[1].content)
  }),
  check('a prompt as an object', async (api) => {
    expect((await complete(api, { prompt: { prompt_string: PROMPT } })).content).toBe((await complete(api, {})).content)
  }),
  check('a prompt of token ids and texts', async (api) => {
    const body = await complete(api, { prompt: [100, 101, PROMPT, 102, 103, PROMPT] })
    expect(typeof body.content).toBe('string')
  }),
  check('a prompt with an image is refused', async (api) => {
    const { status } = await api.post('/completion', { prompt: { prompt_string: '<__media__>', multimodal_data: ['AA=='] } })
    expect(status).toBeGreaterThanOrEqual(400)
  }),
  check('response_fields chooses', async (api) => {
    const body = await complete(api, { response_fields: ['content', 'generation_settings/n_predict', 'prompt'] })
    expect(Object.keys(body).sort()).toEqual(['content', 'generation_settings/n_predict', 'prompt'])
    expect(body['generation_settings/n_predict']).toBe(8)
  }),
  check('n_probs tells alternatives', async (api) => {
    const body = await complete(api, { n_probs: 10, n_predict: 5, ...ENDLESS })
    expect(body.completion_probabilities).toHaveLength(5)
    for (const token of body.completion_probabilities) {
      isProbability(token)
      expect(token.top_logprobs).toHaveLength(10)
      token.top_logprobs.forEach(isProbability)
    }
  }),
  check('n_probs in a stream', async (api) => {
    const events = await api.stream('/completion', { prompt: PROMPT, n_predict: 5, n_probs: 3, temperature: 0, ...ENDLESS })
    const tokens = events.filter(({ stop }) => !stop).flatMap(({ completion_probabilities: all }) => all)
    expect(tokens).toHaveLength(5)
    tokens.forEach(isProbability)
  }),
  check('logit_bias as pairs of texts', async (api) => {
    const { content } = await complete(api, { n_predict: 1 })
    expect((await complete(api, { n_predict: 1, logit_bias: [[content, false]] })).content).not.toBe(content)
  }),
  check('logit_bias as pairs of tokens', async (api) => {
    const { content, tokens } = await complete(api, { n_predict: 1, return_tokens: true })
    expect((await complete(api, { n_predict: 1, logit_bias: [[tokens[0], -100]] })).content).not.toBe(content)
  }),
  check('a stop text ends it and is left out', async (api) => {
    const body = await complete(api, { n_predict: 40, grammar: 'root ::= "abcXYZdef"', stop: ['XYZ'] })
    expect(body.content).toBe('abc')
    expect(body.stop_type).toBe('word')
    expect(body.stopping_word).toBe('XYZ')
  }),
  check('a prompt that is too long is 400', async (api) => {
    const { status, body } = await api.post('/completion', { prompt: 'one two three four five '.repeat(20_000), n_predict: 1 })
    expect(status).toBe(400)
    expect(body.error.message).toMatch(/context/iu)
  }),
  check('/v1/completions goes on with a text', async (api) => {
    const { body } = await api.post('/v1/completions', { prompt: PROMPT, max_tokens: 8, temperature: 0 })
    expect(body.object).toBe('text_completion')
    expect(typeof body.choices[0].text).toBe('string')
  }),
  check('/v1/completions streams what it says whole', async (api) => {
    const ask = { prompt: PROMPT, max_tokens: 8, temperature: 0 }
    const events = await api.stream('/v1/completions', ask)
    const text = events.map(({ choices }) => choices[0]?.text ?? '').join('')
    expect(text).toBe((await api.post('/v1/completions', ask)).body.choices[0].text)
  }),
  check('more requests than slots are all answered', async (api) => {
    const all = await Promise.all(Array.from({ length: 6 }, (_, at) => complete(api, { prompt: `${PROMPT} ${at}` })))
    for (const { content } of all) expect(typeof content).toBe('string')
  }),
]

const tokens: readonly Check[] = [
  check('/tokenize and /detokenize turn one into the other', async (api) => {
    const content = 'What is the capital of France?'
    const { body } = await api.post('/tokenize', { content })
    expect(body.tokens.length).toBeGreaterThan(5)
    expect((await api.post('/detokenize', { tokens: body.tokens })).body.content.trim()).toBe(content)
  }),
  check('/tokenize gives pieces', async (api) => {
    const { body } = await api.post('/tokenize', { content: 'A string with 媽 and 🤗', with_pieces: true })
    for (const { id, piece } of body.tokens) {
      expect(id).toBeGreaterThanOrEqual(0)
      expect(piece.length).toBeGreaterThan(0)
    }
  }),
  check('/apply-template gives the prompt', async (api) => {
    const { status, body } = await api.post('/apply-template', { messages: [SYSTEM, user('Hi there')] })
    expect(status).toBe(200)
    expect(body.prompt).toContain('Hi there')
    expect(body.prompt).toContain('Book')
  }),
  check('/apply-template shows tools', async (api) => {
    const { body } = await api.post('/apply-template', { messages: [user('Hi')], tools: [TOOL] })
    expect(body.prompt).toContain('success')
  }),
]

const messages: readonly Check[] = [
  check('/v1/messages answers with blocks and counts', async (api) => {
    const { body } = await api.post('/v1/messages', { model: 'builtin', max_tokens: 20, messages: [user('Say hello')] })
    expect(body.type).toBe('message')
    expect(body.role).toBe('assistant')
    expect(Array.isArray(body.content)).toBe(true)
    expect(['end_turn', 'max_tokens']).toContain(body.stop_reason)
    for (const count of ['input_tokens', 'output_tokens', 'cache_read_input_tokens'])
      expect(body.usage[count]).toBeTypeOf('number')
    expect(body.timings).toBeUndefined()
  }),
  check('/v1/messages streams events in order', async (api) => {
    const events = await api.stream('/v1/messages', { model: 'builtin', max_tokens: 20, messages: [user('Say hello')] })
    const types = events.map(({ type }) => type).filter((type) => type !== 'ping')
    expect(types[0]).toBe('message_start')
    expect(types.at(-1)).toBe('message_stop')
    expect(types).toContain('content_block_delta')
    expect(types.indexOf('content_block_start')).toBeLessThan(types.indexOf('content_block_stop'))
    expect(types.indexOf('content_block_stop')).toBeLessThan(types.indexOf('message_delta'))
  }),
  check('/v1/messages takes a system text, parts and earlier answers', async (api) => {
    const { status } = await api.post('/v1/messages', {
      model: 'builtin',
      max_tokens: 8,
      system: 'You help.',
      messages: [user([{ type: 'text', text: 'Hello' }]), { role: 'assistant', content: 'Hi there!' }, user('How are you?')],
    })
    expect(status).toBe(200)
  }),
  check('/v1/messages takes results beside text', async (api) => {
    const { status, body } = await api.post('/v1/messages', {
      model: 'builtin',
      max_tokens: 20,
      messages: [
        user("What's the weather?"),
        { role: 'assistant', content: [{ type: 'tool_use', id: 'tool_1', name: 'weather', input: { place: 'Paris' } }] },
        user([
          { type: 'text', text: 'Here it is:' },
          { type: 'tool_result', tool_use_id: 'tool_1', content: 'Sunny, 25°C' },
        ]),
      ],
      tools: [{ name: 'weather', description: '', input_schema: { type: 'object', properties: { place: { type: 'string' } } } }],
    })
    expect(status).toBe(200)
    expect(body.type).toBe('message')
  }),
  check('/v1/messages takes sampling fields, stop sequences and metadata', async (api) => {
    const { status } = await api.post('/v1/messages', {
      ...{ model: 'builtin', max_tokens: 8, temperature: 0.5, top_p: 0.9, top_k: 40, stop_sequences: ['END'] },
      metadata: { user_id: 'somebody' },
      messages: [user('Hello')],
    })
    expect(status).toBe(200)
  }),
  check('/v1/messages counts tokens without max_tokens', async (api) => {
    const count = async (more: object) =>
      (await api.post('/v1/messages/count_tokens', { model: 'builtin', messages: [user('Hello world')], ...more })).body
    const { input_tokens: plain, output_tokens: generated } = await count({})
    expect(plain).toBeGreaterThan(0)
    expect(generated).toBeUndefined()
    expect((await count({ system: 'You help, and you are kind.' })).input_tokens).toBeGreaterThan(plain)
  }),
  check('/v1/messages without messages is an error', async (api) => {
    expect((await api.post('/v1/messages', { model: 'builtin', max_tokens: 8 })).status).toBeGreaterThanOrEqual(400)
  }),
  check('/v1/responses answers with items that have ids', async (api) => {
    const { body } = await api.post('/v1/responses', { input: [SYSTEM, user('What is the best book')], max_output_tokens: 8 })
    expect(body.id).toMatch(/^resp_/u)
    expect(body.output[0].id).toMatch(/^msg_/u)
  }),
  check('/v1/responses streams events of one response and one item', async (api) => {
    const events = await api.stream('/v1/responses', { input: [user('What is the best book')], max_output_tokens: 8 })
    const of = (type: string) => events.filter((event) => event.type === type)
    const id = of('response.created')[0].response.id
    const item = of('response.output_item.added')[0].item.id
    for (const delta of of('response.output_text.delta')) expect(delta.item_id).toBe(item)
    expect(events.at(-1).response.id).toBe(id)
  }),
]

/** Checks of a server with keys; `key` is one of them. */
export const LOCKED: readonly Check[] = [
  check('/health and the page need no key', async (api) => {
    const open = new (api.constructor as typeof Api)(api.url)
    for (const path of ['/health', '/']) expect((await open.get(path)).status).toBe(200)
  }),
  check('a request without a key, or with another one, is 401', async (api) => {
    const open = new (api.constructor as typeof Api)(api.url)
    for (const headers of [{}, { authorization: 'Bearer another' }]) {
      const { status, body } = await open.post('/completion', { prompt: PROMPT, n_predict: 1 }, headers)
      expect(status).toBe(401)
      expect(body.error.type).toBe('authentication_error')
    }
  }),
  check('authorization: Bearer is taken', async (api) => {
    expect((await api.post('/completion', { prompt: PROMPT, n_predict: 1 })).status).toBe(200)
  }),
  check('x-api-key is taken', async (api) => {
    const open = new (api.constructor as typeof Api)(api.url)
    expect((await open.post('/completion', { prompt: PROMPT, n_predict: 1 }, { 'x-api-key': 'secret' })).status).toBe(200)
  }),
]

export const LLAMA_SERVER: readonly Check[] = [...itself, ...chats, ...completions, ...tokens, ...messages]
