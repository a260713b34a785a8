/**
 * Compares a server that unloads every idle thread at once with one that keeps them all in memory: both must behave the same, even over
 * restarts.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { ChatMessage, ToolDefinition } from '../../../../src/runtime/chat/message.js'
import { KvfoldError } from '../../../../src/runtime/core/errors.js'
import { ScriptedEngine, type Script } from '../../../support/scripted.js'
import type { Ask } from '../../../../src/runtime/server/ask.js'
import { ThreadService, type ServiceOptions } from '../../../../src/runtime/server/service.js'
import { ThreadManager } from '../../../../src/runtime/server/threads/thread-manager.js'
import { MemoryStore } from '../../../../src/runtime/server/threads/memory-store.js'
import type { ThreadStore } from '../../../../src/runtime/store/port.js'
import { SqliteStore } from '../../../../src/runtime/store/sqlite-store.js'
import { LONG } from '../../../support/long.js'

const look: ToolDefinition = { name: 'look', description: 'Looks.', parameters: { type: 'object', properties: {} } }
const user = (content: string): ChatMessage => ({ role: 'user', content })

/** Counts how often a thread is read. */
function counted<S extends ThreadStore>(store: S): S & { reads: number } {
  const read = store.read.bind(store)
  const counting = Object.assign(store, { reads: 0 })
  counting.read = (...of) => {
    counting.reads++
    return read(...of)
  }
  return counting
}

/** A server with its clients. The same calls on two of them give the same results, except for ids and times. */
class Side {
  service!: ThreadService
  store!: ThreadStore & { reads: number }
  /** The ids of threads, in the order of their creation. */
  readonly #ids: string[] = []
  #steps = 0
  #plan = 'answer'
  #release: (() => void) | null = null
  readonly #script: Script = async (request) => {
    const step = this.#steps++
    const plan = this.#plan
    this.#plan = 'answer'
    if (plan === 'fails') throw new Error('The engine fails.')
    if (plan === 'waits') await new Promise<void>((resolve) => (this.#release = resolve))
    if (plan === 'search') return { content: 'So.', calls: [{ name: 'search_context', arguments: { query: 'word' } }] }
    if (plan === 'cut')
      return { calls: [{ name: 'fragment_context', arguments: { start_marker: 'word', end_marker: 'end', num_fragments: 2 } }] }
    if (plan === 'both')
      return {
        calls: [
          { name: 'look', arguments: {} },
          { name: 'search_context', arguments: { query: 'x' } },
        ],
      }
    return { content: `Answer ${step % 3} to ${request.messages.length}.` }
  }
  readonly engine: ScriptedEngine

  constructor(
    private readonly openStore: () => ThreadStore,
    private readonly options: Partial<ServiceOptions>,
  ) {
    this.engine = new ScriptedEngine(this.#script, { context: 600 })
    // The engine outlives its servers, with its cache, as if they had not been restarted.
    this.engine.dispose = () => Promise.resolve()
  }

  async open(): Promise<this> {
    this.store = counted(this.openStore())
    this.service = await ThreadService.open({
      costlyFolds: 'allow',
      models: [{ name: 'm', slots: 2, load: () => Promise.resolve(this.engine) }],
      ...this.options,
      store: this.store,
    })
    return this
  }

  async restart(): Promise<void> {
    await this.service.close()
    await this.open()
  }

  /** Returns the result, or the code of the error; ids are replaced by their order, times are left out. */
  async told(work: () => unknown): Promise<unknown> {
    try {
      return this.#plain(await work())
    } catch (error) {
      return { failed: (error as { code?: string }).code ?? String(error) }
    }
  }

  /** Returns the id of one of the tenant's threads, or sometimes of a missing one. */
  id(tenant: string, place: number): string {
    const live = this.#ids.filter((id) => this.service.threads.list(tenant).some((one) => one.id === id))
    return place === 9 ? (this.#ids[0] ?? 'thread_none') : (live[place % Math.max(1, live.length)] ?? 'thread_none')
  }

  async ask(plan: string, ask: Ask, beside?: () => Promise<unknown>): Promise<unknown> {
    this.#plan = plan
    const asked = this.service.ask(ask)
    asked.answer.catch(() => undefined)
    const also: Promise<unknown>[] = []
    return this.told(async () => {
      for await (const event of asked) {
        if (event.type === 'started') this.#note(event.thread)
        if (event.type === 'plan' && plan === 'waits' && beside !== undefined) also.push(this.told(beside))
        if (event.type === 'plan' && plan === 'waits') await this.#letGo()
      }
      return { answer: { ...(await asked.answer), timing: null, waited: null }, also: await Promise.all(also) }
    })
  }

  /** Returns everything visible of the tenant's threads. */
  all(tenant: string): Promise<unknown> {
    const { threads } = this.service
    return this.told(() => {
      const list = threads.list(tenant)
      for (const { id } of list) this.#note(id)
      return list.map((one) => [one, threads.get(tenant, one.id), threads.export(tenant, one.id), threads.view(tenant, one.id)])
    })
  }

  async #letGo(): Promise<void> {
    for (let turn = 0; this.#release === null && turn < 100; turn++) await new Promise((resolve) => setImmediate(resolve))
    // Work that runs beside it gets as far as it can.
    for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve))
    this.#release?.()
    this.#release = null
  }

  #note(id: string): void {
    if (!this.#ids.includes(id)) this.#ids.push(id)
  }

  #name(id: string): string {
    const at = this.#ids.indexOf(id)
    return at < 0 ? id : `thread ${at}`
  }

