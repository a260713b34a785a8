/** Tests the answer formats under the field names of vLLM, SGLang and llama-server, in OpenAI's routes. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { serving, type Serving } from '../support/serving.js'

let served: Serving
beforeAll(async () => {
  served = await serving()
})
afterAll(() => served.close())

const ROUTES: readonly (readonly [path: string, body: object])[] = [
  ['/v1/completions', { prompt: 'The colour: ' }],
  ['/v1/chat/completions', { messages: [{ role: 'user', content: 'Which colour?' }] }],
  ['/v1/responses', { input: 'Which colour?' }],
]

const post = (path: string, body: object, most = 100) =>
  fetch(served.url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ [path === '/v1/responses' ? 'max_output_tokens' : 'max_tokens']: most, ...body }),
  })

interface Said {
  readonly choices?: readonly { readonly text?: string; readonly message?: { readonly content: string }; finish_reason: string }[]
  readonly status?: string
  readonly output?: readonly { readonly content: readonly { readonly text: string }[] }[]
}
const textOf = ({ choices, output }: Said): string | undefined =>
  choices?.[0]?.text ?? choices?.[0]?.message?.content ?? output?.[0]?.content[0]?.text

async function said(path: string, body: object): Promise<string> {
  const answer = await post(path, body)
  const whole = (await answer.json()) as Said
  expect([answer.status, whole.choices?.[0]?.finish_reason ?? whole.status]).toEqual([
    200,
    path === '/v1/responses' ? 'completed' : 'stop',
  ])
  return textOf(whole) ?? ''
}

const schema = {
  type: 'object',
  properties: { colour: { enum: ['red', 'blue'] }, of: { const: null } },
  required: ['colour', 'of'],
}
const choice = ['rot "1"', 'blau\n\\']
const grammar = 'root ::= [ab] "c"'

describe.each(ROUTES)('%s keeps an answer', (path, body) => {
  it.each<[string, object]>([
    ['structured_outputs', { structured_outputs: { json: schema, regex: null, disable_fallback: true } }],
    ['structured_outputs, as text', { structured_outputs: { json: JSON.stringify(schema) } }],
    ['guided_json', { guided_json: schema, guided_decoding_backend: 'xgrammar' }],
    ['guided_json, as text', { guided_json: JSON.stringify(schema) }],
    ['json_schema', { json_schema: schema, grammar: '' }],
    ['response_format: json_object with a schema', { response_format: { type: 'json_object', schema } }],
  ])('to a JSON schema: %s', async (_, form) => {
    const value = JSON.parse(await said(path, { ...body, ...form })) as { colour: string; of: unknown }
    expect(['red', 'blue']).toContain(value.colour)
    expect(value.of).toBeNull()
  })

  it.each<[string, object]>([
    ['structured_outputs', { structured_outputs: { choice, json_object: false } }],
    ['guided_choice', { guided_choice: choice }],
  ])('to one of some texts: %s', async (_, form) => {
    expect(choice).toContain(await said(path, { ...body, ...form }))
    // The format decides the text, even against the model.
    expect(await said(path, { ...body, structured_outputs: { choice: ['Ω'] } })).toBe('Ω')
  })

  it.each<[string, object]>([
    ['structured_outputs', { structured_outputs: { grammar } }],
    ['guided_grammar', { guided_grammar: grammar }],
    ['grammar', { grammar }],
    ['ebnf', { ebnf: grammar }],
    ['kvfold.grammar', { kvfold: { grammar } }],
  ])('to a grammar: %s', async (_, form) => {
    expect(await said(path, { ...body, ...form })).toMatch(/^[ab]c$/)
  })

  it('to any JSON object', async () => {
    const answer = await post(path, { ...body, structured_outputs: { json_object: true } }, 1)
    expect(textOf((await answer.json()) as Said)).toMatch(/^\{/)
  })
})

describe.each(ROUTES)('%s keeps an answer to a regular expression', (path, body) => {
  it.each<[object, RegExp]>([
    [{ guided_regex: '[0-9]{3}-[0-9]{2}' }, /^\d{3}-\d{2}$/],
    [{ regex: '^(cat|dog)s?$' }, /^(cat|dog)s?$/],
    [{ regex: '^a1$|^b2$' }, /^(a1|b2)$/],
    [{ structured_outputs: { regex: '^\\d+\\.\\d{2}\\$$' } }, /^\d+\.\d{2}\$$/],
  ])('%j', async (form, expected) => {
    // A full stop cannot be missing where the digits before it have no end.
    expect(await said(path, { ...body, ...form, logit_bias: [['.', 100]] })).toMatch(expected)
  })
})

describe.each(ROUTES)('%s refuses', (path, body) => {
  it.each<[string, string, object]>([
    ['server/bad-request', 'guided_regex', { guided_regex: '(' }],
    ['server/bad-request', 'regex', { regex: '(?=a)b' }],
    ['server/bad-request', 'structured_outputs.regex', { structured_outputs: { regex: 'a^b' } }],
    ['server/bad-request', 'structured_outputs.regex', { structured_outputs: { regex: 7 } }],
    ['server/bad-request', 'guided_choice', { regex: '[0-9]', guided_choice: ['a'] }],
    ['server/unsupported', 'structured_outputs.structural_tag', { structured_outputs: { structural_tag: '{}' } }],
    ['server/unsupported', 'structural_tag', { structural_tag: '{}' }],
    ['server/unsupported', 'guided_whitespace_pattern', { guided_json: schema, guided_whitespace_pattern: ' ?' }],
    ['server/unsupported', 'structured_outputs.disable_any_whitespace', { structured_outputs: { disable_any_whitespace: true } }],
    ['server/unsupported', 'structured_outputs.constructor', { structured_outputs: { constructor: 'x' } }],
    ['server/unsupported', 'structured_outputs.jason', { structured_outputs: { jason: schema } }],
    ['server/bad-request', 'structured_outputs', { structured_outputs: 'json' }],
    ['server/bad-request', 'structured_outputs.json', { structured_outputs: { json: '{' } }],
    ['server/bad-request', 'guided_json', { guided_json: `{"items":${'['.repeat(9000)}${']'.repeat(9000)}}` }],
    ['server/bad-request', 'structured_outputs.json_object', { structured_outputs: { json_object: 'yes' } }],
    ['server/bad-request', 'structured_outputs.choice', { structured_outputs: { choice: [] } }],
    ['server/bad-request', 'structured_outputs.choice', { structured_outputs: { choice: ['a', 7] } }],
    ['server/bad-request', 'structured_outputs.grammar', { structured_outputs: { grammar: '' } }],
    ['server/bad-request', 'grammar', { grammar: `root ::= "a" #${'x'.repeat(2 ** 18)}` }],
    ['server/bad-request', 'guided_choice', { guided_choice: [''] }],
    ['server/bad-request', 'guided_choice', { guided_choice: Array.from({ length: 1001 }, (_, at) => `c${at}`) }],
    ['server/bad-request', 'guided_choice', { guided_choice: Array.from({ length: 1000 }, () => 'x'.repeat(15_000)) }],
    ['server/bad-request', 'regex', { regex: '\\S{1001}'.repeat(1000) }],
    ['server/bad-request', 'structured_outputs.choice', { structured_outputs: { json: schema, choice } }],
    ['server/bad-request', 'guided_json', { guided_json: schema, response_format: { type: 'json_object' } }],
    ['server/bad-request', 'guided_grammar', { guided_grammar: grammar, kvfold: { grammar } }],
  ])('with %s: %s %#', async (code, param, form) => {
    const answer = await post(path, { ...body, ...form })
    expect([answer.status, await answer.json()]).toMatchObject([400, { error: { code, param } }])
  })
})

it.each(ROUTES)('%s refuses a schema of more than 262,144 characters', async (path, body) => {
  const answer = await post(path, { ...body, json_schema: { type: 'object', description: 'x'.repeat(2 ** 18) } })
  const { error } = (await answer.json()) as { error: { message: string } }
  expect([answer.status, error.message]).toEqual([400, expect.stringContaining('262144 characters')])
})

it('/v1/responses takes one form, its own or another', async () => {
  const form = { text: { format: { type: 'json_object' } }, kvfold: { grammar } }
  const answer = await post('/v1/responses', { input: 'x', ...form })
  expect([answer.status, await answer.json()]).toMatchObject([400, { error: { param: 'kvfold.grammar' } }])
})

describe('a schema that no grammar can keep is a 400 that names the reason', () => {
  const unkept = { type: 'object', properties: { a: { type: 'array', uniqueItems: true } } }
  const impossible = { type: 'integer', minimum: 3, maximum: 2 }
  it.each<[string, object]>([
    ['uniqueItems', { response_format: { type: 'json_schema', json_schema: { name: 'x', schema: unkept } } }],
    ['uniqueItems', { response_format: { type: 'json_object', schema: unkept } }],
    ['#', { response_format: { type: 'json_schema', json_schema: { name: 'x', schema: impossible } } }],
    ['"f"', { tools: [{ type: 'function', function: { name: 'f', parameters: unkept, strict: true } }] }],
  ])('%s %#', async (named, form) => {
    const answer = await post('/v1/chat/completions', { messages: [{ role: 'user', content: 'x' }], ...form })
    const { error } = (await answer.json()) as { error: { message: string } }
    expect([answer.status, error.message]).toEqual([400, expect.stringContaining(named)])
  })

  it('a schema of a tool that is not strict is kept as far as possible', async () => {
    const tools = [{ type: 'function', function: { name: 'f', parameters: unkept } }]
    const answer = await post('/v1/chat/completions', { messages: [{ role: 'user', content: 'x' }], tools, max_tokens: 4 })
    expect(answer.status).toBe(200)
  })
})
