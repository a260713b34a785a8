/** Tests eviction when cells or sequence ids are short: which sequences go, in which order, and which step the ledger charges. */
import { describe, expect, it } from 'vitest'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { OffloadTiers } from '../../../src/runtime/kv/offload.js'
import { CacheHarness, missing, shownOf } from './support/cache-harness.js'
import type { NaiveMemory } from './support/naive-memory.js'
import { PromptDraft } from './support/prompt-draft.js'
import { Through } from './support/through.js'

/** Returns `count` tokens that occur in no other text. */
const text = (from: number, count: number): number[] => Array.from({ length: count }, (_, offset) => from + offset)

const system = text(100, 10)
const long = text(200, 40)
const tail = text(300, 15)

describe('when room runs out', () => {
  const solo = (name: number) => text(1000 * name, 20)

  it('of cells: drops parked versions before idle live sequences, least recently used first, and never a running one', () => {
    const harness = new CacheHarness({ cells: 100, sequences: 10 })
    // The versions are of a, then of b. The live sequences were last used in the order b, a, c.
    harness.step('a', shownOf(solo(1)))
    harness.step('b', shownOf(solo(2)))
    harness.step('a', shownOf(text(1100, 10)))
    harness.step('b', shownOf(text(2100, 10)))
    harness.step('a', shownOf(text(1100, 10)))
    harness.step('c', shownOf(solo(3)))
    const holders = () => [...harness.memory.contents().values()].map(([first]) => first).sort((x, y) => x! - y!)
    expect(holders()).toEqual([1000, 1100, 2000, 2100, 3000])
    const running = harness.start('d', shownOf(text(5000, 100)))!
    const grow = (count: number, left: number[], evicted: number) => {
      harness.decode(running, count)
      expect(holders()).toEqual([...left, 5000].sort((x, y) => x - y))
      expect(running.step.evicted).toBe(evicted)
    }
    grow(20, [1000, 1100, 2000, 2100, 3000], 0)
    grow(1, [1100, 2000, 2100, 3000], 20)
    grow(20, [1100, 2100, 3000], 40)
    grow(20, [1100, 3000], 50)
    grow(10, [3000], 60)
    grow(29, [], 80)
    expect(harness.finish('d')).toMatchObject({ evicted: 80, fresh: 100 })
    expect(harness.step('a', shownOf(text(1100, 10)))).toMatchObject({ step: 3, reused: 0, recomputed: 10, evicted: 100 })
  })

  it('tells whether a step fits beside its kept cells and those of running steps, and drops none to find out', () => {
    const harness = new CacheHarness({ cells: 100, sequences: 10 })
    harness.step('idle', shownOf(solo(2)))
    harness.step('a', shownOf(text(1100, 40)))
    const running = harness.start('b', shownOf(text(5000, 40)))!
    harness.decode(running, 40)
    const sequence = harness.cache.live(conversationId('a'))!
    const fits = (count: number) => harness.cache.fits(sequence, harness.cache.plan(sequence, shownOf(text(1100, count))))
    expect([fits(60), fits(61)]).toEqual([true, false])
    expect(sequence.held).toBe(40)
    expect(harness.cache.totals.used).toBe(100)
    harness.finish('b')
  })

  it('loads the saved cells of another conversation only for more than a 32nd of them', async () => {
    for (const [common, lent] of [
      [3, 0],
      [4, 4],
    ] as const) {
      const offload = new OffloadTiers({ hostBytes: 1e6 })
      const harness = new CacheHarness({ cells: 200, sequences: 10, options: { offload } })
      harness.step('a', shownOf(text(100, common), text(1000, 96 - common)))
      harness.step('b', shownOf(text(5000, 190)))
      expect(offload.totals.host).toMatchObject({ sequences: 1, tokens: 96 })
      const running = (await harness.fetch('c', shownOf(text(100, common), text(3000, 20))))!
      harness.decode(running, missing(running))
      expect(harness.finish('c')).toMatchObject({ fresh: 20 + common - lent })
    }
  })

  it('loses a sequence that memory has no room to save, and goes on', () => {
    const offload = new OffloadTiers({ hostBytes: 1e6 })
    const wrap = (memory: NaiveMemory) =>
      new (class extends Through {
        override saveSequence(): never {
          throw new KvfoldError('memory/insufficient', 'There is no memory for that.')
        }
      })(memory)
    const harness = new CacheHarness({ cells: 100, sequences: 10, wrap, options: { offload } })
    harness.step('a', shownOf(solo(1)))
    expect(harness.step('b', shownOf(text(5000, 90)))).toMatchObject({ fresh: 90, evicted: 20 })
    expect(offload.totals.host.sequences).toBe(0)
    expect(harness.step('a', shownOf(solo(1)))).toMatchObject({ reused: 0, recomputed: 20 })
  })

  it('begins a conversation anew after a step whose cells could not be changed', () => {
    let fails = false
    const wrap = (memory: NaiveMemory) =>
      new (class extends Through {
        override tag(...given: Parameters<Through['tag']>): void {
          if (fails) throw new KvfoldError('memory/insufficient', 'There is no memory for that.')
          super.tag(...given)
        }
      })(memory)
    const harness = new CacheHarness({ cells: 200, sequences: 10, wrap })
    harness.terms = { contract: 'splice' }
    const prompt = new PromptDraft([text(1000, 20), text(2000, 60), text(3000, 20)], [1, 2])
    harness.step('a', prompt.shown)
    prompt.fold(25, 70, [9])
    fails = true
    expect(() => harness.start('a', prompt.shown)).toThrow('no memory')
    fails = false
    expect(harness.cache.live('a' as never)).toBe(null)
    expect(harness.step('a', prompt.shown)).toMatchObject({ approximate: 0, reused: 0, submitted: 58 })
  })

  it('evicts a live sequence that no request will continue before older ones, until a request continues it', () => {
    const harness = new CacheHarness({ cells: 60, sequences: 10 })
    const firstToGo = () => {
      const running = harness.start('d', shownOf(text(5000, 5)))!
      harness.decode(running, 5)
      const left = [...harness.memory.contents().values()].map(([first]) => first)
      harness.finish('d')
      harness.forget('d')
      return [1000, 2000, 3000].find((first) => !left.includes(first))
    }
    const begin = (name: string, at: number, last = false) => {
      const running = harness.start(name, shownOf(solo(at)))!
      while (missing(running) > 0) harness.decode(running, 50)
      harness.finish(name, 'done', 0, last)
    }
    begin('a', 1)
    begin('b', 2, true)
    begin('c', 3)
    expect(firstToGo()).toBe(2000)
    begin('b', 2, true)
    begin('b', 2)
    begin('c', 3)
    begin('a', 1)
    expect(firstToGo()).toBe(2000)
  })

  it('a version that lent cells counts as more recently used than one that did not', () => {
    const harness = new CacheHarness({ cells: 70, sequences: 10 })
    harness.step('a', shownOf(solo(1)))
    harness.step('a', shownOf(solo(2)))
    harness.step('a', shownOf(solo(3)))
    harness.step('b', shownOf([...solo(1).slice(0, 10), 7]))
    const running = harness.start('c', shownOf(text(5000, 20)))!
    harness.decode(running, 20)
    expect([...harness.memory.contents().values()].map(([first]) => first).sort()).toEqual([1000, 1000, 3000, 5000])
  })

  it('a version parked after another one lent cells counts as more recently used than that one', () => {
    const harness = new CacheHarness({ cells: 71, sequences: 10 })
    harness.step('a', shownOf(solo(1)))
    harness.step('a', shownOf(solo(2)))
    harness.step('b', shownOf([...solo(1).slice(0, 10), 7]))
    harness.step('a', shownOf(solo(3)))
    harness.decode(harness.start('c', shownOf(text(5000, 20)))!, 20)
    expect([...harness.memory.contents().values()].map(([first]) => first).sort()).toEqual([1000, 2000, 3000, 5000])
    expect(harness.cache.totals.versions).toBe(1)
  })

  it('a live sequence is as recent as the end of its last step', () => {
    const harness = new CacheHarness({ cells: 60 })
    const a = harness.start('a', shownOf(solo(1)))!
    const b = harness.start('b', shownOf(solo(2)))!
    harness.decode(a, 20)
    harness.decode(b, 20)
    harness.finish('b')
    harness.finish('a')
    harness.decode(harness.start('c', shownOf(text(5000, 21)))!, 21)
    expect([...harness.memory.contents().values()].map(([first]) => first).sort()).toEqual([1000, 5000])
  })

  it('of sequence ids: evicts versions, then idle live sequences, then reports that it is full', () => {
    const harness = new CacheHarness({ sequences: 3 })
    harness.step('a', shownOf(solo(1)))
    harness.step('a', shownOf(solo(2)))
    harness.step('b', shownOf(solo(3)))
    const c = harness.start('c', shownOf(solo(4)))!
    expect(c.step.evicted).toBe(20)
    const d = harness.start('d', shownOf(solo(5)))!
    expect(d.step.evicted).toBe(20)
    expect(harness.memory.contents().size).toBe(1)
    harness.start('e', shownOf(solo(6)))
    const before = harness.memory.readback()
    expect(harness.start('f', shownOf(solo(7)))).toBeNull()
    expect(harness.memory.readback()).toEqual(before)
    expect(harness.cache.open(conversationId('f'))).toMatchObject({
      kind: 'full',
      reason: expect.stringContaining('All 3 sequences') as string,
    })
  })

  it('counts as evicted only cells that no other sequence holds', () => {
    const harness = new CacheHarness({ sequences: 2 })
    harness.step('a', shownOf(system, long))
    harness.step('a', shownOf(system, tail))
    expect(harness.start('b', shownOf(solo(1)))!.step.evicted).toBe(40)
  })
})
