/** Tests that the WAL never holds more than the latest changes, so that losing it does not lose everything. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { SqliteStore } from '../../../src/runtime/store/sqlite-store.js'
import { someCard, someThread } from './support/threads.js'

const MIB = 2 ** 20

let folder: string
let path: string

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-wal-'))
  path = join(folder, 'threads.db')
})
afterEach(() => {
  rmSync(folder, { recursive: true })
})

const sizeOf = (file: string) => (existsSync(file) ? statSync(file).size : 0)
const long = (at: number) => ({ message: { role: 'user', content: `${at} `.repeat(5000) }, seen: 'same' }) as const

it('stays short during many writes and reads, and is empty a moment after the last change', async () => {
  const store = SqliteStore.open({ folder })
  const thread = someThread(1)
  await store.create(thread, someCard(1))
  expect(sizeOf(path)).toBeGreaterThan(4096)
  let most = 0
  for (let at = 0; at < 400; at++) {
    await store.update(thread.tenant, thread.id, { messages: [long(at)], card: someCard(at) })
    if (at % 40 === 0) expect(store.read(thread.tenant, thread.id)?.messages).toHaveLength(thread.messages.length + at + 1)
    most = Math.max(most, sizeOf(`${path}-wal`))
  }
  expect(sizeOf(path)).toBeGreaterThan(4 * MIB)
  // The WAL may have a mebibyte, and the change that exceeds it.
  expect(most).toBeLessThan(1.25 * MIB)
  expect(most).toBeGreaterThan(0)
  await vi.waitFor(
    () => {
      expect(sizeOf(`${path}-wal`)).toBe(0)
    },
    { timeout: 5000 },
  )
  await store.close()
})

it('of a killed server can be deleted: the threads in it are named, and all others are unchanged', async () => {
  const source = new URL('../../../src/runtime/store/sqlite-store.ts', import.meta.url).href
  const threads = new URL('./support/threads.ts', import.meta.url).href
  const script = `import { SqliteStore } from ${JSON.stringify(source)}
    import { someCard, someThread } from ${JSON.stringify(threads)}
    import { statSync } from 'node:fs'
    const store = SqliteStore.open({ folder: ${JSON.stringify(folder)} })
    let [written, since] = [0, 0]
    for (let seed = 0; ; seed++) {
      await store.create(someThread(seed), someCard(seed))
      console.log(seed)
      // Since the file itself changed: what the WAL alone has.
      const at = statSync(${JSON.stringify(path)}).mtimeMs
      since = at === written ? since + 1 : 0
      written = at
      if (seed > 210 && since > 3) process.kill(process.pid, 'SIGKILL')
    }`
  const child = spawn(process.execPath, ['--import', 'tsx', '--input-type=module', '-e', script])
  let said = ''
  child.stdout.setEncoding('utf8').on('data', (text: string) => (said += text))
  await once(child, 'close')
  const acknowledged = said.slice(0, said.lastIndexOf('\n')).split('\n').length
  expect(sizeOf(`${path}-wal`)).toBeGreaterThan(0)
  rmSync(`${path}-wal`)
  const store = SqliteStore.open({ folder })
  const lost = new Set(store.damage().map(({ id }) => id))
  let whole = 0
  for (let seed = 0; seed < acknowledged; seed++) {
    const thread = someThread(seed)
    if (lost.has(thread.id)) continue
    expect(store.read(thread.tenant, thread.id)).toEqual(thread)
    whole++
  }
  expect(whole).toBeGreaterThan(0)
  expect(lost.size).toBeGreaterThan(0)
  await store.close()
})
