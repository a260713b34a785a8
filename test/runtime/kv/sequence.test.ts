/**
 * Tests which parts of a text a sequence holds, against a search token by token; and how many of its cells are exact, against a check of
 * every cell.
 */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { conversationId, seqId } from '../../../src/runtime/core/ids.js'
import { span } from '../../../src/runtime/core/span.js'
import { FreshHashes, FreshText } from '../../../src/runtime/kv/cell-hash.js'
import { CellTable } from '../../../src/runtime/kv/cell-table.js'
import { OffloadedSequence, offloadRecordOf } from '../../../src/runtime/kv/offload.js'
import { isMarker, type Prompt, sourceIdsOf, sourcePlace, uneditedOf } from '../../../src/runtime/kv/prompt.js'
import { freshCells, type HeldSequence, Sequence } from '../../../src/runtime/kv/sequence.js'
import { stretchesIn } from '../../../src/runtime/kv/plan/splice.js'
import { CacheSalts } from '../../../src/runtime/kv/tenant-salts.js'

const SALTS = new CacheSalts(Buffer.alloc(32, 'a secret'))
const conversation = conversationId('stretches')

/** Returns the unedited prompt `base` with the tokens at each of these places hidden behind a marker. */
function edited(
  base: readonly number[],
  holes: readonly { readonly skip: number; readonly hides: number; readonly marker: readonly number[] }[],
): Prompt {
  const tokens: number[] = []
  const made: { span: { start: number; end: number }; marker: number }[] = []
  let place = 0
  for (const { skip, hides, marker } of holes) {
    const start = place + skip
    const end = Math.min(base.length, start + hides)
    if (end <= start) break
    tokens.push(...base.slice(place, start), ...marker)
    made.push({ span: { start, end }, marker: marker.length })
    place = end
  }
  tokens.push(...base.slice(place))
  return {
    tokens: Int32Array.from(tokens),
    messages: [{ index: 0, role: 'user', span: span(0, tokens.length) }],
    origin: { base: Int32Array.from(base), holes: made },
  }
}

/** Returns the places from `place` on that `holder` holds, and their entries, one by one. */
function placesHeld(holder: HeldSequence, shown: Prompt, place: number, again: Uint8Array | null) {
  const base = uneditedOf(shown)
  const keys = sourceIdsOf(shown)
  const theirs = holder.unedited
  let agrees = 0
  while (agrees < Math.min(base.length, theirs.length) && base[agrees] === theirs[agrees]) agrees++
  const found = new Map<number, number>()
  let entry = 0
  let said = false
  let first = place
  while (first > 0 && first < shown.tokens.length && isMarker(keys[first]!) && keys[first - 1] === keys[first]) first--
  for (let at = first; at < shown.tokens.length; at++) {
    const key = keys[at]!
    if (isMarker(key) ? sourcePlace(key) > agrees : sourcePlace(key) >= agrees) break
    while (entry < holder.held && holder.sourceIds[entry]! < key) entry++
    const inside = isMarker(key) && at > 0 && keys[at - 1] === key
    const same = entry < holder.held && holder.sourceIds[entry] === key && holder.tokens[entry] === shown.tokens[at]
    said = same && again?.[at] !== 1 && (!inside || said)
    if (said && at >= place) found.set(at, entry)
    if (said) entry++
  }
  return found
}

const few = fc.integer({ min: 1, max: 3 })
const holes = fc.array(
  fc.record({ skip: fc.nat(6), hides: fc.integer({ min: 1, max: 5 }), marker: fc.array(few, { minLength: 1, maxLength: 3 }) }),
  { maxLength: 4 },
)
const text = fc.array(few, { minLength: 1, maxLength: 30 })

