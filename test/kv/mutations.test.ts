/** Faults put between the cache and its memory, or into its index: each must turn a check red. */
import { describe, expect, it } from 'vitest'
import { KvfoldError } from '../../src/core/errors.js'
import type { SeqId } from '../../src/core/ids.js'
import { span, type Span } from '../../src/core/span.js'
import { KvCache } from '../../src/kv/cache.js'
import type { Lane } from '../../src/kv/holding.js'
import type { KvMemory } from '../../src/kv/memory.js'
import type { Plan } from '../../src/kv/plan.js'
import type { Shown } from '../../src/kv/shown.js'
import { Desk, shownOf, type DeskOptions } from './desk.js'
import { NaiveMemory, WrongContent } from './naive-memory.js'

const text = (from: number, count: number): number[] => Array.from({ length: count }, (_, offset) => from + offset)

/** Passes calls on; a fault overrides one of them. */
class Through implements KvMemory {
  constructor(protected readonly inner: NaiveMemory) {
    inner.lenient = true
  }
  get cells() {
    return this.inner.cells
  }
  get sequences() {
    return this.inner.sequences
  }
  tag(from: SeqId, to: SeqId, of: Span): void {
    this.inner.tag(from, to, of)
  }
  untag(seq: SeqId, of: Span): void {
    this.inner.untag(seq, of)
  }
  positions(seq: SeqId) {
    return this.inner.positions(seq)
  }
  readback() {
    return this.inner.readback()
  }
}

/** Folding, undoing, another conversation with the same beginning, a shortage of ids: every kind of tag and untag there is. */
function scenario(desk: Desk): void {
  const system = text(100, 8)
  const long = text(200, 30)
  const folded = [...long.slice(0, 5), 900, ...long.slice(20)]
  const prompt = [1, 2]
  desk.step('a', shownOf(system, long, prompt), [50])
  desk.step('b', shownOf(system, text(300, 12), prompt), [51])
  desk.step('a', shownOf(system, folded, prompt), [52])
  desk.step('a', shownOf(system, long, prompt), [53])
  desk.step('b', shownOf(system, folded, prompt))
  desk.step('a', shownOf(text(400, 10), folded, prompt))
  desk.step('c', shownOf(system, text(500, 10), prompt))
  desk.forget('b')
  desk.step('a', shownOf(system, long, prompt))
}

const OPTIONS: DeskOptions = { cells: 220, sequences: 4 }

/** What the scenario ends with. A rule of the naive memory that llama.cpp does not enforce must not be what catches a fault. */
function outcome(options: DeskOptions): 'passed' | 'invariant' | 'content' {
  try {
    scenario(new Desk({ ...OPTIONS, ...options }))
    return 'passed'
  } catch (error) {
    if (error instanceof KvfoldError && error.code === 'internal/invariant') return 'invariant'
    if (error instanceof WrongContent) return 'content'
    throw error
  }
}

/**
 * Runs the scenario once for every call of a kind, with `fault` in place of that one call, and wants each run to be caught. A fault that
 * would change nothing at a call returns false, having done nothing. Says how many calls were struck.
 */
function strikeEverywhere(
  call: 'tag' | 'untag',
  fault: (inner: NaiveMemory, from: SeqId, to: SeqId, of: Span) => boolean,
): number {
  let struck = 0
  for (let target = 0; ; target++) {
    const count = { calls: 0, hits: 0 }
    /** True when the fault took the place of this call. */
    const strikes = (is: 'tag' | 'untag', inner: NaiveMemory, from: SeqId, to: SeqId, of: Span): boolean => {
      if (is !== call || count.calls++ !== target || !fault(inner, from, to, of)) return false
      count.hits++
      return true
    }
    const wrap = (memory: NaiveMemory) =>
      new (class extends Through {
        override tag(from: SeqId, to: SeqId, of: Span): void {
          if (!strikes('tag', this.inner, from, to, of)) super.tag(from, to, of)
        }
        override untag(seq: SeqId, of: Span): void {
          if (!strikes('untag', this.inner, seq, seq, of)) super.untag(seq, of)
        }
      })(memory)
    const result = outcome({ wrap })
    if (count.calls <= target) return struck
    if (count.hits === 0) continue
    struck++
    expect(result, `a fault in ${call} number ${target} went unnoticed`).not.toBe('passed')
  }
}

