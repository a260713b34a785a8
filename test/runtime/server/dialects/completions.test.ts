/** Tests `/v1/completions`: the answer's format, why it ended, its tokens' bytes, and the cells that the next completion reuses. */
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { textLogprobs, TextOffsets } from '../../../../src/runtime/server/dialects/openai/wire.js'
import { endless, serving, type Serving } from '../support/serving.js'

interface Completion {
  readonly choices: readonly { readonly text: string; readonly finish_reason: string; readonly stop_reason?: string }[]
  readonly usage: { readonly prompt_tokens: number; readonly prompt_tokens_details: { readonly cached_tokens: number } }
}

let served: Serving
beforeAll(async () => {
  served = await serving({
    keys: [
      { name: 'anna', key: 'sk-anna' },
      { name: 'bob', key: 'sk-bob' },
    ],
  })
})
afterAll(() => served.close())

const post = (body: object, key = 'sk-anna', path = '/v1/completions') =>
  fetch(served.url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${key}` },
    body: JSON.stringify(body),
  })
const complete = async (body: object, key?: string): Promise<Completion> => {
  const answer = await post(body, key)
  expect(answer.status).toBe(200)
  return (await answer.json()) as Completion
}

describe('max_tokens', () => {
  const said = '1234567890'.repeat(20)
  const grammar = `root ::= "${said}"`

  it('is 16 by default, and -1 is no limit', async () => {
    const cut = await complete({ prompt: 'Once', grammar })
    expect(cut.choices[0]?.finish_reason).toBe('length')
    const whole = await complete({ prompt: 'Once', grammar, max_tokens: -1 })
    expect(whole.choices[0]).toMatchObject({ finish_reason: 'stop', text: said })
  })

  it.each(['max_tokens', 'max_completion_tokens'])('of a chat is none at -1, and no text at 0: %s', async (name) => {
    const chat = async (most: number) => {
      const answer = await fetch(`${served.url}/v1/chat/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', authorization: 'Bearer sk-anna' },
        body: JSON.stringify({ messages: [{ role: 'user', content: 'Count.' }], grammar, [name]: most }),
      })
      return { status: answer.status, ...((await answer.json()) as object) }
    }
    expect(await chat(-1)).toMatchObject({ status: 200, choices: [{ finish_reason: 'stop', message: { content: said } }] })
    expect(await chat(0)).toMatchObject({ status: 200, choices: [{ message: { content: '' }, finish_reason: 'length' }] })
  })
})

