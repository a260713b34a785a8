import fc from 'fast-check'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { span } from '../../src/core/span.js'
import { openNative } from '../../src/native/binding.js'
import type { Native, NativeContext, NativeModel } from '../../src/native/types.js'
import { TEST_GPU } from '../support/device.js'
import { mambaModel, slidingModel, tinyModel } from '../support/models.js'
import { batchOf, feed, refused, seq, someTokens } from './fixture.js'

const SEQUENCES = 4
const CELLS = 256

let native: Native
let model: NativeModel
let context: NativeContext

beforeAll(async () => {
  native = await openNative({ gpu: TEST_GPU })
  model = await native.loadModel(await tinyModel())
})
beforeEach(async () => {
  context = await model.createContext({ cells: CELLS, sequences: SEQUENCES, batch: 64, ubatch: 64, threads: 1 })
})
afterEach(() => context.dispose())
afterAll(() => model.dispose())

/** What readback should say, sorted: one line a cell. */
const lines = (cells: readonly { readonly position: number; readonly sequences: readonly number[] }[]): string[] =>
  cells.map(({ position, sequences }) => `${position}: ${[...sequences].sort().join(' ')}`).sort()

const largestDifference = (a: Float32Array, b: Float32Array): number =>
  a.reduce((most, value, index) => Math.max(most, Math.abs(value - (b[index] ?? Infinity))), 0)

