/** What a conversation's edits cost in the cache, case by case. */
import { describe, expect, it } from 'vitest'
import { KvfoldError } from '../../src/core/errors.js'
import { conversationId } from '../../src/core/ids.js'
import { Desk, shownOf } from './desk.js'

/** `count` tokens that occur nowhere else. */
const text = (from: number, count: number): number[] => Array.from({ length: count }, (_, offset) => from + offset)

const system = text(100, 10)
const long = text(200, 40)
const tail = text(300, 15)
const prompt = [1, 2]
const marker = [900, 901, 902]

describe('a conversation that grows', () => {
  it('computes only what is new, generated tokens and their messages included', () => {
    const desk = new Desk()
    const first = desk.step('a', shownOf(system, long, prompt), [50, 51])
    expect(first).toMatchObject({
      step: 0,
      kind: 'answer',
      contract: 'exact',
      shown: 54,
      reused: 0,
      recomputed: 0,
      fresh: 54,
      side: 0,
    })
    const second = desk.step('a', shownOf(system, long, [...prompt, 50, 51, 3], tail, prompt), [60])
    expect(second).toMatchObject({
      step: 1,
      shown: 73,
      reused: 54,
      recomputed: 0,
      fresh: 19,
      sources: { own: 54, parked: 0, shared: 0 },
      parked: 0,
    })
    expect(second.messages).toEqual([
      { index: 0, role: 'user', shown: 10, reused: 10, recomputed: 0, fresh: 0, approximate: 0 },
      { index: 1, role: 'user', shown: 40, reused: 40, recomputed: 0, fresh: 0, approximate: 0 },
      { index: 2, role: 'user', shown: 5, reused: 4, recomputed: 0, fresh: 1, approximate: 0 },
      { index: 3, role: 'user', shown: 15, reused: 0, recomputed: 0, fresh: 15, approximate: 0 },
      { index: 4, role: 'user', shown: 3, reused: 0, recomputed: 0, fresh: 3, approximate: 0 },
    ])
  })

  it('recomputes nothing in a read-only step: only the new messages are computed', () => {
    const desk = new Desk()
    desk.step('a', shownOf(system, long, prompt), [50, 51])
    for (let step = 1; step < 5; step++) {
      const answers = Array.from({ length: step }, (_, at) => [[...prompt, 50, 51, 3], text(400 + 10 * at, 6)]).flat()
      const entry = desk.step('a', shownOf(system, long, ...answers, prompt), [50, 51])
      expect(entry.recomputed).toBe(0)
      expect(entry.fresh).toBe(1 + 6 + 2 + 2)
    }
  })

  it('counts the pending token, and the summary as what it is', () => {
    const desk = new Desk()
    const running = desk.start('a', shownOf(system, prompt), 'summary')!
    desk.decode(running, 12)
    expect(desk.finish('a', 'done', 1)).toMatchObject({ kind: 'summary', pending: 1, shown: 12 })
  })

  it('gives times to the parts they were spent on', () => {
    const desk = new Desk()
    const running = desk.start('a', shownOf(system, prompt))!
    desk.decode(running, 5)
    desk.decode(running, 7)
    desk.decode(running, Int32Array.of(50))
    const { milliseconds } = desk.finish('a')
    expect(milliseconds).toMatchObject({ prefill: 2, decode: 1 })
    expect(milliseconds.cache).toBeGreaterThan(0)
  })
})

