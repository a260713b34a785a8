/**
 * Tests random actions of stateless clients on their copies of a conversation: the model sees what they sent, and every thread has what its
 * client knows.
 */
import fc from 'fast-check'
import { expect, it } from 'vitest'
import type { ChatMessage, ToolDefinition } from '../../../../src/runtime/chat/message.js'
import { ScriptedEngine } from '../../../support/scripted.js'
import { ThreadService } from '../../../../src/runtime/server/service.js'
import { canonical } from '../../../../src/runtime/server/threads/message-match.js'
import { MemoryStore } from '../../../../src/runtime/server/threads/memory-store.js'
import { LONG } from '../../../support/long.js'

const look: ToolDefinition = { name: 'look', description: 'Looks.', parameters: { type: 'object', properties: {} } }

/** Draws the model's behaviour in each step, and what the client then does with its copy. */
const moves = fc.array(
  fc.record({
    tenant: fc.constantFrom('a', 'b'),
    /** The index of the copy: one of the client's conversations so far, or a new one. */
    from: fc.nat(6),
    change: fc.constantFrom<'go on' | 'again' | 'edit' | 'remove' | 'insert' | 'truncate' | 'fold'>(
      ...(['go on', 'go on', 'go on', 'again', 'edit', 'remove', 'insert', 'truncate', 'fold'] as const),
    ),
    at: fc.nat(20),
    says: fc.constantFrom('x', 'y'),
    model: fc.constantFrom('answer', 'inner', 'outer', 'inner, outer', 'outer, inner', 'outer, inner, outer', 'fails'),
  }),
  { minLength: 1, maxLength: 12 },
)

const inner = { name: 'search_context', arguments: { query: 'x' } }
const outer = { name: 'look', arguments: {} }

