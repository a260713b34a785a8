/** Tests which engine a conversation goes to, against naive models, for any engines, weights and loads. */
import { createHash } from 'node:crypto'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { Affinity, beginningOf, type Candidate, ranked, roomOf } from '../../../src/fleet/engines/affinity.js'

const said = (role: ChatMessage['role'], content: string): ChatMessage => ({ role, content })
const asked = (text: string) => beginningOf([said('system', 'Be brief.'), said('user', text)])
const nowhere = { last: null, parent: null }
const engine = (name: string, more: Partial<Candidate> = {}): Candidate => ({
  name,
  weight: 1,
  open: 0,
  available: true,
  ...more,
})

const engines = fc
  .uniqueArray(
    fc.record({
      name: fc.constantFrom('a', 'b', 'c', 'd', 'e', 'f', 'g'),
      weight: fc.constantFrom(0.5, 1, 2, 3.5),
      open: fc.nat(12),
      available: fc.boolean(),
    }),
    { selector: ({ name }) => name, maxLength: 7 },
  )
  .map((list): readonly Candidate[] => list)

/** The definition of rendezvous hashing, written down again. */
function best(root: string, all: readonly Candidate[]): string | null {
  let found: { name: string; score: number } | null = null
  for (const { name, weight } of all) {
    const bits = parseInt(createHash('sha256').update(`${root} ${name}`).digest('hex').slice(0, 12), 16)
    const score = weight / -Math.log((bits + 0.5) / 2 ** 48)
    if (found === null || score > found.score) found = { name, score }
  }
  return found?.name ?? null
}

describe('a beginning', () => {
  it('stays the same while the conversation continues, and in its forks', () => {
    const start = [said('system', 'Be brief.'), said('user', 'Which is red?')]
    const grown = [...start, said('assistant', 'Nine.'), said('user', 'Why?')]
    expect(beginningOf(grown).root).toBe(beginningOf(start).root)
    expect(beginningOf(grown).chain.slice(0, 1)).toEqual(beginningOf(start).chain)
    expect(beginningOf(grown).chain).toHaveLength(3)
  })

  it('differs for another tenant, and for other borders between messages', () => {
    const messages = [said('user', 'ab')]
    expect(beginningOf(messages, 'one').root).not.toBe(beginningOf(messages, 'two').root)
    const [left, right] = [beginningOf([said('user', 'a'), said('user', 'b')]), beginningOf([said('user', 'ab')])]
    expect(left.chain.at(-1)).not.toBe(right.chain.at(-1))
  })

  it('has a root without a user, and without messages', () => {
    expect(beginningOf([said('assistant', 'Hello.')]).chain).toHaveLength(1)
    expect(beginningOf([])).toMatchObject({ chain: [] })
  })
})

describe('rendezvous hashing', () => {
  it('follows its definition', () => {
    fc.assert(
      fc.property(fc.string(), engines, (root, all) => {
        expect(ranked(root, all)[0]?.name ?? null).toBe(best(root, all))
      }),
    )
  })

  it('moves only the conversations of an engine that leaves, and keeps the order of the others', () => {
    fc.assert(
      fc.property(fc.string(), engines, fc.nat(), (root, all, at) => {
        const gone = all[at % Math.max(1, all.length)]
        const before = ranked(root, all).map(({ name }) => name)
        const after = ranked(
          root,
          all.filter((each) => each !== gone),
        ).map(({ name }) => name)
        expect(after).toEqual(before.filter((name) => name !== gone?.name))
      }),
    )
  })

  it('gives each engine its weight: within five standard deviations of 6,000 conversations', () => {
    const all = [engine('a', { weight: 1 }), engine('b', { weight: 2 }), engine('c', { weight: 3 })]
    const counts = new Map<string, number>()
    const TIMES = 6000
    for (let at = 0; at < TIMES; at++) {
      const { name } = ranked(asked(`question ${at}`).root, all)[0]!
      counts.set(name, (counts.get(name) ?? 0) + 1)
    }
    for (const { name, weight } of all) {
      const share = weight / 6
      expect(Math.abs(counts.get(name)! - TIMES * share)).toBeLessThan(5 * Math.sqrt(TIMES * share * (1 - share)))
    }
  })

  it('lets an engine with more weight gain conversations, and lose none', () => {
    fc.assert(
      fc.property(fc.string(), engines, fc.nat(), (root, all, at) => {
        const grown = all[at % Math.max(1, all.length)]
        const after = all.map((each) => (each === grown ? { ...each, weight: each.weight * 2 } : each))
        const [old, now] = [ranked(root, all)[0]?.name, ranked(root, after)[0]?.name]
        if (now !== old) expect(now).toBe(grown?.name)
      }),
    )
  })
})

