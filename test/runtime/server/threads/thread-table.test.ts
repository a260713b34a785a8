/** Tests that one tenant's threads cost another tenant nothing: a look-up visits entries of its own tenant only. */
import { describe, expect, it } from 'vitest'
import type { ChatMessage } from '../../../../src/runtime/chat/message.js'
import { ThreadEntry } from '../../../../src/runtime/server/threads/thread-table.js'
import { ThreadManager } from '../../../../src/runtime/server/threads/thread-manager.js'
import { MemoryStore } from '../../../../src/runtime/server/threads/memory-store.js'

const user = (content: string): ChatMessage => ({ role: 'user', content })
const system: ChatMessage = { role: 'system', content: 'Be brief.' }

class CountedStore extends MemoryStore {
  reads = 0

  override read(tenant: string, id: string) {
    this.reads++
    return super.read(tenant, id)
  }
}

async function open(store = new CountedStore()) {
  const book = await ThreadManager.open({ store, portsOf: () => ({}), forget: () => undefined, erase: () => Promise.resolve() })
  const ask = async (tenant: string, messages: readonly ChatMessage[]): Promise<string> => {
    const { thread } = await book.take({ tenant, model: 'm', messages, tools: [] })
    await book.give(thread)
    return thread.id
  }
  return { store, book, ask }
}

/** Counts how often `work` reads any property of any entry. */
async function touches(work: () => Promise<unknown>): Promise<number> {
  const own = Object.entries(Object.getOwnPropertyDescriptors(ThreadEntry.prototype))
  let count = 0
  for (const [name, descriptor] of own)
    if (descriptor.get !== undefined)
      Object.defineProperty(ThreadEntry.prototype, name, {
        configurable: true,
        get(this: ThreadEntry): unknown {
          count++
          return descriptor.get!.call(this)
        },
      })
  try {
    await work()
  } finally {
    for (const [name, descriptor] of own) Object.defineProperty(ThreadEntry.prototype, name, descriptor)
  }
  return count
}

describe('a look-up', () => {
  /**
   * Counts what anna's requests read beside this many threads of bert's: continue, start, start without anything in common, name a thread,
   * list.
   */
  async function cost(threads: number, isStored: boolean): Promise<readonly number[]> {
    const before = await open()
    const id = await before.ask('anna', [system, user('One?')])
    await before.ask('anna', [system, user('Two?')])
    for (let at = 0; at < threads; at++) await before.ask('bert', [system, user(`One? ${at}`)])
    // With a stored table, only the threads asked for are then in memory.
    const { book, ask } = isStored ? await open(before.store) : before
    return [
      await touches(() => ask('anna', [system, user('One?'), user('More.')])),
      await touches(() => ask('anna', [system, user('Else?')])),
      await touches(() => ask('anna', [user('Nothing in common.')])),
      await touches(() => Promise.resolve(book.get('anna', id))),
      await touches(() => Promise.resolve(book.of('anna'))),
    ]
  }

  it.each([false, true])('costs the same whatever other tenants have (stored: %s)', async (isStored) => {
    const alone = await cost(0, isStored)
    expect(Math.min(...alone)).toBeGreaterThan(0)
    expect(await cost(200, isStored)).toEqual(alone)
  })

  /** Counts what a tenant's requests read with this many threads: continue, start, repeat, change an earlier message, name a thread. */
  async function ownCost(threads: number, isStored: boolean): Promise<readonly number[]> {
    const before = await open()
    const said = { role: 'assistant', content: 'Done.' } as const
    const again = [system, user('Again?'), said]
    let id = ''
    for (let at = 0; at < threads; at++) {
      await before.ask('anna', [system, user(`Question ${at}?`), said])
      id = await before.ask('anna', again)
    }
    const { book, ask } = isStored ? await open(before.store) : before
    return [
      await touches(() => ask('anna', [system, user('Question 7?'), said, user('More.')])),
      await touches(() => ask('anna', [system, user('Else?')])),
      await touches(() => ask('anna', [...again, user('And again?')])),
      await touches(() => ask('anna', [system, user('Question 8, changed?'), said, user('More.')])),
      await touches(() => Promise.resolve(book.get('anna', id))),
    ]
  }

  it.each([false, true])('costs the same with six times the threads (stored: %s)', async (isStored) => {
    const few = await ownCost(500, isStored)
    expect(Math.min(...few)).toBeGreaterThan(0)
    const many = await ownCost(3000, isStored)
    for (const [at, touched] of many.entries()) expect(touched).toBeLessThan(2 * few[at]! + 50)
  })

  it('deletes no thread, however many there are', async () => {
    const { book, ask } = await open()
    const first = await ask('anna', [system, user('Question 0?')])
    for (let at = 1; at < 1100; at++) await ask('anna', [system, user(`Question ${at}?`)])
    expect(book.size).toBe(1100)
    expect(book.get('anna', first).view.map(({ content }) => content)).toEqual([system.content, 'Question 0?'])
  })

  it('reads no thread that shares only a system message', async () => {
    const { store, ask } = await open()
    await ask('anna', [system, user('One?')])
    const { ask: later } = await open(store)
    await later('anna', [system, user('Two?')])
    expect(store.reads).toBe(0)
    await later('anna', [system, user('One?'), user('More.')])
    expect(store.reads).toBe(1)
  })
})
