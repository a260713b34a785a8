/** Tests conversations over a restart of the real service, engine and store: folds stay, and the cache is reloaded. */
import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { SavedCells } from '../../../src/runtime/engine/disk-tier-file.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { ownWords, piSample } from '../../../src/lab/pi-llm.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { Answer, Ask } from '../../../src/runtime/server/ask.js'
import { ThreadService } from '../../../src/runtime/server/service.js'
import { Retention } from '../../../src/runtime/cli/store-options.js'
import { SqliteStore } from '../../../src/runtime/store/sqlite-store.js'

const TENANT = 'public'
const user = (content: string): ChatMessage => ({ role: 'user', content })
const notes = Array.from({ length: 60 }, (_, at) => `Line ${at}: the value of key ${at % 17} is ${at * 7}.`).join('\n')

let folder: string
let service: ThreadService
let store: SqliteStore
let close: () => Promise<void>

/** Opens the service as `kvfold serve` does. `disk`: with a disk tier, below a cache with room for about one of these threads. */
async function open({ disk = false }: { readonly disk?: boolean } = {}): Promise<void> {
  const diskCache = join(folder, 'cache')
  const cells = new SavedCells([diskCache])
  store = SqliteStore.open({ folder, cells })
  const load = async () =>
    LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), {
      ...{ threads: 1, batchThreads: 1, slots: 2 },
      ...(disk ? { cells: 2048, disk: { folder: diskCache, bytes: 2 ** 28 } } : {}),
    })
  service = await ThreadService.open({ store, cells, models: [{ name: 'builtin', slots: 2, load }] })
  close = () => service.close()
}

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-restart-'))
})
afterEach(async () => {
  await close()
  rmSync(folder, { recursive: true })
})

const ask = (messages: readonly ChatMessage[], more: Partial<Ask> = {}): Promise<Answer> =>
  service.ask({ tenant: TENANT, messages, tools: [], toolChoice: 'auto', maxTokens: 12, ...more }).answer

/** Makes a thread of four messages, with three fragments, of which two are folded, and a search hit. */
async function talk(): Promise<{ readonly first: Answer; readonly messages: readonly ChatMessage[] }> {
  const first = await ask([user(`${notes}\nWhat is the value of key 3?`)])
  const fragments = await service.threads.fragment(TENANT, first.thread, {
    startMarker: 'Line 10:',
    endMarker: 'Line 40:',
    numFragments: 3,
  })
  for (const { id } of fragments.slice(1)) await service.threads.fold(TENANT, first.thread, id)
  await service.threads.search(TENANT, first.thread, { query: 'key 5', maxResults: 2 })
  const messages = [user(`${notes}\nWhat is the value of key 3?`), first.message, user('And of key 4?')]
  const second = await ask(messages)
  return { first, messages: [...messages, second.message] }
}

/** Starts another conversation of the same length, which pushes the earlier one off the device. */
const crowd = (word: string): Promise<Answer> => ask([user(`${notes.replaceAll('value', word)}\nWhat is the ${word} of key 3?`)])

