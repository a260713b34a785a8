/**
 * Opens damaged stores as the server does. Every thread is unchanged, or named as damaged or lost; no damage is silent, and no thread is
 * altered.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { cpSync, mkdtempSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import Database from 'libsql'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { copyStore } from '../../../src/runtime/cli/commands/store.js'
import { openStore } from '../../../src/runtime/cli/store-options.js'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import { Random } from '../../../src/runtime/core/random.js'
import type { KeptResponse } from '../../../src/runtime/server/responses/responses.js'
import { SqliteResponses } from '../../../src/runtime/server/responses/sqlite-responses.js'
import type { ThreadRecord } from '../../../src/runtime/store/port.js'
import { checkThreads, type FoundThread } from '../../../src/runtime/store/check.js'
import { SqliteStore } from '../../../src/runtime/store/sqlite-store.js'
import { KVFOLD, kvfold } from '../cli/support/process.js'
import { someCard, someEdits, someEntry, someEvent, someStored, someThread } from './support/threads.js'
import { LONG } from '../../support/long.js'

const STORES = LONG ? 200 : 8
const SERVERS = LONG ? 10 : 2
const THREADS = 12

let folder: string

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-damage-'))
})
afterEach(() => {
  rmSync(folder, { recursive: true })
})

interface Whole {
  readonly place: string
  readonly threads: readonly ThreadRecord[]
  readonly responses: readonly KeptResponse[]
}

/** Writes the files as a killed server leaves them: most threads are in the file, the last changes in the WAL. */
async function whole(): Promise<Whole> {
  const live = join(folder, 'live')
  const threads: ThreadRecord[] = []
  let store = SqliteStore.open({ folder: live })
  for (let seed = 0; seed < THREADS; seed++) {
    const long = { message: { role: 'user', content: `long ${seed} `.repeat(seed % 3 === 0 ? 3000 : 30) }, seen: 'same' } as const
    const thread = someThread(seed, seed % 4 === 0 ? 'other' : 'public')
    const record = { ...thread, messages: [...thread.messages, long] }
    await store.create(record, someCard(seed))
    threads.push(record)
  }
  await store.close()
  store = SqliteStore.open({ folder: live })
  for (const [at, record] of [...threads.entries()].filter(([index]) => index % 2 === 0)) {
    const more = { messages: [someStored(at), someStored(at + 1)], ledger: [someEntry(at)], events: [someEvent(at)] }
    const edits = someEdits(at + 1)
    await store.update(record.tenant, record.id, { ...more, edits, card: someCard(at + 1) })
    const { messages, ledger, events } = record
    threads[at] = {
      ...record,
      edits,
      messages: [...messages, ...more.messages],
      ledger: [...ledger, ...more.ledger],
      events: [...events, ...more.events],
    }
  }
  const kept = SqliteResponses.open(live)
  const responses = threads.map(({ tenant, id }, at) => ({
    tenant,
    id: `resp_${at}`,
    thread: id,
    messages: 2,
    body: `{"at":${at}}`,
  }))
  for (const response of responses) await kept.keep(response)
  const place = join(folder, 'whole')
  cpSync(live, place, { recursive: true })
  await store.close()
  kept.close()
  expect(statSync(join(place, 'threads.db-wal')).size).toBeGreaterThan(10_000)
  return { place, threads, responses }
}

const SQL = [
  "UPDATE messages SET message = replace(message, 'o', '0')",
  'DELETE FROM messages WHERE rowid IN (SELECT max(rowid) FROM messages)',
  'DELETE FROM messages WHERE thread = 3',
  'DELETE FROM threads WHERE number = 4',
  'PRAGMA foreign_keys=OFF; DELETE FROM threads WHERE number = 4',
  'PRAGMA foreign_keys=OFF; UPDATE messages SET thread = 99 WHERE thread = 5; UPDATE messages SET thread = 5 WHERE thread = 6',
  'UPDATE messages SET place = place + 100 WHERE thread = 2; UPDATE messages SET place = 103 - place WHERE thread = 2 AND place > 99',
  'UPDATE threads SET used = 1 WHERE number < 5',
  "UPDATE threads SET id = 'thread_x', tenant = 'public' WHERE number = 2",
  'UPDATE edits SET fragments = (SELECT fragments FROM edits WHERE thread = 2) WHERE thread = 3',
  'DELETE FROM digests WHERE thread < 4',
  'UPDATE digests SET digest = (SELECT digest FROM digests WHERE thread = 1), sum = (SELECT sum FROM digests WHERE thread = 1) WHERE thread = 2',
  "UPDATE cards SET card = '{}'; DELETE FROM entries WHERE thread = 1 AND place > 0",
  'DELETE FROM events; DELETE FROM edits WHERE thread = 7',
]

