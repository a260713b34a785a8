/** Tests the index over a text's tokens against a plain search, and what it proposes. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { LONGEST_MATCH, PromptLookup, SHORTEST_MATCH } from '../../../src/runtime/engine/prompt-lookup.js'

const list = (...tokens: number[]) => Int32Array.from(tokens)

/** The longest match by comparing every place, and the places where it is. */
function plainSearch(tokens: readonly number[]): { readonly matched: number; readonly next: ReadonlySet<number> } {
  let matched = 0
  let next = new Set<number>()
  for (let place = 1; place < tokens.length; place++) {
    let length = 0
    while (length < Math.min(place, LONGEST_MATCH)) {
      const token = tokens[place - 1 - length]!
      if (token < 0 || token !== tokens[tokens.length - 1 - length]) break
      length++
    }
    if (length < SHORTEST_MATCH || length < matched || tokens[place]! < 0) continue
    next = length > matched ? new Set([tokens[place]!]) : next.add(tokens[place]!)
    matched = length
  }
  return { matched, next }
}

describe('prompt lookup', () => {
  it('finds the longest match that a plain search finds, after every token', () => {
    const token = fc.integer({ min: 0, max: 3 })
    fc.assert(
      fc.property(
        fc.array(fc.array(fc.oneof({ weight: 9, arbitrary: token }, fc.constant(-1)), { maxLength: 24 }), {
          minLength: 1,
          maxLength: 3,
        }),
        fc.array(token, { maxLength: 30 }),
        (texts, answer) => {
          const lookup = new PromptLookup(texts.map((text) => Int32Array.from(text)))
          const all = texts.flatMap((text, index) => (index === 0 ? text : [-1, ...text]))
          for (const next of [...answer, null]) {
            const { matched, next: allowed } = plainSearch(all)
            const [proposed] = lookup.propose(1)
            // A chain is walked only so far, so a match may be shorter than the longest one, but never wrong.
            expect(lookup.matched).toBeLessThanOrEqual(matched)
            if (all.length < 32) expect(lookup.matched).toBe(matched)
            if (lookup.matched === matched && matched > 0) expect(allowed).toContain(proposed)
            if (lookup.matched === 0) expect(proposed).toBeUndefined()
            if (next === null) break
            const had = lookup.matched
            expect(lookup.push(next)).toEqual(had === 0 ? null : { matched: had, hit: next === proposed })
            all.push(next)
          }
        },
      ),
    )
  })

  it('proposes what followed the latest of equal matches', () => {
    const lookup = new PromptLookup([list(1, 2, 3, 8, 9, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3)])
    expect(lookup.matched).toBe(3)
    expect([...lookup.propose(4)]).toEqual([4, 5, 6, 7])
  })

  it('goes on with the match while it comes, without a new search', () => {
    const lookup = new PromptLookup([list(9, 1, 2, 3, 4, 5, 6, 0, 9, 1, 2)])
    expect(lookup.push(3)).toEqual({ matched: 3, hit: true })
    expect(lookup.push(4)).toEqual({ matched: 4, hit: true })
    expect(lookup.matched).toBe(5)
    expect(lookup.push(7)).toEqual({ matched: 5, hit: false })
    expect(lookup.matched).toBe(0)
  })

  it('continues a period beyond the end of the text', () => {
    const lookup = new PromptLookup([list(5, 6, 7, 5, 6, 7)])
    expect([...lookup.propose(7)]).toEqual([5, 6, 7, 5, 6, 7, 5])
  })

  it('never passes the border of two texts, nor a forgotten token', () => {
    const lookup = new PromptLookup([list(1, 2, 3, 4), list(7, 8, 9, -1, -1, 5, 1, 2, 3)])
    expect([...lookup.propose(9)]).toEqual([4])
    for (const token of [7, 8, 9]) lookup.push(token)
    expect(lookup.matched).toBe(0)
    expect([...lookup.propose(9)]).toEqual([])
  })

  it('indexes a long text over several calls', () => {
    const size = 200_000
    const long = Int32Array.from({ length: size }, (_, at) => at)
    long.set([size - 9, size - 8, size - 7], size - 3)
    const lookup = new PromptLookup([long])
    expect(lookup.matched).toBe(0)
    for (let at = 0; at < 4; at++) lookup.push(size + at)
    for (const token of [size - 50, size - 49, size - 48]) lookup.push(token)
    expect([...lookup.propose(2)]).toEqual([size - 47, size - 46])
  })
})
