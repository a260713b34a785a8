/**
 * The suite that every `KvMemory` passes: cells, tags and positions after any calls, saved states, refusals. llama.cpp's memory and the
 * tests' naive one run it.
 */
import fc from 'fast-check'
import { beforeEach, describe, expect, it } from 'vitest'
import { seqId, type SeqId } from '../../../src/runtime/core/ids.js'
import { span, type Span } from '../../../src/runtime/core/span.js'
import type { KvMemory } from '../../../src/runtime/kv/ports.js'
import { largestDifference } from '../../support/predictions.js'

/** The size of every memory under test. */
export const SIZE = { cells: 256, sequences: 4 }

export interface MemoryOnTrial {
  readonly memory: KvMemory
  /**
   * Whether the memory refuses calls that the port forbids, such as two cells of one position in a sequence. llama.cpp carries them out.
   */
  readonly strict: boolean
  /** Decodes into `seq` from position `start` on. Returns false when there is no room; then no cell is added. */
  decode(seq: SeqId, start: number, tokens: Int32Array): Promise<boolean>
  /** Decodes one token and returns numbers that depend on the cells it sees. Two looks at the same cells give nearly the same numbers. */
  look(seq: SeqId, position: number, token: number): Promise<Float32Array>
  /** Makes a call, and expects that the memory refuses it as a caller's mistake. */
  refused(call: () => unknown): Promise<unknown>
}

type Memory = KvMemory

/** How far two looks at the same cells may differ through the noise of kernels. */
const NEARLY = 0.05
const ALL = span(0, 2 ** 31 - 1)

/** Returns `count` ordinary tokens, the same for the same salt. */
export const someTokens = (count: number, salt = 0): Int32Array =>
  Int32Array.from({ length: count }, (_, index) => (index * 7 + salt * 13) % 256)

const sequence = fc.nat(SIZE.sequences - 1).map(seqId)
const stretch = fc.tuple(fc.nat(30), fc.nat(30)).map(([a, b]) => span(Math.min(a, b), Math.max(a, b)))
const operation = fc.oneof(
  fc.record({ do: fc.constant('feed' as const), to: sequence, count: fc.integer({ min: 1, max: 20 }) }),
  fc.record({ do: fc.constant('tag' as const), from: sequence, to: sequence, of: stretch }),
  fc.record({ do: fc.constant('untag' as const), from: sequence, of: stretch }),
  fc.record({
    do: fc.constant('shift' as const),
    from: sequence,
    of: fc.nat(30).map((start) => span(start, 60)),
    by: fc.integer({ min: 1, max: 4 }),
  }),
  fc.record({ do: fc.constant('move' as const), from: sequence, to: sequence }),
)

/** The expected cells, one by one. */
class Cells {
  all: { position: number; readonly tags: Set<SeqId> }[] = []

  of(seq: SeqId, { start, end }: Span = ALL) {
    return this.all.filter(({ position, tags }) => tags.has(seq) && position >= start && position < end)
  }

  positions(seq: SeqId): number[] {
    return this.of(seq).map(({ position }) => position)
  }

  /** Whether some sequence holds a position twice. */
  get doubled(): boolean {
    const liveOnes = Array.from({ length: SIZE.sequences }, (_, id) => this.positions(seqId(id)))
    return liveOnes.some((held) => new Set(held).size < held.length)
  }
}

/** Returns one line for each cell, sorted. */
const lines = (cells: readonly { readonly position: number; readonly sequences: Iterable<SeqId> }[]): string[] =>
  cells.map(({ position, sequences }) => `${position}: ${[...sequences].sort().join(' ')}`).sort()

/**
 * Declares the tests of one memory.
 * @param make Returns an empty memory of SIZE; called before every test.
 */
