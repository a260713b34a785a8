/** Tests the host with the reference servers from npm and one that misbehaves. */
import { once } from 'node:events'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { expect, onTestFinished, test, vi } from 'vitest'
import { ToolMemory } from '../../../src/runtime/tools/tool-memory.js'
import { hosting, realServers, someFolder } from './support/hosting.js'
import { httpServer } from './support/http-server.js'
import { oddServer } from './support/odd-server.js'
import { rawHttpServer, rawServer } from './support/raw-server.js'

const message = (work: Promise<unknown>): Promise<string> =>
  work.then(
    (value) => `no error: ${String(value)}`,
    (error: unknown) => (error instanceof Error ? error.message : String(error)),
  )

test("the reference servers' tools get names that every API accepts and can be called; a failed start is reported", async () => {
  const folder = await someFolder()
  await writeFile(join(folder, 'note.txt'), 'the crow is black')
  const { host, events } = await hosting({ ...realServers(folder), nowhere: { command: join(folder, 'no-such-program') } })
  expect(host.servers.map(({ name, state, tools }) => [name, state, tools.length])).toEqual([
    ['everything', 'ready', 13],
    ['files', 'ready', 14],
    ['memory', 'ready', 9],
    ['thinking', 'ready', 1],
    ['nowhere', 'down', 0],
  ])
  expect(events.map(({ text }) => text)).toEqual([
    expect.stringMatching(/^The MCP server nowhere cannot be started: spawn .* ENOENT\.$/),
  ])
  const names = host.tools.map(({ name }) => name)
  for (const name of names) expect(name).toMatch(/^[a-zA-Z0-9_-]{1,64}$/)
  expect(names.filter((name) => name.startsWith('files_'))).toEqual(names.filter((name) => name.startsWith('files_')).toSorted())

  const call = (name: string, args: Record<string, unknown>) => host.execute({ name, arguments: args })
  expect(await call('everything_get-sum', { a: 2, b: 3 })).toBe('The sum of 2 and 3 is 5.')
  expect(await call('everything_get-tiny-image', {})).toMatch(
    /\(image, image\/png, \d+ bytes: left out, only text can be shown\)/,
  )
  expect(await call('files_read_text_file', { path: join(folder, 'note.txt') })).toBe('the crow is black')
  await call('memory_create_entities', { entities: [{ name: 'crow', entityType: 'bird', observations: ['black'] }] })
  expect(await call('memory_read_graph', {})).toContain('"crow"')
  expect(await call('thinking_sequentialthinking', THOUGHT)).toContain('"thoughtNumber": 1')

  // A server's refusal is an error. The files server keeps to the given roots.
  expect(await message(call('files_read_text_file', { path: '/etc/hostname' }))).toContain('Access denied')
  expect(await message(call('everything_get-sum', { a: 'two' }))).toContain('expected number')
  expect(await message(call('everything_nothing', {}))).toContain('no longer offers everything_nothing')

  const found = await host.catalogue.search('relations between entities', 3)
  expect(found.map(({ name }) => name)).toContain('memory_create_relations')
  expect(host.catalogue.get('memory_read_graph')?.description).toBe('Read the entire knowledge graph')
})

const THOUGHT = { thought: 'a crow', nextThoughtNeeded: false, thoughtNumber: 1, totalThoughts: 1 }

test('a killed server is reported and restarted once by itself; after that the next call restarts it', async () => {
  const { host, happened, events } = await hosting({ memory: realServers(await someFolder()).memory })
  const graph = () => host.execute({ name: 'memory_read_graph', arguments: {} })
  const before = await graph()
  const { pid } = host.servers[0]!
  process.kill(pid!, 'SIGKILL')
  expect((await happened('down')).text).toMatch(/^The MCP server memory is down: it ended/)
  expect((await happened('restarted')).text).toBe('The MCP server memory was started again.')
  expect(host.servers[0]).toMatchObject({ state: 'ready', problem: null })
  expect(host.servers[0]!.pid).not.toBe(pid)

  // No call came since, so the server now waits for a call.
  const again = host.servers[0]!.pid!
  const downs = () => events.filter(({ kind }) => kind === 'down').length
  process.kill(again, 'SIGKILL')
  while (downs() < 2) await new Promise(setImmediate)
  expect(host.servers[0]).toMatchObject({ state: 'down', pid: null })
  expect(await graph()).toBe(before)
})

test('a server that could not be started is tried again', async () => {
  const there = join(await someFolder(), 'there')
  const { command, args } = oddServer()
  const late = { command: 'sh', args: ['-c', 'test -e "$0" && exec "$@"', there, command, ...args] }
  const { host, happened } = await hosting({ late }, [], { retryMs: 50 })
  expect(host.servers[0]).toMatchObject({ state: 'down', tools: [] })
  await writeFile(there, '')
  await happened('restarted')
  expect(await host.execute({ name: 'late_say', arguments: { text: 'here now' } })).toBe('here now')
})

