/** Tests the server around the routes: keys, tenants, foreign pages, metrics, threads, streams and shutdown. */
import { request as ask } from 'node:http'
import { connect } from 'node:net'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { MemoryStore } from '../../../src/runtime/server/threads/memory-store.js'
import { ScriptedEngine } from '../../support/scripted.js'
import { endless, serving, type Serving } from './support/serving.js'

const CHAT = '/v1/chat/completions'
const user = (content: string) => ({ role: 'user', content })

interface Kvfold {
  readonly thread: string
  readonly lost: null | { readonly message: number; readonly token: number | null; readonly reason: string }
  readonly ledger: readonly { readonly submitted: number }[]
}

interface Completion {
  readonly choices: readonly [{ readonly message: { readonly content: string } }]
  readonly usage: { readonly prompt_tokens: number; readonly prompt_tokens_details: { readonly cached_tokens: number } }
  readonly kvfold?: Kvfold
}

const post = (url: string, body: object, headers: Readonly<Record<string, string>> = {}, method = 'POST') =>
  fetch(url, { method, headers: { 'content-type': 'application/json', ...headers }, body: JSON.stringify(body) })

const bearer = (key: string) => ({ authorization: `Bearer ${key}` })

/** Returns the data of a stream's events, and the number of its comments. */
async function eventsOf(answer: Response): Promise<{ data: string[]; comments: number }> {
  const text = await answer.text()
  const blocks = text.split('\n\n').filter((block) => block !== '')
  const lines = blocks.map((block) => block.split('\n').find((line) => line.startsWith('data: ')))
  return { data: lines.flatMap((line) => line?.slice(6) ?? []), comments: blocks.filter((block) => block.startsWith(':')).length }
}

