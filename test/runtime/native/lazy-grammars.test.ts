import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { ToolDefinition } from '../../../src/runtime/chat/message.js'
import { satisfies } from '../../../src/runtime/chat/schema/merge.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { NativeContext, NativeModel, NativeSampler } from '../../../src/runtime/native/types.js'
import { callingFamilies, familyTemplate, ruledFormat } from '../../support/chat-formats.js'
import { realTemplate } from '../../support/bundle.js'
import { tinyModel } from '../../support/models.js'
import { feed, someTokens } from './support/fixture.js'
import { LONG } from '../../support/long.js'

/** How many answers are drawn for each family. */
const ANSWERS = LONG ? 500 : 6

let model: NativeModel
let context: NativeContext

beforeAll(async () => {
  model = await (await openNative({ gpu: 'cpu' })).loadModel(await tinyModel())
  context = await model.createContext({ cells: 512, threads: 1 })
  await feed(context, someTokens(10))
})
afterAll(() => model.dispose())

const tools: ToolDefinition[] = [
  {
    name: 'weather',
    description: 'Weather.',
    parameters: {
      type: 'object',
      properties: {
        days: { type: 'integer', minimum: 1, maximum: 9 },
        unit: { enum: ['C', 'F'] },
        place: { type: 'string', maxLength: 8 },
      },
      required: ['days', 'unit'],
      additionalProperties: false,
    },
  },
  { name: 'now', description: 'Time.', parameters: { type: 'object', properties: {} } },
]

/** Makes the sampler accept the text. Returns false when the grammar refuses it. */
function write(sampler: NativeSampler, text: string): boolean {
  try {
    for (const token of model.tokenize(text)) sampler.accept(token)
    return true
  } catch {
    return false
  }
}

/** Returns the rest of an answer, written by a random model; or null when it did not end. */
function drawn(sampler: NativeSampler): string | null {
  const tokens: number[] = []
  while (tokens.length < 600) {
    const token = sampler.sample(context, 9)
    if (model.isEndOfGeneration(token)) return model.detokenize(tokens)
    tokens.push(token)
  }
  return null
}

