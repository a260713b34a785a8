/** Tests OpenAI's package against the server, in everyday use. */
/* eslint-disable @typescript-eslint/no-deprecated -- what OpenAI has deprecated is what most clients send */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import OpenAI, { APIError, APIUserAbortError, NotFoundError } from 'openai'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { Embedder } from '../../../../src/runtime/engine/embedder.js'
import { ScriptedEngine } from '../../../support/scripted.js'
import { openNative } from '../../../../src/runtime/native/binding.js'
import { synthesizeEncoder } from '../../../support/synthetic-encoder.js'
import { endless, serving, type Serving } from '../support/serving.js'

let served: Serving
let client: OpenAI

beforeAll(async () => {
  served = await serving({ embeds: true })
  client = new OpenAI({ baseURL: `${served.url}/v1`, apiKey: 'none', maxRetries: 0 })
})

afterAll(() => served.close())

const model = 'builtin'
const user = (content: string) => ({ role: 'user' as const, content })

const weather = {
  type: 'function' as const,
  function: {
    name: 'get_weather',
    description: 'Weather of a city',
    parameters: { type: 'object', properties: { city: { enum: ['Oslo', 'Rome'] } }, required: ['city'] },
  },
}
const time = {
  type: 'function' as const,
  function: {
    name: 'get_time',
    description: 'Time of a city',
    parameters: { type: 'object', properties: { zone: { enum: ['UTC'] } }, required: ['zone'] },
  },
}

