/** What clients of vLLM's OpenAI server rely on, as its documentation and its own entry-point tests describe it, for text models. */
import { expect } from 'vitest'
import { answered, type Api, check, type Check, WEATHER_TOOL } from './api.js'

const CHAT = '/v1/chat/completions'
const TEXT = '/v1/completions'
const PROMPT = 'Hello, my name is'
const user = (content: string) => ({ role: 'user', content })
const ASK = { model: 'builtin', messages: [user('How are you?')], max_tokens: 10, temperature: 0 }
const ENDLESS = { kvfold: { grammar: 'root ::= [a-z ]{200}' } }

const NAMES = {
  type: 'object',
  properties: { name: { type: 'string', maxLength: 8 }, age: { type: 'integer', minimum: 0, maximum: 9 } },
  required: ['name', 'age'],
  additionalProperties: false,
}
const TOOLS = [WEATHER_TOOL]

const text = (api: Api, more: object) =>
  answered(api, TEXT, { model: 'builtin', prompt: PROMPT, max_tokens: 5, temperature: 0, ...more })
const chat = (api: Api, more: object) => answered(api, CHAT, { ...ASK, ...more })

const refuses = (name: string, status: number, path: string, body: object): Check =>
  check(name, async (api) => {
    const reply = await api.post(path, body)
    expect(reply.status).toBe(status)
    expect(typeof reply.body.error.message).toBe('string')
  })

