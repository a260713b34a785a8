/** When messages are the same, and which thread a request goes on with, held against a model as plain as can be. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { ChatMessage } from '../../../src/chat/message.js'
import { bestMatch, canonical, chainOf, common, difference } from '../../../src/server/threads/message-match.js'

const call = (args: Record<string, unknown>, id = 'x') => ({ id, name: 'look', arguments: args })

describe('messages', () => {
  const base: ChatMessage = { role: 'assistant', content: 'So.', toolCalls: [call({ a: 1, b: { c: [1, 2], d: null } })] }

  it.each<[string, ChatMessage]>([
    ['order of keys', { ...base, toolCalls: [call({ b: { d: null, c: [1, 2] }, a: 1 })] }],
    ['reasoning', { ...base, reasoning: 'Hm.' }],
    ['what was sampled', { ...base, sampled: { text: 'So.', tokens: Int32Array.of(1) } }],
    ['whitespace around an answer', { ...base, content: '\nSo.  ' }],
  ])('are the same but for %s', (_, other) => {
    expect(canonical(other)).toBe(canonical(base))
  })

  it.each<[string, ChatMessage, ChatMessage]>([
    ['role', base, { ...base, role: 'user' }],
    ['content', base, { ...base, content: 'so.' }],
    ['whitespace of what a user wrote', { role: 'user', content: 'x' }, { role: 'user', content: 'x ' }],
    ['an argument', base, { ...base, toolCalls: [call({ a: 1, b: { c: [2, 1], d: null } })] }],
    ['an argument left out', base, { ...base, toolCalls: [call({ a: 1 })] }],
    ['a number that was text', { ...base, toolCalls: [call({ a: 1 })] }, { ...base, toolCalls: [call({ a: '1' })] }],
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
  })

  it('are told apart in words', () => {
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

describe('matching', () => {
  /** Few texts, so that beginnings are often shared. */
  const messages = fc.array(
    fc.record({ role: fc.constantFrom('user' as const, 'assistant' as const), content: fc.constantFrom('a', 'b', ' a') }),
    { maxLength: 6 },
  )
  const same = (a: ChatMessage, b: ChatMessage) =>
    a.role === b.role && (a.role === 'assistant' ? a.content.trim() === b.content.trim() : a.content === b.content)

  it('finds what a search through everything finds', () => {
    fc.assert(
      fc.property(fc.array(messages, { maxLength: 8 }), messages, (threads, request) => {
        const chain = chainOf(request)
        const candidates = threads.map((view, used) => ({ view, used, chain: chainOf(view) }))
        let best: { at: number; shared: number; whole: boolean } | null = null
        for (const [at, { view }] of candidates.entries()) {
          let shared = 0
          while (shared < view.length && shared < request.length && same(view[shared]!, request[shared]!)) shared++
          expect(common(candidates[at]!.chain, chain)).toBe(shared)
          const whole = shared === view.length
          const better = best === null || shared > best.shared || (shared === best.shared && (whole || !best.whole))
          if (shared > 0 && better) best = { at, shared, whole }
        }
        const found = bestMatch(chain, candidates)
        expect(found === null ? null : { at: found.candidate.used, shared: found.common }).toEqual(
          best === null ? null : { at: best.at, shared: best.shared },
        )
      }),
      { numRuns: 500 },
    )
  })
})
