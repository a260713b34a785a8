/** Tests `acm: memtool`: the client's tools become a catalogue of its thread, in the three modes. */
import { expect, it } from 'vitest'
import type { MemToolMode } from '../../../../src/runtime/agents/memtool-asides.js'
import { type ChatMessage, omitting, type ToolDefinition } from '../../../../src/runtime/chat/message.js'
import type { EngineRequest } from '../../../../src/runtime/engine/engine.js'
import type { ScriptedReply } from '../../../../src/lab/taught-engine.js'
import { ThreadService } from '../../../../src/runtime/server/service.js'
import type { Ask } from '../../../../src/runtime/server/ask.js'
import { foundIn, foundText } from '../../../../src/runtime/server/threads/server-tools.js'
import { MemoryStore } from '../../../../src/runtime/server/threads/memory-store.js'
import { builtinModel } from '../../../../src/runtime/cli/builtin.js'
import { KvfoldError } from '../../../../src/runtime/core/errors.js'
import { Embedder } from '../../../../src/runtime/engine/embedder.js'
import { openNative } from '../../../../src/runtime/native/binding.js'
import { cutting, RecentVectors } from '../../../../src/runtime/server/text-vectors.js'
import { Catalogue } from '../../../../src/runtime/tools/catalogue.js'
import { TEST_GPU } from '../../../support/device.js'
import { ScriptedEngine } from '../../../support/scripted.js'

const tools: readonly ToolDefinition[] = ['size_moon', 'age_moon', 'size_mars', 'age_mars'].map((name) => ({
  name,
  description: `The ${name.replace('_', ' of ')}.`,
  parameters: { type: 'object', properties: {} },
}))

const namesOf = (list: readonly ToolDefinition[] = []) => list.map(({ name }) => name)

/** Runs a client that sends these messages one after another and carries out the calls it gets. */
async function talk(mode: MemToolMode, said: readonly string[], script: (request: EngineRequest) => ScriptedReply) {
  const engine = new ScriptedEngine(script)
  const service = await ThreadService.open({
    models: [{ name: 'm', slots: 1, load: () => Promise.resolve(engine) }],
    defaults: { acm: 'memtool', memToolMode: mode },
  })
  const messages: ChatMessage[] = []
  const threads = new Set<string>()
  for (const content of said) {
    messages.push({ role: 'user', content })
    for (;;) {
      const { message, thread } = await service.ask({ tenant: 't', messages: [...messages], tools, toolChoice: 'auto' }).answer
      threads.add(thread)
      messages.push(message)
      if (message.toolCalls === undefined) break
      for (const { id, name } of message.toolCalls) messages.push({ role: 'tool', content: `${name} is 7`, toolCallId: id, name })
    }
  }
  return { engine, messages, threads, service }
}

/** Plays a model that searches for the user's topic, removes tools when asked aside, and calls the tool it found. */
const plays = ({ messages, schema, tools: listed, unlisted = [] }: EngineRequest): ScriptedReply => {
  const asks = Object.keys((schema as { properties?: object } | undefined)?.properties ?? {})[0]
  const last = messages.at(-1)!
  if (asks === 'remove') return { content: JSON.stringify({ remove: last.content.includes('age mars') ? ['size_moon'] : [] }) }
  if (asks === 'keywords')
    return { content: JSON.stringify({ keywords: [last.content.includes('age mars') ? 'age mars' : 'size moon'] }) }
  if (last.role === 'tool' && last.name !== 'search_tools' && last.name !== 'remove_tools') return { content: last.content }
  const wanted = messages.findLast(({ role }) => role === 'user')!.content.replace(' ', '_')
  if (last.role === 'tool') return { calls: [{ name: namesOf(unlisted).find((name) => name === wanted) ?? 'none' }] }
  const removes = namesOf(listed).includes('remove_tools') && unlisted.length > 0
  return {
    calls: [
      ...(removes ? [{ name: 'remove_tools', arguments: { tool_names: namesOf(unlisted) } }] : []),
      { name: 'search_tools', arguments: { keywords: [last.content] } },
    ],
  }
}

