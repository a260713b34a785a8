/** What clients of vLLM's OpenAI server rely on beyond `vllm.ts`: token ids, log-probabilities of prompts, counts in streams, vectors. */
import { expect } from 'vitest'
import { answered, type Api, check, type Check, WEATHER_TOOL } from './api.js'

const CHAT = '/v1/chat/completions'
const TEXT = '/v1/completions'
const PROMPT = 'Hello, my name is'
const user = (content: string) => ({ role: 'user', content })
const MESSAGES = [{ role: 'system', content: 'You are a helpful assistant.' }, user('What is 1+1?')]
const ENDLESS = { kvfold: { grammar: 'root ::= [a-z ]{400}' } }

const text = (api: Api, more: object = {}) =>
  answered(api, TEXT, { model: 'builtin', prompt: PROMPT, max_tokens: 5, temperature: 0, ...more })
const chat = (api: Api, more: object = {}) =>
  answered(api, CHAT, { model: 'builtin', messages: MESSAGES, max_tokens: 5, temperature: 0, ...more })
const tokensOf = async (api: Api, body: object) => (await answered(api, '/tokenize', body)).tokens as number[]
const textOf = async (api: Api, tokens: readonly number[]) => (await answered(api, '/detokenize', { tokens })).prompt as string
const refusal = async (api: Api, path: string, body: object) => {
  const reply = await api.post(path, {
    model: 'builtin',
    ...(path === CHAT ? { messages: MESSAGES } : { prompt: PROMPT }),
    ...body,
  })
  expect(reply.status).toBe(400)
  expect(reply.body.error.message.length).toBeGreaterThan(20)
}

const counted = ({ usage }: any): number => {
  expect(usage.prompt_tokens).toBeGreaterThanOrEqual(0)
  expect(usage.total_tokens).toBe(usage.prompt_tokens + usage.completion_tokens)
  return usage.completion_tokens as number
}

