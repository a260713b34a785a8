/** Tests `residencyOf`, which counts the cells of a text by tier, against a search token by token. */
import fc from 'fast-check'
import { expect, it } from 'vitest'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { span } from '../../../src/runtime/core/span.js'
import { tokenSource } from '../../../src/runtime/kv/prompt.js'
import { OffloadedSequence } from '../../../src/runtime/kv/offload.js'
import { WORDS } from '../../../src/runtime/kv/cell-hash.js'
import { residencyOf, type CellPlace } from '../../../src/runtime/kv/residency.js'

const PLACES: readonly CellPlace[] = ['live', 'parked', 'host', 'disk']

/** Returns an offloaded sequence that holds these places of its own prompt. */
function holderOf(base: readonly number[], places: readonly number[]): OffloadedSequence {
  const record = {
    conversation: conversationId('c'),
    unedited: Int32Array.from(base),
    tokens: Int32Array.from(places, (place) => base[place]!),
    sourceIds: Int32Array.from(places, (place) => tokenSource(place)),
    positions: Int32Array.from(places),
    hashes: new Int32Array(WORDS * places.length),
  }
  return new OffloadedSequence(record, { tier: 'host', state: new Uint8Array() }, 0)
}

it('counts every token once, in the tier from which it is cheapest', () => {
  const prompt = fc.array(fc.constantFrom(1, 2), { minLength: 4, maxLength: 14 })
  const held = fc.record({ where: fc.constantFrom(...PLACES), keeps: fc.infiniteStream(fc.boolean()), turns: fc.nat(20) })
  fc.assert(
    fc.property(prompt, fc.array(held, { maxLength: 4 }), fc.nat(13), fc.nat(13), (base, parts, a, b) => {
      // The other prompts are equal to this one up to some token.
      const holders = parts.map(({ where, keeps, turns }) => {
        const own = base.map((token, at) => (at < turns ? token : 3 - token))
        const places = own.map((_, at) => at).filter(() => keeps.next().value)
        return { where, turns, places, holder: holderOf(own, places) }
      })
      const [start, end] = [Math.min(a, b, base.length), Math.min(Math.max(a, b), base.length)]
      const cut = start + Math.floor((end - start) / 2)
      const counts = (from: number, to: number) => {
        const found = { tokens: to - from, live: 0, parked: 0, host: 0, disk: 0, gone: 0 }
        for (let place = from; place < to; place++) {
          const by = PLACES.find((where) =>
            holders.some((each) => each.where === where && place < each.turns && each.places.includes(place)),
          )
          found[by ?? 'gone']++
        }
        return found
      }
      expect(residencyOf(Int32Array.from(base), [span(start, cut), span(cut, end)], holders)).toEqual([
        counts(start, cut),
        counts(cut, end),
      ])
    }),
    { numRuns: 1000 },
  )
})