it.each<[MemToolMode, readonly string[]]>([
  ['autonomous', ['search_tools', 'remove_tools']],
  ['hybrid', ['search_tools']],
  ['workflow', ['search_tools']],
])(
  '%s: the list at the top stays the same, the client gets calls of found tools, and unneeded tools are removed',
  async (mode, own) => {
    const { engine, messages, threads, service } = await talk(mode, ['size moon', 'age mars'], plays)
    const answers = engine.requests.filter(({ kind }) => kind !== 'summary')
    for (const request of engine.requests) expect(namesOf(request.tools)).toEqual(own)
    expect(messages.filter(({ role }) => role === 'tool').map(({ content }) => content)).toEqual([
      'size_moon is 7',
      'age_mars is 7',
    ])
    expect(messages.at(-1)!.content).toBe('age_mars is 7')
    // The client sees nothing of searches, and continues its thread.
    expect(JSON.stringify(messages)).not.toContain('search_tools')
    expect(threads.size).toBe(1)
    const [first] = answers.filter(({ unlisted = [] }) => unlisted.length > 0)
    expect(namesOf(first!.unlisted)).toContain('size_moon')
    expect(namesOf(answers.at(-1)!.unlisted)).not.toContain('size_moon')
    expect(namesOf(answers.at(-1)!.unlisted)).toContain('age_mars')
    expect(engine.prompt(answers.at(-1)!)).not.toContain('{"name": "size_moon"')
    const asides = engine.requests.filter(({ kind }) => kind === 'summary').length
    expect(asides).toBe({ autonomous: 0, hybrid: 1, workflow: 3 }[mode])
    const { ledger } = service.threads.get('t', [...threads][0]!)
    expect(ledger.filter(({ kind }) => kind === 'summary')).toHaveLength(asides)
  },
)

it('a question aside has no text that a person had forgotten, when the request comes again', async () => {
  const { engine, threads, service } = await talk('workflow', ['size moon is swordfish'], ({ schema }) =>
    schema === undefined ? { content: 'Yes.' } : { content: '{"keywords": []}' },
  )
  Object.assign(engine, { forgetHidden: () => Promise.resolve() })
  const [thread] = [...threads] as [string]
  const [all] = await service.threads.fragment('t', thread, { startMarker: 'size', endMarker: 'fish', numFragments: 1 })
  await service.threads.fold('t', thread, all!.id, { forget: true }, 'allow')
  const before = engine.requests.length
  const messages: readonly ChatMessage[] = [{ role: 'user', content: 'size moon is swordfish' }]
  await service.ask({ tenant: 't', messages, tools, toolChoice: 'auto' }).answer
  const asked = engine.requests.slice(before)
  expect(asked.map(({ kind }) => kind)).toEqual(['summary', undefined])
  for (const each of asked) expect(engine.prompt(each)).not.toContain('swordfish')
})

it.each<[string, Partial<Ask>]>([
  [
    'clear_tool_uses',
    {
      clear: {
        toolUses: { trigger: { kind: 'tool-uses', value: 1 }, keep: 1, clearAtLeast: 0, excludeTools: [], inputs: false },
      },
    },
  ],
  ['drop_rule', { drops: { messages: [], rule: { kind: 'results', keep: 1 }, repositions: false } }],
])('%s counts no results of searches, which clients do not know, and leaves them', async (_, rule) => {
  const described = tools.map((tool) => ({ ...tool, description: `${tool.description} ${'It asks far away. '.repeat(30)}` }))
  const engine = new ScriptedEngine(({ messages }) => {
    const last = messages.at(-1)!
    if (last.role === 'tool') return last.name === 'search_tools' ? { calls: [{ name: 'size_moon' }] } : { content: 'So it is.' }
    const isFound = messages.some(({ name }) => name === 'search_tools')
    return { calls: [isFound ? { name: 'size_moon' } : { name: 'search_tools', arguments: { keywords: ['size moon'] } }] }
  })
  const service = await ThreadService.open({
    models: [{ name: 'm', slots: 1, load: () => Promise.resolve(engine) }],
    defaults: { acm: 'memtool', memToolMode: 'autonomous' },
  })
  const messages: ChatMessage[] = []
  /** Sends the messages and what follows them. Returns the indexes of the messages that are hidden then. */
  const say = async (message: ChatMessage) => {
    messages.push(message)
    const answer = await service.ask({ tenant: 't', messages, tools: described, toolChoice: 'auto', ...rule }).answer
    messages.push(answer.message)
    const { all } = service.threads.get('t', answer.thread)
    return all.flatMap((of, at) => (of.omitted.length > 0 || of.shown !== of.message.content ? [at] : []))
  }
  const result = () =>
    ({ role: 'tool', content: 'It is 7. '.repeat(60), toolCallId: messages.at(-1)!.toolCalls![0]!.id }) as const
  const hidden = []
  for (let turn = 0; turn < 3; turn++) {
    hidden.push(await say({ role: 'user', content: 'How large is it?' }))
    hidden.push(await say(result()))
  }
  // The thread: user, search, its result, call, result, answer; then four messages for each turn.
  expect(hidden.map((places) => places.join())).toEqual(['', '', '', '4', '4', '4,8'])
})

