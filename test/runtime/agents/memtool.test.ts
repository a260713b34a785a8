import { expect, test } from 'vitest'
import { type MemToolOptions, MemToolSession } from '../../../src/runtime/agents/memtool.js'
import type { ToolDefinition } from '../../../src/runtime/chat/message.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { type Script, ScriptedEngine } from '../../support/scripted.js'
import { lineOf } from '../../../src/runtime/tools/late-definitions.js'
import { Catalogue } from '../../../src/runtime/tools/catalogue.js'

const tool = (name: string): ToolDefinition => ({
  name,
  description: `The ${name.replace('_', ' of ')} there is.`,
  parameters: { type: 'object', properties: {} },
})
const TOOLS = ['size_moon', 'age_moon', 'size_mars', 'age_mars'].map(tool)

/** Makes a session on a scripted engine with the same tools every time; `execute` answers with the name of the call. */
async function sessionOf(script: Script, options: Partial<MemToolOptions> = {}) {
  const engine = new ScriptedEngine(script)
  const catalogue = await Catalogue.of(TOOLS)
  const session = new MemToolSession({
    ...{ engine, catalogue, id: conversationId('s'), mode: 'autonomous', perKeyword: 1 },
    execute: ({ name }) => `${name} is 7`,
    ...options,
  })
  return { engine, session }
}

const search = (...keywords: string[]) => ({ name: 'search_tools', arguments: { keywords } })
const remove = (...names: string[]) => ({ name: 'remove_tools', arguments: { tool_names: names } })
const results = (session: MemToolSession) => session.conversation.messages.filter(({ role }) => role === 'tool')
const shown = (session: MemToolSession) =>
  session.conversation.messages.map((_, index) => session.conversation.shown(index)).join('\n')

test('a found tool is shown in the result and can be called; removing it folds it away, loading it again shows it in place', async () => {
  const { engine, session } = await sessionOf(
    [
      { calls: [search('size moon', 'age mars')] },
      { calls: [{ name: 'size_moon' }] },
      { content: '7' },
      { calls: [remove('size_moon', 'age_venus'), { name: 'size_moon' }] },
      { content: 'gone' },
      { calls: [search('size moon')] },
      { calls: [{ name: 'size_moon' }] },
      { content: '7' },
    ],
    { generation: { contract: 'splice' } },
  )
  expect((await session.ask('how large')).answer).toBe('7')
  expect(results(session)[0]!.content).toContain('{"name": "size_moon"')
  expect(results(session)[1]!.content).toBe('size_moon is 7')

  await session.ask('remove it')
  expect(results(session)[2]!.content).toBe('1 tool removed: size_moon. 1 of at most 128 tools loaded. Not loaded: "age_venus".')
  expect(results(session)[3]!.content).toContain('size_moon is not loaded now')
  expect(shown(session)).toContain('(size_moon removed)')
  expect(shown(session)).not.toContain('{"name": "size_moon"')
  expect(shown(session)).toContain('{"name": "age_mars"')

  await session.ask('again')
  expect(results(session)[4]!.content).toContain('Shown above again: size_moon.')
  expect(shown(session)).toContain('{"name": "size_moon"')
  expect(results(session)[5]!.content).toBe('size_moon is 7')
  expect(session.memory.counts).toEqual({ added: 3, removed: 1, refused: 0, calledUnloaded: 1 })
  // The arguments of removals are limited to loaded tools; the list at the top never changed.
  const held = engine.requests.map(({ unlisted = [] }) => unlisted.find(({ name }) => name === 'remove_tools')?.parameters)
  expect(held[0]).toBeUndefined()
  expect(held[1]).toMatchObject({ properties: { tool_names: { items: { enum: ['size_moon', 'age_mars', 'all'] } } } })
  expect(new Set(engine.requests.map(({ tools }) => JSON.stringify(tools))).size).toBe(1)
})

test('a keyword with commas, numbered or not, is a list, and one word removes all loaded tools', async () => {
  const { session } = await sessionOf([
    { calls: [search('(a) size of the moon, 2. age of mars.')] },
    { content: 'first' },
    { calls: [remove('all')] },
    { calls: [search(', ')] },
    { content: 'second' },
  ])
  await session.ask('one')
  expect(session.memory.loaded.map(({ definition }) => definition.name)).toEqual(['size_moon', 'age_mars'])
  await session.ask('two')
  expect(session.memory.size).toBe(0)
  expect(results(session)[1]!.content).toBe('2 tools removed. 0 of at most 128 tools loaded.')
  expect(results(session)[2]!.content).toContain('Nothing found for ", ".')
  expect(session.memory.counts).toMatchObject({ added: 2, removed: 2 })
})

