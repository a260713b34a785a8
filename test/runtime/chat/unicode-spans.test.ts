import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { ChatFormat, type Rendered } from '../../../src/runtime/chat/format.js'
import type { ChatMessage, Edit } from '../../../src/runtime/chat/message.js'
import { piecesOf } from '../../../src/runtime/context/stretch.js'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import { Random } from '../../../src/runtime/core/random.js'
import { contains, type Span } from '../../../src/runtime/core/span.js'
import { atOnce } from '../../../src/runtime/core/turns.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { Native, NativeModel } from '../../../src/runtime/native/types.js'
import { fromBundle, realTemplates, realVocabularies, realVocabulary, type RealTemplate } from '../../support/bundle.js'
import { coversAll, fixedNow } from '../../support/chat-formats.js'
import { weatherConversation, weatherTool } from '../../support/conversations.js'
import { LONG } from '../../support/long.js'

const tools = [weatherTool]

/** Pieces of the random texts: everything that a vocabulary, a template or UTF-16 may treat as special. */
const corpus = [
  ...['a', 'Hello', ' word', 'The end.', '7', '1,024', '.', '"', '\\', "'", '{"a": 1}', ' ', '  ', '    ', '\t'],
  ...['\n', '\n\n', '\r\n', '\r', '\n \n', '\v', '\f', '\u0085', '\u2028'],
  ...['\u2581', '\u2581\u2581', ' \u2581', '\u2581 ', '\u2581x', 'x\u2581', '▁▂▃▄▅▆▇█', '\u2581\n\u2581'],
  ...['\u00a0', '\u3000', '\u200b', '\u200d', '\u200e', '\u202e', '\ufeff', '\u00ad', '\ufffd'],
  ...['é', 'e\u0301', 'n\u0303o', 'ﬁ', 'ß', 'İ', 'Ǆ', '½', '①', 'Å', '\u0323\u0307'],
  ...['日本語', '한국어', '\u1112\u1161\u11ab', '中', 'ก็', 'नमस्ते', 'שלום', 'مرحبا', '\u0660\u0661'],
  ...['😀', '👨‍👩‍👧', '🇩🇪', '❤\ufe0f', '👍🏽', '𝔸', '𐍈', '\u{1f9ff}', '\ue000', '\u{f0000}', '\u{10ffff}', '\uffff'],
  ...['\u0000', '\u0001', '\u001b[31m', '\u007f', '\u009f', '\ud83d', '\ude00', '\ud800x'],
  ...['<|im_end|>', '<|eot_id|>', '</s>', '<s>', '<unk>', '<pad>', '[INST]', '<0x0A>', '<|end|> ', '<end_of_turn>\n', '</think>'],
]

const vocabularies = realVocabularies().filter((_, index) => LONG || index % 3 === 0)
const templates = realTemplates()

/** Vocabularies that lowercase, strip or normalise, so a text's own bytes do not come back. */
const isLossy = ({ info }: NativeModel) => info.vocabType === 'wpm' || info.vocabType === 'ugm'

/** Replaces lone surrogates, which have no UTF-8 form. */
const wellFormed = (text: string) => Buffer.from(text, 'utf8').toString('utf8')

/** Removes the characters that SentencePiece adds or rewrites, or that its control tokens swallow. */
const bare = (text: string) => wellFormed(text).replaceAll(/[ \t\n\v\f\r\u2581]/g, '')

function made(random: Random, parts: number): string {
  return Array.from({ length: 1 + random.below(parts) }, () => corpus[random.below(corpus.length)]!).join('')
}

