/** Tests the search by meaning with vectors that count letters. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { Conversation } from '../../../src/runtime/context/conversation.js'
import { PassageVectors } from '../../../src/runtime/context/meaning.js'
import { contextTools } from '../../../src/runtime/context/tools.js'
import { conversationId } from '../../../src/runtime/core/ids.js'

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

describe('passages', () => {
  it('are stretches of at most 400 characters that together have all of the text but white space', async () => {
    const unit = fc.constantFrom('a', 'b', ' ', '\n', '. ', '😀')
    await fc.assert(
      fc.asyncProperty(fc.array(fc.string({ unit, maxLength: 2000 }), { maxLength: 3 }), async (texts) => {
        const messages = texts.map(user)
        const places = await new PassageVectors(counting().embed).nearest(messages, { query: 'a', scope: 'user', count: 1e6 })
        const inOrder = [...places].sort((a, b) => a.message - b.message || a.span.start - b.span.start)
        const shown = texts.map((text, message) =>
          inOrder
            .filter((place) => place.message === message)
            .map(({ span: { start, end } }) => text.slice(start, end))
            .join(''),
        )
        expect(shown.map((text) => text.replaceAll(/\s/gu, ''))).toEqual(texts.map((text) => text.replaceAll(/\s/gu, '')))
        for (const { message, span } of places) {
          const text = texts[message]!.slice(span.start, span.end)
          expect(text).toBe(text.trim())
          expect(text.length).toBeLessThanOrEqual(400)
          expect(Buffer.from(text).toString()).toBe(text)
        }
      }),
    )
  })

  it('end with a line, else with a sentence, else with a word', async () => {
    const ends = async (text: string) => {
      const places = await new PassageVectors(counting().embed).nearest([user(text)], { query: 'a', scope: 'all', count: 9 })
      return Math.min(...places.map(({ span }) => span.end))
    }
    const filled = (between: string) => `${'x'.repeat(250)}${between}${'y y'.repeat(20)}. ${'z'.repeat(200)}`
    expect(await ends(filled('\n'))).toBe(250)
    expect(await ends(filled('. '))).toBe(313)
    expect(await ends('x'.repeat(900))).toBe(400)
  })

  it('are longer in a long conversation, whose search stays quick', async () => {
    const { asked, embed } = counting()
    await new PassageVectors(embed).nearest([user(Array.from({ length: 300_000 }, (_, at) => at).join(' '))], { query: 'a', scope: 'all', count: 1 })
    expect(asked[0]!.length).toBeGreaterThan(400)
    expect(asked[0]!.length).toBeLessThan(1100)
  })
})

describe('a search by meaning', () => {
  const texts = ['zebra zoo quiz', 'hello there', 'banana bandana']
  it('finds the nearest passages first, makes vectors once, and of new text alone', async () => {
    const { asked, embed } = counting()
    const conversation = new Conversation(conversationId('meaning'), { embed })
    for (const text of texts) conversation.add(user(text))
    const found = async (query: string) =>
      (await conversation.nearest({ query, maxResults: 2 }))!.map(({ message }) => texts[message])
    expect(await found('nana')).toEqual(['banana bandana', 'zebra zoo quiz'])
    expect(await found('holler')).toEqual(['hello there', 'zebra zoo quiz'])
    conversation.add({ role: 'assistant', content: 'more' })
    expect((await conversation.nearest({ query: 'rome', role: 'all', maxResults: 1 }))![0]).toMatchObject({ role: 'assistant' })
    expect(asked).toEqual([['nana', ...texts], ['holler'], ['rome', 'more']])
  })

  it('keeps no vectors of text that a fold forgets', async () => {
    const { asked, embed } = counting()
    const conversation = new Conversation(conversationId('forgetting'), { embed })
    conversation.add(user('one two three'))
    await conversation.nearest({ query: 'a' })
    const cut = conversation.fragment({ startMarker: 'one', endMarker: 'two', numFragments: 1 })
    conversation.fold(cut.ok ? cut.fragments[0]!.id : '', { forget: true })
    await conversation.nearest({ query: 'a' })
    expect(asked).toEqual([
      ['a', 'one two three'],
      ['a', 'one two three'],
    ])
  })

  it('follows a search without a match, and is left out where the embedder fails or is missing', async () => {
    const text = async (ports: ConstructorParameters<typeof Conversation>[1], query: string) => {
      const conversation = new Conversation(conversationId('tool'), ports)
      for (const each of texts) conversation.add(user(each))
      return (await search.run(conversation, { query, max_results: 1 })).text
    }
    const { embed } = counting()
    expect(await text({ embed }, 'band ana')).toMatch(
      /^No match.*\n\nThe nearest in meaning:\n\nMatch 1 [^\n]*\nbanana bandana$/u,
    )
    expect(await text({ embed }, 'hello')).toMatch(/^1 match/u)
    expect(await text({ embed }, 'Hello')).toMatch(/use the exact spelling[.]$/u)
    const none = 'No match for "band ana" in user messages.'
    expect(await text({}, 'band ana')).toBe(none)
    expect(await text({ embed: () => Promise.reject(new Error('busy')) }, 'band ana')).toBe(none)
  })

  it('ends when it is cancelled', async () => {
    const conversation = new Conversation(conversationId('cancelled'), {
      embed: (_, signal) => Promise.reject(signal!.reason as Error),
    })
    conversation.add(user('one'))
    const signal = AbortSignal.abort(new Error('enough'))
    await expect(search.run(conversation, { query: 'x' }, signal)).rejects.toThrow('enough')
  })
})
