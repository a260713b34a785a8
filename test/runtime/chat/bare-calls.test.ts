/** Calls of declared tools in other forms than the template's: as models of ten families write them, and what must stay text. */
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { ChatFormat } from '../../../src/runtime/chat/format.js'
import { assistantMessage, type ChatMessage, type ToolDefinition } from '../../../src/runtime/chat/message.js'
import { ContinuationFilter, type ParsedReply, type ReplyEvent } from '../../../src/runtime/chat/parser.js'
import { none } from '../../../src/runtime/chat/syntax/detect.js'
import { realTemplates } from '../../support/bundle.js'
import { familyTemplate, ruledFormat } from '../../support/chat-formats.js'
import { weatherTool } from '../../support/conversations.js'
import { Grammar } from '../../support/gbnf.js'

const text = { type: 'string' }
const tool = (
  name: string,
  properties: Readonly<Record<string, unknown>>,
  required = Object.keys(properties),
): ToolDefinition => ({
  name,
  description: 'Does it.',
  parameters: { type: 'object', properties, required },
})
const tools = [
  tool('get_weather', { city: text }),
  tool('get_time', {}),
  tool('search', { query: text, limit: { type: 'integer' } }, ['query']),
  tool('write_file', { path: text, content: text }),
]

const rome = ['get_weather', { city: 'Rome' }] as const
const oslo = ['get_weather', { city: 'Oslo' }] as const
const now = ['get_time', {}] as const
const file = ['write_file', { path: 'a.txt', content: 'x = {"y": 1}\nz' }] as const
type Call = readonly [name: string, given: Readonly<Record<string, unknown>> | string]

const romeJson = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
const osloJson = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
const romeParameters = '{"name": "get_weather", "parameters": {"city": "Rome"}}'
const fileJson = '{"name": "write_file", "arguments": {"path": "a.txt", "content": "x = {\\"y\\": 1}\\nz"}}'
const spread = '{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Rome"\n  }\n}'

interface Transcript {
  readonly reply: string
  readonly calls: readonly Call[]
  readonly content?: string
  /** How the calls are said to be written; one for all of them, or one for each. Default: the template's own syntax. */
  readonly form?: string | readonly string[]
  /** Default: it is. */
  readonly isClosed?: false
}

