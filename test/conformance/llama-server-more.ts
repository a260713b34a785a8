/** What clients of llama-server rely on beyond `llama-server.ts`: embeddings, responses, log-probabilities, full contexts, clients that leave. */
import { expect } from 'vitest'
import { answered, type Api, check, type Check } from './api.js'

const user = (content: unknown) => ({ role: 'user', content })
const SYSTEM = { role: 'system', content: 'Book' }
const CHAT = '/v1/chat/completions'
const PROMPT = 'The meaning of life is'
const ASK = { max_tokens: 8, temperature: 0, messages: [SYSTEM, user('What is the best book?')] }
const ENDLESS = { grammar: 'root ::= [a-z ]{400}' }
const TOO_LONG = Array.from({ length: 4000 }, (_, at) => user(`What is the best book, asked for time ${at}?`))

const complete = (api: Api, more: object) =>
  answered(api, '/completion', { prompt: PROMPT, n_predict: 8, temperature: 0, ...more })
const chat = (api: Api, more: object) => answered(api, CHAT, { ...ASK, ...more })

/** Whether any slot computes. */
const isBusy = async (api: Api): Promise<boolean> =>
  ((await api.get('/slots')).body as { is_processing: boolean }[]).some(({ is_processing: busy }) => busy)

async function until(condition: () => Promise<boolean>): Promise<void> {
  for (let tries = 0; tries < 200 && !(await condition()); tries++) await new Promise((resolve) => setTimeout(resolve, 20))
  expect(await condition()).toBe(true)
}

