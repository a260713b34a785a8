/** Tests folds that take more tokens than their text: their price is counted by the engine, and they are refused on request. */
import { freshConversation } from '../../../src/runtime/core/ids.js'
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { Conversation, type ConversationPorts } from '../../../src/runtime/context/conversation.js'
import { portsOf } from '../../../src/runtime/context/ports.js'
import type { CostlyFolds } from '../../../src/runtime/context/fragment.js'
import { foldFragment, summarizeFragment } from '../../../src/runtime/context/tools.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { ThreadService } from '../../../src/runtime/server/service.js'
import { tinyModel } from '../../support/models.js'
import { granted } from '../../support/results.js'

let engine: LlamaEngine

beforeAll(async () => {
  engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), await tinyModel(), { cells: 4096 })
})

afterAll(() => engine.dispose())

/** A conversation with a message of 200 lines of 14 characters, each a fragment. */
function lined(costlyFolds?: CostlyFolds, more: Partial<ConversationPorts> = {}): Conversation {
  const id = freshConversation()
  const conversation = new Conversation(id, {
    ...portsOf(engine, id),
    ...(costlyFolds === undefined ? {} : { costlyFolds }),
    ...more,
  })
  conversation.add({ role: 'user', content: Array.from({ length: 200 }, (_, line) => `line ${100 + line} here\n`).join('') })
  const stretches = Array.from({ length: 200 }, (_, line) => ({ message: 0, span: { start: 14 * line, end: 14 * line + 13 } }))
  granted(conversation.cut(stretches, 200))
  return conversation
}

const shownBy = (conversation: Conversation) => engine.count(conversation.messages, [], conversation.edits())