export function keepsKvMemoryContract(make: () => MemoryOnTrial | Promise<MemoryOnTrial>): void {
  let trial: MemoryOnTrial
  let memory: Memory
  const [a, b, c, d] = [0, 1, 2, 3].map(seqId) as [SeqId, SeqId, SeqId, SeqId]

  beforeEach(async () => {
    trial = await make()
    memory = trial.memory
  })

  const feed = async (seq: SeqId, tokens: ArrayLike<number>, start = 0) => {
    expect(await trial.decode(seq, start, Int32Array.from(tokens))).toBe(true)
  }
  const held = () => lines(memory.readback())

  describe('cells, tags and positions', () => {
    it('follow from the calls made before', async () => {
      await fc.assert(
        fc.asyncProperty(fc.array(operation, { maxLength: 25 }), async (operations) => {
          for (let id = 0; id < SIZE.sequences; id++) memory.untag(seqId(id), ALL)
          const cells = new Cells()
          /** The next decode shifts the keys; a state saved before that has the old ones. */
          let turning = false
          for (const step of operations) {
            if (step.do === 'feed') {
              const start = Math.max(-1, ...cells.positions(step.to)) + 1
              const fits = cells.all.length + step.count <= SIZE.cells
              expect(await trial.decode(step.to, start, someTokens(step.count))).toBe(fits)
              for (let at = 0; fits && at < step.count; at++) cells.all.push({ position: start + at, tags: new Set([step.to]) })
              turning &&= !fits
            } else if (step.do === 'move') {
              if (turning || cells.doubled || cells.of(step.to).length > 0 || cells.of(step.from).length === 0) continue
              const state = memory.saveSequence(step.from)
              const positions = cells.positions(step.from)
              const fits = cells.all.length + positions.length <= SIZE.cells
              expect(memory.loadSequence(step.to, state)).toBe(fits)
              if (fits) for (const position of positions) cells.all.push({ position, tags: new Set([step.to]) })
            } else {
              const struck = cells.of(step.from, step.of)
              const before = cells.all.map(({ position, tags }) => ({ position, tags: new Set(tags) }))
              if (step.do === 'tag') for (const { tags } of struck) tags.add(step.to)
              else if (step.do === 'untag') for (const { tags } of struck) tags.delete(step.from)
              else for (const cell of struck) cell.position += step.by
              if (trial.strict && cells.doubled) {
                cells.all = before
                continue
              }
              cells.all = cells.all.filter(({ tags }) => tags.size > 0)
              if (step.do === 'tag') memory.tag(step.from, step.to, step.of)
              else if (step.do === 'untag') memory.untag(step.from, step.of)
              else memory.shift(step.from, step.of, step.by)
              turning ||= step.do === 'shift'
            }
            expect(held()).toEqual(lines(cells.all.map(({ position, tags }) => ({ position, sequences: tags }))))
            for (let id = 0; id < SIZE.sequences; id++) {
              const positions = cells.positions(seqId(id))
              const ends = positions.length === 0 ? null : { min: Math.min(...positions), max: Math.max(...positions) }
              expect(memory.positions(seqId(id))).toEqual(ends)
            }
          }
        }),
        { numRuns: 40 },
      )
    })

    it('are not added when there is no room for all of them', async () => {
      for (let start = 0; start < 250; start += 50) await feed(a, someTokens(50), start)
      expect(await trial.decode(b, 0, someTokens(7))).toBe(false)
      expect(memory.positions(b)).toBeNull()
      await feed(b, someTokens(6))
      expect(memory.readback()).toHaveLength(SIZE.cells)
    })
  })

  describe('a token sees', () => {
    it('a tagged prefix, whichever sequence computed it, at no further cells', async () => {
      const tokens = someTokens(30)
      await feed(a, tokens.subarray(0, 20))
      memory.tag(a, b, span(0, 20))
      expect(memory.readback()).toHaveLength(20)
      await feed(b, tokens.subarray(20, 29), 20)
      const shared = await trial.look(b, 29, tokens[29]!)
      expect([memory.positions(a), memory.positions(b)]).toEqual([
        { min: 0, max: 19 },
        { min: 0, max: 29 },
      ])
      await feed(c, tokens.subarray(0, 29))
      expect(largestDifference(shared, await trial.look(c, 29, tokens[29]!))).toBeLessThan(NEARLY)
    })

    it('no longer an untagged prefix, whose cells are free', async () => {
      await feed(a, someTokens(40))
      memory.untag(a, span(10, 40))
      expect(memory.readback()).toHaveLength(10)
      await feed(a, someTokens(4, 1), 10)
      const after = await trial.look(a, 14, 5)
      await feed(b, [...someTokens(10), ...someTokens(4, 1)])
      expect(largestDifference(after, await trial.look(b, 14, 5))).toBeLessThan(NEARLY)
      await feed(c, someTokens(14))
      expect(largestDifference(after, await trial.look(c, 14, 5))).toBeGreaterThan(NEARLY)
    })

    it('cells that depend on what their sequence held when they were computed', async () => {
      await feed(a, [...someTokens(20), ...someTokens(8, 1)])
      memory.untag(a, span(10, 20))
      const spliced = await trial.look(a, 28, 5)
      await feed(b, someTokens(10))
      await feed(b, someTokens(8, 1), 10)
      expect(largestDifference(spliced, await trial.look(b, 18, 5))).toBeGreaterThan(NEARLY)
    })
  })

  describe('a saved state', () => {
    it('loads as cells like those that were saved, which stay as they are', async () => {
      await feed(a, someTokens(30))
      const before = held()
      const state = memory.saveSequence(a)
      expect(held()).toEqual(before)
      expect(memory.loadSequence(b, state)).toBe(true)
      expect([memory.positions(b), memory.readback().length]).toEqual([{ min: 0, max: 29 }, 60])
      const expected = await trial.look(a, 30, 7)
      expect(largestDifference(await trial.look(b, 30, 7), expected)).toBeLessThan(NEARLY)
    })

    it('that is foreign or cut off changes nothing', async () => {
      await feed(a, someTokens(30))
      const state = memory.saveSequence(a)
      const before = held()
      const foreign = state.slice()
      foreign[0] = (foreign[0] ?? 0) ^ 1
      expect(memory.loadSequence(b, foreign)).toBe(false)
      for (const length of [0, 1, 5, 60, state.length - 1, state.length - 16])
        expect(memory.loadSequence(b, state.subarray(0, length)), String(length)).toBe(false)
      expect(held()).toEqual(before)
    })

    it('without room for it changes nothing', async () => {
      await feed(a, someTokens(30))
      const state = memory.saveSequence(a)
      await feed(b, someTokens(60))
      for (let start = 0; start < 150; start += 50) await feed(d, someTokens(50), start)
      expect(memory.loadSequence(c, state)).toBe(false)
      expect(memory.positions(c)).toBeNull()
      expect(memory.readback()).toHaveLength(240)
      await feed(c, someTokens(16))
    })
  })

  it.each<[string, (of: Memory) => unknown]>([
    [
      'a tag from a sequence that does not exist',
      (of) => {
        of.tag(seqId(9), a, span(0, 1))
      },
    ],
    [
      'a tag onto a sequence that does not exist',
      (of) => {
        of.tag(a, seqId(-1), span(0, 1))
      },
    ],
    [
      'a tag of a span from below 0',
      (of) => {
        of.tag(a, b, span(-1, 3))
      },
    ],
    [
      'an untag of a span that ends before it begins',
      (of) => {
        of.untag(a, span(4, 3))
      },
    ],
    [
      'an untag of a span of no numbers',
      (of) => {
        of.untag(a, span(0, NaN))
      },
    ],
    [
      'an untag beyond the last position',
      (of) => {
        of.untag(a, span(0, 2 ** 31))
      },
    ],
    [
      'an untag of half a sequence id',
      (of) => {
        of.untag(seqId(0.5), span(0, 1))
      },
    ],
    ['positions of a sequence that does not exist', (of) => of.positions(seqId(4))],
    [
      'a shift below 0',
      (of) => {
        of.shift(a, span(2, 8), -3)
      },
    ],
    [
      'a shift by half a position',
      (of) => {
        of.shift(a, span(2, 8), 0.5)
      },
    ],
    [
      'a shift beyond the last position',
      (of) => {
        of.shift(a, span(2, 8), 2 ** 31 - 5)
      },
    ],
    ['a save of a sequence that does not exist', (of) => of.saveSequence(seqId(4))],
    ['a load into a sequence that does not exist', (of) => of.loadSequence(seqId(4), of.saveSequence(a))],
    ['a load into a sequence that holds something', (of) => of.loadSequence(a, of.saveSequence(a))],
  ])('refuses %s, and changes nothing', async (_, call) => {
    await feed(a, someTokens(10))
    const before = held()
    await trial.refused(() => call(memory))
    expect(held()).toEqual(before)
  })
}