export const MORE: readonly Check[] = [
  check('/completions without a version is its own completion', async (api) => {
    expect(typeof (await answered(api, '/completions', { prompt: PROMPT, n_predict: 4 })).content).toBe('string')
  }),
  check('answers name the software that computes them', async (api) => {
    const plain = [await chat(api, {}), await answered(api, '/v1/completions', { prompt: PROMPT, max_tokens: 2 })]
    const streamed = (await api.stream(CHAT, ASK)).filter(({ choices }) => choices.length > 0)
    for (const { system_fingerprint: told } of [...plain, ...streamed]) expect(told).toMatch(/^kvfold-/u)
  }),
  check('an answer begun in parts of text is gone on with', async (api) => {
    const parts = [
      { type: 'text', text: 'The best' },
      { type: 'text', text: 'book' },
    ]
    const begun = { role: 'assistant', content: parts }
    expect((await chat(api, { messages: [...ASK.messages, begun] })).choices).toHaveLength(1)
  }),
  check('a schema of a list of one whole number', async (api) => {
    const schema = { type: 'array', items: { type: 'integer', minimum: 0, maximum: 9 }, minItems: 1, maxItems: 1 }
    const body = await chat(api, { max_tokens: 40, response_format: { type: 'json_object', schema } })
    expect(JSON.parse(body.choices[0].message.content)).toHaveLength(1)
  }),
  check('a schema that is a number is refused', async (api) => {
    const format = { type: 'json_object', schema: 123 }
    expect((await api.post(CHAT, { ...ASK, response_format: format })).status).toBe(400)
  }),
  check('a JSON object without a schema', async (api) => {
    const body = await chat(api, { response_format: { type: 'json_object' } })
    expect(body.choices[0].message.content.trimStart()[0]).toBe('{')
  }),
  ...[{}, { stream: true }].map((more) =>
    check(`a prompt that is too long tells its tokens and the context ${JSON.stringify(more)}`, async (api) => {
      const { status, body } = await api.post(CHAT, { ...ASK, ...more, messages: TOO_LONG })
      expect(status).toBe(400)
      expect(body.error.n_prompt_tokens).toBeGreaterThan(body.error.n_ctx)
      expect(body.error.n_ctx).toBe((await api.get('/props')).body.default_generation_settings.n_ctx)
    }),
  ),
  check('return_progress grows to the whole prompt, and a second time begins with cached tokens', async (api) => {
    const long = Array.from({ length: 160 }, (_, at) => `Key ${at} is ${at * 3}.`).join(' ')
    const progress = async () => {
      const events = await api.stream(CHAT, { max_tokens: 2, messages: [user(long)], return_progress: true })
      return events.flatMap(({ prompt_progress: told }) => (told === undefined ? [] : [told]))
    }
    const [first, again] = [await progress(), await progress()]
    for (const told of [first, again]) {
      expect(told[0].processed).toBe(told[0].cache)
      expect(told.at(-1).processed).toBe(told.at(-1).total)
      const processed = told.map((one) => one.processed as number)
      expect(processed).toEqual([...processed].sort((a, b) => a - b))
    }
    expect(again[0].cache).toBeGreaterThan(first[0].cache)
  }),
  check('the tokens of logprobs in a chat are its text', async (api) => {
    const [choice] = (await chat(api, { logprobs: true, top_logprobs: 10, grammar: ENDLESS.grammar })).choices
    const tokens = choice.logprobs.content as { token: string; logprob: number; top_logprobs: unknown[] }[]
    expect(tokens.map(({ token }) => token).join('')).toBe(choice.message.content)
    for (const { logprob, top_logprobs: top } of tokens) {
      expect(logprob).toBeLessThanOrEqual(0)
      expect(top).toHaveLength(10)
    }
  }),
  check('the tokens of logprobs in a streamed chat are its text', async (api) => {
    const events = await api.stream(CHAT, { ...ASK, logprobs: true, top_logprobs: 2, grammar: ENDLESS.grammar })
    const choices = events.flatMap((event) => event.choices)
    const tokens = choices.flatMap(({ logprobs }) => (logprobs?.content ?? []) as { token: string }[])
    expect(tokens.map(({ token }) => token).join('')).toBe(choices.map(({ delta }) => delta.content ?? '').join(''))
  }),
  check('logit_bias by text, as an object', async (api) => {
    const { content } = await complete(api, { n_predict: 1 })
    expect((await complete(api, { n_predict: 1, logit_bias: { [content]: -100 } })).content).not.toBe(content)
  }),
  check('a stream has the tokens of its parts', async (api) => {
    const events = await api.stream('/completion', { prompt: PROMPT, n_predict: 6, return_tokens: true, ...ENDLESS })
    expect(events.filter(({ stop }) => !stop).flatMap(({ tokens }) => tokens)).toHaveLength(6)
  }),
  check('response_fields that are empty leave nothing out', async (api) => {
    expect(Object.keys(await complete(api, { response_fields: [] }))).toEqual(
      expect.arrayContaining(['content', 'generation_settings', 'timings', 'stop_type']),
    )
  }),
  check('a slot is busy while it computes, and free when its client leaves', async (api) => {
    const leaving = new AbortController()
    const asked = fetch(`${api.url}/completion`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ prompt: PROMPT, n_predict: 3000, grammar: 'root ::= [a-z ] root' }),
      signal: leaving.signal,
    }).catch(() => null)
    await until(() => isBusy(api))
    leaving.abort()
    await asked
    await until(async () => !(await isBusy(api)))
  }),
  check('ignore_eos goes on to the limit', async (api) => {
    expect((await complete(api, { n_predict: 20, ignore_eos: true })).tokens_predicted).toBe(20)
  }),
  check('/v1/completions streams up to the limit', async (api) => {
    const events = await api.stream('/v1/completions', { prompt: PROMPT, max_tokens: 12, ignore_eos: true, temperature: 0 })
    const reasons = events.flatMap(({ choices }) =>
      choices.map(({ finish_reason: reason }: { finish_reason: unknown }) => reason),
    )
    expect(reasons.filter((reason) => reason != null)).toEqual(['length'])
  }),
  check('/props tells the sampling of requests that say nothing', async (api) => {
    const { params } = (await api.get('/props')).body.default_generation_settings
    expect(params).toMatchObject({ temperature: 0 })
    expect(params.top_k).toBeTypeOf('number')
  }),
  check('/infill without tokens for it says which models have them', async (api) => {
    const { status, body } = await api.post('/infill', { input_prefix: 'a', input_suffix: 'b' })
    expect(status).toBe(501)
    expect(body.error.message).toContain('cannot fill a gap')
  }),
  check('/responses answers with JSON by a schema', async (api) => {
    const format = { type: 'json_schema', name: 'test', schema: { const: 'foooooo' } }
    const body = await answered(api, '/responses', { input: 'Write an example', max_output_tokens: 30, text: { format } })
    const message = body.output.find(({ type }: { type: string }) => type === 'message')
    expect(message.content[0].text).toBe('"foooooo"')
  }),
  ...['json_object', 'text'].map((type) =>
    check(`/responses answers in the format ${type}`, async (api) => {
      const asked = { input: 'Write an example', max_output_tokens: 10, text: { format: { type } } }
      expect((await answered(api, '/responses', asked)).output[0].content[0].text).toBeTypeOf('string')
    }),
  ),
  check('/responses refuses a json_schema without a schema', async (api) => {
    const text = { format: { type: 'json_schema', name: 'test' } }
    expect((await api.post('/responses', { input: 'Write an example', text })).status).toBe(400)
  }),
  check('/responses streams progress and timings', async (api) => {
    const asked = { input: 'This is a test. '.repeat(40), max_output_tokens: 8, timings_per_token: true, return_progress: true }
    const events = await api.stream('/responses', asked)
    const told = events.filter(({ prompt_progress: progress }) => progress !== undefined)
    expect(told.length).toBeGreaterThan(0)
    for (const { type, prompt_progress: progress } of told) {
      expect(type).toBe('response.in_progress')
      expect(progress.processed).toBeGreaterThanOrEqual(progress.cache)
    }
    const deltas = events.filter(({ type }) => type === 'response.output_text.delta')
    for (const { timings } of [...deltas, events.at(-1)]) expect(timings.predicted_per_second).toBeTypeOf('number')
  }),
  check('/v1/messages takes a system text in parts, and tells the stop sequence', async (api) => {
    const asked = { model: 'builtin', max_tokens: 40, messages: [user('Hello')], stop_sequences: ['two'] }
    const grammar = { kvfold: { grammar: 'root ::= "one two"' } }
    const body = await answered(api, '/v1/messages', { ...asked, ...grammar, system: [{ type: 'text', text: 'You help.' }] })
    expect(body).toMatchObject({ stop_reason: 'stop_sequence', stop_sequence: 'two', content: [{ text: 'one ' }] })
  }),
  check('/v1/messages forces a tool, whole and streamed', async (api) => {
    const tools = [
      { name: 'test', description: '', input_schema: { type: 'object', properties: { ok: { const: true } }, required: ['ok'] } },
    ]
    const asked = { model: 'builtin', max_tokens: 100, messages: [user('Hello')], tools, tool_choice: { type: 'any' } }
    const body = await answered(api, '/v1/messages', asked)
    expect(body.stop_reason).toBe('tool_use')
    expect(body.content.at(-1)).toMatchObject({ type: 'tool_use', name: 'test', input: { ok: true } })
    const events = await api.stream('/v1/messages', asked)
    const parts = events.flatMap(({ delta }) => (delta?.type === 'input_json_delta' ? [delta.partial_json] : []))
    expect(JSON.parse(parts.join(''))).toEqual({ ok: true })
  }),
  check('/v1/messages counts the tokens of tools', async (api) => {
    const count = async (more: object) =>
      (await answered(api, '/v1/messages/count_tokens', { model: 'builtin', messages: [user('Hello')], ...more })).input_tokens
    const tools = [{ name: 'test', description: 'Tests', input_schema: { type: 'object', properties: {} } }]
    expect(await count({ tools })).toBeGreaterThan(await count({}))
  }),
  check('/v1/messages refuses a max_tokens that is none', async (api) => {
    const { status, body } = await api.post('/v1/messages', { model: 'builtin', max_tokens: 0, messages: [user('Hello')] })
    expect([status, body.type]).toEqual([400, 'error'])
  }),
]

