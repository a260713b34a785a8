/**
 * Tests the store on real files: every acknowledged change is read back by those who may, and invalid files are neither trusted nor left
 * unreported.
 */
import { spawnSync } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import Database from 'libsql'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import { Random } from '../../../src/runtime/core/random.js'
import type { ThreadRecord } from '../../../src/runtime/store/port.js'
import { stateFolder, StoreFile } from '../../../src/runtime/store/store-file.js'
import { migrations } from '../../../src/runtime/store/migrations.js'
import { SqliteStore } from '../../../src/runtime/store/sqlite-store.js'
import { LOADER, moduleOf } from '../../support/program.js'
import { allIn, byId, someCard, someEntry, someEvent, someStored, someThread } from './support/threads.js'
import { theThreadStore } from './thread-store.contract.js'

const GOLDEN_4 = join(import.meta.dirname, '../..', 'golden', 'store', 'version-4.sql')

let folder: string
let path: string
const opened: SqliteStore[] = []

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-store-'))
  path = join(folder, 'threads.db')
})
afterEach(async () => {
  for (const store of opened.splice(0)) await store.close()
  rmSync(folder, { recursive: true })
})

function openStore(where = folder): SqliteStore {
  const store = SqliteStore.open({ folder: where })
  opened.push(store)
  return store
}

function codeOf(work: () => unknown): string {
  try {
    work()
  } catch (error) {
    if (error instanceof KvfoldError) return error.code
    throw error
  }
  throw new Error('It went well.')
}

theThreadStore('SQLite', { open: () => Promise.resolve(openStore()) })

describe('the files', () => {
  it('are readable by their owner only, whatever they were before', async () => {
    const inner = join(folder, 'new', 'state')
    const modes = () => ['.', ...readdirSync(inner)].map((name) => [name, (statSync(join(inner, name)).mode & 0o777).toString(8)])
    let store = openStore(inner)
    await store.create(someThread(1), someCard(1))
    expect(modes()).toEqual([
      ['.', '700'],
      ['threads.db', '600'],
      ['threads.db-wal', '600'],
      ['threads.manifest', '600'],
    ])
    await store.close()
    chmodSync(join(inner, 'threads.db'), 0o644)
    store = openStore(inner)
    await store.create(someThread(2), someCard(2))
    expect(modes().map(([, mode]) => mode)).toEqual(['700', '600', '600', '600'])
  })

  it('have no WAL once the store is closed', async () => {
    const store = openStore()
    await store.create(someThread(1), someCard(1))
    await store.close()
    await store.close()
    expect(readdirSync(folder)).toEqual(['threads.db', 'threads.manifest'])
    await expect(store.create(someThread(2), someCard(2))).rejects.toMatchObject({ code: 'internal/invariant' })
  })

  it('hold nothing of deleted threads, or of threads that were too old', async () => {
    const store = openStore()
    const secret = (seed: number) => `secret${seed}-`.repeat(3000)
    for (const seed of [1, 2, 3]) {
      await store.create(someThread(seed), someCard(seed))
      const messages = [{ message: { role: 'user', content: secret(seed) }, seen: 'same' }] as const
      const card = { ...someCard(1), title: secret(seed) }
      await store.update('public', someThread(seed).id, { messages, events: [{ ...someEvent(1), reason: secret(seed) }], card })
    }
    const held = () => {
      const all = readdirSync(folder).map((name) => readFileSync(join(folder, name)))
      return [1, 2, 3].filter((seed) => all.some((bytes) => bytes.includes(`secret${seed}-`)))
    }
    // The test reads copies of the files, because opening and closing the file itself would release the lock.
    expect(held()).toEqual([1, 2, 3])
    await store.delete('public', someThread(1).id)
    expect(held()).toEqual([2, 3])
    await store.deleteUnusedSince(someThread(3).used)
    expect(held()).toEqual([3])
  })

  it('are locked against a second server, in this process and in another, until the first has closed them', async () => {
    const store = openStore()
    await store.create(someThread(1), someCard(1))
    expect(codeOf(() => openStore())).toBe('store/locked')
    const source = new URL(`../../../${moduleOf('runtime/store/sqlite-store')}`, import.meta.url).href
    const script = `import { SqliteStore } from ${JSON.stringify(source)}
      try { SqliteStore.open({ folder: ${JSON.stringify(folder)} }); console.log('open') } catch (error) { console.log(error.code) }`
    const other = () => spawnSync(process.execPath, [...LOADER, '--input-type=module', '-e', script], { encoding: 'utf8' })
    expect(other().stdout.trim()).toBe('store/locked')
    await store.close()
    expect(other().stdout.trim()).toBe('open')
    expect(await allIn(openStore())).toEqual([someThread(1)])
  })

  it('are in the XDG state folder; relative paths are ignored', () => {
    expect(stateFolder({ XDG_STATE_HOME: '/var/state' })).toBe('/var/state/kvfold')
    expect(stateFolder({ XDG_STATE_HOME: 'state' })).toMatch(/^\/.*\/\.local\/state\/kvfold$/u)
  })
})