/** By template of the bundle. */
const families: Readonly<Record<string, readonly Transcript[]>> = {
  // Qwen2.5-Coder has this template and does not keep to it.
  'Qwen-Qwen2.5-7B-Instruct': [
    { reply: romeJson, calls: [rome], form: 'json' },
    { reply: `\`\`\`json\n${spread}\n\`\`\``, calls: [rome], form: '```json' },
    { reply: `\`\`\`json\n${romeJson}\n${osloJson}\n\`\`\``, calls: [rome, oslo], form: '```json' },
    { reply: `\`\`\`\n${fileJson}\n\`\`\`\n`, calls: [file], form: '```' },
    { reply: `<tools>\n${romeJson}\n</tools>`, calls: [rome], form: '<tools>' },
    { reply: `<tools>\n[${romeJson}, ${osloJson}]\n</tools>`, calls: [rome, oslo], form: '<tools> [' },
    { reply: `${romeJson}\n${osloJson}`, calls: [rome, oslo], form: 'json' },
    {
      reply: `I will look it up:\n\n\`\`\`json\n${romeJson}\n\`\`\``,
      calls: [rome],
      content: 'I will look it up:',
      form: '```json',
    },
    { reply: `<tool_call>\n${romeJson}\n</tool_call>`, calls: [rome] },
    { reply: '<tool_call>get_weather(city="Rome")</tool_call>', calls: [rome] },
    { reply: `${romeJson}\n</tool_call>`, calls: [rome], form: 'json' },
    ...[
      '{"city": "Rome"}>',
      '{"city": "Rome"}/>',
      '{{"city": "Rome"}}>',
      `'{"city": "Rome"}'></tool_call>`,
      '{"city": "Rome"}}',
    ].map((rest) => ({ reply: `<tool_call name="get_weather" arguments=${rest}`, calls: [rome], form: '<tool_call name>' })),
    {
      reply: `<tool_call name="get_time" arguments={}>\n<tool_call name="get_weather" arguments={"city": "Rome"}>\nThere.`,
      calls: [now, rome],
      content: 'There.',
      form: '<tool_call name>',
    },
  ],
  'Qwen3-Coder': [
    {
      reply:
        'I will write it.\n\n<function=write_file>\n<parameter=path>\na.txt\n</parameter>\n<parameter=content>\nx = {"y": 1}\nz\n</parameter>\n</function>\n</tool_call>',
      calls: [file],
      content: 'I will write it.',
      form: '<function>',
    },
    { reply: '<function=get_time>\n</function>', calls: [now], form: '<function>' },
    {
      reply: '<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>',
      calls: [rome],
    },
    { reply: '<tool_call>\n<function=get_weather>{"city": "Rome"}</function>\n</tool_call>', calls: [rome] },
    { reply: '<invoke name="get_weather">\n<parameter name="city">Rome</parameter>\n</invoke>', calls: [rome], form: '<invoke>' },
  ],
  'meta-llama-Llama-3.2-3B-Instruct': [
    { reply: '[get_weather(city="Rome"), get_time()]', calls: [rome, now], form: 'python' },
    {
      reply: 'Sure.\n{"type": "function", "name": "get_weather", "parameters": {"city": "Rome"}}',
      calls: [rome],
      content: 'Sure.',
      form: 'json',
    },
    {
      reply: '{"type": "function", "function": {"name": "get_weather", "parameters": {"city": "Rome"}}}',
      calls: [rome],
      form: 'json',
    },
    { reply: `[${romeParameters}]`, calls: [rome], form: '[' },
    { reply: romeParameters, calls: [rome] },
    { reply: `<|python_tag|>${romeParameters}`, calls: [rome] },
    { reply: `${romeParameters}; {"name": "get_time", "parameters": {}}`, calls: [rome, now] },
    { reply: '<function=get_weather>{"city": "Rome"}</function>', calls: [rome], form: '<function>' },
    { reply: `<|python_start|>${romeParameters}<|python_end|>`, calls: [rome], form: '<|python_start|>' },
  ],
  'mistralai-Mistral-Nemo-Instruct-2407': [
    { reply: `[${romeJson}]`, calls: [rome], form: '[' },
    { reply: `[{"name": "get_weather", "arguments": {"city": "Rome"}, "id": "abcdefghi"}]`, calls: [rome], form: '[' },
    { reply: `[TOOL_CALLS][${romeJson}, ${osloJson}]`, calls: [rome, oslo] },
    { reply: `\`\`\`json\n[\n  ${romeJson}\n]\n\`\`\``, calls: [rome], form: '```json [' },
  ],
  'Mistral-Small-3.2-24B-Instruct-2506': [
    { reply: 'get_weather[ARGS]{"city": "Rome"}', calls: [rome], form: '[ARGS]' },
    {
      reply: 'Let me see.\nget_weather[CALL_ID]abc123def[ARGS]{"city": "Rome"}',
      calls: [rome],
      content: 'Let me see.',
      form: '[ARGS]',
    },
    { reply: 'get_weather{"city": "Rome"}', calls: [rome], form: 'name and json' },
    { reply: '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}', calls: [rome] },
  ],
  'NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use': [
    { reply: '{"arguments": {"city": "Rome"}, "name": "get_weather"}', calls: [rome], form: 'json' },
    { reply: `<tool_calls>\n[${romeJson}]\n</tool_calls>`, calls: [rome], form: '<tool_calls> [' },
    { reply: '<tool_call>\n{"arguments": {"city": "Rome"}, "name": "get_weather"}\n</tool_call>', calls: [rome] },
    { reply: `<|tool_call|>${romeJson}<|/tool_call|>`, calls: [rome], form: '<|tool_call|>' },
  ],
  'deepseek-ai-DeepSeek-R1-Distill-Llama-8B': [
    { reply: `I should look.\n</think>\n\n${spread.replace('arguments', 'parameters')}`, calls: [rome], form: 'json' },
    {
      reply: `Hm.\n</think>\n\nAction: get_weather\nAction Input: {"city": "Rome"}`,
      calls: [rome],
      form: 'Action: Action Input:',
    },
    {
      reply: `Hm.\n</think>\n\n\`\`\`json\n{"function": "get_weather", "parameters": {"city": "Rome"}}\n\`\`\``,
      calls: [rome],
      form: '```json',
    },
  ],
  'ibm-granite-granite-3.3-2B-Instruct': [
    { reply: `[${romeJson}, ${osloJson}]`, calls: [rome, oslo], form: '[' },
    { reply: `<tool_call>[${romeJson}]`, calls: [rome], form: '<tool_call> [', isClosed: false },
    { reply: `<|tool_call|>[${romeJson}]`, calls: [rome] },
    { reply: romeJson, calls: [rome], form: 'json' },
  ],
  'CohereForAI-c4ai-command-r7b-12-2024-tool_use': [
    {
      reply:
        'Action: ```json\n[\n    {\n        "tool_name": "get_weather",\n        "parameters": {\n            "city": "Rome"\n        }\n    }\n]```',
      calls: [rome],
      form: 'Action: ```json [',
    },
    { reply: '[{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Rome"}}]', calls: [rome], form: '[' },
  ],
  // It takes no tools, so they are described to it; Gemma 3 writes as Google's guide has it.
  'google-gemma-2-2b-it': [
    { reply: '```tool_code\nget_weather(city="Rome")\n```', calls: [rome], form: '```tool_code python' },
    { reply: '```tool_code\nprint(get_weather(city="Rome"))\n```', calls: [rome], form: '```tool_code python' },
    { reply: '[get_weather(city="Rome")]', calls: [rome], form: 'python' },
    { reply: `<tool>\n${romeParameters}\n</tool>`, calls: [rome], form: '<tool>' },
    {
      reply: '```json\n{"tool_calls": [{"name": "get_weather", "args": {"city": "Rome"}}, {"name": "get_time"}]}\n```',
      calls: [rome, now],
      form: '```json {"tool_calls"} [',
    },
  ],
  'microsoft-Phi-3.5-mini-instruct': [
    { reply: `functools[${romeJson}]`, calls: [rome], form: 'functools [' },
    { reply: `<|tool_calls|>[${romeJson}]<|/tool_calls|>`, calls: [rome], form: '<|tool_calls|> [' },
    { reply: '{"tool": "get_weather", "tool_input": {"city": "Rome"}}', calls: [rome], form: 'json' },
    { reply: '{"name": "get_weather", "arguments": "{\\"city\\": \\"Rome\\"}"}', calls: [rome], form: 'json' },
  ],
  'Kimi-K2-Instruct': [
    { reply: 'functions.get_weather:0{"city": "Rome"}', calls: [rome], form: 'name and json' },
    { reply: '{"name": "functions.get_weather", "arguments": {"city": "Rome"}}', calls: [rome], form: 'json' },
  ],
  'LFM2-8B-A1B': [
    { reply: "[get_weather(city='Rome')]", calls: [rome], form: 'python' },
    { reply: "<|tool_call_start|>[get_weather(city='Rome')]<|tool_call_end|>", calls: [rome] },
    { reply: `[${romeJson}]`, calls: [rome], form: '[' },
  ],
  'MiniMax-M2': [
    {
      reply:
        'Hm.\n</think>\n\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Rome</parameter>\n</invoke>\n<invoke name="get_time">\n</invoke>\n</minimax:tool_call>',
      calls: [rome, now],
      form: '<minimax:tool_call> <invoke>',
    },
  ],
}

