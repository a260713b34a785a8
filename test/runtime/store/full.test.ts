/**
 * Tests a store that cannot be written to, as clients see it: they get an error, and the conversation stays as it was stored, in memory
 * too.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { Answer, Ask } from '../../../src/runtime/server/ask.js'
import { ThreadService } from '../../../src/runtime/server/service.js'
import { SqliteStore } from '../../../src/runtime/store/sqlite-store.js'
import type { StoreFile } from '../../../src/runtime/store/store-file.js'

const TENANT = 'public'
const user = (content: string): ChatMessage => ({ role: 'user', content })
const long = (word: string) => `${word} `.repeat(400)

let folder: string
let service: ThreadService
let file: StoreFile

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-full-'))
  await open()
})
afterEach(async () => {
  await service.close()
  rmSync(folder, { recursive: true })
})

async function open(): Promise<void> {
  const store = SqliteStore.open({ folder })
  ;({ file } = store as unknown as { file: StoreFile })
  const load = async () =>
    LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), { threads: 1, batchThreads: 1, slots: 2 })
  service = await ThreadService.open({ store, models: [{ name: 'builtin', slots: 2, load }] })
}

/** Lets the file grow by this many pages, by SQLite's own limit. */
function room(pages: number): void {
  file.rows(`PRAGMA max_page_count=${Number(file.rows('PRAGMA page_count')[0]!['page_count']) + pages}`)
}

const ask = (messages: readonly ChatMessage[], more: Partial<Ask> = {}): Promise<Answer> =>
  service.ask({ tenant: TENANT, messages, tools: [], toolChoice: 'auto', maxTokens: 8, ...more }).answer

it(
  'messages that cannot be stored are refused and forgotten; with room again the thread continues',
  { timeout: 120_000 },
  async () => {
    const first = await ask([user(`start ${long('hello')} end`)])
    const before = service.threads.export(TENANT, first.thread)
    const more = [user(`start ${long('hello')} end`), first.message, user(long('again').repeat(4))]

    room(0)
    const full = { code: 'store/full', status: 507 }
    await expect(ask(more)).rejects.toMatchObject(full)
    expect(service.threads.export(TENANT, first.thread)).toEqual(before)
    await expect(ask([user(long('other').repeat(20))])).rejects.toMatchObject(full)
    expect(service.threads.list(TENANT).map(({ id }) => id)).toEqual([first.thread])

    room(1_000_000)
    const second = await ask(more)
    expect(second.thread).toBe(first.thread)
    const after = service.threads.export(TENANT, first.thread)
    expect(after.messages).toHaveLength(4)
    await service.close()
    await open()
    expect(service.threads.export(TENANT, first.thread)).toEqual(after)
  },
)

it('a failed start or deletion of a thread is reported, and leaves all threads as before', { timeout: 120_000 }, async () => {
  const { thread } = await ask([user(`start ${long('hello')} end`)])
  const kept = service.threads.export(TENANT, thread)
  const others = await Promise.all(['One?', 'Two?'].map((question) => ask([user(question)])))
  const all = () => service.threads.list(TENANT).map(({ id }) => id)
  const before = all()
  expect(before).toHaveLength(3)
  file.rows('PRAGMA query_only=ON')
  const asked = Array.from({ length: 5 }, (_, at) => ask([user(`New ${at}?`)]))
  for (const { reason } of (await Promise.allSettled(asked)) as PromiseRejectedResult[])
    expect(reason).toMatchObject({ code: 'store/failed', message: expect.not.stringContaining('deleted') as string })
  await expect(service.threads.delete(TENANT, thread)).rejects.toMatchObject({ code: 'store/failed' })
  expect(all()).toEqual(before)
  expect(service.threads.export(TENANT, thread)).toEqual(kept)
  expect(service.status()).toMatchObject({ storeFault: 'failed', storeProblem: expect.stringContaining('readonly') as string })
  file.rows('PRAGMA query_only=OFF')
  await expect.poll(() => service.status().storeProblem, { timeout: 10_000 }).toBeNull()
  await service.threads.delete(TENANT, thread)
  expect(all()).toEqual(others.map((each) => each.thread).sort((a, b) => before.indexOf(a) - before.indexOf(b)))
})

it('a fold that cannot be stored is undone', { timeout: 120_000 }, async () => {
  const { thread } = await ask([user(`start ${long('hello')} end`)])
  const [fragment] = await service.threads.fragment(TENANT, thread, { startMarker: 'start', endMarker: 'end', numFragments: 1 })
  const { id } = fragment!
  const state = () => service.threads.export(TENANT, thread).edits.fragments[0]!.state.kind
  file.rows('PRAGMA query_only=ON')
  await expect(service.threads.fold(TENANT, thread, id)).rejects.toMatchObject({ code: 'store/failed' })
  expect(state()).toBe('open')
  file.rows('PRAGMA query_only=OFF')
  await service.threads.fold(TENANT, thread, id)
  expect(state()).toBe('folded')
})
