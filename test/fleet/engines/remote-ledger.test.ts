/**
 * Tests the ledger of a remote engine: its sums are always the endpoint's, and edits are deferred while their rent is less than their
 * price.
 */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Edit } from '../../../src/runtime/chat/message.js'
import { span } from '../../../src/runtime/core/span.js'
import { RemoteLedger, type ShownRow } from '../../../src/fleet/engines/remote-ledger.js'
import { CachedPrice, Deferral } from '../../../src/fleet/engines/deferral.js'
import { contentOf, shownText } from '../../../src/fleet/engines/wire.js'

const row = (text: string, role = 'user'): ShownRow => ({ role, text, weight: text.length + 4 })
const entered = (
  books: RemoteLedger,
  rows: readonly ShownRow[],
  prompt: number,
  cached: number | null,
  generated: number,
  answer = 'yes',
) =>
  books.enter({
    rows,
    answer,
    usage: { prompt, cached, generated, milliseconds: null },
    pending: generated > 0 ? 1 : 0,
    kind: 'answer',
    fallback: null,
    firstToken: 5,
    total: 9,
    engine: 'there',
  })

describe('the text sent', () => {
  it('has the length hint of a message after its content under the edits', () => {
    const message = { role: 'user', content: 'one two three', note: '\n\n[noted]' } as const
    expect(contentOf(message, [{ message: 0, span: span(4, 13), replacement: '[folded]' }])).toBe('one [folded]\n\n[noted]')
    expect(contentOf({ role: 'user', content: 'one' }, [])).toBe('one')
  })
})

