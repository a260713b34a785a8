/**
 * Tests an answer that ends with a call, and which of its tokens stay cached; for families that close calls one by one and those that close
 * them together.
 */
import { afterEach, describe, expect, it } from 'vitest'
import type { ChatMessage, ToolDefinition } from '../../../src/runtime/chat/message.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'

const tool = (name: string): ToolDefinition => ({
  name,
  description: name,
  parameters: { type: 'object', properties: {} },
})
const tools = [tool('sky'), tool('sea')]
const messages: readonly ChatMessage[] = [{ role: 'user', content: 'Look.' }]
const conversation = conversationId('c')

/** Calls in a list that is closed after the last of them, as Mistral's models write them. */
const LIST = `{% if tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{% for message in messages %}{% if message.role == 'user' %}[INST] {{ message.content }}[/INST]{% elif message.tool_calls %}[TOOL_CALLS] [{% for call in message.tool_calls %}{{ call.function | tojson }}{{ ', ' if not loop.last }}{% endfor %}]{{ eos_token }}{% elif message.role == 'tool' %}[TOOL_RESULTS] {"content": {{ message.content }}}[/TOOL_RESULTS]{% else %} {{ message.content }}{{ eos_token }}{% endif %}{% endfor %}`

let engine: LlamaEngine | null = null
afterEach(() => engine?.dispose())

describe('an answer that ends with its first call', () => {
  it.each([
    ['closed one by one', undefined],
    ['closed all together', LIST],
  ] as const)('calls %s', async (_, chatTemplate) => {
    engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), {
      threads: 1,
      batchThreads: 1,
      cells: 2048,
      ...(chatTemplate === undefined ? {} : { chatTemplate }),
    })
    const asked = { conversation, messages, tools, toolChoice: 'required', maxTokens: 300 } as const
    // A model that may not end the answer, or the list of calls, calls again and again.
    const { model, modelInfo } = engine
    const closes = (token: number) => model.piece(token)[0] === ']'.charCodeAt(0) // a character and a byte alike
    const end = Array.from({ length: modelInfo.vocabulary }, (_, token) => token).filter(
      (token) => model.isEndOfGeneration(token) || closes(token),
    )
    const sampling = { logitBias: end.map((token) => ({ token, bias: -100 })) }
    const free = await engine.respond({ ...asked, conversation: conversationId('other'), sampling }).reply
    const reply = await engine.respond({ ...asked, endsWith: () => true }).reply
    expect(reply.finish).toBe('tool-calls')
    expect(reply.message.toolCalls).toHaveLength(1)
    expect(reply.message.toolCalls![0]).toEqual({ id: 'call_1', name: expect.stringMatching(/sky|sea/) as string, arguments: {} })
    expect(reply.timing.generatedTokens).toBeLessThan(free.timing.generatedTokens)
    const { sampled } = reply.message
    expect(
      engine.format
        .parser()
        .push(sampled!.text)
        .filter(({ type }) => type === 'call'),
    ).toHaveLength(1)

    const result: ChatMessage = { role: 'tool', content: '1', toolCallId: reply.message.toolCalls![0]!.id, name: 'sky' }
    const after = [...messages, reply.message, result]
    const { text, tokens } = engine.format.render({ messages: after, tools })
    if (chatTemplate !== undefined) expect(text).toContain('{}}]')
    const next = await engine.respond({ conversation, messages: after, tools, maxTokens: 0 }).reply
    // All sampled tokens are cached, except the last one, which was never submitted.
    expect(next.ledger.reused).toBeGreaterThanOrEqual(reply.ledger.shown)
    await engine.check('full')
    // The prompt is that of a fresh prefill.
    const fresh = await engine.respond({ conversation: conversationId('fresh'), messages: after, tools, maxTokens: 0 }).reply
    expect(fresh.ledger.shown).toBe(tokens.length)
  })

  it("keeps the template's wording if a list would be left open", async () => {
    engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), {
      threads: 1,
      batchThreads: 1,
      cells: 2048,
      // The forced syntax has calls one by one, the template has them in a section; DeepSeek's and Kimi's templates do the same.
      chatTemplate: `{% for message in messages %}{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>{% if loop.last %}<end>{% endif %}{% endfor %}{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}{{ tools }}`,
    })
    const reply = await engine.respond({ conversation, messages, tools, toolChoice: 'required', endsWith: () => true }).reply
    expect(reply.message.toolCalls).toHaveLength(1)
    expect(reply.message.sampled).toBeUndefined()
    expect(engine.format.render({ messages: [...messages, reply.message], tools }).text).toContain('</tool_call><end>')
  })

  it('continues after calls that do not match', async () => {
    engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), {
      threads: 1,
      batchThreads: 1,
      cells: 2048,
    })
    const asked = { messages, tools, toolChoice: 'required', maxTokens: 120 } as const
    const free = await engine.respond({ ...asked, conversation: conversationId('free') }).reply
    const other = await engine.respond({ ...asked, conversation, endsWith: ({ name }) => name === 'nothing' }).reply
    expect(other.message.content).toBe(free.message.content)
    expect(other.message.toolCalls).toEqual(free.message.toolCalls)
    expect(other.finish).toBe(free.finish)
  })
})
