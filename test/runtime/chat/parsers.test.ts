import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { ParsedReply, ReplyEvent, ReplyParser } from '../../../src/runtime/chat/parser.js'
import { apertus, apriel, commandR, firefunction, granite, nemotron } from '../../../src/runtime/chat/syntax/arrays.js'
import { ArgumentText, JsonScanner } from '../../../src/runtime/chat/syntax/call.js'
import { functionary31, functionary32 } from '../../../src/runtime/chat/syntax/functionary.js'
import { harmony } from '../../../src/runtime/chat/syntax/harmony.js'
import { hermes, seed } from '../../../src/runtime/chat/syntax/hermes.js'
import { llama3 } from '../../../src/runtime/chat/syntax/llama3.js'
import { mistral } from '../../../src/runtime/chat/syntax/mistral.js'
import { none } from '../../../src/runtime/chat/syntax/detect.js'
import { pythonic } from '../../../src/runtime/chat/syntax/pythonic.js'
import { deepseek, kimi } from '../../../src/runtime/chat/syntax/sections.js'
import type { SyntaxFamily } from '../../../src/runtime/chat/syntax/syntax.js'
import { readJson, writeJson } from '../../../src/runtime/core/written-json.js'

const traits = { source: '', tags: null }
const call = (id: number, name: string, given: Readonly<Record<string, unknown>>) => ({
  id: `call_${id}`,
  name,
  arguments: given,
})
const malformed = (id: number, name: string, raw: string) => ({ id: `call_${id}`, name, arguments: {}, malformed: raw })

interface Case {
  readonly what: string
  readonly family: SyntaxFamily
  readonly prompt?: string
  readonly reply: string
  readonly expected: ParsedReply
}

const rome = { city: 'Rome' }
const plain = (content: string): ParsedReply => ({ content, toolCalls: [] })

