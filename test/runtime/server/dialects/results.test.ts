/** Tests results of parallel calls in any order, in each dialect: the call that each answers, and refused ones. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { ScriptedEngine } from '../../../support/scripted.js'
import { serving, type Serving } from '../support/serving.js'

const engine = new ScriptedEngine(() => ({ content: 'Done.' }))
let served: Serving
beforeAll(async () => {
  served = await serving({ engine: () => engine })
})
afterAll(() => served.close())

/** Calls by name and argument, a result by its call's id (none in Ollama), an answer, or a text of the user. */
type Step =
  | { readonly calls: readonly (readonly [id: string, item: string])[] }
  | { readonly result: string; readonly of?: string; readonly tool?: string }
  | { readonly says: string }
  | { readonly answers: string }

const openAi = (steps: readonly Step[]) => ({
  messages: steps.map((step) => {
    if ('says' in step) return { role: 'user', content: step.says }
    if ('answers' in step) return { role: 'assistant', content: step.answers }
    if ('result' in step) return { role: 'tool', content: step.result, tool_call_id: step.of }
    const calls = step.calls.map(([id, item]) => ({
      id,
      type: 'function',
      function: { name: 'read', arguments: JSON.stringify({ item }) },
    }))
    return { role: 'assistant', content: null, tool_calls: calls }
  }),
})

const responses = (steps: readonly Step[]) => ({
  input: steps.flatMap((step): object[] => {
    if ('says' in step) return [{ role: 'user', content: step.says }]
    if ('answers' in step) return [{ role: 'assistant', content: step.answers }]
    if ('result' in step) return [{ type: 'function_call_output', call_id: step.of, output: step.result }]
    return step.calls.map(([id, item]) => ({
      ...{ type: 'function_call', call_id: id, name: 'read', arguments: JSON.stringify({ item }) },
    }))
  }),
})

/** Adjacent results and texts of the user are one message. */
const anthropic = (steps: readonly Step[]) => ({
  max_tokens: 10,
  messages: steps.reduce<{ role: string; content: object[] }[]>((messages, step) => {
    const [role, ...blocks] =
      'says' in step
        ? ['user', { type: 'text', text: step.says }]
        : 'answers' in step
          ? ['assistant', { type: 'text', text: step.answers }]
          : 'result' in step
            ? ['user', { type: 'tool_result', tool_use_id: step.of, content: step.result }]
            : ['assistant', ...step.calls.map(([id, item]) => ({ type: 'tool_use', id, name: 'read', input: { item } }))]
    const last = messages.at(-1)
    if (last?.role === role) last.content.push(...(blocks as object[]))
    else messages.push({ role: role, content: blocks })
    return messages
  }, []),
})

const ollama = (steps: readonly Step[]) => ({
  stream: false,
  messages: steps.map((step) => {
    if ('says' in step) return { role: 'user', content: step.says }
    if ('answers' in step) return { role: 'assistant', content: step.answers }
    if ('result' in step) return { role: 'tool', content: step.result, tool_call_id: step.of, tool_name: step.tool }
    const calls = step.calls.map(([id, item]) => ({
      ...(id === '' ? {} : { id }),
      function: { name: `read_${item}`, arguments: { item } },
    }))
    return { role: 'assistant', tool_calls: calls }
  }),
})

const DIALECTS = {
  openAi: { path: '/v1/chat/completions', body: openAi, id: (at: number) => `messages[${at}].tool_call_id` },
  responses: { path: '/v1/responses', body: responses, id: (at: number) => `input[${at + 1}].call_id` },
  anthropic: { path: '/v1/messages', body: anthropic, id: (at: number) => `messages[2].content[${at - 2}].tool_use_id` },
  ollama: { path: '/api/chat', body: ollama, id: (at: number) => `messages[${at}].tool_call_id` },
} as const

async function ask(dialect: keyof typeof DIALECTS, steps: readonly Step[], more: object = {}) {
  const { path, body } = DIALECTS[dialect]
  const response = await fetch(served.url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ ...body(steps), ...more }),
  })
  return { status: response.status, text: await response.text(), said: engine.requests.at(-1)?.messages ?? [] }
}

/** Summarises the messages that the model saw. */
const seen = ({ said }: Awaited<ReturnType<typeof ask>>) =>
  said.map(({ role, content, toolCalls }) => (toolCalls === undefined ? `${role} ${content}` : 'calls'))

const called: readonly Step[] = [
  { says: 'Read a, b and c.' },
  {
    calls: [
      ['id_a', 'a'],
      ['id_b', 'b'],
      ['id_c', 'c'],
    ],
  },
]
const of = (item: string): Step => ({ result: `is ${item}`, of: `id_${item}` })
const head = ['user Read a, b and c.', 'calls']

