/** Tests `previous_response_id` after a turn in which the server carried out calls of its own. */
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
