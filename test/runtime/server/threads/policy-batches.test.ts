/** Tests that one step pays for all folds that a policy makes at once: the tokens computed with batches and without. */
import { describe, expect, it } from 'vitest'
import type { ChatMessage, ToolDefinition } from '../../../../src/runtime/chat/message.js'
import { builtinModel } from '../../../../src/runtime/cli/builtin.js'
import { LlamaEngine } from '../../../../src/runtime/engine/llama.js'
import { openNative } from '../../../../src/runtime/native/binding.js'
import type { FoldPolicy } from '../../../../src/runtime/server/threads/policies.js'
import { ThreadService } from '../../../../src/runtime/server/service.js'
import { TEST_GPU } from '../../../support/device.js'

const read: ToolDefinition = { name: 'read', description: 'Reads.', parameters: { type: 'object', properties: {} } }

/** Reads twenty pages, one a request, under this policy. Returns how many folds were made in how many steps, and all tokens computed. */
async function reading(policy: FoldPolicy) {
  const engine = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), {
    ...{ threads: 1, batchThreads: 1, cells: 2048, hostBytes: 0 },
  })
  const service = await ThreadService.open({ models: [{ name: 'm', slots: 1, load: () => Promise.resolve(engine) }] })
  const messages: ChatMessage[] = [{ role: 'user', content: 'Read them all.' }]
  const sum = { steps: 0, folds: 0, computed: 0 }
  for (let at = 0; at < 20; at++) {
    messages.push(
      { role: 'assistant', content: '', toolCalls: [{ id: `c${at}`, name: 'read', arguments: { at } }] },
      {
        role: 'tool',
        content: `Page ${at}. ${'Some words that fill the page, one after another. '.repeat(6)}`,
        toolCallId: `c${at}`,
      },
    )
    const before = engine.submitted
    const asked = service.ask({
      ...{ tenant: 't', messages: [...messages], tools: [read], toolChoice: 'none', acm: 'auto-policy', maxTokens: 2 },
      ...{ policy: { olderThanTurns: 1, ...policy }, contract: 'exact', expectedReuse: 1000 },
    })
    let folds = 0
    for await (const event of asked) if (event.type === 'policy') folds += event.folded.length
    await asked.answer
    sum.computed += engine.submitted - before
    sum.folds += folds
    if (folds > 0) sum.steps++
  }
  await service.close(0)
  return sum
}

describe('folds of a policy', () => {
  it('come in batches, and one step pays for a batch', async () => {
    const single = await reading({ threshold: 0.5, target: 0.5 })
    const batched = await reading({ threshold: 0.5, target: 0.2 })
    expect(batched.folds).toBe(single.folds)
    expect(batched.steps).toBeLessThan(single.steps)
    expect(batched.computed).toBeLessThan(0.7 * single.computed)
  })
})