describe('without keys', () => {
  let served: Serving
  beforeAll(async () => {
    served = await serving()
  })
  afterAll(() => served.close())

  it('continues the thread of a request, and reports the cost', async () => {
    const messages = [user('The value of red is 4.')]
    const first = (await (await post(served.url + CHAT, { messages, max_tokens: 4, kvfold: {} })).json()) as Completion
    const more = [...messages, { role: 'assistant', content: first.choices[0].message.content }, user('What is red?')]
    const before = served.service.status().models[0]!.loaded!.submitted!
    const answer = (await (
      await post(served.url + CHAT, { messages: more, max_tokens: 4, kvfold: { ledger: true } })
    ).json()) as Completion
    expect(answer.kvfold?.thread).toBe(first.kvfold?.thread)
    expect(answer.kvfold?.lost).toBeNull()
    // The ledger and the addon's own counter agree.
    const submitted = answer.kvfold!.ledger.reduce((sum, entry) => sum + entry.submitted, 0)
    expect(served.service.status().models[0]!.loaded!.submitted! - before).toBe(submitted)
    expect(first.kvfold).not.toHaveProperty('ledger')
  })

  it('adds no kvfold field unless it is requested', async () => {
    const answer = (await (await post(served.url + CHAT, { messages: [user('Hi')], max_tokens: 2 })).json()) as Completion
    expect(answer).not.toHaveProperty('kvfold')
  })

  it.each([
    [CHAT, { messages: [user('Hi')] }],
    ['/v1/completions', { prompt: 'Once' }],
  ])('gives every chunk a choice unless usage or kvfold is requested: %s', async (path, body) => {
    const streamed = { ...body, max_tokens: 2, stream: true, prediction: {} }
    const chunksOf = async (more: object) => {
      const { data } = await eventsOf(await post(served.url + path, { ...streamed, ...more }))
      return data.slice(0, -1).map((each) => JSON.parse(each) as { choices: { finish_reason: string }[]; kvfold?: object })
    }
    const chunks = await chunksOf({})
    expect(chunks.map(({ choices }) => choices.length)).toEqual(chunks.map(() => 1))
    expect(chunks.at(-1)).toMatchObject({ choices: [{ finish_reason: 'length' }], kvfold: { ignored: ['prediction'] } })
    for (const more of [{ stream_options: { include_usage: true } }, { kvfold: {} }])
      expect((await chunksOf(more)).at(-1)).toMatchObject({ choices: [], kvfold: { ignored: ['prediction'] } })
  })

  it('accepts calls whose arguments nest too deep to be read, as text', async () => {
    const depth = 20_000
    const text = `{"a":${'['.repeat(depth)}${']'.repeat(depth)}}`
    const call = { id: 'call_x', type: 'function', function: { name: 'look', arguments: text } }
    const messages = [
      user('Hi'),
      { role: 'assistant', tool_calls: [call] },
      { role: 'tool', tool_call_id: 'call_x', content: 'So.' },
    ]
    const answer = await post(served.url + CHAT, { messages, max_tokens: 2 })
    expect([answer.status, await answer.json()]).toMatchObject([400, { error: { code: 'context_length_exceeded' } }])
  })

  it('names the allowed method when another one is used', async () => {
    const answer = await fetch(served.url + CHAT)
    expect([answer.status, answer.headers.get('allow')]).toEqual([405, 'POST'])
  })

  it('gives each of several answers a valid seed', async () => {
    const answer = await post(served.url + CHAT, { messages: [user('Hi')], max_tokens: 2, n: 3, seed: 2 ** 32 - 3 })
    expect(answer.status).toBe(200)
    expect(((await answer.json()) as Completion).choices).toHaveLength(3)
  })

  it('adds events to a stream only on request', async () => {
    const body = { messages: [user('The value of blue is 9.')], max_tokens: 3, stream: true }
    const plain = await eventsOf(await post(served.url + CHAT, body))
    expect(plain.data.at(-1)).toBe('[DONE]')
    expect(plain.data.slice(0, -1).every((data) => !('kvfold' in (JSON.parse(data) as object)))).toBe(true)
    const told = await eventsOf(await post(served.url + CHAT, { ...body, kvfold: { events: true } }))
    const types = told.data
      .slice(0, -1)
      .flatMap((data) => (JSON.parse(data) as { kvfold?: { event?: { type: string } } }).kvfold?.event?.type ?? [])
    expect(types).toContain('started')
    expect(types).toContain('plan')
  })

  it('serves threads to people and programs', async () => {
    const text = 'START one two three four five six seven eight nine ten END'
    const body = { messages: [user(text)], max_tokens: 3, kvfold: {} }
    const { kvfold } = (await (await post(served.url + CHAT, body)).json()) as Completion
    const at = `${served.url}/kvfold/threads/${kvfold!.thread}`
    const list = (await (await fetch(`${served.url}/kvfold/threads`)).json()) as { threads: { id: string }[] }
    expect(list.threads.map(({ id }) => id)).toContain(kvfold!.thread)

    const cut = await post(`${at}/fragments`, { startMarker: 'START', endMarker: 'END', numFragments: 2 })
    const { fragments } = (await cut.json()) as { fragments: { id: string }[] }
    expect(fragments).toHaveLength(2)
    const [first] = fragments
    const folded = await fetch(`${at}/fragments/${first!.id}/fold`, { method: 'POST' })
    expect(await folded.json()).toMatchObject({ fragment: { id: first!.id, state: { kind: 'folded' } } })
    const twice = await fetch(`${at}/fragments/${first!.id}/fold`, { method: 'POST' })
    expect([twice.status, await twice.json()]).toMatchObject([409, { error: { code: 'tool/refused' } }])
    const view = (await (await fetch(at)).json()) as { messages: { shown: string; message: { content: string } }[] }
    expect(view.messages[0]?.message.content).toBe(text)
    expect(view.messages[0]?.shown).toContain(`[folded ${first!.id}`)
    expect(JSON.stringify(view)).not.toContain('"sampled"')

    const found = (await (await post(`${at}/search`, { query: 'two three' })).json()) as { total: number; hits: { id: string }[] }
    expect(found.total).toBe(1)
    const detail = await fetch(`${at}/search/${found.hits[0]!.id}?extendedContext=5`)
    expect(await detail.json()).toMatchObject({ hit: { id: found.hits[0]!.id } })
    const restored = await fetch(`${at}/fragments/${first!.id}/restore`, { method: 'POST' })
    expect(await restored.json()).toMatchObject({ fragment: { state: { kind: 'open' } } })
    expect((await post(`${at}/contract`, { contract: 'splice' }, {}, 'PUT')).status).toBe(200)
    expect(await (await fetch(at)).json()).toMatchObject({ contract: 'splice' })
    expect((await post(`${at}/title`, { title: 'Numbers' }, {}, 'PUT')).status).toBe(200)
    expect(await (await fetch(at)).json()).toMatchObject({ title: 'Numbers', messages: [{}, { generated: 3 }] })
    const among = await post(`${served.url}/kvfold/threads/search`, { query: 'THREE four' })
    expect(await among.json()).toMatchObject({
      threads: [{ id: kvfold!.thread, title: 'Numbers', messages: 1, places: [{ message: 0, words: 'three four' }] }],
      all: true,
    })
    expect((await post(`${served.url}/kvfold/threads/search`, { query: ' ' })).status).toBe(400)
    expect(await (await fetch(`${at}/refresh`, { method: 'POST' })).json()).toMatchObject({ ledger: [] })
    expect(await (await fetch(`${at}/export`)).json()).toMatchObject({ format: 'kvfold-thread/1', id: kvfold!.thread })

    expect(await (await fetch(at, { method: 'DELETE' })).json()).toEqual({ id: kvfold!.thread, deleted: true })
    expect((await fetch(at)).status).toBe(404)
  })

  it('ignores the content type of an empty body where a route takes no body', async () => {
    const { kvfold } = (await (
      await post(served.url + CHAT, { messages: [user('START one two three END')], max_tokens: 2, kvfold: {} })
    ).json()) as Completion
    const thread = `${served.url}/kvfold/threads/${kvfold!.thread}`
    const headers = { 'content-type': 'application/json' }
    const bare = async (url: string, method: string) => (await fetch(url, { method, headers })).status
    const cut = await post(`${thread}/fragments`, { startMarker: 'START', endMarker: 'END', numFragments: 1 })
    const { fragments } = (await cut.json()) as { fragments: { id: string }[] }
    const fragment = `${thread}/fragments/${fragments[0]!.id}`
    expect((await post(`${fragment}/fold`, {})).status).toBe(200)
    expect(await bare(`${fragment}/restore`, 'POST')).toBe(200)
    expect(await bare(thread, 'DELETE')).toBe(200)
    expect(await bare(served.url + CHAT, 'POST')).toBe(400)
  })

  it('streams changes of threads', async () => {
    const controller = new AbortController()
    const changes = await fetch(`${served.url}/kvfold/events`, { signal: controller.signal })
    const { kvfold } = (await (
      await post(served.url + CHAT, { messages: [user('New.')], max_tokens: 2, kvfold: {} })
    ).json()) as Completion
    let seen = ''
    const decoder = new TextDecoder()
    for await (const chunk of changes.body!) {
      seen += decoder.decode(chunk as Uint8Array, { stream: true })
      if (seen.includes('"created"')) break
    }
    controller.abort()
    expect(seen).toContain(kvfold!.thread)
  })

  it('streams changes to 64 clients of a key, and to another when one leaves', async () => {
    const clients = Array.from({ length: 64 }, () => new AbortController())
    const open = (signal?: AbortSignal) => fetch(`${served.url}/kvfold/events`, signal === undefined ? {} : { signal })
    await Promise.all(clients.map(({ signal }) => open(signal)))
    const refused = await open()
    const { error } = (await refused.json()) as { error: { message: string } }
    expect([refused.status, refused.headers.get('retry-after')]).toEqual([429, '60'])
    expect(error.message).toContain('64 streams of changes are open')
    for (const client of clients) client.abort()
    const last = new AbortController()
    await expect.poll(async () => (await open(last.signal)).status).toBe(200)
    last.abort()
  })

  it('loses nothing when a client reads late', async () => {
    const { port } = new URL(served.url)
    const answer = await new Promise<import('node:http').IncomingMessage>((resolve, reject) => {
      const request = ask(
        { port, host: '127.0.0.1', path: CHAT, method: 'POST', headers: { 'content-type': 'application/json' } },
        resolve,
      )
      request.on('error', reject)
      request.end(
        JSON.stringify({
          messages: [user('Go on.')],
          max_tokens: 300,
          stream: true,
          ...endless,
          logprobs: true,
          top_logprobs: 20,
        }),
      )
    })
    await new Promise((resolve) => setTimeout(resolve, 300))
    let text = ''
    for await (const chunk of answer.setEncoding('utf8')) text += String(chunk)
    const blocks = text.split('\n\n').filter((block) => block !== '')
    expect(blocks.at(-1)).toBe('data: [DONE]')
    for (const block of blocks.slice(0, -1)) expect(() => JSON.parse(block.slice(6)) as unknown).not.toThrow()
  })

  it('stops computing when a client that waits for a whole answer leaves', async () => {
    const before = served.service.status().asks.cancelled
    const controller = new AbortController()
    const body = JSON.stringify({ messages: [user('Go on for ever.')], max_tokens: 3000, ...endless })
    const waiting = fetch(served.url + CHAT, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body,
      signal: controller.signal,
    })
    await expect.poll(() => served.service.status().running).toBe(1)
    controller.abort()
    await expect(waiting).rejects.toThrow()
    await expect.poll(() => served.service.status().asks.cancelled, { timeout: 5000 }).toBe(before + 1)
    expect(served.service.status().running).toBe(0)
  })

  it('has metrics', async () => {
    const text = await (await fetch(`${served.url}/metrics`)).text()
    for (const name of [
      'gen_ai_server_time_to_first_token_seconds_count',
      'gen_ai_server_request_duration_seconds_sum',
      'kvfold_inter_token_latency_seconds_count',
      'kvfold_prompt_tokens_total',
      'kvfold_prompt_tokens_cached_total',
      'kvfold_generation_tokens_total',
      'kvfold_cache_cells{',
      'kvfold_slots{gen_ai_request_model="builtin"} 2',
      'http_server_request_duration_seconds_count{http_request_method="POST",http_route="/v1/chat/completions",http_response_status_code="200"}',
      'process_resident_memory_bytes',
    ])
      expect(text).toContain(name)
    // Node's event loop has no lag yet right after a scrape.
    const next = await (await fetch(`${served.url}/metrics`)).text()
    expect(next).toContain('\nnodejs_eventloop_lag_max_seconds ')
    expect(next).not.toMatch(/ nan$/imu)
    const submitted = Number(/kvfold_tokens_submitted\{[^}]*\} (\d+)/.exec(text)?.[1])
    expect(submitted).toBe(served.service.status().models[0]!.loaded!.submitted)
  })

  it('has an OpenAPI document', async () => {
    const document = (await (await fetch(`${served.url}/openapi.json`)).json()) as {
      openapi: string
      paths: Record<string, object>
    }
    expect(document.openapi).toBe('3.1.0')
    for (const path of [
      CHAT,
      '/v1/completions',
      '/v1/responses',
      '/v1/responses/{id}',
      '/v1/messages',
      '/v1/messages/count_tokens',
      '/v1/embeddings',
      '/v1/models',
      '/tokenize',
      '/detokenize',
      '/health',
      '/metrics',
      '/kvfold/threads/{id}',
    ])
      expect(Object.keys(document.paths)).toContain(path)
    expect(JSON.stringify(document.paths[CHAT])).toContain('parallel_tool_calls')
  })

  it('logs requests and their outcome, and none of their content', async () => {
    const secret = 'xyzzy-plugh'
    const id = 'my-request.1'
    const answer = await post(
      `${served.url}${CHAT}?q=${secret}`,
      { messages: [user(secret)], max_tokens: 2, model: 'builtin' },
      { 'x-request-id': id },
    )
    expect(answer.headers.get('x-request-id')).toBe(id)
    await post(served.url + CHAT, { messages: [user(secret)], model: secret })
    await post(served.url + CHAT, { messages: [user(secret)], tool_choice: { type: 'function', function: { name: secret } } })
    const odd = await post(served.url + CHAT, { messages: [] }, { 'x-request-id': 'a b"c' })
    expect(odd.headers.get('x-request-id')).toMatch(/^req_/)
    const lines = served.log.filter((line) => line.includes(id))
    expect(lines.join('')).toContain('"status":200')
    expect(served.log.join('')).not.toContain(secret)
  })

  it('lets no foreign page in', async () => {
    const answer = await fetch(`${served.url}/v1/models`, { headers: { origin: 'https://evil.example' } })
    expect(answer.headers.get('access-control-allow-origin')).toBeNull()
    // A form, or a script without permission, can only send this.
    const simple = await fetch(served.url + CHAT, {
      method: 'POST',
      headers: { 'content-type': 'text/plain', origin: 'https://evil.example' },
      body: JSON.stringify({ messages: [user('Hi')] }),
    })
    expect(simple.status).toBe(403)
  })
})

