import { getLlama, type Llama } from 'node-llama-cpp'
import { beforeAll, describe, expect, test } from 'vitest'
import type { ToolDefinition } from '../../../src/runtime/chat/message.js'
import { eitherOf } from '../../../src/runtime/chat/grammar.js'
import { Random } from '../../../src/runtime/core/random.js'
import { Grammar } from '../../support/gbnf.js'
import { ruledFormat } from '../../support/chat-formats.js'
import { builtinTemplate } from '../../support/chat-formats.js'
import { realTemplate } from '../../support/bundle.js'

const tools: ToolDefinition[] = [
  {
    name: 'fold_fragment',
    description: 'Folds.',
    parameters: { type: 'object', properties: { fragment_id: { type: 'string' } }, required: ['fragment_id'] },
  },
  {
    name: 'search',
    description: 'Searches.',
    parameters: {
      type: 'object',
      properties: {
        query: { type: 'string' },
        max: { type: 'integer' },
        role: { enum: ['user', 'any'] },
        where: { type: 'array', items: { type: 'number' } },
      },
    },
  },
  { name: 'now', description: 'The time.', parameters: {} },
  {
    name: 'mixed',
    description: 'Some keys are required, one of them unknown.',
    parameters: {
      type: 'object',
      properties: { c: { type: 'boolean' }, a: { type: 'integer' }, d: { type: 'string' } },
      required: ['b', 'a'],
    },
  },
]

let llama: Llama

beforeAll(async () => {
  llama = await getLlama({ gpu: false, build: 'never', progressLogs: false, logger: () => undefined })
})

/** Whether llama.cpp accepts the reply under the family's grammar. */
async function accepts(source: string, reply: string, single = false): Promise<boolean> {
  const grammar = await ruledFormat(source).format.callGrammarElsewhere(tools, single)
  if (grammar === null) throw new Error('the family has no grammar')
  const made = (await llama.createGrammar({ grammar })) as unknown as { _testText(text: string): boolean }
  return made._testText(reply)
}

const hermesCall = (name: string, given: string) => `<tool_call>\n{"name": "${name}", "arguments": ${given}}\n</tool_call>`

describe('forced calls', () => {
  test.each([
    [hermesCall('fold_fragment', '{"fragment_id": "f12345"}'), true],
    [`${hermesCall('fold_fragment', '{"fragment_id": "f\\u00e9\\n"}')}\n${hermesCall('search', '{}')}`, true],
    [hermesCall('search', '{"query": "é 😀", "max": -3, "role": "any", "where": [1.5, 2]}'), true],
    [hermesCall('now', '{"anything": {"goes": [true, null]}}'), true],
    [hermesCall('fold_fragment', '{}'), false],
    [hermesCall('search', '{"role": "nobody"}'), false],
    [hermesCall('search', '{"max": "3"}'), false],
    // Keys come in the schema's order, at most once, and required ones must come. Keys that it does not describe come last.
    [hermesCall('fold_fragment', '{"fragment_id": "a", "fragment_id": "b"}'), false],
    [hermesCall('search', '{"max": 1, "max": 2}'), false],
    [hermesCall('search', '{"max": 1, "where": []}'), true],
    [hermesCall('search', '{"where": [1]}'), true],
    [hermesCall('search', '{"where": [1], "max": 1}'), false],
    [hermesCall('search', '{, "max": 1}'), false],
    [hermesCall('search', '{"max": 1, }'), false],
    [hermesCall('mixed', '{"c": true, "a": 1, "b": {}}'), true],
    [hermesCall('mixed', '{"a": 1, "b": null}'), true],
    [hermesCall('mixed', '{"a": 1, "d": "x", "b": 1}'), true],
    [hermesCall('mixed', '{"a": 1, "b": 1, "c": true, "d": "x", "d": "y"}'), false],
    [hermesCall('mixed', '{"a": 1}'), false],
    [hermesCall('mixed', '{"a": 1, "b": 1, "c": true}'), false],
    [hermesCall('unknown', '{}'), false],
    ['Sure.', false],
    ['<think>\nhm\n</think>\n\n' + hermesCall('now', '{}'), false],
  ])('built-in template: %j is %s', async (reply, expected) => {
    expect(await accepts(builtinTemplate, reply)).toBe(expected)
  })

  test.each([
    ['Qwen-Qwen3-0.6B', `<think>\na < b\n</think>\n\n${hermesCall('now', '{}')}`],
    ['meta-llama-Llama-3.1-8B-Instruct', '{"name": "fold_fragment", "parameters": {"fragment_id": "f12345"}}'],
    ['meta-llama-Llama-3.1-8B-Instruct', '{"type": "function", "name": "now", "parameters": {}}'],
    ['mistralai-Mistral-Nemo-Instruct-2407', '[TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]'],
    ['mistralai-Ministral-3-14B-Reasoning-2512', '[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[ARGS]{}'],
    [
      'openai-gpt-oss-120b',
      '<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}',
    ],
    ['meetkai-functionary-medium-v3.1', '<function=now>{}</function>'],
    ['meetkai-functionary-medium-v3.2', 'now\n{}>>>now\n{}'],
    [
      'moonshotai-Kimi-K2',
      '<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>',
    ],
    [
      'Kimi-K2-Thinking',
      '<|tool_calls_section_begin|><|tool_call_begin|>functions.now:10<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>',
    ],
    [
      'CohereForAI-c4ai-command-r7b-12-2024-tool_use',
      '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "now", "parameters": {}}, {"tool_call_id": "1", "tool_name": "now", "parameters": {}}]<|END_ACTION|>',
    ],
    ['LFM2-8B-A1B', '<|tool_call_start|>[now(), now()]<|tool_call_end|>'],
    ['ibm-granite-granite-3.3-2B-Instruct', '<|tool_call|>[{"name": "now", "arguments": {}}]'],
    ['Apertus-8B-Instruct', '<|tools_prefix|>[{"now": {}}]<|tools_suffix|>'],
  ])('%s', async (template, reply) => {
    const source = realTemplate(template)
    expect(await accepts(source, reply)).toBe(true)
    expect(await accepts(source, 'Sure.')).toBe(false)
    // A grammar for a single call refuses a second one.
    const calls = reply.split('now').length - 1
    if (reply.includes('now')) expect(await accepts(source, reply, true)).toBe(calls === 1)
    // Forced calls are read back as calls.
    const parser = ruledFormat(source).format.parser()
    parser.push(reply)
    const { toolCalls } = parser.finish()
    expect(toolCalls.length).toBeGreaterThan(0)
    for (const { name, malformed } of toolCalls) {
      expect(tools.map((tool) => tool.name)).toContain(name)
      expect(malformed).toBeUndefined()
    }
  })

  test('need tools, and a family with a grammar', async () => {
    expect(await ruledFormat(builtinTemplate).format.callGrammarElsewhere([])).toBeNull()
    expect(ruledFormat('{{ messages[0].content }}').format.syntax.name).toBe('hermes')
  })
})

