/** Tests that numbers and keys stay as written, from clients to the model and back, in every dialect. */
import { afterAll, beforeAll, expect, it } from 'vitest'
import { readJson, writeJson } from '../../../../src/runtime/core/written-json.js'
import type { EngineRequest } from '../../../../src/runtime/engine/engine.js'
import { serving, type Serving } from '../support/serving.js'

type Fields = Readonly<Record<string, unknown>>

const GIVEN = '{"zeta":[9007199254740993,1e400,1.50],"id":12345678901234567890,"7":{"b":1.0,"3":"x"}}'
const PARAMETERS =
  '{"type":"object","properties":{"zeta":{"type":"array"},"id":{"minimum":9007199254740993},"7":{"default":1.0}},"required":[]}'

let served: Serving
let seen: EngineRequest
beforeAll(async () => {
  served = await serving({
    teacher: (request) => {
      seen = request
      return request.messages.at(-1)?.role === 'user'
        ? { calls: [{ name: 'look', arguments: readJson(GIVEN) as Fields }] }
        : { content: 'Done.' }
    },
  })
})
afterAll(() => served.close())

/** Sends the body as text; a client in JavaScript would round the numbers. */
async function post(path: string, body: string): Promise<string> {
  const response = await fetch(`${served.url}${path}`, { method: 'POST', headers: { 'content-type': 'application/json' }, body })
  const text = await response.text()
  expect([response.status, text]).toEqual([200, text])
  return text
}
const get = async (path: string) => (await fetch(`${served.url}${path}`)).text()

/** The fields of answers that the tests read. */
interface Told {
  readonly id: string
  readonly choices: readonly [{ readonly message: Calls; readonly delta: Calls } | undefined]
  readonly content: readonly [{ readonly id: string }]
  readonly output: readonly [{ readonly call_id: string; readonly arguments: string }]
  readonly type: string
  readonly delta?: string | { readonly partial_json?: string }
  readonly kvfold: { readonly thread: string }
}
interface Calls {
  readonly tool_calls?: readonly [{ readonly id: string; readonly function: { readonly arguments: string } }]
}
const told = (text: string): Told => JSON.parse(text) as Told

/** Joins the texts in the events of a stream. */
const streamed = (text: string, part: (data: Told) => string | undefined): string =>
  text
    .split('\n')
    .flatMap((line) => (line.startsWith('data: {') ? [told(line.slice(6))] : []))
    .map((data) => part(data) ?? '')
    .join('')

const shownCalls = () => seen.messages.flatMap(({ toolCalls = [] }) => toolCalls.map(({ arguments: args }) => writeJson(args)))
const shownTool = () => writeJson(seen.tools?.[0]?.parameters)

it('OpenAI, chat: arguments are text both ways', async () => {
  const tools = `[{"type":"function","function":{"name":"look","parameters":${PARAMETERS}}}]`
  const body = (messages: string, more = '') => `{"model":"builtin","tools":${tools},"messages":[${messages}]${more}}`
  const user = '{"role":"user","content":"chat"}'
  const call = told(await post('/v1/chat/completions', body(user))).choices[0]?.message.tool_calls?.[0]
  expect(call?.function.arguments).toBe(GIVEN)
  expect(shownTool()).toBe(PARAMETERS)
  const stream = await post('/v1/chat/completions', body(user, ',"stream":true'))
  expect(streamed(stream, ({ choices: [choice] }) => choice?.delta.tool_calls?.[0].function.arguments)).toBe(GIVEN)
  // A client writes its own spaces.
  const spaced = JSON.stringify(GIVEN.replaceAll(',', ', '))
  const history = `{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"look","arguments":${spaced}}}]}`
  await post('/v1/chat/completions', body(`${user},${history},{"role":"tool","tool_call_id":"c","content":"R"}`))
  expect(shownCalls()).toEqual([GIVEN])
})

