/**
 * Tests when an idle conversation is offloaded so that running steps scan fewer cells, when it stays, and the cost of its reload; case by
 * case.
 */
import { describe, expect, it } from 'vitest'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { OffloadTiers } from '../../../src/runtime/kv/offload.js'
import { isOutstaying } from '../../../src/runtime/kv/tier-policy.js'
import type { TierRates } from '../../../src/runtime/kv/cost-model.js'
import type { LedgerEntry } from '../../../src/runtime/kv/ledger.js'
import type { Prompt } from '../../../src/runtime/kv/prompt.js'
import { CacheHarness, missing, shownOf } from './support/cache-harness.js'
import { PromptDraft } from './support/prompt-draft.js'

const text = (from: number, count: number): number[] => Array.from({ length: count }, (_, offset) => from + offset)

const long = text(1000, 60)
const other = text(2000, 60)
/** Returns the bytes of a saved sequence in this memory: a header, and 16 for each cell. */
const bytesOf = (cells: number): number => 8 + 16 * cells

/** A cell's copies, there and back, take as long as 256 tokens take to pass over it. */
const RATES: TierRates = {
  host: { saveBytesPerSecond: 1000 / 128, loadBytesPerSecond: 1000 / 128, bytesPerCell: 1 },
  scanned: { prefill: 1, decode: 1 },
}

const harnessWith = (offload = new OffloadTiers({ hostBytes: 1e6 }), fewest = 30) =>
  new CacheHarness({ cells: 1024, options: { offload, fewest, costs: { model: null, rates: RATES } } })

const step = async (harness: CacheHarness, name: string, shown: Prompt): Promise<LedgerEntry> => {
  const running = (await harness.fetch(name, shown)) ?? expect.fail('no sequence')
  await harness.moveOn()
  while (missing(running) > 0) expect(harness.decode(running, 200)).toBe(true)
  return harness.finish(name)
}

const isOnDevice = (harness: CacheHarness, name: string): boolean => harness.cache.live(conversationId(name)) !== null

/** Runs two steps of a conversation. */
const twice = async (harness: CacheHarness, name: string): Promise<void> => {
  await step(harness, name, shownOf(long))
  await step(harness, name, shownOf(long, [7]))
}

/** Computes this many tokens in another conversation, and forgets it. */
const pass = async (harness: CacheHarness, tokens: number): Promise<void> => {
  await step(harness, 'passer', shownOf(text(5000, tokens)))
  harness.forget('passer')
}

describe('a conversation with one step', () => {
  it('is offloaded when another begins, charged to that one; its reload computes nothing', async () => {
    const harness = harnessWith()
    await step(harness, 'a', shownOf(long))
    const entry = await step(harness, 'b', shownOf(other))
    expect(entry).toMatchObject({ submitted: 60, moved: 60, evicted: 0 })
    expect(entry.milliseconds.cache).toBeGreaterThan(0)
    expect([isOnDevice(harness, 'a'), harness.cache.totals]).toMatchObject([
      false,
      { used: 60, tiers: { host: { tokens: 60 }, lost: 0 } },
    ])
    expect(await step(harness, 'a', shownOf(long))).toMatchObject({ submitted: 1, reused: 60, tiers: { host: 59 }, moved: 60 })
  })

  it('is offloaded while another step runs; the running one is not', async () => {
    const harness = harnessWith()
    await harness.fetch('running', shownOf(text(3000, 40)))
    await step(harness, 'a', shownOf(long))
    expect(await step(harness, 'b', shownOf(other))).toMatchObject({ moved: 60 })
    expect([isOnDevice(harness, 'running'), isOnDevice(harness, 'a')]).toEqual([true, false])
  })

  it('lends the next conversation their common beginning, and stays for that', async () => {
    const harness = harnessWith()
    await step(harness, 'a', shownOf(long))
    expect(await step(harness, 'b', shownOf(long, [8]))).toMatchObject({ submitted: 1, moved: 0, tiers: { host: 0 } })
    // Offloading it would free none of its cells.
    expect(await step(harness, 'c', shownOf(other))).toMatchObject({ moved: 0 })
    expect(await step(harness, 'd', shownOf(text(3000, 5)))).toMatchObject({ moved: 60 })
    expect([isOnDevice(harness, 'a'), isOnDevice(harness, 'c')]).toEqual([true, false])
  })

  it('lends cells from the host tier, too', async () => {
    const harness = harnessWith()
    await step(harness, 'a', shownOf(long))
    await step(harness, 'b', shownOf(other))
    expect(await step(harness, 'c', shownOf(long, [8]))).toMatchObject({ submitted: 1, tiers: { host: 60 } })
  })
})

