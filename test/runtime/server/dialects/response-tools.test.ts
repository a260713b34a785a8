/** Tests the tools and items that Codex and the agents' SDKs send to `/v1/responses`: tools of all types, and references to items. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { readJson, writeJson } from '../../../../src/runtime/core/written-json.js'
import type { EngineRequest } from '../../../../src/runtime/engine/engine.js'
import type { ScriptedReply } from '../../../../src/lab/taught-engine.js'
import { ScriptedEngine } from '../../../support/scripted.js'
import { serving, type Serving } from '../support/serving.js'

const parameters = { type: 'object', properties: { path: { type: 'string' } }, required: ['path'] }
const format = { type: 'grammar', syntax: 'lark', definition: 'start: "*** Begin Patch"' }
const tools = [
  { type: 'function', name: 'update_plan', description: null, parameters, strict: false },
  { type: 'custom', name: 'apply_patch', description: 'Edits files.', format },
  { type: 'local_shell' },
  { type: 'web_search', external_web_access: false },
  {
    ...{ type: 'namespace', name: 'mcp__files__', description: 'Files' },
    tools: [{ type: 'function', name: 'read', description: 'Reads.', parameters, strict: null }],
  },
  { type: 'image_generation', output_format: 'png' },
]
const ignored = ['tools[3]: web_search', 'tools[5]: image_generation']

const calls = [
  { id: 'call_a', name: 'apply_patch', arguments: { input: '*** Begin Patch\n"x"' } },
  { id: 'call_b', name: 'local_shell', arguments: { command: ['ls', '-l'], timeout_ms: 500 } },
  { id: 'call_c', name: 'mcp__files__read', arguments: { path: 'a' } },
]
const items = [
  { type: 'custom_tool_call', call_id: 'call_a', name: 'apply_patch', input: '*** Begin Patch\n"x"' },
  {
    ...{ type: 'local_shell_call', call_id: 'call_b' },
    action: { type: 'exec', command: ['ls', '-l'], timeout_ms: 500, working_directory: null, env: {}, user: null },
  },
  { type: 'function_call', call_id: 'call_c', name: 'read', namespace: 'mcp__files__', arguments: '{"path":"a"}' },
]
interface Told {
  readonly id: string
  readonly status: string
  readonly output: readonly { readonly id: string; readonly type: string }[]
  readonly kvfold?: { readonly ignored?: readonly string[] }
  readonly error?: { readonly code: string; readonly param: string; readonly message: string }
}

const resultsOf = ({ output }: Told) => [
  { type: 'custom_tool_call_output', call_id: 'call_a', output: 'patched' },
  { type: 'local_shell_call_output', id: output.find(({ type }) => type === 'local_shell_call')!.id, output: 'a b' },
  { type: 'function_call_output', call_id: 'call_c', output: 'text' },
]

let served: Serving
let engine: ScriptedEngine
/** The calls that the model makes. */
let said: NonNullable<ScriptedReply['calls']> = calls
beforeAll(async () => {
  const reply = ({ messages }: EngineRequest) =>
    messages.at(-1)?.role === 'user' ? { content: 'I work.', calls: said } : { content: 'Done.' }
  engine = new ScriptedEngine(reply)
  served = await serving({ engine: () => engine })
})
afterAll(() => served.close())

const post = (body: object) =>
  fetch(`${served.url}/v1/responses`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'builtin', ...body }),
  })
const told = async (body: object): Promise<Told> => (await post(body)).json() as Promise<Told>
const last = (): EngineRequest => engine.requests.at(-1)!

