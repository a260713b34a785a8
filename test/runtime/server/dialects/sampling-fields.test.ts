/** Tests the sampling fields, the limits of an answer and what streams tell, over HTTP on the built-in model. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { Api } from '../../../conformance/api.js'
import { serving, type Serving } from '../support/serving.js'

let served: Serving
let api: Api
beforeAll(async () => {
  served = await serving()
  api = new Api(served.url)
})
afterAll(() => served.close())

const CHAT = '/v1/chat/completions'
const messages = [{ role: 'user', content: 'Hello!' }]
const PROMPT = 'The meaning of life is'

async function complete(more: object): Promise<any> {
  const { status, body } = await api.post('/completion', { prompt: PROMPT, n_predict: 12, temperature: 0, ...more })
  expect(body.error?.message ?? null).toBeNull()
  expect(status).toBe(200)
  return body
}

const said = async (more: object): Promise<string> => (await complete(more)).content as string

async function chat(more: object): Promise<any> {
  const { status, body } = await api.post(CHAT, { messages, max_tokens: 12, temperature: 0, ...more })
  expect(body.error?.message ?? null).toBeNull()
  expect(status).toBe(200)
  return body
}

const tokensOf = async (content: string): Promise<number[]> => (await api.post('/tokenize', { content })).body.tokens as number[]

describe('samplers', () => {
  const drawn = { temperature: 1.5, top_k: 0, top_p: 1, min_p: 0, seed: 3, n_predict: 24 }

  it.each<[string, object]>([
    ['top_n_sigma', { top_n_sigma: 0.1 }],
    ['xtc', { xtc_probability: 1, xtc_threshold: 0.01 }],
    [
      'dry',
      { dry_multiplier: 50, dry_allowed_length: 1, dry_base: 2, dry_penalty_last_n: -1, prompt: 'a b c d a b c d a b c d a b' },
    ],
    ['dynamic temperature', { dynatemp_range: 1.5 }],
    ['typical_p', { typical_p: 0.2 }],
    ['mirostat 1', { mirostat: 1, mirostat_tau: 2 }],
    ['mirostat 2', { mirostat: 2, mirostat_tau: 2 }],
    ['adaptive-p', { adaptive_target: 0.05, adaptive_decay: 0.5 }],
    ['an order of samplers', { samplers: ['temperature'], top_k: 1 }],
    ['its short form', { samplers: 't', top_k: 1 }],
    ['repeat_penalty', { repeat_penalty: 2, repeat_last_n: -1 }],
  ])('%s changes the answer, and the same seed draws the same', async (name, fields) => {
    const { prompt, ...own } = fields as { readonly prompt?: string }
    const given = { ...drawn, ...(prompt === undefined ? {} : { prompt, temperature: 0 }) }
    const plain = await said(name.includes('order') || name.includes('short') ? { ...given, top_k: 1 } : given)
    const changed = await complete({ ...given, ...own })
    expect(changed.content).not.toBe(plain)
    expect(await said({ ...given, ...own })).toBe(changed.content)
    expect(changed.kvfold).toBeUndefined()
  })

  it('are told by their llama-server names', async () => {
    const fields = {
      ...{ top_n_sigma: 2, xtc_probability: 0.5, xtc_threshold: 0.2, typical_p: 0.9, dynatemp_range: 0.5, dynatemp_exponent: 2 },
      ...{ dry_multiplier: 0.8, dry_base: 2, dry_allowed_length: 3, dry_penalty_last_n: 128, dry_sequence_breakers: ['|'] },
      ...{ mirostat: 2, mirostat_tau: 3, mirostat_eta: 0.2, min_keep: 2, ignore_eos: true, seed: 5 },
    }
    const { generation_settings: told } = await complete({ ...fields, samplers: 'kt' })
    expect(told).toMatchObject({ ...fields, samplers: ['top_k', 'temperature'] })
    expect((await complete({})).generation_settings).toMatchObject({
      samplers: ['penalties', 'dry', 'top_n_sigma', 'top_k', 'typ_p', 'top_p', 'min_p', 'xtc', 'temperature'],
      ...{ top_n_sigma: -1, xtc_probability: 0, dry_multiplier: 0, mirostat: 0, typical_p: 1 },
    })
  })

  it('that are off leave the answer as it was', async () => {
    const off = {
      top_n_sigma: -1,
      xtc_probability: 0,
      dry_multiplier: 0,
      dynatemp_range: 0,
      typical_p: 1,
      mirostat: 0,
      min_keep: 0,
    }
    for (const given of [{ temperature: 0 }, { temperature: 1, seed: 9 }])
      expect(await said({ ...given, ...off })).toBe(await said(given))
  })

  it('take the names of vLLM and Ollama', async () => {
    const asked = { prompt: PROMPT, raw: true, stream: false }
    const ollama = async (options: object): Promise<string> =>
      (
        await api.post('/api/generate', {
          ...asked,
          options: { num_predict: 12, temperature: 5, top_k: 0, top_p: 1, min_p: 0, seed: 4, ...options },
        })
      ).body.response
    expect(await ollama({ mirostat: 2, mirostat_tau: 1 })).not.toBe(await ollama({}))
    const vllm = async (more: object): Promise<string> =>
      (await api.post('/v1/completions', { prompt: PROMPT, max_tokens: 12, temperature: 0, ...more })).body.choices[0].text
    expect(await vllm({ repetition_penalty: 3 })).not.toBe(await vllm({}))
  })

  it('seeds have up to 64 bits, and -1 is another one every time', async () => {
    const raw = async (seed: string): Promise<any> => {
      const response = await fetch(`${served.url}/completion`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: `{"prompt":"${PROMPT}","n_predict":16,"temperature":2,"top_k":0,"top_p":1,"min_p":0,"seed":${seed}}`,
      })
      return response.json()
    }
    const large = await raw('9223372036854775807')
    expect((await raw('9223372036854775807')).content).toBe(large.content)
    // The next whole number is the same one to JavaScript.
    expect((await raw('9223372036854775806')).content).not.toBe(large.content)
    expect((await raw('-9223372036854775808')).generation_settings.seed).toBeLessThan(2 ** 32 - 1)
    expect((await raw('18446744073709551615')).error).toBeUndefined()
    expect((await raw('18446744073709551616')).error.message).toContain('64 bits')
    const random = await Promise.all(['-1', '-1', '4294967295', '-1'].map(raw))
    expect(new Set(random.map(({ content }) => content)).size).toBeGreaterThan(1)
    expect(random[0].generation_settings.seed).toBe(2 ** 32 - 1)
  })
})

describe('logit_bias', () => {
  it.each(['/completion', '/v1/completions', CHAT])('%s takes a map, pairs, texts and false', async (path) => {
    const asked = { prompt: PROMPT, messages, max_tokens: 4, temperature: 0, top_k: 0 }
    const text = async (logit_bias: unknown): Promise<string> => {
      const { body } = await api.post(path, { ...asked, ...(logit_bias === undefined ? {} : { logit_bias }) })
      expect(body.error?.message ?? null).toBeNull()
      return (body.content ?? body.choices[0].text ?? body.choices[0].message.content) as string
    }
    const [token] = await tokensOf('z')
    for (const bias of [{ [String(token)]: 100 }, [[token, 100]], [['z', 100]], { z: 100 }]) expect(await text(bias)).toBe('zzzz')
    const plain = await text(undefined)
    const banned = await text({ [plain]: false })
    expect(banned).not.toBe(plain)
  })
})

describe('limits', () => {
  const ending = { grammar: 'root ::= "yes" [a-z ]*' }

  it('min_tokens: the answer has at least so many', async () => {
    const eos = (await api.post('/v1/completions', { prompt: 'a', max_tokens: 1 })).body
    expect(eos.error).toBeUndefined()
    const short = await chat({ ...ending, max_tokens: 40, stop: undefined, logit_bias: undefined })
    const length = short.usage.completion_tokens as number
    const long = await chat({ max_tokens: 40, min_tokens: 30 })
    expect(long.usage.completion_tokens).toBeGreaterThanOrEqual(30)
    expect(length).toBeGreaterThan(0)
  })

  it('ignore_eos: only max_tokens ends the answer', async () => {
    const own = await chat({ max_tokens: 200 })
    expect(own.choices[0].finish_reason).toBe('stop')
    const { usage, choices } = await chat({ max_tokens: 200, ignore_eos: true })
    expect([usage.completion_tokens, choices[0].finish_reason]).toEqual([200, 'length'])
    expect((await complete({ n_predict: 64, ignore_eos: true })).stop_type).toBe('limit')
  })

  it('stop_token_ids end the answer, are no part of it and are its stop_reason', async () => {
    const whole = await complete({ return_tokens: true })
    const stop = whole.tokens[3] as number
    const { body } = await api.post('/v1/completions', { prompt: PROMPT, max_tokens: 12, temperature: 0, stop_token_ids: [stop] })
    const at = (whole.tokens as number[]).indexOf(stop)
    const before = (await api.post('/detokenize', { tokens: whole.tokens.slice(0, at) })).body
    expect(body.choices[0]).toMatchObject({ text: before.content, finish_reason: 'stop', stop_reason: stop })
    expect((await complete({ stop_token_ids: [stop] })).stop_type).toBe('eos')
    const streamed = await api.stream('/v1/completions', {
      prompt: PROMPT,
      max_tokens: 12,
      temperature: 0,
      stop_token_ids: [stop],
    })
    expect(streamed.map(({ choices }) => choices[0]?.text ?? '').join('')).toBe(before.content)
    expect(streamed.at(-1).choices[0].stop_reason).toBe(stop)
  })

  it('bad_words are not said', async () => {
    const plain = (await chat({ max_tokens: 60 })).choices[0].message.content as string
    const word = plain.split(/\W+/).find((each) => each.length > 3)!
    const held = (await chat({ max_tokens: 60, bad_words: [word] })).choices[0].message.content as string
    expect(plain).toContain(word)
    expect(held).not.toContain(word)
    expect(await said({ bad_words: [(await said({})).slice(2, 5)] })).not.toContain((await said({})).slice(2, 5))
  })

  it('allowed_token_ids are the only ones', async () => {
    const allowed = await tokensOf('abc')
    const { tokens } = await complete({ allowed_token_ids: allowed, return_tokens: true, temperature: 1, seed: 1 })
    expect((tokens as number[]).every((token) => allowed.includes(token))).toBe(true)
  })

  it('of foreign tokens are refused', async () => {
    for (const fields of [{ stop_token_ids: [2 ** 30] }, { allowed_token_ids: [2 ** 30] }])
      expect((await api.post('/completion', { prompt: 'a', n_predict: 1, ...fields })).status).toBe(400)
  })
})

describe('a conversation that ends with an answer', () => {
  const messages = [
    { role: 'user', content: 'Hi' },
    { role: 'assistant', content: PROMPT },
  ]

  it('is counted whole by /tokenize, or as one to go on with', async () => {
    const count = async (more: object) => (await api.post('/tokenize', { messages, ...more })).body.tokens.length as number
    const asked = await count({ messages: messages.slice(0, 1) })
    const length = (await tokensOf(PROMPT)).length
    expect(await count({})).toBeGreaterThan(asked + length)
    expect(await count({ continue_final_message: true })).toBeLessThan(await count({}))
    expect(await count({ continue_final_message: true })).toBeGreaterThanOrEqual(asked + length)
  })

  it('becomes a prompt that ends with the answer', async () => {
    expect((await api.post('/apply-template', { messages })).body.prompt).toMatch(new RegExp(`${PROMPT}$`))
  })
})

describe('prompt_logprobs', () => {
  it('are those of vLLM: null, then each token with its rank', async () => {
    const { body } = await api.post('/v1/completions', { prompt: PROMPT, max_tokens: 1, temperature: 0, prompt_logprobs: 2 })
    const [first, ...rest] = body.choices[0].prompt_logprobs as [null, ...Record<string, any>[]]
    const tokens = await tokensOf(PROMPT)
    expect(first).toBeNull()
    expect(rest).toHaveLength(tokens.length - 1)
    for (const [at, one] of rest.entries()) {
      const own = one[String(tokens[at + 1])]
      expect(own.logprob).toBeLessThanOrEqual(0)
      const ranks = Object.values(one).map(({ rank }) => rank as number)
      expect(ranks).toEqual(expect.arrayContaining([1, 2]))
      expect(ranks.length).toBe(own.rank <= 2 ? 2 : 3)
      const better = Object.values(one).filter(({ logprob }) => logprob > own.logprob).length
      expect(own.rank).toBeGreaterThan(better)
    }
    // The answer's own log-probabilities are another question.
    expect(body.choices[0].logprobs).toBeNull()
  })

  it('of a chat are those of the text that the template makes of it, once for all answers', async () => {
    const messages = [{ role: 'user', content: PROMPT }]
    const asked = { messages, max_tokens: 1, temperature: 0, n: 2, prompt_logprobs: 1 }
    const { prompt } = (await api.post('/apply-template', { messages })).body
    const bare = await api.post('/v1/completions', { prompt, max_tokens: 1, temperature: 0, prompt_logprobs: 1 })
    const [first, ...rest] = bare.body.choices[0].prompt_logprobs as [null, ...Record<string, any>[]]
    // A chat that is in the cache is computed again.
    for (let time = 0; time < 2; time++) {
      const { status, body } = await api.post(CHAT, asked)
      expect(status).toBe(200)
      expect(body.choices).toHaveLength(2)
      const told = body.prompt_logprobs as [null, ...Record<string, any>[]]
      expect(told).toHaveLength(body.usage.prompt_tokens)
      expect(told[0]).toBe(first)
      expect(told.slice(1).map((one) => Object.keys(one!))).toEqual(rest.map((one) => Object.keys(one)))
      for (const [at, one] of rest.entries())
        for (const [token, { logprob }] of Object.entries(one)) expect(told[at + 1]![token].logprob).toBeCloseTo(logprob, 3)
    }
    expect((await api.post(CHAT, { messages, max_tokens: 1 })).body).not.toHaveProperty('prompt_logprobs')
  })

  it.each([[{ prompt_logprobs: 1, stream: true }], [{ prompt_logprobs: -1 }], [{ prompt_logprobs: 21 }]])(
    'are refused as %j',
    async (fields) => {
      for (const [path, asked] of [
        [CHAT, { messages: [{ role: 'user', content: PROMPT }] }],
        ['/v1/completions', { prompt: PROMPT }],
      ] as const) {
        const { status, body } = await api.post(path, { ...asked, max_tokens: 1, ...fields })
        expect([status, body.error.param]).toEqual([400, 'prompt_logprobs'])
      }
    },
  )
})

describe('what a stream tells', () => {
  it('prompt progress and timings, on llama-server’s routes and in chats', async () => {
    const long = Array.from({ length: 120 }, (_, index) => `Key ${index} is ${index * 7}.`).join(' ')
    const fields = { return_progress: true, timings_per_token: true, temperature: 0, ignore_eos: true }
    for (const [path, asked] of [
      ['/completion', { prompt: `${long} a`, n_predict: 6 }],
      ['/v1/completions', { prompt: `${long} b`, max_tokens: 6 }],
      [CHAT, { messages: [{ role: 'user', content: long }], max_tokens: 6 }],
    ] as const) {
      const events = await api.stream(path, { ...asked, ...fields })
      const told = events.map(({ prompt_progress }) => prompt_progress).filter((each) => each !== undefined)
      expect(told[0].processed).toBe(told[0].cache)
      expect(told.at(-1).processed).toBe(told.at(-1).total)
      for (const { total, cache, processed, time_ms } of told) {
        expect(processed).toBeGreaterThanOrEqual(cache)
        expect(processed).toBeLessThanOrEqual(total)
        expect(time_ms).toBeGreaterThanOrEqual(0)
      }
      const times = events.filter((event) => event.timings !== undefined && event.prompt_progress === undefined)
      expect(times.length).toBeGreaterThan(1)
      const counts = times.map(({ timings }) => timings.predicted_n as number)
      expect(counts).toEqual([...counts].sort((a, b) => a - b))
      expect(counts.at(-1)).toBe(6)
    }
  })

  it('whole answers and the ends of streams always have timings', async () => {
    expect((await complete({})).timings.predicted_n).toBe(12)
    expect((await chat({ max_tokens: 3, ignore_eos: true })).timings.predicted_n).toBe(3)
    const events = await api.stream(CHAT, { messages, max_tokens: 3, ignore_eos: true })
    expect(events.filter(({ timings }) => timings !== undefined)).toHaveLength(1)
    expect(events.at(-1)).toMatchObject({ choices: [{ finish_reason: 'length' }], timings: { predicted_n: 3 } })
    expect(events.some(({ prompt_progress }) => prompt_progress !== undefined)).toBe(false)
  })
})

describe('allowed_tools', () => {
  const tool = (name: string) => ({
    type: 'function',
    function: {
      name,
      description: '',
      parameters: { type: 'object', properties: { place: { const: 'Rome' } }, required: ['place'] },
    },
  })
  const tools = [tool('weather'), tool('maps'), tool('news')]
  const choice = (mode: string, ...names: string[]) => ({
    type: 'allowed_tools',
    allowed_tools: { mode, tools: names.map((name) => ({ type: 'function', function: { name } })) },
  })
  const asked = { messages: [{ role: 'user', content: 'Weather in Rome?' }], tools, max_tokens: 60 }

  it('required: one of these is called', async () => {
    for (const names of [['maps'], ['maps', 'news']])
      for (const seed of [1, 2, 3]) {
        const { choices } = await chat({ ...asked, temperature: 2, seed, tool_choice: choice('required', ...names) })
        expect(names).toContain(choices[0].message.tool_calls[0].function.name)
      }
    const { body } = await api.post('/v1/responses', {
      ...{ input: 'Weather?', max_output_tokens: 60 },
      tools: tools.map(({ function: of }) => ({ type: 'function', ...of })),
      tool_choice: { type: 'allowed_tools', mode: 'required', tools: [{ type: 'function', name: 'news' }] },
    })
    expect(body.output.at(-1)).toMatchObject({ type: 'function_call', name: 'news' })
  })

  it('auto: no other is called', async () => {
    // The opening of a call is forced, so that its name is the model's only choice.
    const opening = (
      await api.post('/apply-template', {
        messages: [
          { role: 'user', content: 'a' },
          {
            role: 'assistant',
            content: '',
            tool_calls: [{ id: 'c', type: 'function', function: { name: 'news', arguments: '{}' } }],
          },
        ],
      })
    ).body.prompt as string
    const [tag] = await tokensOf(/<[^>]*call[^>]*>/.exec(opening)![0])
    const call = async (...names: string[]) =>
      (await chat({ ...asked, logit_bias: [[tag, 8]], tool_choice: choice('auto', ...names) })).choices[0].message.tool_calls?.[0]
        .function.name as string | undefined
    for (const name of ['weather', 'maps', 'news']) expect([name, undefined]).toContain(await call(name))
  })

  it('names of other tools are refused', async () => {
    const { status, body } = await api.post(CHAT, { ...asked, tool_choice: choice('auto', 'nothing') })
    expect([status, body.error.param]).toEqual([400, 'tool_choice'])
  })
})

describe('llama-server’s own fields', () => {
  it('n_cmpl answers so often, each with a seed of its own', async () => {
    const { body } = await api.post('/completion', {
      prompt: PROMPT,
      n_predict: 8,
      n_cmpl: 3,
      temperature: 20,
      top_p: 1,
      top_k: 0,
      min_p: 0,
      seed: 1,
    })
    expect(body).toHaveLength(3)
    expect(new Set((body as { content: string }[]).map(({ content }) => content)).size).toBeGreaterThan(1)
  })

  it('n_cmpl streams each answer with its own tokens', async () => {
    const response = await fetch(`${served.url}/completion`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ prompt: PROMPT, n_predict: 8, n_cmpl: 2, n_probs: 2, stream: true, ignore_eos: true, seed: 1 }),
    })
    const chunks = (await response.text())
      .split('\n')
      .filter((line) => line.startsWith('data: {'))
      .map((line) => JSON.parse(line.slice(6)) as { index: number; tokens: number[]; completion_probabilities?: object[] })
    for (const index of [0, 1]) {
      const own = chunks.filter((chunk) => chunk.index === index)
      expect(own.flatMap(({ tokens }) => tokens)).toHaveLength(8)
      expect(own.flatMap(({ completion_probabilities: told = [] }) => told).length).toBeGreaterThanOrEqual(8)
    }
  })

  it('n_predict 0 computes the prompt and says nothing', async () => {
    const { content, tokens_predicted: count } = await complete({ prompt: `${PROMPT} ten`, n_predict: 0 })
    expect([content, count]).toEqual(['', 0])
  })

  it('n_predict limits a chat, before max_tokens', async () => {
    const chat = { messages: [{ role: 'user', content: 'Count.' }], grammar: 'root ::= [a-z ] root', max_tokens: 9 }
    const tokens = async (n_predict: number) =>
      (await api.post('/v1/chat/completions', { ...chat, n_predict })).body.usage.completion_tokens as number
    expect([await tokens(0), await tokens(3)]).toEqual([0, 3])
  })

  it('0 in other routes, too, computes the prompt, which the next request finds', async () => {
    const warmed = [{ role: 'user', content: 'A question that is computed before it is asked.' }]
    for (const field of ['max_tokens', 'max_completion_tokens', 'n_predict']) {
      const { choices, usage, timings } = await chat({ messages: warmed, max_tokens: undefined, [field]: 0 })
      expect(choices).toMatchObject([{ message: { role: 'assistant', content: '' }, finish_reason: 'length' }])
      expect([usage.completion_tokens, usage.prompt_tokens > 10, timings.predicted_ms]).toEqual([0, true, 0])
    }
    const { usage } = await chat({ messages: warmed, max_tokens: 1 })
    expect(usage.prompt_tokens_details.cached_tokens).toBeGreaterThanOrEqual(usage.prompt_tokens - 1)
    const events = await api.stream(CHAT, { messages: warmed, max_tokens: 0, stream_options: { include_usage: true } })
    expect(events.flatMap(({ choices }) => choices).at(-1)).toMatchObject({ delta: {}, finish_reason: 'length' })
    expect(events.at(-1).usage.completion_tokens).toBe(0)
    const text = { prompt: PROMPT, max_tokens: 0 }
    const { body } = await api.post('/v1/completions', text)
    expect(body).toMatchObject({ choices: [{ text: '', finish_reason: 'length' }], usage: { completion_tokens: 0 } })
    expect(body.usage.prompt_tokens).toBeGreaterThan(3)
    expect((await api.stream('/v1/completions', text)).at(-1)).toMatchObject({ choices: [{ text: '', finish_reason: 'length' }] })
  })

  it('0 in a chat leaves a conversation that goes on', async () => {
    const [answer, next] = [
      { role: 'assistant', content: 'Because.' },
      { role: 'user', content: 'And then?' },
    ]
    const first = await chat({ kvfold: {} })
    const whole = [...messages, first.choices[0].message]
    // llama-server's page computes a conversation up to its last answer in this way.
    expect((await chat({ messages: whole, n_predict: 0 })).choices[0].message.content).toBe('')
    expect((await chat({ messages: [...whole, next], kvfold: {} })).kvfold.thread).toBe(first.kvfold.thread)
    const asked = [...messages, answer, { role: 'user', content: 'Never asked before.' }]
    await chat({ messages: asked, max_tokens: 0 })
    expect((await chat({ messages: asked })).usage.completion_tokens).toBeGreaterThan(0)
  })
})
