/**
 * Tests streams that break off. The thread keeps the answer so far. A client that returns with the part that it read continues the thread,
 * and other requests change nothing of it.
 */
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { PUBLIC } from '../../../src/runtime/server/ask.js'
import { SqliteStore } from '../../../src/runtime/store/sqlite-store.js'
import { ScriptedEngine } from '../../support/scripted.js'
import { endless, serving, type Serving } from './support/serving.js'

interface Message {
  readonly role: string
  readonly content: string
}

const user = (content: string): Message => ({ role: 'user', content })
const assistant = (content: string): Message => ({ role: 'assistant', content })
const system: Message = { role: 'system', content: 'Go on.' }

const post = (url: string, body: object, signal?: AbortSignal) =>
  fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
    ...(signal === undefined ? {} : { signal }),
  })

interface Completion {
  readonly choices: readonly [{ readonly message: Message }]
  readonly kvfold: { readonly thread: string; readonly lost: unknown; readonly edits: unknown }
}

/** Leaves a stream early. Returns the text that the client read, and the thread once the server has noticed. */
async function broken(served: Serving, route: string, body: object, textIn: (all: string) => string) {
  const { service, url } = served
  const before = service.status().asks.cancelled
  const known = new Set(service.threads.list(PUBLIC).map(({ id }) => id))
  const controller = new AbortController()
  const answer = await post(url + route, { ...body, stream: true }, controller.signal)
  let all = ''
  const decoder = new TextDecoder()
  try {
    for await (const chunk of answer.body!) {
      all += decoder.decode(chunk as Uint8Array, { stream: true })
      if (textIn(all).length >= 4) controller.abort()
    }
  } catch {
    // The client left.
  }
  await expect.poll(() => service.status().asks.cancelled).toBe(before + 1)
  await expect.poll(() => service.threads.list(PUBLIC).every(({ running }) => !running)).toBe(true)
  const thread = service.threads.list(PUBLIC).find(({ id }) => !known.has(id))?.id ?? null
  return { text: textIn(all), thread, all }
}

const eventsIn = (all: string): Record<string, unknown>[] =>
  all.split('\n').flatMap((line) => {
    const data = line.startsWith('data: ') ? line.slice(6) : line
    try {
      return [JSON.parse(data) as Record<string, unknown>]
    } catch {
      return []
    }
  })
interface Pieces {
  readonly choices?: readonly [{ readonly delta: { readonly content?: string } }]
  readonly delta?: string | { readonly text?: string }
  readonly message?: { readonly content?: string }
  readonly response?: { readonly id?: string }
}
const texts = (of: (event: Pieces) => string | undefined) => (all: string) =>
  eventsIn(all)
    .map((event) => of(event as Pieces) ?? '')
    .join('')
const chatText = texts(({ choices }) => choices?.[0]?.delta.content)
const responseText = texts(({ delta }) => (typeof delta === 'string' ? delta : undefined))

const CHAT = '/v1/chat/completions'
/** Fields for an answer that does not end by itself. */
const long = { max_tokens: 3000, ...endless }
const short = { max_tokens: 4, kvfold: {} }

