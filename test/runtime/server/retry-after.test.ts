/** Tests that an engine's retry-after reaches the clients of a server in front of it. */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { RemoteEngine } from '../../../src/fleet/engines/remote.js'
import { serving, type Serving } from './support/serving.js'

/** The endpoint's answer to a chat completion. */
let refusal: { status: number; headers: Record<string, string> } = { status: 500, headers: {} }
const endpoint = createServer((request, response) => {
  if (request.url === '/v1/models') response.end(JSON.stringify({ data: [{ id: 'm', max_model_len: 1000 }] }))
  else
    response
      .writeHead(request.url === '/v1/chat/completions' ? refusal.status : 404, refusal.headers)
      .end('{"error":{"message":"No."}}')
})
let served: Serving

beforeAll(async () => {
  await new Promise<void>((resolve) => endpoint.listen(0, '127.0.0.1', resolve))
  const url = `http://127.0.0.1:${(endpoint.address() as AddressInfo).port}`
  // The engine tries once more if the endpoint gives no time.
  served = await serving({ engine: () => RemoteEngine.connect({ url, patience: { busy: 600 } }) })
})
afterAll(async () => {
  await served.close()
  endpoint.close()
})

it.each([
  [429, { 'retry-after': '60' }, 429, '60'],
  [503, { 'retry-after': '61.5' }, 503, '62'],
  [429, {}, 429, null],
  [400, { 'retry-after': '60' }, 400, null],
])('%i with %j', async (status, headers, expected, after) => {
  refusal = { status, headers }
  for (const [path, body] of [
    ['/v1/chat/completions', {}],
    ['/v1/chat/completions', { stream: true }],
    ['/v1/messages', { max_tokens: 5 }],
  ] as const) {
    const answer = await fetch(served.url + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ messages: [{ role: 'user', content: 'x' }], ...body }),
    })
    expect([answer.status, answer.headers.get('retry-after')]).toEqual([expected, after])
    expect(answer.headers.get('x-should-retry')).toBe(String(after !== null))
  }
})
