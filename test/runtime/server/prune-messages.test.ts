/**
 * Tests agents that prune as real ones do, over the AI SDK against a real server. The ledger counts the tokens computed for them under
 * `splice`.
 */
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateText, jsonSchema, type ModelMessage, pruneMessages, type ToolSet } from 'ai'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { serving, type Serving } from './support/serving.js'

let served: Serving
beforeAll(async () => {
  served = await serving({ service: { defaults: { clientEdits: 'splice' } } })
})
afterAll(() => served.close())

const TURNS = 7
const tools: ToolSet = {
  read: { description: 'Reads.', inputSchema: jsonSchema({ type: 'object', additionalProperties: false }) },
}

type Prune = (messages: ModelMessage[]) => ModelMessage[]

/**
 * Runs an agent that reads a file in each turn. Returns the tokens that the server computed for it. `of`: its topic, which no other agent
 * shares.
 */
async function computedFor(of: string, prune: Prune): Promise<{ readonly computed: number; readonly shown: number }> {
  const provider = createOpenAICompatible({ name: 'kvfold', baseURL: `${served.url}/v1` })
  const known = new Set(served.service.threads.list('public').map(({ id }) => id))
  const messages: ModelMessage[] = [{ role: 'user', content: `Read all files of ${of}, one after another.` }]
  for (let turn = 0; turn < TURNS; turn++) {
    const { response, toolCalls } = await generateText({
      model: provider('builtin'),
      messages: prune(messages),
      tools,
      toolChoice: 'required',
      temperature: 0,
      maxOutputTokens: 64,
      maxRetries: 0,
    })
    const value = `File ${turn} of ${of}: ${'it has a line, and the next one, too. '.repeat(10)}`
    messages.push(...response.messages.filter(({ role }) => role === 'assistant'), {
      role: 'tool',
      content: toolCalls.map(({ toolCallId, toolName }) => ({
        type: 'tool-result',
        toolCallId,
        toolName,
        output: { type: 'text', value },
      })),
    })
  }
  const threads = served.service.threads.list('public').filter(({ id }) => !known.has(id))
  const ledger = threads.flatMap(({ id }) => served.service.threads.get('public', id).ledger)
  expect(ledger).toHaveLength(TURNS)
  return { computed: ledger.reduce((sum, { submitted }) => sum + submitted, 0), shown: ledger.at(-1)!.shown }
}

/** Prunes as opencode does: old results keep their calls and lose their text. */
const cleared: Prune = (messages) => {
  const results = messages.flatMap(({ role }, at) => (role === 'tool' ? [at] : []))
  const old = new Set(results.slice(0, -2))
  return messages.map((message, at) => {
    if (message.role !== 'tool' || !old.has(at)) return message
    const output = { type: 'text', value: '[Old tool result content cleared]' } as const
    return { ...message, content: message.content.map((part) => (part.type === 'tool-result' ? { ...part, output } : part)) }
  })
}

it.each<[string, Prune]>([
  ["the AI SDK's pruneMessages", (messages) => pruneMessages({ messages, toolCalls: 'before-last-4-messages' })],
  ['a prune as opencode has it', cleared],
])('%s computes little more than the new text', async (name, prune) => {
  const whole = await computedFor(`${name}, whole`, (messages) => messages)
  const pruned = await computedFor(`${name}, pruned`, prune)
  expect(pruned.shown).toBeLessThan((2 / 3) * whole.shown)
  expect(pruned.computed).toBeLessThanOrEqual(1.15 * whole.computed)
})