test('either of two grammars keeps the rules of both apart', () => {
  const one = 'root ::= item ( "," item ){0,1}\nitem ::= "item" [x-z] [\\]"]'
  const other = 'root ::= "root \\" item" | item\nitem ::= "b-item"'
  const drawn = new Grammar(eitherOf(one, other))
  const random = new Random(1)
  const texts = Array.from({ length: 200 }, () => drawn.draw(() => random.word() / 2 ** 32))
  expect(texts.every((text) => /^(?:item[xyz][\]"](?:,item[xyz][\]"])?|root " item|b-item)$/.test(text))).toBe(true)
  expect(new Set(texts).size).toBeGreaterThan(8)
  expect(eitherOf('root ::= "a" # item of root\n', 'root ::= <think> x\nx ::= "b"')).toBe(
    'root ::= a-root | b-root\na-root ::= "a" # item of root\n\nb-root ::= <think> b-x\nb-x ::= "b"',
  )
})

test.each(['"', '[', '<', '\\"', '\\[', '["'])('a grammar of %s alone, never closed, is renamed at once', (part) => {
  for (const end of ['', '\\']) {
    const grammar = part.repeat(50_000) + end
    const began = performance.now()
    expect(eitherOf('root ::= "a"', grammar)).toBe(`root ::= a-root | b-root\na-root ::= "a"\n${grammar}`)
    expect(performance.now() - began).toBeLessThan(500)
  }
})

test('calls beside a form have no reasoning before them, because the form has none', async () => {
  const { format } = ruledFormat(realTemplate('Qwen-Qwen3-0.6B'))
  expect(await format.callGrammarElsewhere(tools)).toContain('</think>')
  expect(await format.callGrammarElsewhere(tools, false, false)).not.toContain('</think>')
})

test('calls of gpt-oss beside a form begin with their own header', async () => {
  const { format } = ruledFormat(realTemplate('openai-gpt-oss-120b'))
  const grammar = (await format.callGrammarElsewhere(tools, false, false)) ?? ''
  const made = (await llama.createGrammar({ grammar })) as unknown as { _testText(text: string): boolean }
  const call = '<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}'
  expect(made._testText(call)).toBe(true)
  expect(made._testText(`<|channel|>analysis<|message|>hm<|end|><|start|>assistant${call}`)).toBe(false)
})

test.each([
  ['{"name": "Alice", "age": 3}', true],
  ['{"name": "Alice"} is it.', true],
  ['{"age": 3, "name": "Alice", "tags": {"name": "now"}}', true],
  ['{"name": null}', true],
  ['{"name": ["now"]}', true],
  ['{"name": "nowhere"}', true],
  ['{}', true],
  ['{"name": "now"}', false],
  ['{"age": 3, "name": "now"}', false],
  ['{"name": "now", "parameters": {}}', true],
  ['{"name": "search", "parameters": {"max": "3"}}', false],
  ['{"name":"now","parameters":{}}', true],
  ['{"type":"function","name":"search","parameters":{"max":3}}', true],
  ['{\n  "name": "now",\n  "parameters": {}\n}', true],
  ['{"name":"search","parameters":{"max":"3"}}', false],
  ['{"type": "function", "name": "now", "parameters": {}}', true],
  ['{"type": "function", "name": "search", "parameters": {"max": "3"}}', false],
  ['{"type": "function", "name": "nowhere"}', true],
])('Llama 3 with tools may answer with JSON that names no tool: %s is %s', async (reply, expected) => {
  const { format } = ruledFormat(realTemplate('meta-llama-Llama-3.1-8B-Instruct'))
  const made = await llama.createGrammar({ grammar: format.lazyCalls(tools)!.grammar })
  expect((made as unknown as { _testText(text: string): boolean })._testText(reply)).toBe(expected)
  const parser = format.parser(tools)
  parser.push(reply)
  const { content, toolCalls } = parser.finish()
  if (expected) expect(toolCalls.length === 0 ? content : 'a call').toBe(reply.includes('parameters') ? 'a call' : reply)
  else expect(toolCalls).toHaveLength(1)
})
