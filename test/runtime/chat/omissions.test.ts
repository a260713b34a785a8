/** Tests edits that leave out parts of messages other than their content, with every real template. */
import { describe, expect, test } from 'vitest'
import { FORGOTTEN } from '../../../src/runtime/core/contract.js'
import { type ChatMessage, type Edit, type OmittedPart, omitting, without } from '../../../src/runtime/chat/message.js'
import { realTemplates } from '../../support/bundle.js'
import { builtinTemplate, coversAll, ruledFormat } from '../../support/chat-formats.js'
import { weatherTool } from '../../support/conversations.js'

const tools = [weatherTool]
const omit = (message: number, omits: OmittedPart): Edit => ({ message, span: { start: 0, end: 0 }, replacement: '', omits })

const call = (id: string, city: string): ChatMessage => ({
  role: 'assistant',
  content: '',
  reasoning: `I look at ${city} first.`,
  toolCalls: [{ id, name: 'get_weather', arguments: { city: `${city}, ${'a very long place '.repeat(8)}` } }],
})
const result = (id: string, content: string): ChatMessage => ({ role: 'tool', content, toolCallId: id, name: 'get_weather' })
const messages: readonly ChatMessage[] = [
  { role: 'system', content: 'Be kind.' },
  { role: 'user', content: 'Where is it warm?' },
  call('call_1aaa', 'Rome'),
  result('call_1aaa', 'sun'),
  call('call_2bbb', 'Oslo'),
  result('call_2bbb', 'rain'),
  { role: 'assistant', content: 'In Rome.', reasoning: 'So it is Rome.' },
  { role: 'user', content: 'Thanks' },
]

const all = [{ name: 'built-in', source: builtinTemplate }, ...realTemplates()]

describe.each(all)('$name', ({ source }) => {
  const { format, tokenizer } = ruledFormat(source)

  test('shows the message as the template shows it without its inputs or its reasoning', () => {
    const parts: [number, OmittedPart][] = [
      [2, { part: 'inputs', calls: ['call_1aaa'] }],
      [2, { part: 'reasoning' }],
      [6, { part: 'reasoning' }],
    ]
    const edits = parts.map(([message, omits]) => omit(message, omits))
    const rest = messages.map((message, at) =>
      without(
        message,
        parts.flatMap(([index, omits]) => (index === at ? [omits] : [])),
      ),
    )
    const shown = format.render({ messages, tools, edits })
    const plain = format.render({ messages: rest as ChatMessage[], tools })
    expect(shown.text).toBe(plain.text)
    expect(tokenizer.text(shown.tokens)).toBe(tokenizer.text(plain.tokens))
    expect(coversAll(shown)).toBe(true)
    expect(shown.origin.base).toEqual(format.render({ messages, tools }).tokens)
  })

  test('cuts a whole message out of the prompt, and nothing else', () => {
    const whole = format.render({ messages, tools })
    const shown = format.render({ messages, tools, edits: [2, 3].map((message) => omit(message, { part: 'message' })) })
    const [start, end] = [whole.messages[2]!.span.start, whole.messages[3]!.span.end]
    const text = (tokens: Int32Array) => tokenizer.text(tokens)
    expect(text(shown.tokens)).toBe(text(whole.tokens.subarray(0, start)) + text(whole.tokens.subarray(end)))
    expect(shown.messages[2]!.span.start).toBe(shown.messages[2]!.span.end)
    expect(shown.messages[4]!.span.end - shown.messages[4]!.span.start).toBe(
      whole.messages[4]!.span.end - whole.messages[4]!.span.start,
    )
  })
})

test('the first message goes without the tools that stand before it', () => {
  const { format } = ruledFormat(builtinTemplate)
  const [, ...rest] = messages
  const shown = format.render({ messages: rest, tools, edits: [omit(0, { part: 'message' })] })
  expect(shown.text).toContain('# Tools')
  expect(shown.text).not.toContain('Where is it warm?')
})

test('an edit of the content of the same message stays', () => {
  const { format } = ruledFormat(builtinTemplate)
  const said: ChatMessage = { ...call('call_1', 'Rome'), content: 'First I look there.' }
  const edits: Edit[] = [
    { message: 1, span: { start: 0, end: 5 }, replacement: '[x]' },
    omit(1, { part: 'inputs', calls: ['call_1'] }),
  ]
  const { text } = format.render({ messages: [messages[1]!, said, result('call_1', 'sun')], tools, edits })
  expect(text).toContain('[x] I look there.\n<tool_call>\n{"name": "get_weather", "arguments": {}}')
})

test('a text that is forgotten stays forgotten when its message is left out', () => {
  const { format } = ruledFormat(builtinTemplate)
  const forget: Edit = { message: 5, span: { start: 0, end: 4 }, replacement: '[x]', forget: true }
  const whole = omit(5, { part: 'message' })
  const [dropped, both] = [[whole], [whole, forget]].map((edits) => format.render({ messages, tools, edits }))
  expect(both!.text).toBe(dropped!.text)
  expect(dropped!.origin.base.includes(FORGOTTEN)).toBe(false)
  const { start, end } = dropped!.origin.holes[0]!.span
  expect(both!.origin.base.subarray(start, end).every((token) => token === FORGOTTEN)).toBe(true)
  expect(both!.origin.holes[0]).toMatchObject({ contract: 'exact' })
})

test('omitting carries the same edits out on the messages', () => {
  const fold: Edit = { message: 5, span: { start: 0, end: 4 }, replacement: '[x]' }
  const edits = [omit(2, { part: 'message' }), omit(3, { part: 'message' }), fold, omit(6, { part: 'reasoning' })]
  const left = omitting(messages, edits)
  expect(left.messages).toHaveLength(6)
  expect(left.messages[4]).toEqual({ role: 'assistant', content: 'In Rome.' })
  expect(left.edits).toEqual([{ ...fold, message: 3 }])
})
