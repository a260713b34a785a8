/** Tests the predicted costs and savings of folds. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Contract } from '../../../src/runtime/core/contract.js'
import { span } from '../../../src/runtime/core/span.js'
import type { CostModel } from '../../../src/runtime/kv/cost-model.js'
import { forecast, type Prospect } from '../../../src/runtime/kv/forecast.js'
import { BLEND_DEFAULT } from '../../../src/runtime/kv/plan/blend.js'
import { dryRun, type DryRunOptions } from '../../../src/runtime/kv/dry-run.js'
import { CacheHarness } from './support/cache-harness.js'
import { PromptDraft } from './support/prompt-draft.js'

const fitted = <Term extends string>(rates: Record<Term, number>) => ({ rates, residual: { median: 0, worst: 0 }, samples: 0 })

/** A prompt token takes a millisecond. A generated token takes 1 ms, and 0.01 ms more for every cell of its sequence. */
const cost = {
  on: { ubatch: 512 },
  prefill: fitted({ call: 0, token: 1, read: 0, attended: 0, scanned: 0 }),
  decode: fitted({ token: 1, attended: 0.01, scanned: 0 }),
  books: fitted({ step: 0, shown: 0, moved: 0 }),
  // A cell takes 0.02 ms to be saved and loaded again.
  host: { saveBytesPerSecond: 1e5, loadBytesPerSecond: 1e5, bytesPerCell: 1 },
} as unknown as CostModel

const text = (from: number, count: number): number[] => Array.from({ length: count }, (_, offset) => from + offset)
/** A conversation of 10 + 400 + 150 tokens, and two more that begin the answer. */
const conversation = () => new PromptDraft([text(100, 10), text(200, 400), text(700, 150)], [1, 2])
const LIMITS = { cells: 4096, sequences: 16 }

function prospects(marker: readonly number[] = [900, 901, 902], hidden = span(20, 380), limits: DryRunOptions = LIMITS) {
  const prompt = conversation()
  const open = { prompt: prompt.shown, terms: { contract: 'exact' as const } }
  prompt.fold(hidden.start, hidden.end, marker)
  const folded = (contract: Contract) => dryRun([open, { prompt: prompt.shown, terms: { contract } }], limits)[1]!
  return {
    unedited: dryRun([open, open], LIMITS)[1]!,
    exact: folded('exact'),
    splice: folded('splice'),
    blend: folded('blend'),
  }
}

describe('a dry run', () => {
  it('says what each contract computes, and how many cells are in use afterwards', () => {
    const { unedited, exact, splice, blend } = prospects()
    expect(unedited).toMatchObject({
      runs: [{ tokens: 1, attended: 561, cells: 561 }],
      shown: 562,
      moved: 1,
      cells: 562,
      positions: 562,
    })
    // Exact computes the marker and all that follows. The hidden cells and the old cells after them stay parked.
    expect(exact).toMatchObject({
      contract: 'exact',
      runs: [{ tokens: 3 + 182, attended: 20, cells: 562 }],
      shown: 205,
      moved: 542,
      cells: 562 + 185,
      positions: 205,
    })
    // Splice computes the marker, and the last token again.
    expect(splice).toMatchObject({
      contract: 'splice',
      runs: [
        { tokens: 3, attended: 20, cells: 562 },
        { tokens: 1, attended: 204, cells: 565 },
      ],
      shown: 205,
      moved: 361,
      cells: 566,
      positions: 562,
    })
    // The old cells of recomputed tokens stay parked, for the restore.
    expect(blend.runs[0]).toEqual({ tokens: 3 + BLEND_DEFAULT.first, attended: 20, cells: 562 })
  })

  it('says how many cells are copied when a marker does not fit, and at what cost', () => {
    const { unedited, splice } = prospects(text(900, 12), span(20, 30))
    expect(splice).toMatchObject({ contract: 'splice', fallback: null, turned: 531, positions: 564, moved: 10 + 532 + 531 })
    // The sum is the marker, the last token at 6.64 ms, and the copies.
    expect(forecast(cost, unedited, splice).milliseconds).toBeCloseTo(12 + 6.64 + 531 * 0.02)
  })

  it('says that a marker does not fit on a memory that cannot shift cells, and why', () => {
    const { splice } = prospects(text(900, 12), span(20, 30), { ...LIMITS, shift: false })
    expect(splice).toMatchObject({ asked: 'splice', contract: 'exact', turned: 0 })
    expect(splice.fallback).toMatch(/longer marker than the hidden text.*cannot be rotated/)
  })

  it('refuses a prompt for which there is no room', () => {
    const shown = conversation().shown
    expect(() => dryRun([{ prompt: shown, terms: { contract: 'exact' } }], { cells: 300, sequences: 4 })).toThrow(
      /do not fit into the 300 cells/,
    )
  })

  it('predicts the ledger of the cache', () => {
    const contract = fc.constantFrom<Contract>('exact', 'splice', 'blend')
    const fold = fc.tuple(fc.integer({ min: 10, max: 40 }), fc.integer({ min: 1, max: 40 }), fc.integer({ min: 1, max: 8 }))
    fc.assert(
      fc.property(fc.array(fc.tuple(fold, contract), { minLength: 1, maxLength: 4 }), (folds) => {
        const harness = new CacheHarness({ cells: 512, sequences: LIMITS.sequences })
        const prompt = new PromptDraft([text(100, 10), text(200, 40), text(300, 15)], [1, 2])
        const steps: { prompt: PromptDraft['shown']; terms: { contract: Contract } }[] = [
          { prompt: prompt.shown, terms: { contract: 'exact' } },
        ]
        for (const [[start, size, marker], asked] of folds) {
          for (const { start: at } of prompt.folds) prompt.restore(at)
          prompt.fold(start, Math.min(50, start + size), text(900, marker))
          steps.push({ prompt: prompt.shown, terms: { contract: asked } })
        }
        const foretold = dryRun(steps, { ...LIMITS, cells: 512 })
        for (const [index, { prompt: planned, terms }] of steps.entries()) {
          harness.terms = terms
          const entry = harness.step('a', planned)
          const { runs, contract: kept, shown: size, positions, cells } = foretold[index]!
          expect(runs.reduce((sum, { tokens }) => sum + tokens, 0)).toBe(entry.submitted)
          expect({ kept, size, positions, cells }).toEqual({
            kept: entry.contract,
            size: entry.shown,
            positions: entry.positions,
            cells: harness.cache.totals.used,
          })
        }
      }),
      { numRuns: 25 },
    )
  })
})

