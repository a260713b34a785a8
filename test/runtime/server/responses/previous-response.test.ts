/** Tests `previous_response_id` after a turn in which the server carried out calls of its own. */
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import { describe, expect, it } from 'vitest'
import { ScriptedEngine } from '../../../support/scripted.js'
import { PUBLIC } from '../../../../src/runtime/server/ask.js'
import { serving } from '../support/serving.js'

const weather = { type: 'function', name: 'weather', description: 'Weather', parameters: { type: 'object', properties: {} } }
const inner = { name: 'search_context', arguments: { query: 'Rome' } }

/** The first step has text before a server call; the second has a server call beside one of the client's. */
const script = [
  { content: 'Let me look.', calls: [inner] },
  { content: 'I ask.', calls: [{ name: 'weather' }, inner] },
  { content: 'Sunny.' },
  { content: 'Still sunny.' },
]

/** Steps that think. */
const thinking = [
  { reasoning: 'Where is it?', content: 'Let me look.', calls: [inner] },
  { reasoning: 'There it is.', content: 'Sunny.' },
  { content: 'Still sunny.' },
]

interface Response {
  readonly id: string
  readonly output: readonly {
    readonly type: string
    readonly call_id?: string
    readonly content?: readonly { readonly text: string }[]
  }[]
}

describe('previous_response_id', () => {
  it('continues the thread, whatever calls were carried out inside', async () => {
    const engine = new ScriptedEngine(script)
    const served = await serving({ engine: () => engine })
    try {
      const respond = async (body: object): Promise<Response> => {
        const answered = await fetch(`${served.url}/v1/responses`, {
          method: 'POST',
          headers: { 'content-type': 'application/json' },
          body: JSON.stringify({ model: 'builtin', tools: [weather], kvfold: { acm: 'tools' }, ...body }),
        })
        expect(answered.status).toBe(200)
        return (await answered.json()) as Response
      }
      const first = await respond({ input: 'How is Rome?' })
      const texts = first.output.flatMap(({ content = [] }) => content.map(({ text }) => text))
      expect(texts).toEqual(['Let me look.\n\nI ask.'])
      const output = {
        type: 'function_call_output',
        call_id: first.output.find(({ type }) => type === 'function_call')!.call_id,
        output: '30',
      }
      const second = await respond({ input: [output], previous_response_id: first.id })
      await respond({ input: 'And now?', previous_response_id: second.id })
      const threads = served.service.threads.list(PUBLIC)
      expect(threads.map(({ parent }) => parent)).toEqual([null])
      // The model sees its own text, each part once.
      const said = engine.requests
        .at(-1)!
        .messages.filter(({ role }) => role === 'assistant')
        .map(({ content }) => content)
      expect(said).toEqual(['Let me look.', 'I ask.', 'Sunny.'])
    } finally {
      await served.close()
    }
  })
})

it("ends a response before the result of the client's own function tool_search", async () => {
  const engine = new ScriptedEngine(({ messages }) =>
    messages.at(-1)!.role === 'tool' ? { content: 'Found.' } : { calls: [{ name: 'tool_search' }] },
  )
  const served = await serving({ engine: () => engine })
  try {
    const { responses } = new OpenAI({ baseURL: `${served.url}/v1`, apiKey: 'none', maxRetries: 0 })
    const tools = [{ ...weather, type: 'function' as const, name: 'tool_search', strict: false }]
    const asked = { model: 'builtin', tools }
    const first = await responses.create({ ...asked, input: 'Find it.' })
    const [call] = first.output as OpenAI.Responses.ResponseFunctionToolCall[]
    const input = [{ type: 'function_call_output' as const, call_id: call!.call_id, output: 'it' }]
    for (let times = 0; times < 2; times++) {
      const next = await responses.create({ ...asked, input, previous_response_id: first.id })
      expect(next.output_text).toBe('Found.')
      expect(engine.requests.at(-1)!.messages.map(({ role }) => role)).toEqual(['user', 'assistant', 'tool'])
    }
  } finally {
    await served.close()
  }
})

describe('a streamed answer of several steps that think', () => {
  const threadsAfter = async (turns: (url: string) => Promise<unknown>) => {
    const engine = new ScriptedEngine(thinking)
    const served = await serving({ engine: () => engine })
    try {
      await turns(served.url)
      return served.service.threads.list(PUBLIC).map(({ parent }) => parent)
    } finally {
      await served.close()
    }
  }

  it('comes back through the Responses API as the message that the thread has', async () => {
    const threads = await threadsAfter(async (url) => {
      const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 })
      const ask = async (input: OpenAI.Responses.ResponseInputItem[]) =>
        openai.responses.stream({ model: 'builtin', input, kvfold: { acm: 'tools' } } as never).finalResponse()
      const input: OpenAI.Responses.ResponseInputItem[] = [{ role: 'user', content: 'How is Rome?' }]
      const { output } = await ask(input)
      expect(output.map(({ type }) => type)).toEqual(['reasoning', 'message', 'reasoning', 'message'])
      await ask([...input, ...(output as OpenAI.Responses.ResponseInputItem[]), { role: 'user', content: 'And now?' }])
    })
    expect(threads).toEqual([null])
  })

  it('comes back through the Messages API as the message that the thread has', async () => {
    const threads = await threadsAfter(async (url) => {
      const anthropic = new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0 })
      const ask = async (messages: Anthropic.MessageParam[]) =>
        anthropic.messages
          .stream({ model: 'builtin', max_tokens: 99, messages, kvfold: { acm: 'tools' } } as never)
          .finalMessage()
      const messages: Anthropic.MessageParam[] = [{ role: 'user', content: 'How is Rome?' }]
      const { content } = await ask(messages)
      expect(content.map(({ type }) => type)).toEqual(['thinking', 'text', 'thinking', 'text'])
      await ask([...messages, { role: 'assistant', content }, { role: 'user', content: 'And now?' }])
    })
    expect(threads).toEqual([null])
  })
})