describe.each(Object.keys(DIALECTS) as (keyof typeof DIALECTS)[])('%s', (dialect) => {
  const { id } = DIALECTS[dialect]

  it('results in another order are put in the order of the calls', async () => {
    const answer = await ask(dialect, [...called, of('c'), of('a'), of('b'), { says: 'So?' }])
    expect(answer.status, answer.text).toBe(200)
    expect(seen(answer)).toEqual([...head, 'tool is a', 'tool is b', 'tool is c', 'user So?'])
  })

  it('a missing result stays missing', async () => {
    const answer = await ask(dialect, [...called, of('c'), of('a'), { says: 'So?' }])
    expect(seen(answer)).toEqual([...head, 'tool is a', 'tool is c', 'user So?'])
  })

  it('a result after a text of the user moves to its call; one after an answer stays in place', async () => {
    const answer = await ask(dialect, [
      ...called,
      of('b'),
      { says: 'Wait.' },
      of('a'),
      { answers: 'Yes.' },
      of('c'),
      { says: 'So?' },
    ])
    expect(answer.status, answer.text).toBe(200)
    expect(seen(answer)).toEqual([...head, 'tool is a', 'tool is b', 'user Wait.', 'assistant Yes.', 'tool is c', 'user So?'])
  })

  it('an id means the last call that has it', async () => {
    const again: Step = { calls: [['id_a', 'a']] }
    const steps = [...called, of('c'), of('a'), { answers: 'Yes.' }, { says: 'Again.' }, again, of('a'), { says: 'So?' }]
    const answer = await ask(dialect, steps)
    expect(answer.status, answer.text).toBe(200)
    expect(seen(answer).slice(2)).toEqual([
      ...['tool is a', 'tool is c', 'assistant Yes.', 'user Again.', 'calls', 'tool is a', 'user So?'],
    ])
  })

  it('refuses an unknown id, a second result, and two calls with one id, each by name', async () => {
    // In /v1/responses the three calls are separate items.
    const at = dialect === 'responses' ? 3 : 2
    const unknown = await ask(dialect, [...called, of('z'), { says: 'So?' }])
    expect(unknown.status).toBe(400)
    expect(unknown.text).toContain(`${id(at)} is \\"id_z\\", and no call before it has that id`)
    const doubled = await ask(dialect, [...called, of('a'), of('a'), { says: 'So?' }])
    expect(doubled.status).toBe(400)
    expect(doubled.text).toContain(`${id(at + 1)} is \\"id_a\\", whose result ${id(at)} has given already`)
    const twice: Step = {
      calls: [
        ['id_a', 'a'],
        ['id_a', 'b'],
      ],
    }
    const same = await ask(dialect, [{ says: 'Read.' }, twice, of('a'), { says: 'So?' }])
    expect(same.status).toBe(400)
    expect(same.text).toContain('has two calls with the id \\"id_a\\"')
  })
})

it('a thread continues, with the same beginning of its prompt, however results are ordered', async () => {
  const first = [...called, of('c'), of('b'), of('a'), { says: 'What of the three items is it?' }]
  const kvfold = { ledger: true }
  const one = await ask('openAi', first, { kvfold })
  const more = [...first, { answers: 'Done.' }, { says: 'And now?' }]
  const two = await ask('openAi', more, { kvfold })
  const [before, after] = [one, two].map(
    ({ text }) => JSON.parse(text) as { kvfold: { thread: string; ledger: { recomputed: number }[] } },
  )
  expect(after!.kvfold.thread).toBe(before!.kvfold.thread)
  expect(after!.kvfold.ledger[0]!.recomputed).toBe(0)
  expect(two.said.slice(0, one.said.length)).toEqual(one.said)
})

describe('an earlier response', () => {
  it('has the calls that results answer, each once', async () => {
    const first = await ask('responses', [...called, of('c')])
    const { id } = JSON.parse(first.text) as { id: string }
    const late = await ask('responses', [of('a'), { says: 'So?' }], { previous_response_id: id })
    expect(late.status, late.text).toBe(200)
    expect(seen(late).slice(-3)).toEqual(['assistant Done.', 'tool is a', 'user So?'])
    const again = await ask('responses', [of('c'), { says: 'So?' }], { previous_response_id: id })
    expect(again.status).toBe(400)
    expect(again.text).toContain('whose result an earlier response has given already')
  })
})

describe('Ollama without ids', () => {
  const plain: Step = {
    calls: [
      ['', 'a'],
      ['', 'b'],
    ],
  }

  it('a result answers the first open call of the tool that it names', async () => {
    const answer = await ask('ollama', [
      ...[{ says: 'Read.' }, plain, { result: 'is b', tool: 'read_b' }, { result: 'is a', tool: 'read_a' }, { says: 'So?' }],
    ])
    expect(seen(answer)).toEqual(['user Read.', 'calls', 'tool is a', 'tool is b', 'user So?'])
  })

  it('a result without a name answers the first open call of the last message that has one', async () => {
    const answer = await ask('ollama', [{ says: 'Read.' }, plain, { says: 'No.' }, plain, { result: '1' }, { result: '2' }])
    expect(seen(answer)).toEqual(['user Read.', 'calls', 'user No.', 'calls', 'tool 1', 'tool 2'])
    const open = answer.said.findLast(({ toolCalls }) => toolCalls !== undefined)!.toolCalls!
    expect(answer.said.slice(-2).map(({ toolCallId }) => toolCallId)).toEqual(open.map(({ id }) => id))
  })

  it('a result is refused if no call of its tool is open', async () => {
    const answer = await ask('ollama', [{ says: 'Read.' }, plain, { result: 'is c', tool: 'read_c' }])
    expect([answer.status, answer.text]).toEqual([
      400,
      expect.stringContaining('no call of \\"read_c\\" before it is without one'),
    ])
  })
})