describe('without a fault', () => {
  it('the scenario passes, and tags and untags for every reason', () => {
    const calls: string[] = []
    const wrap = (memory: NaiveMemory) =>
      new (class extends Through {
        override tag(from: SeqId, to: SeqId, of: Span): void {
          calls.push('tag')
          super.tag(from, to, of)
        }
        override untag(seq: SeqId, of: Span): void {
          calls.push('untag')
          super.untag(seq, of)
        }
      })(memory)
    expect(outcome({ wrap })).toBe('passed')
    expect(calls.filter((call) => call === 'tag').length).toBeGreaterThan(7)
    expect(calls.filter((call) => call === 'untag').length).toBeGreaterThan(7)
  })
})

describe('a fault in the memory is caught', () => {
  it('an untag that is skipped', () => {
    expect(strikeEverywhere('untag', () => true)).toBeGreaterThan(7)
  })

  it('an untag that takes one position too few, or one too many', () => {
    // Not where a whole sequence goes: its id may be lent again at once and the one tag left would be right again.
    const shifted = (by: number) => (inner: NaiveMemory, seq: SeqId, _to: SeqId, of: Span) => {
      if (of.start === 0 || of.start + by >= of.end) return false
      inner.untag(seq, span(of.start + by, of.end))
      return true
    }
    expect(strikeEverywhere('untag', shifted(1))).toBeGreaterThan(2)
    expect(strikeEverywhere('untag', shifted(-1))).toBeGreaterThan(2)
  })

  it('a tag that is skipped', () => {
    expect(strikeEverywhere('tag', () => true)).toBeGreaterThan(7)
  })

  it('a tag on a wrong stretch of the prefix', () => {
    const shifted = (start: number, end: number) => (inner: NaiveMemory, from: SeqId, to: SeqId, of: Span) => {
      if (of.end + end > (inner.contents().get(from)?.length ?? 0)) return false
      inner.tag(from, to, span(of.start + start, of.end + end))
      return true
    }
    expect(strikeEverywhere('tag', shifted(0, -1))).toBeGreaterThan(7)
    expect(strikeEverywhere('tag', shifted(1, 0))).toBeGreaterThan(7)
    expect(strikeEverywhere('tag', shifted(0, 1))).toBeGreaterThan(2)
  })

  it('a tag that misses one cell in the middle', () => {
    const middle = (inner: NaiveMemory, from: SeqId, to: SeqId, of: Span) => {
      const at = Math.floor((of.start + of.end) / 2)
      inner.tag(from, to, span(of.start, at))
      inner.tag(from, to, span(at + 1, of.end))
      return true
    }
    expect(strikeEverywhere('tag', middle)).toBeGreaterThan(7)
  })

  it("a tag on another sequence's cells at the same positions", () => {
    const swapped = (inner: NaiveMemory, from: SeqId, to: SeqId, of: Span) => {
      const alike = (a: SeqId) => inner.contents().get(a)?.slice(of.start, of.end).join() ?? ''
      const other = [...inner.contents()].find(
        ([seq, held]) => seq !== from && seq !== to && held.length >= of.end && alike(seq) !== alike(from),
      )
      if (other === undefined) return false
      inner.tag(other[0], to, of)
      return true
    }
    expect(strikeEverywhere('tag', swapped)).toBeGreaterThan(0)
  })

  it('a tag that vanishes later', () => {
    const vanishing = (inner: NaiveMemory, from: SeqId, to: SeqId, of: Span) => {
      inner.tag(from, to, of)
      inner.untag(to, span(of.start, of.start + 1))
      return true
    }
    expect(strikeEverywhere('tag', vanishing)).toBeGreaterThan(7)
  })
})

