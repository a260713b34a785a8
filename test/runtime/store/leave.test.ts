import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { ThreadService } from '../../../src/runtime/server/service.js'
import { SqliteStore } from '../../../src/runtime/store/sqlite-store.js'

it('cells on the device when the server ends are reloaded from the disk tier', { timeout: 120_000 }, async () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvfold-leave-'))
  const open = async () => {
    const store = SqliteStore.open({ folder })
    const load = async () =>
      LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), {
        threads: 1,
        batchThreads: 1,
        slots: 2,
        disk: { folder: join(folder, 'cache'), bytes: 2 ** 28 },
      })
    return ThreadService.open({ store, models: [{ name: 'builtin', slots: 2, load }] })
  }
  const message = { role: 'user', content: 'hello '.repeat(500) } as const
  let service = await open()
  const first = await service.ask({ tenant: 't', messages: [message], tools: [], toolChoice: 'auto', maxTokens: 8 }).answer
  await service.close()
  service = await open()
  const again = await service.ask({
    tenant: 't',
    messages: [message, first.message, { role: 'user', content: 'And?' }],
    tools: [],
    toolChoice: 'auto',
    maxTokens: 8,
  }).answer
  expect(again.ledger[0]!.tiers.disk).toBeGreaterThan(0.9 * first.ledger[0]!.shown)
  await service.close()
  rmSync(folder, { recursive: true })
})
