/** Tests the cost study on a real engine. Counts must be right; times differ between machines, so they are only used. */
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import {
  checkContext,
  expected,
  folded,
  longer,
  longest,
  MARKER,
  PAPER,
  type Point,
  pointsOf,
  predictLines,
  prospects,
  randomText,
  schedule,
  type TimedTask,
  ARMS,
} from '../../../bench/runtime/acm/schedule.js'
import { total } from '../../../bench/runtime/acm/line.js'
import {
  cellsFor,
  type Measured,
  pointResults,
  study,
  type StudyOptions,
  type TimedTurn,
} from '../../../bench/runtime/acm/study.js'
import { prefillTime, type CostModel } from '../../../src/runtime/kv/cost-model.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { tinyModel } from '../../support/models.js'

const BLEND = 0.25

const fit = <T extends string>(rates: Record<T, number>) => ({ rates, residual: { median: 0, worst: 0 }, samples: 9 })

/** A made-up cost model, from which every expected value can be computed. */
const COST: CostModel = {
  version: 1,
  on: {
    model: 'made up',
    architecture: 'llama',
    parameters: 1,
    size: 1,
    threads: 1,
    ubatch: 64,
    flashAttention: true,
    keyType: 'f16',
    valueType: 'f16',
    gpu: 'cpu',
    devices: [],
    cpu: 'none',
    release: 'none',
    date: '2026-01-01T00:00:00.000Z',
  },
  deepest: 512,
  prefill: fit({ call: 0, token: 1, read: 0, attended: 0, scanned: 0.0005 }),
  decode: fit({ token: 5, attended: 0.01, scanned: 0.002 }),
  books: fit({ step: 0.1, shown: 0, moved: 0 }),
  host: { saveBytesPerSecond: 1e9, loadBytesPerSecond: 1e9, bytesPerCell: 100 },
}

const anyPoint = fc
  .record({
    after: fc.integer({ min: MARKER + 2, max: 300 }),
    more: fc.integer({ min: MARKER, max: 600 }),
    share: fc.double({ min: 0, max: 1, noNaN: true }),
  })
  .map(({ after, more, share }): Point => ({ before: after + more, after, share }))

describe('a folded text', () => {
  it('has the requested length, its marker at the share, and its end unchanged', () => {
    fc.assert(
      fc.property(anyPoint, (point) => {
        const text = randomText(point.before, 1000, 7)
        const marker = new Int32Array(MARKER).fill(2000)
        const { tokens, origin } = folded(text, point, marker)
        expect(tokens.length).toBe(point.after)
        const start = tokens.indexOf(2000)
        expect(Math.abs(start - point.share * (point.after - MARKER))).toBeLessThanOrEqual(1)
        expect([...tokens.subarray(0, start)]).toEqual([...text.subarray(0, start)])
        const rest = point.after - MARKER - start
        expect(rest).toBeGreaterThan(0)
        expect([...tokens.subarray(start + MARKER)]).toEqual([...text.subarray(point.before - rest)])
        expect(origin!.holes).toEqual([{ span: { start, end: point.before - rest }, marker: MARKER }])
      }),
    )
  })
})

describe('the schedule', () => {
  it('fills in order and times every way once in each round, while the text is as long as its point', () => {
    fc.assert(
      fc.property(fc.array(anyPoint, { minLength: 1, maxLength: 4 }), fc.integer({ min: 1, max: 4 }), (points, rounds) => {
        let filled = 0
        const seen = new Map<string, number>()
        for (const task of schedule({ points, rounds })) {
          if (task.kind === 'fill') {
            expect(task.from).toBe(filled)
            expect(task.to).toBeGreaterThan(filled)
            filled = task.to
          } else if (task.kind === 'depth') expect(task.tokens).toBe(filled)
          else {
            expect(task.point.before).toBe(filled)
            if (task.kind === 'warm-up') continue
            const name = `${points.indexOf(task.point)} ${task.round} ${task.way}`
            seen.set(name, (seen.get(name) ?? 0) + 1)
          }
        }
        expect(seen.size).toBe(points.length * rounds * ARMS.length)
        expect([...seen.values()].every((times) => times === 1)).toBe(true)
      }),
    )
  })

  it('begins each round with another way', () => {
    const turns = schedule({ points: [{ before: 600, after: 200, share: 0 }], rounds: 4 }).filter(({ kind }) => kind === 'turn')
    const firsts = [0, 1, 2, 3].map((round) => (turns[4 * round] as Extract<TimedTask, { kind: 'turn' }>).way)
    expect(new Set(firsts).size).toBe(4)
  })

  it('expects the times of the cost model for each task', () => {
    const point = { before: 600, after: 200, share: 0.5 }
    const tasks: TimedTask[] = [
      { kind: 'fill', from: 100, to: 600 },
      { kind: 'turn', round: 0, point, way: 'exact' },
    ]
    const [filling, turn] = expected(COST, tasks, { generated: 10, blend: BLEND })
    expect(filling).toBeCloseTo(prefillTime(COST, { tokens: 500, attended: 100, cells: 100 }))
    expect(turn).toBeGreaterThan(total(predictLines(COST, point, BLEND).exact, 10))
  })
})

