/** Tests `kvfold mcp` over a real server with the built-in model, through the SDK's client, as an agent would use it. */
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest'
import { contextTools } from '../../../src/runtime/context/tools.js'
import { ServedThread } from '../../../src/runtime/mcp/context-server.js'
import { unnamed } from '../../../src/runtime/server/keys.js'
import { kvfold, KVFOLD } from '../cli/support/process.js'
import { type Serving, serving } from '../server/support/serving.js'

const ROOT = join(import.meta.dirname, '../../..')
const LOG = Array.from({ length: 60 }, (_, at) => `Line ${at}: the build went on.`).join(' ')
const QUESTION = `BEGIN ${LOG} END. What happened?`

let server: Serving
beforeAll(async () => {
  server = await serving({ keys: [unnamed('agent-key'), unnamed('other-key')], logLevel: 'silent' })
})
afterAll(() => server.close())

/** Sends the agent's request. Returns how many tokens its prompt had. */
async function chat(content: string, key = 'agent-key'): Promise<number> {
  const response = await fetch(`${server.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'builtin', messages: [{ role: 'user', content }], max_tokens: 4 }),
  })
  const { usage } = (await response.json()) as { usage: { prompt_tokens: number } }
  return usage.prompt_tokens
}

const environment = () => ({ KVFOLD_URL: server.url, KVFOLD_API_KEY: 'agent-key' })

async function connected(transport: StdioClientTransport | StreamableHTTPClientTransport): Promise<Client> {
  const client = new Client({ name: 'agent', version: '1' })
  await client.connect(transport)
  onTestFinished(() => client.close())
  return client
}

async function call(client: Client, name: string, args: Record<string, unknown>): Promise<{ text: string; failed: boolean }> {
  const { content, isError } = await client.callTool({ name, arguments: args })
  const [part] = content
  return { text: part?.type === 'text' ? part.text : '', failed: isError === true }
}

const overStdio = () =>
  connected(
    new StdioClientTransport({
      command: process.execPath,
      args: [...KVFOLD, 'mcp'],
      cwd: ROOT,
      env: environment(),
    }),
  )

test('an agent folds its own thread over stdio, and its next request shows less', async () => {
  const client = await overStdio()
  const { tools } = await client.listTools()
  expect(tools.map(({ name, description, inputSchema }) => ({ name, description, inputSchema }))).toEqual(
    contextTools.map(({ definition: { name, description, parameters } }) => ({ name, description, inputSchema: parameters })),
  )
  // No request has used this key yet.
  expect((await call(client, 'restore_fragment', { fragment_id: 'f00000' })).text).toMatch(/has no conversation of this key yet/)

  const before = await chat(QUESTION)
  const cut = await call(client, 'fragment_context', { start_marker: 'BEGIN', end_marker: 'END', num_fragments: 2 })
  const [, id = ''] = /first to last: (f[0-9a-z]{5})/.exec(cut.text) ?? []
  expect(cut.text).toMatch(/^Cut message 1 into 2 fragments of about \d+ characters, first to last: f/)
  expect(await call(client, 'fold_fragment', { fragment_id: id })).toEqual({ text: `Folded ${id}.`, failed: false })
  expect(await chat(QUESTION)).toBeLessThan(before * 0.7)

  const found = await call(client, 'search_context', { query: 'Line 3:' })
  expect(found.text).toContain('1 match for "Line 3:" in user messages.')
  expect(found.text).toContain(`in folded fragment ${id}`)
  expect(found.text).toContain('Line 2: the build went on. Line 3: the build went on.')
  const [, hit = ''] = /\((s[0-9a-z]{5})\)/.exec(found.text) ?? []
  expect((await call(client, 'get_search_detail', { search_id: hit, extended_context: 100 })).text).toContain('Line 1: the build')

  expect(await call(client, 'restore_fragment', { fragment_id: id })).toEqual({ text: `Restored ${id}.`, failed: false })
  expect(await chat(QUESTION)).toBe(before)

  // Errors read the same as for a model that has the tools.
  expect(await call(client, 'fold_fragment', { fragment_id: 'f00000' })).toMatchObject({ failed: true })
  expect(await call(client, 'fold_fragment', {})).toEqual({
    text: 'Error: fold_fragment: fragment_id is missing.',
    failed: true,
  })
})

test('a thread can be named, and threads of another key are not found', async () => {
  await chat('Another conversation.', 'other-key')
  const response = await fetch(`${server.url}/kvfold/threads`, { headers: { authorization: 'Bearer other-key' } })
  const { threads } = (await response.json()) as { threads: { id: string }[] }
  const thread = threads[0]!.id
  const search = (key: string) => new ServedThread({ url: server.url, key, thread }).search({ query: 'Another' })
  expect(await search('other-key')).toMatchObject({ ok: true, total: 1 })
  await expect(search('agent-key')).rejects.toMatchObject({ code: 'server/no-thread' })
  await expect(search('guessed')).rejects.toMatchObject({ code: 'remote/unauthorized' })
})

test('a long operation is waited for, longer than fetch waits for an answer, and may be cancelled', async () => {
  await fetch('data:,')
  // Node keeps the settings of `fetch` there. A second stands for its five minutes.
  const kept = globalThis as unknown as Record<symbol, { constructor: new (options: { headersTimeout: number }) => never }>
  const place = Symbol.for('undici.globalDispatcher.1')
  const usual = kept[place]!
  kept[place] = new usual.constructor({ headersTimeout: 1000 })
  const slow = createServer((request, answer) => {
    request.resume()
    void sleep(3000).then(() => answer.end('{"fragment": {"id": "f00000"}}'))
  })
  await once(slow.listen(0, '127.0.0.1'), 'listening')
  onTestFinished(() => {
    kept[place] = usual
    slow.closeAllConnections()
    slow.close()
  })
  const url = `http://127.0.0.1:${(slow.address() as AddressInfo).port}`
  const thread = (signal?: AbortSignal) =>
    new ServedThread({ url, key: null, thread: 't', ...(signal === undefined ? {} : { signal }) })
  await expect(fetch(url)).rejects.toThrow('fetch failed')
  expect(await thread().summarize('f00000', 'all')).toEqual({ ok: true, fragment: { id: 'f00000' } })
  await expect(thread(AbortSignal.timeout(100)).summarize('f00000', 'all')).rejects.toMatchObject({ code: 'engine/cancelled' })
})

