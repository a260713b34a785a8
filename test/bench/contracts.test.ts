import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { scoresOf, type Answer } from '../../bench/lab/contracts/accuracy.js'
import { contractsFigure } from '../../bench/lab/contracts/figure.js'
import { agreement, cellsOf, type Fold } from '../../bench/lab/contracts/grid.js'
import { holeAt, piMaterial, PLACES, randomMaterial } from '../../bench/lab/contracts/material.js'
import { readBack, written, type Results } from '../../bench/lab/contracts/results.js'
import { forMarkdown, forTerminal } from '../../bench/lab/contracts/tables.js'
import { builtinModel } from '../../src/runtime/cli/builtin.js'
import { length } from '../../src/runtime/core/span.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { commonPrefix } from '../../src/runtime/kv/prompt.js'
import { openNative } from '../../src/runtime/native/binding.js'

const fold = (more: Partial<Fold>): Fold => ({
  model: 'm',
  context: 1024,
  place: 'early',
  share: 0.5,
  seed: 0,
  variant: 'exact',
  milliseconds: 100,
  computed: 500,
  divergence: 0,
  agreement: 1,
  ...more,
})
const answer = (more: Partial<Answer>): Answer => ({
  folder: 'program',
  way: 'exact',
  n: 16,
  stream: 0,
  accuracy: 0.9,
  computed: 500,
  milliseconds: 10.25,
  shown: 800,
  clean: true,
  ...more,
})
const ways = [
  { way: 'whole', computed: 1 },
  { way: 'exact' },
  { way: 'splice', computed: 28, accuracy: 0.8 },
  { folder: 'model', way: 'exact' },
  { folder: 'model', way: 'splice', accuracy: 0.1, clean: false },
] as const
const results: Results = {
  command: 'c',
  commit: '0',
  date: '2026-01-01T00:00:00.000Z',
  machine: { cpu: 'x', cores: 2, threads: 1, node: 'v20', llamaCpp: 'b1', load: { before: 0.5, after: 1 } },
  model: { name: 'm', sha256: 'f'.repeat(64) },
  seconds: 3,
  interrupted: false,
  folds: [fold({}), fold({ variant: 'splice', milliseconds: 4, computed: 21, divergence: 0.03, agreement: 0.25 })],
  noise: [{ model: 'm', context: 1024, share: 0.5, seed: 0, divergence: 1e-5, agreement: 1 }],
  answers: ways.flatMap((way) => [answer(way), answer({ ...way, stream: 1, accuracy: 0.1 + (way.way === 'splice' ? 0 : 0.85) })]),
  notMeasured: ['chains'],
}

describe('random material', () => {
  const material = randomMaterial(1000, 1, 2048)

  it('has holes of the asked size, in order, where folding is allowed', () => {
    for (const share of [0.25, 0.5, 0.75]) {
      const holes = PLACES.map((place) => holeAt(material, place, share)!)
      expect(holes.map(length)).toEqual([1000 * share, 1000 * share, 1000 * share])
      expect(holes[0]!.start).toBe(material.foldable.start)
      expect(holes[2]!.end).toBe(material.foldable.end)
      expect(holes[1]!.start).toBeGreaterThan(holes[0]!.start)
    }
    expect(holeAt(material, 'early', 0.95)).toBeNull()
  })

  it('goes on after the prompt, and differs by seed', () => {
    expect(commonPrefix(material.base, material.later)).toBe(1000)
    expect(commonPrefix(material.base, randomMaterial(1000, 2, 2048).base)).toBeLessThan(10)
  })
})