/** Answers that are no call of a declared tool. */
const texts = [
  'Hello, [1] see [a link](http://x), `code`, 1 < 2 and {x}.\n\n- [ ] search\n- search it\n\nget_weather is a tool.',
  '{"name": "Alice", "arguments": {"age": 3}}',
  '```json\n{"name": "your-project", "version": "1.0.0", "scripts": {"test": "x"}}\n```',
  '{"name": "search", "version": "1.0.0"}',
  '{"name": "get_weather"}',
  `{"requests": [${romeJson}]}`,
  `[1, ${romeJson}]`,
  `You would write \`${romeJson}\` for it.`,
  `\`\`\`python\ncall = ${romeJson}\n\`\`\`\nThat is all.`,
  `\`\`\`json\n{"example": ${romeJson}}\n\`\`\``,
  '{"name": "get_weather", "description": "Does it.", "parameters": {"type": "object"}}',
  '[get_weather(Rome)] and [get_weather](http://x)',
  'search {query} with\nsearch { "query": x }',
  'search\n{"other": 1}',
  '<tools> are what <function=none> names, <b>',
  'Action: wait and see',
  '{"name": "get_wea',
  '{"name": "get_weather", "argum',
  '[get_weather(city="Ro',
  '```json\n{"na',
  '```',
  '{"action": "get_weather", "action_input": "Rome"}',
  'functools is a module of Python',
  '{"x": "unfinished',
]