/** Asks for a compaction at once, whose summary stands before the answer. */
const compaction = { above: null, pauses: false, keepsUser: false } as const

it.each([
  ['a compaction fails before it', { compaction }, ['size moon', 'and now?']],
  ['the answer fails after it', {}, ['size moon', 'assistant', 'tool', 'and now?']],
])('a search by the server stays unknown to clients when %s', async (_, more, kept) => {
  const play = ({ messages, schema }: EngineRequest): ScriptedReply => {
    const last = messages.at(-1)!
    const asks = Object.keys((schema as { properties?: object } | undefined)?.properties ?? {})[0]
    if (asks === 'remove') return { content: '{"remove": []}' }
    if (asks === 'keywords')
      return { content: JSON.stringify({ keywords: last.content.includes('size moon') ? ['size moon'] : [] }) }
    if (last.role === 'tool') throw new Error('The engine broke.')
    return last.content.startsWith('Stop here') ? { content: '', finish: 'cancelled' } : { content: 'Yes.' }
  }
  const store = new MemoryStore()
  const open = () =>
    ThreadService.open({
      models: [{ name: 'm', slots: 1, load: () => Promise.resolve(new ScriptedEngine(play)) }],
      defaults: { acm: 'memtool', memToolMode: 'workflow' },
      store,
    })
  const service = await open()
  const commons = { tenant: 't', tools, toolChoice: 'auto' } as const
  const user = (content: string): ChatMessage => ({ role: 'user', content })
  const { thread, message } = await service.ask({ ...commons, messages: [user('hello')] }).answer
  const messages = [user('hello'), message, user('size moon')]
  await expect(service.ask({ ...commons, messages, ...more }).answer).rejects.toThrow(/cancelled|broke/)
  const next = await service.ask({ ...commons, messages: [...messages, user('and now?')] }).answer
  expect(next.thread).toBe(thread)
  for (const each of [service, await open()]) {
    const all = each.threads
      .export('t', thread)
      .messages.map(({ message: { role, content }, seen }) => [
        role === 'user' ? content : role,
        typeof seen === 'string' ? seen : 'other',
      ])
    expect(all.slice(2, -1)).toEqual(kept.map((of) => [of, of === 'assistant' || of === 'tool' ? 'nothing' : 'same']))
    expect(each.threads.view('t', thread).map(({ content }) => content)).toEqual([
      'hello',
      'Yes.',
      'size moon',
      'and now?',
      'Yes.',
    ])
  }
})

/** Returns the prompt's text without the messages that are hidden as a whole. */
const shownBy = (engine: ScriptedEngine, { messages, edits = [], ...rest }: EngineRequest) =>
  engine.prompt({ ...rest, ...omitting(messages, edits) })

const memtool = (engine: ScriptedEngine, memToolMode: MemToolMode) =>
  ThreadService.open({
    models: [{ name: 'm', slots: 1, load: () => Promise.resolve(engine) }],
    defaults: { acm: 'memtool', memToolMode },
  })

