/**
 * Tests failures between kvfold and an endpoint: each has its code, a closed connection is noticed, and the key never appears in an error.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { createServer as createSocketServer, type AddressInfo, type Server as SocketServer, type Socket } from 'node:net'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { anyObject } from '../../../src/runtime/chat/grammar.js'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import type { EngineRequest } from '../../../src/runtime/engine/engine.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { Endpoint, readKey } from '../../../src/fleet/engines/endpoint.js'
import { RemoteEngine, type RemoteEngineOptions } from '../../../src/fleet/engines/remote.js'

const KEY = 'sk-very-secret-0123456789'
type Handler = (request: IncomingMessage, response: ServerResponse, body: Record<string, unknown>) => void

/** A server that lists one model and answers chats as the test says. */
let server: Server
let url: string
let chat: Handler
let asked: Record<string, unknown>[] = []
let owner = 'somebody'
let listed: readonly string[] | null = ['m', 'n']

const text = (content: string, finish: string | null = null) =>
  `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content }, finish_reason: finish }] })}\n\n`
const usage = `data: ${JSON.stringify({ choices: [], usage: { prompt_tokens: 20, completion_tokens: 2 } })}\n\ndata: [DONE]\n\n`
const stream = (response: ServerResponse) => response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8' })
const refuse = (response: ServerResponse, status: number, body: unknown, headers: Record<string, string> = {}) =>
  response.writeHead(status, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(body))

