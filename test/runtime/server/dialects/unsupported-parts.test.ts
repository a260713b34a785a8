/**
 * Tests parts of messages other than text, in each dialect. Tool results get a placeholder; user messages do if the server was started so.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { ScriptedEngine } from '../../../support/scripted.js'
import { serving, type Serving } from '../support/serving.js'

const engine = new ScriptedEngine(() => ({ content: 'Done.' }))
const served: Record<'refuse' | 'placeholder', Serving | undefined> = { refuse: undefined, placeholder: undefined }
beforeAll(async () => {
  served.refuse = await serving({ engine: () => engine })
  served.placeholder = await serving({ engine: () => engine, unsupportedParts: 'placeholder' })
})
afterAll(async () => {
  await served.refuse?.close()
  await served.placeholder?.close()
})

const imageUrl = { type: 'image_url', image_url: { url: 'data:image/png;base64,AA==' } }
const inputImage = { type: 'input_image', image_url: 'data:image/png;base64,AA==' }
const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'AA==' } }
const openAiCall = { id: 'c', type: 'function', function: { name: 'shoot', arguments: '{}' } }
const user = (content: unknown) => ({ role: 'user', content })

/** A request whose tool result has text and an image, and one whose user message has them. */
const DIALECTS = {
  '/v1/chat/completions': {
    result: {
      messages: [
        ...[user('Shoot.'), { role: 'assistant', content: null, tool_calls: [openAiCall] }],
        { role: 'tool', tool_call_id: 'c', content: [{ type: 'text', text: 'Shot' }, imageUrl] },
      ],
    },
    said: { messages: [user([{ type: 'text', text: 'Look' }, imageUrl])] },
  },
  '/v1/responses': {
    result: {
      input: [
        ...[user('Shoot.'), { type: 'function_call', call_id: 'c', name: 'shoot', arguments: '{}' }],
        { type: 'function_call_output', call_id: 'c', output: [{ type: 'input_text', text: 'Shot' }, inputImage] },
      ],
    },
    said: { input: [user([{ type: 'input_text', text: 'Look' }, inputImage])] },
  },
  '/v1/messages': {
    result: {
      max_tokens: 9,
      messages: [
        ...[user('Shoot.'), { role: 'assistant', content: [{ type: 'tool_use', id: 'c', name: 'shoot', input: {} }] }],
        user([{ type: 'tool_result', tool_use_id: 'c', content: [{ type: 'text', text: 'Shot' }, image] }]),
      ],
    },
    said: { max_tokens: 9, messages: [user([{ type: 'text', text: 'Look' }, image])] },
  },
  '/api/chat': {
    result: {
      stream: false,
      messages: [
        ...[user('Shoot.'), { role: 'assistant', tool_calls: [{ function: { name: 'shoot', arguments: {} } }] }],
        { role: 'tool', content: 'Shot', images: ['AA=='] },
      ],
    },
    said: { stream: false, messages: [{ ...user('Look'), images: ['AA=='] }] },
  },
} as const

async function ask(how: keyof typeof served, path: string, body: object) {
  const response = await fetch(served[how]!.url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  })
  return { status: response.status, text: await response.text(), shown: engine.requests.at(-1)?.messages.at(-1)?.content }
}

describe.each(Object.entries(DIALECTS))('%s', (path, { result, said }) => {
  it('an image in a tool result becomes a placeholder, so that the conversation continues', async () => {
    const answer = await ask('refuse', path, result)
    expect(answer.status, answer.text).toBe(200)
    expect(answer.shown).toMatch(/^Shot\n\[\w+ left out: this server takes text only\]$/)
  })

  it('an image of the user is refused, with a way out', async () => {
    const answer = await ask('refuse', path, said)
    expect([answer.status, answer.text]).toEqual([400, expect.stringContaining('--unsupported placeholder')])
  })

  it('an image of the user becomes a placeholder if the server was started so', async () => {
    const answer = await ask('placeholder', path, said)
    expect(answer.status, answer.text).toBe(200)
    expect(answer.shown).toMatch(/^Look\n\[\w+ left out: this server takes text only\]$/)
  })
})
