/** Tests the cost of a conversation's edits in the cache, case by case. */
import { describe, expect, it } from 'vitest'
import { keepsStepCacheContract } from './step-cache.contract.js'
import { CacheHarness, shownOf } from './support/cache-harness.js'

/** Returns `count` tokens that occur in no other text. */
const text = (from: number, count: number): number[] => Array.from({ length: count }, (_, offset) => from + offset)

const system = text(100, 10)
const long = text(200, 40)
const tail = text(300, 15)
const prompt = [1, 2]
const marker = [900, 901, 902]

describe('as a step cache', () => {
  keepsStepCacheContract({
    make: (options) => new CacheHarness(options),
    conversations: 300,
    meets: ['own', 'parked', 'shared', 'again', 'noCells', 'noSequence', 'evicted', 'cancelled', 'parks'],
  })
})

describe('an edit', () => {
  const folded = [...long.slice(0, 10), ...marker, ...long.slice(30)]

  it('recomputes the tokens after it, and parks the cells it replaces', () => {
    const harness = new CacheHarness()
    harness.step('a', shownOf(system, long, tail, prompt))
    const entry = harness.step('a', shownOf(system, folded, tail, prompt))
    expect(entry).toMatchObject({ shown: 50, reused: 20, fresh: 3, recomputed: 27, parked: 47, sources: { own: 20 } })
    expect(entry.messages[1]).toEqual({ index: 1, role: 'user', shown: 23, reused: 10, recomputed: 10, fresh: 3, approximate: 0 })
    expect(harness.cache.totals).toMatchObject({ used: 67 + 30, parked: 47, versions: 1, sequences: { used: 2, total: 8 } })
  })

  it('that is undone hits the parked version, and so does redoing it', () => {
    const harness = new CacheHarness()
    harness.step('a', shownOf(system, long, tail, prompt))
    harness.step('a', shownOf(system, folded, tail, prompt), [60])
    const undone = harness.step('a', shownOf(system, long, tail, [...prompt, 60, 3], prompt))
    expect(undone).toMatchObject({ shown: 71, reused: 67, sources: { own: 20, parked: 47 }, parked: 31, recomputed: 1, fresh: 3 })
    expect(harness.cache.totals).toMatchObject({ versions: 1 })
    const again = harness.step('a', shownOf(system, folded, tail, [...prompt, 60, 3], prompt))
    expect(again).toMatchObject({ shown: 54, reused: 51, sources: { own: 20, parked: 31 } })
  })

  it('made in one step with another edit costs one pass', () => {
    const both = [...long.slice(0, 10), ...marker, ...long.slice(20, 25), ...marker, ...long.slice(35)]
    const one = [...long.slice(0, 10), ...marker, ...long.slice(20)]
    const apart = new CacheHarness()
    apart.step('a', shownOf(system, long, tail, prompt))
    const first = apart.step('a', shownOf(system, one, tail, prompt))
    const second = apart.step('a', shownOf(system, both, tail, prompt))
    const together = new CacheHarness()
    together.step('a', shownOf(system, long, tail, prompt))
    const entry = together.step('a', shownOf(system, both, tail, prompt))
    expect(entry.submitted).toBe(3 + 5 + 3 + 5 + 15 + 2)
    expect(first.submitted + second.submitted).toBe(3 + 20 + 17 + (3 + 5 + 17))
  })

  it('parks nothing that an earlier version already holds', () => {
    const harness = new CacheHarness()
    harness.step('a', shownOf(system, long, tail, prompt))
    harness.step('a', shownOf(system, folded, prompt))
    const running = harness.start('a', shownOf(system, long, prompt))!
    expect(running.sequence.held).toBe(50)
    harness.finish('a', 'cancelled')
    expect(harness.step('a', shownOf(system, folded, tail, prompt))).toMatchObject({
      parked: 0,
      sources: { own: 20, parked: 13 },
    })
  })

  it('keeps the version it returns to when ids are short, and loses the tail instead', () => {
    const harness = new CacheHarness({ sequences: 2 })
    harness.step('a', shownOf(system, long, prompt))
    harness.step('a', shownOf(system, folded, prompt))
    expect(harness.step('a', shownOf(system, long, prompt))).toMatchObject({
      parked: 0,
      evicted: 0,
      sources: { own: 20, parked: 32 },
    })
    expect(harness.cache.totals).toMatchObject({ versions: 0, used: 52 })
  })

  it('that only shortens the prompt leaves a version, even if it only removes generated tokens', () => {
    const harness = new CacheHarness()
    harness.step('a', shownOf(system, long, prompt), [50, 51])
    expect(harness.step('a', shownOf(system, prompt))).toMatchObject({ parked: 44, reused: 10, recomputed: 0, fresh: 2 })
    expect(harness.step('a', shownOf(system, long, prompt), [70])).toMatchObject({
      parked: 2,
      sources: { own: 10, parked: 42 },
      side: 1,
    })
  })
})

