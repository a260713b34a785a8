/** Tests which messages count as the same. */
import { describe, expect, it } from 'vitest'
import type { ChatMessage } from '../../../../src/runtime/chat/message.js'
import { readJson } from '../../../../src/runtime/core/written-json.js'
import { canonical, difference, isSame, messageKey } from '../../../../src/runtime/server/threads/message-match.js'

const written = (json: string) => readJson(json) as Record<string, unknown>
const call = (args: Record<string, unknown>, id = 'x') => ({ id, name: 'look', arguments: args })

describe('messages', () => {
  const base: ChatMessage = { role: 'assistant', content: 'So.', toolCalls: [call({ a: 1, b: { c: [1, 2], d: null } })] }

  it.each<[string, ChatMessage]>([
    ['order of keys', { ...base, toolCalls: [call({ b: { d: null, c: [1, 2] }, a: 1 })] }],
    ['how a number is written', { ...base, toolCalls: [call(written('{"a":1.0,"b":{"c":[1e0,2],"d":null}}'))] }],
    ['reasoning', { ...base, reasoning: 'Hm.' }],
    ['what was sampled', { ...base, sampled: { text: 'So.', tokens: Int32Array.of(1) } }],
    ['whitespace around an answer', { ...base, content: '\nSo.  ' }],
  ])('are the same in spite of %s', (_, other) => {
    expect(canonical(other)).toBe(canonical(base))
  })

  it.each<[string, ChatMessage, ChatMessage]>([
    ['role', base, { ...base, role: 'user' }],
    ['content', base, { ...base, content: 'so.' }],
    ['whitespace of what a user wrote', { role: 'user', content: 'x' }, { role: 'user', content: 'x ' }],
    ['an argument', base, { ...base, toolCalls: [call({ a: 1, b: { c: [2, 1], d: null } })] }],
    ['an argument left out', base, { ...base, toolCalls: [call({ a: 1 })] }],
    ['a number that was text', { ...base, toolCalls: [call({ a: 1 })] }, { ...base, toolCalls: [call({ a: '1' })] }],
    [
      'the last digit of a long number',
      { ...base, toolCalls: [call(written('{"a":9007199254740993}'))] },
      { ...base, toolCalls: [call(written('{"a":9007199254740992}'))] },
    ],
    ['a list that was an object', { ...base, toolCalls: [call({ a: [] })] }, { ...base, toolCalls: [call({ a: {} })] }],
    ['id of a call', base, { ...base, toolCalls: [call(base.toolCalls![0]!.arguments, 'y')] }],
    ['a tool', base, { ...base, toolCalls: [{ ...call({}), name: 'see' }] }],
    ['number of calls', base, { ...base, toolCalls: [...base.toolCalls!, call({})] }],
    [
      'the call that is answered',
      { role: 'tool', content: 'r', toolCallId: '1' },
      { role: 'tool', content: 'r', toolCallId: '2' },
    ],
    [
      'a key called __proto__',
      { ...base, toolCalls: [call({})] },
      { ...base, toolCalls: [call(JSON.parse('{"__proto__": 1}') as Record<string, unknown>)] },
    ],
  ])('differ by %s', (_, one, other) => {
    expect(canonical(one)).not.toBe(canonical(other))
    expect(isSame(one, other)).toBe(false)
  })

  it('have the same keys as in existing stores', () => {
    // A different key would break the lookup of stored conversations: their cards would need a migration.
    expect(messageKey(base)).toBe('gv8tnTOah/sAufuU4c1e82')
    const odd = call({ '7': 1.5, b: 9007199254740992, c: -0, d: 1e22 })
    expect(messageKey({ ...base, toolCalls: [odd] })).toBe('Eavo/L950nvF4h1P+/f0LN')
  })

  it('differ with a reason in words', () => {
    const user = (content: string): ChatMessage => ({ role: 'user', content })
    expect(difference(user('abc'), user('abd'))).toBe('it differs from character 2 on')
    expect(difference(user('abc'), user('ab'))).toBe('it ends at character 2, and went on')
    expect(difference(user('ab'), user('abc'))).toBe('it goes on at character 2, and ended there')
    expect(difference(user('abc'), undefined)).toBe('it is left out')
    expect(difference(user('a'), base)).toBe('it is an assistant message, and was a user one')
    expect(difference(base, { ...base, toolCalls: [] })).toBe('its tool calls differ')
    expect(difference({ role: 'tool', content: 'r', toolCallId: '1' }, { role: 'tool', content: 'r', toolCallId: '2' })).toBe(
      'it answers another call',
    )
  })
})
