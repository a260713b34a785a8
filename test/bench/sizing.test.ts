/** How many engines are enough: found with few tries from any guess, and said where none are. */
import { describe, expect, it } from 'vitest'
import { fewest } from '../../bench/fleet/simulated/sizing.js'

const search = (needed: number, guess: number, most: number) => {
  const tried: number[] = []
  const found = fewest(
    (count) => {
      tried.push(count)
      return { count }
    },
    ({ count }) => count >= needed,
    { guess, most },
  )
  return { ...found, tried }
}

describe('the fewest engines', () => {
  it('are found from any guess, each number tried once', () => {
    for (const needed of [1, 2, 3, 7, 57, 200])
      for (const guess of [1, 2, 50, 64, 200, 1000]) {
        const { count, enough, tried } = search(needed, guess, 200)
        expect({ count, enough }).toEqual({ count: needed, enough: true })
        expect(new Set(tried).size).toBe(tried.length)
        expect(tried.length).toBeLessThanOrEqual(17)
      }
  })

  it('are said not to be there where the most are not enough', () => {
    const { count, enough, tried } = search(Infinity, 10, 500)
    expect({ count, enough }).toEqual({ count: 500, enough: false })
    expect(tried).toEqual([10, 20, 40, 80, 160, 320, 500])
  })
})
