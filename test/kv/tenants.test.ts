/** Cells of one tenant never serve another, whichever tier they are in; within a tenant they do. */
import { describe, expect, it } from 'vitest'
import { conversationId } from '../../src/core/ids.js'
import { OffloadTiers } from '../../src/kv/offload.js'
import { Desk, missing, SALTS, shownOf } from './support/desk.js'
import { NaiveDiskTier } from './support/naive-disk-tier.js'

const text = (from: number, count: number): number[] => Array.from({ length: count }, (_, offset) => from + offset)
const long = text(200, 40)
const prompt = [1, 2]
/** `anna-1` and `anna-2` are Anna's. */
const tenantOf = (name: string) => name.split('-')[0]!

describe('tenants', () => {
  it('lend cells to themselves and to nobody else', () => {
    const desk = new Desk({ tenantOf })
    desk.step('anna-1', shownOf(long, prompt))
    expect(desk.step('anna-2', shownOf(long, prompt))).toMatchObject({ reused: 42, submitted: 1, sources: { shared: 42 } })
    expect(desk.step('bert-1', shownOf(long, prompt))).toMatchObject({ reused: 0, submitted: 42 })
    expect(desk.step('bert-2', shownOf(long, prompt))).toMatchObject({ reused: 42, submitted: 1 })
  })

  it('keep what they have parked to themselves, under every contract', () => {
    for (const contract of ['exact', 'splice'] as const) {
      const desk = new Desk({ tenantOf })
      desk.terms = { contract }
      desk.step('anna-1', shownOf(long, prompt))
      desk.step('anna-1', shownOf(text(500, 5), prompt))
      expect(desk.cache.totals.parked).toBeGreaterThan(0)
      expect(desk.step('bert-1', shownOf(long, prompt))).toMatchObject({ reused: 0, submitted: 42 })
      expect(desk.step('anna-2', shownOf(long, prompt))).toMatchObject({ reused: 42, submitted: 1 })
    }
  })

  it('hold for what was moved off the device, to memory or to disk', async () => {
    for (const hostBytes of [1e9, 1]) {
      const shelf = new NaiveDiskTier(10)
      const desk = new Desk({ tenantOf, cells: 64, options: { offload: new OffloadTiers({ hostBytes, disk: shelf }) } })
      desk.step('anna-1', shownOf(long, prompt))
      // No room beside it: Anna's cells leave the device.
      desk.step('carl-1', shownOf(text(600, 50), prompt))
      await new Promise((resolve) => setTimeout(resolve, 20))
      const { tiers } = desk.cache.totals
      expect(hostBytes > 1 ? tiers.host.tokens : tiers.disk.tokens).toBe(42)
      for (const [name, computed] of [
        ['bert-1', 42],
        ['anna-2', 1],
      ] as const) {
        const running = (await desk.fetch(name, shownOf(long, prompt)))!
        expect([name, missing(running)]).toEqual([name, computed])
        while (missing(running) > 0) desk.decode(running, 50)
        expect(desk.finish(name).submitted).toBe(computed)
      }
    }
  })

  it('cannot open the conversation of another', () => {
    const desk = new Desk({ tenantOf })
    desk.step('anna-1', shownOf(long, prompt))
    expect(() => desk.cache.open(conversationId('anna-1'), SALTS.of('bert'))).toThrow(/another tenant/)
  })
})