describe('contexts', () => {
  const limits = { cost: COST, shares: [0], rounds: 3, generated: 10, blend: BLEND, memory: 1e12 }

  it('are the longest that fit the time, the memory and the trained positions', () => {
    expect(longest({ ...limits, budget: 1e12, trained: null })).toEqual(PAPER)
    const short = longest({ ...limits, budget: 60_000, trained: null })
    expect(short.before).toBeLessThan(PAPER.before)
    expect(short.before / short.after).toBeCloseTo(PAPER.before / PAPER.after, 1)
    expect(longest({ ...limits, budget: 1e12, trained: 16_384 }).before).toBeLessThan(16_384)
    expect(longest({ ...limits, budget: 1e12, trained: null, memory: 100 * 60_000 }).before).toBeLessThan(60_000)
    expect(() => longest({ ...limits, budget: 1e12, trained: 256 })).toThrow(/too short/)
  })

  it('that cannot be folded are refused', () => {
    const rest = { trained: 4096, generated: 10 }
    expect(() => {
      checkContext({ before: 100, after: 90 }, rest)
    }).toThrow(/hides less than its marker/)
    expect(() => {
      checkContext({ before: 100, after: 10 }, rest)
    }).toThrow(/Nothing is left/)
    expect(() => {
      checkContext({ before: 4090, after: 1000 }, rest)
    }).toThrow(/trained on/)
    checkContext({ before: 4000, after: 1000 }, rest)
  })

  it('beyond the measured ones double up to the paper', () => {
    const all = longer(8000).map(({ before }) => before)
    expect(all.at(-1)).toBe(PAPER.before)
    expect(all[0]).toBeGreaterThan(8000)
    expect(longer(PAPER.before)).toEqual([])
  })
})

describe('results', () => {
  /** Returns the measurements of a machine that follows the cost model exactly. */
  function ideal(points: readonly Point[], rounds: number): Measured {
    const turns: TimedTurn[] = []
    const decode = (attended: number, cells: number) => 5 + 0.01 * (attended + 1) + 0.002 * (cells + 1)
    const turnOf = (point: Point, round: number) =>
      ARMS.map((way): TimedTurn => {
        const { shown, cells, runs } = prospects(point, BLEND)[way]
        const { first, perToken } = predictLines(COST, point, BLEND)[way]
        const computed = runs.reduce((sum, { tokens }) => sum + tokens, 0)
        const rest = { books: 0.1, prefill: first - 0.1, gaps: [perToken], approximate: 0, predicted: null }
        return { way, round, point, shown, cells, first, perToken, computed, ...rest }
      })
    for (let round = 0; round < rounds; round++) for (const point of points) turns.push(...turnOf(point, round))
    const depths = [250, 500, 1000, 2000].map((depth) => ({
      ...turns[0]!,
      way: 'keep' as const,
      shown: depth,
      cells: depth,
      perToken: decode(depth, depth),
    }))
    const fills = [0, 250, 500, 1000].map((from) => {
      const to = from === 0 ? 250 : 2 * from
      return { from, to, milliseconds: prefillTime(COST, { tokens: to - from, attended: from, cells: from }) }
    })
    return { fills, depths, turns, whole: true }
  }

  it('equal the predictions if the machine follows the cost model', () => {
    const points = pointsOf([{ before: 2000, after: 500 }], [0, 0.5, 0.9])
    const results = pointResults(ideal(points, 3), points, COST, BLEND)
    expect(results.length).toBe(3)
    for (const { ways, calibration, fit: own } of results)
      for (const { way, pays, paysInRounds, line } of ways) {
        if (way === 'keep') continue
        expect(pays).toEqual(calibration.pays[way])
        expect(paysInRounds).toEqual([pays!.from, pays!.from, pays!.from])
        expect(own.lines[way].perToken).toBeCloseTo(line.perToken, 3)
        expect(own.lines.exact.first / calibration.lines.exact.first).toBeCloseTo(1, 2)
      }
    // With more tokens before the fold, exact computes less.
    const exact = results.map(({ ways }) => ways.find(({ way }) => way === 'exact')!)
    expect(exact[0]!.pays!.from!).toBeGreaterThan(exact[1]!.pays!.from!)
    expect(exact[1]!.pays!.from!).toBeGreaterThan(exact[2]!.pays!.from!)
    // Offloaded cells are not scanned; a cell costs 0.002 ms.
    const first = exact[0]!
    expect(first.line.perToken - first.movedOff!.perToken).toBeCloseTo(0.002 * 2000, 3)
    expect(first.movedOff!.saving).toBeCloseTo((2000 * 100) / 1e6)
  })

  it('leave out points with a way that was never timed', () => {
    const points = pointsOf([{ before: 2000, after: 500 }], [0, 0.5])
    const whole = ideal(points, 1)
    const cut = { ...whole, turns: whole.turns.slice(0, -1), whole: false }
    expect(pointResults(cut, points, COST, BLEND).map(({ point }) => point)).toEqual([points[0]])
  })
})

