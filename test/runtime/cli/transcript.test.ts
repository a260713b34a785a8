/** Tests transcripts that people write by hand: the messages they become, and the errors in them. */
import { describe, expect, it } from 'vitest'
import { parseTranscript, readRecorded } from '../../../src/runtime/cli/transcript.js'

const messages = [
  { role: 'developer', content: 'You help.' },
  {
    role: 'user',
    content: [
      { type: 'text', text: 'one two ' },
      { type: 'text', text: 'three two' },
    ],
  },
  {
    role: 'assistant',
    content: null,
    tool_calls: [
      { id: 'a', type: 'function', function: { name: 'look', arguments: '{"at":1}' } },
      { id: 'b', type: 'function', function: { name: 'look', arguments: 'at 1' } },
    ],
  },
  { role: 'tool', tool_call_id: 'a', content: 'Nothing.' },
]
const parse = (change: object = {}) => parseTranscript(JSON.stringify({ messages, folds: [{ message: 1 }], ...change }), 'x.json')

describe('a transcript', () => {
  it("becomes kvfold's messages and tools", () => {
    const parameters = { type: 'object', properties: {} }
    const tools = [{ type: 'function', function: { name: 'look', description: 'Looks.', parameters } }]
    expect(parse({ tools })).toMatchObject({
      messages: [
        { role: 'system', content: 'You help.' },
        { role: 'user', content: 'one two three two' },
        {
          role: 'assistant',
          content: '',
          toolCalls: [
            { id: 'a', name: 'look', arguments: { at: 1 } },
            { id: 'b', name: 'look', arguments: {}, malformed: 'at 1' },
          ],
        },
        { role: 'tool', content: 'Nothing.', toolCallId: 'a' },
      ],
      tools: [{ name: 'look', description: 'Looks.', parameters }],
    })
  })

  it('folds from the first match to the next one after it, or to the ends', () => {
    const stretch = (fold: object) => parse({ folds: [{ message: 1, ...fold }] }).folds[0]!.span
    expect(stretch({})).toEqual({ start: 0, end: 17 })
    expect(stretch({ from: 'two' })).toEqual({ start: 4, end: 17 })
    expect(stretch({ to: 'two' })).toEqual({ start: 0, end: 7 })
    expect(stretch({ from: 'two', to: 'two' })).toEqual({ start: 4, end: 17 })
    expect(parse({ folds: [{ message: 1, summary: 'Numbers.' }] }).folds[0]!.summary).toBe('Numbers.')
  })

  it('is refused with the error', () => {
    for (const [change, why] of [
      [{ folds: [] }, /x\.json cannot be used: folds: /],
      [{ messages: [{ role: 'robot', content: 'x' }] }, /messages\.0 has the unknown role "robot"/],
      [{ folds: [{ message: 9 }] }, /folds\.0: there is no message 9; the first is 0, the last 3/],
      [{ folds: [{ message: 1, from: 'nowhere' }] }, /message 1 does not contain "nowhere"/],
      [{ folds: [{ message: 1, from: 'three', to: 'one' }] }, /does not contain "one" after/],
      [{ folds: [{ message: 2 }] }, /message 2 is empty/],
      [{ folds: [{ message: 1, start: 3 }] }, /folds\.0: .*start/],
    ] as const)
      expect(() => parse(change)).toThrow(why)
    expect(() => parseTranscript('{', 'x.json')).toThrow(/it is not JSON/)
    expect(() => parseTranscript('{}', 'x.json')).toThrow(/cannot be used: it has no messages/)
    expect(() => parseTranscript('{"messages":[]}', 'x.json')).toThrow(/cannot be used: messages is empty/)
    expect(() => parseTranscript('{"role":"user","content":"a"}\nx', 'x.json')).toThrow(/line 2 is not a JSON object/)
    expect(() => parseTranscript('', 'x.json')).toThrow(/it is empty/)
  })
})

// One conversation in every recorded form: each must give the same messages.