const completions: readonly Check[] = [
  check('a single completion counts its tokens', async (api) => {
    const { choices, usage } = await text(api, ENDLESS)
    expect(choices).toHaveLength(1)
    expect(choices[0].finish_reason).toBe('length')
    expect(usage.completion_tokens).toBe(5)
    expect(usage.total_tokens).toBe(usage.prompt_tokens + 5)
  }),
  check('a prompt of token ids', async (api) => {
    expect((await text(api, { prompt: [1, 2, 3, 4, 5] })).usage.prompt_tokens).toBe(5)
  }),
  check('several prompts, answered in their order', async (api) => {
    const { choices } = await text(api, { prompt: [PROMPT, PROMPT] })
    expect(choices.map(({ index }: { index: number }) => index)).toEqual([0, 1])
    expect(choices[0].text).toBe(choices[1].text)
  }),
  check('several prompts with several answers each', async (api) => {
    const { choices } = await text(api, { prompt: [PROMPT, PROMPT], n: 2, temperature: 1 })
    expect(choices).toHaveLength(4)
  }),
  check('several prompts in a stream', async (api) => {
    const events = await api.stream(TEXT, { model: 'builtin', prompt: [PROMPT, PROMPT], max_tokens: 5, temperature: 0 })
    const said = [0, 1].map((at) =>
      events
        .flatMap(({ choices }) => choices)
        .filter(({ index }) => index === at)
        .map((choice) => choice.text)
        .join(''),
    )
    expect(said[0]).toBe(said[1])
    expect(said[0]).not.toBe('')
  }),
  check('no logprobs unless they are asked for', async (api) => {
    expect((await text(api, {})).choices[0].logprobs).toBeNull()
  }),
  check('logprobs 0: those of the tokens alone', async (api) => {
    const { logprobs } = (await text(api, { logprobs: 0, ...ENDLESS })).choices[0]
    expect(logprobs.tokens).toHaveLength(5)
    expect(logprobs.token_logprobs).toHaveLength(5)
    expect(logprobs.text_offset).toHaveLength(5)
  }),
  check('logprobs 5: alternatives, too', async (api) => {
    const { logprobs } = (await text(api, { logprobs: 5, ...ENDLESS })).choices[0]
    for (const top of logprobs.top_logprobs) expect(Object.keys(top).length).toBeGreaterThan(0)
  }),
  refuses('more logprobs than there may be', 400, TEXT, { model: 'builtin', prompt: PROMPT, logprobs: 21 }),
  check('logit_bias forces a token', async (api) => {
    const { tokens } = (await api.post('/tokenize', { prompt: ' the', add_special_tokens: false })).body
    const { choices } = await text(api, { logit_bias: { [tokens[0]]: 100 }, max_tokens: 3 })
    expect(choices[0].text).toBe(' the the the')
  }),
  check('a stop text ends the answer', async (api) => {
    const { choices } = await text(api, { kvfold: { grammar: 'root ::= "one two three"' }, max_tokens: 40, stop: ['two'] })
    expect(choices[0].text).toBe('one ')
    expect(choices[0].finish_reason).toBe('stop')
    expect(choices[0].stop_reason).toBe('two')
  }),
  check('a stream says what the whole answer says', async (api) => {
    const events = await api.stream(TEXT, { model: 'builtin', prompt: PROMPT, max_tokens: 5, temperature: 0 })
    expect(events.map(({ choices }) => choices[0]?.text ?? '').join('')).toBe((await text(api, {})).choices[0].text)
    expect(events.filter(({ choices }) => choices[0]?.finish_reason != null)).toHaveLength(1)
  }),
  check('stream_options.include_usage: counts in a last chunk without choices', async (api) => {
    const ask = { model: 'builtin', prompt: PROMPT, max_tokens: 5, temperature: 0 }
    const last = (await api.stream(TEXT, { ...ask, stream_options: { include_usage: true } })).at(-1)
    expect(last.choices).toEqual([])
    expect(last.usage.prompt_tokens).toBeGreaterThan(0)
    for (const { usage } of await api.stream(TEXT, ask)) expect(usage).toBeUndefined()
  }),
  check('the same seed says the same', async (api) => {
    const said = async () => (await text(api, { seed: 7, temperature: 1, max_tokens: 12, ...ENDLESS })).choices[0].text
    expect(await said()).toBe(await said())
  }),
  check('structured_outputs.json', async (api) => {
    const { choices } = await text(api, { structured_outputs: { json: NAMES }, max_tokens: 100 })
    expect(Object.keys(JSON.parse(choices[0].text)).sort()).toEqual(['age', 'name'])
  }),
  check('structured_outputs.choice', async (api) => {
    expect(['red', 'green']).toContain((await text(api, { structured_outputs: { choice: ['red', 'green'] } })).choices[0].text)
  }),
  check('structured_outputs.grammar', async (api) => {
    expect((await text(api, { structured_outputs: { grammar: 'root ::= "yes"' } })).choices[0].text).toBe('yes')
  }),
  check('structured_outputs.regex', async (api) => {
    expect((await text(api, { structured_outputs: { regex: '[0-9]{3}' }, max_tokens: 10 })).choices[0].text).toMatch(/^\d{3}$/u)
  }),
  check('/tokenizer_info tells what texts end with, and /tokenize knows it for one token', async (api) => {
    const { body } = await api.get('/tokenizer_info')
    expect((await api.post('/tokenize', { prompt: body.eos_token, add_special_tokens: false })).body.tokens).toHaveLength(1)
  }),
  check('echo with logprobs scores the prompt, the first token without', async (api) => {
    const { logprobs } = (await text(api, { echo: true, logprobs: 1, max_tokens: 1 })).choices[0]
    expect(logprobs.token_logprobs[0]).toBeNull()
    expect(logprobs.token_logprobs.slice(1).every((value: unknown) => typeof value === 'number')).toBe(true)
    expect(logprobs.tokens.join('')).toContain(PROMPT)
  }),
  check('echo gives the prompt back', async (api) => {
    const said = (await text(api, {})).choices[0].text
    expect((await text(api, { echo: true })).choices[0].text).toBe(PROMPT + said)
    const events = await api.stream(TEXT, { model: 'builtin', prompt: PROMPT, max_tokens: 5, temperature: 0, echo: true })
    expect(events.map(({ choices }) => choices[0]?.text ?? '').join('')).toBe(PROMPT + said)
  }),
  check('an unknown model is 404', async (api) => {
    const { status, body } = await api.post(TEXT, { model: 'nobody', prompt: PROMPT })
    expect(status).toBe(404)
    expect(body.error.code).toBe('model_not_found')
  }),
  refuses('no prompt', 400, TEXT, { model: 'builtin' }),
  refuses('an empty list of prompts', 400, TEXT, { model: 'builtin', prompt: [] }),
  refuses('a prompt that is too long', 400, TEXT, { model: 'builtin', prompt: 'one two three '.repeat(40_000) }),
  refuses('a negative temperature', 400, TEXT, { model: 'builtin', prompt: PROMPT, temperature: -1 }),
  refuses('a token that is in no vocabulary', 400, TEXT, { model: 'builtin', prompt: [999_999_999] }),
]