const cases: Case[] = [
  {
    what: 'hermes: text only',
    family: hermes,
    reply: ' Hello <b>you</b>, 1 < 2 \n',
    expected: plain(' Hello <b>you</b>, 1 < 2 \n'),
  },
  { what: 'hermes: nothing', family: hermes, reply: '', expected: plain('') },
  {
    what: 'hermes: text and two calls',
    family: hermes,
    reply:
      'ok\n<tool_call>\n{"name": "a", "arguments": {"city": "Rome"}}\n</tool_call>\n<tool_call>\n{"name": "b", "arguments": {}}\n</tool_call>',
    expected: { content: 'ok', toolCalls: [call(1, 'a', rome), call(2, 'b', {})] },
  },
  {
    what: 'hermes: a closing tag inside a string',
    family: hermes,
    reply: '<tool_call>{"name": "a", "arguments": {"x": "</tool_call>", "y": "\\"}"}}</tool_call> after',
    expected: { content: 'after', toolCalls: [call(1, 'a', { x: '</tool_call>', y: '"}' })] },
  },
  {
    what: 'hermes: a broken call keeps its raw text, the next one is read',
    family: hermes,
    reply:
      '<tool_call>\n{"name": "a", "arguments": {"x": oops}}\n</tool_call>\n<tool_call>\n{"name": "b", "arguments": {}}\n</tool_call>',
    expected: { content: '', toolCalls: [malformed(1, 'a', '{"x": oops}'), call(2, 'b', {})] },
  },
  {
    what: 'hermes: no JSON at all',
    family: hermes,
    reply: '<tool_call>do it</tool_call>',
    expected: { content: '', toolCalls: [malformed(1, '', 'do it')] },
  },
  {
    what: 'hermes: cut off within a call',
    family: hermes,
    reply: 'x <tool_call>\n{"name": "a", "arguments": {"x": "y',
    expected: { content: 'x', toolCalls: [malformed(1, 'a', '{"x": "y')] },
  },
  {
    what: 'hermes: complete JSON, cut off before the closing tag',
    family: hermes,
    reply: '<tool_call>\n{"name": "a", "arguments": {}}\n</tool',
    expected: { content: '</tool', toolCalls: [call(1, 'a', {})] },
  },
  {
    what: 'hermes: closing tags within a value',
    family: hermes,
    reply:
      '<tool_call>\n<function=a>\n<parameter=text>\nx</tool_call>y</tool_call>\n</parameter>\n</function>\n</tool_call> and <tool_call>\n<function=b>\n</function>\n</tool_call>',
    expected: { content: 'and', toolCalls: [call(1, 'a', { text: 'x</tool_call>y</tool_call>' }), call(2, 'b', {})] },
  },
  {
    what: 'hermes: a closing tag within a value of GLM',
    family: hermes,
    reply: '<tool_call>a\n<arg_key>text</arg_key>\n<arg_value>x</tool_call>y</arg_value>\n</tool_call>',
    expected: { content: '', toolCalls: [call(1, 'a', { text: 'x</tool_call>y' })] },
  },
  {
    what: 'hermes: a value that never ends',
    family: hermes,
    reply: '<tool_call>\n<function=a>\n<parameter=text>\nx</tool_call>y',
    expected: { content: 'y', toolCalls: [call(1, 'a', { text: 'x' })] },
  },
  {
    what: 'hermes: arguments as JSON text',
    family: hermes,
    reply: '<tool_call>{"name": "a", "arguments": "{\\"city\\": \\"Rome\\"}"}</tool_call>',
    expected: { content: '', toolCalls: [call(1, 'a', rome)] },
  },
  { what: 'hermes: a tag that never comes', family: hermes, reply: 'a <tool_ca', expected: plain('a <tool_ca') },
  {
    what: 'hermes: reasoning',
    family: hermes,
    reply: '<think>\nhm <b>\n</think>\n\nSun\n<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>',
    expected: { content: 'Sun', reasoning: 'hm <b>', toolCalls: [call(1, 'a', {})] },
  },
  {
    what: 'hermes: a tag of reasoning in the text of a model without reasoning',
    family: hermes,
    reply: 'The tag <think> opens the reasoning of R1. <tool_call>{"name": "a", "arguments": {}}</tool_call>',
    expected: { content: 'The tag <think> opens the reasoning of R1.', toolCalls: [call(1, 'a', {})] },
  },
  {
    what: 'hermes: two thoughts before the text',
    family: hermes,
    reply: '\n<think>a</think>\n<think>b</think>Sun <think>',
    expected: { content: 'Sun <think>', reasoning: 'ab', toolCalls: [] },
  },
  {
    what: 'hermes: reasoning opened by the prompt',
    family: hermes,
    prompt: 'assistant\n<think>\n',
    reply: 'hm</think>Sun',
    expected: { content: 'Sun', reasoning: 'hm', toolCalls: [] },
  },
  {
    what: 'hermes: reasoning cut off',
    family: hermes,
    prompt: '<think>',
    reply: 'hm </thi',
    expected: { content: '', reasoning: 'hm </thi', toolCalls: [] },
  },
  {
    what: 'qwen3-coder tags',
    family: hermes,
    reply:
      '<tool_call>\n<function=a>\n<parameter=city>\nRome\n</parameter>\n<parameter=n>\n3\n</parameter>\n<parameter=t>\nx\ny\n</parameter>\n</function>\n</tool_call>',
    expected: { content: '', toolCalls: [call(1, 'a', { city: 'Rome', n: 3, t: 'x\ny' })] },
  },
  {
    what: 'qwen3-coder tags around a text with tags',
    family: hermes,
    reply:
      '<tool_call>\n<function=a>\n<parameter=t>\nx </function> y\n</parameter>\n</function>\n<function=b>\n</function>\n</tool_call>',
    expected: { content: '', toolCalls: [call(1, 'a', { t: 'x </function> y' }), call(2, 'b', {})] },
  },
  {
    what: 'glm tags',
    family: hermes,
    reply:
      '<tool_call>a\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>l</arg_key>\n<arg_value>[1]</arg_value>\n</tool_call>',
    expected: { content: '', toolCalls: [call(1, 'a', { city: 'Rome', l: [1] })] },
  },
  {
    what: 'qwen3-coder tags, cut off in a value',
    family: hermes,
    reply: '<tool_call>\n<function=a>\n<parameter=city>\nRo',
    expected: { content: '', toolCalls: [malformed(1, 'a', '<parameter=city>\nRo')] },
  },
  {
    what: 'glm tags, cut off behind a value',
    family: hermes,
    reply: '<tool_call>a\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n',
    expected: { content: '', toolCalls: [malformed(1, 'a', '<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>')] },
  },
  {
    what: 'seed',
    family: seed,
    reply: '<seed:tool_call>\n<function=a>\n<parameter=city>Rome</parameter>\n</function>\n</seed:tool_call>',
    expected: { content: '', toolCalls: [call(1, 'a', rome)] },
  },
  {
    what: 'llama3: one call',
    family: llama3,
    reply: '{"name": "a", "parameters": {"city": "Rome"}}',
    expected: { content: '', toolCalls: [call(1, 'a', rome)] },
  },
  {
    what: 'llama3: several, separated',
    family: llama3,
    reply:
      '<|python_tag|>{"name": "a", "parameters": {"city": "Rome"}}; {"name": "b", "parameters": {}}\n{"name": "c", "arguments": {}}',
    expected: { content: '', toolCalls: [call(1, 'a', rome), call(2, 'b', {}), call(3, 'c', {})] },
  },
  {
    what: 'llama3: a broken call with a type',
    family: llama3,
    reply: '{"type": "function", "name": "a", "parameters": {"city": "Ro',
    expected: {
      content: '',
      toolCalls: [malformed(1, 'a', '{"type": "function", "name": "a", "parameters": {"city": "Ro')],
    },
  },
  { what: 'llama3: text', family: llama3, reply: 'It is {"name": 1}; so.', expected: plain('It is {"name": 1}; so.') },
  {
    what: 'llama3: an answer that is JSON',
    family: llama3,
    reply: '{"city": "Rome"} is it',
    expected: plain('{"city": "Rome"} is it'),
  },
  {
    what: 'llama3: text after a call',
    family: llama3,
    reply: '{"name": "a", "parameters": {}}; done',
    expected: { content: 'done', toolCalls: [call(1, 'a', {})] },
  },
  {
    what: 'llama3: a tag within text',
    family: llama3,
    reply: 'Now <|python_tag|>{"name": "a", "parameters": {}}',
    expected: { content: 'Now', toolCalls: [call(1, 'a', {})] },
  },
  {
    what: 'llama3: a broken call',
    family: llama3,
    reply: '{"name": "a", "parameters": {x}}',
    expected: { content: '', toolCalls: [malformed(1, 'a', '{"name": "a", "parameters": {x}}')] },
  },
  {
    what: 'llama3: code after the tag',
    family: llama3,
    reply: '<|python_tag|>print(1)',
    expected: plain('<|python_tag|>print(1)'),
  },
  {
    what: 'mistral: array with ids',
    family: mistral,
    reply: '[TOOL_CALLS][{"name": "a", "arguments": {"city": "Rome"}, "id": "abcdefgh1"}, {"name": "b", "arguments": {}}]',
    expected: { content: '', toolCalls: [{ id: 'abcdefgh1', name: 'a', arguments: rome }, call(2, 'b', {})] },
  },
  {
    what: 'mistral: two calls with one id',
    family: mistral,
    reply:
      '[TOOL_CALLS][{"name": "a", "arguments": {"city": "Rome"}, "id": "call_2"}, {"name": "b", "arguments": {}, "id": "call_2"}]',
    expected: { content: '', toolCalls: [call(2, 'a', rome), call(3, 'b', {})] },
  },
  {
    what: 'mistral: named',
    family: mistral,
    reply: 'ok[TOOL_CALLS]a[ARGS]{"city": "Rome"}[TOOL_CALLS]b[CALL_ID]abcdefgh2[ARGS]{}',
    expected: { content: 'ok', toolCalls: [call(1, 'a', rome), { id: 'abcdefgh2', name: 'b', arguments: {} }] },
  },
  {
    what: 'mistral: broken array',
    family: mistral,
    reply: '[TOOL_CALLS][{"name": a}]',
    expected: { content: '', toolCalls: [malformed(1, '', '[{"name": a}]')] },
  },
  {
    what: 'mistral: broken arguments',
    family: mistral,
    reply: '[TOOL_CALLS]a[ARGS]{x}[TOOL_CALLS]b[ARGS]{}',
    expected: { content: '', toolCalls: [malformed(1, 'a', '{x}'), call(2, 'b', {})] },
  },
  {
    what: 'harmony: analysis, preamble, two calls',
    family: harmony,
    prompt: '<|start|>assistant',
    reply:
      '<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.a <|constrain|>json<|message|>{"city": "Rome"}<|call|><|start|>assistant to=functions.b<|channel|>commentary json<|message|>{}',
    expected: { content: 'I look.', reasoning: 'hm', toolCalls: [call(1, 'a', rome), call(2, 'b', {})] },
  },
  {
    what: 'harmony: final',
    family: harmony,
    prompt: '<|start|>assistant',
    reply: '<|channel|>final<|message|>Sun < rain',
    expected: plain('Sun < rain'),
  },
  { what: 'harmony: no header', family: harmony, prompt: '<|start|>assistant', reply: 'Sun', expected: plain('Sun') },
  {
    what: 'harmony: cut off within the first header',
    family: harmony,
    prompt: '<|start|>assistant',
    reply: '<|channel|>',
    expected: plain(''),
  },
  {
    what: 'harmony: cut off within the header of a call',
    family: harmony,
    prompt: '<|start|>assistant',
    reply: ' to=functions.a<|channel|>comm',
    expected: plain(''),
  },
  {
    what: 'harmony: cut off within a later header',
    family: harmony,
    prompt: '<|start|>assistant',
    reply: '<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final',
    expected: { content: '', reasoning: 'hm', toolCalls: [] },
  },
  {
    what: 'harmony: the recipient before the channel',
    family: harmony,
    prompt: '<|start|>assistant',
    reply: ' to=functions.a<|channel|>commentary json<|message|>{"city": "Rome"}<|call|>',
    expected: { content: '', toolCalls: [call(1, 'a', rome)] },
  },
  {
    what: 'harmony: broken arguments',
    family: harmony,
    prompt: '<|start|>assistant',
    reply: '<|channel|>commentary to=functions.a<|message|>{x',
    expected: { content: '', toolCalls: [malformed(1, 'a', '{x')] },
  },
  {
    what: 'functionary v3.1',
    family: functionary31,
    reply: 'ok <function=a>{"city": "Rome"}</function><function=b>{"x": "</function>"}</function>',
    expected: { content: 'ok', toolCalls: [call(1, 'a', rome), call(2, 'b', { x: '</function>' })] },
  },
  {
    what: 'functionary v3.2',
    family: functionary32,
    prompt: '>>>',
    reply: 'all\nI look.>>>a\n{"city": "Rome"}>>>b\n{}',
    expected: { content: 'I look.', toolCalls: [call(1, 'a', rome), call(2, 'b', {})] },
  },
  {
    what: 'functionary v3.2: broken arguments',
    family: functionary32,
    prompt: '>>>',
    reply: 'a\n{x',
    expected: { content: '', toolCalls: [malformed(1, 'a', '{x')] },
  },
  {
    what: 'deepseek R1 and V3',
    family: deepseek,
    prompt: '<think>\n',
    reply:
      'hm</think>ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>a\n```json\n{"city": "Rome"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>b\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    expected: { content: 'ok', reasoning: 'hm', toolCalls: [call(1, 'a', rome), call(2, 'b', {})] },
  },
  {
    what: 'deepseek: a call without arguments before one with them',
    family: deepseek,
    reply:
      '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>b<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{"city": "Rome"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    expected: { content: '', toolCalls: [malformed(1, 'b', ''), call(2, 'a', rome)] },
  },
  {
    what: 'deepseek V3.1',
    family: deepseek,
    reply: '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{"city": "Rome"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    expected: { content: '', toolCalls: [call(1, 'a', rome)] },
  },
  {
    what: 'kimi: the id carries the name',
    family: kimi,
    reply:
      '<|tool_calls_section_begin|><|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{"city": "Rome"}<|tool_call_end|><|tool_calls_section_end|>',
    expected: { content: '', toolCalls: [{ id: 'functions.a:0', name: 'a', arguments: rome }] },
  },
  {
    what: 'granite',
    family: granite,
    reply: '<|tool_call|>[{"name": "a", "arguments": {"city": "Rome"}}]',
    expected: { content: '', toolCalls: [call(1, 'a', rome)] },
  },
  {
    what: 'command-r',
    family: commandR,
    reply:
      '<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[\n {"tool_call_id": "0", "tool_name": "a", "parameters": {"city": "Rome"}}\n]<|END_ACTION|>',
    expected: { content: '', reasoning: 'hm', toolCalls: [{ id: '0', name: 'a', arguments: rome }] },
  },
  { what: 'command-r: an answer', family: commandR, reply: '<|START_RESPONSE|>Sun<|END_RESPONSE|>', expected: plain('Sun') },
  {
    what: 'nemotron',
    family: nemotron,
    reply: '<TOOLCALL>[{"name": "a", "arguments": {}}]</TOOLCALL>',
    expected: { content: '', toolCalls: [call(1, 'a', {})] },
  },
  {
    what: 'apertus',
    family: apertus,
    reply: '<|tools_prefix|>[{"a": {"city": "Rome"}}, {"b": {}}]<|tools_suffix|>',
    expected: { content: '', toolCalls: [call(1, 'a', rome), call(2, 'b', {})] },
  },
  {
    what: 'apriel',
    family: apriel,
    reply: '<tool_calls>[{"name": "a", "arguments": {}, "id": "x"}]</tool_calls>',
    expected: { content: '', toolCalls: [{ id: 'x', name: 'a', arguments: {} }] },
  },
  {
    what: 'firefunction',
    family: firefunction,
    reply: ' functools[{"name": "a", "arguments": {}}]',
    expected: { content: '', toolCalls: [call(1, 'a', {})] },
  },
  {
    what: 'pythonic',
    family: pythonic,
    reply: "<|tool_call_start|>[a(city='Rome', n=-1.5, l=[1, None, True], d={\"x\": 'it\\'s'}), b()]<|tool_call_end|>done",
    expected: {
      content: 'done',
      toolCalls: [call(1, 'a', { city: 'Rome', n: -1.5, l: [1, null, true], d: { x: "it's" } }), call(2, 'b', {})],
    },
  },
  {
    what: 'pythonic: broken',
    family: pythonic,
    reply: '<|tool_call_start|>[a(city=Rome)]<|tool_call_end|>',
    expected: { content: '', toolCalls: [malformed(1, '', '[a(city=Rome)]')] },
  },
  {
    what: 'none',
    family: none,
    reply: '<think>hm</think> <tool_call>x',
    expected: { content: '<tool_call>x', reasoning: 'hm', toolCalls: [] },
  },
]