describe('the format of an answer', () => {
  const schema = {
    type: 'object',
    properties: { colour: { enum: ['red', 'blue'] } },
    required: ['colour'],
    additionalProperties: false,
  }
  const prompt = 'The colour as JSON: '

  it.each([
    ['as vLLM has it', { response_format: { type: 'json_schema', json_schema: { name: 'colour', schema } } }],
    ['as llama-server has it', { json_schema: schema }],
  ])('follows a JSON schema, %s', async (_, form) => {
    const { choices } = await complete({ prompt, max_tokens: 200, ...form })
    expect(choices[0]?.finish_reason).toBe('stop')
    expect(['red', 'blue']).toContain((JSON.parse(choices[0]!.text) as { colour: string }).colour)
  })

  it('is any JSON object on request', async () => {
    const { choices } = await complete({ prompt, max_tokens: 3, response_format: { type: 'json_object' } })
    expect(choices[0]?.text).toMatch(/^\{/)
  })

  it.each([
    ['json_schema', { json_schema: schema, response_format: { type: 'json_object' } }],
    ['json_schema', { json_schema: schema, kvfold: { grammar: 'root ::= "a"' } }],
    ['kvfold.grammar', { response_format: { type: 'json_object' }, kvfold: { grammar: 'root ::= "a"' } }],
    ['response_format.json_schema.schema', { response_format: { type: 'json_schema' } }],
    ['response_format.type', { response_format: { type: 'xml' } }],
  ])('is given once: %s', async (param, form) => {
    const answer = await post({ prompt, ...form })
    expect([answer.status, await answer.json()]).toMatchObject([400, { error: { param } }])
  })
})

it.each(['/v1/completions', '/completion'])(
  'all answers of %s share one form, so that a large one is in memory once',
  async (path) => {
    const asks = vi.spyOn(served.service, 'completeAll')
    const body = { prompt: ['x', 'y'], n: 2, max_tokens: 1, guided_choice: ['red', 'blue'] }
    const answer = await post(body, 'sk-anna', path)
    const forms = asks.mock.calls.flatMap(([all]) => all.map(({ format }) => format))
    asks.mockRestore()
    expect([answer.status, forms.length, new Set(forms).size]).toEqual([200, 4, 1])
  },
)

it.each([
  ['/v1/completions', 'whole', {}],
  ['/v1/completions', 'streamed', { stream: true }],
  ['/completion', 'raw', {}],
])('the answers of %s to one prompt compute it once, %s', async (path, seed, more) => {
  const submitted = () => served.service.models()[0]!.loaded!.submitted!
  const prompt = Array.from({ length: 60 }, (_, index) => `Key ${index} of ${seed} is ${index * 7}.`).join(' ')
  await served.service.load()
  const before = submitted()
  const answer = await post({ prompt: `${seed} ${prompt}`, n: 4, max_tokens: 1, ...more }, 'sk-anna', path)
  expect([answer.status, (await answer.text()).length > 0]).toEqual([200, true])
  const { usage } = await complete({ prompt: `${seed} ${prompt}`, max_tokens: 1 })
  expect(usage.prompt_tokens).toBeGreaterThan(600)
  expect(submitted() - before).toBeLessThan(1.2 * usage.prompt_tokens)
})

it('names the stop string that ended the answer', async () => {
  const { choices } = await complete({ prompt: 'x', max_tokens: 20, stop: ['c', 'bb'], kvfold: { grammar: 'root ::= "aabbcc"' } })
  expect(choices[0]).toMatchObject({ text: 'aa', finish_reason: 'stop', stop_reason: 'bb' })
  const free = await complete({ prompt: 'x', max_tokens: 2, stop: ['zz'], kvfold: { grammar: 'root ::= "aabbcc"' } })
  expect(free.choices[0]).not.toHaveProperty('stop_reason')
})

describe('a prompt of texts and token ids', () => {
  const first = 'The colour of the sky'
  const second = ' is blue.'

  it('joins the tokens of each text and the ids, in order', async () => {
    const ids = (await (
      await fetch(`${served.url}/tokenize`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', authorization: 'Bearer sk-anna' },
        body: JSON.stringify({ content: second }),
      })
    ).json()) as { tokens: number[] }
    const body = { max_tokens: 4, temperature: 0, echo: true, ...endless }
    const said = await complete({ ...body, prompt: [first, ...ids.tokens, '', second] })
    const plain = await complete({ ...body, prompt: first + second })
    expect(said.choices[0]!.text.startsWith(first + second + second)).toBe(true)
    expect(said.usage.prompt_tokens).toBe(plain.usage.prompt_tokens + ids.tokens.length)
  })

  it.each([
    ['texts', [1, 'one two three '.repeat(200_000)], /characters/],
    ['parts', [1, ...Array.from({ length: 200_000 }, () => 'x')], /The request has 200001 token ids and texts/],
  ])('that cannot fit for its %s is refused before all of it is tokenized', async (_, prompt, why) => {
    const answer = await post({ prompt })
    expect([answer.status, await answer.json()]).toMatchObject([
      400,
      { error: { code: 'context_length_exceeded', message: expect.stringMatching(why) as string } },
    ])
  })
})

describe('the cells', () => {
  const text = Array.from({ length: 40 }, (_, index) => `The value of key ${index} is ${index * 7}.`).join(' ')
  const ask = (prompt: string, key?: string) => complete({ prompt, max_tokens: 2, ...endless }, key)

  it("are reused by the same tenant's next completion, and by no other tenant", async () => {
    const first = await ask(text)
    // The tests above may have begun with the same word.
    expect(first.usage.prompt_tokens_details.cached_tokens).toBeLessThan(5)
    const next = await ask(`${text} And more.`)
    const { prompt_tokens: prompt, prompt_tokens_details: details } = next.usage
    expect(details.cached_tokens).toBeGreaterThanOrEqual(first.usage.prompt_tokens - 1)
    expect(details.cached_tokens).toBeLessThan(prompt)
    expect(next.choices[0]?.text).toBe((await ask(`${text} And more.`)).choices[0]?.text)
    const other = await ask(text, 'sk-bob')
    expect(other.usage.prompt_tokens_details.cached_tokens).toBe(0)
    expect(other.choices[0]?.text).toBe(first.choices[0]?.text)
  })

  it('are evicted for newer ones', async () => {
    await ask(`Old. ${text}`)
    for (let index = 0; index < 8; index++) await ask(`${index}. ${text}`)
    const { usage } = await ask(`Old. ${text}`)
    expect(usage.prompt_tokens_details.cached_tokens).toBeLessThan(10)
  })
})