describe('folds of fragments shorter than their marker', () => {
  it('are allowed by the library, and carry their price as the engine counts it', () => {
    const conversation = lined()
    const start = shownBy(conversation)
    let before = start
    for (const { id } of conversation.fragments) {
      const { price } = granted(conversation.fold(id)).fragment
      expect(price).toEqual({ open: before, hidden: shownBy(conversation) })
      expect(price!.hidden).toBeGreaterThan(price!.open)
      before = price!.hidden
    }
    const grown = conversation.fragments.reduce((sum, { price }) => sum + price!.hidden - price!.open, 0)
    expect(grown).toBe(shownBy(conversation) - start)
    granted(conversation.restore(conversation.fragments[0]!.id))
    expect(conversation.fragments[0]).not.toHaveProperty('price')
  })

  it('count the conversation once each, and once before the first; it is counted again after a message or a restore', () => {
    const counts = vi.spyOn(engine, 'count')
    try {
      const conversation = lined()
      const [first, second, third, ...rest] = conversation.fragments.map(({ id }) => id)
      for (const id of [first!, second!, third!]) granted(conversation.fold(id))
      expect(counts).toHaveBeenCalledTimes(4)
      conversation.add({ role: 'assistant', content: 'so it is' })
      const grown = shownBy(conversation)
      counts.mockClear()
      expect(granted(conversation.fold(rest[0]!)).fragment.price!.open).toBe(grown)
      expect(counts).toHaveBeenCalledTimes(2)
      granted(conversation.restore(first!))
      const restored = shownBy(conversation)
      expect(granted(conversation.fold(rest[1]!)).fragment.price!.open).toBe(restored)
    } finally {
      counts.mockRestore()
    }
  })

  it('are refused on request, and change nothing', () => {
    const conversation = lined('refuse')
    const before = conversation.snapshot()
    for (const { id } of conversation.fragments) {
      const result = conversation.fold(id)
      expect(result).toMatchObject({ ok: false, code: 'tool/costs-more' })
      expect(result.ok ? '' : result.message).toMatch(
        /^f\w+ stays as it is\. This does not pay: the marker takes \d+ tokens more than the text \(\d+ tokens/,
      )
    }
    expect(conversation.snapshot()).toEqual(before)
    granted(conversation.fold(conversation.fragments[3]!.id, undefined, 'allow'))
  })

  it("are reported in the tool's result, and a fold that pays reads as usual", async () => {
    const conversation = lined()
    const [first] = conversation.fragments
    const open = shownBy(conversation)
    const { text } = await foldFragment.run(conversation, { fragment_id: first!.id })
    expect(text).toBe(
      `Folded ${first!.id}. This does not pay: the marker takes ${shownBy(conversation) - open} tokens more than the text (${open} tokens shown with the text, ${shownBy(conversation)} with the marker).`,
    )
    conversation.add({ role: 'user', content: 'All of this is out of date. '.repeat(40) })
    const [long] = granted(conversation.cut([{ message: 1, span: { start: 0, end: 1000 } }], 1)).fragments
    expect((await foldFragment.run(conversation, { fragment_id: long!.id })).text).toBe(`Folded ${long!.id}.`)
    expect(long!.price).toBeUndefined()
  })

  it('are also summaries as long as their text: reported in the result, or refused on request', async () => {
    const summary = 'A line with a number, of which there are many like it. '.repeat(3).trim()
    const summarize = () => Promise.resolve({ ok: true as const, summary, ledger: [] })
    const allowed = lined('allow', { summarize })
    const { id } = allowed.fragments[0]!
    const open = shownBy(allowed)
    const told = await summarizeFragment.run(allowed, { fragment_id: id, focus: 'the number' })
    const hidden = shownBy(allowed)
    expect(told).toMatchObject({
      text: `Summarized ${id}. This does not pay: the summary takes ${hidden - open} tokens more than the text (${open} tokens shown with the text, ${hidden} with the summary).`,
    })
    const refused = lined('refuse', { summarize })
    const before = refused.snapshot()
    const [first] = refused.fragments
    const answer = await summarizeFragment.run(refused, { fragment_id: first!.id, focus: 'the number' })
    expect(answer).toMatchObject({ failed: true, modifies: false })
    expect(answer.text).toContain('stays as it is. This does not pay: the summary takes')
    expect(refused.snapshot()).toEqual(before)
  })

  it('are refused by the server, unless its settings or the request allow them', async () => {
    const model = { name: 'm', slots: 1, load: () => Promise.resolve(engine) }
    for (const costlyFolds of [undefined, 'allow'] as const) {
      const service = await ThreadService.open({ models: [model], ...(costlyFolds === undefined ? {} : { costlyFolds }) })
      const messages = [{ role: 'user' as const, content: 'Just a short text.' }]
      const { thread } = await service.ask({ tenant: 't', messages, tools: [], toolChoice: 'auto', maxTokens: 2 }).answer
      const { threads } = service
      const cut = { startMarker: 'Just', endMarker: 'text', numFragments: 1 }
      const [fragment] = await threads.fragment('t', thread, cut)
      const fold = threads.fold('t', thread, fragment!.id)
      if (costlyFolds === undefined) {
        await expect(fold).rejects.toMatchObject({ code: 'tool/costs-more', status: 409 })
        expect(threads.get('t', thread).all[0]!.fragments[0]).toMatchObject({ state: { kind: 'open' } })
        await threads.fold('t', thread, fragment!.id, undefined, 'allow')
      } else await fold
      const { price, state } = threads.get('t', thread).all[0]!.fragments[0]!
      expect(state.kind).toBe('folded')
      expect(price!.hidden).toBeGreaterThan(price!.open)
    }
  })

  it('forget all the same, unless the caller refuses, because a forget is not made to save tokens', async () => {
    const refused = lined('refuse')
    const [first, second] = refused.fragments
    expect(refused.fold(first!.id, { forget: true }, 'refuse')).toMatchObject({ ok: false, code: 'tool/costs-more' })
    expect(granted(refused.fold(second!.id, { forget: true })).fragment.state).toMatchObject({ kind: 'folded', forget: true })

    const service = await ThreadService.open({ models: [{ name: 'm', slots: 1, load: () => Promise.resolve(engine) }] })
    const messages = [{ role: 'user' as const, content: 'My password is swordfish.' }]
    const { thread } = await service.ask({ tenant: 't', messages, tools: [], toolChoice: 'auto', maxTokens: 2 }).answer
    const { threads } = service
    const cut = { startMarker: 'sword', endMarker: 'fish', numFragments: 1 }
    const [secret] = await threads.fragment('t', thread, cut)
    await threads.fold('t', thread, secret!.id, { forget: true })
    const { price, state } = threads.get('t', thread).all[0]!.fragments[0]!
    expect(state).toMatchObject({ kind: 'folded', forget: true })
    expect(price!.hidden).toBeGreaterThanOrEqual(price!.open)
  })
})