/** The streamed text of a call's arguments. */
interface Told {
  readonly id: string
  readonly name: string
  text: string
  isOver: boolean
}

/** Pushes the parts, and collects the streamed events. */
function read(
  parser: ReplyParser,
  parts: readonly string[],
): { readonly reply: ParsedReply; readonly streamed: ParsedReply; readonly told: readonly Told[] } {
  const events: ReplyEvent[] = parts.flatMap((part) => parser.push(part))
  const { events: rest, ...reply } = parser.finish()
  const all = [...events, ...rest]
  const text = (type: 'text' | 'reasoning') => all.map((event) => (event.type === type ? event.text : '')).join('')
  const toolCalls = all.flatMap((event) => (event.type === 'call' ? [event.call] : []))
  const reasoning = text('reasoning')
  const told: Told[] = []
  for (const event of all) {
    if (event.type === 'call') {
      const { id, name } = event.call
      if (told.at(-1)?.isOver !== false) told.push({ id, name, text: '', isOver: false })
      expect(told.at(-1)).toMatchObject({ id, name })
      told.at(-1)!.isOver = true
    } else if (event.type === 'arguments') {
      const { id, name } = event
      if (told.at(-1)?.isOver !== false) told.push({ id, name, text: '', isOver: false })
      expect(told.at(-1)).toMatchObject({ id, name })
      told.at(-1)!.text += event.text
    }
  }
  // Every call that began also ends, and its streamed arguments are complete.
  expect(told.map(({ id, isOver }) => [id, isOver])).toEqual(toolCalls.map(({ id }) => [id, true]))
  toolCalls.forEach(({ malformed, text: asText, arguments: args }, index) => {
    const { text: said } = told[index]!
    if (malformed === undefined && said !== '') expect(said).toBe(asText ?? writeJson(args))
  })
  return { told, reply, streamed: { content: text('text'), ...(reasoning === '' ? {} : { reasoning }), toolCalls } }
}

