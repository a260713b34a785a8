/** Tests how a step's tokens are split among messages, against a naive count. */
import fc from 'fast-check'
import { describe, expect, it, vi } from 'vitest'
import type { Span } from '../../../src/runtime/core/span.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { messageCosts, withGenerated } from '../../../src/runtime/kv/ledger.js'
import { OffloadTiers } from '../../../src/runtime/kv/offload.js'
import { commonPrefix } from '../../../src/runtime/kv/prompt.js'
import { CacheHarness, missing, shownOf } from './support/cache-harness.js'
import { CheckpointHarness } from './support/checkpoint-harness.js'

const tokens = fc.array(fc.integer({ min: 1, max: 3 }), { maxLength: 8 })
const messages = fc.array(tokens, { minLength: 1, maxLength: 5 })

const flags = fc.array(fc.boolean(), { minLength: 40, maxLength: 40 })

/** Returns the runs of marked tokens. */
function stretches(marked: readonly boolean[]): Span[] {
  const found: Span[] = []
  for (const [at, is] of marked.entries()) if (is) found.push({ start: at, end: at + 1 })
  return found
}

/** Returns, for each token of `now`, whether `before` has it at the same distance from the beginning or the end, in one run from there. */
function oldOnes(before: readonly number[], now: readonly number[]): boolean[] {
  const old = now.map(() => false)
  let head = 0
  for (; head < now.length && head < before.length && now[head] === before[head]; head++) old[head] = true
  for (let back = 1; back <= Math.min(now.length, before.length) - head && now.at(-back) === before.at(-back); back++)
    old[now.length - back] = true
  return old
}

describe('message costs', () => {
  it('agree with a token-by-token count', () => {
    fc.assert(
      fc.property(messages, fc.option(messages), tokens, flags, fc.nat(50), (now, before, generated, isComputed, exact) => {
        const shown = shownOf(...now)
        const whole = withGenerated(shown, Int32Array.from([...now.flat(), ...generated]))
        const asked = shown.tokens.length
        const computed = stretches(isComputed.slice(0, asked))
        const costs = messageCosts(whole, computed, asked, before === null ? null : shownOf(...before), exact)
        let at = 0
        for (const [index, message] of now.entries()) {
          const all = index === now.length - 1 ? [...message, ...generated] : message
          const old = before?.[index] === undefined ? all.map(() => false) : oldOnes(before[index], all)
          const kinds = all.map((_, offset) => {
            const place = at + offset
            if (place < asked && isComputed[place] !== true) return 'reused'
            return place < asked && old[offset] === true ? 'recomputed' : 'fresh'
          })
          const approximate = all.filter((_, offset) => at + offset >= exact).length
          at += all.length
          const count = (kind: string) => kinds.filter((each) => each === kind).length
          expect(costs[index]).toEqual({
            index,
            role: 'user',
            shown: all.length,
            reused: count('reused'),
            recomputed: count('recomputed'),
            fresh: count('fresh'),
            approximate,
          })
        }
      }),
      { numRuns: 1000 },
    )
  })

  it('of messages that begin later in the conversation compare by index, not by position', () => {
    const before = { tokens: Int32Array.of(7, 8), messages: [{ index: 4, role: 'user', span: { start: 0, end: 2 } }] }
    const now = {
      tokens: Int32Array.of(9, 7, 8),
      messages: [
        { index: 3, role: 'system', span: { start: 0, end: 1 } },
        { index: 4, role: 'user', span: { start: 1, end: 3 } },
      ],
    }
    const costs = messageCosts(now, [{ start: 0, end: 3 }], 3, before, 3)
    expect(costs.map(({ recomputed, fresh }) => [recomputed, fresh])).toEqual([
      [0, 1],
      [2, 0],
    ])
  })
})

describe('the common prefix', () => {
  it('is measured to the token in long lists, wherever they are in their buffers', () => {
    const list = Int32Array.from({ length: 5000 }, (_, index) => index % 97)
    fc.assert(
      fc.property(fc.nat(3), fc.nat(5000), fc.nat(5000), (offset, size, change) => {
        const copy = new Int32Array(5010)
        copy.set(list, offset)
        copy[offset + change] = -1
        const [a, b] = [list.subarray(0, size), copy.subarray(offset, offset + 4900)]
        expect(commonPrefix(a, b)).toBe(Math.min(size, 4900, change))
        expect(commonPrefix(b, a)).toBe(Math.min(size, 4900, change))
      }),
    )
  })
})

/** How long a slowed call takes. */
const SLOW = 20

function waitSlow(): void {
  const until = performance.now() + SLOW
  while (performance.now() < until);
}

/** Makes each save of a sequence slow until the returned function is called. */
function slowSaves({ memory }: CacheHarness): () => void {
  const save = memory.saveSequence.bind(memory)
  const spy = vi.spyOn(memory, 'saveSequence').mockImplementation((seq) => {
    waitSlow()
    return save(seq)
  })
  return () => {
    expect(spy).toHaveBeenCalled()
    spy.mockRestore()
  }
}

describe('the milliseconds of copies', () => {
  const prompt = shownOf([1, 2, 3, 4, 5, 6])

  it.each([CacheHarness, CheckpointHarness])('count for no step where a compaction made them (%o)', (Harness) => {
    const harness = new Harness()
    harness.step('a', prompt)
    const end = slowSaves(harness)
    expect(harness.compact('a')).toBe(6)
    end()
    const { copying, milliseconds } = harness.step('b', prompt)
    expect(copying).toBeLessThanOrEqual(milliseconds.cache)
  })

  it('count for the step that saves a checkpoint, not for one beside it', () => {
    const harness = new CheckpointHarness({ options: { offload: new OffloadTiers({ hostBytes: 1e6 }) } })
    const [a, b] = ['a', 'b'].map((name) => harness.start(name, prompt) ?? expect.fail('no sequence'))
    const end = slowSaves(harness)
    harness.decode(a!, 6)
    end()
    for (const running of [b!, a!]) while (missing(running) > 0) harness.decode(running, 6)
    expect(harness.finish('a').copying).toBeGreaterThanOrEqual(SLOW)
    const { copying, milliseconds } = harness.finish('b')
    expect(copying).toBeLessThanOrEqual(milliseconds.cache)
  })
})

it.each([CacheHarness, CheckpointHarness])('the milliseconds of the cache include planning (%o)', async (Harness) => {
  const offload = new OffloadTiers({ hostBytes: 1e6 })
  const { cache } = new Harness({ options: { offload } })
  const opened = cache.open(conversationId('a'))
  const sequence = opened.kind === 'live' ? opened.sequence : expect.fail(opened.reason)
  const prompt = shownOf([1, 2, 3, 4, 5, 6])
  // A plan looks at all stored sequences.
  const looks = vi.spyOn(offload, 'all', 'get').mockImplementation(() => {
    waitSlow()
    return []
  })
  const disk = vi.spyOn(offload, 'hasDisk', 'get').mockReturnValue(true)
  expect(cache.fetch(sequence, prompt)).toBeNull()
  const plan = await cache.prepare(sequence, prompt)
  expect(looks).toHaveBeenCalledTimes(2)
  for (const spy of [looks, disk]) spy.mockRestore()
  const { milliseconds } = cache.finish(cache.begin(sequence, plan, 'answer'), 'cancelled', 0)
  expect(milliseconds.cache).toBeGreaterThanOrEqual(2 * SLOW)
})
