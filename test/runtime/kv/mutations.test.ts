/** Puts faults between the cache and its memory, or into its index. Each fault must make a check fail. */
import { afterEach, describe, expect, it, vi } from 'vitest'
import type { Contract } from '../../../src/runtime/core/contract.js'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import type { SeqId } from '../../../src/runtime/core/ids.js'
import { span, type Span } from '../../../src/runtime/core/span.js'
import { KvCache } from '../../../src/runtime/kv/cache.js'
import type { StepContract } from '../../../src/runtime/kv/plan/parts.js'
import { freshCells, Sequence, type LiveSequence } from '../../../src/runtime/kv/sequence.js'
import { SequenceTable } from '../../../src/runtime/kv/sequence-table.js'
import type { Plan } from '../../../src/runtime/kv/plan/plan.js'
import type { Prompt } from '../../../src/runtime/kv/prompt.js'
import { CellHasher } from '../../../src/runtime/kv/cell-hash.js'
import { CacheHarness, shownOf, type HarnessOptions, SALTS } from './support/cache-harness.js'
import { NaiveMemory, WrongContent } from './support/naive-memory.js'
import { PromptDraft } from './support/prompt-draft.js'
import { Through } from './support/through.js'
import { LONG } from '../../support/long.js'

const text = (from: number, count: number): number[] => Array.from({ length: count }, (_, offset) => from + offset)

/** A state of the naive memory without its last cell: four numbers at the end, counted in the second one. */
function withoutLastCell(state: Uint8Array): Uint8Array {
  const numbers = new Int32Array(state.slice(0, -16).buffer)
  numbers[1]! -= 1
  return new Uint8Array(numbers.buffer)
}

/** Folds, undoes, runs another conversation with the same beginning and a shortage of ids: this causes every kind of tag and untag. */
function scenario(harness: CacheHarness): void {
  const system = text(100, 8)
  const long = text(200, 30)
  const folded = [...long.slice(0, 5), 900, ...long.slice(20)]
  const prompt = [1, 2]
  harness.step('a', shownOf(system, long, prompt), [50])
  harness.step('b', shownOf(system, text(300, 12), prompt), [51])
  harness.step('a', shownOf(system, folded, prompt), [52])
  harness.step('a', shownOf(system, long, prompt), [53])
  harness.step('b', shownOf(system, folded, prompt))
  harness.step('a', shownOf(text(400, 10), folded, prompt))
  harness.step('c', shownOf(system, text(500, 10), prompt))
  harness.forget('b')
  harness.step('a', shownOf(system, long, prompt))
}

/**
 * Folds under the other contracts. Folds are restored in another order and made again, spliced or not; another conversation reads the
 * spliced prompt.
 */
function splicedScenario(harness: CacheHarness): void {
  const system = text(100, 8)
  const prompt = new PromptDraft([system, text(200, 30), text(300, 12)], [1, 2])
  const show = (contract: Contract = 'splice') => {
    harness.terms = { contract }
    harness.step('a', prompt.shown)
  }
  const read = () => {
    harness.terms = { contract: 'exact' }
    harness.step('b', shownOf([...prompt.shown.tokens]))
  }
  show()
  prompt.fold(10, 20, [900])
  prompt.fold(22, 30, [901, 902])
  show()
  read()
  prompt.restore(10)
  show()
  prompt.fold(12, 18, [903])
  prompt.fold(40, 45, [904])
  show()
  prompt.restore(22)
  show()
  read()
  prompt.fold(22, 30, [905])
  show('blend')
  prompt.restore(12)
  show('exact')
  read()
  prompt.restore(22)
  show()
  harness.forget('b')
  show('exact')
}

/**
 * Makes markers longer than what they hide: alone, before and after a longer fold. The text that follows moves to higher and lower
 * positions.
 */
function turnedScenario(harness: CacheHarness): void {
  const prompt = new PromptDraft([text(100, 8), text(200, 30), text(300, 12)], [1, 2])
  const show = (contract: Contract = 'splice') => {
    harness.terms = { contract }
    harness.step('a', prompt.shown)
  }
  show()
  prompt.fold(10, 12, [900, 901, 902, 903])
  show()
  prompt.restore(10)
  show()
  prompt.fold(20, 34, [904])
  show()
  prompt.fold(14, 16, [905, 906, 907])
  prompt.fold(36, 37, [908, 909])
  show()
  prompt.restore(20)
  show('blend')
  prompt.restore(14)
  show()
  harness.closeGaps('a')
  show()
}

type Scenario = (harness: CacheHarness) => void

const SCENARIOS: readonly Scenario[] = [scenario, splicedScenario, turnedScenario]
const OPTIONS: HarnessOptions = { cells: 220, sequences: 4 }