describe('replies', () => {
  test.each(cases.map((each) => [each.what, each] as const))('%s', (_, { family, prompt = '', reply, expected }) => {
    const { reply: whole, streamed } = read(family(traits).parser(prompt), [reply])
    expect(whole).toEqual(expected)
    expect(streamed).toEqual(expected)
    // However the text is split, down to single characters, the reply and the streamed events are the same.
    expect(read(family(traits).parser(prompt), reply.split(''))).toMatchObject({ reply: expected, streamed: expected })
  })

  const pieces = fc.array(
    fc.oneof(
      ...cases.map(({ reply }) => fc.constant(reply)),
      fc.string({ maxLength: 6 }),
      fc.constantFrom('{', '"', '\n', '<', '</tool_call>', '[ARGS]', '>>>', '<|message|>'),
      fc.constantFrom('{"name": "a", "arguments": ', '"parameters": ', '{"x": [1.0, "\\u00', '{"x": -', '\\ud83d', '}'),
    ),
    { maxLength: 6 },
  )

  test.each([...new Map(cases.map((each) => [each.family, each])).values()].map((each) => [each.what, each] as const))(
    'any reply gives the same however it is split, and never throws: %s',
    (_, { family, prompt = '' }) => {
      fc.assert(
        fc.property(pieces, fc.array(fc.nat(200), { maxLength: 12 }), (parts, cuts) => {
          const text = parts.join('')
          const places = [0, ...cuts.map((cut) => cut % (text.length + 1)).sort((a, b) => a - b), text.length]
          const split = places.slice(1).map((place, index) => text.slice(places[index], place))
          const whole = read(family(traits).parser(prompt), [text])
          expect(read(family(traits).parser(prompt), split)).toEqual(whole)
          expect(whole.streamed).toEqual(whole.reply)
        }),
        { numRuns: 150 },
      )
    },
  )
})