test('over HTTP it serves this machine and no web page', async () => {
  await chat(QUESTION)
  const child = spawn(process.execPath, [...KVFOLD, 'mcp', '--port', '0'], {
    cwd: ROOT,
    env: { ...process.env, ...environment() },
  })
  onTestFinished(() => void child.kill('SIGKILL'))
  let said = ''
  for await (const chunk of child.stdout.setEncoding('utf8')) if ((said += String(chunk)).includes('\n')) break
  const url = new URL(/http:\S+/.exec(said)![0])
  const client = await connected(new StreamableHTTPClientTransport(url))
  expect((await client.listTools()).tools).toHaveLength(6)
  expect((await call(client, 'search_context', { query: 'Line 3:' })).text).toContain('1 match')

  const page = await fetch(url, { method: 'POST', headers: { origin: 'https://example.org' } })
  expect(page.status).toBe(403)
  child.kill('SIGTERM')
  expect(await once(child, 'exit')).toEqual([0, null])
})

test('a port that another program has is refused with advice', async () => {
  const { port } = new URL(server.url)
  expect(await kvfold(['mcp', '--port', port])).toMatchObject({
    code: 2,
    stderr: expect.stringContaining(
      `Cannot listen on 127.0.0.1:${port}: another program listens there; choose another port with --port, or 0 for any.`,
    ) as string,
  })
})