/** Which calls have a fault: all of them, or every third. */
const STRIDE = LONG ? 1 : 5
/** Returns how many calls must have had a fault, of which all runs together have more than `most`. */
const least = (most: number): number => Math.floor(most / STRIDE)

/** Runs the scenario and returns how it ends. The memory is not strict: a rule that llama.cpp does not enforce must not catch the fault. */
function outcome(options: HarnessOptions, play: Scenario): 'passed' | 'invariant' | 'content' | 'refused' {
  try {
    play(new CacheHarness({ ...OPTIONS, ...options }))
    return 'passed'
  } catch (error) {
    if (error instanceof KvfoldError && error.code === 'internal/invariant') return 'invariant'
    // The addon refuses the call before llama.cpp sees it.
    if (error instanceof KvfoldError && error.code === 'native/bad-argument') return 'refused'
    if (error instanceof WrongContent) return 'content'
    throw error
  }
}

type Call = 'tag' | 'untag' | 'shift'
type Fault = (inner: NaiveMemory, from: SeqId, to: SeqId, of: Span) => boolean

/**
 * Runs the scenarios once for each call of a kind, or every third one, with `fault` in place of that one call. It expects that each run is
 * caught. A fault that would change nothing at a call does nothing and returns false. Returns how many calls had a fault.
 */
function strikeEverywhere(call: Call, fault: Fault): number {
  return SCENARIOS.reduce((sum, play) => sum + strikeOne(play, call, fault), 0)
}

function strikeOne(play: Scenario, call: Call, fault: Fault): number {
  let struck = 0
  for (let target = 0; ; target += STRIDE) {
    const count = { calls: 0, hits: 0 }
    /** Returns true when the fault replaces this call. */
    const strikes = (is: Call, inner: NaiveMemory, from: SeqId, to: SeqId, of: Span): boolean => {
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
        override shift(seq: SeqId, of: Span, delta: number): void {
          if (!strikes('shift', this.inner, seq, seq, of)) super.shift(seq, of, delta)
        }
      })(memory)
    const result = outcome({ wrap }, play)
    if (count.calls <= target) return struck
    if (count.hits === 0) continue
    struck++
    expect(result, `a fault in ${call} number ${target} went unnoticed`).not.toBe('passed')
  }
}

const holds = (memory: NaiveMemory, seq: SeqId, position: number): boolean =>
  memory.sequence(seq).some((cell) => cell.position === position)

describe('without a fault', () => {
  it('the scenarios pass, and tag and untag for every reason', () => {
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
    expect(SCENARIOS.map((play) => outcome({ wrap }, play))).toEqual(['passed', 'passed', 'passed'])
    expect(calls.filter((call) => call === 'tag').length).toBeGreaterThan(30)
    expect(calls.filter((call) => call === 'untag').length).toBeGreaterThan(30)
  })
})

