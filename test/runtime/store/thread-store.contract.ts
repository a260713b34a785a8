/** The suite that every `ThreadStore` passes: it returns exactly the acknowledged threads, to the letter. */
import { afterEach, describe, expect, it } from 'vitest'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { Random } from '../../../src/runtime/core/random.js'
import { readJson, writeJson } from '../../../src/runtime/core/written-json.js'
import { MemoryStore } from '../../../src/runtime/server/threads/memory-store.js'
import type { ThreadHead, ThreadStore } from '../../../src/runtime/store/port.js'
import {
  allIn,
  byId,
  readIn,
  someCard,
  someEvent,
  someHead,
  someMessage,
  someStored,
  someThread,
  someUpdate,
} from './support/threads.js'

/** A persistent store, with the methods for deletion by age. */
export interface LastingStore extends ThreadStore {
  unusedSince(time: number): readonly Pick<ThreadHead, 'tenant' | 'id'>[] | Promise<readonly Pick<ThreadHead, 'tenant' | 'id'>[]>
  deleteUnusedSince(time: number): Promise<number>
}

export interface StoresOnTrial {
  /** Opens the store with everything stored since the test began. */
  readonly open: () => Promise<LastingStore>
}

export function theThreadStore(name: string, { open }: StoresOnTrial): void {
  describe(`threads in ${name}`, () => {
    const opened: LastingStore[] = []
    const openStore = async (): Promise<LastingStore> => {
      const store = await open()
      opened.push(store)
      return store
    }
    afterEach(async () => {
      for (const store of opened.splice(0)) await store.close()
    })

    it('come back unchanged, whatever is in them, after any changes, as from the store in memory', async () => {
      const random = new Random(11)
      let store: ThreadStore = await openStore()
      const memory: ThreadStore = new MemoryStore()
      const both = async (change: (each: ThreadStore) => Promise<void>) => {
        await change(store)
        await change(memory)
      }
      const live: { tenant: string; id: string }[] = []
      for (let step = 0; step < 300; step++) {
        const { tenant, id } = live[random.below(Math.max(1, live.length))] ?? { tenant: '', id: '' }
        switch (live.length === 0 ? 0 : random.below(8)) {
          case 0:
          case 1: {
            const thread = someThread(step, step % 2 === 0 ? 'public' : 'té"n')
            live.push(thread)
            await both((each) => each.create(thread, someCard(step)))
            break
          }
          case 2:
          case 3:
          case 4:
          case 5: {
            const update = someUpdate(random.word(), { tenant, id })
            await both((each) => each.update(tenant, id, update))
            break
          }
          case 6:
            live.splice(
              live.findIndex((one) => one.id === id),
              1,
            )
            await both((each) => each.delete(tenant, id))
            break
          default:
            await store.close()
            store = await openStore()
        }
        const sought = live[random.below(Math.max(1, live.length))]
        if (sought !== undefined)
          expect(await readIn(store, sought.tenant, sought.id)).toEqual(memory.read(sought.tenant, sought.id))
      }
      expect(live.length).toBeGreaterThan(5)
      const listed = async (each: ThreadStore) => byId(await each.index(() => someCard(0)))
      expect(await listed(store)).toEqual(await listed(memory))
      expect(byId(await allIn(store))).toEqual(byId(await allIn(memory)))
      expect(store.damage()).toEqual([])
    })

    it('replace messages from a given one on', async () => {
      const store = await openStore()
      const thread = someThread(4)
      await store.create(thread, someCard(4))
      for (const [from, seeds] of [
        [1, [20, 21, 22]],
        [3, []],
        [0, [30]],
      ] as const) {
        const before = (await readIn(store, thread.tenant, thread.id))!.messages
        const messages = seeds.map(someStored)
        await store.update(thread.tenant, thread.id, { from, messages, card: someCard(from) })
        expect((await readIn(store, thread.tenant, thread.id))!.messages).toEqual([...before.slice(0, from), ...messages])
      }
    })

    it('keep the digits of numbers and the order of keys', async () => {
      const store = await openStore()
      const thread = someThread(5)
      const json = '{"zeta":[9007199254740993,1e400,1.50],"7":{"b":1.0,"3":-0}}'
      const fields = readJson(json) as Readonly<Record<string, unknown>>
      const call = { id: 'c', name: 'look', arguments: fields }
      const message = { role: 'assistant', content: '', toolCalls: [call] } as const
      const tools = [{ name: 'look', description: '', parameters: fields }]
      await store.create(
        { ...thread, tools, messages: [{ message, seen: { ...message, content: 'seen' } }], held: [message] },
        someCard(5),
      )
      const found = (await readIn(store, thread.tenant, thread.id))!
      const said = [found.messages[0]?.message, found.messages[0]?.seen, found.held[0]] as ChatMessage[]
      expect(said.map(({ toolCalls }) => writeJson(toolCalls?.[0]?.arguments))).toEqual([json, json, json])
      expect(writeJson(found.tools[0]?.parameters)).toBe(json)
    })

    it('keep the digest of their salt, and are listed with it', async () => {
      const store = await openStore()
      const threads = [{ ...someThread(3), salt: 'salted-a' }, { ...someThread(4), salt: 'salted-b' }, someThread(5)] as const
      for (const thread of threads) await store.create(thread, someCard(3))
      const head = { ...someHead(4), salt: 'salted-b', held: [someMessage(1)] }
      await store.update(head.tenant, head.id, { head, card: someCard(4) })
      expect(byId(await allIn(store))).toEqual([threads[0], { ...threads[1], ...head }, threads[2]])
      const listed = byId(await store.index(() => someCard(0)))
      expect(listed.map((each) => 'salt' in each && each.salt)).toEqual(['salted-a', 'salted-b', false])
    })

    it('of one id belong to their tenants', async () => {
      const store = await openStore()
      const [ours, theirs] = [someThread(1, 'we'), someThread(1, 'they')]
      await store.create(ours, someCard(1))
      await store.create(theirs, someCard(2))
      await store.update('we', ours.id, { messages: [someStored(9)], card: someCard(1) })
      await store.delete('they', theirs.id)
      expect(await allIn(store)).toEqual([{ ...ours, messages: [...ours.messages, someStored(9)] }])
      expect(await readIn(store, 'they', theirs.id)).toBeNull()
    })

    it('are created once: a second time changes nothing', async () => {
      const store = await openStore()
      const thread = someThread(2)
      await store.create(thread, someCard(2))
      await expect(store.create({ ...thread, messages: [], events: [someEvent(1)] }, someCard(3))).rejects.toMatchObject({
        code: 'store/failed',
      })
      expect(await allIn(store)).toEqual([thread])
    })

    it('that do not exist take no changes; deleting one is no error', async () => {
      const store = await openStore()
      await expect(store.update('public', 'thread_x', { messages: [someStored(1)], card: someCard(1) })).rejects.toMatchObject({
        code: 'store/failed',
      })
      await store.delete('public', 'thread_x')
      expect(await allIn(store)).toEqual([])
    })

    it('unused since a time are found and deleted, and the others stay', async () => {
      const store = await openStore()
      for (const seed of [5, 3, 4]) await store.create(someThread(seed), someCard(seed))
      const { used } = someThread(5)
      expect((await store.unusedSince(used)).map(({ id }) => id)).toEqual([someThread(3).id, someThread(4).id])
      expect(await store.deleteUnusedSince(used)).toBe(2)
      expect(await allIn(store)).toEqual([someThread(5)])
      expect(await store.deleteUnusedSince(used)).toBe(0)
    })

    it('cannot be used when the store is closed; closing it twice is allowed', async () => {
      const store = await openStore()
      await store.close()
      await store.close()
      await expect(store.create(someThread(2), someCard(2))).rejects.toMatchObject({ code: 'internal/invariant' })
    })
  })
}
