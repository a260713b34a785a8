import { beforeEach, describe, expect, it } from 'vitest'
import { Conversation } from '../../../src/runtime/context/conversation.js'
import { portsOf } from '../../../src/runtime/context/ports.js'
import { contextTools, type ToolOutcome } from '../../../src/runtime/context/tools.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { readJson } from '../../../src/runtime/core/written-json.js'
import { ScriptedEngine } from '../../support/scripted.js'

/** The tools' constraints as their source gives them (Sculptor, appendix H), without descriptions. */
const role = { type: 'string', enum: ['user', 'assistant', 'all'], default: 'user' }
const constraints = {
  fragment_context: {
    required: ['start_marker', 'end_marker'],
    properties: {
      start_marker: { type: 'string' },
      end_marker: { type: 'string' },
      num_fragments: { type: 'integer', default: 5, minimum: 1, maximum: 20 },
      role,
    },
  },
  fold_fragment: { required: ['fragment_id'], properties: { fragment_id: { type: 'string' } } },
  restore_fragment: { required: ['fragment_id'], properties: { fragment_id: { type: 'string' } } },
  summarize_fragment: {
    required: ['fragment_id', 'focus'],
    properties: { fragment_id: { type: 'string' }, focus: { type: 'string' } },
  },
  search_context: {
    required: ['query'],
    properties: {
      query: { type: 'string' },
      role,
      max_results: { type: 'integer', default: 10, minimum: 1, maximum: 50 },
      context_size: { type: 'integer', default: 200, minimum: 50, maximum: 1000 },
    },
  },
  get_search_detail: {
    required: ['search_id'],
    properties: {
      search_id: { type: 'string' },
      extended_context: { type: 'integer', default: 500, minimum: 100, maximum: 2000 },
    },
  },
}

/** Returns a schema without the parts that the source leaves open. */
const bare = (schema: object): unknown =>
  JSON.parse(
    JSON.stringify(schema, (key, value: unknown) => (key === 'description' && typeof value === 'string' ? undefined : value)),
  )

describe('the six tools', () => {
  it('have the names, parameters, defaults, bounds and order of their source', () => {
    const definitions = Object.fromEntries(contextTools.map(({ definition }) => [definition.name, bare(definition.parameters)]))
    const expected = Object.entries(constraints).map(([name, rest]) => [
      name,
      { type: 'object', additionalProperties: false, ...rest },
    ])
    expect(definitions).toEqual(Object.fromEntries(expected))
    expect(Object.keys(definitions)).toEqual(Object.keys(constraints))
    for (const { definition } of contextTools)
      expect(Object.keys(definition.parameters['properties'] as object)).toEqual(
        Object.keys(constraints[definition.name as keyof typeof constraints].properties),
      )
  })

  it('describe themselves and every parameter', () => {
    for (const { definition } of contextTools) {
      expect(definition.description.length).toBeGreaterThan(40)
      for (const property of Object.values(definition.parameters['properties'] as Record<string, { description?: string }>))
        expect(property.description?.length).toBeGreaterThan(10)
    }
  })
})