  #plain(value: unknown): unknown {
    const text = JSON.stringify(value, (key, item: unknown) =>
      ['created', 'used', 'at', 'milliseconds'].includes(key) && typeof item !== 'string' ? undefined : item,
    )
    const calls: string[] = []
    const keys: string[] = []
    const named = (text as string | undefined)
      ?.replace(/thread_[0-9a-f]{32}/gu, (id) => this.#name(id))
      // Ids of calls are random.
      .replace(/call_[0-9a-f]{24}/gu, (id) => `call ${orderOf(calls, id)}`)
      // Keys of messages that contain such ids are random, too.
      .replace(/(?<=")[A-Za-z0-9+/]{22}(?=")/gu, (key) => `key ${orderOf(keys, key)}`)
    return named === undefined ? undefined : (JSON.parse(named) as unknown)
  }
}

/** Returns the index of `one` among the known values, and adds it if it is new. */
function orderOf(known: string[], one: string): number {
  const at = known.indexOf(one)
  return at < 0 ? known.push(one) - 1 : at
}

const doings = fc.array(
  fc.record({
    what: fc.constantFrom(
      ...([
        'ask',
        'ask',
        'ask',
        'append',
        'append',
        'edit',
        'cut',
        'cut',
        'fold',
        'fold',
        'fold',
        'restore',
        'search',
        'detail',
      ] as const),
      ...(['contract', 'delete', 'restart', 'policy', 'refresh'] as const),
    ),
    tenant: fc.constantFrom('a', 'a', 'b'),
    at: fc.nat(9),
    plan: fc.constantFrom('answer', 'answer', 'search', 'cut', 'both', 'waits', 'fails'),
    acm: fc.constantFrom('tools' as const, 'off' as const),
    beside: fc.constantFrom('fold', 'ask', 'append', 'delete', 'nothing'),
  }),
  { minLength: 5, maxLength: 25 },
)

/** Operations that create something for the random ones to work on. */
const before = (['ask', 'cut', 'policy', 'search'] as const).map((what): Doing => ({
  what,
  tenant: 'a',
  at: 0,
  plan: 'answer',
  acm: 'tools',
  beside: 'nothing',
}))

type Doing = (typeof doings extends fc.Arbitrary<infer T> ? T : never) extends readonly (infer D)[] ? D : never

