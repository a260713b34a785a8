/** Tests the search by meaning with vectors that count letters. */
import fc from 'fast-check'
import { describe, expect, it, vi } from 'vitest'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { Conversation } from '../../../src/runtime/context/conversation.js'
import { type Embed, passagesIn } from '../../../src/runtime/context/meaning.js'
import { contextTools } from '../../../src/runtime/context/tools.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { span } from '../../../src/runtime/core/span.js'

/** The counts of the letters a to z, as a vector of length 1. */
function letters(text: string): Float32Array {
  const counts = new Float32Array(26)
  for (const letter of text.toLowerCase()) {
    const at = letter.charCodeAt(0) - 97
    if (at >= 0 && at < 26) counts[at]!++
  }
  const length = Math.hypot(...counts) || 1
  return counts.map((count) => count / length)
}

/** An embedder that counts letters, and the texts that it was given. */
function counting() {
  const asked: (readonly string[])[] = []
  const embed = (texts: readonly string[]) => {
    asked.push(texts)
    return Promise.resolve(texts.map(letters))
  }
  return { asked, embed }
}

const user = (content: string): ChatMessage => ({ role: 'user', content })
const search = contextTools.find(({ definition }) => definition.name === 'search_context')!

/** Makes a conversation whose messages are folded, all but the last word, unless they are shown. */
function folded(embed: Embed, texts: readonly string[], shown: readonly string[] = []): Conversation {
  const conversation = new Conversation(conversationId('meaning'), { embed })
  for (const [message, text] of [...texts, ...shown].entries()) {
    conversation.add(user(`${text} end`))
    if (message >= texts.length) continue
    const cut = conversation.cut([{ message, span: span(0, text.length) }], 1)
    conversation.fold(cut.ok ? cut.fragments[0]!.id : '')
  }
  return conversation
}

describe('passages', () => {
  it('are stretches of at most 400 characters that together have all of the text but white space', () => {
    const unit = fc.constantFrom('a', 'b', ' ', '\n', '. ', '😀')
    fc.assert(
      fc.property(fc.string({ unit, maxLength: 2000 }), (text) => {
        const pieces = Array.from(passagesIn(text, span(0, text.length)), ({ start, end }) => text.slice(start, end))
        expect(pieces.join('').replaceAll(/\s/gu, '')).toBe(text.replaceAll(/\s/gu, ''))
        for (const piece of pieces) {
          expect(piece).toBe(piece.trim())
          expect(piece.length).toBeLessThanOrEqual(400)
          expect(Buffer.from(piece).toString()).toBe(piece)
        }
      }),
    )
  })

  it('end with a line, else with a sentence, else with a word, and stay within their fragment', () => {
    const first = (text: string, start = 0) => [...passagesIn(text, span(start, text.length - 1))][0]
    const filled = (between: string) => `${'x'.repeat(250)}${between}${'y y'.repeat(20)}. ${'z'.repeat(200)}`
    expect(first(filled('\n'))).toEqual(span(0, 250))
    expect(first(filled('. '))).toEqual(span(0, 313))
    expect(first('x'.repeat(900))).toEqual(span(0, 400))
    expect(first('x'.repeat(900), 700)).toEqual(span(700, 899))
  })

  it('are at most 1,000, the newest, embedded 64 in a call', async () => {
    const { asked, embed } = counting()
    const conversation = folded(embed, [Array.from({ length: 200_000 }, (_, at) => at).join(' ')])
    expect(await conversation.nearest({ query: 'a' })).toHaveLength(3)
    expect(asked.slice(1).map(({ length }) => length)).toEqual([...Array<number>(15).fill(64), 40])
    expect(asked.at(-1)!.at(-1)).toMatch(/199999$/u)
  })
})

describe('a search by meaning', () => {
  const texts = ['zebra zoo quiz', 'hello there', 'banana bandana']
  it('finds the nearest folded passages first, makes vectors once, and of newly hidden text alone', async () => {
    const { asked, embed } = counting()
    const conversation = folded(embed, texts, ['nana nana'])
    const found = async (query: string) =>
      (await conversation.nearest({ query, maxResults: 2 })).map(({ message }) => conversation.messages[message]!.content)
    expect(await found('nana')).toEqual(['banana bandana end', 'zebra zoo quiz end'])
    expect(await found('holler')).toEqual(['hello there end', 'zebra zoo quiz end'])
    const cut = conversation.cut([{ message: 3, span: span(0, 9) }], 1)
    conversation.fold(cut.ok ? cut.fragments[0]!.id : '')
    expect(await found('nana')).toEqual(['nana nana end', 'banana bandana end'])
    expect(asked).toEqual([['nana'], texts, ['holler'], ['nana'], ['nana nana']])
    expect(await conversation.nearest({ query: 'nana', role: 'assistant' })).toEqual([])
    expect(await conversation.nearest({ query: ' ' })).toEqual([])
    expect(await conversation.nearest({ query: 'nana', maxResults: -1 })).toEqual([])
  })

  it('neither embeds text that a fold forgets nor keeps its vectors, also while it runs', async () => {
    const { asked, embed } = counting()
    const held: (() => void)[] = []
    const conversation = folded(async (given) => {
      if (given.length > 1) await new Promise<void>((resolve) => held.push(resolve))
      return embed(given)
    }, texts)
    const searching = conversation.nearest({ query: 'a' })
    await vi.waitFor(() => {
      expect(held).toHaveLength(1)
    })
    conversation.fold(conversation.fragments[0]!.id, { forget: true })
    held.pop()!()
    await searching
    const again = conversation.nearest({ query: 'a' })
    await vi.waitFor(() => {
      expect(held).toHaveLength(1)
    })
    held.pop()!()
    expect((await again).map(({ message }) => message)).not.toContain(0)
    // The vectors were made again: none of the running search was kept.
    expect(asked).toEqual([['a'], texts, ['a'], texts.slice(1)])
  })

  it('follows a search without a match, and is left out where the embedder fails or is missing', async () => {
    const text = async (embed: Embed, query: string) => (await search.run(folded(embed, texts), { query, max_results: 1 })).text
    const { embed } = counting()
    expect(await text(embed, 'band ana')).toMatch(
      /^No match.*\n\nNearest in meaning, of what is folded:\n\nMatch 1 [^\n]*, in folded fragment f[0-9a-f]{5}\nbanana bandana[.][.][.]$/u,
    )
    expect(await text(embed, 'hello')).toMatch(/^1 match/u)
    expect(await text(embed, 'Hello')).toMatch(/use the exact spelling[.]$/u)
    const none = 'No match for "band ana" in user messages.'
    expect(await text(() => Promise.reject(new Error('busy')), 'band ana')).toBe(none)
    const conversation = new Conversation(conversationId('none'))
    conversation.add(user('banana bandana'))
    expect((await search.run(conversation, { query: 'band ana' })).text).toBe(none)
  })

  it('ends when it is cancelled', async () => {
    const conversation = folded((_, signal) => Promise.reject(signal!.reason as Error), texts)
    const outcome = await search.run(conversation, { query: 'x' }, AbortSignal.abort(new Error('enough')))
    expect(outcome).toMatchObject({ failed: true, text: 'Error: The search was cancelled.' })
  })
})
