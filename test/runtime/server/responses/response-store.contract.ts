/** The suite that every `ResponseStore` passes: a response is read as it was kept, until it or its thread is deleted. */
import { afterEach, describe, expect, it } from 'vitest'
import type { KeptResponse, ResponseStore } from '../../../../src/runtime/server/responses/responses.js'

export interface ResponsesOnTrial {
  /** Opens the store with everything stored since the test began. Threads of these names exist. */
  readonly open: (threads: readonly string[]) => Promise<ResponseStore>
  /** Deletes the thread as the server does. */
  readonly deleteThread: (store: ResponseStore, tenant: string, thread: string) => Promise<void>
}

const TENANT = 'té"n'
const THREADS = ['thread_1', 'thread_2']

const some = (at: number): KeptResponse => ({
  tenant: TENANT,
  id: `resp_${at}`,
  thread: THREADS[at % 2]!,
  messages: at,
  body: JSON.stringify({ at, text: 'a\u0000b \ud83d "é"' }),
})

export function theResponseStore(name: string, { open, deleteThread }: ResponsesOnTrial): void {
  describe(`responses in ${name}`, () => {
    const opened: ResponseStore[] = []
    const openStore = async (): Promise<ResponseStore> => {
      const store = await open(THREADS)
      opened.push(store)
      return store
    }
    afterEach(() => {
      for (const store of opened.splice(0)) store.close()
    })

    it('are read as they were kept, over a restart, only by their tenant', async () => {
      const store = await openStore()
      for (const at of [1, 2, 3]) await store.keep(some(at))
      store.close()
      const again = await openStore()
      expect(await again.read(TENANT, 'resp_2')).toEqual(some(2))
      expect(await again.read('public', 'resp_2')).toBeNull()
      expect(await again.read(TENANT, 'resp_9')).toBeNull()
      const of = await again.of({ tenant: TENANT, thread: THREADS[1]! })
      expect([...of].sort((a, b) => a.messages - b.messages)).toEqual([some(1), some(3)])
      expect(again.damage()).toEqual([])
    })

    it('are unknown under an id with a NUL', async () => {
      const store = await openStore()
      expect(await store.read(TENANT, 'resp_\u0000')).toBeNull()
      await store.erase(TENANT, 'resp_\u0000')
    })

    it('replace a response with the same id', async () => {
      const store = await openStore()
      await store.keep(some(1))
      await store.keep({ ...some(1), messages: 7, body: '{}' })
      expect(await store.read(TENANT, 'resp_1')).toEqual({ ...some(1), messages: 7, body: '{}' })
    })

    it('are known without their body once they were erased', async () => {
      const store = await openStore()
      await store.keep(some(1))
      await store.erase(TENANT, 'resp_1')
      await store.erase(TENANT, 'resp_9')
      expect(await store.read(TENANT, 'resp_1')).toEqual({ ...some(1), body: null })
    })

    it('are deleted with their thread', async () => {
      const store = await openStore()
      for (const at of [1, 2, 3]) await store.keep(some(at))
      await deleteThread(store, TENANT, THREADS[1]!)
      expect(await Promise.all([1, 2, 3].map((at) => store.read(TENANT, `resp_${at}`)))).toEqual([null, some(2), null])
    })
  })
}