const formats = new Map<string, ChatFormat>()
function formatOf(template: string): ChatFormat {
  const format = formats.get(template) ?? ruledFormat(familyTemplate(template)).format
  formats.set(template, format)
  return format
}

/** No template: all text is left to the reader. */
const NONE = 'none'

function read(template: string, parts: readonly string[], bare: readonly ToolDefinition[] = tools) {
  const parser =
    template === NONE
      ? none({ source: '', tags: null }).parser('').withBare(bare)
      : formatOf(template).parser(tools, undefined, bare)
  const pushed = parts.flatMap((part) => parser.push(part))
  const { events, ...reply } = parser.finish()
  return { reply, events: [...pushed, ...events] }
}

const said = (reply: ParsedReply): readonly Call[] =>
  reply.toolCalls.map(({ name, arguments: given, malformed }) => [name, malformed ?? given])

const streamed = (events: readonly ReplyEvent[]): string =>
  events.map((event) => (event.type === 'text' ? event.text : '')).join('')

const formsIn = (events: readonly ReplyEvent[]) => events.flatMap((event) => (event.type === 'bare-call' ? [event.form] : []))

/** All of what was handed out, with neighbouring texts and arguments joined. */
function joined(events: readonly ReplyEvent[]): unknown[] {
  const all: ReplyEvent[] = []
  for (const event of events) {
    const last = all.at(-1)
    if (last?.type === event.type && (event.type === 'text' || event.type === 'reasoning' || event.type === 'arguments'))
      all[all.length - 1] = { ...event, text: (last as typeof event).text + event.text }
    else all.push(event)
  }
  return all
}

describe('as models write them', () => {
  test('there are ten families and more', () => {
    expect(Object.keys(families).length).toBeGreaterThanOrEqual(10)
  })

  const cases = Object.entries(families).flatMap(([template, transcripts]) =>
    transcripts.map((each) => [template, each] as const),
  )
  test.each(cases)('%s: %j', (template, { reply, calls, content = '', form = [], isClosed = true }) => {
    const whole = read(template, [reply])
    expect(said(whole.reply)).toEqual(calls)
    expect(whole.reply.content).toBe(content)
    expect(streamed(whole.events)).toBe(content)
    expect(formsIn(whole.events)).toEqual(typeof form === 'string' ? calls.map(() => form) : form)
    expect(whole.reply.isBareClosed).toBe(form.length === 0 ? undefined : isClosed)
    const split = read(template, reply.split(''))
    expect(split.reply).toEqual(whole.reply)
    expect(joined(split.events)).toEqual(joined(whole.events))
  })

  const bare = cases.filter(([, { form }]) => form !== undefined)
  test.each(bare)('stays text where bare calls are not read: %s: %j', (template, { reply }) => {
    const { events, reply: parsed } = read(template, [reply], [])
    expect(formsIn(events)).toEqual([])
    expect(parsed.toolCalls.filter(({ malformed }) => malformed === undefined)).toEqual([])
  })
})

