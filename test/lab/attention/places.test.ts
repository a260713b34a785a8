/** Maps characters to tokens on the built-in model: the tokens that are found have the requested text, with and without folds. */
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { place, type MessageSpan } from '../../../src/runtime/attention/places.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { Conversation } from '../../../src/runtime/context/conversation.js'
import { portsOf } from '../../../src/runtime/context/ports.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { span, type Span } from '../../../src/runtime/core/span.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { openNative } from '../../../src/runtime/native/binding.js'

let engine: LlamaEngine

beforeAll(async () => {
  engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), { threads: 1, batchThreads: 1, cells: 2048 })
})

afterAll(() => engine.dispose())

const user = (content: string): ChatMessage => ({ role: 'user', content })
/** The built-in model's tokens have a space in front of a word, and punctuation after it. */
const textOf = (tokens: Int32Array, { start, end }: Span): string =>
  engine.model
    .detokenize([...tokens.slice(start, end)], true)
    .trim()
    .replace(/[;.]$/u, '')
const at = (content: string, text: string, from = 0): Span => {
  const start = content.indexOf(text, from)
  return span(start, start + text.length)
}

const STREAM = 'herb: noblefield; boat: ivorymoor; herb: two-part Zyx; boat: clearhelm; herb: noblefield; boat: oakshade;'

describe('place', () => {
  it('finds every token of a value, and nothing else', () => {
    const messages = [user(`Read this. ${STREAM} What now?`), { role: 'assistant', content: 'It is oakshade.' } as const]
    const [prompt] = messages
    const stretches = [
      { message: 0, chars: at(prompt!.content, 'two-part Zyx') },
      { message: 0, chars: at(prompt!.content, 'oakshade') },
      { message: 1, chars: at('It is oakshade.', 'oakshade') },
    ]
    const placed = place(engine.format, { messages }, stretches)
    expect(placed.stretches.map((found) => textOf(placed.tokens, found as Span))).toEqual([
      'two-part Zyx',
      'oakshade',
      'oakshade',
    ])
    expect(placed.markers).toEqual([])
    // The whole prompt is the one that the format renders, generation prompt included.
    expect(placed.tokens).toEqual(engine.format.render({ messages }).tokens)
  })

  it('distinguishes occurrences of one value by their characters', () => {
    const [first, last] = [at(STREAM, 'noblefield'), at(STREAM, 'noblefield', 20)]
    expect(last.start).toBeGreaterThan(first.start)
    const stretches = [last, first].map((chars) => ({ message: 0, chars }))
    const { stretches: found, tokens } = place(engine.format, { messages: [user(STREAM)] }, stretches)
    const [later, earlier] = found as Span[]
    expect(later!.start).toBeGreaterThan(earlier!.end)
    expect([later!, earlier!].map((one) => textOf(tokens, one))).toEqual(['noblefield', 'noblefield'])
  })

  it('finds text after a fold, and reports the text that the fold hides', () => {
    const content = `Read this. ${STREAM} What now?`
    const id = conversationId('places')
    const conversation = new Conversation(id, portsOf(engine, id))
    conversation.add(user(content))
    const cut = conversation.cut([{ message: 0, span: span(content.indexOf('herb'), content.indexOf('herb: two')) }], 1)
    if (!cut.ok) throw new Error(cut.message)
    conversation.fold(cut.fragments[0]!.id)
    const stretches: MessageSpan[] = ['ivorymoor', 'two-part Zyx', 'oakshade'].map((text) => ({
      message: 0,
      chars: at(content, text),
    }))
    const placed = place(engine.format, { messages: [user(content)], edits: conversation.edits() }, stretches)
    const [hidden, ...shown] = placed.stretches
    expect(hidden).toBe('hidden')
    expect(shown.map((one) => textOf(placed.tokens, one as Span))).toEqual(['two-part Zyx', 'oakshade'])
    expect(placed.markers.map((one) => textOf(placed.tokens, one))).toEqual([
      conversation.edits()[0]!.replacement.trim().replace(/\.$/u, ''),
    ])
  })

  it('finds any span of any text: its tokens have all the characters, and the outer ones have at least one', () => {
    const words = fc.array(fc.constantFrom('noblefield', 'été', 'a', '名前', '😀', 'x1', ';', '\n', '  ', '<|im_end|>'), {
      minLength: 1,
      maxLength: 12,
    })
    fc.assert(
      fc.property(words, fc.nat(), fc.nat(), (parts, from, to) => {
        const content = `k: ${parts.join(' ')} end`
        const letters = Array.from(content)
        const a = from % letters.length
        const b = a + 1 + (to % (letters.length - a))
        const chars = span(letters.slice(0, a).join('').length, letters.slice(0, b).join('').length)
        const placed = place(engine.format, { messages: [user(content)] }, [{ message: 0, chars }])
        const found = placed.stretches[0]!
        if (found === 'hidden') throw new Error('nothing is hidden')
        const text = engine.model.detokenize([...placed.tokens.slice(found.start, found.end)], true)
        expect(text).toContain(content.slice(chars.start, chars.end).trim())
        const inner = [...placed.tokens.slice(found.start + 1, found.end - 1)]
        const bytes = inner.reduce((sum, token) => sum + engine.model.piece(token, true).length, 0)
        expect(bytes).toBeLessThan(Buffer.byteLength(content.slice(chars.start, chars.end)))
      }),
      { numRuns: 60 },
    )
  })
})
