import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { ChatFormat, type Rendered } from '../../../src/runtime/chat/format.js'
import type { ChatMessage, Edit } from '../../../src/runtime/chat/message.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { Native, NativeModel } from '../../../src/runtime/native/types.js'
import { realTemplate, realVocabulary } from '../../support/bundle.js'
import { fixedNow } from '../../support/chat-formats.js'
import { weatherConversation, weatherTool, type Contents } from '../../support/conversations.js'

const tools = [weatherTool]

/**
 * Real vocabularies with templates of their families: byte-level BPE, SentencePiece with a leading space, control tokens that swallow
 * whitespace.
 */
const pairs = [
  ['llama-bpe', 'meta-llama-Llama-3.1-8B-Instruct'],
  ['qwen2', 'Qwen-Qwen3-0.6B'],
  ['phi-3', 'microsoft-Phi-3.5-mini-instruct'],
  ['llama-spm', 'mistralai-Mistral-Nemo-Instruct-2407'],
  ['command-r', 'CohereForAI-c4ai-command-r7b-12-2024-tool_use'],
  ['gemma-4', 'google-gemma-4-31B-it'],
] as const

const word = fc.constantFrom(
  'alpha',
  'Beta',
  ' ',
  '\n',
  '\n\n',
  '  ',
  ' word',
  '7',
  '"',
  '😀',
  'é',
  '日本',
  '.',
  '<|eot_id|>',
  '<|im_end|>',
  '<|end|>',
  '</s>',
)
const content = fc.array(word, { minLength: 1, maxLength: 12 }).map((parts) => parts.join('') + 'x')
const contents = fc.tuple(content, content, content, content, content, content)

let native: Native

beforeAll(async () => {
  native = await openNative({ gpu: 'cpu' })
})

