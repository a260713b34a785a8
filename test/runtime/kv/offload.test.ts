/** Tests the tiers below the device: host memory alone, and with the naive disk tier, which passes the suite of all disk tiers. */
import { describe, expect, it } from 'vitest'
import { OffloadTiers } from '../../../src/runtime/kv/offload.js'
import { sampleOf } from '../engine/support/disk-tier-writer.js'
import { keepsDiskTierContract } from './disk-tier.contract.js'
import { NaiveDiskTier } from './support/naive-disk-tier.js'

describe('the naive disk tier', () => {
  keepsDiskTierContract(() => new NaiveDiskTier(1000, false))
})

describe('memory alone', () => {
  const filled = (hostBytes: number) => {
    const tiers = new OffloadTiers({ hostBytes })
    for (const seed of [0, 1, 2]) {
      const { record, state } = sampleOf(seed, 1000)
      tiers.put(record, state)
    }
    return tiers
  }

  it('returns what was put, and drops sequences for which there is no room', async () => {
    expect(filled(3000).totals).toMatchObject({ host: { sequences: 3, bytes: 3000, budget: 3000 }, lost: 0, onDisk: null })
    const tight = filled(2500)
    expect(tight.totals).toMatchObject({ host: { sequences: 2, bytes: 2000 }, disk: { sequences: 0 }, lost: 1 })
    for (const stored of tight.all) expect(await tight.read(stored)).toEqual(sampleOf(stored.tokens[0]!, 1000).state)
  })

  it('evicts nothing for a sequence that is only offered, and never one that is about to be reloaded', () => {
    const tiers = filled(3000)
    const { record, state } = sampleOf(3, 1000)
    expect(tiers.offer(record, state)).toBe(false)
    const claimed = tiers.all
    tiers.claim(claimed)
    tiers.put(record, state)
    expect(tiers.all).toEqual(expect.arrayContaining([...claimed]))
    tiers.claim([])
    expect(tiers.totals.host.sequences).toBe(3)
  })

  it('loses a sequence that is larger than all of it, and keeps the others', () => {
    const tiers = new OffloadTiers({ hostBytes: 3000 })
    const put = (seed: number, bytes: number) => {
      const { record, state } = sampleOf(seed, bytes)
      return tiers.put(record, state)
    }
    expect([put(0, 1000), put(1, 1000), put(2, 4000)]).toEqual([true, true, false])
    expect(tiers.totals).toMatchObject({ host: { sequences: 2 }, lost: 1 })
  })

  it('of no bytes is not open', () => {
    expect(new OffloadTiers({}).open).toBe(false)
    expect(filled(0).totals).toMatchObject({ host: { sequences: 0 }, lost: 3 })
  })
})

/** A disk tier with room for two items, which evicts the oldest. */
class SmallDiskTier extends NaiveDiskTier {
  override async put(...item: Parameters<NaiveDiskTier['put']>): ReturnType<NaiveDiskTier['put']> {
    const made = await super.put(...item)
    while (this.items.length > 2) await this.drop(this.items[0]!.id)
    return made
  }
}

describe('a disk tier without memory', () => {
  it('that evicts items has them no more', async () => {
    const tiers = new OffloadTiers({ disk: new SmallDiskTier(5000, false) })
    for (const seed of [0, 1, 2, 3]) {
      const { record, state } = sampleOf(seed, 1000)
      tiers.put(record, state)
      await tiers.settle()
    }
    expect(tiers.totals).toMatchObject({ disk: { sequences: 2 }, lost: 0 })
    expect(tiers.all.map(({ tokens }) => tokens[0]).sort()).toEqual([2, 3])
  })

  it('keeps what is put', async () => {
    const tiers = new OffloadTiers({ disk: new NaiveDiskTier(5000, false) })
    expect(tiers.open).toBe(true)
    const { record, state } = sampleOf(0, 1000)
    tiers.put(record, state)
    await tiers.settle()
    expect(tiers.totals).toMatchObject({ host: { sequences: 0 }, disk: { sequences: 1 }, lost: 0 })
    expect(await tiers.read(tiers.all[0]!)).toEqual(state)
  })
})