describe('a file', () => {
  it('of version 4 is read as it is, and its digests stay valid', async () => {
    const lay = (change = '') => {
      const database = new Database(path)
      database.exec(readFileSync(GOLDEN_4, 'utf8') + change)
      database.close()
    }
    lay()
    const store = openStore()
    const seeds = [1, 2, 3]
    const threads = seeds.map((seed) => {
      const thread = someThread(seed)
      const events = [someEvent(seed), someEvent(seed + 1)]
      return { ...thread, messages: [...thread.messages, someStored(seed + 4)], events }
    })
    expect(store.damage()).toEqual([])
    expect(await allIn(store)).toEqual(threads)
    expect((await store.index(() => someCard(0))).map(({ card }) => card)).toEqual(seeds.map((seed) => someCard(seed + 1)))
    await opened.pop()!.close()
    rmSync(folder, { recursive: true })
    mkdirSync(folder)
    lay('DELETE FROM messages WHERE thread = 2 AND place = 3;')
    const cut = openStore()
    expect(cut.damage()).toMatchObject([{ kind: 'damaged', id: threads[1]!.id }])
    expect(cut.read('public', threads[0]!.id)).toEqual(threads[0])
  })

  it('of a version that is no longer read is refused, counts as no damage, and is not touched', async () => {
    await openStore().create(someThread(1), someCard(1))
    await opened.pop()!.close()
    const database = new Database(path)
    database.pragma('user_version=3')
    database.close()
    const before = readFileSync(path)
    expect(() => openStore()).toThrow(/has version 3, but this kvfold reads versions from 4 on/u)
    expect(codeOf(() => StoreFile.look({ path, migrations }))).toBe('store/older')
    expect(readFileSync(path).equals(before)).toBe(true)
  })

  it('is read thread by thread: damage in one thread does not affect the others', async () => {
    const store = openStore()
    for (const seed of [1, 2]) await store.create(someThread(seed), someCard(seed))
    await store.close()
    const database = new Database(path)
    database.exec('UPDATE messages SET seen = \'"nothing" \' WHERE thread = 1 AND place = 2')
    database.close()
    const again = openStore()
    expect(await again.index(() => someCard(9))).toHaveLength(1)
    expect(codeOf(() => again.read('public', someThread(1).id))).toBe('store/damaged-thread')
    expect(again.read('public', someThread(2).id)).toEqual(someThread(2))
    await again.delete('public', someThread(1).id)
    expect(again.read('public', someThread(1).id)).toBeNull()
  })

  it('is checked at opening until patience ends, and says how far; the rest is checked when it is read', async () => {
    const store = openStore()
    for (let seed = 1; seed <= 30; seed++) await store.create(someThread(seed), someCard(seed))
    await opened.pop()!.close()
    const database = new Database(path)
    // This thread is checked last, because it was used first.
    database.exec('UPDATE messages SET seen = \'"nothing" \' WHERE thread = 1 AND place = 2')
    database.close()
    const { tenant, id } = someThread(1)
    const hasty = SqliteStore.open({ folder, patience: -1 })
    opened.push(hasty)
    expect(hasty.notes()).toEqual([
      expect.stringContaining('kvfold checked 0 of 30 threads, and checks the others when they are used'),
    ])
    expect(hasty.damage()).toEqual([])
    expect(codeOf(() => hasty.read(tenant, id))).toBe('store/damaged-thread')
    expect(hasty.damage()).toMatchObject([{ id }])
    await opened.pop()!.close()
    const patient = openStore()
    expect(patient.notes()).toEqual([])
    expect(patient.damage()).toMatchObject([{ id }])
  })

  it('of an earlier version is migrated in one transaction', async () => {
    await openStore().create(someThread(1), someCard(1))
    await opened.pop()!.close()
    const followedBy = (...steps: string[]) => ({ ...migrations, steps: [...migrations.steps, ...steps] })
    const versionOf = (file: StoreFile) => Number(file.rows('PRAGMA user_version')[0]?.['user_version'])
    const bad = followedBy("ALTER TABLE threads ADD COLUMN title TEXT NOT NULL DEFAULT ''; INSERT INTO nowhere VALUES (1);")
    expect(codeOf(() => StoreFile.open({ path, migrations: bad }))).toBe('store/failed')
    expect(await allIn(openStore())).toEqual([someThread(1)])
    await opened.pop()!.close()

    const good = followedBy("ALTER TABLE threads ADD COLUMN title TEXT NOT NULL DEFAULT 'none'", 'CREATE TABLE more (x)')
    const later = StoreFile.open({ path, migrations: good })
    expect(later.rows('SELECT title FROM threads')).toEqual([{ title: 'none' }])
    expect(versionOf(later)).toBe(6)
    later.close()
    expect(codeOf(() => openStore())).toBe('store/newer')
    // The file is unchanged.
    const again = StoreFile.open({ path, migrations: good })
    expect(versionOf(again)).toBe(6)
    again.close()
  })

  it('of another program is refused and not touched', () => {
    const database = new Database(path)
    database.exec('CREATE TABLE notes (text)')
    database.close()
    const before = readFileSync(path)
    expect(codeOf(() => openStore())).toBe('store/unusable')
    expect(readFileSync(path).equals(before)).toBe(true)
  })

  it('that cannot be opened is refused', () => {
    writeFileSync(join(folder, 'file'), '')
    expect(codeOf(() => openStore(join(folder, 'file')))).toBe('store/unusable')
    mkdirSync(path)
    expect(codeOf(() => openStore())).toBe('store/unusable')
  })
})

