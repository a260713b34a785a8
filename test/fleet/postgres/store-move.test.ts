/**
 * Tests `kvfold store move`: a store moves from a folder to PostgreSQL and back, with nothing lost; and the other store commands on a
 * database.
 */
import { cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { moveStore } from '../../../src/runtime/cli/commands/store.js'
import type { KeptResponse } from '../../../src/runtime/server/responses/responses.js'
import { SqliteResponses } from '../../../src/runtime/server/responses/sqlite-responses.js'
import { cardOf } from '../../../src/runtime/server/threads/thread.js'
import { PostgresStore } from '../../../src/fleet/postgres/postgres-store.js'
import { SqliteStore } from '../../../src/runtime/store/sqlite-store.js'
import { byId, allIn, someThread } from '../../runtime/store/support/threads.js'
import { noPostgres, TestPostgres } from '../../support/postgres.js'
import { kvfoldHere } from '../../runtime/cli/support/process.js'

if (noPostgres !== null) console.warn(`skipped: ${noPostgres}`)

const THREADS = 60
const threads = Array.from({ length: THREADS }, (_, seed) => someThread(seed, seed % 3 === 0 ? 'té"n' : 'public'))
const responses = threads.flatMap(({ tenant, id }, at): KeptResponse[] =>
  Array.from({ length: at % 3 }, (_, nth) => ({
    ...{ tenant, id: `resp_${at}_${nth}`, thread: id, messages: nth + 1 },
    body: nth === 1 ? null : JSON.stringify({ id: `resp_${at}_${nth}`, text: 'é "so"' }),
  })),
)

describe.skipIf(noPostgres !== null)('a store that moves', { timeout: 60_000 }, () => {
  let postgres: TestPostgres
  let url: string
  let root: string
  let folder: string

  beforeAll(async () => {
    postgres = await TestPostgres.make()
  }, 60_000)
  afterAll(() => postgres.remove())
  beforeEach(async () => {
    url = await postgres.database()
    root = mkdtempSync(join(tmpdir(), 'kvfold-move-'))
    folder = join(root, 'one')
    const store = SqliteStore.open({ folder })
    for (const thread of threads) await store.create(thread, null)
    await store.close()
    const kept = SqliteResponses.open(folder)
    for (const response of responses) await kept.keep(response)
    // The thread of this response was deleted in the meantime.
    await kept.keep({ tenant: 'public', id: 'resp_lone', thread: 'thread_gone', messages: 1, body: '{}' })
    kept.close()
  })
  afterEach(() => {
    rmSync(root, { recursive: true })
  })

  const bytesOf = (path: string) => readdirSync(path).map((name) => [name, readFileSync(join(path, name)).toString('base64')])
  const exportOf = async (store: string) => {
    const { code, stdout, stderr } = await kvfoldHere(['store', 'export', '--store', store])
    expect(code, stderr).toBe(0)
    return stdout.trim().split('\n').sort()
  }

  it('is complete in the database, and back in another folder, to the letter; the source stays unchanged', async () => {
    const before = bytesOf(folder)
    const there = await kvfoldHere(['store', 'move', folder, url])
    expect([there.code, there.stdout], there.stderr).toEqual([
      0,
      `moved ${THREADS} threads and ${responses.length} responses, and read them back; the source is unchanged\nleft out 1 thread or response of deleted threads or earlier copies\n`,
    ])
    expect(bytesOf(folder)).toEqual(before)
    expect(await exportOf(url)).toEqual(await exportOf(folder))

    const store = await PostgresStore.open({ url })
    const listed = byId(await store.index())
    expect(listed.map(({ card }) => card)).toEqual(byId(threads).map(cardOf))
    expect(byId(await allIn(store))).toEqual(byId(threads))
    await store.close()

    const back = join(root, 'two')
    expect(await moveStore(url, back)).toEqual({ threads: THREADS, responses: responses.length, left: 0 })
    expect(await exportOf(back)).toEqual(await exportOf(folder))
    const again = SqliteStore.open({ folder: back })
    expect(again.damage()).toEqual([])
    expect(byId(await allIn(again))).toEqual(byId(threads))
    await again.close()
    const kept = SqliteResponses.open(back)
    for (const response of responses) expect(await kept.read(response.tenant, response.id)).toEqual(response)
    expect(kept.damage()).toEqual([])
    kept.close()
  })

  it('is refused if the target has one, a server uses it, or the source is damaged', async () => {
    await moveStore(folder, url)
    const counts = () => postgres.sql('SELECT count(*)::int AS threads FROM kvfold.threads', url)
    await expect(moveStore(folder, url)).rejects.toMatchObject({ code: 'store/not-empty' })
    await expect(moveStore(url, folder)).rejects.toMatchObject({ code: 'store/not-empty' })
    expect(await counts()).toEqual([{ threads: THREADS }])
    await expect(moveStore(folder, join(root, 'three'))).rejects.toMatchObject({ code: 'cli/bad-usage' })

    const server = await PostgresStore.open({ url })
    await expect(moveStore(url, join(root, 'three'))).rejects.toMatchObject({ code: 'store/locked' })
    await server.close()

    await postgres.sql('DELETE FROM kvfold.messages WHERE thread = 7 AND place = 1', url)
    await expect(moveStore(url, join(root, 'three'))).rejects.toMatchObject({ code: 'store/damaged' })
    expect(readdirSync(join(root, 'three'))).toEqual([])
    const checked = await kvfoldHere(['store', 'check', '--store', url])
    expect([checked.code, checked.stdout]).toEqual([
      1,
      expect.stringContaining(`${THREADS - 1} threads and ${responses.length} responses are undamaged`),
    ])
    expect(checked.stdout).toContain(threads[6]!.id)
    expect((await kvfoldHere(['store', 'copy', url, join(root, 'three')])).stderr).toContain('copy a database with pg_dump')
  })

  it('is no server, so that no forget waits for a command', async () => {
    const server = await PostgresStore.open({ url })
    await server.close()
    await postgres.sql('ALTER TABLE kvfold.servers ADD CHECK (false)', url)
    await moveStore(folder, url)
    expect((await kvfoldHere(['store', 'check', '--store', url])).code).toBe(0)
    expect(await exportOf(url)).toHaveLength(THREADS)
    expect(await moveStore(url, join(root, 'two'))).toMatchObject({ threads: THREADS })
  })

  it('that cannot be written whole is not written at all', async () => {
    const broken = join(root, 'broken')
    cpSync(folder, broken, { recursive: true })
    const bytes = readFileSync(join(broken, 'threads.db'))
    bytes.fill(0, Math.floor(bytes.length / 2), Math.floor(bytes.length / 2) + 4096)
    writeFileSync(join(broken, 'threads.db'), bytes)
    await expect(moveStore(broken, url)).rejects.toMatchObject({ code: 'store/damaged' })
    const store = await PostgresStore.open({ url })
    expect(await allIn(store)).toEqual([])
    await store.close()
    expect(existsSync(join(broken, 'threads.db'))).toBe(true)
  })

  it('shows no password when it fails', async () => {
    const secret = url.replace('kvfold@', 'kvfold:sesame@').replace('/test', '/no_test')
    for (const words of [
      ['move', folder, secret],
      ['check', '--store', secret],
      ['move', folder, 'postgres://a:sesame@[/x'],
    ]) {
      const { code, stdout, stderr } = await kvfoldHere(['store', ...words])
      expect(code).not.toBe(0)
      expect(stdout + stderr).not.toContain('sesame')
    }
  })
})
