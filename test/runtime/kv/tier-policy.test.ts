/** What a full tier gives up, and in which order; when measured rates say that a move off the device pays. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { TierRates } from '../../../src/runtime/kv/cost-model.js'
import { ANSWERS, benefit, FEWEST, isOutstaying, isWorthMoving, type Kept, surplus } from '../../../src/runtime/kv/tier-policy.js'

const NOW = 1000
const kept: fc.Arbitrary<Kept[]> = fc.array(fc.record({ tokens: fc.nat(50), bytes: fc.nat(100), lastUse: fc.nat(NOW) }), {
  maxLength: 12,
})
const bytesOf = (items: readonly Kept[]) => items.reduce((sum, { bytes }) => sum + bytes, 0)

describe('the benefit of keeping something', () => {
  it('is tokens to recompute by bytes and age', () => {
    expect(benefit({ tokens: 600, bytes: 20, lastUse: NOW - 9 }, NOW)).toBe(600 / (20 * 10))
  })

  it('of what was used just now, or by a faster clock, is by bytes alone', () => {
    expect(benefit({ tokens: 600, bytes: 20, lastUse: NOW }, NOW)).toBe(30)
    expect(benefit({ tokens: 600, bytes: 20, lastUse: NOW + 50 }, NOW)).toBe(30)
  })

  it('is a number for what takes no room', () => {
    expect(benefit({ tokens: 600, bytes: 0, lastUse: NOW }, NOW)).toBe(600)
  })
})

describe('the surplus', () => {
  const item = (name: string, tokens: number, bytes: number, age: number) => ({ name, tokens, bytes, lastUse: NOW - age })
  const names = (items: readonly { readonly name: string }[]) => items.map(({ name }) => name)

  it('is nothing while all fits', () => {
    expect(surplus([item('a', 1, 60, 0), item('b', 1, 40, 0)], 100, NOW)).toEqual([])
  })

  it('begins with what is old, large for its tokens, or both', () => {
    const items = [item('recent', 100, 10, 9), item('old', 100, 10, 99), item('large', 100, 50, 9), item('both', 100, 50, 99)]
    expect(names(surplus(items, 0, NOW))).toEqual(['both', 'old', 'large', 'recent'])
    expect(names(surplus(items, 70, NOW))).toEqual(['both'])
  })

  it('begins with the longest unused of things that are worth nothing', () => {
    expect(names(surplus([item('later', 0, 10, 5), item('earlier', 0, 10, 6)], 0, NOW))).toEqual(['earlier', 'later'])
  })

  it('leaves what fits, is of least benefit, and not one item more than needed', () => {
    fc.assert(
      fc.property(kept, fc.nat(600), (items, budget) => {
        const given = surplus(items, budget, NOW)
        const left = items.filter((item) => !given.includes(item))
        expect(bytesOf(left)).toBeLessThanOrEqual(budget)
        expect(given.length + left.length).toBe(items.length)
        const last = given.at(-1)
        if (last === undefined) return
        expect(bytesOf(left) + last.bytes).toBeGreaterThan(budget)
        const most = Math.max(...given.map((item) => benefit(item, NOW)))
        for (const item of left) expect(benefit(item, NOW)).toBeGreaterThanOrEqual(most)
      }),
      { numRuns: 1000 },
    )
  })
})

/** Rates of a device: bytes a second out and in, bytes of a cell, and milliseconds that a token of a prompt and one alone take to pass over one. */
const device = (save: number, load: number, bytesPerCell: number, prefill: number, decode: number): TierRates => ({
  host: { saveBytesPerSecond: save, loadBytesPerSecond: load, bytesPerCell },
  scanned: { prefill, decode },
})

const rates: fc.Arbitrary<TierRates> = fc
  .tuple(
    fc.double({ min: 1e7, max: 1e11, noNaN: true }),
    fc.double({ min: 1e7, max: 1e11, noNaN: true }),
    fc.double({ min: 64, max: 1e6, noNaN: true }),
    fc.oneof(fc.constant(0), fc.double({ min: 1e-8, max: 1e-2, noNaN: true })),
    fc.oneof(fc.constant(0), fc.double({ min: 1e-8, max: 1e-2, noNaN: true })),
  )
  .map((of) => device(...of))