export const MORE: readonly Check[] = [
  check('return_token_ids gives the tokens of a completion and of its prompt', async (api) => {
    const [choice] = (await text(api, { return_token_ids: true, ...ENDLESS })).choices
    expect(choice.prompt_token_ids).toEqual(await tokensOf(api, { prompt: PROMPT, add_special_tokens: true }))
    expect(choice.token_ids).toHaveLength(5)
    expect(await textOf(api, choice.token_ids)).toBe(choice.text)
    expect((await text(api)).choices[0]).not.toHaveProperty('token_ids')
  }),
  check('return_token_ids gives the tokens of a chat and of its prompt', async (api) => {
    const body = await chat(api, { return_token_ids: true, ...ENDLESS })
    expect(body.prompt_token_ids).toHaveLength(body.usage.prompt_tokens)
    expect(await textOf(api, body.prompt_token_ids)).toContain('What is 1+1?')
    expect(await textOf(api, body.choices[0].token_ids)).toBe(body.choices[0].message.content)
    const without = await chat(api)
    expect([without.prompt_token_ids, without.choices[0].token_ids]).toEqual([undefined, undefined])
  }),
  check('return_token_ids with a tool', async (api) => {
    const body = await chat(api, { return_token_ids: true, tools: [WEATHER_TOOL], tool_choice: 'required', max_tokens: 100 })
    expect(await textOf(api, body.prompt_token_ids)).toContain('weather')
    expect(body.choices[0].token_ids.length).toBeGreaterThan(0)
  }),
  check('tokens in a stream are those of the whole completion', async (api) => {
    const asked = { model: 'builtin', prompt: PROMPT, max_tokens: 8, temperature: 0, return_token_ids: true }
    const choices = (await api.stream(TEXT, asked)).flatMap((event) => event.choices)
    const [whole] = (await text(api, { max_tokens: 8, return_token_ids: true })).choices
    expect(choices.flatMap(({ token_ids: tokens }) => tokens ?? [])).toEqual(whole.token_ids)
    expect(choices.flatMap(({ prompt_token_ids: tokens }) => tokens ?? [])).toEqual(whole.prompt_token_ids)
  }),
  check('tokens in a streamed chat are those of the whole answer', async (api) => {
    const events = await api.stream(CHAT, {
      model: 'builtin',
      messages: MESSAGES,
      max_tokens: 8,
      temperature: 0,
      return_token_ids: true,
    })
    const whole = await chat(api, { max_tokens: 8, return_token_ids: true })
    expect(events.flatMap(({ choices }) => choices[0]?.token_ids ?? [])).toEqual(whole.choices[0].token_ids)
    expect(events.flatMap(({ prompt_token_ids: tokens }) => tokens ?? [])).toEqual(whole.prompt_token_ids)
  }),
  check('return_tokens_as_token_ids names tokens by their ids, with echo those of the prompt, too', async (api) => {
    const asked = { echo: true, logprobs: 1, prompt_logprobs: 1, return_token_ids: true, return_tokens_as_token_ids: true }
    const [choice] = (await text(api, asked)).choices
    const ids = choice.logprobs.tokens.map((token: string) => Number(/^token_id:(\d+)$/u.exec(token)![1]))
    expect(ids).toEqual([...choice.prompt_token_ids, ...choice.token_ids])
    expect(choice.prompt_logprobs).toHaveLength(choice.prompt_token_ids.length)
  }),
  check('return_tokens_as_token_ids in a chat', async (api) => {
    const asked = { logprobs: true, top_logprobs: 1, return_token_ids: true, return_tokens_as_token_ids: true, ...ENDLESS }
    const [choice] = (await chat(api, asked)).choices
    expect(choice.logprobs.content.map(({ token }: { token: string }) => token)).toEqual(
      choice.token_ids.map((token: number) => `token_id:${token}`),
    )
  }),
  ...[0, 1].map((count) =>
    check(`prompt_logprobs ${count} of two prompts`, async (api) => {
      const { choices } = await text(api, { prompt: ['A robot may not', 'My name is'], prompt_logprobs: count })
      for (const { prompt_logprobs: told } of choices) {
        expect(told[0]).toBeNull()
        for (const one of told.slice(1)) expect(Object.keys(one as object).length).toBeGreaterThan(0)
      }
    }),
  ),
  ...[0, 1, 2].map((count) =>
    check(`prompt_logprobs ${count} of a chat`, async (api) => {
      const { prompt_logprobs: told, usage } = await chat(api, { prompt_logprobs: count })
      expect(told).toHaveLength(usage.prompt_tokens)
      for (const one of told.slice(1)) {
        // The token itself, if it is not among the likeliest.
        const tokens = Object.values(one as object) as { rank: number; decoded_token: string }[]
        expect([Math.max(1, count), count + 1]).toContain(tokens.length)
        for (const token of tokens) expect(token.decoded_token).toBeTypeOf('string')
      }
    }),
  ),
  ...[TEXT, CHAT].flatMap((path) => [
    check(`${path} has no prompt_logprobs unless they are asked for`, async (api) => {
      expect(JSON.stringify(path === CHAT ? await chat(api) : await text(api))).not.toContain('prompt_logprobs')
    }),
    check(`${path} refuses prompt_logprobs -1`, (api) => refusal(api, path, { prompt_logprobs: -1 })),
    check(`${path} refuses prompt_logprobs in a stream`, (api) => refusal(api, path, { prompt_logprobs: 1, stream: true })),
    check(`${path} refuses a bias for a token that is in no vocabulary`, (api) =>
      refusal(api, path, { logit_bias: { 999999999: 1 } }),
    ),
    check(`${path} refuses a bias for a token that is a word without tokens`, (api) =>
      refusal(api, path, { logit_bias: { '': 1 } }),
    ),
    check(`${path} counts in every chunk with continuous_usage_stats`, async (api) => {
      const asked = { model: 'builtin', max_tokens: 6, temperature: 0, ignore_eos: true }
      const options = { include_usage: true, continuous_usage_stats: true }
      const body = { ...asked, ...(path === CHAT ? { messages: MESSAGES } : { prompt: PROMPT }) }
      const counts = (await api.stream(path, { ...body, stream_options: options })).map(counted)
      expect(counts).toEqual([...counts].sort((a, b) => a - b))
      expect(counts.at(-1)).toBe(6)
      // Without include_usage it means nothing.
      for (const { usage } of await api.stream(path, { ...body, stream_options: { continuous_usage_stats: true } }))
        expect(usage).toBeUndefined()
    }),
    check(`${path} gives several answers, each with its own end`, async (api) => {
      const asked = { model: 'builtin', max_tokens: 12, n: 3, temperature: 3, top_k: 0, top_p: 1, min_p: 0, seed: 42, ...ENDLESS }
      const body = { ...asked, ...(path === CHAT ? { messages: MESSAGES } : { prompt: PROMPT }) }
      const choices = (await api.stream(path, body)).flatMap((event) => event.choices)
      expect(
        choices
          .filter(({ finish_reason: reason }) => reason != null)
          .map(({ index }) => index)
          .sort(),
      ).toEqual([0, 1, 2])
      const whole = (await answered(api, path, body)).choices as { text?: string; message?: { content: string } }[]
      expect(new Set(whole.map(({ text: said, message }) => said ?? message?.content)).size).toBe(3)
    }),
    check(`${path} takes null for stream_options`, async (api) => {
      const body = path === CHAT ? await chat(api, { stream_options: null }) : await text(api, { stream_options: null })
      expect(body.choices).toHaveLength(1)
    }),
  ]),
  check('a conversation goes on', async (api) => {
    const first = await chat(api, { logprobs: true, top_logprobs: 5 })
    const more = [...MESSAGES, first.choices[0].message, user('Express your result in JSON.')]
    expect((await chat(api, { messages: more })).usage.prompt_tokens).toBeGreaterThan(first.usage.prompt_tokens)
  }),
  check('structured_outputs of a chat: choice, regex, json and grammar', async (api) => {
    const said = async (wanted: object) =>
      (await chat(api, { structured_outputs: wanted, max_tokens: 60 })).choices[0].message.content as string
    expect(['red', 'green']).toContain(await said({ choice: ['red', 'green'] }))
    expect(await said({ regex: '[0-9]{3}' })).toMatch(/^\d{3}$/u)
    expect(JSON.parse(await said({ json: { type: 'object', properties: { a: { const: 1 } }, required: ['a'] } }))).toEqual({
      a: 1,
    })
    expect(await said({ grammar: 'root ::= "yes"' })).toBe('yes')
  }),
  check('stop_token_ids end the answer and are told', async (api) => {
    const [first] = await tokensOf(api, { prompt: ' the' })
    const asked = { logit_bias: { [first!]: 100 }, stop_token_ids: [first], max_tokens: 9 }
    const [choice] = (await text(api, asked)).choices
    expect(choice).toMatchObject({ text: '', finish_reason: 'stop', stop_reason: first })
  }),
  check('min_tokens puts the end off', async (api) => {
    expect((await chat(api, { min_tokens: 12, max_tokens: 12 })).usage.completion_tokens).toBe(12)
  }),
  check('allowed_token_ids are the only ones', async (api) => {
    const allowed = await tokensOf(api, { prompt: ' the' })
    const [choice] = (await text(api, { allowed_token_ids: allowed, return_token_ids: true, max_tokens: 3 })).choices
    for (const token of choice.token_ids) expect(allowed).toContain(token)
  }),
  ...['required', { type: 'function', function: { name: 'weather' } }].map((choice) =>
    check(`a tool forced by ${typeof choice} in a stream`, async (api) => {
      const asked = {
        model: 'builtin',
        messages: MESSAGES,
        tools: [WEATHER_TOOL],
        tool_choice: choice,
        max_tokens: 100,
        temperature: 0,
      }
      const calls = (await api.stream(CHAT, asked)).flatMap(({ choices }) => choices[0]?.delta.tool_calls ?? [])
      expect(calls[0].function.name).toBe('weather')
      const whole = calls.map(({ function: part }) => part.arguments as string).join('')
      expect(whole.slice(whole.lastIndexOf('{'))).toContain('unit')
    }),
  ),
  check('/tokenize takes a conversation, as the model sees it', async (api) => {
    const tokens = await tokensOf(api, { messages: MESSAGES })
    expect(await textOf(api, tokens)).toContain('You are a helpful assistant.')
    expect(tokens).toEqual((await chat(api, { return_token_ids: true })).prompt_token_ids)
    const more = [...MESSAGES, { role: 'assistant', content: 'Two.' }, user('And 2+2?')]
    expect((await tokensOf(api, { messages: more })).length).toBeGreaterThan(tokens.length)
  }),
  check('/tokenize shows tools', async (api) => {
    expect(await textOf(api, await tokensOf(api, { messages: MESSAGES, tools: [WEATHER_TOOL] }))).toContain('weather')
  }),
  check('/tokenize without a text or messages is 400', async (api) => {
    expect((await api.post('/tokenize', { model: 'builtin' })).status).toBe(400)
  }),
  check('/version and /load need no body', async (api) => {
    expect((await api.get('/version')).body.version).toBeTypeOf('string')
    expect((await api.get('/load')).body).toEqual({ server_load: 0 })
  }),
  check('/load counts the requests that run', async (api) => {
    const running = text(api, { max_tokens: 400, ...ENDLESS })
    let most = 0
    for (let tries = 0; tries < 100 && most === 0; tries++) {
      most = (await api.get('/load')).body.server_load as number
      await new Promise((resolve) => setTimeout(resolve, 5))
    }
    await running
    expect(most).toBe(1)
  }),
  check('clients that leave give way to those that come', async (api) => {
    const body = JSON.stringify({ model: 'builtin', messages: MESSAGES, max_tokens: 2000, min_tokens: 2000 })
    const leaving = Array.from({ length: 20 }, () =>
      fetch(`${api.url}${CHAT}`, {
        ...{ method: 'POST', headers: { 'content-type': 'application/json' }, body },
        signal: AbortSignal.timeout(200),
      }).catch(() => null),
    )
    await Promise.all(leaving)
    expect((await chat(api)).choices).toHaveLength(1)
  }),
  check('an answer names the request', async (api) => {
    expect((await api.get('/health')).headers.get('x-request-id')).toBeTruthy()
  }),
]