describe('tags', () => {
  test('a tagged prefix is read by both sequences and costs no cell', async () => {
    const tokens = someTokens(30)
    await feed(context, tokens.subarray(0, 20), 0, 0)
    context.tag(seq(0), seq(1), span(0, 20))
    expect(context.readback()).toHaveLength(20)
    await feed(context, tokens.subarray(20), 20, 1)
    const shared = context.logits(9)
    expect(context.positions(seq(0))).toEqual({ min: 0, max: 19 })
    expect(context.positions(seq(1))).toEqual({ min: 0, max: 29 })
    await feed(context, tokens, 0, 2)
    expect(largestDifference(shared, context.logits(29))).toBeLessThan(0.05)
  })

  test('what is untagged is no longer seen, and its cells are free', async () => {
    await feed(context, someTokens(40), 0, 0)
    context.untag(seq(0), span(10, 40))
    expect(context.readback()).toHaveLength(10)
    await feed(context, someTokens(5, 1), 10, 0)
    const after = context.logits(4)
    context.clear()
    await feed(context, [...someTokens(10), ...someTokens(5, 1)], 0, 0)
    expect(largestDifference(after, context.logits(14))).toBeLessThan(0.05)
  })

  test('cells, tags and positions are those of a naive model after any operations', async () => {
    const operation = fc.oneof(
      fc.record({ kind: fc.constant('feed' as const), to: fc.nat(SEQUENCES - 1), count: fc.integer({ min: 1, max: 20 }) }),
      fc.record({
        kind: fc.constant('tag' as const),
        from: fc.nat(SEQUENCES - 1),
        to: fc.nat(SEQUENCES - 1),
        a: fc.nat(30),
        b: fc.nat(30),
      }),
      fc.record({ kind: fc.constant('untag' as const), from: fc.nat(SEQUENCES - 1), a: fc.nat(30), b: fc.nat(30) }),
      fc.record({
        kind: fc.constant('shift' as const),
        from: fc.nat(SEQUENCES - 1),
        a: fc.nat(30),
        delta: fc.integer({ min: 1, max: 4 }),
      }),
    )
    await fc.assert(
      fc.asyncProperty(fc.array(operation, { maxLength: 25 }), async (operations) => {
        context.clear()
        let cells: { position: number; sequences: Set<number> }[] = []
        const held = (of: number) => cells.filter(({ sequences }) => sequences.has(of)).map(({ position }) => position)
        for (const step of operations) {
          if (step.kind === 'feed') {
            const start = Math.max(-1, ...held(step.to)) + 1
            const status = await context.decode(batchOf(someTokens(step.count), start, step.to))
            expect(status).toBe(cells.length + step.count <= CELLS ? 'done' : 'no-room')
            if (status === 'done')
              for (let at = 0; at < step.count; at++) cells.push({ position: start + at, sequences: new Set([step.to]) })
          } else if (step.kind === 'shift') {
            context.shift(seq(step.from), span(step.a, 60), step.delta)
            for (const cell of cells)
              if (cell.sequences.has(step.from) && cell.position >= step.a && cell.position < 60) cell.position += step.delta
          } else {
            const [start, end] = [Math.min(step.a, step.b), Math.max(step.a, step.b)]
            if (step.kind === 'tag') context.tag(seq(step.from), seq(step.to), span(start, end))
            else context.untag(seq(step.from), span(start, end))
            for (const { position, sequences } of cells)
              if (position >= start && position < end && sequences.has(step.from)) {
                if (step.kind === 'tag') sequences.add(step.to)
                else sequences.delete(step.from)
              }
            cells = cells.filter(({ sequences }) => sequences.size > 0)
          }
          expect(lines(context.readback())).toEqual(
            lines(cells.map(({ position, sequences }) => ({ position, sequences: [...sequences] }))),
          )
          for (let of = 0; of < SEQUENCES; of++) {
            const positions = held(of)
            expect(context.positions(seq(of))).toEqual(
              positions.length === 0 ? null : { min: Math.min(...positions), max: Math.max(...positions) },
            )
          }
        }
      }),
      { numRuns: 25 },
    )
  })

  test('a shift moves what is read', async () => {
    await feed(context, someTokens(20), 0, 0)
    context.shift(seq(0), span(10, 20), 5)
    expect(context.positions(seq(0))).toEqual({ min: 0, max: 24 })
    await feed(context, [1], 25, 0)
    expect(context.logits(0).every(Number.isFinite)).toBe(true)
  })

  test.each<[string, (of: NativeContext) => unknown]>([
    [
      'tag from a sequence that does not exist',
      (of) => {
        of.tag(seq(9), seq(0), span(0, 1))
      },
    ],
    [
      'tag onto a sequence that does not exist',
      (of) => {
        of.tag(seq(0), seq(-1), span(0, 1))
      },
    ],
    [
      'tag of a span from below 0',
      (of) => {
        of.tag(seq(0), seq(1), span(-1, 3))
      },
    ],
    [
      'untag of a span that ends before it begins',
      (of) => {
        of.untag(seq(0), span(4, 3))
      },
    ],
    [
      'untag of a span of no numbers',
      (of) => {
        of.untag(seq(0), span(0, NaN))
      },
    ],
    [
      'untag beyond the last position',
      (of) => {
        of.untag(seq(0), span(0, 2 ** 31))
      },
    ],
    [
      'untag of half a sequence id',
      (of) => {
        of.untag(seq(0.5), span(0, 1))
      },
    ],
    ['positions of a sequence that does not exist', (of) => of.positions(seq(4))],
    [
      'shift below 0',
      (of) => {
        of.shift(seq(0), span(2, 8), -3)
      },
    ],
    [
      'shift by half a position',
      (of) => {
        of.shift(seq(0), span(2, 8), 0.5)
      },
    ],
    [
      'shift beyond the last position',
      (of) => {
        of.shift(seq(0), span(2, 8), 2 ** 31 - 5)
      },
    ],
    ['a save of a sequence that does not exist', (of) => of.saveSequence(seq(4))],
  ])('refuses %s', async (_, call) => {
    await feed(context, someTokens(10))
    await refused('native/bad-argument', () => call(context))
    expect(context.readback()).toHaveLength(10)
  })
})