const fenced = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>a\n```json\n'

test.each([
  ['hermes: a broken value', hermes, '<tool_call>\n{"name": "a", "arguments": {"x": "y@z', '{"x": "y@z'],
  ['hermes: a value that is no JSON', hermes, '<tool_call>{"name": "a", "arguments": @y@}@}@</tool_call>', 'y@}'],
  ['deepseek: behind the fence', deepseek, `${fenced}{"x": "y${'@'.repeat(40)}z\n\`\`\``, `{"x": "y${'@'.repeat(40)}z`],
  ['deepseek: before the fence', deepseek, '<｜tool▁call▁begin｜>a<｜tool▁sep｜>@x@y', 'x@y'],
])('a broken call with many spaces is read in time that grows with its length only (%s)', (_, family, reply, raw) => {
  const spaced = (text: string) => text.replaceAll('@', ' '.repeat(1500))
  const began = process.cpuUsage()
  const { toolCalls } = read(family(traits).parser(''), [spaced(reply)]).reply
  const { user, system } = process.cpuUsage(began)
  expect(toolCalls).toEqual([malformed(1, 'a', spaced(raw))])
  expect((user + system) / 1e6).toBeLessThan(0.5)
})

test('a blank line parts texts with a call between them, however they are spaced', () => {
  const called = '<tool_call>{"name": "a", "arguments": {}}</tool_call>'
  for (const between of [called, `\n${called}\n`, ` ${called} ${called}`])
    for (const cut of [[`I look.${between}I see.`], `I look.${between}I see.`.split('')]) {
      const { reply, streamed } = read(hermes(traits).parser(''), cut)
      expect(reply.content).toBe('I look.\n\nI see.')
      expect(streamed).toEqual(reply)
    }
})

test('a model with reasoning may reason again behind text', () => {
  const family = hermes({ source: '', tags: { open: '<think>', close: '</think>' } })
  const { reply } = read(family.parser(''), ['Well, <think>hm</think>Sun'])
  expect(reply).toEqual({ content: 'Well,\n\nSun', reasoning: 'hm', toolCalls: [] })
})

describe('without declared tools', () => {
  const calling = cases.filter(({ family, expected }) => expected.toolCalls.length > 0 && family !== harmony)
  test.each(calling.map((each) => [each.what, each] as const))('there are no calls: %s', (_, { family, prompt = '', reply }) => {
    const { reply: whole, streamed } = read(family(traits).parser(prompt, []), [reply])
    expect(whole.toolCalls).toEqual([])
    expect(streamed).toEqual(whole)
    expect(read(family(traits).parser(prompt, []), reply.split(''))).toMatchObject({ reply: whole, streamed: whole })
  })

  test.each<[SyntaxFamily, string, string]>([
    [hermes, 'Qwen opens a call with <tool_call> and closes it with a slash. That is all.', ''],
    [hermes, 'So: <tool_call>\n{"name": "a", "arguments": {}}\n</tool_call> Done.', ''],
    [mistral, 'Mistral says [TOOL_CALLS][{"name": "a", "arguments": {}}]', ''],
    [functionary31, 'It is <function=a>{}</function>.', ''],
    [functionary32, 'print(1) >>> and\n>>>a\n{}', ''],
    [functionary32, 'Sure.\nIt is >>>a\n{}', '>>>'],
    [pythonic, '<|tool_call_start|>[a()]<|tool_call_end|>', ''],
  ])('the text of a call stays text: %#', (family, reply, prompt) => {
    expect(read(family(traits).parser(prompt, []), [reply]).reply).toEqual(plain(reply))
    expect(read(family(traits).parser(prompt, []), reply.split('')).streamed).toEqual(plain(reply))
  })

  test('a declared tool of Functionary is still called', () => {
    const tools = [{ name: 'b', description: '', parameters: {} }]
    const { reply } = read(functionary32(traits).parser('>>>', tools), ['all\nHi >>>a\n{}>>>b\n{}'])
    expect(reply).toEqual({ content: 'Hi >>>a\n{}', toolCalls: [call(1, 'b', {})] })
  })
})

describe('the value of a parameter', () => {
  const text = { type: 'string' }
  const tools = [{ name: 'a', description: '', parameters: { type: 'object', properties: { t: text, 'u.v': text } } }]
  test.each([
    ['<parameter=t>\nWrite <parameter=x> there\n</parameter>\n', { t: 'Write <parameter=x> there' }],
    ['<parameter=t>\nx\n<parameter=city>\ny\n</parameter>\n', { t: 'x\n<parameter=city>\ny' }],
    ['<parameter=t>\nsee <parameter=t> in it\n</parameter>\n', { t: 'see <parameter=t> in it' }],
    ['<parameter=t>\nnot closed\n<parameter=u.v>\ny\n</parameter>\n', { t: 'not closed', 'u.v': 'y' }],
    ['<parameter=t>\n<parameter=u.v>\ny\n</parameter>\n', { t: '', 'u.v': 'y' }],
  ])('may have the tag of a parameter in it: %j', (inside, given) => {
    const reply = `<tool_call>\n<function=a>\n${inside}</function>\n</tool_call>`
    expect(read(hermes(traits).parser('', tools), [reply]).reply.toolCalls).toEqual([call(1, 'a', given)])
    expect(read(hermes(traits).parser('', tools), reply.split('')).reply.toolCalls).toEqual([call(1, 'a', given)])
  })
})

test('a value is read at once, whatever regular expression its schema has', () => {
  const slow = '^(?!x)(\\w+\\s?)*$'
  const properties = {
    word: { type: 'string', pattern: slow },
    pattern: { type: 'object', patternProperties: { [slow]: { type: 'integer' } }, additionalProperties: false },
    listed: { enum: [{ pattern: 1 }] },
  }
  const tools = [{ name: 'a', description: '', parameters: { type: 'object', properties } }]
  const long = `${'a'.repeat(24)}!`
  const given = { word: long, pattern: { [long]: 1 }, listed: { pattern: 1 } }
  const inside = Object.entries(given).map(([key, value]) => {
    const written = typeof value === 'string' ? value : JSON.stringify(value)
    return `<parameter=${key}>\n${written}\n</parameter>\n`
  })
  const reply = `<tool_call>\n<function=a>\n${inside.join('')}</function>\n</tool_call>`
  const began = process.cpuUsage()
  expect(read(hermes(traits).parser('', tools), [reply]).reply.toolCalls).toEqual([call(1, 'a', given)])
  const { user, system } = process.cpuUsage(began)
  expect((user + system) / 1e6).toBeLessThan(0.5)
})

test.each([
  [{ type: 'string', not: { pattern: '^-' } }],
  [
    {
      oneOf: [
        { type: 'string', pattern: '^\\d+$' },
        { type: 'string', pattern: '^[a-z]+$' },
      ],
    },
  ],
  [{ type: 'string', if: { pattern: '^0' }, then: { maxLength: 1 } }],
])('a text of digits stays text under %j', (schema) => {
  const tools = [{ name: 'a', description: '', parameters: { type: 'object', properties: { id: schema } } }]
  const reply = '<tool_call>\n<function=a>\n<parameter=id>\n123\n</parameter>\n</function>\n</tool_call>'
  expect(read(hermes(traits).parser('', tools), [reply]).reply.toolCalls).toEqual([call(1, 'a', { id: '123' })])
})

describe('streamed arguments', () => {
  const begun: [string, SyntaxFamily, string, string][] = [
    ['hermes', hermes, '<tool_call>\n{"name": "a", "arguments": @', ''],
    ['llama3', llama3, '{"name": "a", "parameters": @', ''],
    ['llama3 with a type', llama3, '{"type": "function", "name": "a", "parameters": @', ''],
    ['llama3 with its tag', llama3, '<|python_tag|>{"name": "a", "parameters": @', ''],
    ['mistral', mistral, '[TOOL_CALLS]a[ARGS]@', ''],
    ['harmony', harmony, '<|channel|>commentary to=functions.a <|constrain|>json<|message|>@', ''],
    ['functionary 3.1', functionary31, '<function=a>@', ''],
    ['functionary 3.2', functionary32, 'a\n@', '>>>'],
    ['deepseek', deepseek, '<｜tool▁call▁begin｜>a<｜tool▁sep｜>@', ''],
    ['deepseek in a fence', deepseek, '<｜tool▁call▁begin｜>function<｜tool▁sep｜>a\n```json\n@', ''],
    ['kimi', kimi, '<|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>@', ''],
  ]

  test.each(begun)('come as they are written: %s', (_, family, reply, prompt) => {
    const parser = family(traits).parser(prompt)
    const events = parser.push(reply.replace('@', '{"city": "Rome", "days": [1.50, 2'))
    const text = events.map((event) => (event.type === 'arguments' && event.name === 'a' ? event.text : '')).join('')
    expect(text).toBe('{"city":"Rome","days":[1.50,')
    expect(events.some(({ type }) => type === 'call')).toBe(false)
  })

  test("are the call's arguments, even if the model repeats a key or escapes differently", () => {
    const given = '{"b": 1, "1": "\\u00e9\\/\\ud83d\\ude00", "b": {"__proto__": -0}}'
    const { reply, told } = read(hermes(traits).parser(''), [`<tool_call>{"name": "a", "arguments": ${given}}</tool_call>`])
    expect(told[0]?.text).toBe('{"b":1,"1":"é/😀","b":{"__proto__":-0}}')
    expect(reply.toolCalls).toEqual([
      { ...call(1, 'a', readJson(told[0]!.text) as Record<string, unknown>), text: told[0]?.text },
    ])
  })

  test('are those of JSON.stringify, however they are written and split', () => {
    const objects = fc.dictionary(
      fc.string({ unit: 'binary', maxLength: 6 }),
      fc.jsonValue({ depthSize: 'small', stringUnit: 'binary' }),
      { maxKeys: 4 },
    )
    const escaped = (text: string) =>
      text.replace(/[\u007f-\uffff]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`)
    fc.assert(
      fc.property(objects, fc.nat(3), fc.boolean(), fc.integer({ min: 1, max: 9 }), (value, space, ascii, size) => {
        const written = JSON.stringify(value, null, space)
        const text = ascii ? escaped(written) : written
        const expected = JSON.stringify(value)
        const parts = new ArgumentText()
        let sum = ''
        for (let end = size; end < text.length + size; end += size) sum += parts.push(text.slice(0, end))
        expect(sum).toBe(expected)
        expect(parts.isComplete).toBe(true)
      }),
      { numRuns: 120 },
    )
  })

  test.each(['"{}"', '[1]', '3 ', 'x'])('are empty if there is no object: %s', (text) => {
    expect(new ArgumentText().push(text)).toBe('')
  })
})

describe('the end of a JSON value', () => {
  test('is where JSON.parse finds it', () => {
    fc.assert(
      fc.property(fc.jsonValue(), fc.nat(10), fc.constantFrom('', ' rest', ']', '}', ',', '<x>'), (value, step, rest) => {
        const text = JSON.stringify(value, null, step % 3)
        const scanner = new JsonScanner(0)
        const outcomes = Array.from({ length: text.length }, (_, at) => scanner.scan(text.slice(0, at)))
        expect(outcomes.every(({ state }) => state !== 'invalid')).toBe(true)
        const scalar = value === null || (typeof value !== 'object' && typeof value !== 'string')
        if (scalar && rest.startsWith('<')) return
        expect(scanner.scan(text + rest, true)).toEqual({ state: 'complete', end: text.length })
      }),
      { numRuns: 300 },
    )
  })

  test.each(['{a}', '{"a" 1}', '[1 2]', '{"a":}', '[,]', '"\n"', '{"a":1]', 'nul ', '{"a":tru}'])('%j is not JSON', (text) => {
    expect(new JsonScanner(0).scan(text, true)).toEqual({ state: 'invalid' })
  })
})
