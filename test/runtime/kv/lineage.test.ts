/**
 * Tests lineages. However a client edits its messages, the prompt is those messages, and each token has a place in the text of all messages
 * ever sent.
 */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { editedFrom, Lineage, Lineages, type Wording } from '../../../src/runtime/kv/lineage.js'
import { type EditMap, sourceIdsOf } from '../../../src/runtime/kv/prompt.js'

/** Tokens of messages in order, and the prompt for an answer. All messages begin and end with the same tokens. */
const wordingOf = (messages: readonly (readonly number[])[]): Wording => {
  const framed = [...messages.map((each) => [1, ...each, 2]), [1]]
  const starts = [0]
  for (const each of framed) starts.push(starts.at(-1)! + each.length)
  return { tokens: Int32Array.from(framed.flat()), starts }
}

/** Applies the edit map to its base: the tokens shown, with these tokens for the replaced spans. */
function shownBy({ base, holes }: EditMap, tokens: Int32Array): number[] {
  const shown: number[] = []
  let place = 0
  for (const { span, marker } of holes) {
    shown.push(...base.subarray(place, span.start))
    shown.push(...tokens.subarray(shown.length, shown.length + marker))
    place = span.end
  }
  return [...shown, ...base.subarray(place)]
}

/** Returns the messages with some removed, replaced, inserted or sent again. `seen`: all messages ever sent. */
function changed(now: readonly number[][], changes: readonly Change[], seen: readonly number[][]): number[][] {
  const next = [...now]
  for (const { at, kind, by } of changes) {
    const where = next.length === 0 ? 0 : at % next.length
    if (kind === 'out') next.splice(where, 1)
    else if (kind === 'other') next.splice(where, 1, by)
    else if (kind === 'many') next.splice(where, 3, by)
    else next.splice(where, 0, kind === 'in' ? by : seen[at % seen.length]!)
  }
  return next
}

interface Change {
  readonly at: number
  readonly kind: 'out' | 'other' | 'in' | 'back' | 'many'
  readonly by: number[]
}

const message = fc.array(fc.integer({ min: 3, max: 60 }), { minLength: 0, maxLength: 6 })
const change = fc.record({
  at: fc.nat(30),
  kind: fc.constantFrom<Change['kind']>('out', 'other', 'in', 'back', 'many'),
  by: message,
})

