/**
 * Tests several engines behind one: which engine is asked, which is left alone, and a step whose engine dies. The engines here are stubs.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { afterEach, describe, expect, it } from 'vitest'
import { conversationId } from '../../../src/runtime/core/ids.js'
import type { EngineRequest } from '../../../src/runtime/engine/engine.js'
import type { BrokenAnswer } from '../../../src/runtime/engine/elsewhere.js'
import { RemoteEngine, type RemoteEngineOptions } from '../../../src/fleet/engines/remote.js'

const chunk = (content: string, finish: string | null = null) =>
  `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content }, finish_reason: finish }] })}\n\n`
const usage = (prompt: number, cached: number) =>
  `data: ${JSON.stringify({ choices: [], usage: { prompt_tokens: prompt, completion_tokens: 1, prompt_tokens_details: { cached_tokens: cached } } })}\n\ndata: [DONE]\n\n`

/** A server that answers as an engine does. */
interface Stub {
  readonly url: string
  readonly asked: IncomingMessage[]
  healthy: boolean
  /** The server accepts connections and does not answer. */
  dumb: boolean
  chat: (response: ServerResponse) => void
  /** Closes the server and breaks open connections. */
  die(): Promise<void>
  /** Closes the server and leaves open connections hanging, as when a machine is cut off. */
  vanish(): void
}

const stubs: Stub[] = []
const engines: RemoteEngine[] = []

async function stub(model = 'm', port = 0): Promise<Stub> {
  const sockets = new Set<Socket>()
  const server: Server = createServer((request, response) => {
    request.resume().on('end', () => {
      if (made.dumb) return
      if (request.url === '/v1/models') response.end(JSON.stringify({ data: [{ id: model, max_model_len: 1000 }] }))
      else if (request.url === '/health') response.writeHead(made.healthy ? 200 : 503).end()
      else if (request.url === '/v1/chat/completions') {
        made.asked.push(request)
        made.chat(response.writeHead(200, { 'content-type': 'text/event-stream' }))
      } else response.writeHead(404).end()
    })
  })
  server.on('connection', (socket) => {
    sockets.add(socket)
    socket.on('close', () => sockets.delete(socket))
  })
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve))
  const made: Stub = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    asked: [],
    healthy: true,
    dumb: false,
    chat: (response) => response.end(chunk('Nine.', 'stop') + usage(20, 0)),
    vanish: () => {
      server.close()
      server.closeIdleConnections()
    },
    die: () => {
      for (const socket of sockets) socket.destroy()
      return new Promise((resolve) =>
        server.close(() => {
          resolve()
        }),
      )
    },
  }
  stubs.push(made)
  return made
}

async function connect(of: readonly Stub[], options: Partial<RemoteEngineOptions> = {}): Promise<RemoteEngine> {
  const engine = await RemoteEngine.connect({
    url: of[0]!.url,
    engines: of.map(({ url }) => ({ url })),
    // The tests check the engines' health themselves.
    healthEvery: 1e9,
    ...options,
  })
  engines.push(engine)
  return engine
}

afterEach(async () => {
  await Promise.all(engines.splice(0).map((engine) => engine.dispose()))
  await Promise.all(stubs.splice(0).map((each) => each.die()))
})

const request = (id: string, more: readonly string[] = []): EngineRequest => ({
  conversation: conversationId(id),
  messages: [
    { role: 'user', content: `Which is ${id}?` },
    ...more.map((content, at) => ({ role: at % 2 === 0 ? ('assistant' as const) : ('user' as const), content })),
  ],
})
const stateOf = (engine: RemoteEngine) => engine.engines.map(({ state }) => state)

/** Returns an id whose conversation goes to this engine. */
async function idFor(engine: RemoteEngine, at: number, what = 'question'): Promise<string> {
  for (let count = 0; ; count++) {
    const id = `${what} ${at} ${count}`
    const { ledger } = await engine.respond(request(id)).reply
    if (ledger.engine?.name === engine.engines[at]!.name) return id
  }
}