beforeAll(async () => {
  server = createServer((request, response) => {
    const parts: Buffer[] = []
    request.on('data', (part: Buffer) => parts.push(part))
    request.on('end', () => {
      if (request.url === '/v1/models' && listed === null) response.writeHead(500).end('Internal Server Error')
      else if (request.url === '/v1/models')
        response.end(
          JSON.stringify({
            data: listed!.map((id) => ({ id, owned_by: owner, max_model_len: 1000 })),
          }),
        )
      else if (request.url === '/version') response.end('{"version":"0.11.0"}')
      else if (request.url !== '/v1/chat/completions') response.writeHead(404).end()
      else {
        const body = JSON.parse(Buffer.concat(parts).toString()) as Record<string, unknown>
        asked.push(body)
        chat(request, response, body)
      }
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
})

beforeEach(() => {
  asked = []
  owner = 'somebody'
  listed = ['m', 'n']
})

afterAll(() => server.close())

const request: EngineRequest = { conversation: conversationId('c'), messages: [{ role: 'user', content: 'Which is red?' }] }

async function withEngine<T>(run: (engine: RemoteEngine) => Promise<T>, options: Partial<RemoteEngineOptions> = {}): Promise<T> {
  const engine = await RemoteEngine.connect({ url, key: KEY, ...options })
  try {
    return await run(engine)
  } finally {
    await engine.dispose()
  }
}

/** Returns the error of a step, and checks that it does not contain the key. */
const failure = (options: Partial<RemoteEngineOptions> = {}, change: Partial<EngineRequest> = {}) =>
  withEngine(async (engine) => {
    const error: unknown = await engine.respond({ ...request, ...change }).reply.then(
      () => null,
      (thrown: unknown) => thrown,
    )
    expect(error).toMatchObject({ name: 'KvfoldError' })
    const { message, cause } = error as Error
    expect(message + JSON.stringify(cause)).not.toContain(KEY)
    return error as Error & { code: string }
  }, options)

describe('an answer that is whole', () => {
  it.each([
    ['fails', (response: ServerResponse) => setTimeout(() => response.destroy(), 50)],
    ['stays open', () => undefined],
  ])('is kept when its connection %s behind the last event', async (_, end) => {
    chat = (_request, response) => {
      stream(response)
      response.write(text('Red.', 'stop') + usage)
      end(response)
    }
    const begun = performance.now()
    const { message, finish } = await withEngine((engine) => engine.respond(request).reply)
    expect([message.content, finish]).toEqual(['Red.', 'stop'])
    expect(performance.now() - begun).toBeLessThan(5000)
  })
})

describe('an endpoint that refuses', () => {
  it.each([
    [400, { error: { message: 'bad', type: 'x' } }, 'remote/refused'],
    [
      400,
      { error: { message: "This model's maximum context length is 1000 tokens.", code: 'context_length_exceeded' } },
      'context/full',
    ],
    [400, { error: { code: 400, message: 'request (24006 tokens) exceeds', type: 'exceed_context_size_error' } }, 'context/full'],
    [401, { error: `Incorrect key ${KEY}` }, 'remote/unauthorized'],
    [403, { detail: 'no' }, 'remote/unauthorized'],
    [404, { message: 'The model does not exist.' }, 'model/not-found'],
    [422, 'no object', 'remote/refused'],
    [429, { error: { message: 'slowly' } }, 'remote/rate-limited'],
    [500, { error: { message: 'oh' } }, 'remote/failed'],
    [502, {}, 'remote/failed'],
    [503, { error: { message: 'loading' } }, 'remote/overloaded'],
    [504, {}, 'remote/timeout'],
    [302, {}, 'remote/bad-answer'],
  ])('%s %j is %s', async (status, body, code) => {
    chat = (_, response) => refuse(response, status, body, status === 302 ? { location: 'http://127.0.0.1:9/' } : {})
    expect(await failure({ patience: { busy: 0 } })).toMatchObject({ code })
  })

  it('is asked again after the time it gives, if that is short', async () => {
    let count = 0
    chat = (_, response) => {
      if (count++ === 0) refuse(response, 429, {}, { 'retry-after': '0.2' })
      else stream(response).end(text('Nine.', 'stop') + usage)
    }
    const begun = performance.now()
    const { message } = await withEngine((engine) => engine.respond(request).reply)
    expect(message.content).toBe('Nine.')
    expect(performance.now() - begun).toBeGreaterThan(190)
    expect(count).toBe(2)
    count = 0
    chat = (_, response) => {
      count++
      refuse(response, 429, { error: { message: 'Slowly.' } }, { 'retry-after': '60' })
    }
    const error = await failure()
    expect(error).toMatchObject({ code: 'remote/rate-limited', cause: { retryAfter: 60 } })
    expect(error.message).toContain('60 s')
    expect(count).toBe(1)
  })

  it('ends with the reason of a signal that is aborted before the next try', async () => {
    const abort = new AbortController()
    const lost = new KvfoldError('remote/unreachable', 'The engine was lost.')
    chat = (_, response) => {
      refuse(response, 503, {}, { 'retry-after': '5' })
      setTimeout(() => {
        abort.abort(lost)
      }, 50)
    }
    const endpoint = new Endpoint({ url })
    await expect(endpoint.post('/v1/chat/completions', {}, abort.signal)).rejects.toBe(lost)
    endpoint.close()
  })
})

describe('a connection', () => {
  it('that is refused is remote/unreachable', async () => {
    const probe: SocketServer = createSocketServer()
    await new Promise<void>((resolve) => probe.listen(0, '127.0.0.1', resolve))
    const { port } = probe.address() as AddressInfo
    await new Promise((resolve) => probe.close(resolve))
    await expect(RemoteEngine.connect({ url: `http://127.0.0.1:${port}` })).rejects.toMatchObject({ code: 'remote/unreachable' })
    await expect(RemoteEngine.connect({ url: 'http://no-such-host.invalid' })).rejects.toMatchObject({
      code: 'remote/unreachable',
    })
    await expect(RemoteEngine.connect({ url: url.replace('http:', 'https:') })).rejects.toMatchObject({
      code: 'remote/unreachable',
    })
  })

  it('that breaks before the end, or ends without a reason, is remote/broken-stream', async () => {
    chat = (_, response) => {
      stream(response).write(text('Ni'))
      setTimeout(() => response.socket?.destroy(), 20)
    }
    expect(await failure()).toMatchObject({ code: 'remote/broken-stream' })
    chat = (_, response) => stream(response).end(text('Ni'))
    expect(await failure()).toMatchObject({ code: 'remote/broken-stream' })
  })

  it('without data is remote/timeout, before the answer and within it', async () => {
    chat = () => undefined
    expect(await failure({ patience: { idle: 100 } })).toMatchObject({ code: 'remote/timeout' })
    chat = (_, response) => stream(response).write(text('Ni'))
    expect(await failure({ patience: { idle: 100 } })).toMatchObject({ code: 'remote/timeout' })
  })

  it('that returns something other than JSON is remote/bad-answer', async () => {
    chat = (_, response) => stream(response).end('data: <html>\n\n')
    expect(await failure()).toMatchObject({ code: 'remote/bad-answer' })
    chat = (_, response) => response.writeHead(200, { 'content-type': 'text/html' }).end('<html>')
    expect(await failure()).toMatchObject({ code: 'remote/bad-answer' })
  })

  it('is closed when the step is cancelled, and the answer so far is kept', async () => {
    const closed = new Promise<void>((resolve) => {
      chat = (_, response) => {
        response.on('close', resolve)
        stream(response).write(text('Nine and'))
      }
    })
    const abort = new AbortController()
    await withEngine(async (engine) => {
      const running = engine.respond({ ...request, signal: abort.signal })
      for await (const event of running) if (event.type === 'text') abort.abort()
      const { message, finish, ledger } = await running.reply
      expect(message.content).toBe('Nine and')
      expect(finish).toBe('cancelled')
      expect(ledger.kind).toBe('cancelled')
      await closed
      await expect(engine.respond({ ...request, signal: abort.signal }).reply).rejects.toMatchObject({ code: 'engine/cancelled' })
    })
  })

  it('is closed when the conversation is forgotten or the engine disposed', async () => {
    chat = (_, response) => stream(response).write(text('Nine'))
    const engine = await RemoteEngine.connect({ url })
    const forgotten = engine.respond(request)
    for await (const event of forgotten) if (event.type === 'text') engine.forget(request.conversation)
    expect((await forgotten.reply).finish).toBe('cancelled')
    const running = engine.respond(request)
    for await (const event of running) if (event.type === 'text') await engine.dispose()
    expect((await running.reply).finish).toBe('cancelled')
    await expect(engine.respond(request).reply).rejects.toMatchObject({ code: 'engine/disposed' })
  })

  it('is kept for the next step, and replaced when the endpoint has closed it in the meantime', async () => {
    const sockets = new Set<unknown>()
    chat = ({ socket }, response) => {
      sockets.add(socket)
      stream(response).end(text('Nine.', 'stop') + usage)
    }
    await withEngine(async (engine) => {
      for (let count = 0; count < 3; count++) await engine.respond(request).reply
      expect(sockets.size).toBe(1)
      server.closeIdleConnections()
      await engine.respond(request).reply
      expect(sockets.size).toBe(2)
    })
  })

  it('that was kept and is closed while a request is written is replaced, which is not a failure', async () => {
    const sockets = new Set<Socket>()
    const waiting: ServerResponse[] = []
    let resets = 0
    chat = ({ socket }, response) => {
      // A request on a kept connection finds it closed.
      if (sockets.has(socket)) {
        resets++
        socket.resetAndDestroy()
        return
      }
      sockets.add(socket)
      waiting.push(stream(response))
      if (waiting.length === 3) for (const each of waiting) each.end(text('Nine.', 'stop') + usage)
      if (waiting.length > 3) response.end(text('Ten.', 'stop') + usage)
    }
    await withEngine(async (engine) => {
      const ids = ['a', 'b', 'c'].map(conversationId)
      await Promise.all(ids.map((conversation) => engine.respond({ ...request, conversation }).reply))
      const { message } = await engine.respond(request).reply
      expect(message.content).toBe('Ten.')
      expect({ resets, connections: sockets.size, failures: engine.engines[0]!.failures }).toEqual({
        ...{ resets: 1, connections: 4, failures: 0 },
      })
    })
  })

  it('closed twice before the answer is a failure: a request is sent twice at most', async () => {
    let sent = 0
    chat = ({ socket }) => {
      sent++
      socket.resetAndDestroy()
    }
    expect((await failure()).code).toBe('remote/unreachable')
    expect(sent).toBe(2)
  })
})

describe('a request', () => {
  const body = async (change: Partial<EngineRequest>) => {
    chat = (_, response) => stream(response).end(text('Nine.', 'stop') + usage)
    await withEngine((engine) => engine.respond({ ...request, ...change }).reply)
    return asked.at(-1)!
  }

  it('shows messages under their edits, and malformed calls as JSON', async () => {
    const sent = await body({
      messages: [
        { role: 'user', content: 'abcdefghij' },
        { role: 'assistant', content: '', reasoning: 'hm', toolCalls: [{ id: '1', name: 'x', arguments: {}, malformed: '{"a' }] },
        { role: 'tool', content: 'Error.', toolCallId: '1', name: 'x' },
      ],
      edits: [
        { message: 0, span: { start: 6, end: 8 }, replacement: '(2)' },
        { message: 0, span: { start: 1, end: 3 }, replacement: '(1)' },
      ],
      tools: [{ name: 'x', description: 'y', parameters: { type: 'object' } }],
      toolChoice: 'none',
    })
    expect(sent['messages']).toEqual([
      { role: 'user', content: 'a(1)def(2)ij' },
      {
        role: 'assistant',
        content: '',
        tool_calls: [{ id: '1', type: 'function', function: { name: 'x', arguments: '{"malformed":"{\\"a"}' } }],
      },
      { role: 'tool', content: 'Error.', tool_call_id: '1', name: 'x' },
    ])
    expect(sent).toMatchObject({
      tool_choice: 'none',
      temperature: 0,
      stream: true,
      model: 'm',
      tools: [{ function: { name: 'x' } }],
    })
  })

  it("uses each engine's own fields, and omits fields that it does not have", async () => {
    expect(await failure({}, { sampling: { topK: 3 } })).toMatchObject({ code: 'remote/unsupported' })
    expect(await failure({}, { grammar: 'root ::= "a"' })).toMatchObject({ code: 'remote/unsupported' })
    expect(await failure({}, { lora: [{ id: 0, scale: 1 }] })).toMatchObject({ code: 'remote/unsupported' })
    expect(await failure({}, { grammar: 'root ::= "a"', schema: {} })).toMatchObject({ code: 'engine/bad-request' })
    expect(asked).toEqual([])
    owner = 'vllm'
    const sent = await body({
      sampling: { temperature: 1, topK: 3, repeatPenalty: 1.1, logitBias: [{ token: 5, bias: -Infinity }] },
      tenant: 'ours',
      schema: { type: 'object' },
    })
    expect(sent).toMatchObject({ temperature: 1, top_k: 3, repetition_penalty: 1.1, logit_bias: { 5: -100 } })
    expect(sent).toMatchObject({ response_format: { type: 'json_schema', json_schema: { schema: { type: 'object' } } } })
    expect(sent['cache_salt']).toMatch(/^[\w-]{43}$/)
    // Filters that the request leaves out are off, whatever the server's defaults; a greedy request has no filters.
    expect(sent).toMatchObject({ top_p: 1, min_p: 0 })
    expect(await body({ sampling: { temperature: 0 } })).not.toHaveProperty('top_p')
    expect(JSON.stringify(sent)).not.toContain('ours')
    expect((await body({ tenant: 'theirs' }))['cache_salt']).not.toBe(sent['cache_salt'])
  })

  it('passes template variables to engines that accept them, and the reasoning effort to all', async () => {
    const variables = { enable_thinking: false, reasoning_effort: 'low' }
    expect(await body({ variables })).toMatchObject({ reasoning_effort: 'low' })
    expect(await body({ variables })).not.toHaveProperty('chat_template_kwargs')
    expect(await body({ variables: { enable_thinking: false } })).not.toHaveProperty('reasoning_effort')
    owner = 'vllm'
    expect(await body({ variables })).toMatchObject({ chat_template_kwargs: variables })
    expect(await body({ variables: {} })).not.toHaveProperty('chat_template_kwargs')
  })

  it('names the required tool, and shows only the callable ones', async () => {
    const tools = ['x', 'y', 'z'].map((name) => ({ name, description: name, parameters: { type: 'object' } }))
    const named = await body({ tools, toolChoice: 'required', callable: ['y'] })
    expect(named).toMatchObject({ tools: { length: 3 }, tool_choice: { type: 'function', function: { name: 'y' } } })
    const some = await body({ tools, toolChoice: 'required', callable: ['x', 'z'] })
    expect(some).toMatchObject({ tools: [{ function: { name: 'x' } }, { function: { name: 'z' } }], tool_choice: 'required' })
    expect(await body({ tools, toolChoice: 'auto', callable: ['y'] })).toMatchObject({
      tools: { length: 3 },
      tool_choice: 'auto',
    })
  })

  it("asks for any JSON object in each engine's way, and cannot ask for attention", async () => {
    expect(await body({ grammar: anyObject })).toMatchObject({ response_format: { type: 'json_object' } })
    const attention = { layers: 'all' } as unknown as NonNullable<EngineRequest['attention']>
    expect(await failure({}, { attention })).toMatchObject({ code: 'attention/unavailable' })
  })

  it('carries the key, and the requested model', async () => {
    let header: string | undefined
    chat = ({ headers }, response) => {
      header = headers.authorization
      stream(response).end(text('Nine.', 'stop') + usage)
    }
    await withEngine((engine) => engine.respond(request).reply, { model: 'n', url: `${url}/v1/` })
    expect(header).toBe(`Bearer ${KEY}`)
    expect(asked.at(-1)?.['model']).toBe('n')
    await expect(RemoteEngine.connect({ url, model: 'other' })).rejects.toMatchObject({ code: 'model/not-found' })
  })

  it('waits for the one before in the same conversation', async () => {
    let open = 0
    let most = 0
    chat = (_, response) => {
      most = Math.max(most, ++open)
      setTimeout(() => {
        open--
        stream(response).end(text('Nine.', 'stop') + usage)
      }, 30)
    }
    await withEngine(async (engine) => {
      const entries = await Promise.all([1, 2, 3].map(async () => (await engine.respond(request).reply).ledger.step))
      expect(entries).toEqual([0, 1, 2])
      expect(most).toBe(1)
      await Promise.all(['a', 'b'].map((id) => engine.respond({ ...request, conversation: conversationId(id) }).reply))
      expect(most).toBe(2)
    })
  })

  it('is answered without a stream or usage, too, and the notes say so', async () => {
    chat = (_, response) =>
      response
        .writeHead(200, { 'content-type': 'application/json' })
        .end(JSON.stringify({ choices: [{ index: 0, message: { role: 'assistant', content: 'Nine.' }, finish_reason: 'stop' }] }))
    await withEngine(async (engine) => {
      const { message, finish, ledger } = await engine.respond(request).reply
      expect([message.content, finish]).toEqual(['Nine.', 'stop'])
      expect(ledger.shown).toBeGreaterThan(0)
      expect(engine.notes.join(' ')).toContain('reports no usage')
    })
    chat = (_, response) => stream(response).end(text('Nine.', 'stop') + usage)
    await withEngine(async (engine) => {
      const { ledger } = await engine.respond(request).reply
      expect(ledger).toMatchObject({ reused: 0, shown: 21, submitted: 21 })
      expect(engine.notes.join(' ')).toContain('does not report cached tokens')
    })
  })

  it('that a content filter stops is an error', async () => {
    chat = (_, response) => stream(response).end(text('Ni', 'content_filter') + usage)
    expect(await failure()).toMatchObject({ code: 'remote/refused' })
  })
})

describe("a router that does not list its engines' models", () => {
  it('is asked for the named model; without a name it lists none, which is an error', async () => {
    listed = ['unknown']
    chat = (_, response) => stream(response).end(text('Nine.', 'stop') + usage)
    await withEngine((engine) => engine.respond(request).reply, { model: 'bench' })
    expect(asked.at(-1)?.['model']).toBe('bench')
    await expect(RemoteEngine.connect({ url })).rejects.toMatchObject({
      code: 'remote/bad-endpoint',
      message: expect.stringContaining('--engine-model') as string,
    })
  })
})

describe('an engine that cannot list its models', () => {
  it('is asked for the named model; without a name it is an error', async () => {
    listed = null
    chat = (_, response) => stream(response).end(text('Nine.', 'stop') + usage)
    await withEngine((engine) => engine.respond(request).reply, { model: 'bench' })
    expect(asked.at(-1)?.['model']).toBe('bench')
    await expect(RemoteEngine.connect({ url })).rejects.toMatchObject({ code: 'remote/failed' })
  })
})

describe('addresses and keys', () => {
  it.each(['nonsense', 'ftp://host', 'http://user:secret@host', 'http://host/?key=secret'])('refuses %s', async (address) => {
    const error = await RemoteEngine.connect({ url: address }).catch((thrown: unknown) => thrown as Error)
    expect(error).toMatchObject({ code: 'remote/bad-endpoint' })
    expect((error as Error).message).not.toContain('secret')
  })

  it('reads a key from a file or a variable; the error of a missing key shows no contents', () => {
    const file = join(mkdtempSync(join(tmpdir(), 'kvfold-key-')), 'key')
    writeFileSync(file, ` ${KEY} \nmore`)
    expect(readKey({ file })).toBe(KEY)
    expect(readKey({ variable: 'THEIRS' }, { THEIRS: KEY })).toBe(KEY)
    expect(readKey({}, { KVFOLD_ENGINE_KEY: KEY })).toBe(KEY)
    expect(readKey({}, {})).toBeNull()
    const bad = expect.objectContaining({
      code: 'remote/bad-endpoint',
      message: expect.not.stringContaining('split') as string,
    }) as Error
    expect(() => readKey({ variable: 'THEIRS' }, {})).toThrow(bad)
    expect(() => readKey({ variable: 'THEIRS' }, { THEIRS: 'split\nkey' })).toThrow(bad)
    expect(() => readKey({ file: `${file}.not` })).toThrow(bad)
    writeFileSync(file, '\n')
    expect(() => readKey({ file })).toThrow(bad)
  })
})