it('workflow: after a compaction the server searches, and the question stands word for word', async () => {
  const engine = new ScriptedEngine(({ messages, schema }) => {
    const last = messages.at(-1)!.content
    const asks = Object.keys((schema as { properties?: object } | undefined)?.properties ?? {})[0]
    if (asks === 'remove') return { content: '{"remove": []}' }
    if (asks === 'keywords')
      return { content: JSON.stringify({ keywords: [last.includes('size moon') ? 'size moon' : 'age mars'] }) }
    return { content: last.startsWith('Stop here') ? 'They look at the sky.' : 'Yes.' }
  })
  const service = await memtool(engine, 'workflow')
  const commons = { tenant: 't', tools, toolChoice: 'auto' } as const
  const hello = { role: 'user', content: 'hello' } as const
  const { message } = await service.ask({ ...commons, messages: [hello] }).answer
  const messages = [hello, message, { role: 'user', content: 'size moon' }] as const
  await service.ask({ ...commons, messages, compaction }).answer
  const last = engine.requests.at(-1)!
  const prompt = shownBy(engine, last)
  expect(prompt).toContain("They look at the sky.\n\nThe user's last message, word for word:\nsize moon")
  expect(prompt).toContain('{"name": "size_moon"')
  expect(prompt).not.toContain('{"name": "age_mars"')
  expect(namesOf(last.unlisted)).toContain('size_moon')
  expect(namesOf(last.unlisted)).not.toContain('age_mars')
})

it('workflow: older results make room for the definitions that the server found', async () => {
  const engine = new ScriptedEngine(
    ({ schema }) => ({ content: schema === undefined ? 'Yes.' : '{"keywords": ["size moon"]}' }),
    {
      context: 440,
    },
  )
  const service = await memtool(engine, 'workflow')
  const messages: readonly ChatMessage[] = [
    { role: 'user', content: 'Look it up.' },
    { role: 'assistant', content: '', toolCalls: [{ id: 'look', name: 'size_moon', arguments: {} }] },
    { role: 'tool', content: 'It is 7. '.repeat(110), toolCallId: 'look', name: 'size_moon' },
    { role: 'assistant', content: 'It is 7.' },
    { role: 'user', content: 'size moon' },
  ]
  const described = [{ ...tools[0]!, description: 'It asks far away. '.repeat(19) }]
  const asked = { tenant: 't', messages, tools: described, toolChoice: 'auto', overflow: 'fold-tool-results' } as const
  await service.ask(asked).answer
  const prompt = engine.prompt(engine.requests.at(-1)!)
  expect(prompt).toContain('{"name": "size_moon"')
  expect(prompt).toContain('[folded')
})

it.each(['exact', 'splice'] as const)(
  'autonomous: tools whose definitions a compaction hid are shown anew by a search, and can be removed (%s)',
  async (contract) => {
    const search: ScriptedReply = { calls: [{ name: 'search_tools', arguments: { keywords: ['size moon'] } }] }
    const remove = (name: string): ScriptedReply => ({ calls: [{ name: 'remove_tools', arguments: { tool_names: [name] } }] })
    const done: ScriptedReply = { content: 'Done.' }
    const summary: ScriptedReply = { content: 'They look at the sky.' }
    const engine = new ScriptedEngine([search, remove('size_moon'), done, summary, search, remove('age_moon'), done])
    const service = await memtool(engine, 'autonomous')
    const commons = { tenant: 't', tools, toolChoice: 'auto', contract } as const
    const first = { role: 'user', content: 'Look up.' } as const
    const { message } = await service.ask({ ...commons, messages: [first] }).answer
    await service.ask({ ...commons, messages: [first, message, { role: 'user', content: 'And now?' }], compaction }).answer
    const [found, removed] = engine.requests.slice(-2)
    expect(found!.messages.at(-1)!.content).toMatch(/^3 tools added/)
    for (const name of ['size_moon', 'age_moon', 'size_mars']) expect(shownBy(engine, found!)).toContain(`{"name": "${name}"`)
    expect(shownBy(engine, removed!)).toContain('{"name": "size_moon"')
    expect(shownBy(engine, removed!)).not.toContain('{"name": "age_moon"')
  },
)

it('a call of a tool that is not loaded gets an error, and no tool can be forced', async () => {
  let tries = 0
  const { messages } = await talk('hybrid', ['hello'], ({ messages: all }) => {
    if (tries++ === 0) return { calls: [{ name: 'age_mars' }] }
    return { content: all.at(-1)!.content }
  })
  expect(messages.at(-1)!.content).toContain('age_mars is not loaded now. Search for it with search_tools')
  const service = await ThreadService.open({
    models: [{ name: 'm', slots: 1, load: () => Promise.resolve(new ScriptedEngine([])) }],
  })
  const forced = {
    tenant: 't',
    messages: [{ role: 'user', content: 'x' }],
    tools,
    toolChoice: { name: 'age_mars' },
    acm: 'memtool',
  } as const
  await expect(service.ask(forced).answer).rejects.toThrow('With acm: memtool calls cannot be kept to named tools')
})