// Embeddings; the server's model makes them.

const EMBED = '/v1/embeddings'
const vectors = async (api: Api, input: unknown, more: object = {}) =>
  (await answered(api, EMBED, { input, ...more })).data.map(({ embedding }: { embedding: number[] }) => embedding) as number[][]
const dot = (one: readonly number[], other: readonly number[]) => one.reduce((sum, value, at) => sum + value * other[at]!, 0)

const SHAPES: readonly (readonly [input: unknown, count: number])[] = [
  ['string', 1],
  [[12, 34, 56], 1],
  [[12, 34, 'string', 56, 78], 1],
  [['string1', 'string2'], 2],
  [['string1', [12, 34, 56]], 2],
  [
    [
      [12, 34, 56],
      [12, 34, 56],
    ],
    2,
  ],
  [
    [
      [12, 34, 56],
      [12, 'string', 34, 56],
    ],
    2,
  ],
  [{ prompt_string: 'string' }, 1],
  [{ content: [{ type: 'text', text: 'string' }] }, 1],
  [['string1', { prompt_string: 'string2' }, { content: [{ type: 'text', text: 'string3' }] }], 3],
]

const NOT_TEXT: readonly unknown[] = [
  [],
  { content: 'string' },
  { content: [{ type: 'input_audio', input_audio: {} }] },
  { content: [{ type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } }] },
]