describe('chat completions', () => {
  it('answers, and counts its tokens', async () => {
    const answer = await client.chat.completions.create({ model, messages: [user('The value of red is 4.')], max_tokens: 6 })
    expect(answer.object).toBe('chat.completion')
    expect(answer.model).toBe(model)
    expect(answer.choices[0]?.message.role).toBe('assistant')
    expect(answer.choices[0]?.finish_reason).toMatch(/^(stop|length|tool_calls)$/)
    expect(answer.usage?.completion_tokens).toBeGreaterThan(0)
    expect(answer.usage?.total_tokens).toBe(answer.usage!.prompt_tokens + answer.usage!.completion_tokens)
  })

  it("accepts litellm's form of tau2 dialogues, with an agent that speaks first and a name beside the function", async () => {
    const parameters = { properties: { a: { title: 'A', type: 'string' } }, required: ['a'], title: 'parameters', type: 'object' }
    const call = { id: 'c1', name: 'look_up', function: { name: 'look_up', arguments: '{"a": "1"}' }, type: 'function' }
    const body = {
      ...{ model, seed: 300, temperature: 0, max_tokens: 4, tool_choice: 'auto' },
      tools: [{ type: 'function', function: { name: 'look_up', description: 'Looks up.', parameters } }],
      messages: [
        { role: 'system', content: 'Rules.' },
        { role: 'assistant', content: 'Hi! How can I help you today?' },
        user('What is one?'),
        { role: 'assistant', tool_calls: [call] },
        { role: 'tool', content: 'uno', tool_call_id: 'c1' },
      ],
    }
    const response = await fetch(`${served.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    })
    expect(response.status).toBe(200)
    expect(await response.json()).toMatchObject({ choices: [{ message: { role: 'assistant' } }] })
  })

  it.each([
    ['chat/completions', { messages: [user('Hi.')] }],
    ['completions', { prompt: 'Hi.' }],
    ['messages', { messages: [user('Hi.')] }],
    ['responses', { input: 'Hi.', max_output_tokens: 4 }],
  ])('names ignored fields that would change an answer: %s', async (route, body) => {
    const ask = async (more: object) => {
      const response = await fetch(`${served.url}/v1/${route}`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ model, ...(route === 'responses' ? {} : { max_tokens: 4 }), ...body, ...more }),
      })
      expect(response.status).toBe(200)
      return response
    }
    // The built-in template reads no variables.
    const kwargs = route === 'completions' ? 'chat_template_kwargs' : 'chat_template_kwargs.enable_thinking'
    const fields = { prediction: {}, chat_template_kwargs: { enable_thinking: false }, mirostat: null }
    expect(await (await ask(fields)).json()).toMatchObject({ kvfold: { ignored: ['prediction', kwargs] } })
    expect(await (await ask({ ...fields, stream: true })).text()).toContain(`"ignored":["prediction","${kwargs}"]`)
    expect(await (await ask({ metadata: {} })).json()).not.toHaveProperty('kvfold')
  })

  it('reports which beginning of a prompt was cached', async () => {
    const long = Array.from({ length: 60 }, (_, index) => `The value of key ${index} is ${index * 7}.`).join(' ')
    const ask = (question: string) =>
      client.chat.completions.create({
        model,
        messages: [user(long), { role: 'assistant', content: 'Noted.' }, user(question)],
        max_tokens: 2,
      })
    const first = await ask('What is key 3?')
    const second = await ask('And what about key 40?')
    expect(second.usage?.prompt_tokens_details?.cached_tokens).toBeGreaterThan(first.usage!.prompt_tokens * 0.8)
    expect(second.usage!.prompt_tokens_details!.cached_tokens).toBeLessThan(second.usage!.prompt_tokens)
  })

  it('streams the same answer as it returns whole', async () => {
    const ask = { model, messages: [user('The value of blue is 9. What is blue?')], max_tokens: 12 }
    const whole = await client.chat.completions.create(ask)
    const stream = client.chat.completions.stream({ ...ask, stream_options: { include_usage: true } })
    const streamed = await stream.finalChatCompletion()
    expect(streamed.choices[0]?.message.content ?? '').toBe(whole.choices[0]?.message.content ?? '')
    expect(streamed.choices[0]?.finish_reason).toBe(whole.choices[0]?.finish_reason)
    expect(streamed.usage?.completion_tokens).toBe(whole.usage?.completion_tokens)
  })

  it('makes a required call, and accepts its result', async () => {
    const messages = [user('How is the weather in Oslo?')]
    const answer = await client.chat.completions.create({
      model,
      messages,
      tools: [weather, time],
      tool_choice: 'required',
      parallel_tool_calls: false,
      max_tokens: 200,
    })
    const choice = answer.choices[0]!
    expect(choice.finish_reason).toBe('tool_calls')
    expect(choice.message.content).toBeNull()
    const call = choice.message.tool_calls![0]!
    if (call.type !== 'function') throw new Error('no function')
    expect(choice.message.tool_calls).toHaveLength(1)
    expect(['get_weather', 'get_time']).toContain(call.function.name)
    expect(JSON.parse(call.function.arguments)).toBeTypeOf('object')
    const next = await client.chat.completions.create({
      model,
      messages: [...messages, choice.message, { role: 'tool', tool_call_id: call.id, content: 'Rain.' }],
      tools: [weather, time],
      tool_choice: 'none',
      max_tokens: 8,
    })
    expect(next.choices[0]?.message.tool_calls).toBeUndefined()
    expect(next.usage?.prompt_tokens_details?.cached_tokens).toBeGreaterThanOrEqual(answer.usage!.prompt_tokens)
  })

  it('makes a call of the named tool, streamed', async () => {
    const stream = client.chat.completions.stream({
      model,
      messages: [user('Oslo?')],
      tools: [weather, time],
      tool_choice: { type: 'function', function: { name: 'get_time' } },
      parallel_tool_calls: false,
      max_tokens: 200,
    })
    const { choices } = await stream.finalChatCompletion()
    const call = choices[0]?.message.tool_calls?.[0]
    expect(call?.type === 'function' && call.function.name).toBe('get_time')
    expect(call?.type === 'function' && JSON.parse(call.function.arguments)).toEqual({ zone: 'UTC' })
  })

  it("runs several tools at once in the package's own loop", async () => {
    const calls = [
      { id: 'call_a', name: 'double', arguments: { n: 4 } },
      { id: 'call_b', name: 'double', arguments: { n: 5 } },
    ]
    // The built-in model was not trained on other tools, so a script plays one that was.
    const scripted = await serving({
      engine: () =>
        new ScriptedEngine(({ messages }) =>
          messages.at(-1)?.role === 'user'
            ? { calls }
            : {
                content: messages
                  .filter(({ role }) => role === 'tool')
                  .map(({ content }) => content)
                  .join(' and '),
              },
        ),
    })
    try {
      const other = new OpenAI({ baseURL: `${scripted.url}/v1`, apiKey: 'none', maxRetries: 0 })
      const tool = {
        type: 'function' as const,
        function: {
          name: 'double',
          description: 'Doubles',
          parameters: { type: 'object', properties: { n: { type: 'integer' } }, required: ['n'] },
          parse: (text: string) => JSON.parse(text) as { n: number },
          function: ({ n }: { n: number }) => String(2 * n),
        },
      }
      const whole = other.chat.completions.runTools({ model, messages: [user('4 and 5?')], tools: [tool] })
      expect(await whole.finalContent()).toBe('8 and 10')
      const streamed = other.chat.completions.runTools({
        model,
        messages: [user('4 and 5, please?')],
        tools: [tool],
        stream: true,
      })
      expect(await streamed.finalContent()).toBe('8 and 10')
      expect(streamed.messages.flatMap((message) => ('tool_calls' in message ? (message.tool_calls ?? []) : []))).toHaveLength(2)
    } finally {
      await scripted.close()
    }
  })

  it('keeps to a JSON schema', async () => {
    const answer = await client.chat.completions.parse({
      model,
      messages: [user('Red or blue?')],
      response_format: {
        type: 'json_schema',
        json_schema: {
          name: 'colour',
          strict: true,
          schema: {
            type: 'object',
            properties: { colour: { enum: ['red', 'blue'] }, sure: { type: 'boolean' } },
            required: ['colour', 'sure'],
            additionalProperties: false,
          },
        },
      },
      max_tokens: 100,
    })
    const parsed = answer.choices[0]?.message.parsed as unknown as { colour: string; sure: boolean }
    expect(['red', 'blue']).toContain(parsed.colour)
    expect(parsed.sure).toBeTypeOf('boolean')
  })

  it('answers with any JSON object on request', async () => {
    const answer = await client.chat.completions.create({
      model,
      messages: [user('JSON!')],
      response_format: { type: 'json_object' },
      max_tokens: 300,
      temperature: 0,
    })
    const { message, finish_reason: reason } = answer.choices[0]!
    expect(message.content).toMatch(/^\s*\{/)
    if (reason === 'stop') expect(JSON.parse(message.content!)).toBeTypeOf('object')
  })

  it('gives n answers, each with its own seed', async () => {
    const asked = async (seed: number) => {
      // The prompt allows many answers; "I do not know" is about one in three of them.
      const messages = [user('The current value of')]
      const every = { top_p: 1, top_k: 0, min_p: 0 }
      const asks = { model, messages, n: 3, temperature: 2, seed, max_tokens: 8, ...every }
      const { choices } = await client.chat.completions.create(asks)
      expect(choices.map(({ index }) => index)).toEqual([0, 1, 2])
      return choices.map(({ message }) => message.content)
    }
    // Answer i uses seed + i.
    const seeds = Array.from({ length: 20 }, (_, i) => 3 * i)
    const rounds: (string | null)[][] = [[], []]
    for (const contents of rounds) for (const seed of seeds) contents.push(...(await asked(seed)))
    const [first, second] = rounds as [string[], string[]]
    // Not all are equal: a prompt that is recomputed, or that runs beside another, is rounded differently (by 5e-3 in log-probabilities on
    // a processor with AMX).
    expect(second.filter((content, i) => content === first[i]).length).toBeGreaterThanOrEqual(40)
    expect(second.filter((content, i) => content === first[(i + 1) % 60]).length).toBeLessThan(20)
  })

  it('reports log-probabilities', async () => {
    const answer = await client.chat.completions.create({
      model,
      messages: [user('The value of red is 4.')],
      logprobs: true,
      top_logprobs: 3,
      max_tokens: 3,
    })
    const tokens = answer.choices[0]?.logprobs?.content ?? []
    expect(tokens).toHaveLength(answer.usage!.completion_tokens)
    for (const { logprob, top_logprobs: top } of tokens) {
      expect(logprob).toBeLessThanOrEqual(0)
      expect(top).toHaveLength(3)
      // Greedy sampling takes the most likely token.
      expect(top[0]?.logprob).toBe(logprob)
    }
  })

  it('reports the bytes of tokens that are parts of a character', async () => {
    const answer = await client.chat.completions.create({
      model,
      messages: [user('The value of red is 4.')],
      logprobs: true,
      top_logprobs: 2,
      ...{ kvfold: { grammar: 'root ::= "aé😀"' } },
    })
    const tokens = answer.choices[0]?.logprobs?.content ?? []
    expect(tokens.some(({ token }) => token.includes('\ufffd'))).toBe(true)
    expect(Buffer.from(tokens.flatMap(({ bytes }) => bytes ?? [])).toString()).toBe('aé😀')
    for (const { bytes } of tokens.flatMap(({ top_logprobs: top }) => top)) expect(bytes).not.toBeNull()
  })

  it('ends at a stop string', async () => {
    const ask = { model, messages: [user('The value of red is 4. What is red?')], max_tokens: 30 }
    const free = (await client.chat.completions.create(ask)).choices[0]?.message.content ?? ''
    const stop = free.slice(4, 9)
    expect(stop).toHaveLength(5)
    const cut = await client.chat.completions.create({ ...ask, stop })
    expect(cut.choices[0]?.message.content).toBe(free.slice(0, free.indexOf(stop)))
    expect(cut.choices[0]).toMatchObject({ finish_reason: 'stop', stop_reason: stop })
  })

  it('stops computing when the client leaves', async () => {
    const controller = new AbortController()
    const stream = await client.chat.completions.create(
      { model, messages: [user('Go on for ever.')], stream: true, max_tokens: 3000, ...endless },
      { signal: controller.signal },
    )
    const take = async () => {
      for await (const { id } of stream) if (id !== '') controller.abort()
    }
    await take().catch((error: unknown) => {
      expect(error).toBeInstanceOf(APIUserAbortError)
    })
    await expect.poll(() => served.service.status().running, { timeout: 5000 }).toBe(0)
    expect(served.service.status().asks.cancelled).toBeGreaterThan(0)
  })

  it('reports errors so that the package recognises them', async () => {
    const unknown = client.chat.completions.create({ model: 'gpt-9', messages: [user('Hi')] })
    await expect(unknown).rejects.toBeInstanceOf(NotFoundError)
    await expect(unknown).rejects.toMatchObject({ status: 404, code: 'model_not_found', type: 'invalid_request_error' })
    const empty = client.chat.completions.create({ model, messages: [] })
    await expect(empty).rejects.toMatchObject({ status: 400, param: 'messages' })
    const long = client.chat.completions.create({ model, messages: [user('word '.repeat(40_000))] })
    await expect(long).rejects.toMatchObject({ status: 400, code: 'context_length_exceeded', type: 'invalid_request_error' })
    await expect(long).rejects.toThrow(
      /This model's maximum context length is \d+ tokens\. However, your request has (?:at least )?\d+ input/,
    )
    await expect(long.catch((error: unknown) => (error as APIError).requestID)).resolves.toMatch(/^req_/)
    const image = client.chat.completions.create({
      model,
      messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:,' } }] }],
    })
    await expect(image).rejects.toMatchObject({ status: 400, code: 'server/unsupported', param: 'messages[0].content[0].type' })
  })
})

describe('other routes', () => {
  it('lists models', async () => {
    const models = await client.models.list()
    expect(models.data.map(({ id }) => id)).toEqual([model])
    expect((await client.models.retrieve(model)).owned_by).toBe('kvfold')
    await expect(client.models.retrieve('gpt-9')).rejects.toBeInstanceOf(NotFoundError)
  })

  it('completes text and tokens alike', async () => {
    const prompt = 'The current value of'
    const ids = (await (await fetch(`${served.url}/tokenize`, json({ content: prompt }))).json()) as { tokens: number[] }
    const text = await client.completions.create({ model, prompt, max_tokens: 5, logprobs: 1 })
    const tokens = await client.completions.create({ model, prompt: ids.tokens, max_tokens: 5 })
    expect(tokens.choices[0]?.text).toBe(text.choices[0]?.text)
    expect(text.choices[0]?.logprobs?.tokens).toHaveLength(text.usage!.completion_tokens)
    let streamed = ''
    for await (const chunk of await client.completions.create({ model, prompt, max_tokens: 5, stream: true }))
      streamed += chunk.choices[0]?.text ?? ''
    expect(streamed).toBe(text.choices[0]?.text)
    const back = (await (await fetch(`${served.url}/detokenize`, json({ tokens: ids.tokens }))).json()) as { content: string }
    expect(back.content).toBe(prompt)
  })
})

describe('embeddings', () => {
  const length = (vector: readonly number[]) => Math.hypot(...vector)

  it('gives a vector for each text, the same in either encoding', async () => {
    const input = ['The value of red is 4.', 'A walk by the river.', 'The value of red is 4.']
    // The package requests base64 by default.
    const packed = await client.embeddings.create({ model, input })
    const plain = await client.embeddings.create({ model, input, encoding_format: 'float' })
    expect(packed.model).toBe(model)
    expect(packed.data.map(({ index }) => index)).toEqual([0, 1, 2])
    expect(packed.data.map(({ embedding }) => embedding)).toEqual(plain.data.map(({ embedding }) => embedding))
    const [red, walk, again] = packed.data.map(({ embedding }) => embedding)
    expect(length(red!)).toBeCloseTo(1, 5)
    expect(Math.max(...red!.map((value, at) => Math.abs(value - again![at]!)))).toBeLessThan(1e-5)
    expect(Math.max(...red!.map((value, at) => Math.abs(value - walk![at]!)))).toBeGreaterThan(1e-3)
    expect(packed.usage.total_tokens).toBe(packed.usage.prompt_tokens)
  })

  it('answers a client whose base URL has no /v1', async () => {
    const bare = new OpenAI({ baseURL: served.url, apiKey: 'none', maxRetries: 0 })
    const { data } = await bare.embeddings.create({ model, input: 'red' })
    expect(data).toEqual((await client.embeddings.create({ model, input: 'red' })).data)
  })

  it('accepts a text, its tokens and lists of tokens alike', async () => {
    const text = 'The value of blue is 7.'
    const { tokens } = (await (await fetch(`${served.url}/tokenize`, json({ content: text }))).json()) as { tokens: number[] }
    const whole = await client.embeddings.create({ model, input: text })
    const listed = await client.embeddings.create({ model, input: tokens })
    const lists = await client.embeddings.create({ model, input: [tokens, [1, 2]] })
    expect(whole.usage.prompt_tokens).toBe(tokens.length)
    expect(lists.usage.prompt_tokens).toBe(tokens.length + 2)
    expect(listed.data[0]?.embedding).toEqual(whole.data[0]?.embedding)
    expect(lists.data).toHaveLength(2)
  })

  it('shortens vectors on request', async () => {
    const whole = (await client.embeddings.create({ model, input: 'red' })).data[0]!.embedding
    const cut = (await client.embeddings.create({ model, input: 'red', dimensions: 4 })).data[0]!.embedding
    const scale = length(whole.slice(0, 4))
    expect(cut).toHaveLength(4)
    for (const [at, value] of cut.entries()) expect(value).toBeCloseTo(whole[at]! / scale, 5)
    await expect(client.embeddings.create({ model, input: 'red', dimensions: 1e6 })).rejects.toMatchObject({ status: 400 })
  })

  it('refuses an input that it cannot embed, and says which', async () => {
    const long = client.embeddings.create({ model, input: ['short', 'word '.repeat(4000)] })
    await expect(long).rejects.toMatchObject({ status: 400, code: 'context_length_exceeded' })
    await expect(long).rejects.toThrow('Text 1 has')
    await expect(client.embeddings.create({ model, input: [] })).rejects.toMatchObject({ status: 400, param: 'input' })
    await expect(client.embeddings.create({ model, input: [[1, 1e6]] })).rejects.toMatchObject({ status: 400 })
    await expect(client.embeddings.create({ model: 'other', input: 'a' })).rejects.toBeInstanceOf(NotFoundError)
  })

  it('chats while it embeds', async () => {
    const input = Array.from({ length: 40 }, (_, index) => `The value of key ${index} is ${index * 7}.`)
    const [vectors, answer] = await Promise.all([
      client.embeddings.create({ model, input }),
      client.chat.completions.create({ model, messages: [user('The value of red is 4.')], max_tokens: 4 }),
    ])
    expect(vectors.data).toHaveLength(40)
    expect(answer.usage?.completion_tokens).toBeGreaterThan(0)
  })

  it('are made by a separate model if there is one', async () => {
    const own = () => Embedder.load(native, encoder, { threads: 1, batchThreads: 1 })
    const folder = mkdtempSync(join(tmpdir(), 'kvfold-sdk-'))
    const encoder = join(folder, 'encoder.gguf')
    await synthesizeEncoder(encoder, { architecture: 'bert' })
    const native = await openNative({ gpu: 'cpu' })
    const other = await serving({ service: { embeddings: { name: 'encoder', load: own } } })
    expect(other.service.sideModels()).toMatchObject([{ use: 'embeddings', state: 'unloaded', loaded: null }])
    try {
      const asks = new OpenAI({ baseURL: `${other.url}/v1`, apiKey: 'none', maxRetries: 0 })
      const { data, model: by } = await asks.embeddings.create({ model: 'encoder', input: 'red' })
      expect(by).toBe('encoder')
      expect(data[0]?.embedding).toHaveLength(64)
      expect((await asks.models.list()).data.map(({ id }) => id)).toEqual([model, 'encoder'])
      expect(await asks.models.retrieve('encoder')).toMatchObject({ kvfold: { state: 'loaded', embeddings_only: true } })
      const figures = await (await fetch(`${other.url}/metrics`)).text()
      for (const figure of ['kvfold_model_loaded', 'kvfold_embeddings_total', 'kvfold_embedding_request_duration_seconds_count'])
        expect(figures).toContain(`${figure}{gen_ai_request_model="encoder"} 1`)
      expect(figures).toContain(`kvfold_model_loaded{gen_ai_request_model="${model}"} 0`)
      const chat = asks.chat.completions.create({ model: 'encoder', messages: [user('Hello.')] })
      await expect(chat).rejects.toMatchObject({ status: 501, code: 'model/unsupported' })
      await expect(asks.embeddings.create({ model, input: 'red' })).rejects.toBeInstanceOf(NotFoundError)
    } finally {
      await other.close()
      rmSync(folder, { recursive: true })
    }
  })

  it('are refused if the server was started without them', async () => {
    const without = await serving()
    try {
      const asks = new OpenAI({ baseURL: `${without.url}/v1`, apiKey: 'none', maxRetries: 0 })
      await expect(asks.embeddings.create({ model, input: 'text' })).rejects.toMatchObject({
        status: 501,
        code: 'model/unsupported',
      })
    } finally {
      await without.close()
    }
  })
})

describe('responses', () => {
  it('answers and continues from an earlier response', async () => {
    const first = await client.responses.create({
      model,
      instructions: 'Be short.',
      input: 'The value of red is 4.',
      max_output_tokens: 6,
    })
    expect(first.id).toMatch(/^resp_/)
    expect(first.output_text).toBeTypeOf('string')
    expect(['completed', 'incomplete']).toContain(first.status)
    const next = await client.responses.create({
      model,
      instructions: 'Be short.',
      input: 'What is red?',
      previous_response_id: first.id,
      max_output_tokens: 6,
    })
    expect(next.usage?.input_tokens).toBeGreaterThan(first.usage!.total_tokens)
    // Everything but the new message was cached.
    expect(next.usage!.input_tokens_details.cached_tokens).toBeGreaterThanOrEqual(first.usage!.input_tokens)
    const branch = await client.responses.create({
      model,
      instructions: 'Be short.',
      input: 'And what is blue?',
      previous_response_id: first.id,
      max_output_tokens: 6,
    })
    expect(branch.id).not.toBe(next.id)
    await expect(client.responses.create({ model, input: 'x', previous_response_id: 'resp_unknown_2' })).rejects.toMatchObject({
      status: 404,
      param: 'previous_response_id',
    })
  })

  it('streams the same response as it returns whole', async () => {
    const ask = { model, input: 'The value of green is 2. What is green?', max_output_tokens: 12 }
    const whole = await client.responses.create(ask)
    const types: string[] = []
    const numbers: number[] = []
    const stream = client.responses.stream(ask).on('event', (event) => {
      types.push(event.type)
      if ('sequence_number' in event) numbers.push(event.sequence_number)
    })
    const streamed = await stream.finalResponse()
    expect(streamed.output_text).toBe(whole.output_text)
    expect(streamed.usage?.output_tokens).toBe(whole.usage?.output_tokens)
    expect(types.slice(0, 2)).toEqual(['response.created', 'response.in_progress'])
    expect(types.at(-1)).toMatch(/^response\.(completed|incomplete)$/)
    expect(numbers).toEqual(numbers.map((_, index) => index))
  })

  it('calls functions and accepts their output', async () => {
    const tools = [
      { type: 'function' as const, name: 'get_time', description: 'Time', strict: false, parameters: time.function.parameters },
    ]
    const asked = await client.responses.create({
      model,
      input: 'Time?',
      tools,
      tool_choice: 'required',
      parallel_tool_calls: false,
      max_output_tokens: 200,
    })
    const call = asked.output.find((item) => item.type === 'function_call')
    expect(call).toMatchObject({ name: 'get_time', status: 'completed' })
    expect(JSON.parse(call!.arguments)).toEqual({ zone: 'UTC' })
    const output = { type: 'function_call_output' as const, call_id: call!.call_id, output: 'Noon.' }
    const said = await client.responses.create({
      model,
      input: [output],
      previous_response_id: asked.id,
      tools,
      tool_choice: 'none',
      max_output_tokens: 6,
    })
    expect(said.usage!.input_tokens_details.cached_tokens).toBeGreaterThanOrEqual(asked.usage!.input_tokens)
    const replayed = await client.responses.create({
      model,
      input: [{ role: 'user', content: 'Time?' }, call!, output],
      tools,
      tool_choice: 'none',
      max_output_tokens: 6,
    })
    expect(replayed.output_text).toBe(said.output_text)
    const stream = client.responses.stream({
      model,
      input: 'Time?',
      tools,
      tool_choice: { type: 'function', name: 'get_time' },
      parallel_tool_calls: false,
      max_output_tokens: 200,
    })
    const streamed = (await stream.finalResponse()).output.find((item) => item.type === 'function_call')
    expect(streamed?.arguments).toBe(call!.arguments)
  })

  it('keeps to a JSON schema', async () => {
    const answer = await client.responses.create({
      model,
      input: 'Red or blue?',
      text: {
        format: {
          type: 'json_schema',
          name: 'colour',
          strict: true,
          schema: {
            type: 'object',
            properties: { colour: { enum: ['red', 'blue'] } },
            required: ['colour'],
            additionalProperties: false,
          },
        },
      },
    })
    expect(['red', 'blue']).toContain((JSON.parse(answer.output_text) as { colour: string }).colour)
  })
})

const json = (body: object): RequestInit => ({
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify(body),
})