describe('an edit', () => {
  const folded = [...long.slice(0, 10), ...marker, ...long.slice(30)]

  it('recomputes what follows it, and parks what it supersedes', () => {
    const desk = new Desk()
    desk.step('a', shownOf(system, long, tail, prompt))
    const entry = desk.step('a', shownOf(system, folded, tail, prompt))
    expect(entry).toMatchObject({ shown: 50, reused: 20, fresh: 3, recomputed: 27, parked: 47, sources: { own: 20 } })
    expect(entry.messages[1]).toEqual({ index: 1, role: 'user', shown: 23, reused: 10, recomputed: 10, fresh: 3, approximate: 0 })
    expect(desk.cache.totals).toMatchObject({ used: 67 + 30, parked: 47, versions: 1, sequences: { used: 2, total: 8 } })
  })

  it('undone, is a hit on the parked version; done again, on the other', () => {
    const desk = new Desk()
    desk.step('a', shownOf(system, long, tail, prompt))
    desk.step('a', shownOf(system, folded, tail, prompt), [60])
    const undone = desk.step('a', shownOf(system, long, tail, [...prompt, 60, 3], prompt))
    expect(undone).toMatchObject({ shown: 71, reused: 67, sources: { own: 20, parked: 47 }, parked: 31, recomputed: 1, fresh: 3 })
    expect(desk.cache.totals).toMatchObject({ versions: 1 })
    const again = desk.step('a', shownOf(system, folded, tail, [...prompt, 60, 3], prompt))
    expect(again).toMatchObject({ shown: 54, reused: 51, sources: { own: 20, parked: 31 } })
  })

  it('made together with others, costs one pass', () => {
    const both = [...long.slice(0, 10), ...marker, ...long.slice(20, 25), ...marker, ...long.slice(35)]
    const one = [...long.slice(0, 10), ...marker, ...long.slice(20)]
    const apart = new Desk()
    apart.step('a', shownOf(system, long, tail, prompt))
    const first = apart.step('a', shownOf(system, one, tail, prompt))
    const second = apart.step('a', shownOf(system, both, tail, prompt))
    const together = new Desk()
    together.step('a', shownOf(system, long, tail, prompt))
    const entry = together.step('a', shownOf(system, both, tail, prompt))
    expect(entry.submitted).toBe(3 + 5 + 3 + 5 + 15 + 2)
    expect(first.submitted + second.submitted).toBe(3 + 20 + 17 + (3 + 5 + 17))
  })

  it('parks nothing that an earlier version holds already', () => {
    const desk = new Desk()
    desk.step('a', shownOf(system, long, tail, prompt))
    desk.step('a', shownOf(system, folded, prompt))
    const running = desk.start('a', shownOf(system, long, prompt))!
    expect(running.sequence.held).toBe(50)
    desk.finish('a', 'cancelled')
    expect(desk.step('a', shownOf(system, folded, tail, prompt))).toMatchObject({ parked: 0, sources: { own: 20, parked: 13 } })
  })

  it('keeps the version it comes back to when ids are short, and loses the tail instead', () => {
    const desk = new Desk({ sequences: 2 })
    desk.step('a', shownOf(system, long, prompt))
    desk.step('a', shownOf(system, folded, prompt))
    expect(desk.step('a', shownOf(system, long, prompt))).toMatchObject({
      parked: 0,
      evicted: 0,
      sources: { own: 20, parked: 32 },
    })
    expect(desk.cache.totals).toMatchObject({ versions: 0, used: 52 })
  })

  it('that only shortens leaves a version, and one that only takes back generated tokens too', () => {
    const desk = new Desk()
    desk.step('a', shownOf(system, long, prompt), [50, 51])
    expect(desk.step('a', shownOf(system, prompt))).toMatchObject({ parked: 44, reused: 10, recomputed: 0, fresh: 2 })
    expect(desk.step('a', shownOf(system, long, prompt), [70])).toMatchObject({
      parked: 2,
      sources: { own: 10, parked: 42 },
      side: 1,
    })
  })
})