const MESSAGES = [
  { role: 'system', content: 'You help.' },
  { role: 'user', content: 'What is in a.txt?' },
  { role: 'assistant', content: 'I look.', toolCalls: [{ id: 'c1', name: 'read', arguments: { path: 'a.txt' } }] },
  { role: 'tool', content: 'Apples.', toolCallId: 'c1' },
  { role: 'user', content: 'Thanks.' },
]
const parameters = { type: 'object', properties: { path: { type: 'string' } } }
const TOOLS = [{ name: 'read', description: 'Reads.', parameters }]

const args = '{"path":"a.txt"}'
const chat = {
  messages: [
    { role: 'developer', content: 'You help.' },
    { role: 'user', content: [{ type: 'text', text: 'What is in a.txt?' }] },
    {
      role: 'assistant',
      content: 'I look.',
      tool_calls: [{ id: 'c1', type: 'function', function: { name: 'read', arguments: args } }],
    },
    { role: 'tool', tool_call_id: 'c1', content: 'Apples.' },
    { role: 'user', content: 'Thanks.' },
  ],
  tools: [{ type: 'function', function: { name: 'read', description: 'Reads.', parameters } }],
}
const use = { type: 'tool_use', id: 'c1', name: 'read', input: { path: 'a.txt' } }
const result = { type: 'tool_result', tool_use_id: 'c1', content: [{ type: 'text', text: 'Apples.' }] }
const anthropic = {
  system: [{ type: 'text', text: 'You help.' }],
  messages: [
    { role: 'user', content: 'What is in a.txt?' },
    { role: 'assistant', content: [{ type: 'thinking', thinking: 'Hm.' }, { type: 'text', text: 'I look.' }, use] },
    {
      role: 'user',
      content: [result, { type: 'text', text: 'Thanks.', cache_control: { type: 'ephemeral' } }],
    },
  ],
  tools: [{ name: 'read', description: 'Reads.', input_schema: parameters }],
}
const items = [
  { type: 'message', role: 'user', content: [{ type: 'input_text', text: 'What is in a.txt?' }] },
  { type: 'reasoning', summary: [] },
  { type: 'message', role: 'assistant', content: [{ type: 'output_text', text: 'I look.' }] },
  { type: 'function_call', name: 'read', arguments: args, call_id: 'c1' },
  { type: 'function_call_output', call_id: 'c1', output: 'Apples.' },
  { type: 'message', role: 'user', content: [{ type: 'input_text', text: 'Thanks.' }] },
]
const responses = {
  instructions: 'You help.',
  input: items,
  tools: [{ type: 'function', name: 'read', description: 'Reads.', parameters }],
}
const exported = {
  format: 'kvfold-thread/1',
  id: 't',
  tools: TOOLS,
  messages: MESSAGES.map((message) => ({ message, seen: 'same' })),
}
const system = { type: 'message', role: 'developer', content: [{ type: 'input_text', text: 'You help.' }] }
const sealed = { encrypted_content: 'x' }
const tooling = { type: 'additional_tools', role: 'developer', tools: [{ type: 'function', name: 'read', parameters }] }
const search = { type: 'tool_search_call', call_id: 's1', execution: 'client', arguments: {} }
const found = { type: 'tool_search_output', call_id: 's1', status: 'completed', execution: 'client', tools: [] }
const codex = [
  { type: 'session_meta', payload: { id: 's' } },
  { type: 'response_item', payload: { type: 'message', role: 'user', content: 'Forgotten.' } },
  { type: 'compacted', payload: { message: '', replacement_history: [tooling, system, { type: 'compaction', ...sealed }] } },
  ...[
    { type: 'ghost_snapshot', ghost_commit: { id: 'g' } },
    { type: 'context_compaction', ...sealed },
    search,
    found,
    ...items,
  ].map((payload) => ({ type: 'response_item', payload })),
  { type: 'event_msg', payload: { type: 'token_count' } },
]
const turn = (role: string, content: unknown, more: object = {}) => ({ type: role, message: { role, content, ...more } })
const claude = [
  turn('user', 'Forgotten.'),
  { type: 'system', subtype: 'compact_boundary' },
  turn('user', 'What is in a.txt?'),
  turn('assistant', [{ type: 'text', text: 'I look.' }], { id: 'm1' }),
  { ...turn('assistant', 'Somebody else.'), isSidechain: true },
  turn('assistant', [use], { id: 'm1' }),
  turn('user', [result]),
  { type: 'summary', summary: 'Apples' },
  turn('user', 'Thanks.'),
]
const lines = (records: readonly object[]) => records.map((record) => JSON.stringify(record)).join('\n')

