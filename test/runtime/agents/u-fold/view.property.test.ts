import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { hiddenIn, linesOf, type Range, textOf, written } from '../../../../src/runtime/agents/u-fold/view.js'
import type { ChatMessage } from '../../../../src/runtime/chat/message.js'
import { Conversation } from '../../../../src/runtime/context/conversation.js'
import { conversationId } from '../../../../src/runtime/core/ids.js'
import type { Span } from '../../../../src/runtime/core/span.js'
import { ScriptedEngine } from '../../../support/scripted.js'

/** Draws a value as tools answer: an object, a list, text of some lines, an error. */
const results = fc.oneof(
  fc
    .dictionary(fc.string({ minLength: 1, maxLength: 8 }), fc.jsonValue({ maxDepth: 2 }), { maxKeys: 8 })
    .map((value) => JSON.stringify(value)),
  fc.array(fc.string({ maxLength: 30 }), { maxLength: 12 }).map((lines) => lines.join('\n')),
  fc.constantFrom('', '\n', '{', '[1,2', '\r\n\r\n', '"a, b"', '{"a":"x, {y"}', 'Error: there is none.'),
)

const logs = fc
  .array(
    fc.record({
      user: fc.string({ maxLength: 40 }),
      results: fc.array(results, { maxLength: 3 }),
      answer: fc.string({ maxLength: 300 }),
    }),
    {
      minLength: 1,
      maxLength: 5,
    },
  )
  .map((turns): ChatMessage[] => [
    { role: 'system', content: 'The rules.' },
    ...turns.flatMap((turn): ChatMessage[] => [
      { role: 'user', content: turn.user },
      ...turn.results.map((content): ChatMessage => ({ role: 'tool', content, name: 'look' })),
      { role: 'assistant', content: turn.answer },
    ]),
  ])

const share = fc.double({ min: 0, max: 1, noNaN: true })
const choices = fc.array(fc.tuple(share, share), { maxLength: 4 })
const rangesOf = (choice: readonly (readonly [number, number])[], count: number): Range[] =>
  count === 0
    ? []
    : choice.map(([a, b]) => {
        const [first, last] = [a, b].map((at) => 1 + Math.floor(at * (count - 1))).sort((one, other) => one - other)
        return { first: first!, last: last! }
      })

describe('lines', () => {
  it('cover exactly the tool results, with one number per line', () => {
    fc.assert(
      fc.property(logs, (messages) => {
        const lines = linesOf(messages)
        expect(lines.map(({ number }) => number)).toEqual(lines.map((_, at) => at + 1))
        messages.forEach(({ role, content }, message) => {
          const own = lines.filter((line) => line.message === message)
          expect(own.map(({ span: { start, end } }) => content.slice(start, end)).join('')).toBe(role === 'tool' ? content : '')
        })
      }),
    )
  })

  it('of one-line JSON are its fields, and helpers get the same JSON with numbers to count from', () => {
    const result = '{"id":"#W1","items":[{"name":"a, {b","price":2.5},{"name":"c"}]}'
    const messages: ChatMessage[] = [{ role: 'tool', content: result }]
    expect(linesOf(messages).map((line) => textOf(messages, line))).toEqual([
      '{',
      '"id":"#W1",',
      '"items":[',
      '{',
      '"name":"a, {b",',
      '"price":2.5},',
      '{',
      '"name":"c"}]}',
    ])
    expect(written('{"a":1,"b":[true]}', 2, 5).split('\n')).toEqual(['3| {', '"a":1,', '5| "b":[', 'true]}'])
    expect(written('not JSON\nat all', 9, 1)).toBe('10| not JSON\n11| at all')
  })
})

describe('the view', () => {
  it('shows every chosen line as in the log, hides only answered results, and a restore gives all of it back', () => {
    const engine = new ScriptedEngine([])
    fc.assert(
      fc.property(logs, choices, share, choices, (messages, choice, where, later) => {
        const conversation = new Conversation(conversationId('log'))
        for (const message of messages) conversation.add(message)
        const lines = linesOf(messages)
        const before = 1 + Math.floor(where * (messages.length - 1))
        let own: Parameters<Conversation['rearrange']>[0] = []
        // A second view replaces the first; text that the first one hid may be shown.
        for (const ranges of [rangesOf(choice, lines.length), rangesOf(later, lines.length)]) {
          const options = {
            messages,
            selected: ranges,
            omitted: new Set<number>(),
            before,
            least: 1,
            snap: (at: number, chars: Span) => engine.snap(messages, [], at, chars),
          }
          const fragments = conversation.rearrange(own, hiddenIn(lines, options))
          own = fragments.map(({ id }) => id)
          const isHidden = (message: number, at: number) =>
            fragments.some((one) => one.message === message && one.span.start <= at && at < one.span.end)
          for (const line of lines) {
            const chosen = ranges.some(({ first, last }) => first <= line.number && line.number <= last)
            const open = Array.from(
              { length: line.span.end - line.span.start },
              (_, at) => !isHidden(line.message, line.span.start + at),
            )
            if (chosen || line.message >= before) {
              expect(open.every(Boolean)).toBe(true)
              expect(conversation.shown(line.message)).toContain(textOf(messages, line))
            }
          }
          messages.forEach(({ role, content }, message) => {
            if (role === 'system' || message >= before) expect(conversation.shown(message)).toBe(content)
          })
        }
        // The log stays complete, whatever is shown.
        expect(conversation.messages).toEqual(messages)
        for (const id of own) expect(conversation.restore(id).ok).toBe(true)
        messages.forEach(({ content }, message) => {
          expect(conversation.shown(message)).toBe(content)
        })
      }),
    )
  })

  it('keeps the ids of text that stays hidden, and leaves fragments of other owners alone', () => {
    const conversation = new Conversation(conversationId('log'))
    const content = Array.from({ length: 9 }, (_, at) => `line ${at + 1}`).join('\n')
    for (const message of [
      { role: 'user', content: 'go' },
      { role: 'tool', content },
      { role: 'user', content: 'on' },
    ] as const)
      conversation.add(message)
    const at = (start: number, end: number) => ({ message: 1, span: { start, end } })
    const cut = conversation.cut([at(0, 7)], 1)
    const theirs = cut.ok ? cut.fragments[0]! : null
    const first = conversation.rearrange([], [at(0, 14), at(14, 21), { ...at(28, 35), summary: 'Notes.' }])
    expect(first.map(({ span: { start } }) => start)).toEqual([14, 28])
    const second = conversation.rearrange(
      first.map(({ id }) => id),
      [at(14, 21), at(35, 42)],
    )
    expect(second[0]?.id).toBe(first[0]?.id)
    expect(conversation.fragments.map(({ id }) => id)).toEqual([theirs?.id, first[0]?.id, second[1]?.id])
    expect(conversation.shown(1)).toContain('line 5')
  })
})