describe('a full hit', () => {
  it('decodes the last token once more, as side work', () => {
    const desk = new Desk()
    const shown = shownOf(system, long, prompt)
    desk.step('a', shown)
    const entry = desk.step('a', shown)
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
    expect(desk.cache.totals).toMatchObject({ used: 52, versions: 0 })
  })

  it('on the prompt of an answer keeps that answer as a version', () => {
    const desk = new Desk()
    const shown = shownOf(system, long, prompt)
    desk.step('a', shown, [50, 51, 52])
    expect(desk.step('a', shown, [60])).toMatchObject({ reused: 52, side: 1, fresh: 1, submitted: 2, parked: 3 })
    expect(desk.step('a', shownOf(system, long, [...prompt, 50, 51, 52, 3], prompt))).toMatchObject({
      sources: { own: 52, parked: 3 },
      fresh: 2 + 1,
    })
  })

  it('on another conversation counts the last token as shared', () => {
    const desk = new Desk()
    const shown = shownOf(system, prompt)
    desk.step('a', shown)
    expect(desk.step('b', shown)).toMatchObject({ reused: 12, side: 1, submitted: 1, sources: { own: 0, parked: 0, shared: 12 } })
  })

  it('that only another holds to the last token counts that token for whoever held the one before it', () => {
    const desk = new Desk()
    desk.step('a', shownOf(text(1, 6)))
    desk.step('b', shownOf(text(1, 5)))
    expect(desk.step('b', shownOf(text(1, 6)))).toMatchObject({ reused: 6, side: 1, fresh: 0, sources: { own: 6, shared: 0 } })
  })

  it('works for a prompt of one token', () => {
    const desk = new Desk()
    desk.step('a', shownOf([7]))
    expect(desk.step('a', shownOf([7]))).toMatchObject({ shown: 1, reused: 1, side: 1, submitted: 1 })
  })
})

describe('a long conversation', () => {
  it('is kept, parked and brought back whole', () => {
    const desk = new Desk({ cells: 3000 })
    const body = text(1000, 1300)
    desk.step('a', shownOf(body, prompt), [50], 500)
    const folded = [...body.slice(0, 1100), ...marker, ...body.slice(1200)]
    expect(desk.step('a', shownOf(folded, prompt), [], 500)).toMatchObject({
      reused: 1100,
      recomputed: 102,
      fresh: 3,
      parked: 203,
    })
    expect(desk.step('a', shownOf(body, prompt), [51], 500)).toMatchObject({
      sources: { own: 1100, parked: 202 },
      submitted: 2,
      side: 1,
    })
  })
})

describe('two conversations', () => {
  it('share the cells of their common beginning, also while the other runs', () => {
    const desk = new Desk()
    const a = desk.start('a', shownOf(system, long, prompt))!
    desk.decode(a, 30)
    const b = desk.start('b', shownOf(system, long, tail, prompt))!
    expect(b.plan.parts[0]).toMatchObject({ kind: 'borrow', source: 'shared', span: { start: 0, end: 30 } })
    desk.decode(b, 37)
    desk.decode(a, 22)
    expect(desk.finish('b')).toMatchObject({ sources: { own: 0, parked: 0, shared: 30 }, reused: 30, fresh: 37 })
    desk.finish('a')
    expect(desk.cache.totals.used).toBe(30 + 22 + 37)
  })

  it('keep shared cells when one is forgotten', () => {
    const desk = new Desk()
    desk.step('a', shownOf(system, long, prompt))
    desk.step('b', shownOf(system, tail, prompt))
    desk.forget('a')
    expect(desk.cache.totals).toMatchObject({ used: 27, sequences: { used: 1 } })
    expect(desk.step('b', shownOf(system, tail, prompt))).toMatchObject({ reused: 27, sources: { own: 27 } })
  })

  it("find the other's parked versions", () => {
    const desk = new Desk()
    desk.step('a', shownOf(system, long, prompt))
    desk.step('a', shownOf(system, tail, prompt))
    expect(desk.step('b', shownOf(system, long, prompt))).toMatchObject({ reused: 52, sources: { shared: 52 } })
  })
})

describe('a cancelled step', () => {
  it('is side work whose cells the next step reuses', () => {
    const desk = new Desk()
    const running = desk.start('a', shownOf(system, long, prompt))!
    desk.decode(running, 10)
    desk.decode(running, 20, 13)
    expect(desk.finish('a', 'cancelled')).toMatchObject({ kind: 'cancelled', side: 23, submitted: 23, messages: [] })
    expect(desk.step('a', shownOf(system, long, prompt))).toMatchObject({
      step: 1,
      reused: 23,
      fresh: 29,
      recomputed: 0,
      side: 0,
    })
  })

  it('leaves "the previous step" to the last one that was done', () => {
    const desk = new Desk()
    desk.step('a', shownOf(system, long, prompt))
    const running = desk.start('a', shownOf(tail, long, prompt))!
    desk.decode(running, 30)
    desk.finish('a', 'cancelled')
    expect(desk.step('a', shownOf(tail, long, prompt))).toMatchObject({ reused: 30, recomputed: 27, fresh: 0 })
  })

  it('before anything entered costs nothing', () => {
    const desk = new Desk()
    const running = desk.start('a', shownOf(system, prompt))!
    desk.decode(running, 12, 0)
    expect(desk.finish('a', 'cancelled')).toMatchObject({ side: 0, submitted: 0 })
  })

  it('can also be an aborted decode that goes on', () => {
    const desk = new Desk()
    const running = desk.start('a', shownOf(system, prompt))!
    desk.decode(running, 12, 5)
    desk.decode(running, 7)
    expect(desk.finish('a')).toMatchObject({ shown: 12, fresh: 12, submitted: 12, side: 0 })
  })
})

