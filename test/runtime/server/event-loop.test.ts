/** Tests that no request holds the server's event loop for long: other streams continue meanwhile. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { LONG } from '../../support/long.js'
import { serverProcess, type ServerProcess } from './support/process.js'
import { endless } from './support/serving.js'

/**
 * Limits, in milliseconds of the main thread's CPU time between two turns of the loop, so that other work of the machine does not count.
 * `turns` holds for all but one in a thousand turns, `longest` for all; the longest may include a garbage collection. They are for a
 * machine that parses the server's measure in `MEASURED` milliseconds. A slower machine, or one whose cores are shared, gets more.
 */
const MOST = { turns: 50, longest: 100 }
/** With a store on the disk. SQLite writes, commits and deletes a row of 12 MB in one call each, of up to 60 ms. */
const MOST_STORED = { turns: 80, longest: 150 }
/** What an Intel Xeon of 2026 takes for the measure while its other core is idle. */
const MEASURED = 2

/** Runs in the server before all else. On SIGUSR2 it prints the longest turns since the last signal, and how long it parses the measure. */
const WATCH = `
import { readFileSync } from 'node:fs'
const file = '/proc/' + process.pid + '/task/' + process.pid + '/schedstat'
const used = () => Number(readFileSync(file, 'utf8').split(' ')[0]) / 1e6
let [last, turns] = [used(), []]
const turn = () => {
  const now = used()
  turns.push(now - last)
  last = now
  setTimeout(turn, 1).unref()
}
setTimeout(turn, 1).unref()
const measure = JSON.stringify(Array.from({ length: 8000 }, (_, at) => ({ role: 'user', content: 'Message ' + at })))
const parsing = () => {
  const before = performance.now()
  JSON.parse(measure)
  return performance.now() - before
}
process.on('SIGUSR2', () => {
  const longest = turns.sort((a, b) => b - a).slice(0, 1000)
  const [, , , , median] = Array.from({ length: 9 }, parsing).sort((a, b) => a - b)
  process.stderr.write('turns ' + JSON.stringify({ longest, median }) + '\\n')
  turns = []
  last = used()
})`

const WORDS = 'red stone river light quiet fold blue seven paper window train '
const text = (bytes: number): string => WORDS.repeat(bytes / WORDS.length)
const user = { role: 'user', content: 'Hi' }
const messages = (count: number, say = (index: number) => `Message ${index} says hello.`): object[] =>
  Array.from({ length: count }, (_, index) => ({ role: index % 2 === 0 ? 'user' : 'assistant', content: say(index) }))
/** Returns the JSON of a chat completion with these fields. */
const chat = (fields: object): string => JSON.stringify({ messages: [user], max_tokens: 1, ...fields })
const list = (item: string, count: number): string => `[${`${item},`.repeat(count - 1)}${item}]`
const CHAT = '/v1/chat/completions'
/** Returns a conversation with a call that has these arguments, and its result. */
const called = (args: string, content = 'Done.'): string =>
  chat({
    messages: [
      user,
      { role: 'assistant', tool_calls: [{ id: 'c', type: 'function', function: { name: 'f', arguments: args } }] },
      { role: 'tool', tool_call_id: 'c', content },
    ],
  })
const thought = (bytes: number): string =>
  chat({ messages: [user, { role: 'assistant', content: 'Hello!', reasoning_content: text(bytes) }, user] })
const fields = (count: number, bytes: number): object =>
  Object.fromEntries(Array.from({ length: count }, (_, at) => [`key${at}`, text(bytes)]))
const format = (schema: object): string => chat({ response_format: { type: 'json_schema', json_schema: { schema } } })
const kinds = (count: number): object => ({
  oneOf: Array.from({ length: count }, (_, at) => ({
    type: 'object',
    properties: { kind: { const: `kind${at}` }, value: { type: 'integer' } },
    required: ['kind'],
  })),
})

/** Returns a conversation with as many calls in one message, all with these arguments, and their results. */
const calling = (count: number, args: string): string =>
  chat({
    messages: [
      user,
      {
        role: 'assistant',
        tool_calls: Array.from({ length: count }, (_, at) => ({
          ...{ id: `c${at}`, type: 'function', function: { name: 'f', arguments: args } },
        })),
      },
      ...Array.from({ length: count }, (_, at) => ({ role: 'tool', tool_call_id: `c${at}`, content: 'Done.' })),
    ],
  })
const tools = (count: number, parameters: object, description = ''): string =>
  chat({
    tools: Array.from({ length: count }, (_, at) => ({
      ...{ type: 'function', function: { name: `f${at}`, description, parameters } },
    })),
  })