describe.each(pairs)('%s with %s', (vocabulary, template) => {
  let model: NativeModel
  let format: ChatFormat

  beforeAll(async () => {
    model = await native.loadModel(realVocabulary(vocabulary), { vocabOnly: true })
    const { bos, eos } = model.special
    const text = (token: number | null) => (token === null ? '' : model.detokenize([token], true))
    format = ChatFormat.create({
      template: realTemplate(template),
      tokenizer: model,
      bosText: text(bos),
      eosText: text(eos),
      now: fixedNow,
    })
  })

  afterAll(() => model.dispose())

  const bytes = (tokens: Int32Array): Buffer => Buffer.concat(Array.from(tokens, (token) => model.piece(token)))

  test('without control-like contents they tokenize like the whole text, with one BOS', () => {
    fc.assert(
      fc.property(contents, (given) => {
        const harmless = given.map((each) => each.replaceAll(/<[^<>]*>/g, '')) as unknown as Contents
        const rendered = format.render({ messages: weatherConversation(harmless), tools })
        const whole = model.tokenize(rendered.text, { parseSpecial: true })
        const { bos, addBos } = model.special
        const added = addBos && whole[0] !== bos ? [bos] : []
        expect([...rendered.tokens]).toEqual([...added, ...whole])
      }),
      { numRuns: 12 },
    )
  })

  test('the tokens of a content have its bytes, except tokens shared with the template', () => {
    fc.assert(
      fc.property(contents, (given) => {
        const rendered = format.render({ messages: weatherConversation(given), tools })
        for (const { content: shown } of rendered.messages) {
          if (shown === null) continue
          const text = rendered.text.slice(shown.chars.start, shown.chars.end)
          const made = bytes(rendered.tokens.subarray(shown.tokens.start, shown.tokens.end)).toString()
          // SentencePiece may add a leading space, and a token at either end may reach into the template's text.
          const whole = made === text || made === ` ${text}`
          const held = [made, made.slice(1), made.trim()].find((each) => text.includes(each))
          const missing = held === undefined ? text : text.replace(held, () => '')
          expect(whole || missing.length <= 8, JSON.stringify([text, made])).toBe(true)
        }
      }),
      { numRuns: 12 },
    )
  })

  test('a note comes after its content, whose span, borders and other tokens stay the same', () => {
    const note = '\n\n[This message has about 25 thousand characters.]'
    fc.assert(
      fc.property(contents, fc.nat(60), fc.nat(60), (given, from, length) => {
        const messages = weatherConversation(given)
        const { content: text } = messages[1]!
        const withNote = messages.map((message, index) => (index === 1 ? { ...message, note } : message))
        const [bare, full] = [messages, withNote].map((each) => format.render({ messages: each, tools })) as [Rendered, Rendered]
        const place = full.messages[1]!.content!
        expect(full.text).toBe(bare.text.slice(0, place.chars.end) + note + bare.text.slice(place.chars.end))
        expect(place.chars).toEqual(bare.messages[1]!.content!.chars)
        const at = place.tokens.end
        expect(bytes(full.tokens.subarray(at)).toString().startsWith(note)).toBe(true)

        const start = Math.min(from, text.length - 1)
        const chars = { start, end: Math.min(text.length, start + length + 1) }
        const span = format.snap({ messages: withNote, tools, message: 1, chars })
        expect(span).toEqual(format.snap({ messages, tools, message: 1, chars }))
        fc.pre(span.end > span.start)
        const edits: Edit[] = [{ message: 1, span, replacement: '[folded]' }]
        const folded = format.render({ messages: withNote, tools, edits })
        expect(folded.text.includes(`[folded]${text.slice(span.end)}${note}`)).toBe(true)
        expect([...folded.tokens].slice(-(full.tokens.length - at))).toEqual([...full.tokens].slice(at))
      }),
      { numRuns: 12 },
    )
  })

  test('a control token inside a content stays text', () => {
    const count = (messages: readonly ChatMessage[]) =>
      format.render({ messages, tools }).tokens.filter((token) => model.isControl(token)).length
    const evil = [model.special.eos, model.special.bos]
      .map((token) => (token === null ? '' : model.detokenize([token], true)))
      .join('')
    expect(evil).not.toBe('')
    expect(count(weatherConversation(['s', `q ${evil} q`, 'a', 'b', 'c', 'd']))).toBe(
      count(weatherConversation(['s', 'q q', 'a', 'b', 'c', 'd'])),
    )
  })

  test('snapped edits leave every other token as it was', () => {
    fc.assert(
      fc.property(contents, fc.nat(40), fc.nat(30), (given, from, length) => {
        const messages = weatherConversation(given)
        const size = messages[1]?.content.length ?? 0
        const start = Math.min(from, size)
        const span = format.snap({ messages, tools, message: 1, chars: { start, end: Math.min(size, start + length) } })
        fc.pre(span.end > span.start)
        const edits: Edit[] = [{ message: 1, span, replacement: '[folded f12345: 9 characters, restore_fragment shows them]' }]
        const [before, after] = [format.render({ messages, tools }), format.render({ messages, tools, edits })]
        const [hole] = after.origin.holes
        if (hole === undefined) {
          // Some vocabularies show nothing of white space, so there is nothing to hide.
          expect(messages[1]!.content.slice(span.start, span.end).trim()).toBe('')
          expect(after.tokens).toEqual(before.tokens)
          return
        }
        let same = 0
        while (same < before.tokens.length && before.tokens[same] === after.tokens[same]) same++
        // A token at either end of the content may also show some of the template; the edit then replaces it, too.
        const place = hole.span
        const content = before.messages[1]!.content!.tokens
        expect(place.start).toBeGreaterThanOrEqual(content.start - 1)
        expect(place.end).toBeLessThanOrEqual(content.end + 1)
        expect(same).toBeGreaterThanOrEqual(place.start)
        const marker = Buffer.from(edits[0]?.replacement ?? '')
        expect(bytes(after.tokens).includes(marker)).toBe(true)
        // From the end back to the marker, all tokens stay.
        let tail = 0
        while (
          before.tokens[before.tokens.length - 1 - tail] === after.tokens[after.tokens.length - 1 - tail] &&
          tail < before.tokens.length
        )
          tail++
        expect(tail).toBeGreaterThanOrEqual(before.tokens.length - place.end)
      }),
      { numRuns: 12, examples: [[['s', '    x', 'a', 'b', 'c', 'd'], 0, 4]] },
    )
  })
})