test('hybrid mode removes all tools with one word', async () => {
  const { session } = await sessionOf(
    [{ calls: [search('size moon')] }, { content: 'first' }, { content: '{"remove": ["all"]}' }, { content: 'second' }],
    { mode: 'hybrid' },
  )
  await session.ask('one')
  await session.ask('two')
  expect(session.memory.size).toBe(0)
})

test('under exact, a tool that is loaded again is shown anew at the end', async () => {
  const { session } = await sessionOf([
    { calls: [search('size moon')] },
    { calls: [remove('size_moon')] },
    { calls: [search('size moon')] },
    { content: 'ok' },
  ])
  await session.ask('do it')
  expect(results(session).at(-1)!.content).toContain('{"name": "size_moon"')
  expect(shown(session).split('{"name": "size_moon"')).toHaveLength(2)
})

test('a search that would exceed the limit is refused whole', async () => {
  const { session } = await sessionOf(
    [{ calls: [search('size moon')] }, { calls: [search('age moon', 'size mars', 'size moon')] }, { content: 'ok' }],
    { limits: { tools: 2 } },
  )
  await session.ask('do it')
  expect(results(session).at(-1)!.content).toMatch(/^Error: 2 more tools would make 3, and 2 may be loaded. Remove 1 first/)
  expect(session.memory.loaded.map(({ definition }) => definition.name)).toEqual(['size_moon'])
  expect(session.memory.counts.refused).toBe(1)
})

test('hybrid mode asks on a fork which loaded tools to remove, and they stay removed', async () => {
  const { engine, session } = await sessionOf(
    [
      { calls: [search('size moon', 'age moon')] },
      { content: 'first' },
      { content: '{"remove": ["age_moon"]}' },
      { content: 'second' },
    ],
    { mode: 'hybrid' },
  )
  await session.ask('one')
  await session.ask('two')
  const aside = engine.requests[2]!
  expect(aside).toMatchObject({ conversation: 's/aside-1', parent: 's', toolChoice: 'none', kind: 'summary' })
  expect(aside.schema).toMatchObject({ properties: { remove: { items: { enum: ['size_moon', 'age_moon', 'all'] } } } })
  expect(aside.messages.slice(0, -1)).toEqual(engine.requests[1]!.messages.concat({ role: 'assistant', content: 'first' }))
  expect(session.memory.loaded.map(({ definition }) => definition.name)).toEqual(['size_moon'])
  // The question is not part of the conversation.
  expect(session.conversation.messages.map(({ content }) => content).join()).not.toContain('Do not answer')
})

test('hybrid mode asks for removals when a search finds too much', async () => {
  const { session } = await sessionOf(
    [
      { calls: [search('size moon')] },
      { calls: [search('size mars')] },
      { content: '{"remove": ["size_moon"]}' },
      { content: 'done' },
    ],
    { mode: 'hybrid', limits: { tools: 1 } },
  )
  expect((await session.ask('one')).answer).toBe('done')
  expect(session.memory.loaded.map(({ definition }) => definition.name)).toEqual(['size_mars'])
})

/** The most tokens of definitions with which two tools may be loaded, and not three. */
const TWO = { tokens: 2.5 * Math.max(...TOOLS.map((each) => lineOf(each).split(' ').length)) }

test('hybrid mode asks for removals until what a search found fits the limit of tokens', async () => {
  const { engine, session } = await sessionOf(
    [
      { calls: [search('size moon', 'age moon')] },
      { content: 'first' },
      { content: '{"remove": []}' },
      { calls: [search('size mars', 'age mars')] },
      { content: '{"remove": ["size_moon"]}' },
      { content: '{"remove": ["age_moon"]}' },
      { content: 'second' },
    ],
    { mode: 'hybrid', limits: TWO },
  )
  await session.ask('one')
  await session.ask('two')
  expect(session.memory.names).toEqual(['size_mars', 'age_mars'])
  const asides = engine.requests.filter(({ kind }) => kind === 'summary').map(({ messages }) => messages.at(-1)!.content)
  expect(asides.map((asked) => /At least (\d+) of them must go/.exec(asked)?.[1])).toEqual([undefined, '2', '1'])
})