describe('a stream that its client left', () => {
  let served: Serving
  beforeAll(async () => {
    served = await serving()
  })
  afterAll(() => served.close())

  const viewOf = (thread: string) => served.service.threads.view(PUBLIC, thread)
  const chat = async (body: object): Promise<Completion> => (await (await post(served.url + CHAT, body)).json()) as Completion

  it.each([
    ['chat completions', CHAT, chatText],
    ['Anthropic messages', '/v1/messages', texts(({ delta }) => (typeof delta === 'object' ? delta.text : undefined))],
    ['Ollama', '/api/chat', texts(({ message }) => message?.content)],
  ])('keeps its answer so far in the thread, marked as cut: %s', async (name, route, textIn) => {
    const model = { model: 'builtin', options: { num_predict: 3000 } }
    const form = route === '/api/chat' ? { format: { type: 'array', items: { type: 'string' }, minItems: 900 } } : long
    const { text, thread } = await broken(served, route, { ...model, messages: [user(`Count for ${name}.`)], ...form }, textIn)
    const [asked, said] = viewOf(thread!)
    expect(asked?.content).toBe(`Count for ${name}.`)
    expect(said).toMatchObject({ role: 'assistant', cut: true })
    expect(said!.content.startsWith(text.trimEnd())).toBe(true)
    const shown = (await (await fetch(`${served.url}/kvfold/threads/${thread}`)).json()) as { messages: { message: object }[] }
    expect(shown.messages.map(({ message }) => 'cut' in message)).toEqual([false, true])
  })

  it('stays as it is when a client only has its prompt computed', async () => {
    const asked = user('Count up to many.')
    const { text, thread } = await broken(served, CHAT, { messages: [asked], ...long }, chatText)
    const before = viewOf(thread!)
    const { choices } = await chat({ messages: [asked, assistant(text)], max_tokens: 0 })
    expect([choices[0].message.content, viewOf(thread!)]).toEqual(['', before])
  })

  it('continues its thread when the client returns with the part it read, which replaces the answer', async () => {
    const asked = [system, user('Count to a hundred.')]
    const { text, thread } = await broken(served, CHAT, { messages: asked, ...long }, chatText)
    expect(viewOf(thread!)[2]!.content.length).toBeGreaterThan(text.length - 1)
    const read = text.slice(0, 3)
    const more = await chat({ messages: [...asked, assistant(read), user('Stop.')], ...short })
    expect(more.kvfold).toMatchObject({ thread, lost: null, edits: null })
    expect(viewOf(thread!).map(({ content }) => content)).toEqual([
      'Go on.',
      'Count to a hundred.',
      read,
      'Stop.',
      more.choices[0].message.content,
    ])
  })

  it('can have its answer continued from the cut', async () => {
    const asked = [system, user('Count to a thousand.')]
    const { text, thread } = await broken(served, CHAT, { messages: asked, ...long }, chatText)
    const more = await chat({ messages: [...asked, assistant(text)], ...short })
    expect(more.kvfold).toMatchObject({ thread, lost: null, edits: null })
    const view = viewOf(thread!)
    expect(view.map(({ content }) => content)).toEqual([
      ...asked.map(({ content }) => content),
      text + more.choices[0].message.content,
    ])
    expect(view[2]).not.toHaveProperty('cut')
    expect(served.service.threads.get(PUBLIC, thread!).all[2]!.message.content).toBe(view[2]!.content)
  })

  it('can have its answer continued from the cut in a later turn, too', async () => {
    const first = await chat({ messages: [user('Count to three.')], ...short })
    const asked = [user('Count to three.'), assistant(first.choices[0].message.content), user('And to ten thousand.')]
    const { thread } = first.kvfold
    const { text } = await broken(served, CHAT, { messages: asked, ...long }, chatText)
    const more = await chat({ messages: [...asked, assistant(text)], ...short })
    expect(more.kvfold).toMatchObject({ thread, lost: null, edits: null })
    expect(viewOf(thread)[3]!.content).toBe(text + more.choices[0].message.content)
  })

  it('loses nothing when the same request comes again: another thread answers', async () => {
    const asked = [user('Count to a million.')]
    const { thread } = await broken(served, CHAT, { messages: asked, ...long }, chatText)
    const before = viewOf(thread!)
    const again = await chat({ messages: asked, ...short })
    expect(again.kvfold.thread).not.toBe(thread)
    expect(viewOf(thread!)).toEqual(before)
    // The text does not begin the cut answer, so it belongs to no thread.
    const other = await chat({ messages: [...asked, assistant('SOMETHING ELSE'), user('So?')], ...short })
    expect(other.kvfold.thread).not.toBe(thread)
    expect(viewOf(thread!)).toEqual(before)
  })

  it('can be fetched as a response, and continued', async () => {
    const input = 'Count for a response.'
    const { all } = await broken(served, '/v1/responses', { input, max_output_tokens: 3000, ...endless }, responseText)
    const id = eventsIn(all)
      .map((event) => (event as Pieces).response?.id)
      .find((each) => each !== undefined)!
    const kept = async () => (await fetch(`${served.url}/v1/responses/${id}`)).json() as Promise<Record<string, unknown>>
    await expect.poll(async () => (await kept())['status']).toBe('cancelled')
    const { output } = (await kept()) as { output: { content: { text: string }[] }[] }
    const said = output[0]!.content[0]!.text
    expect(said.startsWith(responseText(all))).toBe(true)
    const next = { previous_response_id: id, input: 'And now?', max_output_tokens: 4, kvfold: {} }
    const { kvfold } = (await (await post(`${served.url}/v1/responses`, next)).json()) as Pick<Completion, 'kvfold'>
    expect(kvfold.lost).toBeNull()
    expect(
      viewOf(kvfold.thread)
        .map(({ content }) => content)
        .slice(0, 3),
    ).toEqual([input, said, 'And now?'])
  })

  it('keeps nothing of an answer that was not streamed', async () => {
    const controller = new AbortController()
    const before = served.service.status().asks.cancelled
    const waiting = post(served.url + CHAT, { messages: [user('Say it at once.')], ...long }, controller.signal)
    await expect.poll(() => served.service.status().running).toBe(1)
    controller.abort()
    await expect(waiting).rejects.toThrow()
    await expect.poll(() => served.service.status().asks.cancelled).toBe(before + 1)
    const again = await chat({ messages: [user('Say it at once.')], ...short })
    expect(viewOf(again.kvfold.thread).map(({ content }) => content)).toEqual([
      'Say it at once.',
      again.choices[0].message.content,
    ])
  })
})

it('a cut answer is found by the text that the client read, even after a restart', async () => {
  const folder = mkdtempSync(path.join(tmpdir(), 'kvfold-cut-'))
  const open = () => serving({ service: { store: SqliteStore.open({ folder }) } })
  const first = await open()
  const asked = [user('Count, and remember.')]
  const { text, thread } = await broken(first, CHAT, { messages: asked, ...long }, chatText)
  await first.close()
  const second = await open()
  const more = await post(second.url + CHAT, { messages: [...asked, assistant(text), user('Well?')], ...short })
  expect(((await more.json()) as Completion).kvfold).toMatchObject({ thread, edits: null })
  await second.close()
})

it('a cut answer comes back to the thread when the request that continues it fails', async () => {
  const client = new AbortController()
  const { service } = await serving({
    engine: () =>
      new ScriptedEngine((_, step) => {
        if (step > 0) throw new Error('The engine broke.')
        client.abort()
        return { content: 'Half an' }
      }),
  })
  const ask = { tenant: PUBLIC, messages: [{ role: 'user', content: 'Hi' }], tools: [], toolChoice: 'auto' } as const
  const { thread } = await service.ask({ ...ask, streamed: true, signal: client.signal }).answer
  const before = service.threads.view(PUBLIC, thread)
  expect(before[1]).toEqual({ role: 'assistant', content: 'Half an', cut: true })
  await expect(service.ask({ ...ask, beginning: 'Half' }).answer).rejects.toThrow('The engine broke.')
  expect(service.threads.view(PUBLIC, thread)).toEqual(before)
  await service.close()
})