describe('text', () => {
  test.each(texts)('%j', (reply) => {
    for (const parts of [[reply], reply.split('')]) {
      const whole = read(NONE, parts)
      expect(whole.reply).toEqual({ content: reply, toolCalls: [] })
      expect(streamed(whole.events)).toBe(reply)
    }
  })

  test.each([
    '{"name": "Alice", "arguments": {"age": 3}}',
    '{"name": "Alice", "age": 3}',
    '{"name": "your-project", "version": "1.0.0", "x": oops',
    '{"name": "get_wea',
    '{"id": 1, "name": "Alice"}',
  ])('of a Llama, which has no tags around calls: %j', (reply) => {
    for (const declared of [tools, []])
      for (const parts of [[reply], reply.split('')]) {
        const parser = formatOf('meta-llama-Llama-3.1-8B-Instruct').parser(declared, undefined, declared)
        const told = streamed(parts.flatMap((part) => parser.push(part)))
        const { events, ...parsed } = parser.finish()
        expect(parsed).toEqual({ content: reply, toolCalls: [] })
        expect(told + streamed(events)).toBe(reply)
      }
  })

  test('is handed out as soon as it cannot become a call', () => {
    const parser = formatOf('Qwen-Qwen2.5-7B-Instruct').parser(tools, undefined, tools)
    const told = (part: string) => streamed(parser.push(part))
    expect(told('```json\n')).toBe('')
    expect(told('{"name": "get_')).toBe('')
    expect(told('x')).toBe('```json\n{"name": "get_x')
    expect(told('", "arguments": {"a": 1}}\n')).toBe('", "arguments": {"a": 1}}')
  })

  test('is a call as soon as nothing else can come', () => {
    const parser = formatOf('Qwen-Qwen2.5-7B-Instruct').parser(tools, undefined, tools)
    expect(parser.push('Well:\n```json\n{"name": "get_weather", "arguments": ')).toEqual([{ type: 'text', text: 'Well:' }])
    expect(parser.push('{"city": "Ro')).toEqual([
      { type: 'call-start', name: 'get_weather' },
      { type: 'arguments', id: 'call_1', name: 'get_weather', text: '{"city":"Ro' },
    ])
    expect(parser.push('me"}}')).toEqual([{ type: 'arguments', id: 'call_1', name: 'get_weather', text: 'me"}' }])
    // It is complete with its fence.
    expect(parser.push('\n```').map(({ type }) => type)).toEqual(['bare-call', 'call'])
  })
})

test('text behind a call that the beginning of the answer begins is not taken for that beginning', () => {
  const format = formatOf('Qwen-Qwen2.5-7B-Instruct')
  const news = new ContinuationFilter('{"name": ', () => format.parser(tools, undefined, tools))
  const { parser } = news
  const told = [...news.of(parser.push('"get_time", "arguments": {}} That is the time.')), ...news.of(parser.finish().events)]
  expect(streamed(told)).toBe('That is the time.')
})

describe('calls that are not whole', () => {
  test.each<[reply: string, call: Call, content: string]>([
    ['{"name": "get_weather", "arguments": {"city": "Ro', ['get_weather', '{"city": "Ro'], ''],
    ['```json\n{"name": "get_weather", "arguments": {"city": Rome}}\n```\nDone.', ['get_weather', '{"city": Rome}}'], 'Done.'],
    ['<tools>{"name": "get_weather", "arguments": {"city": Rome}}</tools>', ['get_weather', '{"city": Rome}}'], ''],
    ['<function=write_file>\n<parameter=path>\na.t', ['write_file', '<parameter=path>\na.t'], ''],
  ])('%j', (reply, call, content) => {
    for (const parts of [[reply], reply.split('')]) {
      const { reply: parsed } = read('Qwen-Qwen2.5-7B-Instruct', parts)
      expect(said(parsed)).toEqual([call])
      expect(parsed.content).toBe(content)
    }
  })

  test('a list that is still open is not closed', () => {
    expect(read('Qwen-Qwen2.5-7B-Instruct', [`[${romeJson}`]).reply.isBareClosed).toBe(false)
    expect(read('Qwen-Qwen2.5-7B-Instruct', [`[${romeJson}]`]).reply.isBareClosed).toBe(true)
  })
})

test('reasoning is no place for calls', () => {
  const { reply } = read('Qwen-Qwen3-0.6B', [`<think>\nI could write ${romeJson}.\n</think>\n\n${osloJson}`])
  expect(reply.reasoning).toBe(`I could write ${romeJson}.`)
  expect(said(reply)).toEqual([oslo])
})

