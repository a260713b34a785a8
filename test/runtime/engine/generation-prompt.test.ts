/** Tests answers of a template whose generation prompt depends on the messages: it opens reasoning, except after a tool result. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { ChatMessage, ToolDefinition } from '../../../src/runtime/chat/message.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import type { EngineRequest } from '../../../src/runtime/engine/engine.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { CHATML_TEMPLATE } from '../../../src/runtime/native/synthetic.js'

const PROMPT = "'<|im_start|>assistant\\n' -}}{%- endif"
const chatTemplate = CHATML_TEMPLATE.replace(
  PROMPT,
  "'<|im_start|>assistant\\n' + ('' if messages[-1].role == 'tool' else '<think>\\n') -}}{%- endif",
)
const tools: readonly ToolDefinition[] = [
  { name: 'look', description: 'Looks.', parameters: { type: 'object', properties: {}, additionalProperties: false } },
]
const question: ChatMessage = { role: 'user', content: 'Look.' }
const messages: readonly ChatMessage[] = [
  question,
  { role: 'assistant', content: '', toolCalls: [{ id: 'call_1', name: 'look', arguments: {} }] },
  { role: 'tool', content: 'Sun.', toolCallId: 'call_1', name: 'look' },
]

describe('after a tool result', () => {
  let engine: LlamaEngine
  let count = 0
  beforeAll(async () => {
    expect(chatTemplate).not.toBe(CHATML_TEMPLATE)
    const options = { threads: 1, batchThreads: 1, cells: 2048, chatTemplate }
    engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), options)
  })
  afterAll(() => engine.dispose())
  const ask = async (more: Partial<EngineRequest>) => {
    const conversation = conversationId(`asked ${count++}`)
    const { message } = await engine.respond({ conversation, messages, maxTokens: 100, ...more }).reply
    return message
  }

  it('the answer is content, and no budget closes reasoning in it', async () => {
    const grammar = 'root ::= "Sun and more sun."'
    const answer = { content: 'Sun and more sun.', sampled: { prompt: '<|im_start|>assistant\n' } }
    for (const more of [{}, { reasoningBudget: 0 }]) {
      const said = await ask({ grammar, ...more })
      expect(said).toMatchObject(answer)
      expect(said.reasoning).toBeUndefined()
    }
    // The question itself does get reasoning.
    expect(await ask({ messages: [question], grammar })).toMatchObject({ content: '', reasoning: 'Sun and more sun.' })
  })

  it('a schema and a required call hold from the first character', async () => {
    expect((await ask({ schema: { const: 7 } })).sampled?.text).toBe('7')
    const { toolCalls, reasoning } = await ask({ tools, toolChoice: 'required', endsWith: () => true })
    expect([toolCalls?.[0]?.name, reasoning]).toEqual(['look', undefined])
  })
})