describe('a full hit', () => {
  it('decodes the last token once more, as side work', () => {
    const harness = new CacheHarness()
    const shown = shownOf(system, long, prompt)
    harness.step('a', shown)
    const entry = harness.step('a', shown)
    expect(entry).toMatchObject({
      shown: 52,
      reused: 52,
      recomputed: 0,
      fresh: 0,
      side: 1,
      submitted: 1,
      parked: 0,
      sources: { own: 52 },
    })
    expect(harness.cache.totals).toMatchObject({ used: 52, versions: 0 })
  })

  it('on the prompt of an answer keeps that answer as a version', () => {
    const harness = new CacheHarness()
    const shown = shownOf(system, long, prompt)
    harness.step('a', shown, [50, 51, 52])
    expect(harness.step('a', shown, [60])).toMatchObject({ reused: 52, side: 1, fresh: 1, submitted: 2, parked: 3 })
    expect(harness.step('a', shownOf(system, long, [...prompt, 50, 51, 52, 3], prompt))).toMatchObject({
      sources: { own: 52, parked: 3 },
      fresh: 2 + 1,
    })
  })

  it('on another conversation counts the last token as shared', () => {
    const harness = new CacheHarness()
    const shown = shownOf(system, prompt)
    harness.step('a', shown)
    expect(harness.step('b', shown)).toMatchObject({
      reused: 12,
      side: 1,
      submitted: 1,
      sources: { own: 0, parked: 0, shared: 12 },
    })
  })

  it('counts the last token as own if the conversation holds the token before it', () => {
    const harness = new CacheHarness()
    harness.step('a', shownOf(text(1, 6)))
    harness.step('b', shownOf(text(1, 5)))
    expect(harness.step('b', shownOf(text(1, 6)))).toMatchObject({ reused: 6, side: 1, fresh: 0, sources: { own: 6, shared: 0 } })
  })

  it('works for a prompt of one token', () => {
    const harness = new CacheHarness()
    harness.step('a', shownOf([7]))
    expect(harness.step('a', shownOf([7]))).toMatchObject({ shown: 1, reused: 1, side: 1, submitted: 1 })
  })
})

describe('a long conversation', () => {
  it('is kept, parked and reloaded whole', () => {
    const harness = new CacheHarness({ cells: 3000 })
    const body = text(1000, 1300)
    harness.step('a', shownOf(body, prompt), [50], 500)
    const folded = [...body.slice(0, 1100), ...marker, ...body.slice(1200)]
    expect(harness.step('a', shownOf(folded, prompt), [], 500)).toMatchObject({
      reused: 1100,
      recomputed: 102,
      fresh: 3,
      parked: 203,
    })
    expect(harness.step('a', shownOf(body, prompt), [51], 500)).toMatchObject({
      sources: { own: 1100, parked: 202 },
      submitted: 2,
      side: 1,
    })
  })
})

describe('two conversations', () => {
  it('share the cells of their common beginning, even while one of them runs', () => {
    const harness = new CacheHarness()
    const a = harness.start('a', shownOf(system, long, prompt))!
    harness.decode(a, 30)
    const b = harness.start('b', shownOf(system, long, tail, prompt))!
    expect(b.plan.parts[0]).toMatchObject({ kind: 'borrow', source: 'shared', span: { start: 0, end: 30 } })
    harness.decode(b, 37)
    harness.decode(a, 22)
    expect(harness.finish('b')).toMatchObject({ sources: { own: 0, parked: 0, shared: 30 }, reused: 30, fresh: 37 })
    harness.finish('a')
    expect(harness.cache.totals.used).toBe(30 + 22 + 37)
  })

  it('keep shared cells when one is forgotten', () => {
    const harness = new CacheHarness()
    harness.step('a', shownOf(system, long, prompt))
    harness.step('b', shownOf(system, tail, prompt))
    harness.forget('a')
    expect(harness.cache.totals).toMatchObject({ used: 27, sequences: { used: 1 } })
    expect(harness.step('b', shownOf(system, tail, prompt))).toMatchObject({ reused: 27, sources: { own: 27 } })
  })

  it("find each other's parked versions", () => {
    const harness = new CacheHarness()
    harness.step('a', shownOf(system, long, prompt))
    harness.step('a', shownOf(system, tail, prompt))
    expect(harness.step('b', shownOf(system, long, prompt))).toMatchObject({ reused: 52, sources: { shared: 52 } })
  })
})

describe('a cancelled step', () => {
  it('is side work whose cells the next step reuses', () => {
    const harness = new CacheHarness()
    const running = harness.start('a', shownOf(system, long, prompt))!
    harness.decode(running, 10)
    harness.decode(running, 20, 13)
    expect(harness.finish('a', 'cancelled')).toMatchObject({ kind: 'cancelled', side: 23, submitted: 23, messages: [] })
    expect(harness.step('a', shownOf(system, long, prompt))).toMatchObject({
      step: 1,
      reused: 23,
      fresh: 29,
      recomputed: 0,
      side: 0,
    })
  })

  it('does not become "the previous step"; the last finished step does', () => {
    const harness = new CacheHarness()
    harness.step('a', shownOf(system, long, prompt))
    const running = harness.start('a', shownOf(tail, long, prompt))!
    harness.decode(running, 30)
    harness.finish('a', 'cancelled')
    expect(harness.step('a', shownOf(tail, long, prompt))).toMatchObject({ reused: 30, recomputed: 27, fresh: 0 })
  })

  it('that has computed nothing costs nothing', () => {
    const harness = new CacheHarness()
    const running = harness.start('a', shownOf(system, prompt))!
    harness.decode(running, 12, 0)
    expect(harness.finish('a', 'cancelled')).toMatchObject({ side: 0, submitted: 0 })
  })

  it('can also be an aborted decode that continues', () => {
    const harness = new CacheHarness()
    const running = harness.start('a', shownOf(system, prompt))!
    harness.decode(running, 12, 5)
    harness.decode(running, 7)
    expect(harness.finish('a')).toMatchObject({ shown: 12, fresh: 12, submitted: 12, side: 0 })
  })
})
