/** Tests folding by policies: which results they fold, in which order, when it pays, and that all of it can be undone. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import type { ChatMessage, ToolDefinition } from '../../../../src/runtime/chat/message.js'
import { Conversation } from '../../../../src/runtime/context/conversation.js'
import { portsOf } from '../../../../src/runtime/context/ports.js'
import type { ContractChoice } from '../../../../src/runtime/core/contract.js'
import { conversationId } from '../../../../src/runtime/core/ids.js'
import { ScriptedEngine } from '../../../support/scripted.js'
import type { Ask, AskEvent } from '../../../../src/runtime/server/ask.js'
import { ThreadService, type ServiceOptions } from '../../../../src/runtime/server/service.js'
import { foldByPolicy } from '../../../../src/runtime/server/threads/policies.js'
import { SqliteStore } from '../../../../src/runtime/store/sqlite-store.js'

const read: ToolDefinition = { name: 'read', description: 'Reads.', parameters: { type: 'object', properties: {} } }
const words = (count: number, word: string): string => Array.from({ length: count }, (_, at) => `${word}${at}`).join(' ')

/** Returns a conversation with a tool call for every size, whose result has that many words. */
function calls(...sizes: readonly number[]): ChatMessage[] {
  return [
    { role: 'user', content: 'Read them all.' },
    ...sizes.flatMap((size, at): ChatMessage[] => [
      { role: 'assistant', content: '', toolCalls: [{ id: `c${at}`, name: 'read', arguments: { at } }] },
      { role: 'tool', content: words(size, `w${at}-`), toolCallId: `c${at}` },
    ]),
  ]
}

async function serve(context: number, options: Partial<ServiceOptions> = {}, trained?: number) {
  const engine = new ScriptedEngine((_, step) => ({ content: `Answer ${step}.` }), {
    context,
    ...(trained === undefined ? {} : { trained }),
  })
  const service = await ThreadService.open({ models: [{ name: 'm', slots: 2, load: () => Promise.resolve(engine) }], ...options })
  const ask = async (messages: readonly ChatMessage[], more: Partial<Ask> = {}) => {
    const asked = service.ask({ tenant: 't', messages, tools: [read], toolChoice: 'auto', acm: 'auto-policy', ...more })
    const events: AskEvent[] = []
    for await (const event of asked) events.push(event)
    const policy = events.flatMap((event) => (event.type === 'policy' ? [event] : []))
    return { ...(await asked.answer), policy }
  }
  /** Returns the indices of messages that the last request showed only as a marker. */
  const folded = () => engine.requests.at(-1)!.edits?.map(({ message }) => message) ?? []
  return { engine, service, ask, folded }
}

/** Settings that fold one result at a time, as soon as half of the context is used. */
const EAGER = { threshold: 0.5, target: 0.5 }