describe('a tool may be called at any time, and only a known one', () => {
  test.each(callingFamilies)('%s', (template, begins) => {
    const { format } = ruledFormat(familyTemplate(template))
    const lazy = format.lazyCalls(tools)!
    const options = { grammar: lazy.grammar, ...(lazy.triggers.length === 0 ? {} : { lazy }) }
    const starts = lazy.triggers.length === 0 ? [begins ?? ''] : lazy.triggers.map((trigger) => `Sure. ${trigger}`)
    let calls = 0
    for (const start of starts)
      for (let seed = 0; seed < ANSWERS; seed++) {
        const sampler = model.createSampler({ ...options, temperature: 1, seed })
        try {
          // If the prompt opened the reasoning, it is closed first.
          const thought = lazy.opened === '' ? '' : `hm ${lazy.triggers[0] ?? ''}${lazy.reasoning[0]!.close}`
          expect(write(sampler, thought + start), thought + start).toBe(true)
          const rest = drawn(sampler)
          // Random bytes may encode a character in too many bytes. Only llama.cpp accepts that as the character.
          if (rest === null || rest.includes('\ufffd')) continue
          const parser = format.parser(tools)
          parser.push(thought + start + rest)
          const { toolCalls } = parser.finish()
          for (const call of toolCalls) {
            const tool = tools.find(({ name }) => name === call.name)
            expect(tool, `${start}${rest}`).toBeDefined()
            expect(call.malformed, `${start}${rest}`).toBeUndefined()
            expect(satisfies(tool!.parameters, call.arguments), `${start}${rest}`).toBe(true)
          }
          calls += toolCalls.length
        } finally {
          sampler.dispose()
        }
      }
    expect(calls).toBeGreaterThan(0)
  })

  // By template: one with tags, one with a list, one whose syntax is unknown.
  const BARE = ['Qwen-Qwen2.5-7B-Instruct', 'mistralai-Mistral-Nemo-Instruct-2407', 'GigaChat3-10B-A1.8B']

  test.each(BARE)('bare calls, too: %s', (template) => {
    const { format } = ruledFormat(realTemplate(template))
    const lazy = format.lazyCalls(tools, false, true)!
    expect(lazy.spaced.length).toBe(2 * tools.length)
    const open = (seed: number) => model.createSampler({ grammar: lazy.grammar, lazy, temperature: 1, seed })
    const heads = [
      '{"name": "weather", "arguments":',
      '```json\n{\n    "name" : "weather",\n    "parameters":',
      '{"name":"weather","arguments":',
    ]
    let calls = 0
    for (const head of heads)
      for (let seed = 0; seed < ANSWERS; seed++) {
        const sampler = open(seed)
        expect(write(sampler, `Sure. ${head}`), head).toBe(true)
        // A model that writes anything hardly ends its text.
        const tokens: number[] = []
        while (tokens.length < 200) {
          const token = sampler.sample(context, 9)
          if (model.isEndOfGeneration(token)) break
          tokens.push(token)
        }
        const parser = format.parser(tools, '', tools)
        parser.push(`Sure. ${head}${model.detokenize(tokens)}`)
        const [call] = parser.finish().toolCalls
        sampler.dispose()
        if (call === undefined || call.malformed !== undefined) continue
        expect(satisfies(tools[0]!.parameters, call.arguments), JSON.stringify(call)).toBe(true)
        calls++
      }
    expect(calls).toBeGreaterThan(0)
    const whole = '{"name": "weather", "arguments": {"days": 3, "unit": "C"}}'
    expect(write(open(1), `\`\`\`json\n${whole}\n\`\`\`\nThat is it.`)).toBe(true)
    expect(write(open(1), `${whole}\n{"name": "now", "arguments": {}}`)).toBe(true)
    expect(write(open(1), `${whole}\n{"name": "rm", "arguments": {}}`)).toBe(false)
    expect(write(open(1), '{"name": "weather", "arguments": {"days": 30')).toBe(false)
    expect(write(open(1), '{"name": "weather", "version": 1} and {"name": "rm", "arguments": {}}')).toBe(true)
    expect(write(open(1), '{"name":                                  "weather"  ,\n\t"arguments": {"days": 30')).toBe(false)
  })

  test('text is free until a call begins, reasoning may mention calls, and no call begins where none is allowed', () => {
    const { format } = ruledFormat(familyTemplate('Qwen-Qwen3-0.6B'))
    const open = (callable: readonly ToolDefinition[]) => {
      const lazy = format.lazyCalls(callable)!
      return model.createSampler({ grammar: lazy.grammar, lazy, temperature: 1, seed: 1 })
    }
    expect(write(open(tools), 'Any {"name": "x"} text, <tool_cal and more')).toBe(true)
    expect(write(open(tools), '<think>what if <tool_call>?</think>Yes.')).toBe(true)
    expect(write(open(tools), 'Yes. <tool_call>\n{"name": "rm", ')).toBe(false)
    expect(write(open(tools), 'Yes. <tool_call>\n{"name": "weather", "arguments": {"days": 3, "unit": "C"}}\n</tool_call>')).toBe(
      true,
    )
    expect(write(open(tools), 'Yes. <tool_call>\n{"name": "weather", "arguments": {"days": 30')).toBe(false)
    expect(write(open([]), 'No. <tool_call')).toBe(true)
    expect(write(open([]), 'No. <tool_call>')).toBe(false)
  })

  test('behind text, the tags of reasoning are text for a model whose template shows none', () => {
    const begun = (template: string, text: string) => {
      const lazy = ruledFormat(realTemplate(template)).format.lazyCalls(tools)!
      return write(model.createSampler({ grammar: lazy.grammar, lazy, temperature: 1, seed: 1 }), text)
    }
    const call = '<tool_call>\n{"name": "rm", '
    const prose = 'The long text before the tag <think> is more than a trigger has characters. '
    for (const text of [`It is <think>. ${call}`, prose + call, `<think>hm</think>So <think>${call}`]) {
      expect(begun('Qwen-Qwen2.5-7B-Instruct', text), text).toBe(false)
      expect(begun('Qwen-Qwen3-0.6B', text), text).toBe(true)
    }
    for (const text of [`<think>${call}`, ` \n<think>a</think>\n<think>${call}`])
      expect(begun('Qwen-Qwen2.5-7B-Instruct', text), text).toBe(true)
  })
})
