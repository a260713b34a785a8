/** Tests calls under a grammar: of a tool with an unlisted definition of the same name, and beside an answer that has a format. */
import { afterEach, expect, it } from 'vitest'
import { sculptor } from '../../../src/runtime/agents/sculptor.js'
import type { ToolDefinition } from '../../../src/runtime/chat/message.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { ownWords, piSample } from '../../../src/lab/pi-llm.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'

const remove = (items: Readonly<Record<string, unknown>>): ToolDefinition => ({
  name: 'remove_tools',
  description: 'Removes tools.',
  parameters: {
    type: 'object',
    properties: { tool_names: { type: 'array', minItems: 1, maxItems: 3, items } },
    required: ['tool_names'],
  },
})

let engine: LlamaEngine | null = null
afterEach(() => engine?.dispose())

it('writes no other value, whatever the model would write', async () => {
  engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), { threads: 1, batchThreads: 1, cells: 2048 })
  const asked = {
    messages: [{ role: 'user' as const, content: 'Remove what you do not need.' }],
    tools: [remove({ type: 'string' })],
    toolChoice: 'required' as const,
    maxTokens: 200,
  }
  const names = ['zebra_of_the_north', 'quince_weather']
  const loaded: LlamaEngine = engine
  const reply = (id: string, unlisted: readonly ToolDefinition[], maxTokens = asked.maxTokens) =>
    loaded.respond({ ...asked, maxTokens, conversation: conversationId(id), unlisted }).reply
  const said = (await reply('held', [remove({ enum: names })])).message.toolCalls?.[0]?.arguments[
    'tool_names'
  ] as readonly string[]
  expect(said.length).toBeGreaterThan(0)
  for (const name of said) expect(names).toContain(name)
  const formed = await loaded.respond({ ...asked, conversation: conversationId('formed'), schema: { const: 1 } }).reply
  expect(formed.message.toolCalls?.length).toBeGreaterThan(0)
  const free = await reply('free', [])
  const shown = async (unlisted: readonly ToolDefinition[]) => (await reply(`cut-${unlisted.length}`, unlisted, 4)).ledger.shown
  expect(await shown([remove({ enum: names })])).toBe(await shown([]))
  expect(free.message.content + JSON.stringify(free.message.toolCalls)).not.toMatch(/zebra_of_the_north|quince_weather/)
})

it('may call tools before an answer in a format, and the answer keeps to it', async () => {
  engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), { threads: 1, batchThreads: 1, cells: 4096 })
  const schema = { type: 'object', properties: { done: { const: true } }, required: ['done'] }
  const { prompt } = piSample({ words: ownWords(), updates: 12, keys: 6, seed: 1, sample: 0 })
  const session = sculptor({
    ...{ engine, id: conversationId('in a format'), prompt: 'pi-llm', firstStep: 'auto' },
    generation: { schema, maxTokens: 200, sampling: { temperature: 0 } },
  })
  const { calls, answer } = await session.ask(prompt)
  expect(calls).toBeGreaterThan(1)
  expect(JSON.parse(answer)).toEqual({ done: true })
})
