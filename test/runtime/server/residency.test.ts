/**
 * Tests the reported residency of hidden text against the cells that a step finds when the text is shown again; on the real service, engine
 * and tiers.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { LlamaEngine, type LlamaEngineOptions } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { ThreadDetail } from '../../../src/runtime/dashboard/wire.js'
import { Server } from '../../../src/runtime/server/app.js'
import type { Answer, Ask } from '../../../src/runtime/server/ask.js'
import { ThreadService } from '../../../src/runtime/server/service.js'
import { SqliteStore } from '../../../src/runtime/store/sqlite-store.js'
import { TEST_GPU } from '../../support/device.js'

const TENANT = 'public'
const user = (content: string): ChatMessage => ({ role: 'user', content })
const notes = Array.from({ length: 40 }, (_, at) => `Line ${at}: the value of key ${at % 17} is ${at * 7}.`).join('\n')

let folder: string
let service: ThreadService
let engine: LlamaEngine

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-cells-'))
})
afterEach(async () => {
  await service.close()
  rmSync(folder, { recursive: true })
})

/** Opens a service whose cache has room for about one of these threads. */
async function open(options: LlamaEngineOptions): Promise<void> {
  const load = async () =>
    (engine = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), {
      ...{ threads: 1, batchThreads: 1, slots: 2, cells: 2048, contract: 'splice', ...options },
    }))
  service = await ThreadService.open({ store: SqliteStore.open({ folder }), models: [{ name: 'builtin', slots: 2, load }] })
}

const ask = (messages: readonly ChatMessage[], more: Partial<Ask> = {}): Promise<Answer> =>
  service.ask({ tenant: TENANT, messages, tools: [], toolChoice: 'auto', maxTokens: 8, ...more }).answer

/** Makes a thread with two fragments, one of them folded. */
async function talk() {
  const first = await ask([user(`${notes}\nWhat is the value of key 3?`)])
  const cut = { startMarker: 'Line 5:', endMarker: 'Line 35:', numFragments: 2 }
  const [fragment, open] = await service.threads.fragment(TENANT, first.thread, cut)
  await service.threads.fold(TENANT, first.thread, fragment!.id)
  const cells = () => {
    const [hidden, shown] = service.threads.get(TENANT, first.thread).all[0]!.fragments
    expect([hidden!.id, shown!.id, shown!.cells]).toEqual([fragment!.id, open!.id, undefined])
    return hidden!.cells
  }
  return { thread: first.thread, fragment: fragment!.id, cells }
}

const goOn = (thread: string) => ask([user('And of key 4?')], { thread, appended: true })
const nowhere = { live: 0, parked: 0, host: 0, disk: 0, gone: 0 }

/** Fills the cache for another tenant, until no cell of the thread is left in it. */
async function crowd(): Promise<void> {
  for (let at = 0; at < 3; at++)
    await ask([user(`Somebody else writes ${at} ${'quite other words. '.repeat(110)}`)], { tenant: 'other' })
}

describe('a fold that forgets', () => {
  it('has dropped the cells when it is answered, including parked ones, and the next step is exact', async () => {
    await open({ hostBytes: 2 ** 26 })
    const { thread, fragment } = await talk()
    await goOn(thread)
    const { parked, used } = engine.cacheTotals
    expect(parked).toBeGreaterThan(100)
    const forget = (contract?: 'splice') =>
      service.threads.fold(TENANT, thread, fragment, { forget: true, ...(contract === undefined ? {} : { contract }) })
    await expect(forget('splice')).rejects.toMatchObject({ code: 'tool/bad-arguments' })
    expect((await forget()).state).toEqual({ kind: 'folded', forget: true })
    expect(engine.cacheTotals).toMatchObject({ parked: 0, versions: 0 })
    expect(engine.cacheTotals.used).toBeLessThan(used - parked)
    await goOn(thread)
    expect(service.threads.get(TENANT, thread).ledger.at(-1)).toMatchObject({ contract: 'exact', approximate: 0 })
  })

  it('leaves the thread as it was when the engine fails, and can be tried again', async () => {
    await open({ hostBytes: 0 })
    const { thread, fragment } = await talk()
    const before = service.threads.export(TENANT, thread)
    const forget = () => service.threads.fold(TENANT, thread, fragment, { forget: true })
    vi.spyOn(engine, 'forgetHidden').mockRejectedValueOnce(new Error('The disk is gone.'))
    await expect(forget()).rejects.toThrow('The disk is gone.')
    expect(service.threads.export(TENANT, thread)).toEqual(before)
    expect((await forget()).state).toEqual({ kind: 'folded', forget: true })
  })
})

