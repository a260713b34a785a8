import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { ToolDefinition } from '../../../src/runtime/chat/message.js'
import { satisfies } from '../../../src/runtime/chat/schema/merge.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { NativeContext, NativeModel, NativeSampler } from '../../../src/runtime/native/types.js'
import { callingFamilies, familyTemplate, ruledFormat } from '../../support/chat-formats.js'
import { tinyModel } from '../../support/models.js'
import { feed, someTokens } from './support/fixture.js'

/** How many answers are drawn for each family. */
const ANSWERS = process.env['KVFOLD_LONG'] === undefined ? 6 : 500

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
})
