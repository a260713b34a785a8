/** Renders conversations of any shape with every real template: each message must be shown in its place, whatever its neighbours are. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { ChatMessage, Edit, ToolCall } from '../../../src/runtime/chat/message.js'
import { realTemplate, realTemplates } from '../../support/bundle.js'
import { coversAll, ruledFormat, sampledMessage, shownContents } from '../../support/chat-formats.js'
import { weatherTool } from '../../support/conversations.js'
import { WORDS } from '../../support/tokenizers.js'

const tools = [weatherTool]
const system = (content: string): ChatMessage => ({ role: 'system', content })
const user = (content: string): ChatMessage => ({ role: 'user', content })
const assistant = (content: string, ...toolCalls: ToolCall[]): ChatMessage => ({
  ...{ role: 'assistant', content },
  ...(toolCalls.length === 0 ? {} : { toolCalls }),
})
const result = (content: string, toolCallId: string): ChatMessage => ({ role: 'tool', content, toolCallId, name: 'get_weather' })
const call = (id: string, city: string): ToolCall => ({ id, name: 'get_weather', arguments: { city } })
const broken = (id: string, malformed: string): ToolCall => ({ id, name: 'get_weather', arguments: {}, malformed })

const kinds = [
  'system',
  'user',
  'assistant',
  'thought',
  'call',
  'calls',
  'broken',
  'result',
  'result',
  'orphan',
  'empty',
] as const

/** Makes messages of these kinds with distinct contents. A result answers one of the open calls, in any order. */
function conversationOf(picks: readonly (readonly [(typeof kinds)[number], number])[]): ChatMessage[] {
  const open: string[] = []
  let calls = 0
  const made = (isBroken: boolean): ToolCall => {
    const id = `call_${++calls}`
    open.push(id)
    return isBroken ? broken(id, `{"city": City-${id}`) : call(id, `City-${id}`)
  }
  return picks.map(([kind, pick], index): ChatMessage => {
    const content = `Text-${index}.`
    switch (kind) {
      case 'system':
      case 'user':
      case 'assistant':
        return { role: kind, content }
      case 'thought':
        return { role: 'assistant', content, reasoning: 'Thought.' }
      case 'call':
        return assistant('', made(false))
      case 'calls':
        return assistant('', made(false), made(pick % 3 === 0), made(false))
      case 'broken':
        return assistant('', made(true))
      case 'result':
        return result(content, open.splice(pick % Math.max(1, open.length), 1)[0] ?? 'nowhere')
      case 'orphan':
        return result(content, 'nowhere')
      case 'empty':
        return { role: (['system', 'user', 'assistant'] as const)[pick % 3]!, content: '' }
    }
  })
}

/** Draws conversations that do not end with the assistant; some templates would continue such an answer. */
const conversations = fc
  .tuple(
    fc.array(fc.tuple(fc.constantFrom(...kinds), fc.nat(50)), { maxLength: 8 }),
    fc.constantFrom(...(['user', 'system', 'result'] as const)),
  )
  .map(([picks, last]) => conversationOf([...picks, [last, 0]]))

/** Templates that move the first system message to the last user message, and hide it behind results. */
const MOVES_SYSTEM = ['mistralai-Mistral-Nemo-Instruct-2407']

/** Returns the first fault of how a conversation is shown, or null. */
function trouble(source: string, messages: readonly ChatMessage[], withTools: boolean, moves: boolean): string | null {
  const { format, tokenizer } = formatOf(source)
  const rendered = format.render({ messages, tools: withTools ? tools : [] })
  if (!coversAll(rendered)) return 'the messages do not cover all tokens'
  const contents = shownContents(rendered, tokenizer)
  const leading = messages.findIndex(({ role }) => role !== 'system')
  let before = 0
  for (const [index, { content, toolCalls = [] }] of messages.entries()) {
    const shown = rendered.messages[index]!
    if (content !== '' && !(moves && (index < leading || leading === -1))) {
      if (contents[index] !== content) return `message ${index} is shown as ${JSON.stringify(contents[index])}`
      const place = shown.content!.tokens
      if (place.start < shown.span.start || place.end > shown.span.end) return `message ${index} lies outside its span`
      if (place.start < before) return `message ${index} stands before an earlier one`
      before = place.end
    }
    const own = tokenizer.text(rendered.tokens.subarray(shown.span.start, shown.span.end))
    const hidden = toolCalls.find(({ id }) => !own.includes(`City-${id}`))
    if (hidden !== undefined) return `message ${index} does not show ${hidden.id}`
  }
  return null
}

