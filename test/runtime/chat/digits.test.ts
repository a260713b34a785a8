/** Tests that templates and call syntaxes keep numbers and keys as they were written. */
import { describe, expect, test } from 'vitest'
import type { ChatMessage, ToolDefinition } from '../../../src/runtime/chat/message.js'
import { apertus, commandR, granite } from '../../../src/runtime/chat/syntax/arrays.js'
import { functionary31, functionary32 } from '../../../src/runtime/chat/syntax/functionary.js'
import { harmony } from '../../../src/runtime/chat/syntax/harmony.js'
import { hermes } from '../../../src/runtime/chat/syntax/hermes.js'
import { llama3 } from '../../../src/runtime/chat/syntax/llama3.js'
import { mistral } from '../../../src/runtime/chat/syntax/mistral.js'
import { pythonic } from '../../../src/runtime/chat/syntax/pythonic.js'
import { deepseek, kimi } from '../../../src/runtime/chat/syntax/sections.js'
import type { SyntaxFamily } from '../../../src/runtime/chat/syntax/syntax.js'
import { readJson, writeJson } from '../../../src/runtime/core/written-json.js'
import { realTemplate } from '../../support/bundle.js'
import { callingFamilies, familyTemplate, ruledFormat, sampledMessage } from '../../support/chat-formats.js'

type Fields = Readonly<Record<string, unknown>>

const NUMBERS = ['9007199254740993', '-9223372036854775808', '123456789012345678901234567890', '1e400', '1.50', '2.0', '1E5']
const GIVEN = `{"zeta":[${NUMBERS.join(',')}],"id":12345678901234567890,"4217":{"b":1.0,"3":"x"}}`
const given = readJson(GIVEN) as Fields
const tool: ToolDefinition = {
  name: 'look',
  description: 'Looks.',
  parameters: readJson(
    '{"type": "object", "properties": {"zeta": {"type": "array"}, "id": {"minimum": 9007199254740993}, "4217": {"const": 1.0}}}',
  ) as Fields,
}
const user: ChatMessage = { role: 'user', content: 'Q' }

describe('a call of the history is shown as it was written', () => {
  test.each(callingFamilies.map(([name]) => name))('%s', (name) => {
    const { format } = ruledFormat(familyTemplate(name))
    const { text } = format.render({
      messages: [
        user,
        { role: 'assistant', content: '', toolCalls: [{ id: 'callabcd1', name: 'look', arguments: given }] },
        { role: 'tool', content: 'R', toolCallId: 'callabcd1', name: 'look' },
      ],
    })
    for (const number of [...NUMBERS, '12345678901234567890', '1.0']) expect(text).toContain(number)
    const places = ['zeta', 'id', '4217'].map((key) => text.search(new RegExp(`\\b${key}\\b`)))
    expect(places).toEqual([...places].sort((a, b) => a - b))
  })
})

