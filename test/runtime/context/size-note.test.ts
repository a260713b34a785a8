import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { Conversation } from '../../../src/runtime/context/conversation.js'
import { portsOf } from '../../../src/runtime/context/ports.js'
import { noted, sizeNote } from '../../../src/runtime/context/size-note.js'
import { contextTools } from '../../../src/runtime/context/tools.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { ScriptedEngine } from '../../support/scripted.js'

const tools = contextTools.map(({ definition }) => definition)
const others = tools.filter(({ name }) => name === 'search_context')
const message = (length: number, role: ChatMessage['role'] = 'user'): ChatMessage => ({ role, content: 'x'.repeat(length) })

describe('the length hint of a long message', () => {
  it('gives the size in thousands of characters, rounded half up', () => {
    expect(sizeNote(message(25_000), tools)).toBe('\n\n[This message has about 25 thousand characters.]')
    expect(sizeNote(message(2000), tools)).toBe('\n\n[This message has about 2 thousand characters.]')
    const size = (length: number) => Number(/(\d+) thousand/u.exec(sizeNote(message(length), tools))?.[1])
    expect([2499, 2500, 24_499, 24_500, 104_999].map(size)).toEqual([2, 3, 24, 25, 105])
  })

  it('is added to user messages and tool results from 2,000 characters, and only for a model with the tools', () => {
    expect(sizeNote(message(1999), tools)).toBe('')
    for (const role of ['system', 'assistant'] as const) expect(sizeNote(message(9000, role), tools)).toBe('')
    expect(sizeNote(message(9000, 'tool'), tools)).not.toBe('')
    for (const given of [[], others]) {
      expect(sizeNote(message(9000), given)).toBe('')
      const messages = [message(9000)]
      expect(noted(messages, given)).toBe(messages)
    }
  })

  it('gives the same object for the same message, and a short message itself', () => {
    const messages = [message(10), message(3000), message(3000, 'assistant')]
    const [first, again] = [noted(messages, tools), noted(messages, tools)]
    expect(first[0]).toBe(messages[0])
    expect(first[1]).toEqual({ ...messages[1], note: sizeNote(messages[1]!, tools) })
    expect(again[1]).toBe(first[1])
    expect(first[2]).toBe(messages[2])
  })
})

describe('a conversation whose messages have length hints', () => {
  const length = fc.integer({ min: 1900, max: 4000 })
  const words = fc.array(fc.constantFrom('alpha ', 'beta. ', 'gamma\n', 'This message has about ', 'thousand characters.] '), {
    minLength: 5,
    maxLength: 20,
  })
  const contents = fc.array(
    fc.tuple(words, length).map(([parts, size]) =>
      parts
        .join('')
        .repeat(Math.ceil(size / parts.join('').length))
        .slice(0, size),
    ),
    { minLength: 1, maxLength: 3 },
  )

  it('shows every hint after its content whatever is folded, and keeps hints out of fragments, markers and searches', () => {
    fc.assert(
      fc.property(contents, fc.integer({ min: 1, max: 6 }), fc.nat(), (all, count, seed) => {
        const id = conversationId('noted')
        const engine = new ScriptedEngine([])
        const conversation = new Conversation(id, portsOf(engine, id, tools))
        for (const content of all) conversation.add({ role: 'user', content })
        const stretches = all.map((content, index) => ({ message: index, span: { start: 0, end: content.length } }))
        const cut = conversation.cut(stretches, Math.max(count, all.length))
        if (!cut.ok) throw new Error(cut.message)
        for (const [at, { id: fragment }] of cut.fragments.entries()) if ((seed >> at) % 2 === 0) conversation.fold(fragment)

        expect(cut.fragments.map((fragment) => conversation.text(fragment)).join('')).toBe(all.join(''))
        const prompt = engine.prompt({ messages: noted(conversation.messages, tools), tools, edits: conversation.edits() })
        const shown = conversation.messages.map((each, index) => `${conversation.shown(index)}${sizeNote(each, tools)}<end>`)
        let at = 0
        for (const text of shown) {
          at = prompt.indexOf(text, at)
          expect(at).toBeGreaterThanOrEqual(0)
          at += text.length
        }
        for (const each of all)
          expect(conversation.messages.some(({ content, note }) => content === each && note === undefined)).toBe(true)
        expect(conversation.search({ query: '\n\n[This message' })).toMatchObject({ ok: true, total: 0 })
        expect(conversation.fragment({ startMarker: 'alpha', endMarker: '\n\n[This message' }).ok).toBe(false)
      }),
    )
  })
})