/** Returns a request to Anthropic's API with tools that a search finds. */
const deferred = (count: number, bytes: number): string =>
  chat({
    tools: [
      { name: 'tool_search_tool_bm25', type: 'tool_search_tool_bm25_20251119' },
      ...Array.from({ length: count }, (_, at) => ({
        ...{ name: `f${at}`, description: text(bytes), input_schema: { type: 'object' }, defer_loading: true },
      })),
    ],
  })

const SHELL = '{"type":"local_shell_call_output","id":"x","output":""}'
/** Returns a conversation with a call of a function in this namespace. */
const inNamespace = (namespace: string): string =>
  JSON.stringify({
    input: [
      { type: 'function_call', call_id: 'c', name: 'f', arguments: '{}', namespace },
      { type: 'function_call_output', call_id: 'c', output: 'Done.' },
    ],
  })
const withGrammar = (grammar: string): string =>
  chat({ grammar, tools: [{ type: 'function', function: { name: 'f', parameters: { type: 'object' } } }] })

/** Returns a request to Anthropic's API with one tool and its results, of which the old ones are cleared. */
const clearing = (count: number, bytes: number): string =>
  chat({
    tools: [{ name: 'f', description: 'Reads.', input_schema: { type: 'object' } }],
    context_management: { edits: [{ type: 'clear_tool_uses_20250919', trigger: { type: 'tool_uses', value: 1 } }] },
    messages: [
      user,
      ...Array.from({ length: count }, (_, at) => [
        { role: 'assistant', content: [{ type: 'tool_use', id: `c${at}`, name: 'f', input: { at } }] },
        { role: 'user', content: [{ type: 'tool_result', tool_use_id: `c${at}`, content: text(bytes) }] },
      ]).flat(),
    ],
  })

type Body = readonly [name: string, path: string, body: () => string, status: number]