describe('a PI-LLM prompt', () => {
  let engine: LlamaEngine
  beforeAll(async () => {
    engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), {
      cells: 512,
      threads: 1,
      batchThreads: 1,
    })
  })
  afterAll(() => engine.dispose())

  it.each([1024, 4096])('of about %d tokens folds behind a real marker', (size) => {
    const { base, later, foldable, marker, opening } = piMaterial(engine.format, size, 1)
    expect(Math.abs(base.length - size)).toBeLessThan(0.1 * size)
    expect(length(foldable)).toBeGreaterThan(0.75 * base.length)
    expect(engine.model.detokenize([...marker], true)).toMatch(/^\s*\[folded f[0-9a-f]{5}: \d+ characters, restore_fragment/u)
    expect(engine.model.detokenize([...opening], true)).toMatch(/^\s*The current value of \w+ is$/u)
    expect(commonPrefix(base, later)).toBe(base.length)
    expect(later.length - base.length).toBeGreaterThanOrEqual(60)
    expect(later.length - base.length).toBeLessThan(80)
  })
})

it('agreement ends at the first difference', () => {
  const of = (...tokens: number[]) => Int32Array.from(tokens)
  expect(agreement(of(1, 2, 3, 4), of(1, 2, 3, 4))).toBe(1)
  expect(agreement(of(1, 2, 3, 4), of(1, 2, 9, 4))).toBe(0.5)
  expect(agreement(of(1, 2, 3, 4), of())).toBe(0)
})

it('cells are medians over seeds', () => {
  const [cell, other] = cellsOf([1, 2, 9].map((milliseconds, seed) => fold({ milliseconds, seed })).concat(fold({ share: 0.25 })))
  expect(cell).toMatchObject({ milliseconds: 2, seeds: 3, variant: 'exact' })
  expect(other).toMatchObject({ share: 0.25, seeds: 1 })
})

it('scores compare with exact stream by stream', () => {
  const scores = scoresOf([
    answer({ stream: 0, accuracy: 0.9 }),
    answer({ stream: 1, accuracy: 0.5 }),
    answer({ way: 'splice', stream: 0, accuracy: 0.8 }),
    answer({ way: 'splice', stream: 1, accuracy: 0.4 }),
  ])
  expect(scores[0]).toMatchObject({ way: 'exact', accuracy: 0.7, against: null, streams: 2 })
  expect(scores[1]!.accuracy).toBeCloseTo(0.6)
  expect(scores[1]!.against!.difference).toBeCloseTo(-0.1)
  // Every stream lost the same, so the difference is sure though the accuracies are not.
  expect(scores[1]!.against!.interval[0]).toBeCloseTo(-0.1)
  expect(scores[1]!.against!.interval[1]).toBeCloseTo(-0.1)
})

describe('what is left behind', () => {
  it('can be read back', () => {
    expect(readBack(written(results))).toEqual(results)
  })

  it('is said in tables, with what was not measured', () => {
    for (const text of [forTerminal(results).join('\n'), forMarkdown(results)]) {
      expect(text).toContain('splice')
      expect(text.toLowerCase()).toContain('not measured: chains')
      expect(text).not.toMatch(/NaN|undefined|Infinity/u)
    }
  })

  it('is drawn, once for every score', () => {
    const svg = contractsFigure(scoresOf(results.answers), 'm')
    expect(svg).not.toMatch(/NaN|undefined|Infinity/u)
    // Points of accuracy and of what was computed, each with what it says, and the ways in the legend.
    expect(svg.match(/<circle/gu)).toHaveLength(5 + 2)
    expect(svg).toContain('splice, n = 16: 45.0')
    expect(svg).toContain('exact, n = 16: 500.0')
    for (const label of ['nothing folded', 'exact', 'splice', 'PI-LLM on m:', 'updates per key'])
      expect(svg).toContain(`>${label}`)
  })

  it('says nothing of what an early end left out', () => {
    const nothing = { ...results, folds: [], noise: [], answers: [], interrupted: true }
    expect(forTerminal(nothing).join('\n')).not.toMatch(/NaN|undefined|Infinity/u)
    expect(forMarkdown(nothing)).not.toMatch(/NaN|undefined|Infinity/u)
  })
})
