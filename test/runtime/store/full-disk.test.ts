/**
 * Tests a server whose disk is full, or whose store is removed: it says so, keeps no partial change, and continues by itself when it can.
 */
import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, renameSync, rmSync, statfsSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { serverProcess, type ServerProcess } from '../server/support/process.js'
import { tinyModel } from '../../support/models.js'

const MIB = 2 ** 20

let folder: string
let disk: string
let server: ServerProcess | null = null

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-disk-'))
  disk = join(folder, 'disk')
  mkdirSync(disk)
})
afterEach(async () => {
  await server?.kill()
  server = null
  spawnSync('umount', [disk])
  rmSync(folder, { recursive: true })
})

/** Mounts a disk of 4 MiB at `disk`. Returns null, or why it cannot. */
function mounted(): string | null {
  const { status, stderr } = spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=4m', 'tmpfs', disk], { encoding: 'utf8' })
  return status === 0 ? null : `a small disk cannot be made here: ${stderr.trim()}`
}

async function start() {
  server = await serverProcess(['--model', await tinyModel(), '--trial', 'off', '--store', join(disk, 'store')])
  const { url } = server
  const json = async (path: string, body?: object) => {
    const headers = { 'content-type': 'application/json' }
    const response = await fetch(url + path, body === undefined ? {} : { method: 'POST', headers, body: JSON.stringify(body) })
    return { status: response.status, body: (await response.json()) as Record<string, unknown> }
  }
  return {
    ask: (content: string) => json('/v1/chat/completions', { messages: [{ role: 'user', content }], max_tokens: 2 }),
    respond: (input: string) => json('/v1/responses', { input, max_output_tokens: 16 }),
    health: () => json('/health'),
    threads: async () => ((await json('/kvfold/threads')).body['threads'] as unknown[]).length,
  }
}

const refused = (code: string, words: string) => ({
  status: 507,
  body: { error: { code, message: expect.stringContaining(words) as string } },
})
const unavailable = (words: string) => ({
  status: 503,
  body: { status: 'unavailable', problems: [expect.stringContaining(words) as string] },
})
const READY = { status: 200, body: { status: 'ok' } }

describe('on a full disk', () => {
  it('requests get 507, health reports it, and with room again the server continues', { timeout: 120_000 }, async (context) => {
    const missing = mounted()
    if (missing !== null) {
      context.skip(missing)
      return
    }
    const { ask, respond, health, threads } = await start()
    expect((await ask('One?')).status).toBe(200)
    expect(await health()).toMatchObject(READY)
    const { bavail, bsize } = statfsSync(disk)
    writeFileSync(join(disk, 'ballast'), Buffer.alloc(bavail * bsize))
    // Health reports it before any request.
    expect(await health()).toMatchObject(unavailable('make room'))
    for (let at = 0; at < 5; at++)
      expect(await ask(`More ${at}?`)).toMatchObject(refused('store/full', 'free some space and try again'))
    expect(await respond('And?')).toMatchObject(refused('store/full', 'free some space and try again'))
    expect(await threads()).toBe(1)
    expect(await health()).toMatchObject(unavailable('make room'))
    rmSync(join(disk, 'ballast'))
    await expect.poll(health, { timeout: 10_000 }).toMatchObject(READY)
    expect((await ask('Two?')).status).toBe(200)
    expect(await threads()).toBe(2)
  })
})

describe('a store that is removed', () => {
  it.each(['moved', 'deleted', 'replaced'] as const)('is reported when it was %s', { timeout: 120_000 }, async (how) => {
    const { ask, health, threads } = await start()
    expect((await ask('One?')).status).toBe(200)
    const [store, elsewhere] = [join(disk, 'store'), join(disk, 'elsewhere')]
    if (how === 'moved') renameSync(store, elsewhere)
    else rmSync(store, { recursive: true })
    if (how === 'replaced') {
      mkdirSync(store)
      writeFileSync(join(store, 'threads.db'), Buffer.alloc(MIB))
    }
    expect(await health()).toMatchObject(unavailable('put it back'))
    for (let at = 0; at < 3; at++)
      expect(await ask(`More ${at}?`)).toMatchObject(refused('store/gone', 'was moved, deleted or replaced'))
    expect(await threads()).toBe(1)
    if (how !== 'moved') return
    renameSync(elsewhere, store)
    expect(await health()).toMatchObject(READY)
    expect((await ask('Two?')).status).toBe(200)
    expect(await threads()).toBe(2)
  })
})
