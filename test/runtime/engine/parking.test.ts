/**
 * Tests that parked cells are offloaded while nothing runs, or before the next step of their conversation; on a real GGUF, against fresh
 * prefills.
 */
import { afterEach, beforeAll, describe, expect, it, vi } from 'vitest'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { LlamaEngine, type Completion, type LlamaEngineOptions } from '../../../src/runtime/engine/llama.js'
import type { Contract } from '../../../src/runtime/core/contract.js'
import type { TierRates } from '../../../src/runtime/kv/cost-model.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { Native } from '../../../src/runtime/native/types.js'
import { TEST_GPU } from '../../support/device.js'
import { tinyModel } from '../../support/models.js'
import { boundOnDevice } from '../../support/noise.js'
import { firstPrediction, largestDifference } from '../../support/predictions.js'

const SETTINGS = { cells: 4096, sequences: 12, threads: 1, batchThreads: 1, flashAttention: 'off' } as const
const ID = conversationId('c')
/** Without flash attention, what chunking and neighbours change (exact.test.ts measures 3e-4 at most on a CPU). */
let floor = 1e-3
const HOLE = { start: 200, end: 1700 }
const MARKER = 10
/** The tokens shown while the text is folded. */
const LEFT = 2000 - (HOLE.end - HOLE.start) + MARKER

/** A cell's copies, there and back, take as long as 128 tokens take to pass over it: about what one thread of a CPU needs. */
const RATES: TierRates = {
  host: { saveBytesPerSecond: 1000 / 64, loadBytesPerSecond: 1000 / 64, bytesPerCell: 1 },
  scanned: { prefill: 1, decode: 1 },
}

let native: Native
let engine: LlamaEngine
let base: Int32Array
let folded: Pick<Completion, 'tokens' | 'origin'>

beforeAll(async () => {
  native = await openNative({ gpu: TEST_GPU })
  floor = await boundOnDevice(native, await tinyModel(), { flashAttention: SETTINGS.flashAttention }, floor)
})
afterEach(() => engine.dispose())

const text = (count: number, salt: number): Int32Array =>
  Int32Array.from({ length: count }, (_, at) => 260 + ((at * 7919 + salt * 104729) % (engine.modelInfo.vocabulary - 300)))

async function load(options: LlamaEngineOptions = {}): Promise<void> {
  engine = await LlamaEngine.load(native, await tinyModel(), { ...SETTINGS, hostBytes: 2 ** 26, ...options })
  engine.useTierRates(RATES)
  base = text(2000, 1)
  const tokens = Int32Array.from([...base.subarray(0, HOLE.start), ...text(MARKER, 2), ...base.subarray(HOLE.end)])
  folded = { tokens, origin: { base, holes: [{ span: HOLE, marker: MARKER }] } }
}

/** Shows this prompt and samples one token. Returns the ledger entry and the log-probabilities of the next token. */
async function show(request: Pick<Completion, 'tokens' | 'origin'>, contract: Contract = 'splice', conversation = ID) {
  const { ledger, logprobs } = await engine.complete({
    conversation,
    ...request,
    terms: { contract },
    maxTokens: 1,
    logprobs: engine.modelInfo.vocabulary,
  })
  return { ledger, next: firstPrediction(logprobs, engine.modelInfo.vocabulary) }
}

/** Waits until the idle work is done. */
const tidied = () =>
  vi.waitFor(() => {
    expect(engine.cacheTotals).toMatchObject({ parked: 0, used: LEFT, reach: LEFT })
  })