describe('tools of /v1/responses', () => {
  it('are functions for the model, whatever their type; tools that no client carries out are left out and named', async () => {
    const first = await told({ input: 'Fix it.', tools })
    expect(first).toMatchObject({ status: 'completed', output: [{ type: 'message' }, ...items], kvfold: { ignored } })
    expect(last().tools?.map(({ name }) => name)).toEqual(['update_plan', 'apply_patch', 'local_shell', 'mcp__files__read'])
    expect(last().tools?.[1]?.description).toContain('Begin Patch')
    const { kvfold } = await told({ input: 'Fix it again.', tools: tools.slice(0, 3) })
    expect(kvfold).toBeUndefined()
  })

  it('are called and answered over turns, by resent items or by the response id', async () => {
    const first = await told({ input: 'Mend it.', tools })
    const history = [{ role: 'user', content: 'Mend it.' }, ...first.output]
    const results = resultsOf(first)
    for (const body of [{ input: [...history, ...results] }, { input: results, previous_response_id: first.id }]) {
      expect(await told({ ...body, tools })).toMatchObject({ output: [{ type: 'message', content: [{ text: 'Done.' }] }] })
      const shown = last().messages
      expect(shown.find(({ toolCalls }) => toolCalls !== undefined)?.toolCalls).toEqual(calls)
      expect(shown.slice(-3).map(({ content, toolCallId, name }) => [content, toolCallId, name])).toEqual([
        ['patched', 'call_a', 'apply_patch'],
        ['a b', 'call_b', 'local_shell'],
        ['text', 'call_c', 'mcp__files__read'],
      ])
    }
  })

  it('keep numbers as the model and the client wrote them', async () => {
    const action = '{"type":"exec","command":["sleep"],"env":{},"working_directory":null,"timeout_ms":1500.0,"user":null}'
    const args = '{"command":["sleep"],"timeout_ms":1500.0}'
    said = [{ id: 'call_s', name: 'local_shell', arguments: readJson(args) as Record<string, unknown> }]
    const text = await (await post({ input: 'Wait.', tools })).text()
    said = calls
    expect(text).toContain(`"action":${action}`)
    const item = `{"type":"local_shell_call","call_id":"call_s","action":${action}}`
    const output = '{"type":"local_shell_call_output","call_id":"call_s","output":"R"}'
    const body = `{"model":"builtin","input":[{"role":"user","content":"Wait."},${item},${output}]}`
    const headers = { 'content-type': 'application/json' }
    const response = await fetch(`${served.url}/v1/responses`, { method: 'POST', headers, body })
    expect(response.status).toBe(200)
    expect(last().messages.flatMap(({ toolCalls = [] }) => toolCalls.map((call) => writeJson(call.arguments)))).toEqual([args])
  })

  it('are streamed as items of their types, and the response is completed', async () => {
    const text = await (await post({ input: 'Stream it.', tools, stream: true })).text()
    const events = [...text.matchAll(/^data: (\{.*)$/gm)].map(([, data]) => JSON.parse(data!) as Record<string, unknown>)
    const done = events.filter(({ type }) => type === 'response.output_item.done').map(({ item }) => item)
    expect(done).toMatchObject([{ type: 'message' }, ...items])
    expect(events.find(({ type }) => type === 'response.custom_tool_call_input.done')).toMatchObject({
      input: '*** Begin Patch\n"x"',
    })
    expect(events.at(-1)).toMatchObject({
      type: 'response.completed',
      response: { status: 'completed', output: done, kvfold: { ignored } },
    })
  })

  it.each<[string, string, readonly unknown[]]>([
    ['tools[0].type', 'server/unsupported', [{ type: 'functoin', name: 'a' }]],
    ['tools[0].name', 'server/bad-request', [{ type: 'custom' }]],
    ['tools[0].tools', 'server/bad-request', [{ type: 'namespace', name: 'a' }]],
    ['tools[0].name', 'server/bad-request', [{ type: 'namespace', name: 'a'.repeat(129), tools: [] }]],
    [
      'tools[0].tools[0].type',
      'server/unsupported',
      [{ type: 'namespace', name: 'a', tools: [{ type: 'namespace', name: 'b', tools: [] }] }],
    ],
    ['tools[1].name', 'server/bad-request', [{ type: 'custom', name: 'local_shell' }, { type: 'local_shell' }]],
  ])('are refused by name: %s', async (param, code, wrong) => {
    expect((await told({ input: 'x', tools: wrong })).error).toMatchObject({ param, code })
  })

  it('complete a response whose call is whole, though the limit cut off later text', async () => {
    const cut = new ScriptedEngine(() => ({ content: 'I ran on', finish: 'length', calls: calls.slice(2) }))
    const other = await serving({ engine: () => cut })
    try {
      const answer = await fetch(`${other.url}/v1/responses`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ input: 'x', tools }),
      })
      expect(await answer.json()).toMatchObject({ status: 'completed', incomplete_details: null })
    } finally {
      await other.close()
    }
  })

  it('cannot be required when all were left out', async () => {
    const body = { input: 'x', tools: [{ type: 'web_search' }], tool_choice: 'required' }
    expect((await told(body)).error).toMatchObject({ param: 'tool_choice' })
  })
})

describe('a reference to an item', () => {
  it('stands for the item that was sent, streamed or not', async () => {
    const first = await told({ input: 'Refer to it.', tools })
    const references = first.output.map(({ id }, index) => (index === 0 ? { id } : { type: 'item_reference', id }))
    await told({ input: [{ role: 'user', content: 'Refer to it.' }, ...references, ...resultsOf(first)], tools })
    expect(last().messages[1]).toMatchObject({ role: 'assistant', content: 'I work.', toolCalls: calls })
    const streamed = await (await post({ input: 'Streamed.', stream: true })).text()
    const [, id] = /"id":"(msg_[^"]+)"/.exec(streamed)!
    await told({
      input: [
        { role: 'user', content: 'Streamed.' },
        { type: 'item_reference', id },
        { role: 'user', content: '?' },
      ],
    })
    expect(last().messages[1]).toMatchObject({ role: 'assistant', content: 'I work.' })
  })

  it('is a 404 when the item is not stored here', async () => {
    const unstored = await told({ input: 'Forget it.', store: false })
    for (const id of ['msg_thread_9_2_0', 'msg_x', 'nothing', unstored.output[0]!.id]) {
      const refused = await post({ input: [{ type: 'item_reference', id }] })
      const { error } = (await refused.json()) as Told
      expect([refused.status, error]).toMatchObject([404, { param: 'input[0].id', code: 'server/not-found' }])
      expect(error?.message).toContain(id)
    }
  })
})