describe('a conversation with two steps', () => {
  it('stays until other conversations have computed some 256 tokens', async () => {
    const harness = harnessWith()
    await twice(harness, 'a')
    await pass(harness, 200)
    expect(await step(harness, 'b', shownOf(text(6000, 50)))).toMatchObject({ moved: 0 })
    expect(await step(harness, 'b', shownOf(text(6000, 57)))).toMatchObject({ moved: 0 })
    expect(await step(harness, 'c', shownOf(other))).toMatchObject({ moved: 61 })
    expect([isOnDevice(harness, 'a'), isOnDevice(harness, 'b')]).toEqual([false, true])
  })

  it('stays as long as it is used', async () => {
    const harness = harnessWith()
    await twice(harness, 'a')
    for (let again = 0; again < 4; again++) {
      await pass(harness, 200)
      expect(await step(harness, 'a', shownOf(long, [7], text(8000, again)))).toMatchObject({ tiers: { host: 0 }, moved: 0 })
    }
  })
})

describe('it stays', () => {
  it('where nothing was measured', async () => {
    const offload = new OffloadTiers({ hostBytes: 1e6 })
    const harness = new CacheHarness({ cells: 1024, options: { offload, fewest: 30 } })
    await step(harness, 'a', shownOf(long))
    await pass(harness, 300)
    expect(await step(harness, 'b', shownOf(other))).toMatchObject({ moved: 0 })
    expect(isOnDevice(harness, 'a')).toBe(true)
  })

  it('where it was asked for once and a copy takes longer than the coming tokens save', async () => {
    const offload = new OffloadTiers({ hostBytes: 1e6 })
    const slow = { ...RATES, scanned: { prefill: 0.1, decode: 0.1 } }
    const harness = new CacheHarness({ cells: 1024, options: { offload, fewest: 30, costs: { model: null, rates: slow } } })
    await step(harness, 'a', shownOf(long))
    expect(await step(harness, 'b', shownOf(other))).toMatchObject({ moved: 0 })
  })

  it('where few cells would become free', async () => {
    const harness = harnessWith(undefined, 61)
    await step(harness, 'a', shownOf(long))
    expect(await step(harness, 'b', shownOf(other))).toMatchObject({ moved: 0 })
    // Both conversations together free enough.
    expect(await step(harness, 'c', shownOf(text(3000, 5)))).toMatchObject({ moved: 120 })
  })

  it('without tiers, and if other sequences would be lost for it', async () => {
    for (const hostBytes of [0, bytesOf(59)]) {
      const harness = harnessWith(new OffloadTiers({ hostBytes }))
      await step(harness, 'a', shownOf(long))
      expect(await step(harness, 'b', shownOf(other))).toMatchObject({ moved: 0, evicted: 0 })
      expect([isOnDevice(harness, 'a'), harness.cache.totals.tiers.lost]).toEqual([true, 0])
    }
  })

  it('after a splice, to be made exact there', async () => {
    const harness = harnessWith()
    harness.terms = { contract: 'splice' }
    const prompt = new PromptDraft([long, text(300, 15)], [1, 2])
    await step(harness, 'a', prompt.shown)
    prompt.fold(5, 10, [900])
    expect(await step(harness, 'a', prompt.shown)).toMatchObject({ contract: 'splice' })
    await pass(harness, 300)
    expect(await step(harness, 'b', shownOf(other))).toMatchObject({ moved: 0 })
    expect(isOnDevice(harness, 'a')).toBe(true)
  })
})

describe('what has cost others as much as two copies', () => {
  /** A cell's copies take a millisecond; a prompt token passes over one in a thousandth of that, a generated one in a hundredth. */
  const model: TierRates = {
    host: { saveBytesPerSecond: 2e5, loadBytesPerSecond: 2e5, bytesPerCell: 100 },
    scanned: { prefill: 0.001, decode: 0.01 },
  }

  it('are those with measured costs above that of the copies', () => {
    const all = { held: 500, freed: 500 }
    expect(isOutstaying(all, { prompt: 1000, generated: 0 }, model)).toBe(true)
    expect(isOutstaying(all, { prompt: 999, generated: 0 }, model)).toBe(false)
    expect(isOutstaying(all, { prompt: 500, generated: 50 }, model)).toBe(true)
    // Half of the cells would not become free.
    expect(isOutstaying({ held: 500, freed: 250 }, { prompt: 1999, generated: 0 }, model)).toBe(false)
  })

  it('is unknown where nothing was measured, so that nothing moves', () => {
    expect(isOutstaying({ held: 1, freed: 1 }, { prompt: 1e9, generated: 1e9 }, null)).toBe(false)
  })
})