describe('damage', () => {
  it('anywhere in the file is reported, or all threads are unchanged; nothing is deleted', { timeout: 120_000 }, async () => {
    const threads = Array.from({ length: 12 }, (_, seed) => someThread(seed))
    const store = openStore()
    for (const thread of threads) await store.create(thread, someCard(1))
    await store.close()
    const whole = readFileSync(path)
    const random = new Random(5)
    const outcomes = { damaged: 0, same: 0 }
    for (let round = 0; round < 120; round++) {
      const place = join(folder, `round${round}`)
      mkdirSync(place)
      const bytes = Buffer.from(whole)
      if (round < 5) bytes.fill(0x5a, 0, 4096 * round + 10)
      else if (round < 10) bytes.fill(0, random.below(bytes.length - 2000)).fill(whole.subarray(0, 2000), 0, 2000)
      else bytes[random.below(bytes.length)]! ^= 1 << random.below(8)
      const damagedFile = join(place, 'threads.db')
      writeFileSync(damagedFile, round % 10 === 9 ? bytes.subarray(0, random.below(bytes.length - 4096)) : bytes)
      const length = statSync(damagedFile).size
      try {
        const opening = SqliteStore.open({ folder: place })
        try {
          const listed = await opening.index(() => someCard(1))
          const read = listed.map(({ tenant, id }) => opening.read(tenant, id)!)
          const told = new Set(opening.damage().map(({ id }) => id))
          expect(byId(read)).toEqual(byId(threads.filter(({ id }) => !told.has(id))))
          outcomes[told.size === 0 ? 'same' : 'damaged']++
        } finally {
          await opening.close()
        }
      } catch (error) {
        if (!(error instanceof KvfoldError)) throw error
        // If the version or our mark is changed, the file counts as that of another program.
        expect(['store/damaged', 'store/unusable', 'store/newer']).toContain(error.code)
        expect(error.message).toContain(damagedFile)
        outcomes.damaged++
        expect(existsSync(damagedFile) && statSync(damagedFile).size).toBe(length)
      }
    }
    // Both outcomes occur: bits flip in free space, and in data.
    expect(outcomes.damaged).toBeGreaterThan(30)
    expect(outcomes.same).toBeGreaterThan(5)
  })
})