const BODIES: readonly Body[] = [
  ['3 MB of text', '/tokenize', () => JSON.stringify({ content: text(3e6) }), 200],
  ['1 MB of text with pieces', '/tokenize', () => JSON.stringify({ content: text(1e6), with_pieces: true }), 200],
  ['2 MB in a message', '/tokenize', () => chat({ messages: [{ role: 'user', content: text(2e6) }] }), 200],
  ['8,001 messages', '/tokenize', () => chat({ messages: messages(8001) }), 200],
  ['half a million tokens', '/detokenize', () => `{"tokens":${list('300', 500_000)}}`, 200],
  ['a million tokens', '/detokenize', () => `{"tokens":${list('300', 1e6)}}`, 200],
  ['2 MB', '/v1/messages/count_tokens', () => chat({ messages: [{ role: 'user', content: text(2e6) }] }), 200],
  ['8,001 messages', '/v1/messages/count_tokens', () => chat({ messages: messages(8001) }), 200],
  ['20,001 messages', '/v1/messages/count_tokens', () => chat({ messages: messages(20_001) }), 200],
  ['500 results to clear', '/v1/messages/count_tokens', () => clearing(500, 256), 200],
  ['500 results to clear', '/v1/messages', () => clearing(500, 256), 400],
  ['8,001 messages', '/apply-template', () => chat({ messages: messages(8001) }), 200],
  ['12 MB that do not fit', CHAT, () => chat({ messages: [{ role: 'user', content: text(12e6) }] }), 400],
  ['2,001 messages of 500 bytes', CHAT, () => chat({ messages: messages(2001, (index) => `${index}${text(500)}`) }), 400],
  ['8,001 short messages', CHAT, () => chat({ messages: messages(8001) }), 400],
  ['99,999 short messages', CHAT, () => chat({ messages: messages(99_999, String) }), 400],
  ['a stop string of 12 MB', CHAT, () => chat({ stop: [text(12e6)] }), 200],
  [
    'a million biases',
    CHAT,
    () => chat({ logit_bias: Object.fromEntries(Array.from({ length: 1e6 }, (_, id) => [id, 1])) }),
    400,
  ],
  ['an unknown field of a million objects', CHAT, () => chat({ unknown: '' }).replace('""', list('{}', 1e6)), 200],
  ['an unknown field of 8 million numbers', CHAT, () => chat({ unknown: '' }).replace('""', list('1', 8e6)), 400],
  [
    'an image of 12 MB',
    CHAT,
    () => chat({ messages: [{ role: 'user', content: [{ type: 'image_url', url: 'A'.repeat(12e6) }] }] }),
    400,
  ],
  ['a call with 8 MB of text', CHAT, () => called(JSON.stringify({ text: text(8e6) })), 400],
  ['a call with 8 MB of escapes', CHAT, () => called(JSON.stringify({ text: '\n"'.repeat(2e6) })), 400],
  [
    'a call with 400,000 arguments',
    CHAT,
    () => called(JSON.stringify(Object.fromEntries(Array.from({ length: 4e5 }, (_, at) => [`key${at}`, at])))),
    400,
  ],
  ['a call with 500,000 long numbers', CHAT, () => called(`{"list":${list('9007199254740993', 5e5)}}`), 400],
  ['a call with 8,000 long numbers', CHAT, () => called(`{"list":${list('9007199254740993', 8000)}}`), 400],
  ['30 calls of 7,000 long numbers', CHAT, () => calling(30, `{"list":${list('9007199254740993', 7000)}}`), 400],
  ['200 calls of 60 KB', CHAT, () => calling(200, JSON.stringify({ text: text(60_000) })), 400],
  ['2,000 calls', CHAT, () => calling(2000, '{"a":1}'), 400],
  ['a thought of 12 MB', CHAT, () => thought(12e6), 200],
  ['a result of 12 MB', CHAT, () => called('{}', text(12e6)), 400],
  ['60,000 fields of metadata', CHAT, () => chat({ metadata: fields(60_000, 180) }), 200],
  ['12 MB of metadata', CHAT, () => chat({ metadata: { text: text(12e6) } }), 200],
  ['12 MB of metadata', '/v1/responses', () => JSON.stringify({ input: 'Hi', metadata: { text: text(12e6) } }), 400],
  ['12 MB of kwargs', CHAT, () => chat({ chat_template_kwargs: { text: text(12e6) } }), 400],
  ['a schema with 8 MB of text', CHAT, () => format({ type: 'object', description: text(8e6) }), 400],
  ['a schema as 8 MB of text', CHAT, () => chat({ guided_json: JSON.stringify({ description: text(8e6) }) }), 400],
  ['a schema of 250 kinds', CHAT, () => format(kinds(250)), 200],
  ['a schema of 100,000 values', CHAT, () => format({ enum: Array.from({ length: 1e5 }, (_, at) => `value${at}`) }), 400],
  [
    '100 tools',
    CHAT,
    () =>
      chat({
        tools: Array.from({ length: 100 }, (_, at) => ({ type: 'function', function: { name: `f${at}`, parameters: kinds(5) } })),
      }),
    200,
  ],
  ['a tool with 8 MB of text', CHAT, () => tools(1, { type: 'object' }, text(8e6)), 400],
  ['a tool with 400,000 values', CHAT, () => tools(1, { enum: Array.from({ length: 4e5 }, (_, at) => `v${at}`) }), 400],
  ['a tool with 8,000 values', CHAT, () => tools(1, { enum: Array.from({ length: 8000 }, (_, at) => `v${at}`) }), 200],
  ['512 tools of 1 KB', CHAT, () => tools(512, { type: 'object' }, text(1000)), 200],
  ['9,999 deferred tools of 500 bytes', '/v1/messages', () => deferred(9999, 500), 200],
  ['8 MB of text and two tokens', '/completion', () => JSON.stringify({ prompt: [1, text(8e6), 2], n_predict: 1 }), 400],
  ['70,000 biases', '/completion', () => `{"prompt":"x","logit_bias":${list('[1,1]', 70_000)}}`, 400],
  ['a bias of 8 MB', '/completion', () => JSON.stringify({ prompt: 'x', logit_bias: [[text(8e6), 1]] }), 400],
  ['a million numbers as 1.0', CHAT, () => chat({ unknown: '' }).replace('""', list('1.0', 1e6)), 400],
  ['12 MB', '/v1/completions', () => JSON.stringify({ prompt: text(12e6), max_tokens: 1 }), 400],
  ['8,001 items', '/v1/responses', () => JSON.stringify({ input: messages(8001) }), 400],
  ['200,000 outputs of a shell', '/v1/responses', () => `{"input":${list(SHELL, 200_000)}}`, 400],
  ['200,000 references', '/v1/responses', () => `{"input":${list('{"type":"item_reference","id":"msg_x_1_0"}', 200_000)}}`, 404],
  ['8,001 messages', '/v1/messages', () => chat({ messages: messages(8001) }), 400],
  ['8,001 messages', '/api/chat', () => JSON.stringify({ model: 'builtin', messages: messages(8001) }), 400],
  ['a namespace of 100,000 underscores', '/v1/responses', () => inNamespace(`${'_'.repeat(100_000)}x`), 400],
  ['a grammar of 100,000 open brackets', CHAT, () => withGrammar('['.repeat(100_000)), 400],
  ['12 MB that are no JSON', CHAT, () => `{"messages":[{"role":"user","content":"${'x'.repeat(12e6)}`, 400],
]