describe('when room runs out', () => {
  const solo = (name: number) => text(1000 * name, 20)

  it('cells: drops parked versions before idle lanes, each longest unused first, and running lanes never', () => {
    const desk = new Desk({ cells: 100, sequences: 10 })
    // Versions of a, then b; lanes last used in the order b, a, c.
    desk.step('a', shownOf(solo(1)))
    desk.step('b', shownOf(solo(2)))
    desk.step('a', shownOf(text(1100, 10)))
    desk.step('b', shownOf(text(2100, 10)))
    desk.step('a', shownOf(text(1100, 10)))
    desk.step('c', shownOf(solo(3)))
    const holders = () => [...desk.memory.contents().values()].map(([first]) => first).sort((x, y) => x! - y!)
    expect(holders()).toEqual([1000, 1100, 2000, 2100, 3000])
    const running = desk.start('d', shownOf(text(5000, 100)))!
    const grow = (count: number, left: number[], evicted: number) => {
      desk.decode(running, count)
      expect(holders()).toEqual([...left, 5000].sort((x, y) => x - y))
      expect(running.step.evicted).toBe(evicted)
    }
    grow(20, [1000, 1100, 2000, 2100, 3000], 0)
    grow(1, [1100, 2000, 2100, 3000], 20)
    grow(20, [1100, 2100, 3000], 40)
    grow(20, [1100, 3000], 50)
    grow(10, [3000], 60)
    grow(29, [], 80)
    expect(desk.finish('d')).toMatchObject({ evicted: 80, fresh: 100 })
    expect(desk.step('a', shownOf(text(1100, 10)))).toMatchObject({ step: 3, reused: 0, recomputed: 10, evicted: 100 })
  })

  it('a version that lent cells is younger than one that did not', () => {
    const desk = new Desk({ cells: 70, sequences: 10 })
    desk.step('a', shownOf(solo(1)))
    desk.step('a', shownOf(solo(2)))
    desk.step('a', shownOf(solo(3)))
    desk.step('b', shownOf([...solo(1).slice(0, 10), 7]))
    const running = desk.start('c', shownOf(text(5000, 20)))!
    desk.decode(running, 20)
    expect([...desk.memory.contents().values()].map(([first]) => first).sort()).toEqual([1000, 1000, 3000, 5000])
  })

  it('a version that was parked after another lent cells is younger than that one', () => {
    const desk = new Desk({ cells: 71, sequences: 10 })
    desk.step('a', shownOf(solo(1)))
    desk.step('a', shownOf(solo(2)))
    desk.step('b', shownOf([...solo(1).slice(0, 10), 7]))
    desk.step('a', shownOf(solo(3)))
    desk.decode(desk.start('c', shownOf(text(5000, 20)))!, 20)
    expect([...desk.memory.contents().values()].map(([first]) => first).sort()).toEqual([1000, 2000, 3000, 5000])
    expect(desk.cache.totals.versions).toBe(1)
  })

  it('a lane is as young as the end of its last step', () => {
    const desk = new Desk({ cells: 60 })
    const a = desk.start('a', shownOf(solo(1)))!
    const b = desk.start('b', shownOf(solo(2)))!
    desk.decode(a, 20)
    desk.decode(b, 20)
    desk.finish('b')
    desk.finish('a')
    desk.decode(desk.start('c', shownOf(text(5000, 21)))!, 21)
    expect([...desk.memory.contents().values()].map(([first]) => first).sort()).toEqual([1000, 5000])
  })

  it('cells: says full, having lost nothing, when only running lanes are left or what they leave is not enough', () => {
    const desk = new Desk({ cells: 60 })
    desk.step('idle', shownOf(text(1, 10)))
    const a = desk.start('a', shownOf(text(1000, 60)))!
    const b = desk.start('b', shownOf(text(2000, 60)))!
    expect(desk.decode(a, 20) && desk.decode(b, 25)).toBe(true)
    expect(desk.cache.reserve(16)).toEqual({ kind: 'full', needed: 16, free: 5 })
    expect(desk.decode(a, 16)).toBe(false)
    expect(desk.cache.totals.used).toBe(55)
    expect(desk.decode(a, 15)).toBe(true)
    expect(desk.decode(a, 1)).toBe(false)
    desk.finish('b', 'cancelled')
    expect(desk.decode(a, 25)).toBe(true)
    desk.finish('a')
  })

  it('sequence ids: evicts versions, then idle lanes, then says full', () => {
    const desk = new Desk({ sequences: 3 })
    desk.step('a', shownOf(solo(1)))
    desk.step('a', shownOf(solo(2)))
    desk.step('b', shownOf(solo(3)))
    const c = desk.start('c', shownOf(solo(4)))!
    expect(c.step.evicted).toBe(20)
    const d = desk.start('d', shownOf(solo(5)))!
    expect(d.step.evicted).toBe(20)
    expect(desk.memory.contents().size).toBe(1)
    desk.start('e', shownOf(solo(6)))
    const before = desk.memory.readback()
    expect(desk.start('f', shownOf(solo(7)))).toBeNull()
    expect(desk.memory.readback()).toEqual(before)
    expect(desk.cache.open(conversationId('f'))).toMatchObject({
      kind: 'full',
      reason: expect.stringContaining('All 3 sequences') as string,
    })
  })

  it('counts as evicted only what nobody else holds', () => {
    const desk = new Desk({ sequences: 2 })
    desk.step('a', shownOf(system, long))
    desk.step('a', shownOf(system, tail))
    expect(desk.start('b', shownOf(solo(1)))!.step.evicted).toBe(40)
  })
})