describe('the parked cells of a fold', () => {
  it('leave the device soon after the step, and the rest is gathered: predictions stay, and a restore computes nothing', async () => {
    await load()
    const before = await show({ tokens: base })
    const there = await show(folded)
    expect(there.ledger).toMatchObject({ contract: 'splice', parked: 1501, moved: 0 })
    await tidied()
    await engine.check('full')
    expect(engine.cacheTotals.tiers.host.tokens).toBe(1501)
    const again = await show(folded)
    expect(again.ledger).toMatchObject({ submitted: 1, moved: 1501, evicted: 0 })
    expect(largestDifference(again.next, there.next)).toBeLessThan(floor)
    const back = await show({ tokens: base })
    expect(back.ledger).toMatchObject({ submitted: 1, approximate: 0, tiers: { host: 1500 } })
    expect(largestDifference(back.next, before.next)).toBeLessThan(floor)
    await engine.check('full')
  })

  it('is moved between the decodes of the next step where that comes at once, and is on its account', async () => {
    await load()
    await show({ tokens: base })
    const there = await show(folded)
    const again = await engine.complete({ conversation: ID, ...folded, terms: { contract: 'splice' }, maxTokens: 32 })
    // A slice has 256 cells at least.
    expect(again.ledger).toMatchObject({ moved: 1501 })
    expect(engine.cacheTotals).toMatchObject({ parked: 0, tiers: { host: { tokens: 1501 } } })
    await engine.check('full')
    const last = await show(folded)
    expect(largestDifference(last.next, there.next)).toBeLessThan(floor)
    const back = await show({ tokens: base })
    expect(back.ledger).toMatchObject({ submitted: 1, approximate: 0, tiers: { host: 1500 } })
    await engine.check('full')
  })

  it('stay if the next step shows them again', async () => {
    await load()
    const before = await show({ tokens: base })
    await show(folded)
    const back = await show({ tokens: base })
    expect(back.ledger).toMatchObject({ submitted: 1, approximate: 0, moved: 0, tiers: { host: 0 }, sources: { parked: 1500 } })
    expect(largestDifference(back.next, before.next)).toBeLessThan(floor)
    await engine.check('full')
  })

  it('under exact are offloaded, too, with the old text after the fold, before the new text is computed', async () => {
    await load()
    const before = await show({ tokens: base }, 'exact')
    const there = await show(folded, 'exact')
    expect(there.ledger).toMatchObject({ parked: 1800, moved: 1800 })
    await tidied()
    expect(engine.cacheTotals.tiers.host.tokens).toBe(1800)
    const again = await show(folded, 'exact')
    expect(again.ledger).toMatchObject({ submitted: 1, moved: 0, approximate: 0 })
    expect(largestDifference(again.next, there.next)).toBeLessThan(floor)
    const back = await show({ tokens: base }, 'exact')
    expect(back.ledger).toMatchObject({ recomputed: 0, submitted: 1, approximate: 0 })
    expect(largestDifference(back.next, before.next)).toBeLessThan(floor)
    await engine.check('full')
  })

  it('stay if there is no memory for them', async () => {
    await load({ hostBytes: 0 })
    await show({ tokens: base })
    await show(folded)
    await new Promise((resolve) => setTimeout(resolve, 50))
    expect((await show(folded)).ledger).toMatchObject({ moved: 0, evicted: 0 })
    expect(engine.cacheTotals.parked).toBe(1501)
    expect((await show({ tokens: base })).ledger).toMatchObject({ submitted: 1, approximate: 0 })
  })

  it('stay if another conversation shares them', async () => {
    await load()
    const other = conversationId('d')
    await show({ tokens: base })
    const beside = await show({ tokens: base.slice(0, 100) }, 'exact', other)
    const there = await show(folded)
    await vi.waitFor(() => {
      expect(engine.cacheTotals.parked).toBe(0)
    })
    await engine.check('full')
    expect(largestDifference((await show(folded)).next, there.next)).toBeLessThan(floor)
    const again = await show({ tokens: base.slice(0, 100) }, 'exact', other)
    expect(again.ledger).toMatchObject({ submitted: 1 })
    expect(largestDifference(again.next, beside.next)).toBeLessThan(floor)
    expect((await show({ tokens: base })).ledger).toMatchObject({ submitted: 1, approximate: 0, tiers: { host: 1500 } })
    await engine.check('full')
  })
})
