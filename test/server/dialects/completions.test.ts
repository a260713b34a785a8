/** `/v1/completions`: the form of an answer, why it ended, its tokens' bytes, and the cells that the next one finds. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
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

const post = (body: object, key = 'sk-anna') =>
  fetch(`${served.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${key}` },
    body: JSON.stringify(body),
  })
const complete = async (body: object, key?: string): Promise<Completion> => {
  const answer = await post(body, key)
  expect(answer.status).toBe(200)
  return (await answer.json()) as Completion
}

describe('the form of an answer', () => {
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
  ])('is that of a JSON schema, %s', async (_, form) => {
    const { choices } = await complete({ prompt, max_tokens: 200, ...form })
    expect(choices[0]?.finish_reason).toBe('stop')
    expect(['red', 'blue']).toContain((JSON.parse(choices[0]!.text) as { colour: string }).colour)
  })

  it('is any JSON object where that is asked', async () => {
    const { choices } = await complete({ prompt, max_tokens: 3, response_format: { type: 'json_object' } })
    expect(choices[0]?.text).toMatch(/^\{/)
  })

  it.each([
    ['json_schema', { json_schema: schema, response_format: { type: 'json_object' } }],
    ['json_schema', { json_schema: schema, kvfold: { grammar: 'root ::= "a"' } }],
    ['kvfold.grammar', { response_format: { type: 'json_object' }, kvfold: { grammar: 'root ::= "a"' } }],
    ['response_format.json_schema.schema', { response_format: { type: 'json_schema' } }],
    ['response_format.type', { response_format: { type: 'xml' } }],
  ])('is one: %s', async (param, form) => {
    const answer = await post({ prompt, ...form })
    expect([answer.status, await answer.json()]).toMatchObject([400, { error: { param } }])
  })
})

it('says which stop string ended it', async () => {
  const { choices } = await complete({ prompt: 'x', max_tokens: 20, stop: ['c', 'bb'], kvfold: { grammar: 'root ::= "aabbcc"' } })
  expect(choices[0]).toMatchObject({ text: 'aa', finish_reason: 'stop', stop_reason: 'bb' })
  const free = await complete({ prompt: 'x', max_tokens: 2, stop: ['zz'], kvfold: { grammar: 'root ::= "aabbcc"' } })
  expect(free.choices[0]).not.toHaveProperty('stop_reason')
})

describe('the cells', () => {
  const text = Array.from({ length: 40 }, (_, index) => `The value of key ${index} is ${index * 7}.`).join(' ')
  const ask = (prompt: string, key?: string) => complete({ prompt, max_tokens: 2, ...endless }, key)

  it('are there for the same tenant’s next completion, and for nobody else’s', async () => {
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

  it('are given up for newer ones', async () => {
    await ask(`Old. ${text}`)
    for (let index = 0; index < 8; index++) await ask(`${index}. ${text}`)
    const { usage } = await ask(`Old. ${text}`)
    expect(usage.prompt_tokens_details.cached_tokens).toBeLessThan(10)
  })
})