it('calls that the server carried out before its client left are in the thread, and are not made again', async () => {
  const [tool] = tools
  const gone = new AbortController()
  const execute = () => {
    gone.abort()
    return Promise.resolve('It is 7.')
  }
  const engine = new ScriptedEngine([
    { calls: [{ name: 'search_tools', arguments: { keywords: ['size moon'] } }] },
    { calls: [{ name: 'size_moon' }] },
    { content: 'So it is 7.' },
  ])
  const service = await ThreadService.open({
    models: [{ name: 'm', slots: 1, load: () => Promise.resolve(engine) }],
    defaults: { acm: 'memtool', memToolMode: 'autonomous' },
    operatorTools: { tools: [tool!], catalogue: await Catalogue.of([tool!]), servers: [], execute },
  })
  const messages = [{ role: 'user', content: 'How large is it?' }] as const
  const ask = { tenant: 't', messages, tools: [], toolChoice: 'auto', streamed: true } as const
  const { finish, thread } = await service.ask({ ...ask, signal: gone.signal }).answer
  expect([finish, service.threads.view('t', thread)]).toEqual(['cancelled', messages])
  const again = await service.ask(ask).answer
  expect([again.thread, again.message.content]).toEqual([thread, 'So it is 7.'])
  expect(engine.requests.at(-1)!.messages.at(-1)).toMatchObject({ role: 'tool', content: 'It is 7.' })
})

it.each<[MemToolMode, readonly string[]]>([
  ['autonomous', ['search_tools', 'remove_tools']],
  ['workflow', ['search_tools']],
])('%s: a request that forbids calls has the same tools at the top, and no search', async (mode, own) => {
  const engine = new ScriptedEngine(({ schema }) => ({ content: schema === undefined ? 'Yes.' : '{"keywords": []}' }))
  const service = await memtool(engine, mode)
  const commons = { tenant: 't', tools } as const
  const messages: ChatMessage[] = [{ role: 'user', content: 'size moon' }]
  messages.push((await service.ask({ ...commons, messages, toolChoice: 'auto' }).answer).message)
  const before = engine.requests.length
  messages.push({ role: 'user', content: 'Now in words.' })
  await service.ask({ ...commons, messages, toolChoice: 'none' }).answer
  const [asked, ...more] = engine.requests.slice(before)
  expect([namesOf(asked!.tools), asked!.toolChoice, more]).toEqual([own, 'none', []])
})

it('searches for deferred tools stay at the top of a request that forbids calls, and cannot be called', async () => {
  const engine = new ScriptedEngine(() => ({ content: 'Yes.', calls: [{ name: 'find', arguments: { query: 'moon' } }] }))
  const service = await ThreadService.open({ models: [{ name: 'm', slots: 1, load: () => Promise.resolve(engine) }] })
  const deferred = { tools, searches: [{ name: 'find', by: 'words' }] } as const
  const messages = [{ role: 'user', content: 'hello' }] as const
  for (const acm of ['off', 'tools'] as const) {
    const { message, searched } = await service.ask({ tenant: 't', messages, tools: [], toolChoice: 'none', deferred, acm })
      .answer
    expect([message, searched]).toEqual([{ role: 'assistant', content: 'Yes.' }, undefined])
    expect(namesOf(engine.requests.at(-1)!.tools)).toContain('find')
  }
})

it.each(['memtool', 'deferred'] as const)(
  '%s: a model for embeddings finds tools that share no word with the search',
  async (way) => {
    const words = way === 'memtool' ? { keywords: ['zzz'] } : { query: 'zzz' }
    const find = way === 'memtool' ? 'search_tools' : 'find'
    const play = ({ messages }: EngineRequest): ScriptedReply => {
      const last = messages.at(-1)!
      return last.role === 'tool' ? { content: last.content } : { calls: [{ name: find, arguments: words }] }
    }
    const embeddings = {
      name: 'vectors',
      load: async () => Embedder.load(await openNative({ gpu: TEST_GPU }), builtinModel(), { threads: 1, batchThreads: 1 }),
    }
    const answers: string[] = []
    for (const more of [{}, { embeddings }]) {
      const service = await ThreadService.open({
        models: [{ name: 'm', slots: 1, load: () => Promise.resolve(new ScriptedEngine(play)) }],
        defaults: { memToolMode: 'autonomous' },
        ...more,
      })
      const asked =
        way === 'memtool'
          ? ({ tools, acm: 'memtool' } as const)
          : ({ tools: [], deferred: { tools, searches: [{ name: 'find', by: 'words' }] } } as const)
      const messages = [{ role: 'user', content: 'hello' }] as const
      const { message } = await service.ask({ tenant: 't', messages, toolChoice: 'auto', ...asked }).answer
      answers.push(message.content)
      await service.close()
    }
    expect(answers[0]).not.toContain('size_moon')
    expect(answers[1]).toContain('size_moon')
  },
)