test('hybrid mode does not ask again when nothing is removed, nor at all when no removal makes enough room', async () => {
  const { engine, session } = await sessionOf(
    [
      { calls: [search('size moon', 'age moon')] },
      { calls: [search('size mars', 'age mars')] },
      { content: '{"remove": []}' },
      { calls: [search('size moon', 'age moon', 'size mars')] },
      { content: 'done' },
    ],
    { mode: 'hybrid', limits: TWO },
  )
  await session.ask('one')
  expect(session.memory.names).toEqual(['size_moon', 'age_moon'])
  expect(engine.requests.filter(({ kind }) => kind === 'summary')).toHaveLength(1)
})

test('a found tool that was removed to make room is loaded again, and the result does not say that it stayed', async () => {
  const { session } = await sessionOf(
    [
      { calls: [search('size moon', 'age moon')] },
      { calls: [search('size moon', 'size mars')] },
      { content: '{"remove": ["all"]}' },
      { calls: [{ name: 'size_moon' }] },
      { content: 'done' },
    ],
    { mode: 'hybrid', limits: { tools: 2 } },
  )
  await session.ask('one')
  expect(session.memory.names).toEqual(['size_moon', 'size_mars'])
  expect(results(session)[1]!.content).toMatch(/^2 tools added. 2 of at most 2 tools loaded.\n\{"name": "size_moon"/)
  expect(results(session)[2]!.content).toBe('size_moon is 7')
})

test('workflow mode asks aside for keywords and removals, and the search is part of the conversation', async () => {
  const { session } = await sessionOf(
    [
      { content: '{"keywords": ["age mars"]}' },
      { calls: [{ name: 'age_mars' }] },
      { content: '7' },
      { content: 'no JSON' },
      { content: '{"keywords": []}' },
      { content: 'still' },
    ],
    { mode: 'workflow' },
  )
  expect((await session.ask('how old')).answer).toBe('7')
  const roles = session.conversation.messages.map(({ role }) => role)
  expect(roles).toEqual(['system', 'user', 'assistant', 'tool', 'assistant', 'tool', 'assistant'])
  expect((await session.ask('and now')).answer).toBe('still')
  expect(session.memory.size).toBe(1)
})

test('in the list at the top, loaded tools come after the fixed ones', async () => {
  const { engine, session } = await sessionOf([{ calls: [search('age moon')] }, { content: 'ok' }], { placement: 'list' })
  await session.ask('do it')
  expect(engine.requests.map(({ tools = [] }) => tools.map(({ name }) => name))).toEqual([
    ['search_tools', 'remove_tools'],
    ['search_tools', 'remove_tools', 'age_moon'],
  ])
  expect(results(session)[0]!.content).toBe('1 tool added: age_moon. 1 of at most 128 tools loaded.')
})

test('a rule removes tools that were unused for two turns, without asking', async () => {
  const { session } = await sessionOf(
    [{ calls: [search('size moon')] }, { content: '1' }, { content: '2' }, { content: '3' }, { content: '4' }],
    { mode: 'hybrid', removal: { by: 'unused', turns: 2 } },
  )
  const sizes: number[] = []
  for (const turn of ['a', 'b', 'c', 'd']) {
    await session.ask(turn)
    sizes.push(session.memory.size)
  }
  expect(sizes).toEqual([1, 1, 1, 0])
})

test.each([
  [1, ['c']],
  [2, ['b', 'c']],
  [3, ['a', 'b', 'c']],
])('a history of %i turns shows the newest turn and those before it, %j', async (turns, expected) => {
  const said = (name: string) => `${name} ${'is a long answer '.repeat(20)}`
  const names = ['a', 'b', 'c']
  const { session } = await sessionOf(
    names.map((name) => ({ content: said(name) })),
    { history: { turns, by: 'truncate' } },
  )
  for (const name of names) await session.ask(name)
  expect(names.filter((name) => shown(session).includes(said(name)))).toEqual(expected)
})

test("a session made from another session's state continues it", async () => {
  const script: Script = [{ calls: [search('size moon')] }, { content: '1' }]
  const { session } = await sessionOf(script)
  await session.ask('a')
  const { session: other } = await sessionOf([{ calls: [{ name: 'size_moon' }] }, { content: '2' }], { state: session.state })
  expect((await other.ask('b')).answer).toBe('2')
  expect(results(other).at(-1)!.content).toBe('size_moon is 7')
})