describe('models whose state is no table of cells', () => {
  test('a recurrent model decodes, and its parts cannot be cut', async () => {
    const mamba = await native.loadModel(await mambaModel())
    expect(mamba.info).toMatchObject({ recurrent: true, architecture: 'mamba', rope: 'none' })
    const own = await mamba.createContext({ cells: 256, sequences: 4, threads: 1 })
    expect(own.canShift).toBe(false)
    await feed(own, someTokens(20))
    await refused('model/unsupported', () => {
      own.untag(seq(0), span(5, 10))
    })
    await refused('model/unsupported', () => {
      own.untag(seq(0), span(5, 20))
    })
    await refused('model/unsupported', () => {
      own.tag(seq(0), seq(1), span(0, 10))
    })
    await refused('model/unsupported', () => {
      own.shift(seq(0), span(0, 10), 1)
    })
    await refused('model/unsupported', () => own.readback())
    own.tag(seq(0), seq(1), span(0, 20))
    expect(own.positions(seq(1))?.max).toBe(19)
    own.untag(seq(0), span(0, 20))
    expect(own.positions(seq(0))).toBeNull()
    await mamba.dispose()
  })

  test('a sliding window that moved on cannot be cut, unless it was kept full', async () => {
    const sliding = await native.loadModel(await slidingModel())
    expect(sliding.info.slidingWindow).toBe(64)
    const short = await sliding.createContext({ cells: 512, sequences: 2, batch: 256, ubatch: 64, threads: 1 })
    await feed(short, someTokens(250))
    await feed(short, someTokens(150), 250)
    expect(short.positions(seq(0))?.min).toBeGreaterThan(0)
    await refused('model/unsupported', () => {
      short.untag(seq(0), span(300, 400))
    })
    await refused('model/unsupported', () => {
      short.tag(seq(0), seq(1), span(0, 100))
    })
    short.untag(seq(0), span(0, 400))
    expect(short.positions(seq(0))).toBeNull()

    const full = await sliding.createContext({ cells: 512, sequences: 2, batch: 256, threads: 1, fullSlidingWindow: true })
    await feed(full, someTokens(250))
    await feed(full, someTokens(50), 250)
    full.untag(seq(0), span(200, 300))
    await feed(full, someTokens(10, 1), 200)
    const edited = full.logits(9)
    await feed(full, [...someTokens(200), ...someTokens(10, 1)], 0, 1)
    expect(largestDifference(edited, full.logits(209))).toBeLessThan(0.2)
    await sliding.dispose()
  })
})

describe('sequence state', () => {
  test('a saved sequence loads into another context and goes on the same', async () => {
    await feed(context, someTokens(30), 0, 2)
    const state = context.saveSequence(seq(2))
    await feed(context, [7], 30, 2)
    const expected = context.logits(0)
    const other = await model.createContext({ cells: CELLS, sequences: 2, threads: 1 })
    expect(other.loadSequence(seq(1), state)).toBe(true)
    expect(other.positions(seq(1))).toEqual({ min: 0, max: 29 })
    await feed(other, [7], 30, 1)
    expect(largestDifference(other.logits(0), expected)).toBeLessThan(0.05)
    await refused('native/bad-argument', () => other.loadSequence(seq(1), state))
  })

  test('damaged, foreign and too large states load nothing', async () => {
    await feed(context, someTokens(30))
    const state = context.saveSequence(seq(0))
    const before = lines(context.readback())
    for (const at of [0, 10, 41, 60, state.length - 1]) {
      const damaged = state.slice()
      damaged[at] = (damaged[at] ?? 0) ^ 1
      expect(context.loadSequence(seq(1), damaged)).toBe(false)
    }
    expect(context.loadSequence(seq(1), state.subarray(0, state.length - 1))).toBe(false)
    expect(context.loadSequence(seq(1), new Uint8Array())).toBe(false)
    const transposed = await model.createContext({ cells: CELLS, sequences: 2, threads: 1, flashAttention: 'off' })
    expect(transposed.loadSequence(seq(0), state)).toBe(false)
    const quantised = await model.createContext({ cells: CELLS, sequences: 2, threads: 1, keyType: 'f32' })
    expect(quantised.loadSequence(seq(0), state)).toBe(false)
    expect(lines(context.readback())).toEqual(before)

    await feed(context, someTokens(60), 0, 1)
    for (let start = 0; start < 150; start += 50) await feed(context, someTokens(50), start, 3)
    expect(context.loadSequence(seq(2), state)).toBe(false)
    expect(context.positions(seq(2))).toBeNull()
    expect(context.readback()).toHaveLength(240)
    await feed(context, someTokens(16), 0, 2)
  })
})