describe('conversations', () => {
  it('are spread over all engines, and stay with theirs', async () => {
    const engine = await connect([await stub(), await stub(), await stub()])
    for (let count = 0; count < 30; count++) {
      const { message, ledger } = await engine.respond(request(`${count}`)).reply
      const next = await engine.respond(request(`${count}`, [message.content, 'Why?'])).reply
      expect(next.ledger.engine?.name).toBe(ledger.engine?.name)
    }
    expect(engine.engines.map(({ requests }) => requests).every((requests) => requests >= 4)).toBe(true)
    expect(engine.engines.reduce((sum, { requests }) => sum + requests, 0)).toBe(60)
    expect(engine.engines.every(({ open, failures, moved }) => open + failures + moved === 0)).toBe(true)
  })

  it('go to the same engines from another front', async () => {
    const all = [await stub(), await stub(), await stub()]
    const [one, two] = [await connect(all), await connect([...all].reverse())]
    for (let count = 0; count < 10; count++) {
      const [here, there] = [await one.respond(request(`${count}`)).reply, await two.respond(request(`${count}`)).reply]
      expect(there.ledger.engine?.name).toBe(here.ledger.engine?.name)
    }
  })

  it('have the reused tokens and the expected ones on the ledger, and their sums in the status', async () => {
    const all = [await stub()]
    const engine = await connect(all)
    all[0]!.chat = (response) => response.end(chunk('Nine.', 'stop') + usage(40, 0))
    const first = await engine.respond(request('red')).reply
    expect(first.ledger.engine).toEqual({ name: all[0]!.url, expected: 0, reported: 0 })
    all[0]!.chat = (response) => response.end(chunk('Nine.', 'stop') + usage(60, 32))
    const { ledger } = await engine.respond(request('red', ['Nine.', 'Why?'])).reply
    expect(ledger.engine).toMatchObject({ reported: 32 })
    expect(ledger.engine!.expected).toBeGreaterThan(30)
    expect(ledger.engine!.expected).toBeLessThanOrEqual(41)
    expect(engine.engines).toMatchObject([{ prompt: 100, cached: 32, expected: ledger.engine!.expected }])
  })

  it('are identified for a router in between by a constant header', async () => {
    const all = [await stub()]
    const engine = await connect(all, { sessionHeader: 'x-session-id' })
    await engine.respond(request('red')).reply
    await engine.respond(request('red', ['Nine.', 'Why?'])).reply
    await engine.respond(request('blue')).reply
    const [first, second, other] = all[0]!.asked.map(({ headers }) => headers['x-session-id'])
    expect(first).toMatch(/^[\w-]{22}$/)
    expect(second).toBe(first)
    expect(other).not.toBe(first)
    await engine.respond({ ...request('green'), sessionHeaders: { 'thread-id': 'mine' } }).reply
    expect(all[0]!.asked.at(-1)!.headers).toMatchObject({ 'thread-id': 'mine', 'x-session-id': expect.any(String) as string })
    await expect(connect(all, { sessionHeader: 'a b' })).rejects.toMatchObject({ code: 'remote/bad-endpoint' })
  })
})

