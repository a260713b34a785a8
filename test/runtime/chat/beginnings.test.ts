/**
 * Tests prompts that end within an answer. Every real template that shows one ends its prompt with the beginning, and keeps the tokens
 * sampled after it.
 */
import { describe, expect, it } from 'vitest'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { ContinuationFilter } from '../../../src/runtime/chat/parser.js'
import { realTemplates } from '../../support/bundle.js'
import { coversAll, ruledFormat } from '../../support/chat-formats.js'

const user = (content: string): ChatMessage => ({ role: 'user', content })
const begun: ChatMessage = { role: 'assistant', content: 'Red is' }

/** Returns the new text of an answer whose beginning the prompt had. */
function newText(template: string, beginning: string, parts: readonly string[]): string {
  const { source } = realTemplates().find(({ name }) => name === template)!
  const { format } = ruledFormat(source)
  const news = new ContinuationFilter(beginning, () => format.parser([]))
  const events = [...parts.map((part) => news.parser.push(part)), news.parser.finish().events].flatMap((part) => news.of(part))
  return events.flatMap((event) => (event.type === 'text' ? [event.text] : [])).join('')
}

it.each([
  ['<think>\n\n</think>\n\n', 'Hello.', 'Hello.'],
  ['<think>\nWell.\n</think>\n\n', 'Hello.', 'Hello.'],
  ['<think>\nWell.\n</thi', 'nk>\n\nHello.', 'Hello.'],
  ['<think>\nWell.\n</think>\n\nRed ', 'is.', 'is.'],
  ['Red <tool', ' is.', ' is.'],
])('continues an answer that begins with %j', (beginning, more, expected) => {
  expect(newText('Qwen-Qwen3-0.6B', beginning, [more])).toBe(expected)
  expect(newText('Qwen-Qwen3-0.6B', beginning, more.split(''))).toBe(expected)
})

/** This template changes how it shows messages before the last answer, whatever that answer begins with. */
const REWRITES = 'NVIDIA-Nemotron-Nano-v2'

describe.each(realTemplates().map(({ name, source }) => [name, source] as const))('%s', (name, source) => {
  it('continues an answer from its beginning', () => {
    const { format, tokenizer } = ruledFormat(source)
    const prompt = format.render({ messages: [user('Which?'), begun], continues: true })
    const { prompt: before, text, tokens } = format.beginningOf(prompt)
    expect(text).toBe('Red is')
    expect(prompt.text.endsWith(`${before}Red is`)).toBe(true)
    expect(tokenizer.text(prompt.tokens)).toBe(prompt.text)
    expect(coversAll(prompt)).toBe(true)
    expect(prompt.messages).toHaveLength(2)
    expect(prompt.generation).toEqual({ start: prompt.tokens.length, end: prompt.tokens.length })

    const news = new ContinuationFilter(text, () => format.parser([], before))
    const { parser } = news
    const said = [...news.of(parser.push(' a co')), ...news.of(parser.push('lour.'))]
    const { content, reasoning, events } = parser.finish()
    const told = [...said, ...news.of(events)].flatMap((event) => (event.type === 'text' ? [event.text] : []))
    expect([told.join(''), content, reasoning]).toEqual([' a colour.', 'Red is a colour.', undefined])

    const more = tokenizer.tokenize(' a colour.')
    const sampled = { text: 'Red is a colour.', tokens: Int32Array.from([...tokens, ...more]), prompt: before }
    const next = format.render({ messages: [user('Which?'), { role: 'assistant', content, sampled }, user('And?')] })
    if (name === REWRITES) {
      expect(format.check(prompt, next)).toMatchObject({ message: 0 })
      return
    }
    expect(format.check(prompt, next)).toBe(null)
    const cached = [...prompt.tokens, ...more]
    expect([...next.tokens.subarray(0, cached.length)]).toEqual(cached)
  })
})