describe('after a restart', () => {
  it('threads are unchanged, and new ids continue the old ones', { timeout: 120_000 }, async () => {
    await open()
    const { first } = await talk()
    const before = service.threads.export(TENANT, first.thread)
    expect(before.messages).toHaveLength(4)
    expect(before.edits.fragments.map(({ state }) => state.kind)).toEqual(['open', 'folded', 'folded'])
    const live = await service.threads.fragment(TENANT, first.thread, {
      startMarker: 'Line 50:',
      endMarker: 'Line 51:',
      numFragments: 1,
    })
    await close()

    await open()
    const after = service.threads.export(TENANT, first.thread)
    const others = { edits: null, events: null }
    expect({ ...after, ...others }).toEqual({ ...before, ...others })
    const cut = expect.objectContaining({ what: 'cut', folded: [live[0]!.id] }) as unknown
    expect(after.events).toEqual([...before.events, cut])
    expect(after.edits.fragments.map(({ id }) => id)).toContain(live[0]!.id)
    const again = await service.threads.fragment(TENANT, first.thread, {
      startMarker: 'Line 52:',
      endMarker: 'Line 53:',
      numFragments: 1,
    })
    expect(new Set([...after.edits.fragments, ...after.edits.searches, ...again].map(({ id }) => id)).size).toBe(
      after.edits.fragments.length + after.edits.searches.length + 1,
    )
    expect(service.threads.export(TENANT, first.thread).edits.ids).toBeGreaterThan(after.edits.ids)
  })

  it(
    'the cache is reloaded from the disk tier, and the answer is the same as with everything recomputed',
    { timeout: 240_000 },
    async () => {
      await open({ disk: true })
      const { first, messages } = await talk()
      await crowd('worth')
      await close()
      const next = [...messages, user('And of key 7?')]
      const tiersOf = ({ ledger }: Answer) => ledger[0]!.tiers
      expect(existsSync(join(folder, 'cache'))).toBe(true)

      await open({ disk: true })
      const warm = await ask(next)
      await close()

      // The same question without a disk tier.
      await open()
      const view = service.threads.get(TENANT, first.thread)
      expect(view.all).toHaveLength(6)
      const cold = await ask(next)

      expect(warm.thread).toBe(first.thread)
      const { shown } = warm.ledger[0]!
      expect(tiersOf(warm).disk).toBeGreaterThan(0.8 * shown)
      expect(warm.usage.cachedTokens).toBeGreaterThan(0.8 * warm.usage.promptTokens)
      expect(tiersOf(cold)).toEqual({ host: 0, disk: 0 })
      expect(cold.usage.cachedTokens).toBe(0)
      expect(cold.usage.promptTokens).toBe(warm.usage.promptTokens)
      expect(cold.message).toEqual(warm.message)
    },
  )

  it(
    "clients' edits still belong to their thread, even of text hidden before the restart, and so do those of its forks",
    { timeout: 120_000 },
    async () => {
      await open()
      const [whole, pruned] = [user(piSample({ words: ownWords(), keys: 4, updates: 8, seed: 3 }).prompt), user('[cleared]')]
      const { message: answer, thread } = await ask([whole], { maxTokens: 60 })
      // A shorter answer might also be that of another thread.
      expect(answer.content.length).toBeGreaterThan(64)
      await close()

      await open()
      const second = await ask([pruned, answer, user('And of key 4?')], { clientEdits: 'splice' })
      expect([second.thread, second.edits?.changes]).toEqual([thread, [{ kind: 'shortened', message: 0, was: 1 }]])
      await close()

      await open()
      const fork = await ask([pruned, answer, user('And of key 5?')], { clientEdits: 'splice' })
      expect(service.threads.get(TENANT, fork.thread)).toMatchObject({ parent: thread })
      await close()

      await open()
      const asked = [answer, user('And of key 4?'), second.message, user('And of key 6?')]
      const restored = await ask([whole, ...asked], { clientEdits: 'splice' })
      expect([restored.thread, restored.edits?.changes]).toEqual([thread, [{ kind: 'restored', message: 0, was: 1 }]])
      // The cache has no cells from before, so all of it was computed as in a fresh prefill.
      expect(restored.edits?.approximate).toBe(0)
      const forked = [answer, user('And of key 5?'), fork.message, user('And of key 6?')]
      const again = await ask([whole, ...forked], { clientEdits: 'splice' })
      expect([again.thread, again.edits?.changes]).toEqual([fork.thread, [{ kind: 'restored', message: 0, was: 1 }]])
    },
  )

  it('a thread deleted while its model is not loaded leaves nothing in the disk tier either', { timeout: 120_000 }, async () => {
    await open({ disk: true })
    const { first } = await talk()
    const other = await crowd('worth')
    const last = await crowd('price')
    await close()
    const items = () => readdirSync(join(folder, 'cache')).filter((name) => name.endsWith('.kvshelf')).length
    const before = items()
    expect(before).toBeGreaterThan(1)

    await open({ disk: true })
    expect(service.models()[0]!.state).toBe('unloaded')
    await service.threads.delete(TENANT, first.thread)
    expect(items()).toBeLessThan(before)
    expect(items()).toBeGreaterThan(0)
    // The same text again finds no cells of the deleted thread; the other thread is still there.
    const fresh = await ask([user(`${notes}\nWhat is the value of key 3?`)])
    expect(fresh.ledger[0]!.tiers.disk).toBeLessThan(20)
    expect(service.threads.list(TENANT).map(({ id }) => id)).toEqual([fresh.thread, last.thread, other.thread])
  })

  it('a thread deleted while its model is being unloaded leaves nothing in the disk tier', { timeout: 120_000 }, async () => {
    await open({ disk: true })
    const { first } = await talk()
    const leaving = service.unload()
    await service.threads.delete(TENANT, first.thread)
    expect(await leaving).toBe(true)
    expect(readdirSync(join(folder, 'cache')).filter((name) => name.endsWith('.kvshelf'))).toEqual([])
  })

  it('old threads are deleted, from memory and the store', { timeout: 120_000 }, async () => {
    await open()
    const { first } = await talk()
    const told: string[] = []
    const keeping = (keep: number) => ({
      store,
      clock: { oldest: () => Promise.resolve(Date.now() - keep), note: () => undefined },
      remove: (tenant: string, id: string, unusedSince: number) => service.threads.delete(tenant, id, unusedSince),
      tell: (line: string) => told.push(line),
    })
    const patient = new Retention(keeping(60_000))
    await patient.sweep()
    await patient.stop()
    expect(service.threads.list(TENANT)).toHaveLength(1)
    const strict = new Retention({ ...keeping(-60_000), every: 5 })
    await vi.waitFor(() => {
      expect(service.threads.list(TENANT)).toEqual([])
    })
    await strict.stop()
    expect(service.threads.list(TENANT)).toEqual([])
    expect(store.read(TENANT, first.thread)).toBeNull()
    expect(told).toEqual(['deleted a conversation that was unused for longer than --retention allows'])
  })
})