describe('RemoteLedger', () => {
  it('expects the tokens of the last step on the same engine, even after an empty answer, and none on another engine', () => {
    const books = new RemoteLedger()
    const first = [row('a long text'), row('well')]
    expect(entered(books, first, 100, 0, 5, '').engine).toEqual({ name: 'there', expected: 0, reported: 0 })
    const second = [...first, row('', 'assistant'), row('and')]
    const { engine } = entered(books, second, 140, 104, 5, 'yes')
    expect(engine!.expected).toBeGreaterThan(98)
    expect(engine!.expected).toBeLessThanOrEqual(104)
    const third = [...second, row('yes', 'assistant'), row('so')]
    const { engine: last } = entered(books, third, 180, 144, 5, 'no')
    expect(last!.expected).toBeGreaterThan(137)
    expect(last!.expected).toBeLessThanOrEqual(144)
    const elsewhere = { rows: third, answer: 'no', usage: { prompt: 180, cached: 30, generated: 5, milliseconds: null } } as const
    const moved = books.enter({
      ...elsewhere,
      pending: 1,
      kind: 'answer',
      fallback: null,
      firstToken: 5,
      total: 9,
      engine: 'here',
    })
    expect(moved).toMatchObject({ engine: { name: 'here', expected: 0, reported: 30 }, sources: { own: 0, shared: 30 } })
  })

  it("has the endpoint's sums, whatever they are", () => {
    const step = fc.record({
      texts: fc.array(fc.string({ maxLength: 30 }), { minLength: 1, maxLength: 6 }),
      prompt: fc.nat(500),
      cached: fc.option(fc.nat(600)),
      generated: fc.nat(20),
    })
    fc.assert(
      fc.property(fc.array(step, { maxLength: 6 }), (steps) => {
        const books = new RemoteLedger()
        steps.forEach(({ texts, prompt, cached, generated }, at) => {
          const known = cached === null ? null : Math.min(cached, prompt)
          const entry = entered(
            books,
            texts.map((text) => row(text)),
            prompt,
            known,
            generated,
          )
          const pending = Math.min(1, generated)
          expect(entry.step).toBe(at)
          expect(entry.shown).toBe(prompt + generated - pending)
          expect(entry.reused).toBe(known ?? 0)
          expect(entry.reused + entry.recomputed + entry.fresh).toBe(entry.shown)
          expect(entry.recomputed + entry.fresh + entry.side).toBe(entry.submitted)
          expect(entry.sources.own + entry.sources.shared).toBe(entry.reused)
          expect(entry.messages.map(({ index }) => index)).toEqual([...texts.keys(), texts.length])
          expect(entry.messages.reduce((sum, cost) => sum + cost.shown, 0)).toBe(entry.shown)
          for (const cost of entry.messages) {
            expect(Math.min(cost.shown, cost.reused, cost.recomputed, cost.fresh)).toBeGreaterThanOrEqual(0)
            expect(cost.reused + cost.recomputed + cost.fresh).toBe(cost.shown)
          }
        })
      }),
      { numRuns: 300 },
    )
  })

  it('gives an unchanged message its earlier count, and the rest to new messages', () => {
    const books = new RemoteLedger()
    const first = entered(books, [row('system text', 'system'), row('a question')], 50, 0, 4)
    const second = entered(
      books,
      [row('system text', 'system'), row('a question'), row('yes', 'assistant'), row('more')],
      70,
      53,
      4,
    )
    const shown = (entry: typeof first) => entry.messages.map((cost) => cost.shown)
    expect(shown(second).slice(0, 2)).toEqual(shown(first).slice(0, 2))
    expect(second).toMatchObject({ reused: 53, recomputed: 0, sources: { own: 53, shared: 0 } })
  })

  it('counts text that the last step also showed as recomputed if it is not cached', () => {
    const books = new RemoteLedger()
    const long = 'x'.repeat(400)
    entered(books, [row(long), row(long)], 820, 0, 2)
    const entry = entered(books, [row(`${long.slice(0, 100)}[folded]`), row(long)], 530, 110, 2)
    expect(entry.messages[1]).toMatchObject({ reused: 0, fresh: 0 })
    expect(entry.messages[1]?.recomputed).toBe(entry.messages[1]?.shown)
    expect(entry.messages[0]?.reused).toBe(110)
  })

  it('counts the one token that is recomputed when the whole prompt is cached', () => {
    expect(entered(new RemoteLedger(), [row('a question')], 30, 30, 4)).toMatchObject({
      reused: 30,
      side: 1,
      submitted: 4,
      shown: 33,
      pending: 1,
    })
    expect(entered(new RemoteLedger(), [row('a question')], 30, 29, 4)).toMatchObject({ reused: 29, side: 0, submitted: 4 })
  })

  it('counts the end of an answer as fresh, and the answer itself as recomputed', () => {
    const books = new RemoteLedger()
    const rows = [row('a question')]
    const first = entered(books, rows, 30, 0, 10, 'the answer')
    const had = first.messages[1]!.shown
    const { messages } = entered(books, [...rows, row('the answer', 'assistant'), row('more')], 60, 0, 4)
    expect(messages[1]!.recomputed).toBe(Math.min(had, messages[1]!.shown))
    expect(messages[1]!.recomputed).toBeGreaterThan(0)
    expect(messages[2]).toMatchObject({ recomputed: 0, reused: 0 })
    const long = entered(books, [...rows, row('the answer', 'assistant'), row('more'), row('yes', 'assistant')], 200, 62, 4)
    // The prompt's size makes the last answer's row large here, and only its earlier tokens can count as recomputed.
    expect(long.messages[3]!.fresh).toBeGreaterThan(0)
  })
})

/** A prompt of one message with ten parts of a hundred characters, one token per character. A fold shows ten tokens for a part. */
function deferringBooks(cachedPrice: number | (() => number), window = Number.MAX_SAFE_INTEGER) {
  const content = 'abcdefghij'.repeat(100)
  const deferral = new Deferral({ cachedPrice })
  const books = new RemoteLedger()
  const fold = (part: number): Edit => ({
    message: 0,
    span: span(100 * part, 100 * part + 100),
    replacement: `[folded_${part}]`.padEnd(10),
  })
  const text = (edits: readonly Edit[]) => shownText(content, edits)
  /**
   * Runs one step with these parts folded. Returns the parts shown as folded, the number of deferred edits, and the tokens that the
   * endpoint would compute.
   */
  const step = (parts: readonly number[]) => {
    const edits = parts.map(fold)
    const before = books.held?.rows[0]?.text ?? ''
    const choice = deferral.choose({
      edits,
      contents: [content],
      held: books.held,
      row: (_, own) => text(own),
      tokens: (of) => of.length,
      fits: (some) => text(some).length <= window,
    })
    const shown = text(choice.edits)
    let same = 0
    while (same < before.length && before[same] === shown[same]) same++
    entered(books, [{ role: 'user', text: shown, weight: shown.length }], shown.length + 3, same, 1)
    const folded = parts.filter((part) => choice.edits.some(({ span: { start } }) => start === 100 * part))
    return { folded, waiting: choice.waiting.length, computed: shown.length - same }
  }
  return { step }
}