/** Returns the messages of a client that continues the thread at that place, or starts one. */
function messagesOf(side: Side, { tenant, at, what }: Doing): ChatMessage[] {
  const known = side.service.threads.list(tenant).find(({ id }) => id === side.id(tenant, at))
  const view = known === undefined ? [] : [...side.service.threads.view(tenant, known.id)]
  const last = view.at(-1)
  if (what === 'edit' && view.length > 2) view[at % view.length] = { ...view[at % view.length]!, content: `edited ${at}` }
  for (const { id } of last?.toolCalls ?? []) view.push({ role: 'tool', content: 'x '.repeat(90), toolCallId: id })
  if (last?.role !== 'tool') view.push(user(`word ${at % 4} ${'word '.repeat(5 * (at % 3))}end`))
  return view
}

const called = (index: number): ChatMessage[] => [
  { role: 'assistant', content: '', toolCalls: [{ id: `c${index}`, name: 'look', arguments: { index } }] },
  { role: 'tool', content: `w${index} `.repeat(70), toolCallId: `c${index}` },
]

function carryOut(side: Side, doing: Doing): Promise<unknown> {
  const { what, tenant, at, plan, acm, beside } = doing
  const { threads } = side.service
  const id = side.id(tenant, at)
  const ask = { tenant, tools: [look], toolChoice: 'auto', acm } as const
  const fragmentAt = () => {
    const all = threads.get(tenant, id).all.flatMap(({ fragments }) => fragments)
    return all[at % Math.max(1, all.length)]?.id ?? 'f00000'
  }
  const another = (): Promise<unknown> => {
    if (beside === 'fold') return threads.fold(tenant, id, fragmentAt())
    if (beside === 'delete') return threads.delete(tenant, side.id(tenant, at + 1))
    const messages = beside === 'append' ? [user('Also this.')] : messagesOf(side, doing)
    return side.service
      .ask({ ...ask, messages, ...(beside === 'append' ? { thread: id, appended: true } : {}) })
      .answer.then(({ message, lost }) => ({ message, lost }))
  }
  switch (what) {
    case 'ask':
    case 'edit':
      return side.ask(plan, { ...ask, messages: messagesOf(side, doing) }, beside === 'nothing' ? undefined : another)
    case 'append':
      return side.ask(plan, { ...ask, messages: [user(`Appended ${at}.`)], thread: id, appended: true })
    case 'policy':
      return side.ask('answer', {
        ...{ ...ask, acm: 'auto-policy', messages: [user('Read all.'), ...[0, 1, 2, 3, 4].flatMap(called)] },
        policy: { threshold: 0.2, olderThanTurns: 1 },
      })
    case 'cut':
      return side.told(() => threads.fragment(tenant, id, { startMarker: 'word', endMarker: 'end', numFragments: 1 + (at % 3) }))
    case 'fold':
      return side.told(() => threads.fold(tenant, id, fragmentAt()))
    case 'restore':
      return side.told(() => threads.restore(tenant, id, fragmentAt()))
    case 'search':
      return side.told(() => threads.search(tenant, id, { query: 'word', maxResults: 1 + (at % 4) }))
    case 'detail':
      return side.told(() => threads.detail(tenant, id, threads.export(tenant, id).edits.searches[0]?.id ?? 's00000'))
    case 'contract':
      return side.told(() => threads.contract(tenant, id, 'splice'))
    case 'refresh':
      return side.told(() => threads.refresh(tenant, id))
    case 'delete':
      return side.told(() => threads.delete(tenant, id))
    case 'restart':
      return Promise.resolve(null)
  }
}

const requestsOf = ({ engine }: Side) =>
  engine.requests.map(({ messages, edits, tools, contract, tenant }) => [
    ...[tenant, contract, edits, tools?.map(({ name }) => name)],
    messages.map(({ role, content }) => [role, content]),
  ])