describe('the choice', () => {
  it('is an available engine: the previous one, or else one with room', () => {
    fc.assert(
      fc.property(
        engines,
        fc.string(),
        fc.option(fc.constantFrom('a', 'b', 'c', 'x'), { nil: null }),
        fc.option(fc.constantFrom('a', 'b', 'c', 'x'), { nil: null }),
        fc.option(fc.constantFrom('a', 'b', 'c'), { nil: null }),
        (all, text, last, parent, holder) => {
          const affinity = new Affinity(1.25)
          const beginning = asked(text)
          if (holder !== null) affinity.ran(beginning, holder)
          const chosen = affinity.choose({ beginning, last, parent }, all)
          const open = all.filter(({ available }) => available)
          const isOpen = (name: string | null) => open.some((each) => each.name === name)
          if (open.length === 0) {
            expect(chosen).toBeNull()
            return
          }
          expect(isOpen(chosen!.name)).toBe(true)
          // The naive model applies every rule in order, over the list of engines with room.
          const total = open.reduce((sum, each) => sum + each.open, 0)
          const weights = open.reduce((sum, { weight }) => sum + weight, 0)
          const roomy = open.filter((each) => each.open < Math.ceil((1.25 * (total + 1) * each.weight) / weights))
          expect(roomy.length).toBeGreaterThan(0)
          const home = isOpen(parent) ? parent : isOpen(holder) ? holder : null
          const expected = isOpen(last)
            ? last
            : roomy.some(({ name }) => name === home)
              ? home
              : ranked(beginning.root, open).find(({ name }) => roomy.some((each) => each.name === name))!.name
          expect(chosen!.name).toBe(expected)
        },
      ),
      { numRuns: 500 },
    )
  })

  it('keeps the loads from new conversations within their bound', () => {
    fc.assert(
      fc.property(fc.array(fc.nat(5), { maxLength: 60 }), (texts) => {
        const affinity = new Affinity(1.25)
        let all = ['a', 'b', 'c'].map((name) => engine(name))
        for (const text of texts) {
          const { name } = affinity.choose({ beginning: asked(`${text}`), ...nowhere }, all)!
          const chosen = all.find((each) => each.name === name)!
          expect(chosen.open + 1).toBeLessThanOrEqual(roomOf(chosen, all, 1.25))
          affinity.ran(asked(`${text}`), name)
          all = all.map((each) => (each === chosen ? { ...each, open: each.open + 1 } : each))
        }
        const opens = all.map(({ open }) => open)
        expect(Math.max(...opens)).toBeLessThanOrEqual(Math.ceil((1.25 * texts.length) / 3) || 0)
      }),
    )
  })

  it('prefers a longer beginning to a shorter one, and no engine that lost it', () => {
    const affinity = new Affinity(4)
    const start = [said('user', 'Which is red?')]
    const grown = [...start, said('assistant', 'Nine.'), said('user', 'Why?')]
    affinity.ran(beginningOf(start), 'a')
    affinity.ran(beginningOf(grown), 'b')
    affinity.ran(beginningOf(start), 'a')
    const all = ['a', 'b', 'c'].map((name) => engine(name))
    const next = beginningOf([...grown, said('assistant', 'It is.'), said('user', 'Is it?')])
    const fork = beginningOf([...grown, said('assistant', 'It is.'), said('user', 'Is it not?')])
    expect(affinity.choose({ beginning: next, ...nowhere }, all)).toEqual({ name: 'b', why: 'stays' })
    expect(affinity.choose({ beginning: fork, ...nowhere }, all)).toEqual({ name: 'b', why: 'prefix' })
    affinity.lost('b')
    expect(affinity.choose({ beginning: next, ...nowhere }, all)).toEqual({ name: 'a', why: 'stays' })
    expect(affinity.choose({ beginning: fork, ...nowhere }, all)).toEqual({ name: 'a', why: 'prefix' })
  })

  it('keeps the first conversation that continues a step, whatever the load; later forks of it are spread', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 40 }), fc.integer({ min: 1, max: 12 }), (load, forks) => {
        const affinity = new Affinity(1.25)
        const start = [said('user', 'Which is red?')]
        const all = [engine('a', { open: load }), engine('b'), engine('c')]
        affinity.ran(beginningOf(start), 'a')
        const turn = (text: string) => beginningOf([...start, said('assistant', 'Nine.'), said('user', text)])
        const first = affinity.choose({ beginning: turn('Why?'), ...nowhere }, all)
        expect(first).toEqual({ name: 'a', why: 'stays' })
        for (let fork = 0; fork < forks; fork++) {
          const { name, why } = affinity.choose({ beginning: turn(`Fork ${fork}?`), ...nowhere }, all)!
          expect([name, why]).toEqual(load < roomOf(all[0]!, all, 1.25) ? ['a', 'prefix'] : [name, 'spilled'])
          if (why === 'spilled') expect(name).not.toBe('a')
        }
        // The engine holds the end of this turn, and no conversation has continued it.
        affinity.ran(turn('Why?'), 'a')
        const later = beginningOf([
          ...[...start, said('assistant', 'Nine.'), said('user', 'Why?')],
          ...[said('assistant', 'It is.'), said('user', 'Is it?')],
        ])
        expect(affinity.choose({ beginning: later, ...nowhere }, all)).toEqual({ name: 'a', why: 'stays' })
        // If that engine is not available, another one is chosen.
        const closed = all.map((each) => (each.name === 'a' ? { ...each, available: false } : each))
        affinity.ran(turn('Why?'), 'a')
        expect(affinity.choose({ beginning: later, ...nowhere }, closed)!.name).not.toBe('a')
      }),
    )
  })

  it('remembers a limited number of beginnings, the most recently used ones', () => {
    const affinity = new Affinity(4, 2)
    const all = ['a', 'b', 'c'].map((name) => engine(name))
    for (const text of ['one', 'two', 'one', 'three']) affinity.ran(asked(text), 'c')
    const why = (text: string) => affinity.choose({ beginning: asked(text), ...nowhere }, all)!.why
    expect([why('one'), why('two'), why('three')]).toEqual(['prefix', 'hash', 'prefix'])
  })
})