describe('with keys', () => {
  let served: Serving
  beforeAll(async () => {
    served = await serving({
      keys: [
        { name: 'anna', key: 'sk-anna' },
        { name: 'anna', key: 'sk-anna-2' },
        { name: 'bob', key: 'sk-bob' },
        { name: 'admin', key: 'sk-admin' },
      ],
      corsOrigins: ['https://ours.example'],
    })
  })
  afterAll(() => served.close())

  it.each([
    ['none', {}],
    ['an unknown one', bearer('sk-eve')],
    ['the beginning of one', bearer('sk-ann')],
    ['one and more', bearer('sk-anna ')],
    ['another scheme', { authorization: 'Basic sk-anna' }],
    ['an endless one', bearer('x'.repeat(9000))],
  ])('answers 401 to %s', async (what, headers) => {
    const answer = await fetch(`${served.url}/v1/models`, { headers })
    // White space around a key is ignored.
    expect(answer.status).toBe(what === 'one and more' ? 200 : 401)
    expect(answer.headers.get('www-authenticate')).toBe(answer.status === 401 ? 'Bearer' : null)
    if (answer.status === 401)
      expect(await answer.json()).toMatchObject({ error: { code: 'invalid_api_key', type: 'authentication_error' } })
  })

  it("accepts keys in the headers of both OpenAI's and Anthropic's clients", async () => {
    expect((await fetch(`${served.url}/v1/models`, { headers: bearer('sk-anna') })).status).toBe(200)
    expect((await fetch(`${served.url}/v1/models`, { headers: { 'x-api-key': 'sk-anna' } })).status).toBe(200)
    const answer = await post(`${served.url}/v1/messages`, {})
    expect([answer.status, await answer.json()]).toMatchObject([401, { type: 'error', error: { type: 'authentication_error' } }])
    const models = await fetch(`${served.url}/v1/models/none`, {
      headers: { 'x-api-key': 'sk-anna', 'anthropic-version': '2023-06-01' },
    })
    expect([models.status, await models.json()]).toMatchObject([404, { type: 'error', error: { type: 'not_found_error' } }])
  })

  it.each([
    ['/v1/chat/completions', 'openai'],
    ['/v1/responses', 'openai'],
    ['/v1/completions', 'openai'],
    ['/v1/embeddings', 'openai'],
    ['/chat/completions', 'openai'],
    ['/tokenize', 'openai'],
    ['/v1/messages', 'anthropic'],
    ['/v1/messages/count_tokens', 'anthropic'],
    ['/messages', 'anthropic'],
    ['/v1/no-such-route', 'anthropic'],
    ['/api/chat', 'ollama'],
  ])('an error of %s has the shape of its route, whatever the headers say', async (route, shape) => {
    const answer = await post(served.url + route, { messages: 1 }, { ...bearer('sk-anna'), 'anthropic-version': '2023-06-01' })
    expect(answer.status).toBeGreaterThanOrEqual(400)
    const { type, error } = (await answer.json()) as { type?: string; error: { code?: string } | string }
    const seen = typeof error === 'string' ? 'ollama' : type === 'error' ? 'anthropic' : 'openai'
    expect(seen).toBe(shape)
    if (typeof error !== 'string') expect('code' in error).toBe(shape === 'openai')
  })

  it('keeps tenants apart', async () => {
    const body = { messages: [user('A long secret that both of them happen to send, word for word.')], max_tokens: 2, kvfold: {} }
    const chat = async (key: string) => (await (await post(served.url + CHAT, body, bearer(key))).json()) as Completion
    const anna = await chat('sk-anna')
    const bob = await chat('sk-bob')
    expect(bob.kvfold?.thread).not.toBe(anna.kvfold?.thread)
    expect(bob.usage.prompt_tokens_details.cached_tokens).toBe(0)
    const again = await chat('sk-anna-2')
    expect(again.usage.prompt_tokens_details.cached_tokens).toBeGreaterThan(0)
    const at = `${served.url}/kvfold/threads/${anna.kvfold!.thread}`
    expect((await fetch(at, { headers: bearer('sk-anna-2') })).status).toBe(200)
    expect((await fetch(at, { headers: bearer('sk-bob') })).status).toBe(404)
    expect((await fetch(at, { method: 'DELETE', headers: bearer('sk-admin') })).status).toBe(404)
    const theirs = await post(served.url + CHAT, { ...body, kvfold: { thread: anna.kvfold!.thread } }, bearer('sk-bob'))
    expect([theirs.status, await theirs.json()]).toMatchObject([404, { error: { code: 'server/no-thread' } }])
  })

  it('shows the metrics of all tenants to the admin only', async () => {
    for (const path of ['/metrics', '/kvfold/status']) {
      expect((await fetch(served.url + path)).status).toBe(401)
      expect((await fetch(served.url + path, { headers: bearer('sk-anna') })).status).toBe(403)
      expect((await fetch(served.url + path, { headers: bearer('sk-admin') })).status).toBe(200)
    }
    expect((await fetch(`${served.url}/health`)).status).toBe(200)
  })

  it('lets allowed pages in', async () => {
    const preflight = await fetch(served.url + CHAT, {
      method: 'OPTIONS',
      headers: {
        origin: 'https://ours.example',
        'access-control-request-method': 'POST',
        'access-control-request-headers': 'authorization,content-type',
      },
    })
    expect(preflight.status).toBe(204)
    expect(preflight.headers.get('access-control-allow-origin')).toBe('https://ours.example')
    const stream = await post(
      served.url + CHAT,
      { messages: [user('Hi')], max_tokens: 2, stream: true },
      { ...bearer('sk-anna'), origin: 'https://ours.example' },
    )
    expect(stream.headers.get('access-control-allow-origin')).toBe('https://ours.example')
    expect(stream.headers.get('content-type')).toMatch(/^text\/event-stream/)
    // Both clients read these headers in a browser.
    for (const header of ['x-request-id', 'request-id', 'retry-after', 'x-should-retry'])
      expect(stream.headers.get('access-control-expose-headers')).toContain(header)
    await stream.text()
    const other = await fetch(`${served.url}/v1/models`, { headers: { ...bearer('sk-anna'), origin: 'https://evil.example' } })
    expect(other.headers.get('access-control-allow-origin')).not.toBe('https://evil.example')
  })
})

