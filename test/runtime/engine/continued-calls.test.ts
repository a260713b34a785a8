/** Tests the grammar of calls behind an answer's given beginning: it must not describe the answer from its first character on. */
import { expect, it } from 'vitest'
import type { ToolDefinition } from '../../../src/runtime/chat/message.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { heldTo } from '../../../src/runtime/engine/client-request.js'
import type { EngineRequest } from '../../../src/runtime/engine/engine.js'
import type { NativeModel } from '../../../src/runtime/native/types.js'
import { realTemplate } from '../../support/bundle.js'
import { ruledFormat } from '../../support/chat-formats.js'

const weather: ToolDefinition = { name: 'weather', description: 'Says the weather.', parameters: { type: 'object' } }

/** Returns the grammar of an answer to a question, or of the rest of an answer that begins with "Sure, ". */
function held(template: string, continues: boolean) {
  const { format, tokenizer } = ruledFormat(realTemplate(template))
  const request: EngineRequest = {
    conversation: conversationId('begun'),
    messages: [
      { role: 'user', content: 'Is it sunny?' },
      ...(continues ? [{ role: 'assistant' as const, content: 'Sure, ' }] : []),
    ],
    tools: [weather],
    continues,
  }
  // Without a reasoning budget, only the format is asked.
  return heldTo(format, tokenizer as unknown as NativeModel, request, false)
}

it.each(['openai-gpt-oss-120b', 'meetkai-functionary-medium-v3.2', 'meta-llama-Llama-3.1-8B-Instruct'])(
  '%s: a grammar of the whole answer does not hold a continued one',
  async (template) => {
    expect(await held(template, false)).toHaveProperty('grammar')
    expect(await held(template, true)).toEqual({})
  },
)

it('a grammar of calls holds behind a beginning, although the generation prompt opens reasoning', async () => {
  const template = 'Qwen3.5-4B'
  expect((await held(template, false)).lazy?.opened).toBe('<think>')
  expect((await held(template, true)).lazy).toMatchObject({ opened: '', triggers: ['<tool_call>'] })
})