test("a hanging tool is stopped, a result of 5 MB is cut, a call ended by its server's death says so, and all else continues", async () => {
  const { host, happened } = await hosting({
    short: { ...oddServer(), timeout: 200 },
    odd: { ...oddServer(), outputLimit: 1000 },
  })
  const call = (name: string, args: Record<string, unknown> = {}, signal?: AbortSignal) =>
    host.execute({ name, arguments: args }, signal)
  expect(await message(call('short_hang'))).toMatch(
    /^the server short gave no answer to hang within 0.2 s, so kvfold cancelled the call\./,
  )
  expect(host.servers[0]).toMatchObject({ state: 'ready', problem: null })

  const stop = new AbortController()
  const waiting = message(call('odd_hang', {}, stop.signal))
  stop.abort()
  expect(await waiting).toBe('The call was cancelled.')
  expect(await message(call('odd_hang', {}, AbortSignal.abort()))).toBe('The call was cancelled.')

  const cut = await call('odd_huge')
  expect(cut).toMatch(/^(0123456789){100}\n\[Cut here: these are the first 1000 of 5242880 characters. The rest is kept nowhere/)
  expect(cut.length).toBeLessThan(1300)

  expect(await message(call('odd_die'))).toMatch(
    /^the server odd ended during the call, so the call may or may not have been carried out/,
  )
  expect((await happened('down')).text).toContain('out of memory, they say')
  expect(await call('odd_say', { text: 'alive' })).toBe('alive')
})

test("a server's error of 5 MB is cut", async () => {
  const answer = `process.stdin.once('data', (text) =>
    console.log(JSON.stringify({ jsonrpc: '2.0', id: JSON.parse(text).id, error: { code: -32603, message: 'no'.repeat(2 ** 21) } })))`
  const { host } = await hosting({
    raw: { ...rawServer(), outputLimit: 1000 },
    shut: { command: process.execPath, args: ['-e', answer] },
  })
  expect(await message(host.execute({ name: 'raw_data', arguments: { fails: true } }))).toMatch(
    /\d\n\[Cut here: these are the first 1000 of 52428\d\d characters\./,
  )
  expect(host.servers[1]!.problem).toMatch(/^(no){200}$/)
})

test('a server without tools is ready, and nothing is written to stdout', async () => {
  const server = await rawHttpServer(false, '{}')
  onTestFinished(() => server.close())
  const debug = vi.spyOn(console, 'debug')
  onTestFinished(() => {
    debug.mockRestore()
  })
  const { host } = await hosting({ raw: { url: server.url } })
  expect(host.servers).toMatchObject([{ state: 'ready', tools: [] }])
  expect(debug).not.toHaveBeenCalled()
})

test('a changed list of tools changes search results, and no loaded tool', async () => {
  const { host, happened } = await hosting({ odd: oddServer() })
  const memory = new ToolMemory({ catalogue: host.catalogue })
  memory.load(await memory.find(['say', 'change']))
  const loaded = memory.loaded
  const say = { name: 'odd_say', arguments: { text: 'x' } }
  expect(await host.execute(say)).toBe('x')

  await host.execute({ name: 'odd_change', arguments: {} })
  expect((await happened('tools')).text).toBe('The MCP server odd added sing, removed say.')
  expect((await host.catalogue.search('sings a song', 5)).map(({ name }) => name)).toEqual(['odd_sing'])
  expect(host.catalogue.get('odd_say')).toBeNull()
  expect(memory.loaded).toEqual(loaded)
  expect(memory.refusal('odd_say')).toBeNull()
  expect(await message(host.execute(say))).toContain('its server no longer offers odd_say')
})

test('equal names are numbered, and none equals a reserved name', async () => {
  const server = await httpServer({ token: 'x' })
  onTestFinished(() => server.close())
  const odd = { url: server.url, headers: { Authorization: 'Bearer x' } }
  const { host } = await hosting({ 'odd one': odd, odd, odd_one: odd }, ['odd_hang'])
  const [first, second, third] = host.servers.map(({ tools }) => tools)
  expect(first).toContain('odd_one_say')
  expect(second).toContain('odd_hang_2')
  expect(second).toContain('odd_say')
  expect(third).toContain('odd_one_say_2')
  expect(await host.execute({ name: 'odd_one_say_2', arguments: { text: 'third' } })).toBe('third')
})

test('over HTTP a server needs its token; a server that forgot the session gets a new one', async () => {
  const server = await httpServer({ token: 'open sesame' })
  onTestFinished(() => server.close())
  const { host, events } = await hosting({
    right: { url: server.url, headers: { Authorization: 'Bearer ${TOKEN:-open sesame}' } },
    wrong: { url: server.url, headers: { Authorization: 'Bearer guess' } },
  })
  expect(host.servers.map(({ state }) => state)).toEqual(['ready', 'down'])
  expect(events[0]!.text).toBe('The MCP server wrong cannot be started: HTTP 401.')
  const say = () => host.execute({ name: 'right_say', arguments: { text: 'hello' } })
  expect(await say()).toBe('hello')
  await server.forget()
  expect(await say()).toBe('hello')
  expect(events.slice(1).map(({ text }) => text)).toEqual([
    'The MCP server right is down: it no longer knows the session.',
    'The MCP server right was started again.',
  ])
  await server.close()
  expect(await message(say())).toMatch(/^the server right cannot be reached \(fetch failed.*\); the next call tries again\.$/)
  expect(host.servers[0]).toMatchObject({ state: 'down' })
})

test('over HTTP a server that lists no tools is left without a session', async () => {
  const server = await httpServer({ token: 'x', listed: () => 500 })
  onTestFinished(() => server.close())
  const { host } = await hosting({ odd: { url: server.url, headers: { Authorization: 'Bearer x' } } })
  expect(host.servers[0]).toMatchObject({ state: 'down' })
  expect(server.sessions).toBe(0)
})

test.each([
  [413, 'the server odd answered the call of count with HTTP 413.', []],
  [429, 'the server odd answered the call of count with HTTP 429.', []],
  [401, 'the server odd cannot be reached (HTTP 401); the next call tries again.', ['down', 'restarted']],
])('HTTP %i for one call leaves the others alone', async (status, said, kinds) => {
  const { call, slow, events, server } = await besideSlow(() => status)
  expect(await message(call('count'))).toBe(said)
  expect(await slow).toBe('hello')
  expect(await call('say', { text: 'again' })).toBe('again')
  expect(events.map(({ kind }) => kind)).toEqual(kinds)
  await vi.waitFor(() => {
    expect(server.sessions).toBe(1)
  })
})

test('calls that find the session forgotten are repeated in one new session; a call that the server carries out is not ended', async () => {
  let forgets = 2
  const { call, slow, events, server } = await besideSlow(() => (forgets-- > 0 ? 404 : null))
  expect(await Promise.all([call('count'), call('count')])).toEqual(['0', '0'])
  expect(await slow).toBe('hello')
  expect(events.map(({ kind }) => kind)).toEqual(['down', 'restarted'])
  await vi.waitFor(() => {
    expect(server.sessions).toBe(1)
  })
  forgets = 2
  expect(await message(call('count'))).toBe('the server odd answered the call of count with HTTP 404.')
})

test('calls over HTTP do not use fetch, which gives up after five minutes; closing the host ends them', async () => {
  const fetched = vi.spyOn(globalThis, 'fetch')
  onTestFinished(() => {
    fetched.mockRestore()
  })
  const { call, slow, host } = await besideSlow(() => null)
  expect(await call('count')).toBe('0')
  await host.close()
  expect(await slow).toMatch(/^the server odd ended during the call/)
  expect(fetched).not.toHaveBeenCalled()
})

/** Starts a call that takes 300 ms; `statusOf` returns the HTTP status of each call of `count`. */
async function besideSlow(statusOf: () => number | null) {
  const arrived = new AbortController()
  const server = await httpServer({
    token: 'x',
    before: async (tool) => {
      if (tool === 'count') return statusOf()
      arrived.abort()
      await setTimeout(300)
      return null
    },
  })
  onTestFinished(() => server.close())
  const { host, events } = await hosting({ odd: { url: server.url, headers: { Authorization: 'Bearer x' } } })
  const call = (name: string, args: Record<string, unknown> = {}) => host.execute({ name: `odd_${name}`, arguments: args })
  const slow = message(call('say', { text: 'hello' })).then((text) => text.replace('no error: ', ''))
  if (!arrived.signal.aborted) await once(arrived.signal, 'abort')
  return { call, slow, events, server, host }
}

test('client credentials are exchanged for a token at their own authorization server only', async () => {
  const server = await httpServer({ client: { id: 'kvfold', secret: 'hush' } })
  onTestFinished(() => server.close())
  const oauth = { clientId: 'kvfold', clientSecret: 'hush', issuer: server.issuer }
  const { host } = await hosting({
    right: { url: server.url, oauth },
    wrong: { url: server.url, oauth: { ...oauth, clientSecret: 'guess' } },
    elsewhere: { url: server.url, oauth: { ...oauth, issuer: 'https://example.org' } },
  })
  expect(host.servers.map(({ state }) => state)).toEqual(['ready', 'down', 'down'])
  expect(await host.execute({ name: 'right_say', arguments: { text: 'hello' } })).toBe('hello')
  expect(server.granted).toBe(1)
  expect(server.refused).toBeGreaterThan(0)
  expect(host.servers[1]!.problem).toBe('the authorization server refuses the credentials (invalid_client)')
  expect(host.servers[2]!.problem).toMatch(/^Authorization server mismatch/)
})
