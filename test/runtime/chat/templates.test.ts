import { createHash } from 'node:crypto'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { describe, expect, test } from 'vitest'
import { findCapabilities } from '../../../src/runtime/chat/capabilities.js'
import { templateMessages, toolsValue } from '../../../src/runtime/chat/conversation.js'
import type { Value } from '../../../src/runtime/chat/jinja/values.js'
import { Template } from '../../../src/runtime/chat/jinja/template.js'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { realTemplates } from '../../support/bundle.js'
import { coversAll, fixedNow, ruledFormat, shownContents } from '../../support/chat-formats.js'
import { oddConversation, plainContents, weatherConversation, weatherTool } from '../../support/conversations.js'

const templates = realTemplates()
const tools = [weatherTool]

test('the bundle has as many templates as expected', () => {
  expect(templates.length).toBeGreaterThanOrEqual(64)
})

/** Returns why the conversation with tools is not shown right, or null. */
function trouble(source: string): string | null {
  const { format, tokenizer } = ruledFormat(source)
  if (format.capabilities.trouble !== null) return format.capabilities.trouble
  const messages = weatherConversation()
  const rendered = format.render({ messages, tools })
  if (!coversAll(rendered)) return 'the messages do not cover all tokens'
  if (tokenizer.text(rendered.tokens) !== rendered.text) return 'the tokens are not the text'
  const contents = shownContents(rendered, tokenizer)
  const wrong = messages.findIndex(({ content }, index) => content !== '' && contents[index] !== content)
  if (wrong !== -1) return `message ${wrong} is shown as ${JSON.stringify(contents[wrong])}`
  for (const place of ['Rome', 'Oslo']) if (!rendered.text.includes(place)) return `the call about ${place} is not shown`
  const answer = rendered.messages[5]
  const inside =
    answer?.content != null && answer.span.start <= answer.content.tokens.start && answer.content.tokens.end <= answer.span.end
  if (!inside) return 'the answer lies outside its message'
  const without = format.render({ messages, tools, generationPrompt: false })
  const prompt = tokenizer.text(rendered.tokens.subarray(rendered.generation.start, rendered.generation.end))
  if (rendered.generation.end !== rendered.tokens.length) return 'the generation prompt is not the end'
  return without.text + prompt === rendered.text ? null : 'the generation prompt is not what is added for it'
}

/** Whether the calls that the template writes are read back as they were. */
function callsComeBack(source: string): boolean {
  const { format, tokenizer } = ruledFormat(source)
  const [question, calling] = [weatherConversation()[1], weatherConversation()[2]]
  if (question === undefined || calling?.toolCalls === undefined) return false
  const toolCalls = format.capabilities.parallel === 'split' ? calling.toolCalls.slice(0, 1) : calling.toolCalls
  const before = format.render({ messages: [question], tools })
  const prompt = tokenizer.text(before.tokens.subarray(before.generation.start))
  const { tokens, messages } = format.render({ messages: [question, { ...calling, toolCalls }], tools, generationPrompt: false })
  const span = messages[1]?.span ?? { start: 0, end: 0 }
  const region = tokens.subarray(span.start, span.end)
  const ending = region.findLastIndex((token) => tokenizer.isControl(token))
  const endsInControl = ending !== -1 && tokenizer.text(region.subarray(ending + 1)).trim() === ''
  const text = tokenizer.text(endsInControl ? region.subarray(0, ending) : region)
  const whole = text.startsWith(prompt)
  const parser = format.syntax.parser(whole ? prompt : '')
  parser.push(text.slice(whole ? prompt.length : Math.max(0, prompt.search(/<think>|<\|START_THINKING\|>/))))
  const found = parser.finish().toolCalls.map(({ name, arguments: given }) => [name, given])
  return JSON.stringify(found) === JSON.stringify(toolCalls.map(({ name, arguments: given }) => [name, given]))
}

describe('real templates', () => {
  test('at least 58 show a conversation with two calls in one message with correct spans, and the others are listed', async () => {
    const report = Object.fromEntries(
      templates.map(({ name, source }) => {
        const { format } = ruledFormat(source)
        const { system, tools: shown, calls, parallel, results, ids, broken, opening, alternates } = format.capabilities
        const form = [
          ...[system, shown, calls, parallel, results, ids],
          ...(broken === 'parameter' ? ['broken as parameter'] : []),
          ...(opening === 'user' ? ['opens with user'] : []),
          ...(alternates ? ['alternates'] : []),
        ].join(' ')
        return [name, { trouble: trouble(source), form, syntax: format.syntax.name, callsComeBack: callsComeBack(source) }]
      }),
    )
    const right = Object.values(report).filter((each) => each.trouble === null)
    expect(right.length).toBeGreaterThanOrEqual(58)
    expect(right.filter((each) => each.callsComeBack).length).toBeGreaterThanOrEqual(45)
    await expect(JSON.stringify(report, null, 2) + '\n').toMatchFileSnapshot('../../golden/chat/templates.json')
  })

  test.each(templates.map(({ name, source }) => [name, source] as const))(
    '%s: odd contents are shown within their spans',
    (_, source) => {
      const { format, tokenizer } = ruledFormat(source)
      const odd = [' "quoted" \n', '', ' \n ', 'x</think>y', '<|im_end|>', '😀 "é"\\\n\ud800']
      for (let turn = 0; turn < odd.length; turn++) {
        const contents = plainContents.map((_, index) => odd[(turn + index) % odd.length] ?? '')
        const [a = '', b = '', c = '', d = '', e = '', f = ''] = contents
        const messages = weatherConversation([a, b, c, d, e, f])
        const rendered = format.render({ messages, tools })
        expect(coversAll(rendered)).toBe(true)
        expect(tokenizer.text(rendered.tokens)).toBe(wellFormed(rendered.text))
        rendered.messages.forEach(({ content }, index) => {
          if (content === null) return
          const shown = tokenizer.text(rendered.tokens.subarray(content.tokens.start, content.tokens.end))
          expect(shown).toBe(wellFormed(rendered.text.slice(content.chars.start, content.chars.end)))
          // Templates trim, escape and cut, but the text they show is made of the content's own characters.
          expect(isPartOf(unescaped(shown), unescaped(messages[index]?.content ?? ''))).toBe(true)
        })
      }
    },
  )
})

