/** Cells of one tenant never serve another, whichever tier they are in; within a tenant they do. */
import { describe, expect, it } from 'vitest'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { OffloadTiers } from '../../../src/runtime/kv/offload.js'
import { CacheHarness, missing, SALTS, shownOf } from './support/cache-harness.js'
import { NaiveDiskTier } from './support/naive-disk-tier.js'

const text = (from: number, count: number): number[] => Array.from({ length: count }, (_, offset) => from + offset)
const long = text(200, 40)
const prompt = [1, 2]
/** `anna-1` and `anna-2` are Anna's. */
const tenantOf = (name: string) => name.split('-')[0]!

describe('tenants', () => {
  it('lend cells to themselves and to nobody else', () => {
    const harness = new CacheHarness({ tenantOf })
    harness.step('anna-1', shownOf(long, prompt))
    expect(harness.step('anna-2', shownOf(long, prompt))).toMatchObject({ reused: 42, submitted: 1, sources: { shared: 42 } })
    expect(harness.step('bert-1', shownOf(long, prompt))).toMatchObject({ reused: 0, submitted: 42 })
    expect(harness.step('bert-2', shownOf(long, prompt))).toMatchObject({ reused: 42, submitted: 1 })
  })

  it('keep what they have parked to themselves, under every contract', () => {
    for (const contract of ['exact', 'splice'] as const) {
      const harness = new CacheHarness({ tenantOf })
      harness.terms = { contract }
      harness.step('anna-1', shownOf(long, prompt))
      harness.step('anna-1', shownOf(text(500, 5), prompt))
      expect(harness.cache.totals.parked).toBeGreaterThan(0)
      expect(harness.step('bert-1', shownOf(long, prompt))).toMatchObject({ reused: 0, submitted: 42 })
      expect(harness.step('anna-2', shownOf(long, prompt))).toMatchObject({ reused: 42, submitted: 1 })
    }
  })

  it('hold for what was moved off the device, to memory or to disk', async () => {
    for (const hostBytes of [1e9, 1]) {
      const shelf = new NaiveDiskTier(10)
      const harness = new CacheHarness({
        tenantOf,
        cells: 64,
        options: { offload: new OffloadTiers({ hostBytes, disk: shelf }) },
      })
      harness.step('anna-1', shownOf(long, prompt))
      // No room beside it: Anna's cells leave the device.
      harness.step('carl-1', shownOf(text(600, 50), prompt))
      await new Promise((resolve) => setTimeout(resolve, 20))
      const { tiers } = harness.cache.totals
      expect(hostBytes > 1 ? tiers.host.tokens : tiers.disk.tokens).toBe(42)
      for (const [name, computed] of [
        ['bert-1', 42],
        ['anna-2', 1],
      ] as const) {
        const running = (await harness.fetch(name, shownOf(long, prompt)))!
        expect([name, missing(running)]).toEqual([name, computed])
        while (missing(running) > 0) harness.decode(running, 50)
        expect(harness.finish(name).submitted).toBe(computed)
      }
    }
  })

  it('cannot open the conversation of another', () => {
    const harness = new CacheHarness({ tenantOf })
    harness.step('anna-1', shownOf(long, prompt))
    const open = () => harness.cache.open(conversationId('anna-1'), SALTS.of('bert'))
    expect(open).toThrow(/another tenant/)
    // Its cells leave the device.
    harness.step('carl-1', shownOf(text(1000, 250)))
    expect(open).toThrow(/another tenant/)
  })
})