const parked = fc
  .record({ freed: fc.nat(100_000), shared: fc.nat(100_000), live: fc.nat(100_000) })
  .map(({ freed, shared, live }) => ({ held: freed + shared, freed, live }))
const tokens = fc.record({ due: fc.nat(50_000), ahead: fc.nat(2000) })

/** Milliseconds of a move and of bringing the cells back, and of the tokens that pass over the cells where they stay: another way to count. */
const moving = ({ host }: TierRates, { held, live }: { readonly held: number; readonly live: number }): number => {
  const megabytes = ((held + live) * host.bytesPerCell) / 1e6
  return (1e9 * megabytes) / host.saveBytesPerSecond + (1e9 * megabytes) / host.loadBytesPerSecond
}
const staying = ({ scanned }: TierRates, cells: number, prompt: number, generated: number): number =>
  prompt * cells * scanned.prefill + generated * cells * scanned.decode

describe('a move off the device', () => {
  it('never costs more than it saves, whatever the device', () => {
    fc.assert(
      fc.property(rates, parked, tokens, (of, load, coming) => {
        const { due, ahead } = coming
        if (isWorthMoving(load, coming, of))
          expect(moving(of, load)).toBeLessThanOrEqual(staying(of, load.freed, due, ahead) * (1 + 1e-9))
        if (isOutstaying(load, { prompt: due, generated: ahead }, of))
          expect(moving(of, { ...load, live: 0 })).toBeLessThanOrEqual(staying(of, load.freed, due, ahead) * (1 + 1e-9))
      }),
      { numRuns: 2000 },
    )
  })

  it('is made where it saves twice what it costs', () => {
    let made = 0
    fc.assert(
      fc.property(rates, parked, tokens, (of, load, coming) => {
        if (load.freed < FEWEST || staying(of, load.freed, coming.due, coming.ahead) < 2 * moving(of, load)) return
        made++
        expect(isWorthMoving(load, coming, of)).toBe(true)
      }),
      { numRuns: 2000 },
    )
    expect(made).toBeGreaterThan(50)
  })

  it('is never made where nothing was measured, and where masked cells cost nothing', () => {
    fc.assert(
      fc.property(rates, parked, tokens, (of, load, coming) => {
        for (const each of [null, { ...of, scanned: { prefill: 0, decode: 0 } }]) {
          expect(isWorthMoving({ ...load, held: load.held + 1 }, coming, each)).toBe(false)
          const passed = { prompt: coming.due, generated: coming.ahead }
          expect(isOutstaying({ ...load, held: load.held + 1 }, passed, each)).toBe(false)
        }
      }),
    )
  })

  /** What an `exact` fold of half of 14,336 tokens parks, the tokens that it computes, and the answers that follow. */
  const fold = [
    { held: 10_879, freed: 10_879, live: 0 },
    { due: 3596, ahead: ANSWERS },
  ] as const

  /**
   * Rates of the 1.7B shape, 114,688 bytes a cell. H200: copies out at 0.9 GB/s and in at 7.4, decodes at 20,000 and 85,000 cells and
   * prefills of both as they were measured. RTX 4090: 1 TB/s of its memory, PCIe 4.0. Laptop: 40 GB/s of memory, copies at a quarter of that.
   */
  it.each([
    ['an H200 with copies as they were measured', device(0.9e9, 7.4e9, 114_688, 9.1e-7, 3.7e-5), false],
    ['an H200 with pinned copies', device(25e9, 25e9, 114_688, 9.1e-7, 3.7e-5), true],
    ['an RTX 4090 with pageable copies', device(4e9, 4e9, 114_688, 3e-6, 1.15e-4), false],
    ['an RTX 4090 with pinned copies', device(22e9, 22e9, 114_688, 3e-6, 1.15e-4), true],
    ['a laptop', device(10e9, 10e9, 114_688, 2e-4, 1e-3), true],
    ['a laptop whose attention skips masked cells', device(10e9, 10e9, 114_688, 1e-6, 2e-5), false],
  ] as const)('after a fold, on %s', (_, of, isMoved) => {
    expect(isWorthMoving(...fold, of)).toBe(isMoved)
  })
})