describe('a study on a real engine', () => {
  const POINTS: readonly Point[] = [
    { before: 700, after: 200, share: 0 },
    { before: 700, after: 200, share: 0.5 },
    { before: 300, after: 100, share: 1 },
  ]
  let engine: LlamaEngine
  let options: StudyOptions

  beforeAll(async () => {
    const native = await openNative({ gpu: 'cpu' })
    engine = await LlamaEngine.load(native, await tinyModel(), {
      threads: 1,
      batchThreads: 1,
      ubatch: 64,
      cells: cellsFor(POINTS, 4),
      sequences: 16,
      slots: 1,
      hostBytes: 0,
    })
    options = { engine, cost: COST, points: POINTS, rounds: 2, generated: 4, blend: BLEND, seed: 3, clock: 'wall' }
  })

  afterAll(() => engine.dispose())

  it('times turns that compute the planned tokens, and leaves no cells behind', async () => {
    const shares: number[] = []
    const { turns, depths, fills, whole } = await study({ ...options, onProgress: (share) => shares.push(share) })
    expect(whole).toBe(true)
    expect(turns.length).toBe(POINTS.length * 2 * ARMS.length)
    expect(fills.at(-1)!.to).toBe(700)
    for (const { point, way, computed, cells, shown, gaps, first, perToken, approximate } of turns) {
      const prospect = prospects(point, BLEND)[way]
      expect(computed, way).toBe(prospect.runs.reduce((sum, { tokens }) => sum + tokens, 0))
      expect(shown).toBe(prospect.shown)
      // There are at most two more cells, for the last token decoded again. A blend keeps the cells that it replaces.
      const more = way === 'blend' ? computed : 2
      expect(cells).toBeGreaterThanOrEqual(prospect.cells)
      expect(cells).toBeLessThanOrEqual(prospect.cells + more)
      expect(gaps.length).toBe(3)
      expect(first).toBeGreaterThan(0)
      expect(perToken).toBeGreaterThan(0)
      if (way === 'exact' || way === 'keep') expect(approximate).toBe(0)
      if (way === 'splice' && point.share === 0) expect(approximate).toBeGreaterThan(100)
    }
    const exact = turns.filter(({ way, point }) => way === 'exact' && point === POINTS[0])
    // A second fold finds no cells of the first.
    expect(exact.map(({ computed }) => computed)).toEqual([200, 200])
    expect(depths.map((turn) => turn.shown)).toEqual(fills.map(({ to }) => to))
    expect(shares).toEqual([...shares].sort((a, b) => a - b))
    expect(engine.cacheTotals.used).toBe(700)
    await engine.check('full')
    engine.forget('acm-text' as Parameters<LlamaEngine['forget']>[0])
  })

  it('that is stopped returns the results so far, or throws if there are none', async () => {
    const early = new AbortController()
    const late = new AbortController()
    early.abort()
    await expect(study({ ...options, signal: early.signal })).rejects.toMatchObject({ code: 'engine/cancelled' })
    const stopped = await study({
      ...options,
      signal: late.signal,
      onProgress: (_, __, what) => {
        if (what.startsWith('round 2')) late.abort()
      },
    })
    expect(stopped.whole).toBe(false)
    expect(stopped.turns.length).toBe(ARMS.length)
  })
})