describe('auto-policy', () => {
  it('folds nothing below the threshold', async () => {
    const { ask, folded } = await serve(2000)
    const { policy } = await ask(calls(300, 300, 100, 100, 100))
    expect([policy, folded()]).toEqual([[], []])
  })

  it('folds old results, oldest first, and no more than necessary; the rest of the text stays', async () => {
    const { ask, folded, service } = await serve(2000)
    const { policy, thread, usage } = await ask(calls(400, 400, 100, 100, 100, 100), { policy: EAGER })
    expect(folded()).toEqual([2])
    expect(policy).toHaveLength(1)
    // The saving is the engine's count before, less its count after.
    expect(policy[0]!.saves).toBeGreaterThan(380)
    expect(usage.promptTokens).toBeLessThanOrEqual(1000)
    const view = service.threads.get('t', thread)
    expect(view.fragments).toEqual({ open: 0, folded: 1, summarised: 0 })
    await service.threads.restore('t', thread, policy[0]!.folded[0]!)
    expect(service.threads.get('t', thread).all[2]!.shown).toBe(words(400, 'w0-'))
  })

  it('keeps recent results except large ones, and always keeps results without an answer after them', async () => {
    const recent = await serve(1000)
    await recent.ask(calls(200, 200, 200, 300), { policy: { olderThanTurns: 9 } })
    expect(recent.folded()).toEqual([])
    const large = await serve(1000)
    await large.ask(calls(200, 200, 300, 300), { policy: { olderThanTurns: 9, largerThanTokens: 250 } })
    expect(large.folded()).toEqual([6])
    const old = await serve(1000)
    await old.ask(calls(200, 200, 200, 300), { policy: { olderThanTurns: 1 } })
    expect(old.folded()).toEqual([2, 4])
  })

  it('folds what is left of a result, unless that is short', async () => {
    for (const [last, isFolded] of [
      ['w0-200', true],
      ['w0-389', false],
    ] as const) {
      const { ask, service } = await serve(2000)
      const begun = calls(400)
      const first = await ask(begun, { acm: 'off' })
      const cut = { startMarker: 'w0-0', endMarker: last, numFragments: 1, role: 'all' } as const
      const [own] = await service.threads.fragment('t', first.thread, cut)
      await service.threads.fold('t', first.thread, own!.id)
      const longer: readonly ChatMessage[] = [...begun, first.message, { role: 'user', content: words(300, 'q') }]
      const { policy } = await ask(longer, { policy: { threshold: 0.1, olderThanTurns: 0 }, contract: 'splice' })
      expect(policy.flatMap(({ folded }) => folded)).toHaveLength(isFolded ? 1 : 0)
    }
  })

  it('folds all that it chose in one step, so that a fork of the thread never has a part of the folds', async () => {
    const { engine } = await serve(2000)
    const conversation = new Conversation(conversationId('c'), portsOf(engine, conversationId('c')))
    for (const message of calls(400, 400, 400, 100, 100, 100, 100)) conversation.add(message)
    const seen = new Set<number>()
    const folding = foldByPolicy({ engine, conversation, tools: [read] }, { threshold: 0.5, target: 0.2 })
    for (let step = folding.next(); ; step = folding.next()) {
      seen.add(conversation.edits().length)
      if (step.done === true) break
    }
    expect([...seen]).toEqual([0, 3])
  })

  it('folds only if it clears enough', async () => {
    const { ask, folded } = await serve(2000)
    const six = calls(200, 200, 200, 200, 200, 200)
    await ask(six, { policy: { ...EAGER, clearAtLeast: 5000 } })
    expect(folded()).toEqual([])
    const other = await serve(2000)
    await other.ask(six, { policy: { ...EAGER, clearAtLeast: 300 } })
    expect(other.folded()).toEqual([2, 4])
  })

  it('stays in force when a client resends everything, and folds more as the conversation grows, if that pays', async () => {
    const { ask, folded, service } = await serve(2000)
    const begun = calls(400, 400, 100, 100, 100, 100)
    const first = await ask(begun, { policy: EAGER })
    const next = [
      ...begun,
      first.message,
      ...calls(200, 100).map((message): ChatMessage =>
        message.role === 'user' ? { ...message, content: 'And these.' } : message,
      ),
    ]
    const second = await ask(next, { policy: EAGER, contract: 'splice' })
    expect([second.thread, folded()]).toEqual([first.thread, [2, 4]])
    expect(second.policy).toHaveLength(1)
    expect(service.threads.get('t', first.thread).fragments.folded).toBe(2)
  })

  it('folds down to its target, so that the next fold is many turns away', async () => {
    const { ask, folded } = await serve(2000)
    await ask(calls(300, 300, 300, 300, 100, 100, 100, 100))
    // Some 1,700 of 2,000 tokens exceed three quarters. Half of the context is two thirds of those.
    expect(folded()).toEqual([2, 4, 6])
  })

  it('goes by the context that the model was trained on, where the cells are more', async () => {
    const { ask, folded } = await serve(8000, {}, 2000)
    await ask(calls(300, 300, 300, 300, 100, 100, 100, 100))
    expect(folded()).toEqual([2, 4, 6])
  })

  it('waits under exact until the saved tokens pay for the recomputed ones, unless the context is soon full', async () => {
    const waits = async (contract: ContractChoice, text: number, more: Partial<Ask> = {}) => {
      const { ask } = await serve(4000)
      const begun = calls(100, 100, 100, 100, 600, 600)
      const first = await ask(begun, { acm: 'off', contract })
      const next: ChatMessage[] = [...begun, first.message, { role: 'user', content: words(text, 'q') }]
      return (await ask(next, { policy: { threshold: 0.4 }, contract, ...more })).policy.length === 0
    }
    // Four hundred tokens less in some six turns, at a tenth of the price, are worth 240. A thousand tokens follow them.
    expect(await waits('exact', 200)).toBe(true)
    expect(await waits('splice', 200)).toBe(false)
    expect(await waits('exact', 2000)).toBe(false)
    // The client may know the number of turns to come: with a hundred it pays, and after the last one nothing does.
    expect(await waits('exact', 200, { expectedReuse: 100 })).toBe(false)
    expect(await waits('splice', 200, { expectedReuse: 1 })).toBe(false)
    expect(await waits('splice', 200, { expectedReuse: 0 })).toBe(true)
    expect(await waits('exact', 2000, { expectedReuse: 0 })).toBe(false)
  })

  it('marks the last request of a thread for the engine', async () => {
    const { ask, engine } = await serve(4000)
    await ask(calls(10), { expectedReuse: 1 })
    await ask(calls(20), { expectedReuse: 0 })
    expect(engine.requests.map(({ last }) => last)).toEqual([undefined, true])
  })

  it('folds text that is recomputed anyway, because the client changed an earlier message', async () => {
    const { ask, folded } = await serve(4000)
    const begun = calls(100, 100, 100, 100, 600, 600)
    const first = await ask(begun, { acm: 'off' })
    const changed = [{ role: 'user', content: 'Read all of them.' } as const, ...begun.slice(1), first.message]
    await ask([...changed, { role: 'user', content: words(200, 'q') }], { policy: { threshold: 0.4 } })
    expect(folded()).toEqual([2, 4, 6])
  })

  it('keeps text that the model, a person or the client had restored', async () => {
    const { ask, folded, service } = await serve(2000)
    const begun = calls(400, 400, 100, 100, 100, 100)
    const first = await ask(begun, { policy: EAGER })
    await service.threads.restore('t', first.thread, first.policy[0]!.folded[0]!)
    await ask([...begun, first.message, { role: 'user', content: 'Go on.' }], { policy: EAGER, contract: 'splice' })
    expect(folded()).toEqual([4])
    const client = await serve(2000)
    const other = await client.ask(begun, { acm: 'off' })
    const goesOn = [...begun, other.message, { role: 'user', content: 'Go on.' } as const]
    const pruned = goesOn.map((message, at) => (at === 2 ? { ...message, content: '[cleared]' } : message))
    const third = await client.ask(pruned, { acm: 'off' })
    await client.ask([...goesOn, third.message, { role: 'user', content: 'So?' }], { policy: EAGER, contract: 'splice' })
    expect(client.folded()).toEqual([4])
  })
})