describe('a call of an answer is read as the model wrote it', () => {
  const families: [string, SyntaxFamily, string, string?][] = [
    ['hermes', hermes, `<tool_call>{"name": "look", "arguments": ${GIVEN}}</tool_call>`],
    ['hermes, arguments as text', hermes, `<tool_call>{"name": "look", "arguments": ${JSON.stringify(GIVEN)}}</tool_call>`],
    [
      'hermes, tags',
      hermes,
      `<tool_call><function=look><parameter=zeta>[${NUMBERS.join(', ')}]</parameter><parameter=id>\n12345678901234567890\n</parameter>` +
        '<parameter=4217>{"b": 1.0, "3": "x"}</parameter></function></tool_call>',
    ],
    [
      'hermes, keys and values',
      hermes,
      `<tool_call>look<arg_key>zeta</arg_key><arg_value>[${NUMBERS.join(', ')}]</arg_value><arg_key>id</arg_key>` +
        '<arg_value>12345678901234567890</arg_value><arg_key>4217</arg_key><arg_value>{"b": 1.0, "3": "x"}</arg_value></tool_call>',
    ],
    ['llama3', llama3, `{"name": "look", "parameters": ${GIVEN}}`],
    ['mistral', mistral, `[TOOL_CALLS]look[ARGS]${GIVEN}`],
    ['mistral, a list', mistral, `[TOOL_CALLS][{"name": "look", "arguments": ${GIVEN}}]`],
    ['granite', granite, `<|tool_call|>[{"name": "look", "arguments": ${GIVEN}}]`],
    ['command-r', commandR, `<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "look", "parameters": ${GIVEN}}]<|END_ACTION|>`],
    ['apertus', apertus, `<|tools_prefix|>[{"look": ${GIVEN}}]<|tools_suffix|>`],
    ['harmony', harmony, `<|channel|>commentary to=functions.look <|constrain|>json<|message|>${GIVEN}<|call|>`],
    ['functionary 3.1', functionary31, `<function=look>${GIVEN}</function>`],
    ['functionary 3.2', functionary32, `look\n${GIVEN}`, '>>>'],
    ['deepseek', deepseek, `<｜tool▁call▁begin｜>look<｜tool▁sep｜>${GIVEN}<｜tool▁call▁end｜>`],
    ['kimi', kimi, `<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>${GIVEN}<|tool_call_end|>`],
    [
      'pythonic',
      pythonic,
      `<|tool_call_start|>[look(zeta=[${NUMBERS.join(', ')}], id=12345678901234567890, 4217={'b': 1.0, 3: 'x'})]<|tool_call_end|>`,
    ],
  ]

  test.each(families)('%s', (_, family, reply, prompt = '') => {
    const parser = family({ source: '', tags: null }).parser(prompt, [tool])
    const events = Array.from(reply).flatMap((char) => parser.push(char))
    const { toolCalls, events: rest } = parser.finish()
    expect(toolCalls.map(({ name, arguments: args }) => [name, writeJson(args)])).toEqual([['look', GIVEN]])
    // The streamed arguments are the same text.
    const told = [...events, ...rest].map((event) => (event.type === 'arguments' ? event.text : '')).join('')
    expect(['', GIVEN]).toContain(told)
  })

  test("Python's numbers that are not JSON are read as their values, with their digits", () => {
    const parser = pythonic({ source: '', tags: null }).parser('')
    parser.push(
      '<|tool_call_start|>[f(a=+5, b=.5, c=007, d=1., e=-0, f={True: None, 2: 3}, g=+9007199254740993, h=.50)]<|tool_call_end|>',
    )
    expect(writeJson(parser.finish().toolCalls[0]?.arguments)).toBe(
      '{"a":5,"b":0.5,"c":7,"d":1,"e":-0,"f":{"true":null,"2":3},"g":9007199254740993,"h":0.50}',
    )
  })

  test('arguments that are only a number keep its digits', () => {
    const parser = hermes({ source: '', tags: null }).parser('')
    parser.push('<tool_call>{"name": "look", "arguments": 9007199254740993}</tool_call>')
    expect(parser.finish().toolCalls).toMatchObject([{ name: 'look', malformed: '9007199254740993' }])
  })
})

describe('a tool is shown as it was written', () => {
  test.each([
    'Qwen-Qwen3-0.6B',
    'mistralai-Mistral-Nemo-Instruct-2407',
    'meta-llama-Llama-3.1-8B-Instruct',
    'ibm-granite-granite-3.3-2B-Instruct',
    'google-gemma-2-2b-it',
  ])('%s', (name) => {
    const { text } = ruledFormat(realTemplate(name)).format.render({ messages: [user], tools: [tool] })
    expect(text).toContain('9007199254740993')
    expect(text.replace(/\s/g, '')).toContain('"4217":{"const":1.0}')
    expect(text.indexOf('"zeta"')).toBeLessThan(text.indexOf('"4217"'))
  })
})

test('an answer is shown as it was sampled only if the client sends its digits back', () => {
  const ruled = ruledFormat(realTemplate('Qwen-Qwen3-0.6B'))
  const said = '<tool_call>\n{"name": "look", "arguments": {"id":9007199254740993}}\n</tool_call>'
  const answer = sampledMessage(ruled, said)
  const shown = (id: string) => {
    const args = readJson(`{"id": ${id}}`) as Fields
    return ruled.format.render({ messages: [user, { ...answer, toolCalls: [{ id: '1', name: 'look', arguments: args }] }] }).text
  }
  expect(shown('9007199254740993')).toContain(said)
  expect(shown('9007199254740992')).toContain('{"id": 9007199254740992}')
})
