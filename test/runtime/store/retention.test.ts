/** Tests deletion by age: threads that were unused too long are deleted, and none because of a wrong clock. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { openStore, Retention } from '../../../src/runtime/cli/store-options.js'
import { MemoryStore } from '../../../src/runtime/server/threads/memory-store.js'
import { ThreadManager } from '../../../src/runtime/server/threads/thread-manager.js'
import { SqliteStore } from '../../../src/runtime/store/sqlite-store.js'
import { byId, someCard, someThread } from './support/threads.js'

const HOUR = 3_600_000
const DAY = 24 * HOUR
const NOW = Date.UTC(2026, 10, 27, 12)

let folder: string
let lines: string[]

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-retention-'))
  lines = []
  vi.useFakeTimers({ toFake: ['Date'], now: NOW })
})
afterEach(() => {
  vi.useRealTimers()
  rmSync(folder, { recursive: true })
})

/** Makes a store with a thread of each of these ages in days. */
async function keep(...ages: readonly number[]): Promise<void> {
  const store = SqliteStore.open({ folder })
  for (const [at, age] of ages.entries())
    await store.create({ ...someThread(at), created: NOW - 100 * DAY, used: NOW - age * DAY }, someCard(at))
  await store.close()
}

/** Starts a server whose machine shows the time `time`. Returns the ages of its threads in days, measured from NOW. */
async function start(time: number): Promise<readonly number[]> {
  vi.setSystemTime(time)
  const kept = (await openStore({ store: folder, retention: 30 }, (line) => lines.push(line)))!
  const listed = await kept.store.index(() => someCard(0))
  kept.responses.close()
  await kept.store.close()
  return byId(listed).map(({ used }) => Math.round((NOW - used) / DAY))
}

describe('a server that starts', () => {
  it('deletes threads that are too old, and says so', async () => {
    await keep(40, 29, 31, 0)
    expect(await start(NOW)).toEqual([29, 0])
    expect(lines).toEqual(['deleted 2 conversations that were unused for longer than --retention allows'])
    expect(await start(NOW + 2 * DAY)).toEqual([0])
  })

  it.each([400, 40, -400, -20_000])('deletes nothing because of a clock that is wrong by %d days', async (days) => {
    await keep(40, 29, 0)
    await start(NOW)
    for (let starts = 0; starts < 3; starts++) expect(await start(NOW + days * DAY + starts * DAY)).toEqual([29, 0])
    expect(lines.join('\n')).toMatch(/The clock says \d{4}-\d\d-\d\dT/u)
    expect(await start(NOW + HOUR)).toEqual([29, 0])
    expect(JSON.parse(readFileSync(join(folder, 'clock.json'), 'utf8'))).toMatchObject({ ran: 0 })
  })

  it('relies on the uses of threads after an earlier release, which left no clock file', async () => {
    await keep(29, 0)
    expect(await start(NOW + 400 * DAY)).toEqual([29, 0])
    rmSync(join(folder, 'clock.json'))
    // This thread was made by a clock that was ahead.
    const store = SqliteStore.open({ folder })
    await store.create({ ...someThread(3), used: NOW + 300 * DAY }, someCard(3))
    await store.close()
    expect(await start(NOW + HOUR / 2)).toEqual([29, 0, -300])
  })

  it('believes a clock that is far ahead once servers have run for a day with it', async () => {
    await keep(29, 0)
    await start(NOW)
    writeFileSync(join(folder, 'clock.json'), JSON.stringify({ seen: NOW, ran: DAY - HOUR }))
    expect(await start(NOW + 400 * DAY)).toEqual([29, 0])
    expect(lines.at(-1)).toContain('until it has run for an hour')
    writeFileSync(join(folder, 'clock.json'), JSON.stringify({ seen: NOW, ran: DAY }))
    expect(await start(NOW + 400 * DAY)).toEqual([])
  })
})

it('a thread that is continued while another is deleted stays', async () => {
  await keep(50, 40)
  const [first, second] = [someThread(0), someThread(1)]
  const store = SqliteStore.open({ folder })
  const book = await ThreadManager.open({
    ...{ store, portsOf: () => ({}), forget: () => undefined, clock: () => NOW },
    erase: async () => {
      const { tenant, id, model } = second
      const messages = [{ role: 'user', content: 'And now?' }] as const
      const { thread } = await book.take({ tenant, model, messages, tools: [], thread: id, appended: true })
      await book.give(thread)
    },
  })
  const retention = new Retention({
    ...{ store, clock: { oldest: () => Promise.resolve(NOW - 30 * DAY), note: () => undefined } },
    remove: (tenant, id, unusedSince) => book.delete(tenant, id, unusedSince),
    tell: (line) => lines.push(line),
  })
  await retention.sweep()
  await retention.stop()
  expect(lines).toEqual(['deleted a conversation that was unused for longer than --retention allows'])
  expect([first, second].map(({ tenant, id }) => store.read(tenant, id)?.id ?? null)).toEqual([null, second.id])
  await store.close()
})

it('threads that are used while the clock is ahead get their true age, and none is deleted', async () => {
  // The process's clock was right when it began.
  vi.useRealTimers()
  const now = Date.now()
  vi.useFakeTimers({ toFake: ['Date'], now })
  const book = await ThreadManager.open({
    ...{ store: new MemoryStore(), portsOf: () => ({}), forget: () => undefined, erase: () => Promise.resolve() },
    retentionMs: 30 * DAY,
  })
  const uses = async (content: string): Promise<readonly number[]> => {
    const { thread } = await book.take({ tenant: 't', model: 'm', messages: [{ role: 'user', content }], tools: [] })
    await book.give(thread)
    return book.of('t').map(({ used }) => Math.round((used - now) / DAY))
  }
  expect(await uses('One?')).toEqual([0])
  vi.setSystemTime(now + 400 * DAY)
  expect(await uses('Two?')).toEqual([0, 0])
  vi.setSystemTime(now)
  expect(await uses('Three?')).toEqual([0, 0, 0])
})