const formats = new Map<string, ReturnType<typeof ruledFormat>>()
function formatOf(source: string): ReturnType<typeof ruledFormat> {
  const made = formats.get(source) ?? ruledFormat(source)
  formats.set(source, made)
  return made
}

describe.each(realTemplates())('$name', ({ name, source }) => {
  it('shows every message of any conversation in its place', () => {
    const moves = MOVES_SYSTEM.includes(name)
    fc.assert(
      fc.property(conversations, fc.boolean(), (messages, withTools) => {
        expect(trouble(source, messages, withTools, moves)).toBeNull()
      }),
      { numRuns: 40 },
    )
  })
})

const shown = (template: string, ...messages: ChatMessage[]): string =>
  formatOf(realTemplate(template)).format.render({ messages }).text

describe('system messages of a template with one place for them', () => {
  it('are joined at the beginning, and become marked user messages later', () => {
    expect(shown('Qwen3.5-4B', system('One.'), system('Two.'), user('Hi'), assistant('Yes'), system('Three.'), user('Go on')))
      .toBe(`<|im_start|>system
One.

Two.<|im_end|>
<|im_start|>user
Hi<|im_end|>
<|im_start|>assistant
Yes<|im_end|>
<|im_start|>user
<system_message>
Three.
</system_message><|im_end|>
<|im_start|>user
Go on<|im_end|>
<|im_start|>assistant
<think>
`)
  })

  it('are placed as a trial of the template shows, whatever its name is', () => {
    const source = realTemplate('Qwen3.5-4B').replaceAll("raise_exception('System message must be at the beginning.')", "''")
    const { format } = ruledFormat(source)
    expect(format.capabilities.system).toBe('first')
    expect(ruledFormat(realTemplate('Qwen-Qwen2.5-7B-Instruct')).format.capabilities.system).toBe('anywhere')
  })

  it.each(['Qwen3.5-4B', 'google-gemma-2-2b-it', 'openai-gpt-oss-120b'])(
    '%s: joined messages have separate spans, and a fold in one leaves the tokens of the other',
    (template) => {
      const { format, tokenizer } = ruledFormat(realTemplate(template), { words: WORDS })
      const messages = [
        system('Be kind to all.'),
        system('Answer in short words.'),
        user('Hi there'),
        assistant('Yes'),
        user('So'),
      ]
      const before = format.render({ messages })
      expect(shownContents(before, tokenizer).slice(0, 5)).toEqual(messages.map(({ content }) => content))
      for (const message of [0, 1]) {
        const chars = format.snap({ messages, message, chars: { start: 3, end: 10 } })
        const edits: Edit[] = [{ message, span: chars, replacement: '[cut]' }]
        const after = format.render({ messages, edits })
        const [hole] = after.origin.holes
        const { span } = before.messages[message]!
        expect(hole!.span.start).toBeGreaterThanOrEqual(span.start)
        expect(hole!.span.end).toBeLessThanOrEqual(span.end)
        const { content } = messages[message]!
        expect(shownContents(after, tokenizer)[message]).toBe(content.slice(0, chars.start) + '[cut]' + content.slice(chars.end))
        expect([...after.tokens]).toEqual([
          ...before.tokens.subarray(0, hole!.span.start),
          ...after.tokens.subarray(hole!.span.start, hole!.span.start + hole!.marker),
          ...before.tokens.subarray(hole!.span.end),
        ])
      }
    },
  )
})

