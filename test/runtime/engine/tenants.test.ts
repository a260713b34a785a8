/** Tests that cells of one tenant are never used for another, as the addon counts it; within a tenant they are. */
import { chmodSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { SECRET_FILE } from '../../../src/runtime/engine/cache-secret.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { TEST_GPU } from '../../support/device.js'
import { mambaModel, tinyModel } from '../../support/models.js'
import { runScript } from '../native/support/fixture.js'

const messages: ChatMessage[] = [
  { role: 'system', content: 'You are brief. '.repeat(10) },
  { role: 'user', content: 'Begin here. '.repeat(60) },
]
const options = { cells: 4096, sequences: 8, threads: 1, batchThreads: 1 } as const

describe.each([
  ['cells', tinyModel],
  ['states that can only be extended', mambaModel],
])('tenants on a model with %s', (_, model) => {
  let engine: LlamaEngine

  beforeAll(async () => {
    engine = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), await model(), { ...options, hostBytes: 1e8 })
  })

  afterAll(() => engine.dispose())

  /** Returns how many tokens the addon was given for one step. */
  async function submitted(conversation: string, tenant?: string): Promise<number> {
    const before = engine.submitted
    await engine.respond({
      conversation: conversationId(conversation),
      messages,
      maxTokens: 1,
      ...(tenant === undefined ? {} : { tenant }),
    }).reply
    return engine.submitted - before
  }

  it('computes the same prompt once for each tenant', async () => {
    const whole = await submitted('anna 1', 'anna')
    expect(whole).toBeGreaterThan(100)
    const again = await submitted('anna 2', 'anna')
    expect(again).toBeLessThan(20)
    expect(await submitted('bert 1', 'bert')).toBe(whole)
    expect(await submitted('bert 2', 'bert')).toBe(again)
    // Requests without a tenant count as a tenant of their own.
    expect(await submitted('nobody 1')).toBe(whole)
    expect(await submitted('nobody 2')).toBe(again)
    await engine.check('full')
  })

  it("does not let a tenant continue another's conversation", async () => {
    await submitted('mine', 'anna')
    await expect(submitted('mine', 'bert')).rejects.toMatchObject({ code: 'engine/bad-request' })
    expect(await submitted('mine', 'anna')).toBeLessThan(20)
  })
})

describe('a refresh', () => {
  it("makes a tenant's spliced conversation exact for that tenant", async () => {
    const engine = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), await tinyModel(), {
      ...options,
      ubatch: 64,
      batch: 64,
    })
    const conversation = conversationId('spliced')
    const request = { conversation, messages, tenant: 'anna', contract: 'splice', maxTokens: 1 } as const
    await engine.respond(request).reply
    const at = engine.snap(messages, [], 1, { start: 12, end: 120 })
    const edits = [{ message: 1, span: at, replacement: '[...]' }]
    expect((await engine.respond({ ...request, edits }).reply).ledger.approximate).toBeGreaterThan(0)
    const { exact, ledger } = await engine.refresh(conversation)
    expect(exact).toBe(true)
    expect(ledger.length).toBeGreaterThan(1)
    const { ledger: after } = await engine.respond({ ...request, edits, contract: 'exact' }).reply
    expect([after.approximate, after.recomputed]).toEqual([0, 0])
    await engine.check('full')
    await engine.dispose()
  })
})

/** A process that answers one prompt for one tenant with a disk cache, and prints the tokens it computed and its notes. */
const answering = (model: string, folder: string, tenant: string): string => `
import { conversationId } from 'kvfold/core/ids'
import { LlamaEngine } from 'kvfold/engine/llama'
import { openNative } from 'kvfold/native/binding'

const engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), ${JSON.stringify(model)}, {
  ...${JSON.stringify(options)}, hostBytes: 1e8, disk: { folder: ${JSON.stringify(folder)}, bytes: 1e9 },
})
const { refused } = engine.cacheTotals.tiers
const { ledger } = await engine.respond({
  conversation: conversationId('of ' + process.pid),
  messages: [{ role: 'user', content: 'Begin here. '.repeat(60) }],
  maxTokens: 1,
  tenant: ${JSON.stringify(tenant)},
}).reply
await engine.dispose()
console.log(JSON.stringify({ submitted: ledger.submitted, disk: ledger.tiers.disk, refused, notes: engine.notes }))
`

describe.each([
  ['cells', tinyModel],
  ['states', mambaModel],
])('%s on disk', (_, model) => {
  it("are found by the same tenant's next process only, and by none once the secret was open to others", async () => {
    const folder = mkdtempSync(join(tmpdir(), 'kvfold-tenants-'))
    const path = await model()
    const run = async (tenant: string) => {
      const { stdout, stderr, code } = await runScript(answering(path, folder, tenant))
      expect(code, stderr).toBe(0)
      return JSON.parse(stdout) as { submitted: number; disk: number; refused: number; notes: readonly string[] }
    }
    const first = await run('anna')
    expect(first).toMatchObject({ disk: 0, refused: 0 })
    expect(first.submitted).toBeGreaterThan(100)
    const again = await run('anna')
    expect(again.disk).toBeGreaterThan(100)
    expect(again.submitted).toBeLessThan(20)
    expect(await run('bert')).toEqual(first)
    chmodSync(join(folder, SECRET_FILE), 0o644)
    const after = await run('anna')
    expect(after).toMatchObject({ submitted: first.submitted, disk: 0 })
    expect(after.refused).toBeGreaterThan(0)
    expect(after.notes.join()).toMatch(/open to others/)
    rmSync(folder, { recursive: true })
  })
})
