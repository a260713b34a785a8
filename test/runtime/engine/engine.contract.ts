/** The suite that every `Engine` passes: ordered events, a reply that is their sum, a ledger that adds up, cancelling, errors. */
import { afterAll, beforeAll, expect, it } from 'vitest'
import type { ChatMessage, Edit } from '../../../src/runtime/chat/message.js'
import { type ConversationId, conversationId } from '../../../src/runtime/core/ids.js'
import { span } from '../../../src/runtime/core/span.js'
import type { Engine, EngineEvent, EngineReply, EngineRequest, Generation } from '../../../src/runtime/engine/engine.js'
import type { LedgerEntry } from '../../../src/runtime/kv/ledger.js'

export interface EngineOnTrial {
  readonly engine: Engine
  /** Request fields that make an answer short. */
  readonly short: Partial<EngineRequest>
  /** Request fields for an answer that is cancelled before it ends. */
  readonly long: Partial<EngineRequest>
  /** A number of words beyond the context's tokens. */
  readonly tooMany: number
  /** Returns another engine, for the test to dispose of. */
  readonly another: () => Promise<Engine>
  readonly end?: () => Promise<void>
}

const user = (content: string): ChatMessage => ({ role: 'user', content })
const TEXT = 'The lamp is green. The hat is red, and the boat on the river is blue. The tree stands by the lake.'

/** Iterates to the end. Returns the events and the reply, or throws the error with which both ended. */
async function heard(running: Generation): Promise<{ events: EngineEvent[]; reply: EngineReply }> {
  const events: EngineEvent[] = []
  for await (const event of running) events.push(event)
  return { events, reply: await running.reply }
}

/** Listens to the end. */
async function listened(running: Generation): Promise<{ events: EngineEvent[]; reply: EngineReply }> {
  const events: EngineEvent[] = []
  const reply = await running.each((event) => {
    events.push(event)
  })
  return { events, reply }
}

function expectSums(entry: LedgerEntry): void {
  expect(entry.reused + entry.recomputed + entry.fresh).toBe(entry.shown)
  expect(entry.recomputed + entry.fresh + entry.side).toBe(entry.submitted)
  expect(Object.values(entry.sources).reduce((all, part) => all + part, 0)).toBe(entry.reused)
  for (const key of ['shown', 'reused', 'recomputed', 'fresh'] as const)
    expect(entry.messages.reduce((all, cost) => all + cost[key], 0)).toBe(entry[key])
  for (const cost of entry.messages) expect(cost.reused + cost.recomputed + cost.fresh).toBe(cost.shown)
  expect(entry.pending).toBeLessThanOrEqual(1)
}