describe('templates that want users and answers in turn', () => {
  it('get an empty turn for a missing one, and neighbours of one role are joined', () => {
    const calling = assistant('', call('call00001', 'Rome'))
    const messages = [assistant('A'), user('B'), user('C'), calling, result('sun', 'call00001'), user('D')]
    expect(shown('mistralai-Mistral-Nemo-Instruct-2407', ...messages)).toBe(
      '<s>[INST][/INST]A</s>[INST]B\n\nC[/INST]' +
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Rome"}, "id": "call00001"}]</s>' +
        '[TOOL_RESULTS]{"content": sun, "call_id": "call00001"}[/TOOL_RESULTS]</s>[INST]D[/INST]',
    )
  })

  it.each([
    'mistralai-Mistral-Nemo-Instruct-2407',
    'mistralai-Ministral-3-14B-Reasoning-2512',
    'Mistral-Small-3.2-24B-Instruct-2506',
  ])('%s: the shown text stays the same as the conversation grows', (template) => {
    const { format } = formatOf(realTemplate(template))
    const messages = [
      ...[user('A'), assistant('B'), assistant('', call('call_1', 'Rome')), result('sun', 'call_1'), assistant('C')],
      ...[user('D'), assistant('', call('call_2', 'Oslo'), call('call_3', 'Bern')), result('ice', 'call_3'), user('E')],
      ...[assistant('F'), assistant('', call('call_4', 'Nice')), user('G')],
    ]
    for (let count = 1; count < messages.length; count++) {
      const [one, more] = [count, count + 1].map((end) =>
        format.render({ messages: messages.slice(0, end), generationPrompt: false }),
      )
      expect(more!.text.startsWith(one!.text), messages[count]!.content).toBe(true)
    }
  })

  it('Gemma: an answer may come first', () => {
    expect(shown('google-gemma-2-2b-it', assistant('Hello'), user('Hi'))).toBe(
      '<s><start_of_turn>user\n<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n' +
        '<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n',
    )
  })
})

describe('calls and results', () => {
  const called = [user('Hi'), assistant('', call('call_1', 'Rome'), call('call_2', 'Oslo'))]

  it('a missing result is shown as missing, and the next one is not mistaken for it', () => {
    expect(shown('Qwen-Qwen2.5-7B-Instruct', ...called, result('ice', 'call_2'), user('So?'))).toContain(
      '<tool_response>\nNo result.\n</tool_response>\n<tool_response>\nice\n</tool_response><|im_end|>',
    )
    expect(shown('Qwen-Qwen2.5-7B-Instruct', ...called, result('sun', 'call_1'), user('So?'))).not.toContain('No result.')
  })

  it('a late result says which call it answers', () => {
    const messages = [...called, result('sun', 'call_1'), user('Wait'), assistant('Yes'), result('ice', 'call_2'), user('So?')]
    expect(shown('Qwen-Qwen2.5-7B-Instruct', ...messages)).toContain(
      '<|im_start|>user\nLate result of {"name": "get_weather", "arguments": {"city": "Oslo"}}:\n<tool_response>\nice\n</tool_response><|im_end|>',
    )
  })

  it('arguments that are not an object become one text parameter if the template needs an object', () => {
    const messages = [user('Hi'), assistant('', broken('call_1', '{"city": "Ro')), result('bad', 'call_1'), user('So?')]
    expect(shown('Qwen3-Coder', ...messages)).toContain('<parameter=arguments>\n{"city": "Ro\n</parameter>')
    expect(shown('Qwen-Qwen2.5-7B-Instruct', ...messages)).not.toContain('"arguments": {"arguments"')
  })

  it.each(['Qwen3-Coder', 'GLM-4.6'])('%s: a broken call of the model keeps its sampled tokens', (template) => {
    const ruled = formatOf(realTemplate(template))
    const reply = '<tool_call>\n<function=get_weather>\n<parameter=city>\nRo'
    const message = sampledMessage(ruled, reply)
    expect(message.toolCalls?.[0]?.malformed).toBe('<parameter=city>\nRo')
    const before = ruled.format.render({ messages: [user('Hi')], tools })
    const after = ruled.format.render({ messages: [user('Hi'), message, result('bad', message.toolCalls![0]!.id)], tools })
    expect(after.text).toContain(reply)
    expect(ruled.format.check(before, after)).toBeNull()
  })
})