it('Anthropic, messages: inputs are objects both ways', async () => {
  const body = (messages: string, more = '') =>
    `{"model":"builtin","max_tokens":99,"tools":[{"name":"look","input_schema":${PARAMETERS}}],"messages":[${messages}]${more}}`
  const user = '{"role":"user","content":"messages"}'
  const whole = await post('/v1/messages', body(user))
  expect(whole).toContain(`"input":${GIVEN}`)
  expect(shownTool()).toBe(PARAMETERS)
  const stream = await post('/v1/messages', body(user, ',"stream":true'))
  expect(streamed(stream, ({ delta }) => (typeof delta === 'object' ? delta.partial_json : ''))).toBe(GIVEN)
  const { content } = told(whole)
  const use = `{"role":"assistant","content":[{"type":"tool_use","id":"${content[0].id}","name":"look","input":${GIVEN}}]}`
  const result = `{"role":"user","content":[{"type":"tool_result","tool_use_id":"${content[0].id}","content":"R"}]}`
  await post('/v1/messages', body(`${user},${use},${result}`))
  expect(shownCalls()).toEqual([GIVEN])
})

it('OpenAI, responses: items, those that are stored too', async () => {
  const tools = `[{"type":"function","name":"look","parameters":${PARAMETERS}},{"type":"tool_search","execution":"client"}]`
  const body = (input: string, more = '') => `{"model":"builtin","tools":${tools},"input":${input}${more}}`
  const { id, output } = told(await post('/v1/responses', body('"responses"')))
  expect(output[0].arguments).toBe(GIVEN)
  expect(shownTool()).toBe(PARAMETERS)
  const stream = await post('/v1/responses', body('"responses"', ',"stream":true'))
  expect(
    streamed(stream, ({ type, delta }) => (type.endsWith('arguments.delta') && typeof delta === 'string' ? delta : '')),
  ).toBe(GIVEN)
  expect(told(await get(`/v1/responses/${id}`)).output[0].arguments).toBe(GIVEN)
  const answer = `[{"type":"function_call_output","call_id":"${output[0].call_id}","output":"R"}]`
  await post('/v1/responses', body(answer, `,"previous_response_id":"${id}"`))
  expect(shownCalls()).toEqual([GIVEN])
  const search = `{"type":"tool_search_call","execution":"client","call_id":"s","arguments":${GIVEN}}`
  const found = `{"type":"tool_search_output","execution":"client","call_id":"s","tools":[{"type":"function","name":"see","parameters":${PARAMETERS}}]}`
  await post('/v1/responses', body(`[{"role":"user","content":"search"},${search},${found}]`))
  expect(shownCalls()).toEqual([GIVEN])
  expect(seen.messages.find(({ role }) => role === 'tool')?.content).toContain('"minimum": 9007199254740993')
})

it('Ollama: arguments are objects both ways', async () => {
  const body = (messages: string, more = '') =>
    `{"model":"builtin","tools":[{"type":"function","function":{"name":"look","parameters":${PARAMETERS}}}],"messages":[${messages}]${more}}`
  const user = '{"role":"user","content":"ollama"}'
  expect(await post('/api/chat', body(user, ',"stream":false'))).toContain(`"arguments":${GIVEN}`)
  expect(shownTool()).toBe(PARAMETERS)
  expect(await post('/api/chat', body(user))).toContain(`"arguments":${GIVEN}`)
  const history = `{"role":"assistant","content":"","tool_calls":[{"function":{"name":"look","arguments":${GIVEN}}}]}`
  await post('/api/chat', body(`${user},${history},{"role":"tool","content":"R"}`))
  expect(shownCalls()).toEqual([GIVEN])
})

it('a thread: the export has the messages as written', async () => {
  const tools = `[{"type":"function","function":{"name":"look","parameters":${PARAMETERS}}}]`
  const asked = `{"model":"builtin","tools":${tools},"messages":[{"role":"user","content":"export"}],"kvfold":{}}`
  const { kvfold } = told(await post('/v1/chat/completions', asked))
  const exported = await get(`/kvfold/threads/${kvfold.thread}/export`)
  expect(exported).toContain(`"arguments":${GIVEN}`)
  expect(await get(`/kvfold/threads/${kvfold.thread}`)).toContain(`"arguments":${GIVEN}`)
})
