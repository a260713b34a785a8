/** Tests the store in a real PostgreSQL: the suite of all stores, several servers over one store, and a database that does not answer. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest'
import { openStore as openKept } from '../../../src/runtime/cli/store-options.js'
import { Database } from '../../../src/fleet/postgres/database.js'
import { PostgresStore, type PostgresStoreOptions } from '../../../src/fleet/postgres/postgres-store.js'
import { PostgresResponses } from '../../../src/fleet/postgres/postgres-responses.js'
import { cardOf } from '../../../src/runtime/server/threads/thread.js'
import type { ListedThread } from '../../../src/runtime/store/port.js'
import { theResponseStore } from '../../runtime/server/responses/response-store.contract.js'
import { IMPATIENT, noPostgres, TestPostgres, wayTo } from '../../support/postgres.js'
import { allIn, readIn, someCard, someEvent, someStored, someThread } from '../../runtime/store/support/threads.js'
import { theThreadStore } from '../../runtime/store/thread-store.contract.js'

const DAY = 24 * 3_600_000

let postgres: TestPostgres
let url: string

if (noPostgres !== null) console.warn(`skipped: ${noPostgres}`)

describe.skipIf(noPostgres !== null)('PostgreSQL', () => {
  const opened: PostgresStore[] = []
  const openStore = async (more: Partial<PostgresStoreOptions> = {}): Promise<PostgresStore> => {
    const store = await PostgresStore.open({ url, ...more })
    opened.push(store)
    return store
  }

  beforeAll(async () => {
    postgres = await TestPostgres.make()
  }, 60_000)
  afterAll(() => postgres.remove())
  beforeEach(async () => {
    url = await postgres.database()
  })
  afterEach(async () => {
    for (const store of opened.splice(0)) await store.close()
  })

  theThreadStore('PostgreSQL', { open: () => PostgresStore.open({ url }) })

  theResponseStore('PostgreSQL', {
    open: async (threads) => {
      const store = await openStore()
      for (const [at, id] of threads.entries())
        if ((await readIn(store, 'té"n', id)) === null) await store.create({ ...someThread(at, 'té"n'), id }, someCard(1))
      return new PostgresResponses(store.database)
    },
    deleteThread: (_, tenant, id) => opened.at(-1)!.delete(tenant, id),
  })

  it("deletes nothing because of a server's clock that is ahead, because it uses the database's", async () => {
    const now = Date.now()
    const store = await openStore()
    expect(Math.abs((await store.time()) - now)).toBeLessThan(60_000)
    for (const [at, age] of [29, 31].entries()) await store.create({ ...someThread(at), used: now - age * DAY }, someCard(at))
    vi.useFakeTimers({ toFake: ['Date'], now: now + 400 * DAY })
    try {
      const kept = (await openKept({ store: url, retention: 30 }, () => undefined))!
      expect((await allIn(kept.store)).map(({ used }) => Math.round((now - used) / DAY))).toEqual([29])
      expect(Math.abs(kept.clock.now() - now)).toBeLessThan(60_000)
      await kept.store.close()
    } finally {
      vi.useRealTimers()
    }
  })

  describe('its tables', () => {
    it('are made once by servers that start at the same time', async () => {
      await Promise.all(Array.from({ length: 6 }, () => openStore()))
      expect(await postgres.sql('SELECT version FROM kvfold.version', url)).toEqual([{ version: 2 }])
    })

    it('of a later kvfold are refused by name, and stay unchanged', async () => {
      await openStore()
      await postgres.sql('UPDATE kvfold.version SET version = 7', url)
      await expect(openStore()).rejects.toMatchObject({
        code: 'store/newer',
        message: expect.stringContaining('has version 7') as string,
      })
      expect(await postgres.sql('SELECT version FROM kvfold.version', url)).toEqual([{ version: 7 }])
    })

    it('that cannot be opened are reported, without the password', async () => {
      const bad = [url.replace('/test', '/no_test'), url.replace('kvfold@', 'kvfold:secret@').replace('host=', 'port=1&host=')]
      await expect(Database.open(bad[0]!)).rejects.toMatchObject({ code: 'store/unusable' })
      const refused: unknown = await Database.open(bad[1]!).catch((error: unknown) => error)
      expect(refused).toMatchObject({ code: 'store/unreachable', status: 503 })
      expect(String(refused)).not.toContain('secret')
    })

    it('hold nothing of a deleted thread except its name', async () => {
      const store = await openStore()
      await store.create(someThread(1), someCard(1))
      await new PostgresResponses(store.database).keep({
        ...{ tenant: 'public', id: 'resp_1', thread: someThread(1).id, messages: 1, body: '{}' },
      })
      await store.delete('public', someThread(1).id)
      for (const table of ['threads', 'messages', 'entries', 'events', 'edits', 'cards', 'responses'])
        expect(await postgres.sql(`SELECT * FROM kvfold.${table}`, url), table).toEqual([])
    })

    it('that were changed by hand show no altered thread', async () => {
      const store = await openStore()
      for (const seed of [1, 2, 3]) await store.create(someThread(seed), someCard(seed))
      await postgres.sql('UPDATE kvfold.messages SET seen = \'"nothing" \' WHERE thread = 1 AND place = 2', url)
      await postgres.sql('DELETE FROM kvfold.messages WHERE thread = 3 AND place = 1', url)
      for (const seed of [1, 3])
        await expect(readIn(store, 'public', someThread(seed).id)).rejects.toMatchObject({ code: 'store/damaged-thread' })
      expect(await readIn(store, 'public', someThread(2).id)).toEqual(someThread(2))
      expect(store.damage().map(({ id }) => id)).toEqual([someThread(1).id, someThread(3).id])
      await store.delete('public', someThread(1).id)
      expect(store.damage().map(({ id }) => id)).toEqual([someThread(3).id])
    })

    it('get a missing or damaged card again, also when another server changes the thread', async () => {
      const store = await openStore()
      for (const seed of [1, 2, 3]) await store.create(someThread(seed), someCard(seed))
      await postgres.sql('UPDATE kvfold.cards SET sum = sum + 1 WHERE thread = 1', url)
      await postgres.sql('DELETE FROM kvfold.cards WHERE thread = 2', url)
      const again = await openStore()
      const cards = (all: readonly ListedThread[]) => all.map(({ id, card }) => [id, card])
      const made = [1, 2, 3].map((seed) => [someThread(seed).id, seed === 3 ? someCard(3) : cardOf(someThread(seed))])
      expect(cards(await again.index(cardOf))).toEqual(made)
      expect(cards(await (await openStore()).index(() => someCard(9)))).toEqual(made)
      await postgres.sql('DELETE FROM kvfold.cards WHERE thread = 3', url)
      await readIn(store, 'public', someThread(3).id)
      await store.update('public', someThread(3).id, { events: [someEvent(1)], card: someCard(4) })
      expect((await again.shared.changes()).changed.map(({ id }) => id)).toEqual([someThread(3).id])
      expect(again.damage()).toEqual([])
    })

    it('name a thread whose own row is damaged, or whose card cannot be made again, until it is deleted', async () => {
      const store = await openStore()
      for (const seed of [1, 2, 3]) await store.create(someThread(seed), someCard(seed))
      await postgres.sql('UPDATE kvfold.threads SET sum = sum + 1 WHERE number = 1', url)
      await postgres.sql('UPDATE kvfold.cards SET sum = sum + 1 WHERE thread = 2', url)
      await postgres.sql('UPDATE kvfold.messages SET sum = sum + 1 WHERE thread = 2', url)
      const again = await openStore()
      expect((await again.index(cardOf)).map(({ id }) => id)).toEqual([someThread(3).id])
      expect(again.damage()).toMatchObject([
        { kind: 'damaged', tenant: 'public', id: someThread(1).id, what: 'its own row does not match its checksum' },
        { kind: 'damaged', tenant: 'public', id: someThread(2).id },
      ])
      await again.delete('public', someThread(1).id)
      await store.delete('public', someThread(2).id)
      await again.shared.changes()
      expect(again.damage()).toEqual([])
    })
  })

  describe('two servers', () => {
    it("see each other's changes, once, and not their own", async () => {
      const [one, other] = [await openStore(), await openStore()]
      for (const store of [one, other]) await store.index()
      await one.create(someThread(1), someCard(1))
      await one.create(someThread(2), someCard(2))
      const heard = await other.shared.changes()
      expect(heard.changed.map(({ id, card }) => [id, card])).toEqual([1, 2].map((seed) => [someThread(seed).id, someCard(seed)]))
      expect(await other.shared.changes()).toEqual({ changed: [], deleted: [], forgotten: [] })
      expect(await one.shared.changes()).toEqual({ changed: [], deleted: [], forgotten: [] })
      await other.update('public', someThread(1).id, { events: [someEvent(1)], card: someCard(9) })
      await other.delete('public', someThread(2).id)
      const answered = await one.shared.changes()
      expect(answered.changed.map(({ id, card }) => [id, card])).toEqual([[someThread(1).id, someCard(9)]])
      expect(answered.deleted).toEqual([{ tenant: 'public', id: someThread(2).id }])
      expect(await one.shared.changes()).toEqual({ changed: [], deleted: [], forgotten: [] })
    })

    it('see a change that began before another one and ended after it', async () => {
      const [one, other] = [await openStore(), await openStore()]
      await one.create(someThread(1), someCard(1))
      await one.create(someThread(2), someCard(2))
      await other.index()
      const update = `UPDATE kvfold.threads SET revision = revision + 1, changed = pg_current_xact_id() WHERE number = 1`
      await one.database.transaction(async (run) => {
        await run(update)
        await one.update('public', someThread(2).id, { card: someCard(3) })
        expect((await other.shared.changes()).changed.map(({ id }) => id)).toEqual([someThread(2).id])
      })
      expect((await other.shared.changes()).changed.map(({ id }) => id)).toEqual([someThread(1).id])
    })

    it('cannot overwrite changes that they have not read, and continue once they have', async () => {
      const [one, other] = [await openStore(), await openStore()]
      const { tenant, id, messages } = someThread(1)
      await one.create(someThread(1), someCard(1))
      await readIn(other, tenant, id)
      await one.update(tenant, id, { messages: [someStored(10)], card: someCard(1) })
      const late = () => other.update(tenant, id, { messages: [someStored(11)], card: someCard(1) })
      await expect(late()).rejects.toMatchObject({ code: 'store/overtaken' })
      await expect(late()).rejects.toMatchObject({ code: 'store/overtaken' })
      expect((await readIn(other, tenant, id))!.messages).toEqual([...messages, someStored(10)])
      await late()
      expect((await readIn(one, tenant, id))!.messages).toEqual([...messages, someStored(10), someStored(11)])
    })

    it('claim a thread one at a time: the other is refused, or waits', async () => {
      const [one, other] = [await openStore(), await openStore()]
      await one.create(someThread(1), someCard(1))
      const { tenant, id } = someThread(1)
      const claim = await one.shared.claim(tenant, id, false)
      expect(claim?.isCurrent).toBe(true)
      const again = await one.shared.claim(tenant, id, false)
      expect(await other.shared.claim(tenant, id, false)).toBeNull()
      expect(await other.shared.claim(tenant, someThread(2).id, false)).not.toBeNull()
      const order: string[] = []
      const waiting = other.shared.claim(tenant, id, true).then((got) => {
        order.push('got')
        return got
      })
      await one.update(tenant, id, { events: [someEvent(1)], card: someCard(1) })
      await again!.release()
      order.push('released')
      await claim!.release()
      const got = await waiting
      expect(order).toEqual(['released', 'got'])
      // The other server never read the thread.
      expect(got?.isCurrent).toBe(false)
      expect(await one.shared.claim(tenant, id, false)).toBeNull()
      await got!.release()
      expect(await one.shared.claim(tenant, id, false)).not.toBeNull()
    })

    it('claim threads of any name, even with a NUL, which the database cannot have', async () => {
      const store = await openStore()
      const claim = await store.shared.claim('public', 'thread_\u0000', true)
      expect(claim?.isCurrent).toBe(true)
      await claim!.release()
    })

    it('get the claims of a server that died', async () => {
      const [one, other] = [await openStore(), await openStore()]
      const { tenant, id } = someThread(1)
      await one.create(someThread(1), someCard(1))
      expect(await one.shared.claim(tenant, id, false)).not.toBeNull()
      const waiting = other.shared.claim(tenant, id, true)
      const [{ pid } = {}] = await postgres.sql("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted", url)
      await postgres.sql(`SELECT pg_terminate_backend(${String(pid)})`, url)
      const claim = await waiting
      expect(claim).not.toBeNull()
      // The server that lost it may claim it again like any other, once it has noticed the end of its connection.
      const claimed = async () => {
        const got = await one.shared.claim(tenant, id, false)
        await got?.release()
        return got
      }
      await expect.poll(claimed).toBeNull()
      await claim!.release()
    })
  })

  describe('with text that is to be forgotten', () => {
    it('tells the other servers, and names those that have not done it yet', async () => {
      const [one, other] = [await openStore(), await openStore()]
      const { tenant, id } = someThread(1)
      await one.create(someThread(1), someCard(1))
      for (const store of [one, other]) {
        await store.index()
        await store.shared.changes()
        await store.shared.done()
      }
      await one.update(tenant, id, { messages: [someStored(5)], card: someCard(1), forgets: true })
      const left = await one.shared.unforgotten(tenant, id, 0)
      expect(left.map(({ server }) => server)).toEqual([expect.stringContaining(`process ${process.pid}`)])
      // Having heard of it is not enough.
      expect(await other.shared.changes()).toMatchObject({ forgotten: [{ tenant, id }] })
      expect(await one.shared.unforgotten(tenant, id, 100)).toHaveLength(1)
      await other.shared.done()
      expect(await one.shared.unforgotten(tenant, id, 5000)).toEqual([])
      // The server that asked for it is not told.
      expect((await one.shared.changes()).forgotten).toEqual([])
      // A server that opens again has nothing in memory; it deletes the text from its disk when it opens.
      const dropped: string[] = []
      const cells = { drop: (threads: readonly string[]) => Promise.resolve(dropped.push(...threads)) }
      const late = await openStore({ cells, place: 'here' })
      await late.index()
      expect(dropped).toEqual([id])
      expect(await one.shared.unforgotten(tenant, id, 5000)).toEqual([])
      // Once the thread is deleted, no server is waited for.
      await other.delete(tenant, id)
      expect(await one.shared.unforgotten(tenant, id, 0)).toEqual([])
    })
  })

  it('no longer names a killed server when another server of its place has forgotten the text', async () => {
    const one = await openStore()
    const { tenant, id } = someThread(1)
    await one.create(someThread(1), someCard(1))
    await openStore({ place: 'here' })
    await one.update(tenant, id, { messages: [someStored(5)], card: someCard(1), forgets: true })
    // Its successor starts at once, while it might still be alive.
    const successor = await openStore({ place: 'here' })
    await successor.index()
    expect(await one.shared.unforgotten(tenant, id, 0)).toHaveLength(1)
    await postgres.sql(
      "UPDATE kvfold.servers SET at = now() - interval '20 seconds' WHERE at = (SELECT min(at) FROM kvfold.servers WHERE place IS NOT NULL)",
      url,
    )
    await vi.waitFor(
      async () => {
        await successor.shared.changes()
        await successor.shared.done()
        expect(await one.shared.unforgotten(tenant, id, 0)).toEqual([])
      },
      { timeout: 5000 },
    )
  })

  describe('that goes away', () => {
    it('is reported, nothing is half stored, and it is used again when it is back', async () => {
      const store = await openStore()
      const { tenant, id } = someThread(1)
      await store.create(someThread(1), someCard(1))
      const before = await readIn(store, tenant, id)
      await postgres.stop('immediate')
      const away = { code: 'store/unreachable', status: 503, message: expect.stringContaining('does not answer') as string }
      const update = { messages: [someStored(5)], card: someCard(1) }
      await expect(store.update(tenant, id, update)).rejects.toMatchObject(away)
      await expect(store.create(someThread(2), someCard(2))).rejects.toMatchObject(away)
      await expect(readIn(store, tenant, id)).rejects.toMatchObject(away)
      await expect(store.shared.changes()).rejects.toMatchObject(away)
      await expect(store.shared.claim(tenant, id, false)).rejects.toMatchObject(away)
      await postgres.start()
      // The thread in memory may differ from the stored one, so it must be read first.
      await expect(store.update(tenant, id, update)).rejects.toMatchObject(away)
      expect(await readIn(store, tenant, id)).toEqual(before)
      await store.update(tenant, id, update)
      expect(await store.shared.claim(tenant, id, false)).not.toBeNull()
      await store.create(someThread(2), someCard(2))
      expect(await allIn(store)).toEqual([{ ...before, messages: [...before!.messages, someStored(5)] }, someThread(2)])
    }, 30_000)

    it('silently is noticed by requests that wait for it, even for a claim; others keep waiting', async () => {
      const [holder, other] = [await openStore({ patience: IMPATIENT }), await openStore({ patience: IMPATIENT })]
      const { tenant, id } = someThread(1)
      await holder.create(someThread(1), someCard(1))
      const held = await holder.shared.claim(tenant, id, false)
      const way = await wayTo(url)
      const cutOff = await openStore({ url: way.url, patience: IMPATIENT })
      const away = { code: 'store/unreachable', status: 503 }
      const lost = cutOff.shared.claim(tenant, id, true)
      const waiting = other.shared.claim(tenant, id, true)
      const waiters = () => postgres.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted", url)
      await expect.poll(waiters).toHaveLength(2)
      expect(cutOff.shared.problem).toBeNull()
      const began = performance.now()
      way.cut()
      await expect(lost).rejects.toMatchObject(away)
      expect(performance.now() - began).toBeLessThan(limit(IMPATIENT))
      expect(cutOff.shared.problem).toContain('does not answer')
      // Later requests fail at once, however many there are.
      const later = performance.now()
      const all = await Promise.allSettled(Array.from({ length: 30 }, () => cutOff.shared.changes()))
      for (const each of all) expect(each).toMatchObject({ status: 'rejected', reason: away })
      expect(performance.now() - later).toBeLessThan(IMPATIENT.connect / 2)
      let isOver = false
      void waiting.then(() => (isOver = true))
      expect([isOver, other.shared.problem]).toEqual([false, null])
      // The server reconnects by itself, without a request.
      way.heal()
      await expect.poll(() => cutOff.shared.problem, { timeout: 5000 }).toBeNull()
      expect((await cutOff.shared.changes()).changed).toHaveLength(1)
      await held!.release()
      const claim = await waiting
      expect(claim).not.toBeNull()
      await claim!.release()
      const mine = await cutOff.shared.claim(tenant, id, true)
      expect(mine).not.toBeNull()
      await mine!.release()
      await cutOff.close()
      way.end()
    }, 40_000)

    it('in the middle of a change leaves nothing of it', async () => {
      const store = await openStore()
      await store.create(someThread(1), someCard(1))
      const broken = store.database.transaction(async (run) => {
        await run('DELETE FROM kvfold.messages')
        await postgres.stop('immediate')
        await run('DELETE FROM kvfold.threads')
      })
      await expect(broken).rejects.toMatchObject({ code: 'store/unreachable' })
      await postgres.start()
      expect(await allIn(store)).toEqual([someThread(1)])
    }, 30_000)
  })
})

/** The time limit in milliseconds, with some reserve for a busy machine. */
const limit = ({ silent, connect }: typeof IMPATIENT): number => silent + silent / 4 + connect + 1000
