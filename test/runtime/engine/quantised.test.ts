/** A cache of quantised keys and values: a fold computes its marker, a restore nothing, and what is predicted is what a fresh prefill into such a cache predicts. */
import { afterEach, describe, expect, it } from 'vitest'
import { conversationId, type ConversationId } from '../../../src/runtime/core/ids.js'
import { LlamaEngine, type Completion } from '../../../src/runtime/engine/llama.js'
import type { StepContract } from '../../../src/runtime/kv/plan/parts.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { TEST_GPU } from '../../support/device.js'
import { tinyModel } from '../../support/models.js'
import { boundOnDevice } from '../../support/noise.js'
import { firstPrediction, largestDifference } from '../../support/predictions.js'

/** Heads of 32, the least that blocks of 32 divide. */
const SHAPE = { embedding: 128, heads: 4, kvHeads: 2 } as const
const SETTINGS = { cells: 1024, sequences: 8, threads: 1, batchThreads: 1, flashAttention: 'on', hostBytes: 2 ** 24 } as const
/** What another order of sums moves on a CPU before it is rounded to eight bits. */
const CPU_FLOOR = 0.05
const HOLE = { start: 60, end: 240 }
const MARKER = 8

let engine: LlamaEngine
afterEach(() => engine.dispose())

const text = (count: number, salt: number) =>
  Int32Array.from({ length: count }, (_, at) => 260 + ((at * 7919 + salt * 104729) % 100))

async function show(conversation: ConversationId, request: Pick<Completion, 'tokens' | 'origin'>, terms: StepContract) {
  const { vocabulary } = engine.modelInfo
  const { ledger, logprobs } = await engine.complete({ conversation, ...request, terms, maxTokens: 1, logprobs: vocabulary })
  return { ledger, next: firstPrediction(logprobs, vocabulary) }
}

describe.each(['q8_0', 'q4_0'] as const)('%s', (type) => {
  it.each(['exact', 'splice'] as const)('folds and restores under %s', async (contract) => {
    const native = await openNative({ gpu: TEST_GPU })
    const types = { keyType: type, valueType: type, flashAttention: SETTINGS.flashAttention }
    const floor = await boundOnDevice(native, await tinyModel(SHAPE), types, CPU_FLOOR)
    engine = await LlamaEngine.load(native, await tinyModel(SHAPE), { ...SETTINGS, ...types })
    const base = text(320, 1)
    const folded = {
      tokens: Int32Array.from([...base.subarray(0, HOLE.start), ...text(MARKER, 2), ...base.subarray(HOLE.end)]),
      origin: { base, holes: [{ span: HOLE, marker: MARKER }] },
    }
    const id = conversationId('c')
    const before = await show(id, { tokens: base }, { contract })
    const fold = await show(id, folded, { contract })
    const after = await show(id, { tokens: base }, { contract })

    const behind = base.length - HOLE.end
    expect(fold.ledger.recomputed + fold.ledger.fresh).toBe(contract === 'exact' ? behind + MARKER : MARKER)
    expect(after.ledger.submitted).toBeLessThanOrEqual(1)
    expect(after.ledger.approximate).toBe(0)
    expect(largestDifference(after.next, before.next)).toBeLessThan(floor)
    const fresh = await show(conversationId('fresh'), { tokens: base.slice() }, { contract: 'exact' })
    expect(largestDifference(after.next, fresh.next)).toBeLessThan(floor)
    if (contract === 'exact') {
      engine.forget(conversationId('fresh'))
      const alone = await show(conversationId('other'), { tokens: folded.tokens }, { contract })
      expect(largestDifference(fold.next, alone.next)).toBeLessThan(floor)
    }
    expect(largestDifference(fold.next, before.next)).toBeGreaterThan(floor)
  })
})