const chats: readonly Check[] = [
  check('a chat completion is whole', async (api) => {
    const { choices, usage } = await chat(api, {})
    expect(choices[0].message.role).toBe('assistant')
    expect(choices[0].message.content.length).toBeGreaterThan(0)
    expect(usage.total_tokens).toBe(usage.prompt_tokens + usage.completion_tokens)
  }),
  check('null is as good as nothing', async (api) => {
    const nulls = { stop: null, seed: null, logit_bias: null, response_format: null, tools: null, tool_choice: null, user: null }
    expect((await chat(api, nulls)).choices).toHaveLength(1)
  }),
  check('max_completion_tokens', async (api) => {
    const { model, messages } = ASK
    const body = await answered(api, CHAT, { model, messages, max_completion_tokens: 4, ...ENDLESS })
    expect(body.usage.completion_tokens).toBe(4)
  }),
  check('several answers', async (api) => {
    expect((await chat(api, { n: 3, temperature: 1 })).choices).toHaveLength(3)
  }),
  check('logprobs without alternatives', async (api) => {
    const { logprobs } = (await chat(api, { logprobs: true, top_logprobs: 0 })).choices[0]
    for (const { top_logprobs: top } of logprobs.content) expect(top).toEqual([])
  }),
  refuses('too many alternatives', 400, CHAT, { ...ASK, logprobs: true, top_logprobs: 21 }),
  refuses('alternatives without logprobs', 400, CHAT, { ...ASK, top_logprobs: 3 }),
  check('stream_options.include_usage', async (api) => {
    const events = await api.stream(CHAT, { ...ASK, stream_options: { include_usage: true } })
    expect(events.at(-1).choices).toEqual([])
    expect(events.at(-1).usage.completion_tokens).toBeGreaterThan(0)
    for (const { usage } of events.slice(0, -1)) expect(usage).toBeNull()
  }),
  check('stream_options without stream change nothing', async (api) => {
    expect((await chat(api, { stream_options: { include_usage: true } })).choices).toHaveLength(1)
  }),
  check('response_format json_object', async (api) => {
    const said = (await chat(api, { response_format: { type: 'json_object' }, max_tokens: 200 })).choices[0]
    if (said.finish_reason === 'stop') expect(typeof JSON.parse(said.message.content)).toBe('object')
    else expect(said.message.content.trimStart()[0]).toBe('{')
  }),
  check('response_format json_schema', async (api) => {
    const format = { type: 'json_schema', json_schema: { name: 'person', schema: NAMES, strict: true } }
    const said = JSON.parse((await chat(api, { response_format: format, max_tokens: 100 })).choices[0].message.content)
    expect(Number.isInteger(said.age)).toBe(true)
  }),
  refuses('a json_schema without a schema', 400, CHAT, { ...ASK, response_format: { type: 'json_schema' } }),
  check('a named tool is called', async (api) => {
    const choice = { type: 'function', function: { name: 'weather' } }
    const { message } = (await chat(api, { tools: TOOLS, tool_choice: choice, max_tokens: 100 })).choices[0]
    expect(['c', 'f']).toContain(JSON.parse(message.tool_calls[0].function.arguments).unit)
  }),
  check('tool_choice required calls one', async (api) => {
    const ask = { tools: TOOLS, tool_choice: 'required', parallel_tool_calls: false, max_tokens: 100 }
    const { message } = (await chat(api, ask)).choices[0]
    expect(message.tool_calls).toHaveLength(1)
    expect(message.tool_calls[0].id).toBeTruthy()
  }),
  refuses('a named tool that is not there', 400, CHAT, {
    ...{ ...ASK, tools: TOOLS },
    tool_choice: { type: 'function', function: { name: 'nothing' } },
  }),
  refuses('a named tool without tools', 400, CHAT, {
    ...ASK,
    tool_choice: { type: 'function', function: { name: 'weather' } },
  }),
  refuses('a tool_choice that is none', 400, CHAT, { ...ASK, tools: TOOLS, tool_choice: 'sometimes' }),
  check('an unknown model is 404', async (api) => {
    expect((await api.post(CHAT, { ...ASK, model: 'nobody' })).status).toBe(404)
  }),
  refuses('a role that is none', 400, CHAT, { ...ASK, messages: [{ role: 'nobody', content: 'Hello' }] }),
  refuses('an image', 400, CHAT, {
    ...ASK,
    messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:,' } }] }],
  }),
  check('an answer goes on from the beginning of one (continue_final_message)', async (api) => {
    const begun = { role: 'assistant', content: 'I am' }
    const body = await chat(api, {
      messages: [...ASK.messages, begun],
      add_generation_prompt: false,
      continue_final_message: true,
    })
    expect(typeof body.choices[0].message.content).toBe('string')
  }),
]

