import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { lastValues, piSample } from '../../src/eval/pi-llm.js'
import { ownWords } from '../../src/eval/pi-words.js'

const words = ownWords()

describe('piSample', () => {
  it('writes the text the built-in model was trained on', async () => {
    const sample = piSample({ words, updates: 3, keys: 4, seed: 1 })
    await expect(`${sample.prompt}\n---\n${sample.answer}\n`).toMatchFileSnapshot('../golden/eval/pi-llm.txt')
  })

  it('is the same for the same options, another for any other', () => {
    const base = { words, updates: 3, keys: 6, seed: 5, sample: 2 }
    const prompt = (options: Partial<typeof base>) => piSample({ ...base, ...options }).prompt
    expect(prompt({})).toBe(prompt({}))
    const others = [prompt({}), prompt({ seed: 6 }), prompt({ sample: 3 }), prompt({ updates: 4 }), prompt({ keys: 7 })]
    expect(new Set(others).size).toBe(others.length)
  })

  it('has every key as often as asked for, all values different, no neighbours of one key, and the last values as the answer', () => {
    const options = fc.record({
      updates: fc.integer({ min: 1, max: 24 }),
      keys: fc.integer({ min: 2, max: 46 }),
      seed: fc.integer(),
      sample: fc.nat(1000),
    })
    fc.assert(
      fc.property(options, ({ updates, keys, seed, sample }) => {
        const made = piSample({ words, updates, keys, seed, sample })
        expect(new Set(made.keys).size).toBe(keys)
        expect(made.updates).toHaveLength(keys * updates)
        expect(new Set(made.updates.map(({ value }) => value)).size).toBe(keys * updates)
        for (const key of made.keys) expect(made.updates.filter((update) => update.key === key)).toHaveLength(updates)
        for (const [at, { key }] of made.updates.entries()) if (at > 0) expect(key).not.toBe(made.updates[at - 1]?.key)

        // Read back from the text alone.
        const [intro, stream, question] = made.prompt.split('\n\n')
        const pairs = stream!
          .split('\n')[1]!
          .split('; ')
          .map((pair) => pair.replace(/;$/u, '').split(': '))
        expect(pairs).toEqual(made.updates.map(({ key, value }) => [key, value]))
        expect(intro).toContain(`for ${keys} keys: ${made.keys.join(', ')}. `)
        expect(question).toContain(`of each of these keys: ${made.keys.join(', ')}? `)
        const last = new Map(pairs.map(([key, value]) => [key, value]))
        expect(made.answer.split('\n')).toEqual(made.keys.map((key) => `The current value of ${key} is ${last.get(key)}.`))
        expect([...lastValues(made.updates)].sort()).toEqual([...last].sort())
      }),
      { numRuns: 60 },
    )
  })

  it('spreads the last values: how near to the end a key’s last update is differs from sample to sample', () => {
    const places = Array.from({ length: 200 }, (_, sample) => {
      const { keys, updates } = piSample({ words, updates: 4, seed: 9, sample })
      return updates.findLastIndex(({ key }) => key === keys[0]) / updates.length
    })
    const mean = places.reduce((sum, place) => sum + place, 0) / places.length
    // The largest of four uniform places: mean 0.8, standard deviation 0.16.
    expect(Math.abs(mean - 0.8)).toBeLessThan(0.05)
  })

  it('keeps every order of two keys alternating, the only one possible', () => {
    const { updates } = piSample({ words, updates: 50, keys: 2, seed: 1 })
    expect(new Set(updates.filter((_, at) => at % 2 === 0).map(({ key }) => key)).size).toBe(1)
  })

  it('makes the largest size the words allow', () => {
    expect(piSample({ words, updates: 68, seed: 1 }).updates).toHaveLength(46 * 68)
  })

  it.each([
    [{ updates: 69 }, 'needs 3174 different values, and there are 3136'],
    [{ updates: 0 }, 'a whole number of updates from 1, not 0'],
    [{ updates: 2.5 }, 'a whole number of updates from 1, not 2.5'],
    [{ updates: 2, keys: 47 }, '47 keys, and there are 46'],
    [{ updates: 2, keys: 1 }, 'two keys at least'],
  ])('refuses %j', (options, message) => {
    expect(() => piSample({ words, seed: 1, ...options })).toThrow(message)
  })
})