describe('a fault in the memory is caught', () => {
  it('an untag that is skipped', () => {
    expect(strikeEverywhere('untag', () => true)).toBeGreaterThan(least(7))
  })

  it('an untag that takes one position too few, or one too many', () => {
    // Whole sequences are left out: their id may be lent again at once, and then the one tag left would be right.
    const shifted = (by: number) => (inner: NaiveMemory, seq: SeqId, _to: SeqId, of: Span) => {
      const held = inner.positions(seq)
      if (held === null || (of.start <= held.min && of.end > held.max)) return false
      if (!holds(inner, seq, Math.min(of.start, of.start + by))) return false
      inner.untag(seq, span(of.start + by, of.end))
      return true
    }
    expect(strikeEverywhere('untag', shifted(1))).toBeGreaterThan(least(2))
    expect(strikeEverywhere('untag', shifted(-1))).toBeGreaterThan(least(2))
  })

  it('a tag that is skipped', () => {
    expect(strikeEverywhere('tag', () => true)).toBeGreaterThan(least(7))
  })

  it('a tag on a wrong span of the prefix', () => {
    const shifted = (start: number, end: number) => (inner: NaiveMemory, from: SeqId, to: SeqId, of: Span) => {
      if (end > 0 && !holds(inner, from, of.end)) return false
      // The fault changes nothing if both sequences already hold that cell.
      if (end > 0 && inner.sequence(to).some((cell) => cell.position === of.end && inner.sequence(from).includes(cell)))
        return false
      inner.tag(from, to, span(of.start + start, of.end + end))
      return true
    }
    expect(strikeEverywhere('tag', shifted(0, -1))).toBeGreaterThan(least(7))
    expect(strikeEverywhere('tag', shifted(1, 0))).toBeGreaterThan(least(7))
    expect(strikeEverywhere('tag', shifted(0, 1))).toBeGreaterThan(least(2))
  })

  it('a tag that misses one cell in the middle', () => {
    const middle = (inner: NaiveMemory, from: SeqId, to: SeqId, of: Span) => {
      const at = Math.floor((of.start + of.end) / 2)
      if (!holds(inner, from, at)) return false
      inner.tag(from, to, span(of.start, at))
      inner.tag(from, to, span(at + 1, of.end))
      return true
    }
    expect(strikeEverywhere('tag', middle)).toBeGreaterThan(least(7))
  })

  it("a tag on another sequence's cells at the same positions", () => {
    const swapped = (inner: NaiveMemory, from: SeqId, to: SeqId, of: Span) => {
      const ids = (seq: SeqId) =>
        inner.sequence(seq).flatMap(({ id, position }) => (position >= of.start && position < of.end ? [id] : []))
      const wanted = ids(from)
      const other = [...inner.contents().keys()].find(
        (seq) => seq !== from && seq !== to && ids(seq).length === wanted.length && ids(seq).join() !== wanted.join(),
      )
      if (other === undefined) return false
      inner.tag(other, to, of)
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
    expect(strikeEverywhere('tag', vanishing)).toBeGreaterThan(least(7))
  })
})

describe('a fault in the shifting of cells is caught', () => {
  it('a shift that is skipped', () => {
    expect(strikeEverywhere('shift', () => true)).toBeGreaterThan(least(4))
  })

  it('a shift that goes too far, or shifts one cell too few', () => {
    const wrong = (short: number, far: number) => (inner: NaiveMemory, seq: SeqId, _to: SeqId, of: Span) => {
      if (of.end - of.start === short) return false
      inner.shift(seq, span(of.start, of.end - short), far)
      return true
    }
    expect(strikeEverywhere('shift', wrong(0, 100))).toBeGreaterThan(least(4))
    expect(strikeEverywhere('shift', wrong(1, 100))).toBeGreaterThan(least(2))
  })

  it('copies of the wrong cells', () => {
    let struck = 0
    for (let target = 0; ; target++) {
      let calls = 0
      const wrap = (memory: NaiveMemory) =>
        new (class extends Through {
          override saveSequence(seq: SeqId) {
            const state = super.saveSequence(seq)
            return calls++ === target ? withoutLastCell(state) : state
          }
        })(memory)
      const result = outcome({ wrap }, turnedScenario)
      if (calls <= target) break
      struck++
      expect(result, `a copy without its last cell, number ${target}, went unnoticed`).not.toBe('passed')
    }
    expect(struck).toBeGreaterThan(2)
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
      const show = (shown: Prompt) => {
        const opened = cache.open('a' as LiveSequence['conversation'])
        if (opened.kind === 'full') return expect.fail(opened.reason)
        const step = cache.begin(opened.sequence, cache.plan(opened.sequence, shown), 'answer')
        cache.check('positions')
        const { tokens: rest, position } = cache.next(step, 100)!
        memory.decode(opened.sequence.seq, position, rest)
        cache.commit(step, rest, 'prompt', 1)
        cache.finish(step, 'done', 0)
        cache.check('positions')
      }
      show(shownOf(text(1, 10)))
      faulty = true
      expect(() => {
        show(shownOf(text(1, 5), text(20, 5)))
      }, fault).toThrow(/sequence \d should hold .*, but holds/)
    }
  })
})

