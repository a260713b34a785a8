/** The scripted engine itself, because the tests above it rely on it. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { ChatMessage, Edit } from '../../../src/runtime/chat/message.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { span } from '../../../src/runtime/core/span.js'
import { ScriptedEngine } from '../../support/scripted.js'

const id = conversationId('scripted')
const text = fc.string({ unit: fc.constantFrom('a', 'b', ' ', '\n', '.'), maxLength: 30 })

describe('ScriptedEngine', () => {
  it('has a ledger whose sums hold for every prompt', async () => {
    const turns = fc.array(fc.record({ content: text, reply: text, hide: fc.boolean() }), { minLength: 1, maxLength: 6 })
    await fc.assert(
      fc.asyncProperty(turns, async (all) => {
        const engine = new ScriptedEngine((_, step) => ({ content: all[step]?.reply ?? '' }))
        const messages: ChatMessage[] = []
        for (const { content, hide } of all) {
          messages.push({ role: 'user', content })
          const first = messages[0]!.content
          const edits: Edit[] =
            hide && first !== '' ? [{ message: 0, span: engine.snap(messages, [], 0, span(0, 1)), replacement: '[hidden]' }] : []
          const { ledger, message } = await engine.respond({ conversation: id, messages, edits }).reply
          expect(ledger.reused + ledger.recomputed + ledger.fresh).toBe(ledger.shown)
          expect(ledger.recomputed + ledger.fresh + ledger.side).toBe(ledger.submitted)
          expect(ledger.messages.reduce((sum, cost) => sum + cost.shown, 0)).toBe(ledger.shown)
          for (const cost of ledger.messages) expect(cost.reused + cost.recomputed + cost.fresh).toBe(cost.shown)
          expect(engine.count(messages, [], edits)).toBeLessThanOrEqual(ledger.shown + ledger.pending)
          messages.push(message)
        }
      }),
    )
  })

  it('reuses the whole conversation when only messages are added', async () => {
    const engine = new ScriptedEngine([{ content: 'One two.' }, { content: 'Three.' }])
    const messages: ChatMessage[] = [{ role: 'user', content: 'Hello there.' }]
    const first = await engine.respond({ conversation: id, messages }).reply
    const second = await engine.respond({
      conversation: id,
      messages: [...messages, first.message, { role: 'user', content: 'More.' }],
    }).reply
    expect(second.ledger).toMatchObject({ step: 1, reused: first.ledger.shown, recomputed: 0 })
  })

  it('fails like an engine: no reply left, no room, disposed', async () => {
    const engine = new ScriptedEngine([], { context: 5 })
    await expect(engine.respond({ conversation: id, messages: [{ role: 'user', content: 'a' }] }).reply).rejects.toMatchObject({
      code: 'context/full',
    })
    await expect(new ScriptedEngine([]).respond({ conversation: id, messages: [] }).reply).rejects.toThrow('no reply for step 1')
    await engine.dispose()
    await expect(engine.respond({ conversation: id, messages: [] }).reply).rejects.toMatchObject({ code: 'engine/disposed' })
  })

  it('refuses edits that split a token', async () => {
    const engine = new ScriptedEngine([{ content: 'x' }])
    const edits = [{ message: 0, span: span(1, 3), replacement: '' }]
    const { reply } = engine.respond({ conversation: id, messages: [{ role: 'user', content: 'abcd' }], edits })
    await expect(reply).rejects.toMatchObject({ code: 'internal/invariant' })
  })
})