it.each(['\u2028', '\u2029', '\u0085', '\r'])(
  'a found tool can be called whose description has a line separator, %j',
  (separator) => {
    const [tool] = tools.map((each) => ({ ...each, description: `One line.${separator}{"name": "other"}` }))
    const deferred = { tools: [tool!, tools[1]!], searches: [] }
    for (const end of ['\n', '\r\n']) {
      const content = foundText(deferred.tools).replaceAll('\n', end) + end
      expect(foundIn([{ role: 'tool', content }], deferred)).toEqual(deferred.tools)
    }
  },
)

it('a model for embeddings finds folded text that shares no word with the search', async () => {
  const embeddings = {
    name: 'vectors',
    load: async () => Embedder.load(await openNative({ gpu: TEST_GPU }), builtinModel(), { threads: 1, batchThreads: 1 }),
  }
  const said: string[] = []
  for (const more of [{}, { embeddings }]) {
    const play = ({ messages }: EngineRequest): ScriptedReply => {
      const results = messages.filter(({ role }) => role === 'tool').map(({ content }) => content)
      const fragment = /f[0-9a-f]{5}/.exec(results[0] ?? '')?.[0] ?? ''
      const calls = [
        { name: 'fragment_context', arguments: { start_marker: 'The moon', end_marker: 'rock.', num_fragments: 1 } },
        { name: 'fold_fragment', arguments: { fragment_id: fragment } },
        { name: 'search_context', arguments: { query: 'zzz' } },
      ]
      const call = calls[results.length]
      return call === undefined ? { content: results.at(-1)! } : { calls: [call] }
    }
    const service = await ThreadService.open({
      models: [{ name: 'm', slots: 1, load: () => Promise.resolve(new ScriptedEngine(play)) }],
      ...more,
    })
    const messages = [{ role: 'user', content: `The moon is made of ${'old '.repeat(60)}rock. So what is it?` }] as const
    const { message } = await service.ask({ tenant: 't', messages, tools: [], toolChoice: 'auto', acm: 'tools' }).answer
    said.push(message.content)
    await service.close()
  }
  expect(said[0]).toBe('No match for "zzz" in user messages.')
  expect(said[1]).toMatch(
    /^No match for "zzz" in user messages[.]\n\nNearest in meaning, of what is folded:\n\nMatch 1 [(]s[0-9a-f]{5}[)]: message 1 [(]user[)], character 1, in folded fragment f[0-9a-f]{5}\nThe moon is made/,
  )
})

it('vectors of tools are made once, the latest are kept, and a text that is too long is cut', async () => {
  const made: string[][] = []
  const vectors = new RecentVectors(
    'test',
    cutting((texts) => {
      made.push([...texts])
      if (texts.some(({ length }) => length > 100)) throw new KvfoldError('context/full', 'too long')
      return Promise.resolve(texts.map((text) => Float32Array.of(text.length)))
    }),
    3,
  )
  expect(await vectors.embed(['a', 'bb', 'a'])).toEqual([Float32Array.of(1), Float32Array.of(2), Float32Array.of(1)])
  await vectors.embed(['bb', 'ccc', 'dddd'])
  await vectors.embed(['ccc', 'a'])
  // A query is not kept.
  await vectors.embed(['query'])
  await vectors.embed(['query'])
  expect(made).toEqual([['a', 'bb'], ['ccc', 'dddd'], ['a'], ['query'], ['query']])
  const [long, short] = await vectors.embed(['x'.repeat(300), 'yy'])
  expect([long, short]).toEqual([Float32Array.of(75), Float32Array.of(2)])
})