describe('the folds of policies', () => {
  it('are listed with the thread, at the step from which they count, and survive a restart', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'kvfold-policies-'))
    const begun = calls(200, 200, 100, 100, 100, 100)
    const one = await serve(1000, { store: SqliteStore.open({ folder }) })
    const first = await one.ask(begun)
    const other = await one.ask(calls(300, 300, 300, 300), { acm: 'off', overflow: 'fold-tool-results' })
    const goesOn = [...begun, first.message, ...calls(200, 200).slice(1), { role: 'user', content: 'So?' }] as const
    await one.ask(goesOn)
    const before = [first, other].map(({ thread }) => one.service.threads.get('t', thread).events)
    expect(before[0]!.map(({ folded, saves }) => ({ folded, saves }))).toEqual([
      { folded: first.policy[0]!.folded, saves: first.policy[0]!.saves },
      expect.objectContaining({ saves: expect.any(Number) as number }) as object,
    ])
    expect(before.map((events) => events.map(({ kind, after, reason }) => [kind, after, reason]))).toEqual([
      [
        ['policy', 0, 'the context is past its threshold'],
        ['policy', 1, 'the context is past its threshold'],
      ],
      // This conversation has the calls of the first with other results, and none of its answers, so it is a separate one.
      [['policy', 0, 'the context is full']],
    ])
    expect(Math.abs(Date.now() - before[0]![0]!.at)).toBeLessThan(60_000)
    await one.service.close()

    const { service } = await serve(1000, { store: SqliteStore.open({ folder }) })
    expect([first, other].map(({ thread }) => service.threads.get('t', thread).events)).toEqual(before)
    expect(service.threads.export('t', first.thread).events).toEqual(before[0])
    await service.close()
    rmSync(folder, { recursive: true })
  })

  it('are dropped with a request that is refused for lack of room', async () => {
    const { ask, service } = await serve(500, { defaults: { overflow: 'fold-tool-results' } })
    const messages: readonly ChatMessage[] = [...calls(200, 200), { role: 'user', content: words(600, 'q') }]
    await expect(ask(messages, { policy: { threshold: 0.1, olderThanTurns: 0 } })).rejects.toMatchObject({ code: 'context/full' })
    expect(service.threads.list('t')).toEqual([])
  })

  it('are dropped with a refused request of a thread that goes on without it, in the store too', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'kvfold-events-'))
    const { ask, service } = await serve(500, { store: SqliteStore.open({ folder }) })
    const messages = calls(100, 100)
    const { thread, message } = await ask(messages, { acm: 'off' })
    const before = service.threads.get('t', thread)
    const longer: readonly ChatMessage[] = [...messages, message, { role: 'user', content: words(600, 'q') }]
    await expect(ask(longer, { policy: { threshold: 0.1, olderThanTurns: 0 } })).rejects.toMatchObject({ code: 'context/full' })
    const after = service.threads.get('t', thread)
    expect([after.messages, after.events]).toEqual([before.messages, before.events])
    await service.close()
    const again = await serve(500, { store: SqliteStore.open({ folder }) })
    expect(again.service.threads.get('t', thread).events).toEqual(before.events)
    await again.service.close()
    rmSync(folder, { recursive: true })
  })
})