describe('the cheap check of production', () => {
  it('sees a skipped untag and a short tag without reading cells back', () => {
    for (const fault of ['untag', 'tag'] as const) {
      const memory = new NaiveMemory(64, 4)
      let faulty = false
      const cache = new KvCache(
        new (class extends Through {
          override tag(from: SeqId, to: SeqId, of: Span): void {
            super.tag(from, to, faulty && fault === 'tag' ? span(of.start, of.end - 1) : of)
          }
          override untag(seq: SeqId, of: Span): void {
            if (!faulty || fault !== 'untag') super.untag(seq, of)
          }
        })(memory),
      )
      const show = (shown: Shown) => {
        const opened = cache.open('a' as Lane['conversation'])
        if (opened.kind === 'full') return expect.fail(opened.reason)
        const step = cache.begin(opened.lane, cache.plan(opened.lane, shown), 'answer')
        cache.check('positions')
        const rest = shown.tokens.slice(opened.lane.held)
        memory.decode(opened.lane.seq, opened.lane.held, rest)
        cache.commit(step, rest, 'prompt', 1)
        cache.finish(step, 'done', 0)
        cache.check('positions')
      }
      show(shownOf(text(1, 10)))
      faulty = true
      expect(() => {
        show(shownOf(text(1, 5), text(20, 5)))
      }, fault).toThrow(/sequence \d should hold .* and holds/)
    }
  })
})

describe('a fault in the index is caught', () => {
  /** Runs the scenario with plans that `tamper` may have changed; says what came of it, and how many plans were changed. */
  const withPlans = (tamper: (plan: Plan, lane: Lane, seen: readonly Plan[]) => Plan | null) => {
    let struck = 0
    const seen: Plan[] = []
    class Faulty extends KvCache {
      override plan(lane: Lane, shown: Shown): Plan {
        const plan = super.plan(lane, shown)
        const changed = tamper(plan, lane, seen)
        seen.push(plan)
        if (changed !== null) struck++
        return changed ?? plan
      }
    }
    /** The desk's own look at the plan would see the fault first; here the cache itself must. */
    class Trusting extends Desk {
      protected override expectBest(): void {
        return
      }
    }
    let result: unknown = null
    try {
      scenario(new Trusting({ ...OPTIONS, cache: Faulty }))
    } catch (error) {
      result = error
    }
    expect(struck).toBeGreaterThan(0)
    return result
  }

  it('control: plans as they are pass', () => {
    expect(withPlans((plan) => ({ ...plan }))).toBeNull()
  })

  it('a match that is too long', () => {
    const error = withPlans((plan) => {
      if (plan.borrow === null || plan.compute.end - plan.compute.start < 3) return null
      const start = plan.compute.start + 1
      return {
        ...plan,
        borrow: { ...plan.borrow, span: span(plan.borrow.span.start, start) },
        compute: span(start, plan.compute.end),
      }
    })
    expect(error).toMatchObject({ code: 'internal/invariant', message: expect.stringContaining('other tokens') as string })
  })

  it("the lane's own beginning matched too far", () => {
    const error = withPlans((plan, lane) => {
      if (plan.borrow !== null || lane.held < plan.keep + 2 || plan.again === 1) return null
      return { ...plan, keep: plan.keep + 1, compute: span(plan.keep + 1, plan.compute.end) }
    })
    expect(error).toMatchObject({ code: 'internal/invariant', message: expect.stringContaining('other tokens') as string })
  })

  it('a version that was dropped meanwhile, also when its sequence id was lent again', () => {
    const desk = new Desk(OPTIONS)
    const whole = shownOf(text(1, 10))
    const folded = shownOf(text(1, 5), text(20, 5))
    desk.step('a', whole)
    desk.step('a', folded)
    const { plan } = desk.start('a', whole)!
    desk.decode(desk.running.values().next().value!, 1)
    desk.finish('a')
    const opened = desk.cache.open('a' as Lane['conversation'])
    if (opened.kind === 'full') return expect.fail(opened.reason)
    const { lane } = opened
    expect(plan.borrow).toMatchObject({ source: 'parked' })
    expect(() => desk.cache.begin(lane, plan, 'answer')).toThrow('no longer held')
    desk.step('b', whole)
    expect([...desk.memory.contents().keys()]).toContain(plan.borrow?.from.seq)
    expect(() => desk.cache.begin(lane, plan, 'answer')).toThrow('no longer held')
    desk.inspect()
  })

  it('a stretch left out between what is kept and what is borrowed', () => {
    const error = withPlans((plan) => {
      if (plan.borrow === null || plan.keep === 0) return null
      return { ...plan, keep: plan.keep - 1 }
    })
    expect(error).toMatchObject({ code: 'internal/invariant' })
  })
})
