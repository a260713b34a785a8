/** Tests how rates are fitted to measured times, and the predictions from them. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  booksTime,
  type CostModel,
  decodeTime,
  fitCosts,
  fitRates,
  hostTime,
  medianOf,
  prefillTime,
  priceOf,
  type ComputedRun,
} from '../../../src/runtime/kv/cost-model.js'

const UBATCH = 512

/** The points that a calibration measures. */
const grid: readonly ComputedRun[] = [0, 1024, 2048, 4096, 8192].flatMap((cells) =>
  [...new Set([cells, 0])].flatMap((attended) => [16, 64, 256, 512].map((tokens) => ({ tokens, attended, cells }))),
)
const books = [512, 1024, 4096].flatMap((shown) => [16, 4, 2].map((share) => ({ shown, moved: shown / share })))

type Rates = Pick<CostModel, 'prefill' | 'decode' | 'books'>

const fitted = <Term extends string>(rates: Record<Term, number>) => ({ rates, residual: { median: 0, worst: 0 }, samples: 0 })
const rate = (least: number, most: number) => fc.double({ min: least, max: most, noNaN: true })
/** Draws machines in which every term of the model matters. */
const machine: fc.Arbitrary<Rates> = fc
  .record({
    prefill: fc.record({
      call: rate(0.5, 50),
      token: rate(0.05, 5),
      read: rate(1e-3, 1e-2),
      attended: rate(5e-5, 1e-3),
      scanned: rate(5e-5, 1e-3),
    }),
    decode: fc.record({ token: rate(0.5, 50), attended: rate(1e-3, 1e-2), scanned: rate(1e-3, 1e-2) }),
    books: fc.record({ step: rate(0.1, 1), shown: rate(1e-4, 1e-3), moved: rate(1e-4, 1e-3) }),
  })
  .map((rates) => ({ prefill: fitted(rates.prefill), decode: fitted(rates.decode), books: fitted(rates.books) }))

const on = { ubatch: UBATCH } as CostModel['on']

/** Returns the rates that a calibration of this machine fits. `noise` gives one factor for each measurement. */
function measured(rates: Rates, noise: (index: number) => number = () => 1): Rates {
  let index = 0
  const prefill = grid.map((run) => ({ ...run, milliseconds: prefillTime({ ...rates, on }, run) * noise(index++) }))
  const decode = grid.map((run) => ({ ...run, tokens: 1, milliseconds: decodeTime(rates, run) * noise(index++) }))
  const kept = books.map((of) => ({ ...of, milliseconds: booksTime(rates, of) * noise(index++) }))
  return fitCosts(prefill, decode, kept, UBATCH)
}

describe('a fit', () => {
  it('finds the rates of a machine that follows the model', () => {
    fc.assert(
      fc.property(machine, (rates) => {
        const found = measured(rates)
        for (const part of ['prefill', 'decode', 'books'] as const) {
          expect(found[part].residual.worst).toBeLessThan(1e-4)
          for (const [term, value] of Object.entries(rates[part].rates))
            expect((found[part].rates as Record<string, number>)[term]! / value).toBeCloseTo(1, 2)
        }
      }),
      { numRuns: 50 },
    )
  })

  it('predicts within the noise of its samples, and reports its error', () => {
    fc.assert(
      fc.property(machine, fc.array(rate(0.9, 1.1), { minLength: 97, maxLength: 97 }), (rates, noise) => {
        const found = measured(rates, (index) => noise[index % noise.length]!)
        for (const part of ['prefill', 'decode', 'books'] as const) {
          expect(found[part].residual.median).toBeLessThan(0.11)
          expect(found[part].residual.worst).toBeGreaterThanOrEqual(found[part].residual.median)
          for (const value of Object.values(found[part].rates)) expect(value).toBeGreaterThanOrEqual(0)
        }
        const run = { tokens: 300, attended: 1500, cells: 3000 }
        const ratio = prefillTime({ ...found, on }, run) / prefillTime({ ...rates, on }, run)
        expect(ratio).toBeGreaterThan(0.85)
        expect(ratio).toBeLessThan(1.15)
      }),
      { numRuns: 50 },
    )
  })

  it('never gives a term a negative rate', () => {
    // The values fall with y, so without that rule the best line would have a negative slope.
    const samples = [1, 2, 3, 4].map((y) => ({ amounts: { one: 1, y }, measured: 10 - y }))
    const { rates } = fitRates(['one', 'y'], samples)
    expect(rates.y).toBe(0)
    expect(rates.one).toBeGreaterThan(5)
  })

  it('leaves out terms that the samples cannot separate, and still predicts', () => {
    const samples = [1, 2, 3].map((x) => ({ amounts: { x, twice: 2 * x }, measured: 6 * x }))
    const fit = fitRates(['x', 'twice'], samples)
    expect(fit.residual.worst).toBeLessThan(1e-9)
    expect(priceOf(fit, { x: 10, twice: 20 })).toBeCloseTo(60)
    expect(Object.values(fit.rates).filter((value) => value > 0)).toHaveLength(1)
  })

  it('without samples has rates of zero', () => {
    expect(fitRates(['x'], [])).toEqual({ rates: { x: 0 }, residual: { median: 0, worst: 0 }, samples: 0 })
  })
})

describe('a prediction', () => {
  const costs = (prefill: Partial<Record<'call' | 'token' | 'read' | 'attended' | 'scanned', number>>) => ({
    on,
    prefill: fitted({ call: 0, token: 0, read: 0, attended: 0, scanned: 0, ...prefill }),
  })

  it('counts calls by ubatches, and cells as they fill', () => {
    const run = { tokens: 700, attended: 100, cells: 1000 }
    expect(prefillTime(costs({ call: 1 }), run)).toBe(2)
    expect(prefillTime(costs({ token: 1 }), run)).toBe(700)
    expect(prefillTime(costs({ read: 1 }), run)).toBe(612 + 800)
    expect(prefillTime(costs({ attended: 1 }), run)).toBe(700 * 100 + (700 * 701) / 2)
    expect(prefillTime(costs({ scanned: 1 }), run)).toBe(512 * 1512 + 188 * 1700)
  })

  it('grows with tokens, depth and cells', () => {
    const size = fc.nat(5000)
    fc.assert(
      fc.property(machine, size, size, size, size, (rates, tokens, attended, others, more) => {
        const cost = { ...rates, on }
        const run = { tokens: tokens + 1, attended, cells: attended + others }
        for (const larger of [{ tokens: run.tokens + more }, { attended: attended + more }, { cells: run.cells + more }]) {
          expect(prefillTime(cost, { ...run, ...larger })).toBeGreaterThanOrEqual(prefillTime(cost, run))
          expect(decodeTime(cost, { ...run, ...larger })).toBeGreaterThanOrEqual(decodeTime(cost, run))
        }
      }),
    )
  })

  it('of a move is its bytes divided by the rate', () => {
    const host = { saveBytesPerSecond: 1e9, loadBytesPerSecond: 2e9, bytesPerCell: 1000 }
    expect(hostTime({ host }, 1000)).toEqual({ bytes: 1e6, save: 1, load: 0.5 })
  })
})

describe('the median', () => {
  it('is the middle value, or the mean of the two in the middle', () => {
    expect(medianOf([3, 1, 2])).toBe(2)
    expect(medianOf([4, 1, 2, 3])).toBe(2.5)
    expect(medianOf([])).toBe(0)
  })
})