function edited(random: Random, format: ChatFormat, messages: readonly ChatMessage[]): Edit[] {
  const edits: Edit[] = []
  messages.forEach(({ content }, message) => {
    let at = 0
    while (at < content.length && random.below(3) !== 0) {
      // The span often begins with the first character or ends with the last.
      const start = at === 0 && random.below(2) === 0 ? 0 : at + random.below(content.length - at)
      const end = random.below(3) === 0 ? content.length : start + 1 + random.below(content.length - start)
      const chars = { start, end }
      const span = format.snap({ messages, tools, message, chars })
      const where = JSON.stringify({ content, chars, span })
      expect(contains(span, chars), `snap widens ${where}`).toBe(true)
      expect(contains({ start: 0, end: content.length }, span), `within the content ${where}`).toBe(true)
      expect(format.snap({ messages, tools, message, chars: span }), `borders stay ${where}`).toEqual(span)
      // The content is cut as fragment_context cuts it.
      const snap = (inner: Span) => format.snap({ messages, tools, message, chars: inner })
      const cut = atOnce(piecesOf(content, chars, 1 + random.below(5), snap))
      expect([cut[0]?.start, cut.at(-1)?.end], `pieces of ${where}`).toEqual([span.start, span.end])
      at = span.end + (random.below(2) === 0 ? 0 : 1)
      if (edits.some((other) => other.message === message && other.span.end > span.start)) continue
      edits.push({ message, span, replacement: ['[folded f12345]', '', '▁ ▁', '[summary: 日本\n😀]'][random.below(4)]! })
    }
  })
  return edits
}

function check(format: ChatFormat, model: NativeModel, messages: readonly ChatMessage[], edits: readonly Edit[]): void {
  const before = format.render({ messages, tools })
  const after = format.render({ messages, tools, edits })
  expect(coversAll(before) && coversAll(after), 'messages cover all tokens').toBe(true)

  // Outside the replaced spans every token stays.
  const { base, holes } = after.origin
  expect(base).toEqual(before.tokens)
  const kept: number[] = []
  const keptAfter: number[] = []
  let [from, to] = [0, 0]
  for (const { span, marker } of holes) {
    expect(span.start).toBeGreaterThanOrEqual(from)
    expect(span.end).toBeGreaterThan(span.start)
    keptAfter.push(...after.tokens.subarray(to, to + span.start - from))
    kept.push(...base.subarray(from, span.start))
    to += span.start - from + marker
    from = span.end
  }
  kept.push(...base.subarray(from))
  keptAfter.push(...after.tokens.subarray(to))
  expect(keptAfter).toEqual(kept)

  const expected = spliced(before, messages, edits)
  if (expected !== null) expect(after.text).toBe(expected)
  if (isLossy(model)) return
  expect(bare(spelled(model, before))).toBe(bare(before.text))
  expect(bare(spelled(model, after))).toBe(bare(after.text))
  // The first and last token of a replaced span show some of the edit, so the tokens between show nothing else.
  if (expected !== null && holes.length === edits.length)
    holes.forEach(({ span }, index) => {
      const { message, span: chars } = edits[index]!
      const inner = bare(model.detokenize(base.subarray(span.start + 1, span.end - 1), true))
      const hidden = bare(messages[message]!.content.slice(chars.start, chars.end))
      if (!inner.includes('\ufffd')) expect(hidden).toContain(inner)
    })
}

function spelled(model: NativeModel, { tokens, text }: Rendered): string {
  const { bos } = model.special
  const added = bos !== null && tokens[0] === bos && !text.startsWith(model.detokenize([bos], true))
  return model.detokenize(added ? tokens.subarray(1) : tokens, true)
}

/** Applies the edits to the text by hand. Returns null if the template does not show every edited content unchanged. */
function spliced({ text, messages: places }: Rendered, messages: readonly ChatMessage[], edits: readonly Edit[]): string | null {
  let made = text
  for (const { message, span, replacement } of [...edits].reverse()) {
    const chars = places[message]?.content?.chars
    const { content } = messages[message]!
    if (chars === undefined || text.slice(chars.start, chars.end) !== content) return null
    made = made.slice(0, chars.start + span.start) + replacement + made.slice(chars.start + span.end)
  }
  const order = edits.map(({ message }) => places[message]?.content?.chars.start ?? 0)
  return order.every((at, index) => index === 0 || order[index - 1]! <= at) ? made : null
}

/** Returns the templates to run with a vocabulary: all of them in the long run, each with one vocabulary in the short run. */
const mine = (vocabulary: number): readonly RealTemplate[] =>
  templates.filter((_, index) => LONG || index % vocabularies.length === vocabulary)