test('digits, order of keys and ids are as written', () => {
  const written = '{"limit": 9007199254740993, "query": "x"}'
  const { reply } = read('Qwen-Qwen2.5-7B-Instruct', [`{"id": "own", "name": "search", "arguments": ${written}}`])
  expect(reply.toolCalls[0]?.id).toBe('own')
  expect(Object.keys(reply.toolCalls[0]!.arguments)).toEqual(['limit', 'query'])
  const { events } = read('Qwen-Qwen2.5-7B-Instruct', [`{"name": "search", "arguments": ${written}}`])
  expect(events.map((event) => (event.type === 'arguments' ? event.text : '')).join('')).toBe(
    '{"limit":9007199254740993,"query":"x"}',
  )
})

describe('any text, split anywhere', () => {
  const replies = Object.values(families).flatMap((each) => each.map(({ reply }) => reply))
  const pieces = fc.array(
    fc.oneof(
      fc.constantFrom(...replies, ...texts),
      fc.constantFrom(
        '{',
        '}',
        '[',
        ']',
        '`',
        '```',
        '```json\n',
        '\n',
        ' ',
        ',',
        ';',
        '"',
        '<tools>',
        '</tools>',
        '<think>',
        '</think>',
      ),
      fc.constantFrom('get_weather', '{"name": "', '"arguments": {', 'Action: ', '[ARGS]', '<function=', 'search(', 'x'),
      fc.constantFrom('<tool_call name="', 'get_time" arguments={', "'/>", '}>'),
      fc.string({ maxLength: 6 }),
    ),
    { maxLength: 7 },
  )
  const anySplit = (reply: string, cuts: readonly number[]) => {
    const places = [0, ...cuts.map((cut) => cut % (reply.length + 1)).sort((a, b) => a - b), reply.length]
    return places.slice(1).map((place, index) => reply.slice(places[index], place))
  }

  test.each(['Qwen-Qwen2.5-7B-Instruct', 'meta-llama-Llama-3.2-3B-Instruct', NONE, 'Mistral-Small-3.2-24B-Instruct-2506'])(
    'gives the same: %s',
    (template) => {
      fc.assert(
        fc.property(pieces, fc.array(fc.nat(400), { maxLength: 12 }), (parts, cuts) => {
          const reply = parts.join('')
          const whole = read(template, [reply])
          const split = read(template, anySplit(reply, cuts))
          expect(split.reply).toEqual(whole.reply)
          expect(joined(split.events)).toEqual(joined(whole.events))
          expect(streamed(whole.events)).toBe(whole.reply.content)
        }),
        { numRuns: 300 },
      )
    },
  )

  test('without a declared tool all of it is text', () => {
    const others = [tool('unheard_of', { city: text })]
    fc.assert(
      fc.property(pieces, fc.array(fc.nat(400), { maxLength: 12 }), (parts, cuts) => {
        const reply = parts.join('').replaceAll(/<\/?think>/g, '')
        const { reply: parsed } = read(NONE, anySplit(reply, cuts), others)
        expect(parsed.content).toBe(reply)
      }),
      { numRuns: 300 },
    )
  })

  test('no text is lost or doubled around calls', () => {
    const prose = fc.constantFrom(
      'One.',
      'See [1] and {two}.',
      'a `b` c',
      '```python\nx = [1]\n```',
      '{"name": "Bob"}',
      'Ünï 😀 cödé',
    )
    const calls = fc.constantFrom(...families['Qwen-Qwen2.5-7B-Instruct']!.slice(0, 7))
    fc.assert(
      fc.property(fc.array(fc.tuple(prose, calls), { minLength: 1, maxLength: 4 }), prose, (parts, end) => {
        const reply = [...parts.flatMap(([before, { reply: written }]) => [before, written]), end].join('\n\n')
        const { reply: parsed } = read('Qwen-Qwen2.5-7B-Instruct', [reply])
        expect(parsed.content).toBe([...parts.map(([before]) => before), end].join('\n\n'))
        expect(said(parsed)).toEqual(parts.flatMap(([, each]) => each.calls))
      }),
    )
  })
})