describe('the runs of a text that a sequence holds', () => {
  it('are those that a search token by token finds, cut where entries or positions are not consecutive', () => {
    const history = fc.record({
      base: text,
      held: holes,
      shown: fc.option(holes),
      changed: fc.option(fc.nat(29)),
      more: text,
      cuts: fc.array(fc.record({ at: fc.nat(30), count: fc.integer({ min: 1, max: 4 }) }), { maxLength: 3 }),
      gap: fc.option(fc.nat(29)),
      place: fc.nat(12),
      again: fc.option(fc.array(fc.boolean(), { minLength: 120, maxLength: 120 })),
    })
    fc.assert(
      fc.property(history, ({ base, held, shown: edits, changed, more, cuts, gap, place, again: marked }) => {
        const before = edited(base, held)
        const sequence = new Sequence(conversation, seqId(0), new CellTable(200), 'idle')
        sequence.append(before.tokens, sourceIdsOf(before))
        sequence.unedited = uneditedOf(before)
        for (const { at, count } of cuts) if (at < sequence.held) sequence.cut(span(at, Math.min(sequence.held, at + count)))
        if (gap !== null && gap < sequence.held) sequence.shift(span(gap, sequence.held), 2)
        const now = [...base, ...more]
        if (changed !== null && changed < now.length) now[changed] = 1 + (now[changed]! % 3)
        const shown = edited(now, edits ?? held)
        const again = marked === null ? null : Uint8Array.from(shown.tokens, (_, at) => (marked[at] === true ? 1 : 0))
        const keys = sourceIdsOf(shown)
        for (const holder of [sequence, new OffloadedSequence(offloadRecordOf(sequence), { tier: 'disk', id: 'one' }, 1)]) {
          const found = stretchesIn(holder, 0, shown.tokens, uneditedOf(shown), keys, place, again)
          const expected = placesHeld(holder, shown, place, again)
          const got = new Map<number, number>()
          for (const { span: of, entry, offset } of found)
            for (let at = of.start; at < of.end; at++) {
              got.set(at, entry + at - of.start)
              expect(holder.position(entry + at - of.start)).toBe(at + offset)
            }
          expect(got).toEqual(expected)
          for (const [at, { span: of, entry, offset }] of found.entries()) {
            const last = found[at - 1]
            const isOne =
              last?.span.end === of.start && last.entry + last.span.end - last.span.start === entry && last.offset === offset
            expect(isOne).toBe(false)
          }
        }
      }),
      { numRuns: 3000 },
    )
  })
})

describe('the number of entries that equal a fresh prefill', () => {
  it('agrees with a check of every cell, from any entry, at any place of any text, for any tenant', () => {
    const history = fc.record({
      first: text,
      cut: fc.option(fc.record({ at: fc.nat(29), count: fc.integer({ min: 1, max: 5 }) })),
      then: text,
      lent: fc.option(fc.record({ at: fc.nat(29), count: fc.integer({ min: 1, max: 9 }) })),
      asked: fc.array(few, { maxLength: 60 }),
      keep: fc.nat(60),
      entry: fc.nat(40),
      place: fc.nat(40),
      aligned: fc.boolean(),
      end: fc.nat(60),
      other: fc.boolean(),
    })
    fc.assert(
      fc.property(history, ({ first, cut, then, lent, asked, keep, entry: from, place, aligned, end, other }) => {
        const book = new CellTable(400)
        const salt = SALTS.of('anna')
        const sequence = new Sequence(conversation, seqId(0), book, 'idle', salt)
        const add = (to: Sequence, tokens: readonly number[]) => {
          to.append(Int32Array.from(tokens), sourceIdsOf({ tokens: Int32Array.from(tokens), messages: [] }))
        }
        add(sequence, first)
        if (cut !== null && cut.at < sequence.held) sequence.cut(span(cut.at, Math.min(sequence.held, cut.at + cut.count)))
        add(sequence, then)
        // These cells were computed beside another text, or beside none.
        const lender = new Sequence(conversation, seqId(1), book, 'idle', salt)
        add(lender, [...first, ...then, ...first, ...then])
        if (lent !== null) {
          const start = lender.atPosition(sequence.next + lent.at)
          if (start < lender.held) sequence.adopt(lender, span(start, Math.min(lender.held, start + lent.count)), sequence.held)
        }
        const tokens = Int32Array.from([...sequence.tokens.subarray(0, keep), ...asked])
        const asker = new FreshText(tokens, new FreshHashes(other ? SALTS.of('otto') : SALTS.of('anna')))
        const start = Math.min(place, tokens.length)
        const entry = aligned ? start : from
        const until = Math.min(tokens.length, Math.max(start, end))
        expect(sequence.freshRun(entry, start, until, asker)).toBe(freshCells(sequence, entry, start, until, asker))
      }),
      { numRuns: 5000 },
    )
  })
})
