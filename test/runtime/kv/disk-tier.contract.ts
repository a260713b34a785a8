/**
 * The suite that every disk tier (`DiskTier`) passes: it returns exactly the state that was put, or null. Both the engine's folder and the
 * tests' naive tier run it.
 */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { DiskTier } from '../../../src/runtime/kv/ports.js'
import { OffloadTiers } from '../../../src/runtime/kv/offload.js'
import { sampleOf } from '../engine/support/disk-tier-writer.js'

/** A sample of up to 20,000 bytes is at most this large together with its record. */
const RECORD = 20_000

const operation = fc.oneof(
  { weight: 3, arbitrary: fc.record({ do: fc.constant('put' as const), bytes: fc.nat(3000) }) },
  fc.record({ do: fc.constantFrom('take' as const, 'drop' as const, 'touch' as const), which: fc.nat(12) }),
)

/**
 * Declares the tests of one disk tier.
 * @param make Returns an empty tier with room for a MiB at least, which damages nothing by itself.
 */
export function keepsDiskTierContract(make: () => DiskTier | Promise<DiskTier>): void {
  it('returns each state byte for byte until it is dropped, whatever calls came before', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(operation, { maxLength: 20 }), async (operations) => {
        const disk = await make()
        const kept = new Map<string, number>()
        const ids: string[] = []
        for (const [seed, step] of operations.entries()) {
          if (step.do === 'put') {
            const { record, state } = sampleOf(seed, step.bytes)
            const item = (await disk.put(record, state))!
            expect(ids).not.toContain(item.id)
            expect(item.bytes).toBeGreaterThanOrEqual(step.bytes)
            expect(item.record).toEqual(record)
            ids.push(item.id)
            kept.set(item.id, seed)
          } else {
            const id = ids[step.which % Math.max(1, ids.length)] ?? 'nobody'
            const seed = kept.get(id)
            if (step.do === 'touch') disk.touch(id)
            else if (step.do === 'drop') {
              const dropping = disk.drop(id)
              expect(disk.items.map((item) => item.id)).not.toContain(id)
              await dropping
              kept.delete(id)
            } else {
              const put = seed === undefined ? undefined : operations[seed]
              const state = await disk.take(id)
              if (put?.do === 'put') expect(Buffer.compare(state!, sampleOf(seed!, put.bytes).state)).toBe(0)
              else expect(state).toBeNull()
            }
          }
          expect(disk.items.map((item) => item.id).sort()).toEqual([...kept.keys()].sort())
        }
        expect(disk.counts).toEqual({ refused: 0, unreadable: 0, gone: 0, evicted: 0, failed: 0 })
        await disk.close()
      }),
      { numRuns: 40 },
    )
  })

  it('keeps a record without tokens, too', async () => {
    const disk = await make()
    const none = new Int32Array()
    const record = { ...sampleOf(1).record, unedited: none, tokens: none, sourceIds: none, positions: none, hashes: none }
    const item = await disk.put(record, Uint8Array.of(5))
    expect(disk.items).toEqual([item])
    expect(item?.record).toEqual(record)
  })

  it('keeps the record as it was when put, even if its arrays change later', async () => {
    const disk = await make()
    const { record, state } = sampleOf(3, 100)
    const putting = disk.put(record, state)
    record.tokens.fill(0)
    expect((await putting)?.record).toEqual(sampleOf(3).record)
  })

  it('closes after earlier calls are done; later calls find nothing and keep nothing', async () => {
    const disk = await make()
    const { record, state } = sampleOf(1, 200_000)
    const putting = disk.put(record, state)
    await disk.close()
    const item = (await putting)!
    expect(item.record).toEqual(record)
    expect(disk.items).toEqual([])
    expect(await disk.take(item.id)).toBeNull()
    const other = sampleOf(2, 10)
    expect(await disk.put(other.record, other.state)).toBeNull()
    await disk.drop(item.id)
  })

  describe('below the host tier', () => {
    it('takes the states that host memory has no room for; each reads back as it was put, and is counted once', async () => {
      const disk = await make()
      const tiers = new OffloadTiers({ hostBytes: 3 * RECORD, disk })
      expect(tiers.open).toBe(true)
      const sizes = [1000, 20_000, 30_000, 25_000, 500]
      for (const [seed, bytes] of sizes.entries()) {
        const { record, state } = sampleOf(seed, bytes)
        tiers.put(record, state)
      }
      await tiers.settle()
      const { host, disk: below, lost } = tiers.totals
      expect([host.sequences + below.sequences, lost]).toEqual([5, 0])
      expect(below.sequences).toBeGreaterThan(0)
      expect(host.bytes).toBeLessThanOrEqual(3 * RECORD)
      for (const stored of tiers.all) {
        const seed = stored.tokens[0]!
        expect(Buffer.compare((await tiers.read(stored)) as Uint8Array, sampleOf(seed, sizes[seed]).state)).toBe(0)
      }
      for (const stored of tiers.all) tiers.forget(stored.conversation)
      await tiers.settle()
      expect([tiers.all, disk.items]).toEqual([[], []])
    })

    it('has all states when the tiers are closed', async () => {
      const disk = await make()
      const put: unknown[] = []
      const watched: DiskTier = new Proxy(disk, {
        get: (of, key) => {
          if (key === 'put') put.push(key)
          const value: unknown = Reflect.get(of, key, of)
          return typeof value === 'function' ? (value.bind(of) as unknown) : value
        },
      })
      const tiers = new OffloadTiers({ hostBytes: 1e6, disk: watched })
      for (const seed of [0, 1, 2]) {
        const { record, state } = sampleOf(seed, 1000)
        tiers.put(record, state)
      }
      await tiers.close()
      expect(put).toHaveLength(3)
      expect(tiers.totals).toMatchObject({ host: { sequences: 0 }, disk: { sequences: 3 }, lost: 0 })
    })
  })
}