describe('when there is too much to do', () => {
  it('queues requests, sends comments meanwhile, and refuses those beyond the queue', async () => {
    const served = await serving({ slots: 1, service: { queueLimit: 1 } })
    try {
      const long = { messages: [user('Go on for ever.')], max_tokens: 3000, stream: true, ...endless }
      const controller = new AbortController()
      const running = await fetch(served.url + CHAT, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(long),
        signal: controller.signal,
      })
      const waiting = post(served.url + CHAT, { messages: [user('Second.')], max_tokens: 2, stream: true, kvfold: { ping: 0.1 } })
      await expect.poll(() => served.service.status().queue.waiting).toBe(1)
      const refused = await post(served.url + CHAT, { messages: [user('Third.')], max_tokens: 2 })
      expect([refused.status, await refused.json()]).toMatchObject([503, { error: { code: 'server/overloaded' } }])
      expect(Number(refused.headers.get('retry-after'))).toBeGreaterThanOrEqual(1)
      await new Promise((resolve) => setTimeout(resolve, 350))
      controller.abort()
      await running.text().catch(() => undefined)
      const second = await eventsOf(await waiting)
      expect(second.comments).toBeGreaterThanOrEqual(2)
      expect(second.data.at(-1)).toBe('[DONE]')
      const late = await post(served.url + CHAT, { ...long, stream: false, kvfold: { ...endless.kvfold, timeout: 0.3 } })
      expect([late.status, await late.json()]).toMatchObject([504, { error: { code: 'server/timeout' } }])
    } finally {
      await served.close()
    }
  })
})