/** Declares the tests of one engine. */
export function keepsEngineContract(make: () => Promise<EngineOnTrial>): void {
  let trial: EngineOnTrial
  let engine: Engine
  let count = 0

  beforeAll(async () => {
    trial = await make()
    engine = trial.engine
  })
  afterAll(async () => {
    await engine.dispose()
    await trial.end?.()
  })

  const somebody = (): ConversationId => conversationId(`contract-${++count}`)
  const ask = (request: Partial<EngineRequest> = {}) =>
    engine.respond({ conversation: somebody(), messages: [user(TEXT)], ...trial.short, ...request })

  it('describes itself', () => {
    expect(engine.info.context).toBeGreaterThan(0)
    for (const name of ['model', 'engine', 'release'] as const) expect(engine.info[name]).not.toBe('')
  })

  it.each([
    ['iterates', heard],
    ['listens', listened],
  ] as const)(
    'sends the plan before anything is computed, progress that grows, and text that is the message, to code that %s',
    async (_, take) => {
      const { events, reply } = await take(ask())
      expect(reply.message.role).toBe('assistant')
      expect(['stop', 'length', 'tool-calls']).toContain(reply.finish)
      const types = events.map(({ type }) => type)
      expect(types.filter((type) => type === 'plan').length).toBe(1)
      expect(types.filter((type) => type !== 'rewrite')[0]).toBe('plan')
      let done = 0
      for (const event of events)
        if (event.type === 'prefill') {
          expect(event.done).toBeGreaterThanOrEqual(done)
          expect(event.done).toBeLessThanOrEqual(event.total)
          done = event.done
        }
      const said = (type: 'text' | 'reasoning') => events.map((event) => (event.type === type ? event.text : '')).join('')
      expect(said('text')).toBe(reply.message.content)
      expect(said('reasoning')).toBe(reply.message.reasoning ?? '')
      const calls = events.flatMap((event) => (event.type === 'call' ? [event.call] : []))
      expect(calls).toEqual(reply.message.toolCalls ?? [])
      expect(reply.timing.generatedTokens).toBeGreaterThanOrEqual(0)
      expect(reply.timing.firstToken).toBeLessThanOrEqual(reply.timing.total)
    },
  )

  it('keeps a ledger that adds up, whatever is added, hidden and shown again', async () => {
    const conversation = somebody()
    const messages = [user(TEXT)]
    const hidden = engine.snap(messages, [], 0, span(20, 60))
    const edits: Edit[] = [{ message: 0, span: hidden, replacement: ' [hidden] ' }]
    for (const [step, shown] of [[], edits, [], edits].entries()) {
      const { events, reply } = await heard(ask({ conversation, messages, edits: shown }))
      expectSums(reply.ledger)
      expect(reply.ledger.step).toBe(step)
      const plan = events.find((event) => event.type === 'plan')
      if (engine.estimates !== true) expect(plan?.shown).toBe(engine.count(messages, [], shown))
      expect(reply.ledger.reused).toBe(plan?.reused)
      if (step > 0) expect(reply.ledger.reused).toBeGreaterThan(0)
      messages.push(reply.message, user(`And then, at ${step}?`))
    }
  })

  it('widens spans to token borders, and leaves those as they are', () => {
    const messages = [user(`${TEXT} Été 😀 à la fin.`)]
    const { length } = messages[0]!.content
    for (let start = 0; start < length; start += 3) {
      const chars = span(start, Math.min(length, start + 5))
      const wide = engine.snap(messages, [], 0, chars)
      expect(wide.start).toBeLessThanOrEqual(chars.start)
      expect(wide.end).toBeGreaterThanOrEqual(chars.end)
      expect(engine.snap(messages, [], 0, wide)).toEqual(wide)
    }
  })

  it('runs the steps of a conversation one after another', async () => {
    const conversation = somebody()
    const ended: string[] = []
    const runs = ['first', 'second', 'third'].map(async (name) => {
      const { reply } = await heard(ask({ conversation, messages: [user(TEXT)] }))
      ended.push(name)
      return reply.ledger.step
    })
    expect(await Promise.all(runs)).toEqual([0, 1, 2])
    expect(ended).toEqual(['first', 'second', 'third'])
  })

  it('cancels a running step, records it as cancelled, and continues afterwards', async () => {
    const conversation = somebody()
    const abort = new AbortController()
    const running = ask({ conversation, ...trial.long, signal: abort.signal })
    for await (const event of running) if (event.type !== 'rewrite') abort.abort()
    const { finish, ledger } = await running.reply
    expect([finish, ledger.kind]).toEqual(['cancelled', 'cancelled'])
    expectSums(ledger)
    const next = await ask({ conversation }).reply
    expect([next.ledger.kind, next.ledger.step]).toEqual(['answer', 1])
    expectSums(next.ledger)
  })

  it('is cancelled by a listener in the middle of an event, and goes on afterwards', async () => {
    const conversation = somebody()
    const abort = new AbortController()
    const running = ask({ conversation, ...trial.long, signal: abort.signal })
    const { finish, ledger } = await running.each(({ type }) => {
      if (type !== 'rewrite') abort.abort()
    })
    expect([finish, ledger.kind]).toEqual(['cancelled', 'cancelled'])
    expectSums(ledger)
    expect((await ask({ conversation }).reply).ledger.kind).toBe('answer')
  })

  it('ends reply and events with the same error where the context is too small, and goes on afterwards', async () => {
    const conversation = somebody()
    const running = ask({ conversation, messages: [user('lamp '.repeat(trial.tooMany))] })
    const failed = await running.reply.catch((error: unknown) => error)
    expect(failed).toMatchObject({ code: 'context/full' })
    await expect(heard(running)).rejects.toBe(failed)
    expectSums((await ask({ conversation }).reply).ledger)
  })

  it('forgets a conversation, even one that it does not know', async () => {
    const conversation = somebody()
    await ask({ conversation }).reply
    engine.forget(conversation)
    engine.forget(somebody())
    expect((await ask({ conversation }).reply).ledger.step).toBe(0)
  })

  it('cancels the running step of a conversation that it forgets', async () => {
    const conversation = somebody()
    const running = ask({ conversation, ...trial.long })
    for await (const event of running) if (event.type !== 'rewrite') engine.forget(conversation)
    expect((await running.reply).finish).toBe('cancelled')
  })

  it('cancels running steps when it is disposed of, may be disposed of twice, and refuses later requests', async () => {
    const other = await trial.another()
    const request = { conversation: somebody(), messages: [user(TEXT)], ...trial.short }
    const running = other.respond({ ...request, ...trial.long })
    for await (const event of running) if (event.type !== 'rewrite') void other.dispose()
    expect((await running.reply).finish).toBe('cancelled')
    await other.dispose()
    await expect(other.respond(request).reply).rejects.toMatchObject({ code: 'engine/disposed' })
  })
}
