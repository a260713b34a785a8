/** Tests that a client that names its conversation as llama-server's page does reads on in an answer whose connection it lost. */
import { afterAll, beforeAll, expect, it, vi } from 'vitest'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import { Replays } from '../../../src/runtime/server/replays.js'
import { endless, serving, type Serving } from './support/serving.js'

let served: Serving
beforeAll(async () => {
  served = await serving({
    keys: ['anna', 'ben'].map((name) => ({ name, key: `sk-${name}` })),
  })
})
afterAll(() => served.close())

const as = (name: string) => ({ authorization: `Bearer sk-${name}`, 'content-type': 'application/json' })
const streamOf = (query: string, init: RequestInit = {}, name = 'anna') =>
  fetch(`${served.url}/v1/stream?${query}`, { headers: as(name), ...init })
const lookup = async (ids: readonly string[], name = 'anna') => {
  const body = JSON.stringify({ conversation_ids: ids })
  const answer = await fetch(`${served.url}/v1/streams/lookup`, { method: 'POST', headers: as(name), body })
  return (await answer.json()) as { conversation_id: string; is_done: boolean; total_bytes: number }[]
}

/** Asks in the name of the conversation and leaves after the first bytes, which it returns. */
async function left(conversation: string, most: number): Promise<string> {
  const leaving = new AbortController()
  const answer = await fetch(`${served.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { ...as('anna'), 'x-conversation-id': conversation },
    body: JSON.stringify({
      ...{ messages: [{ role: 'user', content: `Hello ${conversation}.` }], stream: true, max_tokens: most },
      ...endless,
    }),
    signal: leaving.signal,
  })
  const { value } = (await answer.body!.getReader().read()) as { value: Uint8Array }
  leaving.abort()
  return new TextDecoder().decode(value)
}

it('gives the answer again from the byte that the client names, while it runs and afterwards', async () => {
  const { done, cancelled } = served.service.status().asks
  const first = await left('a::builtin', 600)
  expect(await lookup(['a', 'b'])).toMatchObject([{ conversation_id: 'a::builtin', is_done: false }])
  const whole = await (await streamOf('conv_id=a::builtin')).text()
  expect(whole.startsWith(first)).toBe(true)
  expect(whole).toMatch(/"finish_reason":"length"[^]*data: \[DONE\]\n\n$/)
  expect(served.service.status().asks).toMatchObject({ done: done + 1, cancelled })
  expect(await lookup(['a'])).toMatchObject([{ is_done: true, total_bytes: Buffer.byteLength(whole) }])
  expect(await (await streamOf(`conv_id=a::builtin&from=${first.length}`)).text()).toBe(whole.slice(first.length))
  // Other keys know nothing of it.
  expect([await lookup(['a'], 'ben'), (await streamOf('conv_id=a::builtin', {}, 'ben')).status]).toEqual([[], 404])
})

it('is computed for a client that left before the answer began', async () => {
  await Promise.all([left('slot 1', 3000), left('slot 2', 3000)])
  const leaving = new AbortController()
  const waiting = fetch(`${served.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { ...as('anna'), 'x-conversation-id': 'early' },
    body: JSON.stringify({ messages: [{ role: 'user', content: 'Hi' }], stream: true, max_tokens: 5, ...endless }),
    signal: leaving.signal,
  })
  await expect.poll(() => served.service.status().queue.waiting).toBe(1)
  leaving.abort()
  await expect(waiting).rejects.toThrow()
  for (const slot of ['slot 1', 'slot 2']) await streamOf(`conv_id=${slot}`, { method: 'DELETE' })
  expect(await (await streamOf('conv_id=early')).text()).toContain('"finish_reason":"length"')
  expect(served.log.filter((line) => (JSON.parse(line) as { level: number }).level >= 50)).toEqual([])
})

it('tells an error that came before its first byte', async () => {
  let fail = (_: Error): void => undefined
  const failing = await serving({ engine: () => new Promise<never>((_, reject) => (fail = reject)) })
  try {
    const leaving = new AbortController()
    const waiting = fetch(`${failing.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-conversation-id': 'reloaded' },
      body: JSON.stringify({ messages: [{ role: 'user', content: 'Hi' }], stream: true }),
      signal: leaving.signal,
    })
    await expect.poll(() => failing.service.model().state).toBe('loading')
    leaving.abort()
    await expect(waiting).rejects.toThrow()
    // The server notices that the client left.
    await new Promise((resolve) => setTimeout(resolve, 200))
    const read = fetch(`${failing.url}/v1/stream?conv_id=reloaded`)
    fail(new KvfoldError('memory/insufficient', 'The model does not fit.'))
    expect(await (await read).text()).toMatch(/^data: .*The model does not fit[^]*data: \[DONE\]\n\n$/)
    expect(await (await fetch(`${failing.url}/v1/stream?conv_id=reloaded`)).text()).toContain('memory/insufficient')
  } finally {
    await failing.close()
  }
})

it('ends when the client says so', async () => {
  const { cancelled } = served.service.status().asks
  await left('stopped', 3000)
  expect((await streamOf('conv_id=stopped', { method: 'DELETE' })).status).toBe(204)
  await expect.poll(() => served.service.status().asks.cancelled).toBe(cancelled + 1)
  expect([await lookup(['stopped']), (await streamOf('conv_id=stopped')).status]).toEqual([[], 404])
  expect((await streamOf('conv_id=never', { method: 'DELETE' })).status).toBe(204)
})

it('gives way to the next answer of the conversation', async () => {
  const { cancelled } = served.service.status().asks
  await left('next', 3000)
  await left('next', 5)
  await expect.poll(() => served.service.status().asks.cancelled).toBe(cancelled + 1)
  expect(await (await streamOf('conv_id=next')).text()).toContain('"finish_reason":"length"')
})

it('is cancelled when no one reads it for long', async () => {
  const cancel = vi.fn()
  const stream = new Replays(40).begin('anna', 'a', cancel)!
  const leave = stream.enter()
  await new Promise((resolve) => setTimeout(resolve, 80))
  expect(cancel).not.toHaveBeenCalled()
  leave()
  await expect.poll(() => cancel.mock.calls.length).toBe(1)
})

it('keeps the last bytes of a long stream, and as many streams as it says', async () => {
  const replays = new Replays()
  const stream = replays.begin('anna', 'long', () => undefined)!
  for (let at = 0; at < 50; at++) stream.append(`${at % 10}`.repeat(100_000))
  expect([stream.size, stream.dropped]).toEqual([5_000_000, 900_000])
  replays.end('anna', stream)
  const read: Buffer[] = []
  for await (const bytes of stream.from(950_000)) read.push(bytes)
  const text = Buffer.concat(read).toString()
  expect([text.length, text.slice(49_999, 50_001), text.at(-1)]).toEqual([4_050_000, '90', '9'])
  for (let at = 0; at < 64; at++) expect(replays.begin('anna', `${at}`, () => undefined)).not.toBeNull()
  expect([replays.find('anna', 'long'), replays.begin('anna', 'more', () => undefined)]).toEqual([null, null])
})