/** Checks of a server whose model makes embeddings. */
export const VECTORS: readonly Check[] = [
  check('/pooling gives a vector for each text', async (api) => {
    const body = await answered(api, '/pooling', { model: 'builtin', input: ['a', 'b'] })
    expect(body.object).toBe('list')
    expect(body.data).toHaveLength(2)
    expect(body.data[0].data.length).toBeGreaterThan(1)
  }),
  check('/v1/embeddings keeps the first dimensions, made length 1 again', async (api) => {
    const { data } = await answered(api, '/v1/embeddings', { model: 'builtin', input: ['a'], dimensions: 4 })
    const vector = data[0].embedding as number[]
    expect(vector).toHaveLength(4)
    expect(vector.reduce((sum, value) => sum + value * value, 0)).toBeCloseTo(1, 4)
  }),
  check('/v1/embeddings refuses more dimensions than there are', async (api) => {
    expect((await api.post('/v1/embeddings', { model: 'builtin', input: ['a'], dimensions: 99_999 })).status).toBe(400)
  }),
  check('/v1/embeddings takes tokens as it takes their text', async (api) => {
    const { tokens } = (await api.post('/tokenize', { prompt: PROMPT, add_special_tokens: true })).body
    const { data } = await answered(api, '/v1/embeddings', { model: 'builtin', input: [tokens, PROMPT].flatMap((one) => [one]) })
    const [one, other] = data.map(({ embedding }: { embedding: number[] }) => embedding) as [number[], number[]]
    expect(one.reduce((sum, value, at) => sum + value * other[at]!, 0)).toBeCloseTo(1, 4)
  }),
  ...[
    [{ text_1: 'a', text_2: 'b' }, 1],
    [{ text_1: 'a', text_2: ['b', 'c'] }, 2],
    [{ text_1: ['a', 'b'], text_2: ['c', 'd'] }, 2],
    [{ queries: 'a', documents: ['b', 'a'] }, 2],
  ].map(([asked, count]) =>
    check(`/score of ${JSON.stringify(asked)} is a cosine for each pair`, async (api) => {
      const { data } = await answered(api, '/score', { model: 'builtin', ...(asked as object) })
      expect(data).toHaveLength(count as number)
      for (const { score } of data) expect(Math.abs(score)).toBeLessThanOrEqual(1.0001)
    }),
  ),
  check('/score refuses lists that make no pairs', async (api) => {
    expect((await api.post('/score', { model: 'builtin', text_1: ['a', 'b'], text_2: ['a'] })).status).toBe(400)
  }),
]