describe('at shutdown', () => {
  const long = { messages: [user('Go on for ever.')], max_tokens: 3000, stream: true, ...endless }

  it('lets short answers finish, ends long ones properly, and accepts no new ones', async () => {
    const served = await serving()
    const streams = await Promise.all([post(served.url + CHAT, long), post(`${served.url}/v1/messages`, long)])
    const texts = streams.map((stream) => stream.text())
    const closing = served.server.close(400)
    expect(await (await fetch(`${served.url}/health`)).json()).toEqual({ status: 'closing' })
    const refused = await post(served.url + CHAT, { messages: [user('Hi')] })
    expect([refused.status, refused.headers.get('retry-after'), await refused.json()]).toMatchObject([
      503,
      '5',
      { error: { code: 'server/closing' } },
    ])
    await closing
    const [chat = '', message = ''] = await Promise.all(texts)
    const blocks = chat.trimEnd().split('\n\n')
    expect(blocks.at(-1)).toBe('data: [DONE]')
    expect(JSON.parse(blocks.at(-2)!.slice(6))).toMatchObject({ error: { code: 'server/closing' } })
    expect(message.trimEnd().split('\n\n').at(-1)).toMatch(/^event: error\ndata: .*server\/closing/)
    await expect(fetch(`${served.url}/health`)).rejects.toThrow()
  })

  it('carries out an edit that waits for its model', async () => {
    const store = new MemoryStore()
    const before = await serving({ service: { store } })
    const text = user('START one two three four five six END')
    const { kvfold } = (await (
      await post(before.url + CHAT, { messages: [text], max_tokens: 3, kvfold: {} })
    ).json()) as Completion
    await before.close()

    const served = await serving({ service: { store } })
    const at = `${served.url}/kvfold/threads/${kvfold!.thread}/fragments`
    const cut = post(at, { startMarker: 'START', endMarker: 'END', numFragments: 2 })
    await expect.poll(() => served.service.models()[0]?.state, { interval: 1 }).toBe('loading')
    await served.server.close(20_000)
    expect(await (await cut).json()).toMatchObject({ fragments: [{}, {}] })
    expect(store.read('public', kvfold!.thread)?.edits.fragments).toHaveLength(2)
  })

  it('waits for answers that end in time', async () => {
    const served = await serving()
    const stream = await post(served.url + CHAT, { ...long, max_tokens: 20 })
    const closing = served.server.close(20_000)
    const { data } = await eventsOf(stream)
    expect(data.at(-1)).toBe('[DONE]')
    expect(data.at(-2)).not.toContain('error')
    await closing
  })

  it('ends although a client does not read its stream', async () => {
    // More than the buffers of two sockets hold.
    const served = await serving({ engine: () => new ScriptedEngine([{ content: 'x'.repeat(30_000_000) }]) })
    const body = JSON.stringify({ messages: [user('Hi')], stream: true })
    const socket = connect(Number(new URL(served.url).port), '127.0.0.1')
    socket.write(`POST ${CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: ${body.length}\r\n\r\n${body}`)
    await new Promise((resolve) => socket.once('data', resolve))
    socket.pause()
    const closed = served.server.close(100).then(() => 'closed')
    const late = new Promise((resolve) => setTimeout(resolve, 5000, 'late'))
    expect(await Promise.race([closed, late])).toBe('closed')
    socket.destroy()
    await closed
  })
})
