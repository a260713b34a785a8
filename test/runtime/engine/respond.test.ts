/** Tests messages through the llama engine on a real GGUF: forced calls, schemas, logprobs, the ledger of read-only steps, undone edits. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { contextTools } from '../../../src/runtime/context/tools.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { TEST_GPU } from '../../support/device.js'
import { tinyModel } from '../../support/models.js'

const tools = contextTools.map(({ definition }) => definition).filter(({ name }) => name.endsWith('_fragment'))
const user = (content: string): ChatMessage => ({ role: 'user', content })
let engine: LlamaEngine

beforeAll(async () => {
  engine = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), await tinyModel(), {
    cells: 4096,
    sequences: 8,
    threads: 1,
    batchThreads: 1,
  })
})

afterAll(() => engine.dispose())

describe('respond', () => {
  it('forces the syntax of a call when one is required', async () => {
    const { reply } = engine.respond({
      conversation: conversationId('required'),
      messages: [user('Fold something.')],
      tools,
      toolChoice: 'required',
      maxTokens: 200,
      sampling: { temperature: 1, seed: 3 },
    })
    const { message } = await reply
    expect(message.sampled!.text).toMatch(/^\s*<tool_call>/)
    const name = /"name": "(\w+)"/.exec(message.sampled!.text)?.[1]
    if (name !== undefined) expect(tools.map((tool) => tool.name)).toContain(name)
  })

  it('does not use sampled tokens of another vocabulary', async () => {
    const foreign = (tokens: number[]): ChatMessage[] => [
      user('Hello.'),
      { role: 'assistant', content: 'Hi.', sampled: { text: 'Hi.', tokens: Int32Array.from(tokens) } },
      user('Go on.'),
    ]
    const plain = engine.count([user('Hello.'), { role: 'assistant', content: 'Hi.' }, user('Go on.')], [])
    for (const tokens of [[5, 6, 7, 8, 9, 10, 11], [engine.modelInfo.vocabulary]])
      expect(engine.count(foreign(tokens), [])).toBe(plain)
    const own = [...engine.model.tokenize('Hi'), ...engine.model.tokenize('.')]
    const shown = engine.format.render({ messages: foreign(own), tools: [] }).tokens
    expect(engine.count(foreign(own), [])).toBe(shown.length)
    const { ledger } = await engine.respond({ conversation: conversationId('other'), messages: foreign([5, 6]), maxTokens: 1 })
      .reply
    expect(ledger.shown).toBe(plain)
  })

  it('keeps to a JSON schema', async () => {
    const schema = {
      type: 'object',
      properties: { answer: { enum: ['yes', 'no'] }, sure: { type: 'boolean' } },
      required: ['answer', 'sure'],
      additionalProperties: false,
    }
    const { message } = await engine.respond({
      conversation: conversationId('schema'),
      messages: [user('Well?')],
      schema,
      maxTokens: 200,
    }).reply
    const parsed = JSON.parse(message.content) as { answer: string; sure: boolean }
    expect(['yes', 'no']).toContain(parsed.answer)
    expect(typeof parsed.sure).toBe('boolean')
  })

  it('names the unsupported part of a schema', async () => {
    const asked = engine.respond({
      conversation: conversationId('bad'),
      messages: [user('x')],
      schema: { type: 'string', pattern: '^(?=b)a+$' },
    })
    await expect(asked.reply).rejects.toMatchObject({
      code: 'engine/bad-grammar',
      message: expect.stringContaining('pattern') as string,
    })
  })

  it('refuses a grammar that does not parse', async () => {
    const asked = engine.respond({ conversation: conversationId('bad grammar'), messages: [user('x')], grammar: 'root ::= (' })
    await expect(asked.reply).rejects.toMatchObject({ code: 'engine/bad-grammar' })
  })

  it('recomputes nothing when messages are only added, whatever was sampled', async () => {
    const conversation = conversationId('appended')
    const messages: ChatMessage[] = [user('Begin. '.repeat(30))]
    for (let turn = 0; turn < 5; turn++) {
      const { message, ledger } = await engine.respond({
        conversation,
        messages,
        tools,
        maxTokens: 12,
        sampling: { temperature: 1.2, seed: turn },
      }).reply
      expect(ledger.recomputed).toBe(0)
      messages.push(message, { role: 'tool', content: `result ${turn}`, toolCallId: 'call_1', name: 'search_context' })
      await engine.check('full')
    }
  })

  it('undoes a fold from the parked version and computes only one token', async () => {
    const conversation = conversationId('undo')
    const messages = [user(`${'The river runs past the old mill. '.repeat(20)}What now?`), user('And then? '.repeat(40))]
    const span = engine.snap(messages, [], 0, { start: 100, end: 500 })
    const edits = [{ message: 0, span, replacement: '[folded f12345]' }]
    const ask = (shown: { edits?: typeof edits }) => engine.respond({ conversation, messages, ...shown, maxTokens: 1 }).reply
    const before = await ask({})
    const folded = await ask({ edits })
    const restored = await ask({})
    expect(folded.ledger.recomputed).toBeGreaterThan(100)
    expect(folded.ledger.parked).toBeGreaterThan(0)
    expect(restored.ledger.recomputed).toBe(0)
    expect(restored.ledger.sources.parked).toBeGreaterThan(0)
    expect(restored.ledger.submitted).toBe(1)
    expect(restored.message.sampled!.tokens).toEqual(before.message.sampled!.tokens)
    const refolded = await ask({ edits })
    expect(refolded.ledger.submitted).toBe(1)
  })

  it('streams the answer, and the reply says the same', async () => {
    const running = engine.respond({
      conversation: conversationId('stream'),
      messages: [user('Say it.')],
      maxTokens: 20,
      logprobs: 2,
    })
    let raw = ''
    let planned = false
    for await (const event of running) {
      if (event.type === 'plan') planned = true
      if (event.type === 'tokens') raw += event.text
    }
    const reply = await running.reply
    expect(planned).toBe(true)
    expect(raw).toBe(reply.message.sampled!.text)
    expect(reply.logprobs!.length).toBe(reply.message.sampled!.tokens.length)
    expect(reply.logprobs!.every(({ top, logprob }) => top.length === 2 && logprob <= 0)).toBe(true)
  })
})