type Damager = (path: string, random: Random) => void

const changed = (path: string, change: (bytes: Buffer) => void) => {
  const bytes = readFileSync(path)
  change(bytes)
  writeFileSync(path, bytes)
}
const PAGE = 4096
const pageIn = (path: string, random: Random) => PAGE * random.below(Math.max(1, Math.floor(statSync(path).size / PAGE)))

const DAMAGES: Readonly<Record<string, Damager>> = {
  'bytes flipped': (path, random) => {
    changed(path, (bytes) => {
      for (let left = 1 + random.below(8); left > 0; left--) bytes[random.below(bytes.length)]! ^= 1 << random.below(8)
    })
  },
  'a page zeroed': (path, random) => {
    const at = pageIn(path, random)
    changed(path, (bytes) => bytes.fill(0, at, at + PAGE))
  },
  'cut short': (path, random) => {
    truncateSync(path, random.below(statSync(path).size))
  },
  'cut to nothing': (path) => {
    truncateSync(path, 0)
  },
  'pages swapped': (path, random) => {
    const [a, b] = [pageIn(path, random), pageIn(path, random)]
    changed(path, (bytes) => {
      const first = Buffer.from(bytes.subarray(a, a + PAGE))
      bytes.copyWithin(a, b, b + PAGE)
      first.copy(bytes, b)
    })
  },
  'WAL cut': (path, random) => {
    truncateSync(`${path}-wal`, random.below(statSync(`${path}-wal`).size))
  },
  'WAL flipped': (path, random) => {
    changed(`${path}-wal`, (bytes) => (bytes[random.below(bytes.length)]! ^= 1 << random.below(8)))
  },
  'WAL deleted': (path) => {
    rmSync(`${path}-wal`)
  },
  'WAL deleted, -shm of another': (path) => {
    rmSync(`${path}-wal`)
    writeFileSync(`${path}-shm`, Buffer.alloc(32_768, 0x5a))
  },
  'header overwritten': (path, random) => {
    changed(path, (bytes) => {
      for (let at = 0; at < 100; at++) bytes[at] = random.below(256)
    })
  },
  'first page overwritten': (path) => {
    changed(path, (bytes) => bytes.fill(0x5a, 0, PAGE))
  },
  'manifest flipped': (path, random) => {
    changed(path.replace('.db', '.manifest'), (bytes) => (bytes[random.below(bytes.length)]! ^= 1 << random.below(8)))
  },
  'rows changed through SQL': (path, random) => {
    sqlOn(path, SQL[random.below(SQL.length)]!)
  },
  'file deleted': (path) => {
    rmSync(path)
  },
}

function sqlOn(path: string, sql: string): void {
  const database = new Database(path)
  database.exec(sql)
  database.pragma('journal_mode=DELETE')
  database.close()
}

const json = (value: unknown) => JSON.parse(JSON.stringify(value)) as unknown