describe('text_offset', () => {
  interface Part {
    readonly choices: readonly {
      readonly text: string
      readonly logprobs: { readonly tokens: readonly string[]; readonly text_offset: readonly number[] } | null
    }[]
  }
  const tokensOf = (parts: readonly Part[]) =>
    parts.flatMap(({ choices }) => {
      const { tokens = [], text_offset: offsets = [] } = choices[0]?.logprobs ?? {}
      return tokens.map((token, at) => [token, offsets[at]!] as const)
    })
  /** Every token that is whole characters stands where its offset says. */
  const check = (text: string, tokens: readonly (readonly [string, number])[]) => {
    for (const [token, offset] of tokens)
      if (!token.includes('\ufffd')) expect([token, text.slice(offset, offset + token.length)]).toEqual([token, token])
  }

  it('counts characters that several tokens make together', async () => {
    const said = '😀 and 😀 and 😀.'
    const whole = await complete({ prompt: 'x', max_tokens: 60, logprobs: 0, grammar: `root ::= "${said}"` })
    const tokens = tokensOf([whole as unknown as Part])
    expect([whole.choices[0]!.text, tokens.some(([token]) => token.includes('\ufffd'))]).toEqual([said, true])
    check(said, tokens)
  })

  it('counts text in a stream that is held back as the beginning of a stop string', async () => {
    const said = 'The value of the key is here.'
    const body = { prompt: 'x', max_tokens: 60, logprobs: 0, grammar: `root ::= "${said}"` }
    const answer = await post({ ...body, stream: true, stop: ['eq', 'yq', 'sq'] })
    const parts = [...(await answer.text()).matchAll(/^data: (\{.*)$/gm)].map(([, data]) => JSON.parse(data!) as Part)
    expect(parts.map(({ choices }) => choices[0]?.text ?? '').join('')).toBe(said)
    check(said, tokensOf(parts))
  })

  it('is never below 0, although a vocabulary puts a space before the text', () => {
    const one = (text: string) => ({ token: 1, text, logprob: -1, top: [] })
    expect(textLogprobs([one(' Hello'), one(' you')], new TextOffsets(-1)).text_offset).toEqual([0, 5])
  })
})

describe('the log-probabilities of a prompt', () => {
  interface Echoed {
    readonly choices: readonly {
      readonly text: string
      readonly logprobs: {
        readonly tokens: readonly string[]
        readonly token_logprobs: readonly (number | null)[]
        readonly top_logprobs: readonly (Readonly<Record<string, number>> | null)[]
        readonly text_offset: readonly number[]
      }
    }[]
    readonly usage: { readonly prompt_tokens: number; readonly completion_tokens: number }
  }
  const prompt = 'The colour of the sky is blue, and that of grass is green. '.repeat(6)
  const echoed = async (body: object) =>
    (await complete({ echo: true, logprobs: 2, temperature: 0, ...body })) as unknown as Echoed

  it('come before those of the answer, whatever is in the cache', async () => {
    const first = await echoed({ prompt, max_tokens: 3 })
    const { text, logprobs } = first.choices[0]!
    const { usage } = first
    expect(text.startsWith(prompt)).toBe(true)
    const all = usage.prompt_tokens + usage.completion_tokens
    // The prompt is longer than one read of logits.
    expect(usage.prompt_tokens).toBeGreaterThan(70)
    for (const list of Object.values(logprobs)) expect(list).toHaveLength(all)
    expect([logprobs.token_logprobs[0], logprobs.top_logprobs[0]]).toEqual([null, null])
    for (const value of logprobs.token_logprobs.slice(1)) expect(value).toBeLessThanOrEqual(0)
    expect(logprobs.tokens.join('').endsWith(text)).toBe(true)
    logprobs.tokens.slice(1).forEach((token, at) => {
      expect(text.slice(logprobs.text_offset[at + 1]).startsWith(token)).toBe(true)
    })
    const again = (await echoed({ prompt, max_tokens: 3 })).choices[0]!
    expect([again.text, again.logprobs.tokens]).toEqual([text, logprobs.tokens])
  })

  it('equal those of a step that generates the same tokens', async () => {
    const body = { prompt, max_tokens: 6, temperature: 0, logprobs: 2 }
    const said = (await complete(body)) as unknown as Echoed
    const { text, logprobs } = said.choices[0]!
    const { choices } = await echoed({ prompt: prompt + text, max_tokens: 0 })
    expect(choices[0]!.text).toBe(prompt + text)
    const read = choices[0]!.logprobs
    const from = read.text_offset.findIndex((offset) => offset >= prompt.length)
    // The test needs a text that is tokenized the same again.
    expect(read.tokens.slice(from)).toEqual(logprobs.tokens)
    logprobs.token_logprobs.forEach((value, at) => {
      expect(read.token_logprobs[from + at]).toBeCloseTo(value!, 1)
    })
  })

  it('are separate for each of several prompts, beside other work', async () => {
    const prompts = [prompt, 'One two three.', prompt.slice(10)]
    const alone: unknown[] = []
    for (const one of prompts) alone.push((await echoed({ prompt: one, max_tokens: 0 })).choices[0]!.logprobs.tokens)
    const beside = complete({ prompt: 'Go on.', max_tokens: 40, ...endless })
    const { choices } = await echoed({ prompt: prompts, max_tokens: 0 })
    expect(choices.map(({ logprobs }) => logprobs.tokens)).toEqual(alone)
    await beside
  })

  it('are not streamed', async () => {
    expect((await post({ prompt, echo: true, logprobs: 1, stream: true })).status).toBe(400)
  })
})
