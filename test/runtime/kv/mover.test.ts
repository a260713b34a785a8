/** Sequences that leave the device in slices between decodes: what the lower tier then has, and what ends a move; case by case. */
import { describe, expect, it, vi } from 'vitest'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { OffloadTiers } from '../../../src/runtime/kv/offload.js'
import { CacheHarness, missing, shownOf } from './support/cache-harness.js'
import { NaiveDiskTier } from './support/naive-disk-tier.js'

const text = (from: number, count: number): number[] => Array.from({ length: count }, (_, offset) => from + offset)

const long = text(1000, 900)
/** Every copy pays at once. */
const COSTS = {
  model: null,
  rates: {
    host: { saveBytesPerSecond: 1e12, loadBytesPerSecond: 1e12, bytesPerCell: 1 },
    scanned: { prefill: 1, decode: 1 },
  },
}

const harnessWith = (offload: OffloadTiers) => new CacheHarness({ cells: 4096, options: { offload, fewest: 30, costs: COSTS } })

const step = async (harness: CacheHarness, name: string, tokens: readonly number[], last = false) => {
  const running = (await harness.fetch(name, shownOf(tokens))) ?? expect.fail('no sequence')
  while (missing(running) > 0) expect(harness.decode(running, 1000)).toBe(true)
  return harness.finish(name, 'done', 0, last)
}

/** A conversation that was asked for once, and a step of another one, which has it moved. */
const begun = async (offload = new OffloadTiers({ hostBytes: 1e6 }), last = false) => {
  const harness = harnessWith(offload)
  await step(harness, 'a', long, last)
  const running = (await harness.fetch('b', shownOf(text(5000, 40)))) ?? expect.fail('no sequence')
  expect(harness.cache.moving).toBe(true)
  return { harness, running }
}

/** A slice as short as there is. */
const slice = async (harness: CacheHarness): Promise<void> => {
  await harness.cache.moveOn?.(0)
  harness.inspect()
}

const isOnDevice = (harness: CacheHarness): boolean => harness.cache.live(conversationId('a')) !== null

describe('an idle conversation that leaves the device', () => {
  it('is copied in slices while others decode, and is held until the last one', async () => {
    const { harness, running } = await begun()
    for (let copied = 0; copied < 3; copied++) {
      await slice(harness)
      harness.decode(running, 1)
      expect([isOnDevice(harness), harness.cache.totals.tiers.host.tokens, harness.memory.moves.saved]).toEqual([
        true,
        0,
        copied + 1,
      ])
    }
    await slice(harness)
    expect([isOnDevice(harness), harness.cache.totals.tiers.host.tokens, harness.cache.moving]).toEqual([false, 900, false])
    while (missing(running) > 0) harness.decode(running, 100)
    const entry = harness.finish('b')
    expect(entry).toMatchObject({ submitted: 40, moved: 900, evicted: 0 })
    // It waited for the copies.
    expect(entry.copying).toBeGreaterThan(0)
    expect(entry.milliseconds.cache).toBeGreaterThanOrEqual(entry.copying!)
    expect(await step(harness, 'a', long)).toMatchObject({ submitted: 1, reused: 900, tiers: { host: 899 } })
  })

  it('comes back from disk in the same pieces', async () => {
    const offload = new OffloadTiers({ hostBytes: 15_000, disk: new NaiveDiskTier(9, false) })
    const { harness, running } = await begun(offload)
    while (harness.cache.moving === true) await slice(harness)
    while (missing(running) > 0) harness.decode(running, 100)
    harness.finish('b')
    // It takes nearly all of the memory, so that the next one pushes it to disk.
    await step(harness, 'c', text(7000, 400))
    await harness.moveOn()
    await step(harness, 'd', text(9000, 40))
    await harness.moveOn()
    await offload.settle()
    expect(harness.cache.totals.tiers.disk.tokens).toBeGreaterThanOrEqual(900)
    expect(await step(harness, 'a', long)).toMatchObject({ submitted: 1, tiers: { disk: 899 } })
  })

  it('is lost when memory is too short to write its pieces to disk, and nothing else is', async () => {
    const offload = new OffloadTiers({ hostBytes: 15_000, disk: new NaiveDiskTier(9, false) })
    const { harness, running } = await begun(offload)
    while (harness.cache.moving === true) await slice(harness)
    while (missing(running) > 0) harness.decode(running, 100)
    harness.finish('b')
    const allocate = vi.spyOn(Buffer, 'allocUnsafeSlow').mockImplementation(() => {
      throw new RangeError('Array buffer allocation failed')
    })
    await step(harness, 'c', text(7000, 400))
    await harness.moveOn()
    await step(harness, 'd', text(9000, 40))
    await harness.moveOn()
    await offload.settle()
    expect(allocate).toHaveBeenCalled()
    allocate.mockRestore()
    expect(harness.cache.totals.tiers).toMatchObject({ lost: 1 })
    expect(await step(harness, 'a', long)).toMatchObject({ submitted: 900 })
  })

  it('stays where it is used meanwhile', async () => {
    const { harness } = await begun()
    await slice(harness)
    expect(await step(harness, 'a', [...long, 7])).toMatchObject({ submitted: 1, tiers: { host: 0 } })
    await harness.moveOn()
    expect([isOnDevice(harness), harness.cache.totals.tiers.host.tokens]).toEqual([true, 0])
  })

  it('never joins old and new cells, although no later step is expected each time', async () => {
    const { harness, running } = await begun(undefined, true)
    await slice(harness)
    const changed = long.with(100, 7)
    expect(await step(harness, 'a', changed, true)).toMatchObject({ reused: 100, submitted: 800 })
    while (harness.cache.moving === true) await slice(harness)
    while (missing(running) > 0) harness.decode(running, 100)
    harness.finish('b')
    await harness.moveOn()
    // The harness compares its cells with those of a fresh prefill.
    expect(await step(harness, 'a', changed)).toMatchObject({ submitted: 1, reused: 900 })
  })

  it('leaves nothing where it is forgotten meanwhile', async () => {
    const { harness } = await begun()
    await slice(harness)
    harness.forget('a')
    await harness.moveOn()
    expect(harness.cache.totals).toMatchObject({ used: 0, tiers: { host: { tokens: 0 } } })
  })

  it('is dropped at once where a step needs its room', async () => {
    const { harness, running } = await begun()
    await slice(harness)
    expect(harness.cache.reserve(3500)).toMatchObject({ kind: 'ok', evicted: 900 })
    expect(harness.cache.totals.tiers.host.tokens).toBe(900)
    await harness.moveOn()
    expect(harness.cache.totals.tiers.host.tokens).toBe(900)
    harness.decode(running, 40)
    harness.finish('b')
  })
})