/** Opens the store and counts the outcomes of the threads. Throws if one is altered, or is missing without a note. */
async function opened(place: string, { threads, responses }: Whole, context: string): Promise<Record<string, number>> {
  const counts = { whole: 0, named: 0, refused: 0 }
  const lines: string[] = []
  const kept = await openStore({ store: place, retention: 36_500 }, (line) => lines.push(line)).catch((error: unknown) => {
    expect(error, context).toBeInstanceOf(KvfoldError)
    expect((error as KvfoldError).code, context).toMatch(/^store\/(damaged|failed|unusable|newer)$/u)
    if ((error as KvfoldError).code === 'store/damaged')
      expect((error as KvfoldError).message, context).toContain('kvfold store check lists the damaged threads')
    return null
  })
  if (kept === null) return { ...counts, refused: 1 }
  const told = lines.join('\n')
  const { store } = kept
  try {
    const listed = await store.index(() => someCard(0))
    for (const thread of threads) {
      const { tenant, id } = thread
      try {
        // Null would be a 404 for the client.
        expect(store.read(tenant, id), `${context}, ${id}`).toEqual(thread)
        expect(listed.map((each) => each.id)).toContain(id)
        counts.whole++
      } catch (error) {
        if (!(error instanceof KvfoldError)) throw error
        expect(error.code, context).toMatch(/^store\/(damaged|lost)-thread$/u)
        expect(store.damage().map((each) => each.id)).toContain(id)
        expect(told, context).toContain(id)
        counts.named++
      }
    }
    for (const response of responses)
      try {
        expect(await kept.responses.read(response.tenant, response.id), `${context}, ${response.id}`).toEqual(response)
      } catch (error) {
        if (!(error instanceof KvfoldError)) throw error
        expect(error.code, context).toMatch(/^store\/(damaged|lost)-response$/u)
        expect(told, context).toContain(response.id)
      }
  } finally {
    await store.close()
    kept.responses.close()
  }
  return counts
}

/** Returns all threads of a store, as `kvfold store check` and `export` find them. */
function found(place: string): readonly FoundThread[] {
  const check = checkThreads(place)!
  try {
    return [...check.threads()]
  } finally {
    check.close()
  }
}

/** Checks that readable threads are as they were written, that the others are named, and that a copy has exactly the undamaged ones. */
async function copied(place: string, all: Whole, context: string): Promise<Record<string, number>> {
  const counts = { salvaged: 0, cut: 0, lost: 0 }
  // A damaged file that has a WAL stays locked until the process ends.
  const looked = `${place}-looked`
  cpSync(place, looked, { recursive: true })
  const names = new Map(found(looked).map((each) => [each.id, each]))
  rmSync(looked, { recursive: true })
  for (const thread of all.threads) {
    const one = names.get(thread.id)
    expect(one, `${context}, ${thread.id}`).toBeDefined()
    const { record, damage } = one!
    if (damage === null) {
      expect(json(record), `${context}, ${thread.id}`).toEqual(json(thread))
      counts.salvaged++
    } else if (record === null) counts.lost++
    else {
      expect(record.messages, `${context}, ${thread.id}`).toEqual(thread.messages.slice(0, record.messages.length))
      counts.cut++
    }
  }
  const copy = `${place}-copy`
  const { threads, open } = await copyStore(place, copy)
  expect(threads, context).toBe(counts.salvaged)
  expect(new Set(open.filter(({ of }) => of === 'thread').map(({ id }) => id))).toEqual(
    new Set([...names.values()].filter(({ damage }) => damage !== null).map(({ id }) => id)),
  )
  const again = await openStore({ store: copy, retention: 36_500 }, () => undefined)
  try {
    expect(again!.store.damage().filter(({ settled }) => settled !== true)).toEqual([])
    await again!.store.index(() => someCard(0))
    for (const thread of all.threads)
      if (names.get(thread.id)!.damage === null) expect(again!.store.read(thread.tenant, thread.id), context).toEqual(thread)
      else
        expect(() => again!.store.read(thread.tenant, thread.id), context).toThrow(
          /was lost from the store: left out by the copy/u,
        )
    for (const response of all.responses)
      try {
        expect(await again!.responses.read(response.tenant, response.id)).toEqual(response)
      } catch (error) {
        if (!(error instanceof KvfoldError)) throw error
        expect(error.code).toBe('store/lost-response')
      }
  } finally {
    await again!.store.close()
    again!.responses.close()
  }
  rmSync(copy, { recursive: true })
  return counts
}