describe('a mistake of the caller', () => {
  const invariant = (mistake: () => unknown) => {
    let thrown: unknown
    try {
      mistake()
    } catch (error) {
      thrown = error
    }
    expect(thrown).toBeInstanceOf(KvfoldError)
    expect(thrown).toMatchObject({ code: 'internal/invariant' })
  }

  it('is refused before anything changes', () => {
    const desk = new Desk({ sequences: 2 })
    const running = desk.start('a', shownOf(system, prompt))!
    const { cache, memory } = desk
    const { sequence, step, plan } = running
    invariant(() => cache.begin(sequence, plan, 'answer'))
    invariant(() => {
      cache.forget(conversationId('a'))
    })
    invariant(() => cache.plan(sequence, shownOf([])))
    invariant(() => {
      cache.commit(step, Int32Array.of(5), 'prompt', 0)
    })
    invariant(() => {
      cache.commit(step, Int32Array.of(5), 'generated', 0)
    })
    invariant(() => cache.finish(step, 'done', 0))
    desk.decode(running, 12)
    invariant(() => {
      cache.commit(step, Int32Array.of(5), 'prompt', 0)
    })
    memory.decode(sequence.seq, 12, Int32Array.of(5, 6))
    invariant(() => cache.settle(step, Int32Array.of(5), 'generated'))
    memory.untag(sequence.seq, { start: 12, end: 14 })
    desk.finish('a')
    invariant(() => cache.finish(step, 'done', 0))
    invariant(() => {
      cache.commit(step, Int32Array.of(5), 'generated', 0)
    })
    desk.start('b', shownOf(tail))
    desk.start('c', shownOf(long))
    invariant(() => cache.plan(sequence, shownOf(system)))
    desk.inspect()
  })

  it('to forget somebody unknown is none', () => {
    const desk = new Desk()
    desk.forget('nobody')
    expect(desk.cache.totals).toMatchObject({ used: 0, sequences: { used: 0 } })
  })
})