describe('a recorded conversation', () => {
  it.each([
    ['a body of chat completions', JSON.stringify(chat), TOOLS],
    ["a body of Anthropic's", JSON.stringify(anthropic), TOOLS],
    ['a body of responses', JSON.stringify(responses), TOOLS],
    ['an export of ours', JSON.stringify(exported), TOOLS],
    ['a list of messages', JSON.stringify(chat.messages), []],
    ['messages, one a line', lines(chat.messages), []],
    ['a log of requests, of which the last counts', lines([{ request: { messages: [] } }, { at: 1, body: chat }]), TOOLS],
    ['a session file of Codex', lines(codex), []],
  ] as const)('%s', (_, text, tools) => {
    const read = readRecorded(text)
    expect(read.messages).toEqual(MESSAGES)
    expect(read.tools).toEqual(tools)
  })

  it('a session file of Claude Code, which has no system message: after its last compaction, without side chains', () => {
    expect(readRecorded(lines(claude)).messages).toEqual(MESSAGES.slice(1))
  })
})

describe('an export of ours', () => {
  const long = 'z'.repeat(3000)
  const fragment = { id: 'f1', message: 0, span: { start: 0, end: 3000 }, state: { kind: 'folded' } }
  const edits = { fragments: [fragment], searches: [], ids: 1 }
  const parseEdits = (given: object) => {
    const messages = [long, long, 'Go on.'].map((content) => ({ message: { role: 'user', content }, seen: 'same' }))
    return parseTranscript(JSON.stringify({ format: 'kvfold-thread/1', messages, edits: given }), 'x')
  }

  it('keeps what is hidden, and no fold of it is proposed', () => {
    const read = parseEdits(edits)
    expect(read.edits).toEqual(edits)
    expect(read.folds.map(({ message }) => message)).toEqual([1])
  })

  it('is refused if it hides text that it does not have', () => {
    expect(() => parseEdits({ ...edits, ids: 'x' })).toThrow(/edits\.ids/)
    for (const change of [{ message: 3 }, { span: { start: 0, end: 3001 } }, { span: { start: 2, end: 1 } }])
      expect(() => parseEdits({ ...edits, fragments: [{ ...fragment, ...change }] })).toThrow(/text that is not in its messages/)
  })
})

describe('proposed folds', () => {
  const long = 'x'.repeat(500)
  const call = (at: number) => [
    { role: 'assistant', content: '', tool_calls: [{ id: `c${at}`, function: { name: 'read', arguments: '{}' } }] },
    { role: 'tool', tool_call_id: `c${at}`, content: at === 1 ? 'short' : long },
  ]

  it('are old tool results that are long enough', () => {
    const messages = [{ role: 'user', content: 'Go.' }, ...[0, 1, 2, 3, 4, 5].flatMap(call)]
    const { folds, proposed } = parseTranscript(JSON.stringify({ messages }), 'x')
    expect(proposed).toBe(true)
    expect(folds).toEqual([2, 6].map((message) => ({ message, span: { start: 0, end: 500 }, summary: null })))
  })

  it('are long messages before the last one if no tool was used, or none', () => {
    const messages = [2500, 100, 3000].map((length) => ({ role: 'user', content: 'y'.repeat(length) }))
    expect(parseTranscript(JSON.stringify(messages), 'x').folds.map(({ message }) => message)).toEqual([0])
    expect(parseTranscript(JSON.stringify(messages.slice(1, 2)), 'x').folds).toEqual([])
  })
})