describe('damaged stores', () => {
  it(`${STORES} of them: each thread is unchanged, or named`, { timeout: LONG ? 1_800_000 : 240_000 }, async (context) => {
    const all = await whole()
    const kinds = Object.entries(DAMAGES)
    const totals: Record<string, number> = {}
    for (let round = 0; round < STORES; round++) {
      const [kind, damage] = kinds[round % kinds.length]!
      const told = `round ${round}: ${kind}`
      // Every third round damages the responses.
      const name = round % 3 === 2 && !kind.includes('SQL') ? 'responses.db' : 'threads.db'
      const [a, b] = [join(folder, `a${round}`), join(folder, `b${round}`)]
      for (const place of [a, b]) cpSync(all.place, place, { recursive: true })
      for (const place of [a, b]) damage(join(place, name), new Random(round, 19))
      for (const [outcome, count] of Object.entries({
        ...(await opened(a, all, told)),
        ...(await copied(b, all, told)),
      }))
        totals[outcome] = (totals[outcome] ?? 0) + count
      for (const place of [a, b]) rmSync(place, { recursive: true })
    }
    await context.annotate(JSON.stringify(totals))
    if (LONG) console.log(JSON.stringify(totals))
    for (const outcome of ['whole', 'named', 'refused', 'salvaged', 'cut', 'lost'])
      expect(totals[outcome], outcome).toBeGreaterThan(0)
  })

  it.each(SQL)('rows changed by another program are noticed: %s', { timeout: 120_000 }, async (sql) => {
    const all = await whole()
    sqlOn(join(all.place, 'threads.db'), sql)
    const counts = await opened(all.place, all, sql)
    // Only cards can be made again from their threads.
    expect(counts['named']).toBeGreaterThan(0)
    expect(counts['whole']! + counts['named']!).toBe(THREADS)
  })

  it('an undamaged one gets no note', async () => {
    const all = await whole()
    const place = join(folder, 'copy')
    cpSync(all.place, place, { recursive: true })
    const check = checkThreads(place)!
    expect(check).toMatchObject({ file: null, unreadable: 0 })
    expect([...check.threads()].filter(({ damage }) => damage !== null)).toEqual([])
    check.close()
    expect(await opened(place, all, 'whole')).toEqual({ whole: THREADS, named: 0, refused: 0 })
    expect((await kvfold(['store', 'check', '--store', place, '--json'])).code).toBe(0)
  })
})

describe('kvfold store, as a person runs it', () => {
  interface Checked {
    readonly damaged: boolean
    readonly threads: { readonly whole: number; readonly damaged: readonly { readonly id: string; readonly what: string }[] }
    readonly leftOutBefore: number
  }
  const KINDS = ['bytes flipped', 'cut short', 'WAL deleted'] as const

  const run = async (...words: readonly string[]) => {
    const outcome = await kvfold(['store', ...words])
    // The output never has a stack, whatever the file holds.
    expect(outcome.stderr, words.join(' ')).not.toMatch(/^ {4}at |node:internal/mu)
    return outcome
  }

  it.each(LONG ? Object.keys(DAMAGES) : KINDS)(
    '%s: check names it, export writes the rest, copy makes a good store',
    async (kind) => {
      const all = await whole()
      const place = join(folder, 'cli')
      const by = new Map(all.threads.map((thread) => [thread.id, thread]))
      let round = 0
      let check = { code: 0 as number | null, stdout: '', stderr: '' }
      // A flipped bit may be in unused space, and the WAL may still have the overwritten page.
      for (; round < 6 && check.code === 0; round++) {
        rmSync(place, { recursive: true, force: true })
        cpSync(all.place, place, { recursive: true })
        DAMAGES[kind]!(join(place, 'threads.db'), new Random(round, 19))
        check = await run('check', '--json', '--store', place)
      }
      const found = JSON.parse(check.stdout) as Checked
      if (check.code === 0) {
        expect(found).toMatchObject({ damaged: false, threads: { whole: THREADS, damaged: [] } })
        return
      }
      expect(check.code, check.stderr).toBe(1)
      expect(check.stderr).toContain('kvfold store copy')
      expect(found.damaged).toBe(true)

      const exported = await run('export', '--store', place)
      expect(exported.code, exported.stderr).toBe(0)
      const { exported: form } = await import('../../../src/runtime/server/threads/thread-api.js')
      const lines = exported.stdout.trim().split('\n')
      const read = lines.map((line) => JSON.parse(line) as { id: string; messages?: unknown[]; damage: { what: string } | null })
      const named = new Set(found.threads.damaged.map(({ id }) => id))
      expect(new Set(read.filter(({ damage }) => damage !== null).map(({ id }) => id))).toEqual(named)
      for (const { id } of all.threads) expect(read.some((line) => line.id === id)).toBe(true)
      for (const { id, messages, damage } of read) {
        const thread = by.get(id)
        if (thread === undefined) continue
        const written = (json(form(thread)) as { readonly messages: unknown[] }).messages
        if (damage === null) expect(messages).toEqual(written)
        else if (messages !== undefined) expect(messages).toEqual(written.slice(0, messages.length))
      }

      const copy = join(folder, 'copy')
      const copied = await run('copy', place, copy)
      expect(copied.code, copied.stderr).toBe(0)
      for (const id of named) expect(copied.stdout).toContain(id)
      const again = await run('check', '--json', '--store', copy)
      expect(again.code, again.stdout + again.stderr).toBe(0)
      const after = JSON.parse(again.stdout) as Checked
      expect(after).toMatchObject({ damaged: false, threads: { damaged: [] } })
      expect(after.threads.whole).toBe(found.threads.whole)
      expect(after.threads.whole + after.leftOutBefore).toBeGreaterThanOrEqual(THREADS)
    },
    240_000,
  )
})