describe('a forecast', () => {
  it('weighs the cost of an edit against what it saves for each token', () => {
    const { unedited, exact, splice } = prospects()
    // A token sees 562 cells, or 205 after the fold, so it saves 3.57 ms. The unedited step costs one decode of 6.62 ms.
    const now = forecast(cost, unedited, splice)
    expect(now).toMatchObject({ contract: 'splice', computeTokens: 4, cellsAfter: 566, positionsAfter: 562, breakEven: 0 })
    expect(now.savingPerToken).toBeCloseTo(3.57)
    expect(now.milliseconds).toBeCloseTo(3 + 1 + 2.05)
    const slow = forecast(cost, unedited, exact)
    expect(slow.milliseconds).toBeCloseTo(185)
    expect(slow.breakEven).toBe(Math.ceil((185 - 6.62) / 3.57))
  })

  it('of no edit saves nothing and costs nothing', () => {
    const { unedited } = prospects()
    expect(forecast(cost, unedited, unedited)).toMatchObject({ savingPerToken: 0, breakEven: 0 })
  })

  it('breaks even never if generation does not become faster', () => {
    const { unedited, exact } = prospects()
    const flat = { ...cost, decode: fitted({ token: 1, attended: 0, scanned: 0 }) } as unknown as CostModel
    expect(forecast(flat, unedited, exact)).toMatchObject({ savingPerToken: 0, breakEven: null })
    // Scanning the parked cells costs more than the fold saves.
    const scanning = { ...cost, decode: fitted({ token: 1, attended: 0, scanned: 0.1 }) } as unknown as CostModel
    const { savingPerToken, breakEven } = forecast(scanning, unedited, exact)
    expect(savingPerToken).toBeLessThan(0)
    expect(breakEven).toBeNull()
  })

  it('breaks even exactly when the sums do', () => {
    const { unedited } = prospects()
    const prospect: fc.Arbitrary<Prospect> = fc
      .record({ tokens: fc.integer({ min: 2, max: 2000 }), shown: fc.integer({ min: 1, max: 700 }) })
      .map(({ tokens, shown }) => ({ ...unedited, runs: [{ tokens, attended: 0, cells: 0 }], shown }))
    fc.assert(
      fc.property(prospect, (edited) => {
        const { milliseconds, perToken, breakEven } = forecast(cost, unedited, edited)
        const without = forecast(cost, unedited, unedited)
        const behind = (generated: number) =>
          milliseconds + generated * perToken - (without.milliseconds + generated * without.perToken)
        if (breakEven === null) expect(behind(1e6)).toBeGreaterThan(0)
        else {
          expect(behind(breakEven)).toBeLessThanOrEqual(1e-9)
          if (breakEven > 0) expect(behind(breakEven - 1)).toBeGreaterThan(-1e-9)
        }
      }),
    )
  })
})