describe('a long thread', () => {
  /** Returns a thread of 40 MB, with one message of 4 MB. */
  const longThread = (): ThreadRecord => {
    const said = (bytes: number) => ({
      message: { role: 'user' as const, content: 'kvfold '.repeat(bytes / 7) },
      seen: 'same' as const,
    })
    return { ...someThread(2), messages: [...Array.from({ length: 3000 }, () => said(12_000)), said(4_000_000)] }
  }

  it('is read in turns of the event loop', async () => {
    const store = openStore()
    const thread = longThread()
    await store.create(thread, someCard(2))
    let turns = 0
    const timer = setInterval(() => turns++, 1)
    const read = await store.reading(() => store.read(thread.tenant, thread.id))
    clearInterval(timer)
    expect(read).toEqual(thread)
    // The work is at least 80 ms of reading, in slices of 8 ms.
    expect(turns).toBeGreaterThan(5)
  })

  it('is read whole, before or after a change that comes meanwhile', async () => {
    const store = openStore()
    const thread = longThread()
    await store.create(thread, someCard(2))
    const reading = store.reading(() => store.read(thread.tenant, thread.id))
    const changing = store.update(thread.tenant, thread.id, { messages: [someStored(7)], card: someCard(3) })
    const changed = { ...thread, messages: [...thread.messages, someStored(7)] }
    const read = await reading
    await changing
    expect([thread.messages.length, changed.messages.length]).toContain(read!.messages.length)
    expect(read).toEqual(read!.messages.length === thread.messages.length ? thread : changed)
    expect(store.damage()).toEqual([])
    expect(await store.reading(() => store.read(thread.tenant, thread.id))).toEqual(changed)
  })
})

describe('a full disk', () => {
  it('refuses the change and all later ones of that thread until it is read again; nothing acknowledged is lost', async () => {
    const store = openStore()
    await store.create(someThread(1), someCard(1))
    await store.create(someThread(2), someCard(2))
    const { id } = someThread(1)
    const limit = limitOf(store)
    limit(0)
    const big = { message: { role: 'user', content: 'y'.repeat(200_000) }, seen: 'same' } as const
    await expect(store.update('public', id, { messages: [someStored(5), big], card: someCard(1) })).rejects.toMatchObject({
      code: 'store/full',
      status: 507,
    })
    limit(1_000_000)
    // There is room again, but the writer relies on a message that was not stored.
    await expect(store.update('public', id, { messages: [someStored(6)], card: someCard(1) })).rejects.toMatchObject({
      code: 'store/full',
    })
    await expect(store.update('public', id, { ledger: [someEntry(2)], card: someCard(1) })).rejects.toMatchObject({
      code: 'store/full',
    })
    await store.update('public', someThread(2).id, { messages: [someStored(6)], card: someCard(1) })
    expect(store.read('public', id)).toEqual(someThread(1))
    await store.update('public', id, { messages: [big], card: someCard(1) })
    await store.close()
    const [first, second] = await allIn(openStore())
    expect(first).toEqual({ ...someThread(1), messages: [...someThread(1).messages, big] })
    expect(second).toEqual({ ...someThread(2), messages: [...someThread(2).messages, someStored(6)] })
  })

  it('of the process itself (no file may grow any more) loses nothing either, killed or not', async () => {
    const source = new URL('../../../src/runtime/store/sqlite-store.ts', import.meta.url).href
    const threads = new URL('./support/threads.ts', import.meta.url).href
    const script = `import { SqliteStore } from ${JSON.stringify(source)}
      import { someCard, someThread } from ${JSON.stringify(threads)}
      process.on('SIGXFSZ', () => {})
      const store = SqliteStore.open({ folder: ${JSON.stringify(folder)} })
      for (let seed = 0; ; seed++) try { await store.create(someThread(seed), someCard(seed)); console.log('kept') } catch (error) { console.log(error.code); break }
      process.kill(process.pid, 'SIGKILL')`
    const command = 'ulimit -f 1024; exec "$0" "$@"'
    const child = spawnSync(
      '/bin/sh',
      ['-c', command, process.execPath, '--import', 'tsx', '--input-type=module', '-e', script],
      {
        encoding: 'utf8',
      },
    )
    const lines = child.stdout.trim().split('\n')
    expect(lines.at(-1), child.stderr).toMatch(/^store\/(full|failed)$/u)
    const kept = lines.length - 1
    expect(kept).toBeGreaterThan(3)
    expect(await allIn(openStore())).toEqual(Array.from({ length: kept }, (_, seed) => someThread(seed)))
  })
})

/** Returns a function that sets how many pages the file may grow by: a full disk by SQLite's own limit. */
function limitOf(store: SqliteStore): (pages: number) => void {
  const { file } = store as unknown as { file: StoreFile }
  return (pages) => {
    const count = Number(file.rows('PRAGMA page_count')[0]!['page_count'])
    file.rows(`PRAGMA max_page_count=${count + pages}`)
  }
}