describe.each(vocabularies.map((name, index) => [name, index] as const))('spans over Unicode in %s', (name, index) => {
  let native: Native
  let model: NativeModel

  beforeAll(async () => {
    native = await openNative({ gpu: 'cpu' })
    model = await native.loadModel(fromBundle(`models/ggml-vocab-${name}.gguf`), { vocabOnly: true })
  })

  afterAll(() => model.dispose())

  const formatOf = ({ source }: RealTemplate): ChatFormat => {
    const { bos, eos } = model.special
    const text = (token: number | null) => (token === null ? '' : model.detokenize([token], true))
    return ChatFormat.create({ template: source, tokenizer: model, bosText: text(bos), eosText: text(eos), now: fixedNow })
  }

  test.each(mine(index).map((template) => [template.name, template] as const))(
    '%s',
    (_, template) => {
      const format = formatOf(template)
      for (let seed = 0; seed < (LONG ? 6 : 3); seed++) {
        const random = new Random(seed)
        const messages = weatherConversation([1, 8, 4, 2, 8, 6].map((parts) => made(random, parts)) as never)
        try {
          check(format, model, messages, edited(random, format, messages))
        } catch (error) {
          if (error instanceof KvfoldError && error.code === 'chat/template-failed') continue
          throw new Error(`seed ${seed}: ${JSON.stringify(messages.map(({ content }) => content))}`, { cause: error })
        }
      }
    },
    60_000,
  )
})

describe('alignment', () => {
  let native: Native
  let model: NativeModel

  beforeAll(async () => {
    native = await openNative({ gpu: 'cpu' })
    model = await native.loadModel(realVocabulary('llama-spm'), { vocabOnly: true })
  })

  afterAll(() => model.dispose())

  const template = '{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}'
  const formatOf = () => ChatFormat.create({ template, tokenizer: model, bosText: '<s>', eosText: '</s>' })

  test('behind a progress bar of U+2581, words keep their borders', () => {
    const messages: ChatMessage[] = [{ role: 'user', content: 'Load ▁▁▂▁ done. The key of Rome is seven.' }]
    const format = formatOf()
    const at = messages[0]!.content.indexOf(' key of Rome')
    const chars = { start: at + 2, end: at + 10 }
    const span = format.snap({ messages, message: 0, chars })
    expect(span).toEqual({ start: at, end: at + 12 })
    const [before, after] = [[], [{ message: 0, span, replacement: '[x]' }]].map((edits) =>
      format.render({ messages, edits }),
    ) as [Rendered, Rendered]
    const { holes } = after.origin
    expect(model.detokenize(before.tokens.subarray(holes[0]!.span.start, holes[0]!.span.end))).toBe(' key of Rome')
    expect(after.text).toContain('done. The[x] is seven.')
  })

  test("a fragment from the first character hides all of its content, even if a token also has the template's space", () => {
    const messages: ChatMessage[] = [{ role: 'user', content: 'Hello there.' }]
    const format = formatOf()
    const span = format.snap({ messages, message: 0, chars: { start: 0, end: 5 } })
    expect(span).toEqual({ start: 0, end: 5 })
    const edits: Edit[] = [{ message: 0, span, replacement: '[x]' }]
    const { text, tokens } = format.render({ messages, edits, generationPrompt: false })
    expect(text).toBe('user: [x] there.\n')
    expect(model.detokenize(tokens).trimStart()).toBe('user: [x] there.\n')
  })

  test('an answer that ends inside a character keeps the borders of its words', () => {
    const format = formatOf()
    const [first, second] = model.tokenize('Hello 😀').slice(-4)
    const tokens = Int32Array.from([...model.tokenize('Well done'), first!, second!])
    const text = new TextDecoder().decode(Buffer.concat(Array.from(tokens, (token) => model.piece(token))))
    expect(text).toBe(' Well done\ufffd')
    const messages: ChatMessage[] = [
      { role: 'user', content: 'Hi' },
      { role: 'assistant', content: text, sampled: { text, tokens } },
    ]
    expect(format.snap({ messages, message: 1, chars: { start: 7, end: 8 } })).toEqual({ start: 5, end: 10 })
  })
})