it('threads keep what clients know, however they fork, fold and fail', async () => {
  await fc.assert(
    fc.asyncProperty(moves, async (list) => {
      let plan = 'answer'
      let first = true
      let count = 0
      const engine = new ScriptedEngine(() => {
        count++
        if (!first || plan === 'answer') return { content: `Answer ${count % 3}.` }
        first = false
        if (plan === 'fails') throw new Error('fails')
        return {
          content: count % 2 === 0 ? 'So.' : '',
          calls: plan.split(', ').map((kind) => (kind === 'inner' ? inner : outer)),
        }
      })
      const store = new MemoryStore()
      /** The text that each fragment hides, over all threads. */
      const texts = new Map<string, string>()
      const service = await ThreadService.open({
        models: [{ name: 'm', slots: 1, load: () => Promise.resolve(engine) }],
        store,
        costlyFolds: 'allow',
      })
      /** For each tenant, every conversation that a client has a copy of, with its thread. */
      const copies = new Map<string, { thread: string; messages: readonly ChatMessage[] }[]>([
        ['a', []],
        ['b', []],
      ])
      for (const { tenant, from, change, at, says, model } of list) {
        const own = copies.get(tenant)!
        const copy = own[from]
        let messages = [...(copy?.messages ?? [])]
        const calls = messages.at(-1)?.toolCalls ?? []
        if (change === 'again' && messages.length > 1) messages = messages.slice(0, -1)
        else if (change === 'edit' && messages.length > 0) {
          const place = at % messages.length
          messages[place] = { ...messages[place]!, content: `${messages[place]!.content}!` }
        } else if (change === 'remove' && messages.length > 2) {
          // A message with calls is removed with their results.
          const place = at % (messages.length - 1)
          if (messages[place]!.role !== 'tool') {
            const end = messages.findIndex((message, index) => index > place && message.role !== 'tool')
            messages.splice(place, (end === -1 ? messages.length : end) - place)
          }
        } else if (change === 'insert' && messages.length > 0) {
          const place = at % messages.length
          if (messages[place]!.role !== 'tool') messages.splice(place, 0, { role: 'user', content: `${says} too` })
        } else if (change === 'truncate' && messages.length > 2) messages = messages.slice(at % messages.length)
        else if (change === 'fold' && copy !== undefined && service.threads.list(tenant).some(({ id }) => id === copy.thread)) {
          const text = messages.find(({ role }) => role === 'user')?.content ?? ''
          const made = await service.threads
            .fragment(tenant, copy.thread, { startMarker: text.slice(0, 1), endMarker: text.slice(-1), numFragments: 1 })
            .catch(() => [])
          for (const { id } of made) await service.threads.fold(tenant, copy.thread, id)
        }
        if (messages.at(-1)?.role === 'assistant' || messages.length === 0) {
          for (const { id } of messages.at(-1)?.toolCalls ?? [])
            messages.push({ role: 'tool', content: `saw ${says}`, toolCallId: id })
          if (calls.length === 0 || messages.length === 0)
            messages.push({ role: 'user', content: `${says} ${'word '.repeat(at)}end` })
        }
        const before = new Map(
          service.threads.list(tenant).map(({ id }) => [id, JSON.stringify(service.threads.export(tenant, id).messages)]),
        )
        plan = model
        first = true
        const asked = service.ask({ tenant, messages, tools: [look], toolChoice: 'auto', acm: 'tools' })
        const answer = await asked.answer.catch(() => null)

        // Without the calls carried out inside, the model saw what the client sent.
        const known = messages.map(canonical)
        const request = engine.requests.at(-1)!
        const visible = request.messages.filter(
          ({ role, toolCalls, toolCallId, content }) =>
            !(role === 'tool' && content.includes('match')) &&
            !(role === 'assistant' && toolCalls?.every(({ name }) => name !== 'look') === true && toolCallId === undefined),
        )
        const asSeen = (message: ChatMessage) => {
          const seen = message.toolCalls?.filter(({ name }) => name === 'look')
          return [message.role, message.role === 'tool' ? message.toolCallId : '', seen?.length ?? 0].join()
        }
        expect(visible.map(asSeen)).toEqual(messages.map(asSeen))
        expect(visible.flatMap(({ role, content }) => (role === 'assistant' ? [] : [content]))).toEqual(
          messages.flatMap(({ role, content }) => (role === 'assistant' ? [] : [content])),
        )
        // Results are in the order of their calls, after the message with the calls.
        for (const [place, { role, toolCalls = [] }] of request.messages.entries())
          if (role === 'assistant' && toolCalls.length > 0) {
            const ids = request.messages.slice(place + 1, place + 1 + toolCalls.length).map(({ toolCallId }) => toolCallId)
            expect(ids).toEqual(toolCalls.map(({ id }) => id))
          }
        if (answer === null) continue
        // The thread has what the client knows now, and all other threads are unchanged.
        const now = service.threads.export(tenant, answer.thread)
        const view = now.messages.flatMap(({ message, seen }) => (seen === 'nothing' ? [] : [seen === 'same' ? message : seen]))
        expect(view.map((message) => canonical(message as ChatMessage))).toEqual([...known, canonical(answer.message)])
        for (const [id, text] of before)
          if (id !== answer.thread) expect(JSON.stringify(service.threads.export(tenant, id).messages)).toBe(text)
        // Fragments are in existing messages, and the store has everything.
        for (const { id, message, span } of now.edits.fragments) {
          const text = now.messages[message]!.message.content.slice(span.start, span.end)
          expect([message, text, texts.get(`${tenant} ${id}`) ?? text]).toEqual([message, text, text])
          texts.set(`${tenant} ${id}`, text)
          expect(text).not.toBe('')
        }
        own.push({ thread: answer.thread, messages: [...messages, answer.message] })
        const stored = store.read(tenant, answer.thread)!
        expect(stored).toEqual({ ...stored, edits: now.edits, ledger: now.ledger, held: now.held, used: now.used })
        expect(stored.messages.map(({ message }) => message.content)).toEqual(now.messages.map(({ message }) => message.content))
        // No tenant can read another tenant's threads.
        for (const { id } of service.threads.list(tenant === 'a' ? 'b' : 'a'))
          expect(() => service.threads.get(tenant, id)).toThrow(expect.objectContaining({ code: 'server/no-thread' }))
      }
      await service.close()
    }),
    { numRuns: LONG ? 1500 : 60 },
  )
}, 120_000)