describe('threads that are loaded on demand', () => {
  it('behave as in memory', { timeout: 240_000 }, async (context) => {
    let reads = 0
    /** For each operation, how often it succeeded and how often it was refused. */
    const done: Record<string, [number, number]> = {}
    await fc.assert(
      fc.asyncProperty(doings, async (list) => {
        const folder = mkdtempSync(join(tmpdir(), 'kvfold-lazy-'))
        const limits = { perTenant: 5 }
        const kept = await new Side(() => new MemoryStore(), { ...limits, idleBytes: Infinity }).open()
        const lazy = await new Side(() => SqliteStore.open({ folder }), { ...limits, idleBytes: 0 }).open()
        try {
          for (const doing of [...before, ...list]) {
            if (doing.what === 'restart') {
              reads += lazy.store.reads
              await lazy.restart()
            }
            const came = await carryOut(lazy, doing)
            expect(came).toEqual(await carryOut(kept, doing))
            const isRefused = came !== null && typeof came === 'object' && 'failed' in came
            ;(done[doing.what] ??= [0, 0])[isRefused ? 1 : 0]++
            for (const tenant of ['a', 'b']) expect(await lazy.all(tenant)).toEqual(await kept.all(tenant))
            expect(lazy.service.status().threads).toBe(kept.service.status().threads)
            // The thread that was read last may still be loaded.
            expect(lazy.service.status().loaded).toBeLessThanOrEqual(1)
          }
          expect(requestsOf(lazy)).toEqual(requestsOf(kept))
          expect(kept.store.reads).toBe(0)
          reads += lazy.store.reads
        } finally {
          await Promise.all([kept.service.close(), lazy.service.close()])
          rmSync(folder, { recursive: true })
        }
      }),
      { numRuns: LONG ? 400 : 40 },
    )
    const told = `${reads} reads; done and refused: ${JSON.stringify(done)}`
    await context.annotate(told)
    expect(reads, told).toBeGreaterThan(1000)
    for (const what of ['ask', 'append', 'fold', 'policy', 'search'])
      expect(done[what]?.[0], `${what}: ${told}`).toBeGreaterThan(3)
  })

  it('keep the state that only this process has: the prompts of answers, and the tools of the model', async () => {
    const book = await ThreadManager.open({
      store: new MemoryStore(),
      portsOf: () => ({}),
      forget: () => undefined,
      erase: () => Promise.resolve(),
      idleBytes: 0,
    })
    const take = (content: string) => book.take({ tenant: 't', model: 'm', messages: [user(content)], tools: [look] })
    const { thread } = await take('One?')
    thread.shown.note({ messages: 1, edits: [], contract: 'exact' }, true)
    const prompted = { tools: [{ ...look, name: 'ours' }, ...thread.tools], variables: { thinking: true } }
    thread.prompted = prompted
    const shown = thread.shown.upTo(1)
    await book.give(thread)
    await book.give((await take('Two?')).thread)
    // Of the client's tools it has only the names, so that idle threads take no memory for definitions.
    expect(JSON.stringify(thread.runtime)).toContain('"look"]')
    expect(JSON.stringify(thread.runtime)).not.toContain(JSON.stringify(look))
    const again = book.get('t', thread.id)
    expect(again).not.toBe(thread)
    expect([again.shown.upTo(1), again.prompted]).toEqual([shown, prompted])
    expect(again.view).toEqual([user('One?')])
  })

  it('stay in memory while they are used, and after that as far as there is room', async () => {
    const open = (idleBytes: number) =>
      ThreadManager.open({
        store: new MemoryStore(),
        portsOf: () => ({}),
        forget: () => undefined,
        erase: () => Promise.resolve(),
        idleBytes,
      })
    const take = (book: ThreadManager, content: string) =>
      book.take({ tenant: 't', model: 'm', messages: [user(content)], tools: [] })
    const none = await open(0)
    const taken = [await take(none, 'a'), await take(none, 'b'), await take(none, 'c')]
    expect(none.loaded).toBe(3)
    const slow = none.quietly(none.get('t', taken[0]!.thread.id), 'fragments', () => Promise.resolve('done'))
    for (const { thread } of taken) await none.give(thread)
    // An operation was waiting for the first one.
    expect(none.loaded).toBe(1)
    expect(await slow).toBe('done')
    const size = taken[0]!.thread.size
    const two = await open(2 * size + 1)
    for (const content of ['a', 'b', 'c', 'd']) await two.give((await take(two, content)).thread)
    expect(two.loaded).toBe(2)
    expect(two.of('t').map(({ card }) => card.title)).toEqual(['d', 'c', 'b', 'a'])
  })

  it('that cannot be read do not affect the others, and may be deleted', async () => {
    const store = new MemoryStore()
    const models = [{ name: 'm', slots: 1, load: () => Promise.resolve(new ScriptedEngine(() => ({ content: 'So.' }))) }]
    const service = await ThreadService.open({ models, store, idleBytes: 0 })
    const ask = (content: string) => service.ask({ tenant: 't', messages: [user(content)], tools: [], toolChoice: 'auto' }).answer
    const [one, two] = [await ask('One?'), await ask('Two?')]
    const read = store.read.bind(store)
    store.read = (tenant, id) => {
      if (id === one.thread) throw new KvfoldError('store/damaged', 'It is damaged.')
      return read(tenant, id)
    }
    expect(service.threads.list('t').map(({ title }) => title)).toEqual(['Two?', 'One?'])
    expect(() => service.threads.get('t', one.thread)).toThrow('It is damaged.')
    expect(service.threads.get('t', two.thread).messages).toBe(2)
    await service.threads.delete('t', one.thread)
    expect(service.threads.list('t')).toHaveLength(1)
    expect(read('t', one.thread)).toBeNull()
  })

  it('that the store no longer has are not continued, unless a request names them', async () => {
    const store = new MemoryStore()
    const models = [{ name: 'm', slots: 1, load: () => Promise.resolve(new ScriptedEngine(() => ({ content: 'So.' }))) }]
    const service = await ThreadService.open({ models, store, idleBytes: 0 })
    const ask = (messages: readonly ChatMessage[], thread: { readonly thread?: string } = {}) =>
      service.ask({ tenant: 't', messages, tools: [], toolChoice: 'auto', ...thread }).answer
    const one = await ask([user('One?')])
    await ask([user('Two?')])
    // On a shared store another server may delete it between two looks at the changes.
    await store.delete('t', one.thread)
    const more = [user('One?'), one.message, user('And now?')]
    await expect(ask(more, { thread: one.thread })).rejects.toMatchObject({ code: 'server/no-thread' })
    const other = await ask(more)
    expect(other.thread).not.toBe(one.thread)
    expect(service.threads.view('t', other.thread).map(({ content }) => content)).toEqual(['One?', 'So.', 'And now?', 'So.'])
  })

  it('that cannot be read or written for a while are there afterwards, as they were stored', async () => {
    const store = new MemoryStore()
    const models = [{ name: 'm', slots: 1, load: () => Promise.resolve(new ScriptedEngine(() => ({ content: 'So.' }))) }]
    const service = await ThreadService.open({ models, store })
    const ask = (messages: readonly ChatMessage[]) => service.ask({ tenant: 't', messages, tools: [], toolChoice: 'auto' }).answer
    const first = await ask([user('One?')])
    const before = service.threads.export('t', first.thread)
    const [update, read] = [store.update.bind(store), store.read.bind(store)]
    const broken = () => {
      throw new KvfoldError('store/failed', 'The disk is gone.')
    }
    Object.assign(store, { update: broken, read: broken })
    const more = [user('One?'), first.message, user('Two?')]
    await expect(ask(more)).rejects.toMatchObject({ code: 'store/failed' })
    expect(() => service.threads.export('t', first.thread)).toThrow('The disk is gone.')
    Object.assign(store, { update, read })
    expect(service.threads.export('t', first.thread)).toEqual(before)
    expect((await ask(more)).thread).toBe(first.thread)
    expect(service.threads.get('t', first.thread).messages).toBe(4)
  })
})