describe('CachedPrice', () => {
  it("finds the price in an engine's times, whatever the fixed cost of requests, and reports none before", () => {
    fc.assert(
      fc.property(
        fc.double({ min: 0, max: 0.9, noNaN: true }),
        fc.double({ min: 0.01, max: 20, noNaN: true }),
        fc.double({ min: 0, max: 300, noNaN: true }),
        fc.array(fc.tuple(fc.nat(20_000), fc.integer({ min: 20, max: 4000 })), { minLength: 40, maxLength: 60 }),
        (price, computed, fixed, steps) => {
          const learned = new CachedPrice()
          for (const [at, [cached, fresh]] of steps.entries()) {
            if (at < 8) expect([learned.ratio, learned.price]).toEqual([null, 0.1])
            // The times are a hundredth too high and too low in turn.
            const noise = 1 + (at % 2 === 0 ? 0.01 : -0.01)
            learned.observe(cached, fresh, (fixed + computed * (price * cached + fresh)) * noise)
          }
          const spread = new Set(steps.map(([cached]) => Math.round(cached / 1000))).size > 4
          if (spread && learned.ratio !== null) expect(Math.abs(learned.ratio - price)).toBeLessThan(0.15)
        },
      ),
    )
  })

  it('reports none if all steps are alike', () => {
    const learned = new CachedPrice()
    for (let step = 0; step < 50; step++) learned.observe(1000, 100, 50)
    expect(learned.ratio).toBeNull()
  })

  it('decides by its current value: a fold is deferred while cached tokens cost nothing', () => {
    let price = 0
    const { step } = deferringBooks(() => price)
    step([])
    for (let turn = 0; turn < 60; turn++) expect(step([0]).folded).toEqual([])
    price = 0.9
    // Two steps of 81 tokens pay for the 90 tokens' worth that recomputing 900 costs.
    step([0])
    expect(step([0])).toMatchObject({ folded: [0], waiting: 0 })
  })
})

describe('Deferral', () => {
  it('shows edits of the first step at once, because nothing is cached yet', () => {
    expect(deferringBooks(0.1).step([0, 5])).toMatchObject({ folded: [0, 5], waiting: 0 })
  })

  it('makes a fold at the end at once, and defers one at the beginning until its rent equals its price', () => {
    const { step } = deferringBooks(0.2)
    step([])
    expect(step([9])).toMatchObject({ folded: [9], waiting: 0 })
    // The fold hides 90 tokens at 0.2 each step; it recomputes about 820 tokens at 0.8.
    const waits: number[] = []
    for (;;) {
      const { folded } = step([0, 9])
      if (folded.includes(0)) break
      waits.push(folded.length)
    }
    expect(waits.length).toBeGreaterThan(30)
    expect(waits.length).toBeLessThan(42)
  })

  it('computes less than without it when a model folds from first to last, one fragment in each step', () => {
    const cost = (cachedPrice: number | null) => {
      const { step } = deferringBooks(cachedPrice ?? 1)
      step([])
      let computed = 0
      for (let count = 1; count <= 8; count++) computed += step([...Array(count).keys()]).computed
      return computed
    }
    // If cached tokens cost as much as computed ones, no fold is deferred.
    expect(cost(1)).toBeGreaterThan(3000)
    expect(cost(0.1)).toBeLessThan(1000)
  })

  it('shows restored text at once, and makes deferred edits after it at no cost', () => {
    const { step } = deferringBooks(0.01)
    step([1])
    expect(step([1, 4])).toMatchObject({ folded: [1], waiting: 1 })
    expect(step([4])).toMatchObject({ folded: [4], waiting: 0 })
    // Edits that were made stay made.
    expect(step([4])).toMatchObject({ folded: [4], waiting: 0, computed: 0 })
  })

  it('defers no edit if the context has no room for the text', () => {
    const { step } = deferringBooks(0.01, 950)
    step([2])
    expect(step([0, 2])).toMatchObject({ folded: [2], waiting: 1 })
    const { step: tight } = deferringBooks(0.01, 850)
    tight([2])
    expect(tight([0, 2])).toMatchObject({ folded: [0, 2], waiting: 0 })
  })
})