describe('a conversation that outgrows the context', () => {
  it('is refused, with both numbers, and never cut', async () => {
    const { ask, engine } = await serve(500)
    const error: unknown = await ask(calls(300, 300), { acm: 'off' }).catch((thrown: unknown) => thrown)
    expect(error).toMatchObject({
      code: 'context/full',
      status: 400,
      message: expect.stringMatching(/\d+ tokens.* 500/) as string,
    })
    expect(engine.requests).toHaveLength(1)
  })

  it('has its oldest tool results folded if the server or the request says so', async () => {
    for (const [server, request] of [
      [{ overflow: 'fold-tool-results' }, {}],
      [{}, { overflow: 'fold-tool-results' }],
    ] as const) {
      const { ask, folded } = await serve(500, { defaults: server })
      const { policy, finish } = await ask(calls(200, 200, 200), { acm: 'off', ...request })
      expect([folded(), finish, policy[0]?.reason]).toEqual([[2], 'stop', 'the context is full'])
    }
  })

  it('has answered tool results folded first with fold-oldest, then old messages, never the question or what is unanswered', async () => {
    const messages: readonly ChatMessage[] = [
      { role: 'user', content: words(150, 'old') },
      { role: 'assistant', content: 'Noted.' },
      ...calls(200, 200, 200),
    ]
    const overflow = { acm: 'off', overflow: 'fold-oldest' } as const
    const plain = await serve(500)
    await plain.ask(messages, overflow)
    expect(plain.folded()).toEqual([4, 6])
    const pinned = await serve(500)
    await pinned.ask(messages, { ...overflow, pinned: ['c0'] })
    expect(pinned.folded()).toEqual([0, 6])
    const both = await serve(400)
    await expect(both.ask(calls(200, 500), overflow)).rejects.toMatchObject({ code: 'context/full' })
  })

  it('is folded to the context that the model was trained on as far as possible, and answered while there are cells', async () => {
    const overflow = { defaults: { overflow: 'fold-tool-results' } } as const
    const enough = await serve(2000, overflow, 500)
    await enough.ask(calls(200, 200, 200), { acm: 'off' })
    expect(enough.folded()).toEqual([2])
    const tooLong = await serve(2000, overflow, 500)
    const messages: readonly ChatMessage[] = [
      ...calls(200, 200),
      { role: 'assistant', content: 'So.' },
      { role: 'user', content: words(600, 'q') },
    ]
    const { finish } = await tooLong.ask(messages, { acm: 'off' })
    expect([tooLong.folded(), finish]).toEqual([[2, 4], 'stop'])
  })

  it('is refused when folding them is not enough, and then nothing is folded', async () => {
    const { ask, service } = await serve(500, { defaults: { overflow: 'fold-tool-results' } })
    const messages = [
      ...calls(200, 200),
      { role: 'assistant', content: 'So.' },
      { role: 'user', content: words(600, 'q') },
    ] as const
    await expect(ask(messages as readonly ChatMessage[], { acm: 'off' })).rejects.toMatchObject({
      code: 'context/full',
      message: expect.stringMatching(/more than there is room for/) as string,
    })
    expect(service.threads.list('t')).toEqual([])
    expect(service.status().running).toBe(0)
  })

  it.each([false, true])(
    'is folded though a person had divided a part of its results, and folded a fragment: %s',
    async (isFolded) => {
      const { ask, service, folded } = await serve(700, { defaults: { overflow: 'fold-tool-results' } })
      const begun = calls(400)
      const first = await ask(begun, { acm: 'off' })
      const cut = { startMarker: 'w0-100', endMarker: 'w0-199', numFragments: 2, role: 'all' } as const
      const [own, other] = await service.threads.fragment('t', first.thread, cut)
      expect(other).toBeDefined()
      if (isFolded) await service.threads.fold('t', first.thread, own!.id)
      const { finish, policy, usage } = await ask([...begun, first.message, { role: 'user', content: words(400, 'q') }], {
        acm: 'off',
      })
      expect([finish, folded()]).toEqual(['stop', [2, 2, 2, 2]])
      expect(policy[0]!.folded).toHaveLength(isFolded ? 3 : 4)
      expect(usage.promptTokens + policy[0]!.saves).toBeGreaterThan(isFolded ? 750 : 800)
      for (const id of new Set([own!.id, ...policy[0]!.folded])) await service.threads.restore('t', first.thread, id)
      expect(service.threads.get('t', first.thread).all[2]!.shown).toBe(words(400, 'w0-'))
    },
  )

  it('goes on by folds however much text it had', async () => {
    const { ask } = await serve(2000, { defaults: { overflow: 'fold-tool-results' } })
    let messages: readonly ChatMessage[] = []
    for (let at = 0; at < 20; at++) {
      messages = [...messages, ...calls(1000)]
      const { message, finish } = await ask(messages, { acm: 'off' })
      expect(finish).toBe('stop')
      messages = [...messages, message]
    }
    const characters = messages.reduce((sum, { content }) => sum + content.length, 0)
    expect(characters).toBeGreaterThan(64 * 2000)
  })

  it('is refused at once if it can never fit', async () => {
    const { ask } = await serve(500, { defaults: { overflow: 'fold-tool-results' } })
    const begun = performance.now()
    await expect(ask([{ role: 'user', content: 'many words '.repeat(1e5) }])).rejects.toMatchObject({ code: 'context/full' })
    expect(performance.now() - begun).toBeLessThan(5000)
  })
})
