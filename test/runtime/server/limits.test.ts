/** Tests the rate limits of keys and the headers about them, the effects of a refused request, and the log lines of requests. */
import { afterEach, describe, expect, it } from 'vitest'
import { PUBLIC } from '../../../src/runtime/server/ask.js'
import { parseKeys, RateLimits } from '../../../src/runtime/server/keys.js'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import type { EngineRequest } from '../../../src/runtime/engine/engine.js'
import { spentIn } from '../../../src/runtime/server/spent.js'
import { type Script, ScriptedEngine } from '../../support/scripted.js'
import { serving, type Serving, type ServingOptions } from './support/serving.js'

const user = (content: string) => ({ role: 'user', content })
const CHAT = '/v1/chat/completions'

let served: Serving
let isServing = false
afterEach(async () => {
  if (isServing) await served.close()
  isServing = false
})

const start = async (options: ServingOptions = {}) => {
  served = await serving(options)
  isServing = true
}
const scripted = (answers: number) => () => new ScriptedEngine(Array.from({ length: answers }, () => ({ content: 'Blue.' })))

function post(path: string, body: object, key = 'a'): Promise<Response> {
  return fetch(served.url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${key}` },
    body: JSON.stringify(body),
  })
}

describe('limits', () => {
  it('are written in the file of keys, and invalid ones are refused', () => {
    expect(parseKeys('ann:k1 requests=2 tokens=50\nbob:k2\nk3  tokens=7\n# no\n')).toMatchObject([
      { name: 'ann', key: 'k1', limit: { requests: 2, tokens: 50 } },
      { name: 'bob', key: 'k2' },
      { key: 'k3', limit: { tokens: 7 } },
    ])
    for (const bad of ['requests=0', 'requests=x', 'tokens=1 tokens=2', 'requests=1 seconds=3'])
      expect(() => parseKeys(`ann:k1 ${bad}`)).toThrow('is not a limit; write requests=60, tokens=100000 or both')
    const twice = parseKeys('ann:k1 requests=2\nann:k2 requests=3')
    expect(() => new RateLimits(twice)).toThrow('Keys of ann have different limits')
  })

  it.each([
    ['/tokenize', { content: 'Hi' }],
    ['/detokenize', { tokens: [300] }],
    ['/apply-template', { messages: [user('Hi')] }],
    ['/v1/messages/count_tokens', { messages: [user('Hi')] }],
  ])('also count requests of %s, which need no model', async (path, body) => {
    await start({ rateLimit: { requests: 2 } })
    expect((await post(path, body)).status).toBe(200)
    const last = await post(path, body)
    expect([last.status, last.headers.get('x-ratelimit-remaining-requests')]).toEqual([200, '0'])
    expect((await post(path, body)).status).toBe(429)
    expect((await post(CHAT, { messages: [user('Hi')] })).status).toBe(429)
  })

  it.each([
    ['DELETE', '/kvfold/threads/x'],
    ['PUT', '/kvfold/threads/x/title', { title: 'a' }],
    ['PUT', '/kvfold/threads/x/contract', { contract: 'exact' }],
    ['POST', '/kvfold/threads/x/search', { query: 'a' }],
    ['POST', '/kvfold/threads/search', { query: 'a' }],
  ])('count %s %s, and no reading of threads', async (method, path, body?: object) => {
    await start({ rateLimit: { requests: 1 } })
    const send = (at: string, how: string, what?: object) =>
      fetch(served.url + at, {
        method: how,
        ...(what === undefined ? {} : { headers: { 'content-type': 'application/json' }, body: JSON.stringify(what) }),
      })
    for (const read of ['/kvfold/threads', '/kvfold/threads/x', '/kvfold/threads/x/export'])
      expect((await send(read, 'GET')).status).not.toBe(429)
    expect([200, 404]).toContain((await send(path, method, body)).status)
    expect((await send(path, method, body)).status).toBe(429)
  })

  it('refill evenly, separately for each key', () => {
    let now = 0
    const limits = new RateLimits([{ name: 'ann', key: 'k', limit: { requests: 2, tokens: 60 } }], { requests: 1 }, () => now)
    limits.take('ann')
    const { spend } = limits.take('ann')
    expect(() => limits.take('ann')).toThrow('limit of 2 requests per minute; try again in 30 s')
    limits.take('bob')
    expect(() => limits.take('bob')).toThrow('try again in 60 s')
    now = 30_000
    limits.take('ann')
    // This spends more than was left, so the debt comes first.
    spend(90)
    now = 60_000
    expect(() => limits.take('ann')).toThrow('limit of 60 tokens per minute; try again in 1 s')
    now = 61_000
    expect(limits.headers('ann')).toMatchObject({
      'x-ratelimit-limit-requests': '2',
      'x-ratelimit-remaining-requests': '1',
      'x-ratelimit-remaining-tokens': '1',
      'anthropic-ratelimit-tokens-limit': '60',
    })
    limits.take('ann')
  })

  it('are enforced, in the words of each dialect, and are in the headers of every answer', async () => {
    let now = 0
    await start({
      engine: scripted(9),
      keys: [
        { name: 'ann', key: 'a', limit: { requests: 2 } },
        { name: 'bob', key: 'b' },
      ],
      clock: () => now,
    })
    const ask = { messages: [user('Which colour?')], max_tokens: 9 }
    const first = await post(CHAT, ask)
    expect([first.status, first.headers.get('x-ratelimit-remaining-requests')]).toEqual([200, '1'])
    const streamed = await post(CHAT, { ...ask, stream: true })
    expect([streamed.status, streamed.headers.get('x-ratelimit-remaining-requests')]).toEqual([200, '0'])
    await streamed.text()
    const refused = await post(CHAT, ask)
    expect(refused.status).toBe(429)
    expect(Object.fromEntries(refused.headers)).toMatchObject({
      'retry-after': '30',
      'x-should-retry': 'true',
      'x-ratelimit-limit-requests': '2',
      'x-ratelimit-remaining-requests': '0',
      'x-ratelimit-reset-requests': '60000ms',
    })
    expect(await refused.json()).toMatchObject({ error: { type: 'rate_limit_error', code: 'rate_limit_exceeded' } })
    const anthropic = await post('/v1/messages', ask)
    expect([anthropic.status, anthropic.headers.get('anthropic-ratelimit-requests-remaining')]).toEqual([429, '0'])
    expect(await anthropic.json()).toMatchObject({ type: 'error', error: { type: 'rate_limit_error' } })
    // Requests without a prompt do not count, and other keys have their own limits.
    expect((await fetch(`${served.url}/v1/models`, { headers: { authorization: 'Bearer a' } })).status).toBe(200)
    expect((await post(CHAT, ask, 'b')).headers.get('x-ratelimit-limit-requests')).toBeNull()
    now = 30_000
    expect((await post(CHAT, ask)).status).toBe(200)
  })

  it('of tokens count computed and generated tokens', async () => {
    await start({ rateLimit: { tokens: 1000 }, clock: () => 0 })
    const body = { prompt: Array.from({ length: 100 }, (_, at) => 300 + at), max_tokens: 2, temperature: 0 }
    const left = async () => Number((await post('/v1/completions', body)).headers.get('x-ratelimit-remaining-tokens'))
    const before = [await left(), await left(), await left()]
    // Headers have the amount left when the request came.
    expect(before[0]).toBe(1000)
    expect(before[0]! - before[1]!).toBeGreaterThan(100)
    expect(before[1]! - before[2]!).toBeLessThan(10)
  })
})

describe('a limit of tokens', () => {
  const ALL = 1_000_000
  const used = async () => ALL - Number((await post('/tokenize', { content: 'Hi' })).headers.get('x-ratelimit-remaining-tokens'))
  const long = 'word '.repeat(300)

  it('counts the summary of a compaction', async () => {
    await start({ rateLimit: { tokens: ALL }, clock: () => 0 })
    const input = [user(long), { role: 'assistant', content: 'Yes.' }, user('And now?')]
    expect((await post('/v1/responses/compact', { input })).status).toBe(200)
    expect(await used()).toBeGreaterThan(300)
  })

  describe('beside answers', () => {
    const told = 'told '.repeat(300)
    const words = (request: EngineRequest) => request.messages.map(({ content }) => content).join('\n')
    /** Serves a model that answers so. Its tokens are words. */
    const startWith = async (script: Script, more: object = {}) => {
      await start({
        engine: () => Object.assign(new ScriptedEngine(script, { context: 20_000 }), more),
        rateLimit: { tokens: ALL },
        clock: () => 0,
      })
    }
    const threads = () => served.service.threads
    const only = () => threads().list(PUBLIC)[0]!.id
    const inLedger = () => spentIn(threads().get(PUBLIC, only()).ledger)
    const cut = async () => {
      await post(CHAT, { messages: [user(`From here ${long} to there.`)] })
      const options = { startMarker: 'From', endMarker: 'there.', numFragments: 1 }
      const [fragment] = await threads().fragment(PUBLIC, only(), options)
      return `/kvfold/threads/${only()}/fragments/${fragment!.id}`
    }

    it('counts a summary that a person asks for, also one that is refused', async () => {
      await startWith(({ kind }) => ({ content: kind === 'summary' ? told : 'So.' }))
      const fragment = await cut()
      const before = await used()
      expect((await post(`${fragment}/summarize`, { focus: 'all', costly: 'refuse' })).status).toBe(409)
      const between = await used()
      expect(between - before).toBeGreaterThan(600)
      expect((await post(`${fragment}/summarize`, { focus: 'all', costly: 'allow' })).status).toBe(200)
      expect((await used()) - between).toBeGreaterThan(600)
      expect(await used()).toBe(inLedger())
    })

    it('counts a refresh', async () => {
      const entry = { messages: [], submitted: 70, pending: 0, kind: 'refresh' }
      await startWith([{ content: 'So.' }], { refresh: () => Promise.resolve({ exact: true, ledger: [entry] }) })
      await post(CHAT, { messages: [user('Hi')] })
      const before = await used()
      expect((await post(`/kvfold/threads/${only()}/refresh`, {})).status).toBe(200)
      expect((await used()) - before).toBe(70)
    })

    it('counts summaries by the model itself', async () => {
      await startWith((request) => {
        if (request.kind === 'summary') return { content: told }
        const last = request.messages.at(-1)!.content
        const id = /f[0-9a-f]{5}/u.exec(last)?.[0]
        if (last.startsWith('From here'))
          return {
            calls: [{ name: 'fragment_context', arguments: { start_marker: 'From', end_marker: 'there.', num_fragments: 1 } }],
          }
        return id === undefined || last.startsWith('Summar')
          ? { content: 'So.' }
          : { calls: [{ name: 'summarize_fragment', arguments: { fragment_id: id, focus: 'all' } }] }
      })
      expect((await post(CHAT, { messages: [user(`From here ${long} to there.`)], kvfold: { acm: 'tools' } })).status).toBe(200)
      expect(
        threads()
          .get(PUBLIC, only())
          .ledger.map(({ kind }) => kind),
      ).toContain('summary')
      expect(await used()).toBe(inLedger())
    })

    it.each(['u-fold', 'resum'] as const)('counts the notes of helpers, also where the answer fails (%s)', async (acm) => {
      let fails = false
      const notes = JSON.stringify({ summary: told, todo: ['Answer.'] })
      await startWith((request) => {
        if (request.kind === 'summary') return { content: words(request).includes('choose the lines') ? '{"blocks": []}' : notes }
        if (fails) throw new KvfoldError('context/full', 'The answer has no room.')
        return { content: 'So.' }
      })
      const messages = [user(`Hi ${'word '.repeat(19_000)}`), { role: 'assistant', content: 'So.' }, user('And?')]
      await post(CHAT, { messages: messages.slice(0, 1) })
      const before = await used()
      fails = true
      expect((await post(CHAT, { messages, kvfold: { acm } })).status).toBe(400)
      const between = await used()
      expect(between - before).toBeGreaterThan(300)
      fails = false
      expect((await post(CHAT, { messages, kvfold: { acm } })).status).toBe(200)
      expect((await used()) - between).toBeGreaterThan(300)
      expect(await used()).toBe(inLedger())
    })

    it('counts what acm: memtool asks aside', async () => {
      await startWith(({ schema }) => ({ content: schema === undefined ? 'So.' : JSON.stringify({ keywords: [told] }) }))
      const tools = [{ type: 'function', function: { name: 'look', description: 'Looks.', parameters: { type: 'object' } } }]
      const kvfold = { acm: 'memtool', memtool_mode: 'workflow' }
      expect((await post(CHAT, { messages: [user('Hi')], tools, kvfold })).status).toBe(200)
      expect(
        threads()
          .get(PUBLIC, only())
          .ledger.map(({ kind }) => kind),
      ).toContain('summary')
      expect(await used()).toBeGreaterThan(300)
      expect(await used()).toBe(inLedger())
    })
  })

  it('counts the work for a request that ran out of time', async () => {
    await start({ rateLimit: { tokens: ALL }, clock: () => 0 })
    const body = { messages: [user(long)], stream: true, kvfold: { grammar: 'root ::= [a-z ] root', timeout: 1 } }
    expect(await (await post(CHAT, body)).text()).toContain('server/timeout')
    expect(await used()).toBeGreaterThan(300)
  })
})

describe('a refused request', () => {
  it('creates no thread, and leaves a thread as it was', async () => {
    await start()
    const threads = () => served.service.threads.list(PUBLIC)
    const long = user('word '.repeat(200_000))
    for (const [path, body] of [
      [CHAT, { messages: [long] }],
      [CHAT, { messages: [user('a')], kvfold: { grammar: 'root ::= (' } }],
      [CHAT, { messages: [user('b')], logit_bias: { 99999: 1 } }],
      ['/v1/messages', { messages: [long], max_tokens: 5 }],
      ['/v1/responses', { input: long.content }],
    ] as const) {
      expect((await post(path, body)).status).toBe(400)
      expect(threads()).toEqual([])
    }
    const said = (await (await post(CHAT, { messages: [user('Hello.')], max_tokens: 3 })).json()) as {
      choices: { message: { role: string; content: string } }[]
    }
    const [before] = threads()
    const history = [user('Hello.'), said.choices[0]!.message]
    expect((await post(CHAT, { messages: [...history, long] })).status).toBe(400)
    expect((await post(CHAT, { messages: [user('Hi!'), ...history.slice(1), long] })).status).toBe(400)
    expect(threads()).toMatchObject([{ id: before!.id, messages: before!.messages, title: before!.title }])
    expect((await post(CHAT, { messages: [...history, user('And?')], max_tokens: 3 })).status).toBe(200)
    expect(threads()).toMatchObject([{ id: before!.id, messages: 4 }])
  })
})

describe('the log', () => {
  it('has one line per request, with its outcome', async () => {
    await start({ keys: [{ name: 'ann', key: 'a' }] })
    const ask = { messages: [user('Which colour is the sky?')], max_tokens: 4, temperature: 0 }
    await (await post(CHAT, ask)).text()
    await (await post(CHAT, { ...ask, stream: true, n: 2 })).text()
    await post(CHAT, { ...ask, model: 'other' })
    await post(CHAT, ask, 'unknown')
    await fetch(`${served.url}/%`)
    // What an open dashboard and a watcher ask for has no line.
    for (const path of ['/health', '/kvfold/threads', '/v1/models'])
      await (await fetch(served.url + path, { headers: { authorization: 'Bearer a' } })).text()
    const all = () => served.log.map((line) => JSON.parse(line) as object).filter((line) => 'path' in line)
    // The log line is written when the whole answer is on its way.
    await expect.poll(all, { timeout: 30_000 }).toHaveLength(5)
    const lines = all()
    const figures = { key: 'ann', model: 'builtin', prompt: expect.any(Number) as number, ttft: expect.any(Number) as number }
    expect(lines).toMatchObject([
      { method: 'POST', path: CHAT, status: 200, ...figures, thread: expect.stringMatching(/^thread_/) as string },
      { path: CHAT, status: 200, ...figures },
      { path: CHAT, status: 404, key: 'ann', refused: 'model/not-found' },
      { path: CHAT, status: 401, refused: 'server/unauthorized' },
      { path: '/%', status: 400 },
    ])
    expect(lines[0]).toMatchObject({ generated: expect.any(Number) as number, saved: 0, cached: expect.any(Number) as number })
  })

  it('is readable text on request', async () => {
    await start({ keys: [{ name: 'ann', key: 'a' }], logFormat: 'text' })
    await (await post(CHAT, { messages: [user('Hello.')], max_tokens: 3 })).text()
    await post(CHAT, { messages: [user('Hello.')], model: 'other' })
    const all = () => served.log.filter((line) => line.includes('POST'))
    await expect.poll(all, { timeout: 30_000 }).toHaveLength(2)
    const [first, second] = all()
    expect(first).toMatch(
      /^\d\d:\d\d:\d\d {2}200 POST \/v1\/chat\/completions {2}.+ {2}key ann {2}builtin {2}thread_\w+ {2}\d+ prompt.* {2}\d+ generated {2}first after \d/,
    )
    expect(second).toMatch(/404 POST \/v1\/chat\/completions {2}.+ {2}key ann {2}model\/not-found\n$/)
  })

  it('reports a client that left', async () => {
    await start()
    const controller = new AbortController()
    const body = { messages: [user('Go on.')], stream: true, kvfold: { grammar: 'root ::= [a-z ] root' } }
    const answer = await fetch(served.url + CHAT, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
      signal: controller.signal,
    })
    await answer.body!.getReader().read()
    controller.abort()
    await expect.poll(() => served.log.find((line) => line.includes('"status":499')), { timeout: 30_000 }).toContain('"thread":')
  })
})
