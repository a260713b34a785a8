/** Tests an answer that goes on with text behind a call. Its stream has the thread's text, so a client that sends it back continues. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { assistantMessage } from '../../../../src/runtime/chat/message.js'
import type { ReplyEvent } from '../../../../src/runtime/chat/parser.js'
import { hermes } from '../../../../src/runtime/chat/syntax/hermes.js'
import { EngineAround, type EngineRequest, type Generation, generationOf } from '../../../../src/runtime/engine/engine.js'
import { ScriptedEngine } from '../../../support/scripted.js'
import { serving, type Serving } from '../support/serving.js'

/** Reads the content of the script's replies as what a model wrote, piece by piece. Every piece is a token. */
class Reading extends EngineAround<ScriptedEngine> {
  get requests(): readonly EngineRequest[] {
    return this.engine.requests
  }

  respond(request: EngineRequest): Generation {
    return generationOf(async (stream) => {
      const reply = await this.engine.respond(request).reply
      const parser = hermes({ source: '', tags: null })
        .parser('')
        .withBare(request.tools ?? [])
      const forward = (events: readonly ReplyEvent[]) => {
        for (const event of events) if (event.type !== 'call-start') stream.push(event)
      }
      for (const text of reply.message.content.match(/\s*\S+/g) ?? []) {
        stream.push({ type: 'tokens', tokens: [1], text, logprobs: [{ token: 1, text, logprob: -1, top: [] }] })
        forward(parser.push(text))
      }
      const parsed = parser.finish()
      forward(parsed.events)
      return { ...reply, message: assistantMessage(parsed), finish: parsed.toolCalls.length > 0 ? 'tool-calls' : 'stop' }
    })
  }
}

const WROTE = 'I look there.\n```json\n{"name": "look", "arguments": {"where": "sky"}}\n```\nThis tells us.'
const SAID = 'I look there.\n\nThis tells us.'
const engine = new Reading(
  new ScriptedEngine(({ messages }) => ({ content: messages.at(-1)?.role === 'tool' ? 'It is blue.' : WROTE })),
)
let served: Serving
beforeAll(async () => {
  served = await serving({ engine: () => engine })
})
afterAll(() => served.close())

const parameters = { type: 'object', properties: { where: { type: 'string' } }, required: ['where'] }

interface Told {
  readonly [key: string]: unknown
}

async function post(route: string, body: object): Promise<string> {
  const response = await fetch(served.url + route, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'builtin', kvfold: {}, ...body }),
  })
  const text = await response.text()
  expect([response.status, text]).toEqual([200, text])
  return text
}

const framesOf = (stream: string): Told[] => [...stream.matchAll(/^data: (\{.*)$/gm)].map(([, data]) => JSON.parse(data!) as Told)

/** Sends the answer of the first request back, and checks that its thread goes on without an edit. */
async function goesOn(route: string, body: object): Promise<void> {
  const { conversation } = engine.requests.at(-1)!
  const told = JSON.parse(await post(route, body)) as Told
  expect(told['kvfold']).toMatchObject({ edits: null, lost: null })
  expect(engine.requests.at(-1)!.conversation).toBe(conversation)
  expect(engine.requests.at(-1)!.messages.at(-2)?.content).toBe(SAID)
}

describe('text behind a call', () => {
  it('/v1/messages: the streamed blocks continue their thread', async () => {
    const ask = { max_tokens: 50, tools: [{ name: 'look', input_schema: parameters }] }
    const messages: object[] = [{ role: 'user', content: 'Where, Claude?' }]
    const blocks: Record<string, unknown>[] = []
    for (const { type, content_block: block, delta } of framesOf(
      await post('/v1/messages', { ...ask, messages, stream: true }),
    )) {
      if (type === 'content_block_start') blocks.push({ ...(block as object) })
      if (type !== 'content_block_delta') continue
      const { text = '', partial_json: json = '' } = delta as { readonly text?: string; readonly partial_json?: string }
      const last = blocks.at(-1)!
      if (last['type'] === 'text') last['text'] = `${last['text'] as string}${text}`
      else last['json'] = `${(last['json'] as string | undefined) ?? ''}${json}`
    }
    expect(blocks.map(({ type, text }) => text ?? type)).toEqual(['I look there.', 'tool_use', '\nThis tells us.'])
    const content = blocks.map(({ json, ...block }) =>
      json === undefined ? block : { ...block, input: JSON.parse(json as string) as unknown },
    )
    messages.push({ role: 'assistant', content })
    messages.push({ role: 'user', content: [{ type: 'tool_result', tool_use_id: blocks[1]!['id'], content: 'Blue.' }] })
    await goesOn('/v1/messages', { ...ask, messages })
  })

  it('/v1/responses: the streamed items continue their thread, each with the log probabilities of its own tokens', async () => {
    const include = ['message.output_text.logprobs']
    const ask = { tools: [{ type: 'function', name: 'look', parameters }], store: false, include }
    const input: object[] = [{ role: 'user', content: 'Where, Codex?' }]
    const frames = framesOf(await post('/v1/responses', { ...ask, input, stream: true }))
    const items = frames.filter(({ type }) => type === 'response.output_item.done').map(({ item }) => item as Told)
    expect(items.map(({ type }) => type)).toEqual(['message', 'function_call', 'message'])
    const [part] = items[2]!['content'] as readonly { readonly logprobs: readonly { readonly token: string }[] }[]
    expect(part!.logprobs.map(({ token }) => token.trim())).toEqual(['This', 'tells', 'us.'])
    input.push(...items, { type: 'function_call_output', call_id: items[1]!['call_id'], output: 'Blue.' })
    await goesOn('/v1/responses', { ...ask, input })
  })

  it('/v1/chat/completions: the answer continues its thread', async () => {
    const ask = { tools: [{ type: 'function', function: { name: 'look', parameters } }] }
    const messages: object[] = [{ role: 'user', content: 'Where?' }]
    const { choices } = JSON.parse(await post('/v1/chat/completions', { ...ask, messages })) as Told
    const [{ message }] = choices as [{ readonly message: { readonly tool_calls: readonly { readonly id: string }[] } }]
    expect(message).toMatchObject({ content: SAID })
    messages.push(message, { role: 'tool', tool_call_id: message.tool_calls[0]!.id, content: 'Blue.' })
    await goesOn('/v1/chat/completions', { ...ask, messages })
  })
})