describe('an engine that fails', () => {
  it('before its answer is replaced by the next, each tried once, and the conversation stays there', async () => {
    const all = [await stub(), await stub(), await stub()]
    const engine = await connect(all)
    const id = await idFor(engine, 0)
    await all[0]!.die()
    const { ledger, message } = await engine.respond(request(id, ['Nine.', 'Why?'])).reply
    expect(message.content).toBe('Nine.')
    expect(ledger.engine?.name).not.toBe(all[0]!.url)
    expect(ledger.engine?.expected).toBe(0)
    const again = await engine.respond(request(id, ['Nine.', 'Why?', 'Nine.', 'Why?'])).reply
    expect(again.ledger.engine?.name).toBe(ledger.engine?.name)
    expect(engine.engines[0]).toMatchObject({ failures: 1 })
    expect(engine.engines.reduce((sum, { moved }) => sum + moved, 0)).toBe(1)
  })

  it('during its answer is an error with the text so far, and no other engine is asked', async () => {
    const all = [await stub(), await stub()]
    const engine = await connect(all)
    const id = await idFor(engine, 1)
    const before = all.map(({ asked }) => asked.length)
    all[1]!.chat = (response) => {
      response.write(chunk('Nine'))
    }
    const running = engine.respond(request(id, ['Nine.', 'Why?']))
    const error = await (async () => {
      for await (const event of running) if (event.type === 'text') await all[1]!.die()
    })().catch((thrown: unknown) => thrown as BrokenAnswer)
    expect(error).toMatchObject({ code: 'remote/broken-stream', said: { content: 'Nine' } })
    await expect(running.reply).rejects.toBe(error)
    expect(all.map(({ asked }) => asked.length)).toEqual([before[0], before[1]! + 1])
    // The next step goes to another engine, without the broken one.
    const { ledger } = await engine.respond(request(id, ['Nine.', 'Why?'])).reply
    expect(ledger).toMatchObject({ step: 1, engine: { name: all[0]!.url } })
  })

  it('silently is noticed by health checks: an unanswered request moves, and a started answer is an error', async () => {
    const all = [await stub(), await stub()]
    const engine = await connect(all, { healthEvery: 600 })
    const [one, other] = [await idFor(engine, 0), await idFor(engine, 0, 'another question')]
    const before = all[0]!.asked.length
    all[0]!.chat = (response) => response.write(': nothing yet\n\n')
    const unanswered = engine.respond(request(one, ['Nine.', 'Why?']))
    await expect.poll(() => all[0]!.asked.length).toBe(before + 1)
    all[0]!.chat = (response) => response.write(chunk('Nine'))
    const begun = engine.respond(request(other, ['Nine.', 'Why?']))
    for await (const event of begun) if (event.type === 'text') break
    all[0]!.vanish()
    expect((await unanswered.reply).ledger.engine?.name).toBe(all[1]!.url)
    await expect(begun.reply).rejects.toMatchObject({ code: 'remote/unreachable', said: { content: 'Nine' } })
  })

  it('after its headers, with no other engine left, gives an error that says what to do', async () => {
    const only = await stub()
    const engine = await connect([only])
    only.chat = (response) => {
      response.flushHeaders()
      setImmediate(() => void only.die())
    }
    await expect(engine.respond(request('a')).reply).rejects.toMatchObject({
      code: 'remote/broken-stream',
      message: expect.stringMatching(/no other engine is left to ask; ask again\.$/u) as string,
    })
  })

  it('like all others gives the last error, each being asked once; an invalid request is sent once', async () => {
    const all = [await stub(), await stub(), await stub()]
    const engine = await connect(all)
    for (const each of all)
      each.chat = (response) => response.end(`data: ${JSON.stringify({ error: { message: 'Oh.', code: 500 } })}\n\n`)
    await expect(engine.respond(request('red')).reply).rejects.toMatchObject({ code: 'remote/failed' })
    expect(all.map(({ asked }) => asked.length)).toEqual([1, 1, 1])
    for (const each of all)
      each.chat = (response) => response.end(`data: ${JSON.stringify({ error: { message: 'No.', code: 400 } })}\n\n`)
    await expect(engine.respond(request('blue')).reply).rejects.toMatchObject({ code: 'remote/refused' })
    expect(all.reduce((sum, { asked }) => sum + asked.length, 0)).toBe(4)
  })

  it('is down after two failed checks, gets nothing, and is up again after one success', async () => {
    const all = [await stub(), await stub()]
    const engine = await connect(all)
    all[0]!.healthy = false
    await engine.checkEngines()
    expect(stateOf(engine)).toEqual(['up', 'up'])
    await engine.checkEngines()
    expect(stateOf(engine)).toEqual(['down', 'up'])
    expect(engine.engines[0]!.problem).toContain('takes no requests now')
    for (let count = 0; count < 8; count++) await engine.respond(request(`${count}`)).reply
    expect(all.map(({ asked }) => asked.length)).toEqual([0, 8])
    all[1]!.healthy = false
    await engine.checkEngines()
    await engine.checkEngines()
    await expect(engine.respond(request('red')).reply).rejects.toMatchObject({
      ...{ code: 'remote/no-engine', status: 503 },
      message: expect.stringMatching(/No engine takes requests: .* is down .*; .* is down/) as string,
    })
    all[0]!.healthy = true
    await engine.checkEngines()
    expect(stateOf(engine)).toEqual(['up', 'down'])
    await engine.respond(request('red')).reply
    expect(all[0]!.asked).toHaveLength(1)
  })
})

it('an engine that comes back with another model is not used', async () => {
  const [one, two] = [await stub(), await stub()]
  const engine = await connect([one, two])
  await two.die()
  for (let at = 0; at < 2; at++) await engine.checkEngines()
  expect(stateOf(engine)).toEqual(['up', 'down'])
  const other = await stub('other', Number(new URL(two.url).port))
  await engine.checkEngines()
  expect(stateOf(engine)).toEqual(['up', 'down'])
  expect(engine.engines[1]!.problem).toContain('serves other')
  await engine.respond(request('x')).reply
  expect(other.asked).toEqual([])
})

