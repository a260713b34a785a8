/** Tests that key sets, split into atoms and summed again, equal sums over single places. */
import { describe, expect, it } from 'vitest'
import { Random } from '../../../src/runtime/core/random.js'
import { Atoms } from '../../../src/runtime/engine/attention-capture.js'
import type { KeySet } from '../../../src/runtime/engine/attention.js'

function randomSets(random: Random): KeySet[] {
  return Array.from({ length: random.below(6) }, (_, name) => {
    const tokens = []
    for (let at = random.below(8); at < 40 && random.below(4) > 0;) {
      const end = at + random.below(7)
      tokens.push({ start: at, end })
      // The next span often touches this one.
      at = end + (random.below(2) === 0 ? 0 : random.below(9))
    }
    return { name: `${name}`, tokens }
  })
}

describe('atoms', () => {
  it('sum up to their sets, however the sets overlap', () => {
    const random = new Random(1)
    for (let round = 0; round < 300; round++) {
      const sets = randomSets(random)
      const atoms = new Atoms(sets)
      // The weights are whole numbers, so sums are exact.
      const rows = [0, 1].map((row) => Array.from({ length: 48 }, (_, place) => ((place * 7 + row) % 5) + 1))
      const mass = new Float32Array(2 * atoms.count)
      for (const [row, weights] of rows.entries())
        atoms.byPlace.forEach((atom, place) => {
          if (atom >= 0) mass[row * atoms.count + atom]! += weights[place]!
        })
      const expected = rows.flatMap((weights) =>
        sets.map(({ tokens }) =>
          tokens.reduce((sum, { start, end }) => sum + weights.slice(start, end).reduce((a, b) => a + b, 0), 0),
        ),
      )
      const sums = atoms.added(mass, 2)
      expect([...sums]).toEqual(expected)
    }
  })

  it('are one for each combination of sets', () => {
    const set = (name: string, ...spans: readonly (readonly [number, number])[]): KeySet => ({
      name,
      tokens: spans.map(([start, end]) => ({ start, end })),
    })
    expect(new Atoms([]).count).toBe(0)
    expect(new Atoms([set('a', [0, 2], [5, 7])]).byPlace).toEqual(Int32Array.of(0, 0, -1, -1, -1, 0, 0))
    expect(new Atoms([set('a', [0, 4]), set('b', [2, 6]), set('c', [0, 6])]).count).toBe(3)
    expect(new Atoms([set('a', [0, 2], [2, 4])]).byPlace).toEqual(Int32Array.of(0, 0, 0, 0))
  })
})
