/**
 * Tests that a kill at any time loses nothing acknowledged: a process over the real service, engine and store is killed again and again.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { cpSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import Database from 'libsql'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { Random } from '../../../src/runtime/core/random.js'
import { exported, type ExportedThread } from '../../../src/runtime/server/threads/thread-api.js'
import { SqliteStore } from '../../../src/runtime/store/sqlite-store.js'
import type { Said } from './support/talker.js'
import { allIn } from './support/threads.js'
import { LONG } from '../../support/long.js'

const ROUNDS = LONG ? 50 : 1

let folder: string

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-killed-'))
})
afterEach(() => {
  rmSync(folder, { recursive: true })
})

/** Returns the lines of a process that is killed `patience` milliseconds after its first line of this kind. */
async function killedAfter(first: Said['say'], patience: number, seed: number): Promise<Said[]> {
  const child = spawn(process.execPath, ['--import', 'tsx', join(import.meta.dirname, 'support/talker.ts'), folder, String(seed)])
  let said = ''
  let errors = ''
  child.stdout.setEncoding('utf8').on('data', (text: string) => (said += text))
  child.stderr.setEncoding('utf8').on('data', (text: string) => (errors += text))
  const closed = once(child, 'close')
  while (!said.includes(`"say":"${first}"`))
    if ((await Promise.race([once(child.stdout, 'data'), closed.then(() => null)])) === null) break
  await Promise.race([sleep(patience), closed])
  child.kill('SIGKILL')
  await closed
  expect(child.signalCode, errors).toBe('SIGKILL')
  // The last line may be incomplete.
  return said
    .slice(0, said.lastIndexOf('\n'))
    .split('\n')
    .map((line) => JSON.parse(line) as Said)
}

/** Returns all threads by id, once both SQLite and the store have found the file undamaged. */
async function stored(): Promise<ReadonlyMap<string, ExportedThread>> {
  const copy = mkdtempSync(join(tmpdir(), 'kvfold-killed-copy-'))
  cpSync(folder, copy, { recursive: true })
  const database = new Database(join(copy, 'threads.db'))
  expect(database.pragma('integrity_check')).toEqual([{ integrity_check: 'ok' }])
  database.close()
  rmSync(copy, { recursive: true })
  const store = SqliteStore.open({ folder })
  const threads = await allIn(store)
  await store.close()
  return new Map(threads.map((thread) => [thread.id, json(exported(thread))]))
}

const json = <T>(value: T): T => JSON.parse(JSON.stringify(value)) as T

const statesOf = ({ edits }: ExportedThread) => new Map(edits.fragments.map(({ id, state }) => [id as string, state.kind]))

describe('a server that is killed', () => {
  it(
    `keeps every acknowledged message, answer, fold and deletion (${ROUNDS} times)`,
    { timeout: ROUNDS * 40_000 },
    async (context) => {
      const random = new Random(7)
      let before: ReadonlyMap<string, ExportedThread> = new Map()
      const acknowledged: Record<string, number> = {}
      const cut: Record<string, number> = {}
      for (let round = 0; round < ROUNDS; round++) {
        // Every fifth kill comes while the store is opened and read, the others during conversations.
        const said = await killedAfter(round % 5 === 4 ? 'begin' : 'ack', random.below(2500), 1000 * round)
        const after = await stored()
        const acks = new Map<string, ExportedThread | null>()
        /** The operations in progress, by talker. */
        const tries = new Map<string, { readonly thread: string | null; readonly what: string }>()
        for (const each of said) {
          if (each.say === 'begin') continue
          if (each.say === 'try') {
            tries.set(each.talker, each)
            continue
          }
          acks.set(each.thread, each.is)
          acknowledged[each.what] = (acknowledged[each.what] ?? 0) + 1
          // A message is acknowledged before its answer, which is still to come.
          if (each.what === 'message') tries.set(each.talker, { thread: each.thread, what: 'answer' })
          else tries.delete(each.talker)
        }
        for (const { what } of tries.values()) {
          const [kind = ''] = what.split(' ')
          cut[kind] = (cut[kind] ?? 0) + 1
        }
        for (const [id, was] of new Map([...before, ...acks])) {
          const trying = [...tries.values()].find(({ thread }) => thread === id)?.what ?? ''
          const is = after.get(id)
          if (was === null) {
            expect(is).toBeUndefined()
            continue
          }
          if (is === undefined) {
            expect(trying).toBe('delete')
            continue
          }
          expect(is.messages.slice(0, was.messages.length)).toEqual(was.messages)
          expect(is.ledger.slice(0, was.ledger.length)).toEqual(was.ledger)
          expect(is.edits.ids).toBeGreaterThanOrEqual(was.edits.ids)
          for (const [fragment, state] of statesOf(was))
            if (!trying.endsWith(fragment)) expect(statesOf(is).get(fragment)).toBe(state)
          if (trying === '') expect(is).toEqual(was)
        }
        before = after
      }
      const told = `${ROUNDS} kills, ${before.size} threads; acknowledged ${JSON.stringify(acknowledged)}, cut off ${JSON.stringify(cut)}`
      await context.annotate(told)
      for (const what of ['message', 'answer', 'fold']) expect(acknowledged[what], told).toBeGreaterThan(0)
      expect(Object.values(cut).length, told).toBeGreaterThan(0)
      if (LONG) console.log(told)
    },
  )
})