describe('a lineage', () => {
  it('has every shown token at its reported place, and only grows', () => {
    fc.assert(
      fc.property(
        fc.array(message, { minLength: 1, maxLength: 8 }),
        fc.array(fc.tuple(fc.array(change, { maxLength: 4 }), message)),
        (first, turns) => {
          let now = first
          const seen = [...first]
          let lineage = Lineage.of(wordingOf(now))
          for (const [changes, added] of turns) {
            const next = changed(now, changes, seen)
            next.push(added)
            seen.push(...next)
            now = next
            const wording = wordingOf(now)
            const placed = lineage.place(wording)
            expect([...placed.lineage.text.subarray(0, lineage.text.length)]).toEqual([...lineage.text])
            const edits = editedFrom(placed, { base: wording.tokens, holes: [] }, 'splice', 'exact')
            let end = 0
            for (const { span, contract } of edits.holes) {
              expect(span.start).toBeGreaterThanOrEqual(end)
              expect(span.end).toBeGreaterThan(span.start)
              expect(contract).toBe('splice')
              end = span.end
            }
            expect(shownBy(edits, wording.tokens)).toEqual([...wording.tokens])
            expect(sourceIdsOf({ tokens: wording.tokens, messages: [], origin: edits })).toHaveLength(wording.tokens.length)
            lineage = placed.lineage
          }
        },
      ),
    )
  })

  it('keeps the places while the conversation is only extended', () => {
    fc.assert(
      fc.property(
        fc.array(message, { minLength: 1, maxLength: 6 }),
        fc.array(fc.tuple(fc.array(change, { maxLength: 4 }), message, message, message)),
        (first, turns) => {
          let now = first
          const seen = [...first]
          let lineage = Lineage.of(wordingOf(now))
          for (const [changes, generated, more, added] of turns) {
            const placed = lineage.place(wordingOf((now = changed(now, changes, seen))))
            const { length } = placed.lineage.text
            lineage = placed.lineage.grown(Int32Array.from([...placed.lineage.text, ...generated]))
            now = [...now, [...generated, ...more], added]
            seen.push(...now)
            const next = lineage.place(wordingOf(now))
            const before = [...placed.places, ...generated.map((_, at) => length + at)]
            expect([...next.places.subarray(0, before.length)]).toEqual(before)
            lineage = next.lineage
          }
        },
      ),
    )
  })

  it('finds all removed messages again when the whole conversation is sent', () => {
    fc.assert(
      fc.property(
        fc.uniqueArray(fc.array(fc.integer({ min: 3, max: 9000 }), { minLength: 2, maxLength: 6 }), {
          minLength: 2,
          maxLength: 8,
          selector: String,
        }),
        fc.nat(7),
        (messages, at) => {
          const whole = wordingOf(messages)
          const without = messages.filter((_, index) => index !== at % (messages.length - 1))
          const lineage = Lineage.of(whole)
          const placed = lineage.place(wordingOf(without)).lineage.place(whole)
          expect(editedFrom(placed, { base: whole.tokens, holes: [] }, 'splice', 'exact')).toEqual({
            base: whole.tokens,
            holes: [],
          })
        },
      ),
    )
  })

  it('gives messages that are sent again their first places', () => {
    fc.assert(
      fc.property(
        fc.array(message, { minLength: 1, maxLength: 6 }),
        fc.array(fc.record({ back: fc.option(fc.nat(20)), changes: fc.array(change, { maxLength: 4 }), generated: message }), {
          maxLength: 20,
        }),
        (first, turns) => {
          const sent = [first]
          const places = new Map<string, Int32Array>([
            [String(wordingOf(first).tokens), wordingOf(first).tokens.map((_, at) => at)],
          ])
          let lineage = Lineage.of(wordingOf(first))
          for (const { back, changes, generated } of turns) {
            const now = back === null ? changed(sent.at(-1)!, changes, sent.flat()) : sent[back % sent.length]!
            sent.push(now)
            const placed = lineage.place(wordingOf(now))
            const before = places.get(String(wordingOf(now).tokens))
            if (before !== undefined) expect([...placed.places]).toEqual([...before])
            places.set(String(wordingOf(now).tokens), placed.places)
            lineage = placed.lineage.grown(Int32Array.from([...placed.lineage.text, ...generated]))
          }
        },
      ),
    )
  })

  it('hides a replaced message and shows the new text in its place, between their common beginning and end', () => {
    const placed = Lineage.of(wordingOf([[10], [11, 12, 13], [14]])).place(wordingOf([[10], [20], [14]]))
    const edits = editedFrom(placed, { base: wordingOf([[10], [20], [14]]).tokens, holes: [] }, 'splice', 'exact')
    expect(edits.holes).toEqual([{ span: { start: 4, end: 7 }, marker: 1, contract: 'splice' }])
  })

  it('gives an inserted message the same place the next time, and one replaced span', () => {
    const first = Lineage.of(wordingOf([[10], [11], [12]])).place(wordingOf([[10], [20, 21], [11], [12]]))
    const again = first.lineage.place(wordingOf([[10], [20, 21], [11], [12], [13]]))
    expect([...again.places.subarray(0, 13)]).toEqual([...first.places.subarray(0, 13)])
  })

  it('keeps the places of one replaced message when another is replaced', () => {
    const whole = [[10, 11], [12], [13, 14, 15], [16]]
    const once = [[10, 11], [12], [20], [16]]
    const twice = [[20], [12], [20], [16], [17]]
    const placed = Lineage.of(wordingOf(whole)).place(wordingOf(once)).lineage.place(wordingOf(twice))
    const edits = editedFrom(placed, { base: wordingOf(twice).tokens, holes: [] }, 'splice', 'exact')
    expect(edits.holes.slice(0, 2)).toEqual([
      { span: { start: 1, end: 3 }, marker: 1, contract: 'splice' },
      { span: { start: 8, end: 11 }, marker: 1, contract: 'splice' },
    ])
  })

  it('places a message that extends a generated answer behind that answer', () => {
    const lineage = Lineage.of(wordingOf([[10]])).grown(Int32Array.of(1, 10, 2, 1, 30, 31))
    const placed = lineage.place(wordingOf([[10], [30, 31, 32], [40]]))
    expect([...placed.lineage.text]).toEqual([1, 10, 2, 1, 30, 31, 32, 2, 1, 40, 2, 1])
    expect([...placed.places]).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
  })

  it('reuses only the common beginning of a message if no later message was shown before', () => {
    const lineage = Lineage.of(wordingOf([[10], [11, 12, 13, 14]]))
    expect([...lineage.place(wordingOf([[10], [11, 20, 13, 14]])).places]).toEqual([0, 1, 2, 3, 4, 10, 11, 12, 13, 14])
    expect([...lineage.place(wordingOf([[10], [20], [21, 13, 14]])).places]).toEqual([0, 1, 2, 3, 10, 11, 12, 13, 14, 15, 16, 17])
  })

  it('finds messages after a gap only if no message was left out', () => {
    const lineage = Lineage.of(wordingOf([[10], [11], [12], [13]]))
    const place = (messages: readonly (readonly number[])[], count: number) => [
      ...lineage.place(wordingOf(messages), count).places,
    ]
    expect(place([[10], [12], [13]], 1)).toEqual([0, 1, 2, 3, 13, 14, 15, 16, 17, 18])
    expect(place([[10], [12], [13]], 2)).toEqual([0, 1, 2, 6, 7, 8, 9, 10, 11, 12])
    expect(place([[10], [11], [12]], 1)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
  })

  it("keeps the server's edits that touch none of the client's, with their contracts", () => {
    const wording = wordingOf([[10, 11, 12], [13, 14], [15]])
    const pruned = wordingOf([[10, 11, 12], [15]])
    const placed = Lineage.of(wording).place(pruned)
    const own: EditMap = { base: pruned.tokens, holes: [{ span: { start: 1, end: 3 }, marker: 1, contract: 'blend' }] }
    expect(editedFrom(placed, own, 'splice', 'exact').holes).toEqual([
      { span: { start: 1, end: 3 }, marker: 1, contract: 'blend' },
      { span: { start: 5, end: 9 }, marker: 0, contract: 'splice' },
    ])
  })
})

describe('the table of lineages', () => {
  const ids = ['a', 'b', 'c'].map(conversationId)
  const [a, b, c] = ids as [(typeof ids)[number], (typeof ids)[number], (typeof ids)[number]]
  const some = Lineage.of(wordingOf(Array.from({ length: 4 }, (_, at) => [3, 4, at + 5])))

  it('keeps to its bytes: the least recently used lineage goes first', () => {
    const lineages = new Lineages(2 * some.bytes)
    lineages.set(a, [some])
    lineages.set(b, [some])
    lineages.set(a, [some])
    expect(lineages.bytes).toBe(2 * some.bytes)
    lineages.set(c, [some])
    expect(ids.map((id) => lineages.of(id))).toEqual([[some], [], [some]])
    lineages.delete(a)
    lineages.delete(a)
    expect(lineages.bytes).toBe(some.bytes)
  })

  it('of one conversation are a few, and those used last stay as far as there is room', () => {
    const all = Array.from({ length: 9 }, (_, at) => Lineage.of(wordingOf([[at + 3], [4, 5]])))
    const roomy = new Lineages()
    roomy.set(a, all)
    expect(roomy.of(a)).toEqual(all.slice(0, 4))
    const tight = new Lineages(2.5 * all[0]!.bytes)
    tight.set(a, all)
    expect(tight.of(a)).toEqual(all.slice(0, 2))
    expect(tight.bytes).toBe(2 * all[0]!.bytes)
  })

  it('tell whether one of their wordings was shown', () => {
    const first = wordingOf([[3], [4, 5], [6]])
    const lineage = Lineage.of(first).place(wordingOf([[3], [7], [6]])).lineage
    expect(lineage.showed(first)).toBe(true)
    expect(lineage.showed(wordingOf([[3], [7], [6]]))).toBe(true)
    expect(lineage.showed(wordingOf([[3], [4, 5], [7]]))).toBe(false)
  })

  it('never take more, however often a client changes its mind', () => {
    const lineages = new Lineages(8 * some.bytes)
    const kept = Array.from({ length: 300 }, (_, turn) => {
      const wording = wordingOf([[3], [turn + 3, turn + 4], [5]])
      lineages.set(a, [lineages.of(a)[0]?.place(wording).lineage ?? Lineage.of(wording)])
      expect(lineages.bytes).toBeLessThanOrEqual(8 * some.bytes)
      return lineages.of(a)[0]
    })
    // The lineage starts over, and grows again.
    expect(kept.filter((lineage) => lineage === undefined).length).toBeGreaterThan(1)
    expect(kept.filter((lineage) => lineage !== undefined).length).toBeGreaterThan(200)
  })
})