export const EMBEDDINGS: readonly Check[] = [
  check('a vector has length 1', async (api) => {
    const [vector] = await vectors(api, PROMPT)
    expect(dot(vector!, vector!)).toBeCloseTo(1, 3)
  }),
  ...(
    [
      ['/embedding', 'content'],
      ['/embedding', 'input'],
      ['/embeddings', 'content'],
      ['/v1/embeddings', 'content'],
    ] as const
  ).map(([path, field]) =>
    check(`${path} with ${field} gives a list of lists of vectors`, async (api) => {
      const list = (await answered(api, path, { [field]: [PROMPT, 'hello'] })) as { index: number; embedding: number[][] }[]
      expect(list.map(({ index, embedding }) => [index, embedding.length])).toEqual([
        [0, 1],
        [1, 1],
      ])
      expect(list.map(({ embedding }) => embedding[0])).toEqual(await vectors(api, [PROMPT, 'hello']))
    }),
  ),
  ...SHAPES.map(([input, count]) =>
    check(`takes ${JSON.stringify(input)}`, async (api) => {
      const made = await vectors(api, input)
      expect(made).toHaveLength(count)
      for (const vector of made) expect(dot(vector, vector)).toBeCloseTo(1, 3)
    }),
  ),
  check('parts are one text', async (api) => {
    const parts = ['hello ', 'world'].map((text) => ({ type: 'text', text }))
    const [one, other] = await vectors(api, ['hello world', { content: parts }])
    expect(dot(one!, other!)).toBeCloseTo(1, 5)
  }),
  ...NOT_TEXT.map((input) =>
    check(`refuses ${JSON.stringify(input)}`, async (api) => {
      const { status, body } = await api.post(EMBED, { input })
      expect([400, 501]).toContain(status)
      expect(body.error.param).toMatch(/^input/u)
    }),
  ),
  check('a text that is too long is an error', async (api) => {
    const { status, body } = await api.post(EMBED, { input: 'This is a test '.repeat(1200) })
    expect(status).toBe(400)
    expect(body.error.n_prompt_tokens).toBeGreaterThan(body.error.n_ctx)
  }),
  check('the same texts have the same vectors', async (api) => {
    const [first, ...others] = await vectors(
      api,
      Array.from({ length: 5 }, () => PROMPT),
    )
    for (const other of others) expect(dot(first!, other)).toBeCloseTo(1, 5)
  }),
  check('usage counts the tokens of all texts', async (api) => {
    const usage = async (input: unknown) => (await answered(api, EMBED, { input })).usage
    const one = await usage(PROMPT)
    expect(one.total_tokens).toBe(one.prompt_tokens)
    expect((await usage([PROMPT, PROMPT])).prompt_tokens).toBe(2 * one.prompt_tokens)
  }),
  check('base64 holds the same numbers', async (api) => {
    const [vector] = await vectors(api, PROMPT)
    const { data } = await answered(api, EMBED, { input: PROMPT, encoding_format: 'base64' })
    const bytes = Buffer.from(data[0].embedding as string, 'base64')
    expect(bytes.length).toBe(4 * vector!.length)
    for (const [at, value] of vector!.entries()) expect(bytes.readFloatLE(4 * at)).toBeCloseTo(value, 5)
  }),
]

/** Checks of a server that lets pages of `https://page.example` in. */
export const CROSS_ORIGIN: readonly Check[] = [
  check('a preflight says who may ask, and how', async (api) => {
    const { status, headers } = await api.options('/completions', {
      origin: 'https://page.example',
      'access-control-request-method': 'POST',
      'access-control-request-headers': 'authorization',
    })
    expect([200, 204]).toContain(status)
    expect(headers.get('access-control-allow-origin')).toBe('https://page.example')
    expect(headers.get('access-control-allow-methods')).toContain('POST')
    expect(headers.get('access-control-allow-headers')?.toLowerCase()).toContain('authorization')
  }),
]