describe('real servers', () => {
  it(
    `started on ${SERVERS} damaged stores answer with the thread or say what happened to it`,
    { timeout: SERVERS * 120_000 },
    async () => {
      const all = await whole()
      for (let round = 0; round < SERVERS; round++) {
        const place = join(folder, `server${round}`)
        cpSync(all.place, place, { recursive: true })
        if (round % 2 === 0) rmSync(join(place, 'threads.db-wal'))
        else sqlOn(join(place, 'threads.db'), SQL[(round * 5) % SQL.length]!)
        const child = spawn(process.execPath, [...KVFOLD, 'serve', '--store', place, '--port', '0', '--retention', '36500'], {
          cwd: join(import.meta.dirname, '../../..'),
        })
        let [out, notes] = ['', '']
        child.stdout.setEncoding('utf8').on('data', (text: string) => (out += text))
        child.stderr.setEncoding('utf8').on('data', (text: string) => (notes += text))
        try {
          for (let left = 600; left > 0 && !out.includes('http://') && child.exitCode === null; left--) await sleep(100)
          const [url] = /http:\/\/[\d.:]+/u.exec(out) ?? []
          expect(url, notes).toBeDefined()
          const seen = { whole: 0, told: 0 }
          for (const thread of all.threads.filter(({ tenant }) => tenant === 'public')) {
            const response = await fetch(`${url}/kvfold/threads/${thread.id}/export`)
            const body = (await response.json()) as { readonly messages: unknown; readonly error: { readonly code: string } }
            if (response.status === 200) {
              const { exported } = await import('../../../src/runtime/server/threads/thread-api.js')
              expect(body.messages).toEqual(json(exported(thread).messages))
              seen.whole++
              continue
            }
            expect([500, 410]).toContain(response.status)
            expect(JSON.stringify(body)).toMatch(/store\/(damaged|lost)-thread/u)
            expect(notes).toContain(thread.id)
            seen.told++
          }
          expect(seen.told).toBeGreaterThan(0)
          expect(seen.whole).toBeGreaterThan(0)
          const { damaged } = (await (await fetch(`${url}/kvfold/threads`)).json()) as { readonly damaged: readonly unknown[] }
          expect(damaged).toHaveLength(seen.told)
          // The count is over all tenants.
          const health = (await (await fetch(`${url}/health`)).json()) as { readonly damaged: { readonly threads: number } }
          expect(health.damaged.threads).toBeGreaterThanOrEqual(seen.told)
        } finally {
          child.kill('SIGTERM')
          await once(child, 'close')
        }
      }
    },
  )
})