describe('an engine beside one whose model is named', () => {
  const named = async (order: (all: RemoteEngineOptions['engines'] & object) => RemoteEngineOptions['engines'] & object) => {
    const [one, other] = [await stub(), await stub('n')]
    const engine = await connect([one], { engines: order([{ url: one.url }, { url: other.url, model: 'n' }]) })
    return { one, engine }
  }

  it('comes back after a restart', async () => {
    const { one, engine } = await named((all) => all)
    await one.die()
    for (let at = 0; at < 2; at++) await engine.checkEngines()
    expect(stateOf(engine)).toEqual(['down', 'up'])
    await stub('m', Number(new URL(one.url).port))
    await engine.checkEngines()
    expect(stateOf(engine)).toEqual(['up', 'up'])
  })

  it('is used when it stands second', async () => {
    const { engine } = await named((all) => [...all].reverse())
    expect(stateOf(engine)).toEqual(['up', 'up'])
  })

  it('must serve the model of the others without a name, also when both come later at once', async () => {
    const all = [await stub(), await stub('other'), await stub('n')]
    const [one, two, three] = all.map(({ url }) => url)
    for (const each of all.slice(0, 2)) await each.die()
    const engine = await connect(all, { engines: [{ url: one! }, { url: two! }, { url: three!, model: 'n' }] })
    expect(stateOf(engine)).toEqual(['down', 'down', 'up'])
    await stub('m', Number(new URL(one!).port))
    await stub('other', Number(new URL(two!).port))
    for (let at = 0; at < 2; at++) await engine.checkEngines()
    const [first, second, third] = engine.engines
    expect([first!, second!].map(({ state }) => state).sort()).toEqual(['down', 'up'])
    expect(first!.problem ?? second!.problem).toMatch(/serves (m|other), but the other engines serve (m|other);/)
    expect(third!.state).toBe('up')
  })
})

describe('the list of engines', () => {
  it('may have engines that are not there yet, and one with another model is not used', async () => {
    const [there, other] = [await stub(), await stub('n')]
    const gone = await stub()
    await gone.die()
    const engine = await connect([there, other, gone])
    expect(stateOf(engine)).toEqual(['up', 'down', 'down'])
    expect(engine.engines[1]!.problem).toContain('serves n, but the other engines serve m')
    await expect(connect([gone])).rejects.toMatchObject({ code: 'remote/unreachable' })
    const named = await connect([there], { engines: [{ url: there.url }, { url: other.url, model: 'n' }] })
    expect(stateOf(named)).toEqual(['up', 'up'])
    await expect(connect([there, there])).rejects.toMatchObject({ code: 'remote/bad-endpoint' })
  })

  it('does not delay the start for silent engines by more than two seconds, and uses them later', async () => {
    const [there, dumb] = [await stub(), await stub()]
    dumb.dumb = true
    const begun = performance.now()
    const engine = await connect([dumb, there], { healthEvery: 200 })
    expect(performance.now() - begun).toBeGreaterThan(1900)
    expect(performance.now() - begun).toBeLessThan(3500)
    expect(stateOf(engine)).toEqual(['down', 'up'])
    expect(engine.engines[0]!.problem).toContain('did not name its model within 2 s')
    expect((await engine.respond(request('now')).reply).ledger.engine?.name).toBe(there.url)
    dumb.dumb = false
    await expect.poll(() => stateOf(engine), { timeout: 5000 }).toEqual(['up', 'up'])
  })

  it('can change in use: new engines get requests, and draining or removed ones finish theirs', async () => {
    const all = [await stub(), await stub()]
    const engine = await connect(all)
    const id = await idFor(engine, 0)
    let finish = () => undefined as unknown
    all[0]!.chat = (response) => {
      response.write(chunk('Ni'))
      finish = () => response.end(chunk('ne.', 'stop') + usage(20, 0))
    }
    const running = engine.respond(request(id, ['Nine.', 'Why?']))
    for await (const event of running) {
      if (event.type !== 'text' || event.text !== 'Ni') continue
      await engine.setEngines([
        { url: all[0]!.url, drain: true },
        { url: all[1]!.url, weight: 2 },
      ])
      expect(engine.engines).toMatchObject([
        { state: 'draining', open: 1 },
        { state: 'up', weight: 2 },
      ])
      finish()
    }
    expect((await running.reply).ledger.engine?.name).toBe(all[0]!.url)
    const moved = await engine.respond(request(id, ['Nine.', 'Why?', 'Nine.', 'Why?'])).reply
    expect(moved.ledger.engine?.name).toBe(all[1]!.url)
    const third = await stub()
    await engine.setEngines([{ url: third.url }])
    expect(engine.engines).toMatchObject([{ name: third.url, state: 'up', model: 'm' }])
    expect((await engine.respond(request(id)).reply).ledger.engine?.name).toBe(third.url)
    await expect(engine.setEngines([])).rejects.toMatchObject({ code: 'remote/bad-endpoint' })
    expect(engine.engines).toHaveLength(1)
  })
})