const others: readonly Check[] = [
  check('/v1/models tells max_model_len', async (api) => {
    await chat(api, {})
    const { data } = (await api.get('/v1/models')).body
    expect(data[0].max_model_len).toBeGreaterThan(0)
    expect(data[0].object).toBe('model')
  }),
  check('/tokenize counts, and tells the texts of tokens', async (api) => {
    const {
      tokens,
      count,
      token_strs: texts,
    } = (
      await api.post('/tokenize', {
        model: 'builtin',
        prompt: 'vLLM has this',
        add_special_tokens: false,
        return_token_strs: true,
      })
    ).body
    expect(count).toBe(tokens.length)
    expect(texts.join('')).toBe('vLLM has this')
  }),
  check('/detokenize gives the prompt back', async (api) => {
    const { tokens } = (await api.post('/tokenize', { model: 'builtin', prompt: 'Hello there' })).body
    expect((await api.post('/detokenize', { model: 'builtin', tokens })).body.prompt.trim()).toBe('Hello there')
  }),
  check('/health is 200', async (api) => {
    expect((await api.get('/health')).status).toBe(200)
  }),
  check('/metrics is for Prometheus', async (api) => {
    await api.post('/v1/chat/completions', { model: 'builtin', max_tokens: 2, messages: [{ role: 'user', content: 'Hello' }] })
    const { body } = await api.get('/metrics')
    for (const name of ['num_requests_running', 'num_requests_waiting']) expect(body).toContain(`# TYPE vllm:${name} gauge`)
    for (const name of ['prompt_tokens', 'generation_tokens', 'prefix_cache_queries', 'prefix_cache_hits'])
      expect(body).toMatch(new RegExp(`^vllm:${name}_total\\{model_name="builtin"\\} \\d+$`, 'mu'))
  }),
  check('/v1/responses answers, and is kept', async (api) => {
    const { id, status } = await answered(api, '/v1/responses', { model: 'builtin', input: 'Hello', max_output_tokens: 40 })
    expect(['completed', 'incomplete']).toContain(status)
    expect((await api.get(`/v1/responses/${id}`)).body.id).toBe(id)
  }),
  check('/v1/responses goes on from previous_response_id', async (api) => {
    const ask = { model: 'builtin', max_output_tokens: 20 }
    const first = await answered(api, '/v1/responses', { ...ask, input: 'Hello' })
    const next = await answered(api, '/v1/responses', { ...ask, input: 'And now?', previous_response_id: first.id })
    expect(next.usage.input_tokens).toBeGreaterThan(first.usage.input_tokens)
  }),
  check('/v1/responses with a previous_response_id that nobody knows is 404', async (api) => {
    expect((await api.post('/v1/responses', { input: 'Hello', previous_response_id: 'resp_none' })).status).toBe(404)
  }),
]

export const VLLM: readonly Check[] = [...completions, ...chats, ...others]