describe('a fault in the index is caught', () => {
  /** Runs the scenario with plans that `tamper` may change. Returns how the run ended and how many plans were changed. */
  const withPlans = (tamper: (plan: Plan, sequence: LiveSequence, seen: readonly Plan[]) => Plan | null) => {
    let struck = 0
    const seen: Plan[] = []
    class Faulty extends KvCache {
      override plan(sequence: LiveSequence, shown: Prompt, terms?: StepContract): Plan {
        const plan = super.plan(sequence, shown, terms)
        const changed = tamper(plan, sequence, seen)
        seen.push(plan)
        if (changed !== null) struck++
        return changed ?? plan
      }
    }
    /** The harness would check the plan and see the fault first; in this test the cache must find it. */
    class Trusting extends CacheHarness {
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

  it('control: unchanged plans pass', () => {
    expect(withPlans((plan) => ({ ...plan }))).toBeNull()
  })

  /**
   * Returns the plan with its last reused part longer by one token; or null if that part is of another kind, or too little is computed
   * after it.
   */
  const stretched = (plan: Plan, kind: 'keep' | 'borrow'): Plan | null => {
    const [part, last] = plan.parts.slice(-2)
    if (part?.kind !== kind || last === undefined || last.span.end - last.span.start < 3) return null
    const end = part.span.end + 1
    return {
      ...plan,
      parts: [
        ...plan.parts.slice(0, -2),
        { ...part, span: span(part.span.start, end) },
        { kind: 'compute', span: span(end, last.span.end), position: end },
      ],
    }
  }

  it('a match that is too long', () => {
    const error = withPlans((plan) => stretched(plan, 'borrow'))
    expect(error).toMatchObject({ code: 'internal/invariant', message: expect.stringContaining('other tokens') as string })
  })

  it("the live sequence's own beginning matched too far", () => {
    const error = withPlans((plan) => stretched(plan, 'keep'))
    expect(error).toMatchObject({ code: 'internal/invariant', message: expect.stringContaining('other tokens') as string })
  })

  it('a version that was dropped in the meantime, also when its sequence id was lent again', () => {
    const harness = new CacheHarness(OPTIONS)
    const whole = shownOf(text(1, 10))
    const folded = shownOf(text(1, 5), text(20, 5))
    harness.step('a', whole)
    harness.step('a', folded)
    const { plan } = harness.start('a', whole)!
    harness.decode(harness.running.values().next().value!, 1)
    harness.finish('a')
    const opened = harness.cache.open('a' as LiveSequence['conversation'], SALTS.of(undefined))
    if (opened.kind === 'full') return expect.fail(opened.reason)
    const { sequence } = opened
    const borrowed = plan.parts.find((part) => part.kind === 'borrow')
    expect(borrowed).toMatchObject({ source: 'parked' })
    expect(() => harness.cache.begin(sequence, plan, 'answer')).toThrow('not on the device')
    harness.step('b', whole)
    const from = borrowed?.from as unknown as LiveSequence
    expect([...harness.memory.contents().keys()]).toContain(from.seq)
    expect(() => harness.cache.begin(sequence, plan, 'answer')).toThrow('not on the device')
    harness.inspect()
  })

  it('a span left out between the kept and the borrowed part', () => {
    const error = withPlans(({ parts, ...plan }) => {
      const [kept, borrowed] = parts
      if (kept?.kind !== 'keep' || borrowed?.kind !== 'borrow') return null
      return { ...plan, parts: [{ ...kept, span: span(0, kept.span.end - 1) }, ...parts.slice(1)] }
    })
    expect(error).toMatchObject({
      code: 'internal/invariant',
      message: expect.stringContaining('does not cover its prompt') as string,
    })
  })
})

/** The current method, so that its replacement can call it. */
const methodOf = <T, Name extends keyof T>(of: T, name: Name): T[Name] => of[name]

describe('a fault that the cell table and the memory agree on is caught', () => {
  afterEach(() => {
    vi.restoreAllMocks()
  })

  /** Returns the outcome of each scenario. Here the harness's own accounts may catch a fault. */
  const outcomes = () =>
    SCENARIOS.map((play) => {
      try {
        return outcome({}, play)
      } catch (error) {
        if (error instanceof Error && error.name === 'AssertionError') return 'account'
        throw error
      }
    })

  it('control: all scenarios pass', () => {
    expect(outcomes()).toEqual(['passed', 'passed', 'passed'])
  })

  it('a cell hash that ignores the cells its token saw', () => {
    vi.spyOn(CellHasher.prototype, 'see').mockImplementation(() => undefined)
    expect(outcomes()[1]).not.toBe('passed')
  })

  it('approximate cells lent to another conversation, or passed off as exact in their own', () => {
    vi.spyOn(Sequence.prototype, 'isFresh').mockImplementation(function (this: Sequence, entry, place, { tokens }) {
      return entry < this.held && this.tokens[entry] === tokens[place] && this.position(entry) === place
    })
    vi.spyOn(Sequence.prototype, 'freshRun').mockImplementation(function (this: Sequence, ...run) {
      return freshCells(this, ...run)
    })
    expect(outcomes()[1]).not.toBe('passed')
  })

  it('a scratch sequence that sees hidden cells', () => {
    const lend = methodOf(SequenceTable.prototype, 'lend')
    let struck = 0
    vi.spyOn(SequenceTable.prototype, 'lend').mockImplementation(function (this: SequenceTable, from, entries, to, at) {
      lend.call(this, from, entries, to, at)
      if (to.state !== 'scratch') return
      for (const parked of this.parked(to.conversation))
        for (let entry = 0; entry < parked.held; entry++) {
          const position = parked.position(entry)
          if (position >= to.next || to.position(to.atPosition(position)) === position) continue
          lend.call(this, parked, span(entry, entry + 1), to, to.atPosition(position))
          struck++
        }
    })
    expect(outcomes()[1]).toBe('content')
    expect(struck).toBeGreaterThan(0)
  })

  it('a splice that does not untag the hidden cells', () => {
    const cut = methodOf(SequenceTable.prototype, 'cut')
    let struck = 0
    vi.spyOn(SequenceTable.prototype, 'cut').mockImplementation(function (this: SequenceTable, sequence, entries) {
      if (sequence.state !== 'running' || entries.end === sequence.held) return cut.call(this, sequence, entries)
      struck++
      return 0
    })
    expect(outcomes()[1]).not.toBe('passed')
    expect(struck).toBeGreaterThan(0)
  })
})
