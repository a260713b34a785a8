/** Transcripts that people write by hand: what they become, and what is wrong with them. */
import { describe, expect, it } from 'vitest'
import { parseTranscript } from '../../src/cli/transcript.js'

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
  it('becomes messages and tools of ours', () => {
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

  it('folds from the first to the first after it, or to the ends', () => {
    const stretch = (fold: object) => parse({ folds: [{ message: 1, ...fold }] }).folds[0]!.span
    expect(stretch({})).toEqual({ start: 0, end: 17 })
    expect(stretch({ from: 'two' })).toEqual({ start: 4, end: 17 })
    expect(stretch({ to: 'two' })).toEqual({ start: 0, end: 7 })
    expect(stretch({ from: 'two', to: 'two' })).toEqual({ start: 4, end: 17 })
    expect(parse({ folds: [{ message: 1, summary: 'Numbers.' }] }).folds[0]!.summary).toBe('Numbers.')
  })

  it('is refused with what is wrong', () => {
    for (const [change, why] of [
      [{ folds: [] }, /x\.json cannot be used: folds: /],
      [{ messages: [{ role: 'robot', content: 'x' }] }, /messages\.0\.role: /],
      [{ folds: [{ message: 9 }] }, /folds\.0: there is no message 9; the first is 0, the last 3/],
      [{ folds: [{ message: 1, from: 'nowhere' }] }, /message 1 does not contain "nowhere"/],
      [{ folds: [{ message: 1, from: 'three', to: 'one' }] }, /does not contain "one" after/],
      [{ folds: [{ message: 2 }] }, /message 2 is empty/],
      [{ folds: [{ message: 1, start: 3 }] }, /folds\.0: .*start/],
    ] as const)
      expect(() => parse(change)).toThrow(why)
    expect(() => parseTranscript('{', 'x.json')).toThrow(/it is not JSON/)
    expect(() => parseTranscript('{}', 'x.json')).toThrow(/cannot be used: it: /)
    expect(() => parseTranscript('{"messages":[]}', 'x.json')).toThrow(/cannot be used: messages: /)
    expect(() => parseTranscript('{"role":"user","content":"a"}\nx', 'x.json')).toThrow(/line 2: /)
    expect(() => parseTranscript('', 'x.json')).toThrow(/it is empty/)
  })
})