describe('the cells of a folded fragment', () => {
  it('are live until a step carries out the fold, then parked, then in host memory; a restore finds them there', async () => {
    await open({ hostBytes: 2 ** 26 })
    const { thread, fragment, cells } = await talk()
    const { tokens } = cells()!
    expect(tokens).toBeGreaterThan(100)
    expect(cells()).toEqual({ tokens, ...nowhere, live: tokens })
    await goOn(thread)
    expect(cells()).toEqual({ tokens, ...nowhere, parked: tokens })
    await crowd()
    expect(cells()).toEqual({ tokens, ...nowhere, host: tokens })
    await service.threads.restore(TENANT, thread, fragment)
    expect(cells()).toBeUndefined()
    const { ledger } = await goOn(thread)
    expect(ledger[0]!.tiers.host).toBeGreaterThanOrEqual(tokens)
    await engine.check('full')
  })

  it('are found behind a long message, which the model sees with a note of its size', async () => {
    await open({ hostBytes: 2 ** 26, cells: 4096 })
    const { thread } = await ask([user(`${'A long letter. '.repeat(140)}\nWell?`)], { acm: 'tools' })
    const more = (message: string) => ask([user(message)], { thread, appended: true, acm: 'tools' })
    await more(`${notes.slice(0, 1200)}\nWhat is the value of key 3?`)
    const cut = { startMarker: 'Line 5:', endMarker: 'Line 20:', numFragments: 1 }
    const [fragment] = await service.threads.fragment(TENANT, thread, cut)
    await service.threads.fold(TENANT, thread, fragment!.id)
    await more('And of key 4?')
    const hidden = service.threads.get(TENANT, thread).all.flatMap(({ fragments }) => fragments)[0]!
    expect(hidden.cells).toEqual({ ...nowhere, tokens: hidden.cells!.tokens, parked: hidden.cells!.tokens })
  })

  it('are gone if there are no tiers, and recomputed', async () => {
    await open({ hostBytes: 0 })
    const { thread, fragment, cells } = await talk()
    await goOn(thread)
    const { tokens } = cells()!
    await crowd()
    expect(cells()).toEqual({ tokens, ...nowhere, gone: tokens })
    await service.threads.restore(TENANT, thread, fragment)
    const { ledger } = await goOn(thread)
    expect(ledger[0]!.recomputed + ledger[0]!.fresh).toBeGreaterThanOrEqual(tokens)
  })

  it('are on disk after a restart, once the model is loaded', async () => {
    const disk = { folder: join(folder, 'cache'), bytes: 2 ** 28 }
    await open({ hostBytes: 2 ** 26, disk })
    const { thread, cells } = await talk()
    await goOn(thread)
    const { tokens } = cells()!
    await service.close()
    await open({ hostBytes: 2 ** 26, disk })
    expect(cells()).toBeUndefined()
    await service.tokenize(undefined, '')
    expect(cells()).toEqual({ tokens, ...nowhere, disk: tokens })
  })
})

it('GET /kvfold/threads/:id has the residency and the events of policies; the OpenAPI document explains both', async () => {
  await open({ hostBytes: 0 })
  const { thread } = await talk()
  const server = await Server.create({ service, version: 'test' })
  const url = await server.listen({ host: '127.0.0.1', port: 0 })
  const get = async (path: string): Promise<unknown> => (await fetch(`${url}${path}`)).json()
  const view = (await get(`/kvfold/threads/${thread}`)) as ThreadDetail
  const [hidden, shown] = view.messages[0]!.fragments
  expect(hidden!.cells).toEqual({ ...nowhere, tokens: hidden!.cells!.tokens, live: hidden!.cells!.tokens })
  expect(shown!.cells).toBeUndefined()
  expect(view.events.map(({ kind, what }) => [kind, what])).toEqual([
    ['edit', 'cut'],
    ['edit', 'folded'],
  ])
  const document = (await get('/openapi.json')) as { readonly paths: Readonly<Record<string, object>> }
  const path = JSON.stringify(document.paths['/kvfold/threads/{id}'])
  for (const name of [...Object.keys(hidden!.cells!), 'events', 'after', 'folded', 'what', 'saves', 'reason'])
    expect(path).toContain(`"${name}":`)
  await server.close()
})