/** Bodies that take a way which another one takes, too: only the long run sends them. */
const REPEATED = new Set([
  'half a million tokens',
  '2,001 messages of 500 bytes',
  '8,001 short messages',
  'a million biases',
  'an unknown field of 8 million numbers',
  'a call with 8 MB of text',
  'a call with 400,000 arguments',
  'a call with 500,000 long numbers',
  '2,000 calls',
  'a thought of 12 MB',
  'a result of 12 MB',
  '12 MB of metadata',
  'a schema as 8 MB of text',
  'a tool with 8 MB of text',
  'a tool with 8,000 values',
  'a bias of 8 MB',
  '8,001 items',
])

/** Bodies whose threads are long: they are tried with a store on the disk, too. */
const STORED = new Set([
  '12 MB that do not fit',
  '8,001 short messages',
  'a call with 8 MB of text',
  '30 calls of 7,000 long numbers',
  'a thought of 12 MB',
  'a result of 12 MB',
  '512 tools of 1 KB',
])

describe.runIf(process.platform === 'linux').each([
  { kept: 'in memory', bodies: BODIES.filter(([name]) => LONG || !REPEATED.has(name)), most: MOST },
  {
    kept: 'on the disk',
    bodies: BODIES.filter(([name]) => STORED.has(name) && (LONG || !REPEATED.has(name))),
    most: MOST_STORED,
  },
])('the event loop of a server that keeps threads $kept', ({ kept, bodies, most }) => {
  let server: ServerProcess
  let said = ''
  const folder = mkdtempSync(join(tmpdir(), 'kvfold-event-loop-'))

  beforeAll(async () => {
    const watch = ['--import', `data:text/javascript,${encodeURIComponent(WATCH)}`]
    server = await serverProcess(['--store', kept === 'in memory' ? 'none' : folder, '--log-level', 'silent'], watch)
    server.child.stderr.on('data', (more: string) => (said += more))
  })
  afterAll(async () => {
    await server.kill()
    rmSync(folder, { recursive: true })
  })

  /** Returns the longest turns since the last call, longest first, and the median time in which the server parses the measure. */
  async function turns(): Promise<{ readonly longest: readonly number[]; readonly median: number }> {
    const before = said.length
    server.child.kill('SIGUSR2')
    for (;;) {
      const told = /turns (\{.*\})\n/.exec(said.slice(before))?.[1]
      if (told !== undefined) return JSON.parse(told) as { longest: number[]; median: number }
      await new Promise((resolve) => server.child.stderr.once('data', resolve))
    }
  }

  const post = (path: string, body: string, signal?: AbortSignal) =>
    fetch(server.url + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body,
      ...(signal === undefined ? {} : { signal }),
    })

  it.each(bodies)('continues while a client sends %s to %s', async (_name, path, body, status) => {
    const sent = body()
    const leave = new AbortController()
    const stream = await post(CHAT, chat({ stream: true, max_tokens: 3000, ...endless }), leave.signal)
    const reader = stream.body!.getReader()
    await reader.read()
    await turns()
    let frames = 0
    const reading = (async () => {
      for (;;) {
        if ((await reader.read()).done) return
        frames++
      }
    })().catch(() => undefined)
    const began = performance.now()
    const answer = await post(path, sent)
    await answer.arrayBuffer()
    const during = frames
    const took = performance.now() - began
    const { longest, median } = await turns()
    const slowness = Math.max(1, median / MEASURED)
    expect(answer.status).toBe(status)
    expect(longest[0]).toBeLessThan(slowness * most.longest)
    expect(longest[Math.ceil(longest.length / 1000)] ?? 0).toBeLessThan(slowness * most.turns)
    expect(during, `pieces of the stream in the ${took.toFixed()} ms of the request`).toBeGreaterThan(0)
    leave.abort()
    await reading
  })

  it.runIf(kept === 'in memory')('continues while a program cuts a long thread with many answers into fragments', async () => {
    const said: object[] = messages(400)
    let thread = ''
    for (let turn = 0; turn < 12; turn++) {
      said.push({ role: 'user', content: `Go on, ${turn}.` })
      const answer = await (await post(CHAT, chat({ messages: said, max_tokens: 8, ...endless }))).json()
      const { choices, kvfold } = answer as { choices: [{ message: object }]; kvfold: { thread: string } }
      said.push(choices[0].message)
      thread = kvfold.thread
    }
    await turns()
    const cut = { startMarker: 'Message 0', endMarker: 'Go on, 11.', numFragments: 1000, role: 'all' }
    const answer = await post(`/kvfold/threads/${thread}/fragments`, JSON.stringify(cut))
    const { fragments } = (await answer.json()) as { fragments: readonly object[] }
    const { longest, median } = await turns()
    expect([answer.status, fragments.length > 420]).toEqual([200, true])
    expect(longest[0]).toBeLessThan(Math.max(1, median / MEASURED) * most.longest)
  })
})