/** Schemas of a tool's parameters in which a template finds nothing, or a list, where it expects a word. */
const looseSchemas = {
  choice: { type: 'object', properties: { city: { anyOf: [{ type: 'string' }, { type: 'null' }] } } },
  reference: { type: 'object', properties: { city: { $ref: '#/$defs/city' } }, $defs: { city: { type: 'string' } } },
  values: { type: 'object', properties: { city: { enum: ['Rome', 'Oslo', null] } } },
  types: { type: 'object', properties: { city: { type: ['string', 'null'], description: 'Where.' } } },
  'no properties': { type: 'object' },
  'no schema': {},
}

/** The schemas that Jinja2 refuses, too. */
const refusedSchemas: Readonly<Record<string, readonly string[]>> = {
  'ByteDance-Seed-OSS': ['no properties', 'no schema'],
  'CohereForAI-c4ai-command-r-plus-tool_use': ['choice', 'reference', 'values', 'types'],
  'NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use': ['types'],
  'NousResearch-Hermes-3-Llama-3.1-8B-tool_use': ['types'],
}

test.each(templates.map(({ name, source }) => [name, source] as const))(
  '%s: tools are shown whose schemas do not name one type, or are empty',
  (template, source) => {
    const { format } = ruledFormat(source)
    const refused = Object.entries(looseSchemas).flatMap(([name, parameters]) => {
      try {
        format.render({ messages: [{ role: 'user', content: 'Hi there' }], tools: [{ ...weatherTool, parameters }] })
        return []
      } catch {
        return [name]
      }
    })
    expect(refused).toEqual(refusedSchemas[template] ?? [])
  },
)

/** Returns true when `whole` has the characters of `part` in their order. */
function isPartOf(part: string, whole: string): boolean {
  let at = 0
  for (const char of whole) if (char === part[at]) at++
  return at === part.length
}

/** Replaces lone surrogates, which have no UTF-8 form. */
function wellFormed(text: string): string {
  return Buffer.from(text, 'utf8').toString('utf8')
}

/** Removes whitespace, quotes, escape sequences, backslashes and characters outside printable ASCII. */
function unescaped(text: string): string {
  return text.replace(/\\(?:u[0-9a-fA-F]{4}|[nrt"\\])|[\s"\\]|[^\x20-\x7e]/g, '')
}

interface Request {
  readonly template: string
  readonly conversation: string
  readonly generationPrompt: boolean
  readonly messages: unknown
  readonly tools: unknown
  readonly ours: string
}

/** Returns the input of each template and our output, for test/golden/chat/make-jinja2-golden.py. */
function requests(): Request[] {
  const conversations: Readonly<Record<string, readonly ChatMessage[]>> = {
    weather: weatherConversation(),
    odd: oddConversation,
    plain: ['Hi there', 'Sun and rain', 'Thanks'].map((content, at) => ({ role: at % 2 === 0 ? 'user' : 'assistant', content })),
  }
  return templates.flatMap(({ name, source }) => {
    const template = new Template(source, { bosText: '<s>', eosText: '</s>', now: fixedNow })
    const form = findCapabilities(template)
    return Object.entries(conversations).flatMap(([conversation, given]) =>
      [true, false].map((generationPrompt) => {
        const messages = templateMessages(given, tools, form)
        const shown = toolsValue(conversation === 'plain' ? [] : tools, form)
        const ours = template.render({ messages, tools: shown, generationPrompt }).value
        return {
          template: name,
          conversation,
          generationPrompt,
          messages: messages.map(({ value }) => plain(value)),
          tools: shown === null ? undefined : plain(shown),
          ours,
        }
      }),
    )
  })
}

function plain(value: Value): unknown {
  if (value.value instanceof Map)
    return Object.fromEntries([...(value.value as Map<string, Value>)].map(([key, item]) => [key, plain(item)]))
  return Array.isArray(value.value) ? (value.value as Value[]).map(plain) : value.value
}

describe("against Python's Jinja2", () => {
  interface Golden {
    /** The hash of Jinja2's text for each request; requests that Jinja2 refuses are missing. */
    readonly hashes: Readonly<Record<string, string>>
    /** Requests on which we differ on purpose, with the reason. */
    readonly differences: Readonly<Record<string, string>>
  }

  test('the text is byte for byte the same', () => {
    const file = fileURLToPath(new URL('../../golden/chat/jinja2.json', import.meta.url))
    const { hashes, differences } = JSON.parse(readFileSync(file, 'utf8')) as Golden
    const made = requests()
    const cache = fileURLToPath(new URL('../../../.cache', import.meta.url))
    mkdirSync(cache, { recursive: true })
    writeFileSync(`${cache}/jinja2-requests.json`, JSON.stringify(made))
    const different: string[] = []
    let same = 0
    for (const { template, conversation, generationPrompt, ours } of made) {
      const key = `${template} ${conversation}${generationPrompt ? ' +prompt' : ''}`
      const hash = hashes[key]
      if (hash === undefined || key in differences) continue
      if (createHash('sha256').update(ours).digest('hex').slice(0, 16) === hash) same++
      else different.push(key)
    }
    expect(different).toEqual([])
    expect(same).toBeGreaterThanOrEqual(390)
  })
})