describe('calls', () => {
  let conversation: Conversation
  let engine: ScriptedEngine

  beforeEach(() => {
    engine = new ScriptedEngine([{ content: 'Nothing but numbers.' }, { content: '' }])
    const id = conversationId('tools')
    conversation = new Conversation(id, portsOf(engine, id))
    conversation.add({ role: 'system', content: 'Count.' })
    conversation.add({
      role: 'user',
      content: `Start: ${Array.from({ length: 60 }, (_, at) => `number ${at};`).join(' ')} Stop.`,
    })
    conversation.add({ role: 'assistant', content: 'Counted Start: yes.' })
    conversation.add({ role: 'user', content: 'Second Start: again Stop.' })
  })

  const call = (name: string, args: Record<string, unknown>): Promise<ToolOutcome> => {
    const tool = contextTools.find(({ definition }) => definition.name === name)
    if (tool === undefined) throw new Error(`There is no tool ${name}.`)
    return tool.run(conversation, args)
  }
  const fragment = (args: Record<string, unknown> = {}) =>
    call('fragment_context', { start_marker: 'Start:', end_marker: 'Stop.', ...args })
  const ids = () => conversation.fragments.map(({ id }) => id)

  it('cut, fold, restore and summarize with the texts that the built-in model knows', async () => {
    const cut = await fragment({ num_fragments: 3 })
    const [first, second, third] = ids()
    expect(cut).toEqual({
      text: `Cut message 2 into 3 fragments of about 221 characters, first to last: ${first}, then ${second} and last ${third}.`,
      modifies: true,
      failed: false,
      ledger: [],
    })
    expect(await call('fold_fragment', { fragment_id: first })).toMatchObject({
      text: `Folded ${first}.`,
      modifies: true,
      failed: false,
    })
    expect(await call('restore_fragment', { fragment_id: first })).toMatchObject({ text: `Restored ${first}.`, modifies: true })
    const summarized = await call('summarize_fragment', { fragment_id: second, focus: 'kind' })
    expect(summarized).toMatchObject({ text: `Summarized ${second}.`, modifies: true, ledger: [{ kind: 'summary' }] })
    const size = conversation.text(conversation.fragments[1]!).length
    expect(conversation.shown(1)).toContain(
      `[summary of ${second}, ${size} characters, restore_fragment shows them: Nothing but numbers.]`,
    )
  })

  it('use the default number of fragments, and write one fragment in the singular', async () => {
    await fragment()
    expect(ids()).toHaveLength(5)
    const one = await call('fragment_context', { start_marker: 'Sec', end_marker: 'ond', num_fragments: 1 })
    expect(one.text).toBe(`Cut message 4 into 1 fragment of about 6 characters: ${ids().at(-1)}.`)
  })

  it('say when there are more or fewer fragments than requested', async () => {
    const more = await call('fragment_context', {
      start_marker: 'number 58',
      end_marker: 'Second',
      num_fragments: 1,
      role: 'all',
    })
    expect(more.text.split('\n')).toEqual([
      `Cut message 2 into 1 fragment of about 28 characters: ${ids()[0]}.`,
      `Cut message 3 into 1 fragment of about 19 characters: ${ids()[1]}.`,
      `Cut message 4 into 1 fragment of about 6 characters: ${ids()[2]}.`,
      'That is more than the 1 asked for: the markers are in different messages, and each gets one at least.',
    ])
    const fewer = await call('fragment_context', { start_marker: 'Start:', end_marker: 'number 0', num_fragments: 20 })
    expect(fewer.text).toMatch(
      /^Cut message 2 into 3 fragments .*\nThat is fewer than the 20 asked for: the text is too short\.$/u,
    )
  })

  it.each([
    ['fragment_context', { start_marker: 'Start:' }, 'fragment_context: end_marker is missing.'],
    [
      'fragment_context',
      { start_marker: 'Start:', end_marker: 'Stop.', num_fragments: 21 },
      'num_fragments must be at most 20, not 21.',
    ],
    [
      'fragment_context',
      { start_marker: 'Start:', end_marker: 'Stop.', num_fragments: 0 },
      'num_fragments must be at least 1, not 0.',
    ],
    [
      'fragment_context',
      { start_marker: 'Start:', end_marker: 'Stop.', num_fragments: 2.5 },
      'num_fragments must be a whole number, not 2.5.',
    ],
    [
      'fragment_context',
      { start_marker: 'Start:', end_marker: 'Stop.', role: 'tool' },
      'role must be one of "user", "assistant", "all", not "tool".',
    ],
    ['fragment_context', { start_marker: 'Start:', end_marker: 'nowhere' }, 'end_marker "nowhere" is not in the user messages.'],
    ['fold_fragment', { id: 'f12345' }, 'fragment_id is missing. id is not known here; the arguments are fragment_id.'],
    ['fold_fragment', { fragment_id: 5 }, 'fragment_id must be a string, not 5.'],
    ['fold_fragment', { fragment_id: 'f12345' }, 'There is no fragment "f12345".'],
    ['restore_fragment', { fragment_id: 'f12345' }, 'There is no fragment "f12345".'],
    ['summarize_fragment', { fragment_id: 'f12345', focus: 'x' }, 'There is no fragment "f12345".'],
    ['summarize_fragment', { fragment_id: 'f12345' }, 'focus is missing.'],
    ['search_context', { query: '' }, 'query is empty.'],
    ['search_context', { query: 'a', max_results: 51 }, 'max_results must be at most 50, not 51.'],
    [
      'search_context',
      readJson('{"query":"a","max_results":9007199254740993}') as Record<string, unknown>,
      'max_results must be at most 50, not 9007199254740993.',
    ],
    ['search_context', { query: 'a', context_size: 49 }, 'context_size must be at least 50, not 49.'],
    ['get_search_detail', { search_id: 's12345' }, 'There is no search result "s12345".'],
    ['get_search_detail', { search_id: 's12345', extended_context: 2001 }, 'extended_context must be at most 2000, not 2001.'],
  ])('%s(%j) changes nothing and says how to go on', async (name, args, message) => {
    await call('fragment_context', { start_marker: 'number 10', end_marker: 'number 20' })
    const before = conversation.snapshot()
    const outcome = await call(name, args)
    expect(outcome.text).toMatch(/^Error: /u)
    expect(outcome.text).toContain(message)
    expect(outcome).toMatchObject({ failed: true, modifies: false, ledger: [] })
    expect(conversation.snapshot()).toEqual(before)
  })

  it('refuse repeated operations and overlaps', async () => {
    await fragment({ num_fragments: 2 })
    const [first, second] = ids()
    await call('fold_fragment', { fragment_id: first })
    const before = conversation.snapshot()
    expect((await call('fold_fragment', { fragment_id: first })).text).toBe(
      `Error: ${first} is already folded. restore_fragment shows it again.`,
    )
    expect((await call('restore_fragment', { fragment_id: second })).text).toContain(`Error: ${second} is open`)
    expect((await fragment()).text).toContain(
      `Error: Between these markers there are fragments already: ${first} (folded) and ${second} (open).`,
    )
    expect(conversation.snapshot()).toEqual(before)
  })

  it('find text wherever it is', async () => {
    await fragment({ num_fragments: 2 })
    const [first] = ids()
    await call('fold_fragment', { fragment_id: first })
    const found = await call('search_context', { query: 'number 1;', context_size: 50 })
    const id = conversation.snapshot().searches[0]?.id ?? ''
    expect(found).toEqual({
      text: `1 match for "number 1;" in user messages.\n\nMatch 1 (${id}): message 2 (user), character 18, in folded fragment ${first}\nStart: number 0; number 1; number 2; number 3; number 4; number 5; number 6;...`,
      modifies: false,
      failed: false,
      ledger: [],
    })
    const more = await call('get_search_detail', { search_id: id, extended_context: 100 })
    expect(more.text).toMatch(
      new RegExp(
        `^${id}: message 2 \\(user\\), character 18, in folded fragment ${first}\\nStart: number 0; .* number 10; .*\\.\\.\\.$`,
        'u',
      ),
    )
    const many = await call('search_context', { query: 'number', max_results: 2 })
    expect(many.text).toContain('60 matches for "number" in user messages, the first 2 of them here.')
    const [, second] = ids()
    await call('summarize_fragment', { fragment_id: second, focus: 'all' })
    expect((await call('search_context', { query: 'number 59' })).text).toContain(`in summarized fragment ${second}`)
    conversation.omit([{ message: 1, omits: { part: 'message' } }])
    expect((await call('search_context', { query: 'number 59' })).text).toContain(
      'character 647, hidden with the whole message\n',
    )
  })

  it('give hints after a search without a match', async () => {
    expect((await call('search_context', { query: 'NUMBER 1;' })).text).toBe(
      'No match for "NUMBER 1;" in user messages. Upper and lower case aside there would be 1 match: use the exact spelling.',
    )
    expect((await call('search_context', { query: 'Counted' })).text).toBe(
      'No match for "Counted" in user messages. Other messages have 1 match: search with role "all".',
    )
    expect(await call('search_context', { query: 'xyz', role: 'all' })).toMatchObject({
      text: 'No match for "xyz" in messages.',
      failed: false,
    })
  })
})