/** The sampled tokens of an answer stay in the prompts after it wherever those of a call in the template's own form do. */
test.each(realTemplates().map(({ name, source }) => [name, source] as const))('cells of bare calls are kept: %s', (_, source) => {
  const made = ruledFormat(source)
  const { format, tokenizer } = made
  // There the first line of every answer names who it is for.
  if (format.capabilities.trouble !== null || format.syntax.name === 'functionary-v3.2') return
  const { open = '', close = '' } = format.syntax.reasoning ?? {}
  const only = {
    ...weatherTool,
    parameters: { ...weatherTool.parameters, properties: { city: { enum: ['Rome'], description: 'x' } } },
  }
  const grammar = format.syntax.grammar([only], close, true)
  if (grammar === null) return
  const own = new Grammar(grammar).draw(() => 0)
  const thought = open !== '' && format.opens(open) ? `hm\n${close}\n\n` : ''
  const asked: ChatMessage[] = [{ role: 'user', content: 'Hi' }]
  const before = format.render({ messages: asked, tools: [weatherTool] })
  const isKept = (text: string) => {
    const parser = format.parser([weatherTool], undefined, [weatherTool])
    parser.push(text)
    const parsed = parser.finish()
    expect(parsed.toolCalls.map(({ name }) => name)).toContain('get_weather')
    const answer = { ...assistantMessage(parsed), sampled: { text, tokens: tokenizer.tokenize(text, { parseSpecial: true }) } }
    const results = parsed.toolCalls.map(({ id, name }): ChatMessage => ({ role: 'tool', content: 'sun', name, toolCallId: id }))
    const after = format.render({ messages: [...asked, answer, ...results], tools: [weatherTool] })
    return format.check(before, after) === null && tokenizer.text(after.tokens).startsWith(tokenizer.text(before.tokens) + text)
  }
  for (const prose of ['', 'Sure.\n\n']) {
    if (!isKept(thought + prose + own)) continue
    for (const bare of [
      romeJson,
      `\`\`\`json\n${spread}\n\`\`\``,
      `\`\`\`json\n${romeJson}\n${osloJson}\n\`\`\``,
      `<tools>${romeJson}</tools>`,
      '[get_weather(city="Rome")]',
    ])
      expect([bare, isKept(thought + prose + bare)]).toEqual([bare, true])
  }
})

test('a long text without line breaks is read in time that grows with its length only', () => {
  const parser = none({ source: '', tags: null }).parser('').withBare(tools)
  const long = 'a word, '.repeat(65_000)
  const began = process.cpuUsage()
  parser.push(long)
  const { user, system } = process.cpuUsage(began)
  expect(parser.finish().content).toBe(long)
  expect((user + system) / 1e6).toBeLessThan(1)
})

const written = JSON.stringify({ path: 'a', content: '@' })
test.each([
  ['a list of Python calls', '[write_file(path="a", content="@")]'],
  ['a printed Python call', '```tool_code\nprint(write_file(path="a", content="@"))\n```'],
  ['a name and JSON', `write_file ${written}`],
  ['arguments before the name', `{"arguments": ${written}, "name": "write_file"}`],
  ['a tag around JSON', `<function=write_file>${written}</function>`],
])('a long call that arrives in pieces is read in time that grows with its length only: %s', (_, form) => {
  const properties = { path: { type: 'string' }, content: { type: 'string' } }
  const own = [{ name: 'write_file', description: '', parameters: { type: 'object', properties } }]
  const parser = none({ source: '', tags: null }).parser('').withBare(own)
  const content = 'a (word], '.repeat(8_000)
  const text = form.replace('@', content)
  const began = process.cpuUsage()
  for (let at = 0; at < text.length; at += 4) parser.push(text.slice(at, at + 4))
  const { toolCalls } = parser.finish()
  const { user, system } = process.cpuUsage(began)
  expect(toolCalls.map((call) => call.arguments)).toEqual([{ path: 'a', content }])
  expect((user + system) / 1e6).toBeLessThan(2)
})

test('brackets without end within each other are no call', () => {
  const text = `[get_weather(city=${'['.repeat(20_000)}`
  const parser = none({ source: '', tags: null }).parser('').withBare(tools)
  for (let at = 0; at < text.length; at += 1000) parser.push(text.slice(at, at + 1000))
  expect(parser.finish()).toMatchObject({ content: text, toolCalls: [] })
})
