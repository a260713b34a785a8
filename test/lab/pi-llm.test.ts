import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { lastValues, ownWords, piSample, piScore, type PiTruth, wordsFrom } from '../../src/lab/pi-llm.js'
import { temporaryFolder } from '../support/temporary-folder.js'

const words = ownWords()

describe('piSample', () => {
  it('writes the text that the built-in model was trained on', async () => {
    const sample = piSample({ words, updates: 3, keys: 4, seed: 1 })
    await expect(`${sample.prompt}\n---\n${sample.answer}\n`).toMatchFileSnapshot('../golden/eval/pi-llm.txt')
  })

  it('is the same for the same options, and different for any others', () => {
    const base = { words, updates: 3, keys: 6, seed: 5, sample: 2 }
    const prompt = (options: Partial<typeof base>) => piSample({ ...base, ...options }).prompt
    expect(prompt({})).toBe(prompt({}))
    const others = [prompt({}), prompt({ seed: 6 }), prompt({ sample: 3 }), prompt({ updates: 4 }), prompt({ keys: 7 })]
    expect(new Set(others).size).toBe(others.length)
  })

  it('has every key as often as requested, no value and no neighbouring key twice, and the last values as the answer', () => {
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

  it('spreads the last values: the distance of a key’s last update from the end differs from sample to sample', () => {
    const places = Array.from({ length: 200 }, (_, sample) => {
      const { keys, updates } = piSample({ words, updates: 4, seed: 9, sample })
      return updates.findLastIndex(({ key }) => key === keys[0]) / updates.length
    })
    const mean = places.reduce((sum, place) => sum + place, 0) / places.length
    // The largest of four uniform places: mean 0.8, standard deviation 0.16.
    expect(Math.abs(mean - 0.8)).toBeLessThan(0.05)
  })

  it('alternates two keys in every order, because no other order is possible', () => {
    const { updates } = piSample({ words, updates: 50, keys: 2, seed: 1 })
    expect(new Set(updates.filter((_, at) => at % 2 === 0).map(({ key }) => key)).size).toBe(1)
  })

  it('has words for the largest size of the original, all of them different', () => {
    for (const [updates, longest] of [
      [68, 1],
      [400, 2],
    ] as const) {
      const made = piSample({ words, updates, seed: 1 })
      const values = made.updates.map(({ value }) => value)
      expect(new Set(values.map((value) => value.toLowerCase())).size).toBe(46 * updates)
      expect(Math.max(...values.map((value) => value.split(' ').length))).toBe(longest)
    }
  })

  it.each([
    ['start-last', 0, 1 / 3],
    ['middle-last', 1 / 3, 2 / 3],
  ] as const)('puts all keys that count where %s says, and other keys around them', (order, from, to) => {
    const options = fc.record({
      updates: fc.integer({ min: 1, max: 20 }),
      keys: fc.integer({ min: 6, max: 46 }),
      seed: fc.integer(),
    })
    fc.assert(
      fc.property(options, ({ updates, keys, seed }) => {
        const made = piSample({ words, updates, keys, seed, order })
        const total = keys * updates
        expect(made.updates).toHaveLength(total)
        expect(made.keys).toHaveLength(Math.ceil(keys / 3))
        const places = made.updates.flatMap(({ key }, at) => (made.keys.includes(key) ? [at] : []))
        expect(places).toHaveLength(made.keys.length * updates)
        // They are adjacent, and in that third up to a key more or less.
        expect(places.at(-1)! - places[0]! + 1).toBe(places.length)
        expect(Math.abs(places[0]! / total - from)).toBeLessThan(1.5 / keys)
        expect(Math.abs((places.at(-1)! + 1) / total - to)).toBeLessThan(1.5 / keys)
        for (const [at, { key }] of made.updates.entries()) if (at > 0) expect(key).not.toBe(made.updates[at - 1]?.key)
        expect(new Set(made.updates.map(({ value }) => value)).size).toBe(total)
        const last = lastValues(made.updates)
        expect(made.answer.split('\n')).toEqual(made.keys.map((key) => `The current value of ${key} is ${last.get(key)}.`))
      }),
      { numRuns: 40 },
    )
  })

  it('shows the last part of the same stream, and still asks for every key', () => {
    const whole = piSample({ words, updates: 10, seed: 4 })
    for (const tail of [0.1, 0.2, 0.3, 0.999]) {
      const made = piSample({ words, updates: 10, seed: 4, tail })
      expect(made.updates).toEqual(whole.updates)
      expect(made.shown).toEqual(whole.updates.slice(460 - Math.ceil(460 * tail)))
      expect(made.answer).toBe(whole.answer)
      const [framing, stream, question] = whole.prompt.split('\n\n')
      const [before, shown, after] = made.prompt.split('\n\n')
      expect([before, after]).toEqual([framing, question])
      expect(stream!.endsWith(shown!.split('\n')[1]!)).toBe(true)
    }
  })

  it.each([
    [{ updates: 500 }, 'needs 23000 different values, but the list has 18'],
    [{ updates: 2, order: 'start-last', keys: 5 }, 'at least six keys'],
    [{ updates: 2, tail: 0 }, 'above 0 and up to 1, not 0'],
    [{ updates: 2, tail: 1.5 }, 'above 0 and up to 1, not 1.5'],
    [{ updates: 0 }, 'a whole number of updates from 1, not 0'],
    [{ updates: 2.5 }, 'a whole number of updates from 1, not 2.5'],
    [{ updates: 2, keys: 47 }, '47 keys, but the list of words has 46'],
    [{ updates: 2, keys: 1 }, 'at least two keys'],
  ] as const)('refuses %j', (options, message) => {
    expect(() => piSample({ words, seed: 1, ...options })).toThrow(message)
  })
})

describe('ownWords', () => {
  it('has 46 keys of one word, and values that are all different', () => {
    const { keys } = ownWords()
    expect(keys).toHaveLength(46)
    expect(new Set(keys).size).toBe(46)
    for (const key of keys) expect(key).toMatch(/^[a-z]+$/u)
    const { updates } = piSample({ words: ownWords(), updates: 60, seed: 1 })
    expect(new Set(updates.map(({ value }) => value)).size).toBe(46 * 60)
  })
})

describe('wordsFrom', () => {
  const folder = temporaryFolder('words')
  const file = (content: unknown) => {
    const path = join(folder, 'words.json')
    writeFileSync(path, typeof content === 'string' ? content : JSON.stringify(content))
    return path
  }

  it('reads {category: [value]}, gives a category its own values, and no value twice', () => {
    const words = wordsFrom(file({ fruit: ['Apple', 'Pear', 'Fig', 'Plum'], tree: ['apple', 'Oak', 'Ash', 'Fig tree', ''] }))
    expect(words.keys).toEqual(['fruit', 'tree'])
    for (let seed = 0; seed < 50; seed++) {
      const { updates } = piSample({ words, updates: 3, seed })
      expect(new Set(updates.map(({ value }) => value.toLowerCase())).size).toBe(6)
      for (const { key, value } of updates)
        expect(key === 'fruit' ? ['Apple', 'Pear', 'Fig', 'Plum'] : ['apple', 'Oak', 'Ash', 'Fig tree']).toContain(value)
    }
  })

  it('reports missing or wrong parts, and where', () => {
    expect(() => wordsFrom(join(folder, 'nowhere.json'))).toThrow(/The words in .*nowhere\.json cannot be read: ENOENT/u)
    expect(() => wordsFrom(file('no JSON'))).toThrow(/The words in .*words\.json cannot be read: .*JSON/u)
    expect(() => wordsFrom(file({ fruit: 'Apple' }))).toThrow(/The words in .* cannot be read: .*fruit/u)
    const words = wordsFrom(file({ fruit: ['Apple', 'Pear'], tree: ['Oak', 'Ash', 'Yew'] }))
    expect(() => piSample({ words, updates: 3, seed: 1 })).toThrow('needs 3 different values of fruit, but the list has 2')
  })
})

/** Our own answers. Verdicts by hand from the authors' rule, a letter for each key: Right, Older, Foreign, Missing. */
const golden = JSON.parse(readFileSync(new URL('../golden/eval/pi-answers.json', import.meta.url), 'utf8')) as PiTruth & {
  readonly answers: readonly { readonly why: string; readonly answer: string; readonly verdict: string }[]
}

const sample = {
  keys: ['bird', 'metal', 'fig tree'],
  updates: [
    { key: 'bird', value: 'goldharbor' },
    { key: 'metal', value: 'ashfield' },
    { key: 'bird', value: 'Calmpath' },
    { key: 'fig tree', value: 'two words' },
  ],
}

describe('piScore', () => {
  it.each(golden.answers.map(({ why, answer, verdict }) => [why, answer, verdict] as const))(
    'agrees with the authors: %s',
    (_, answer, verdict) => {
      const count = (letter: string) => verdict.split('').filter((one) => one === letter).length
      expect(piScore(golden, answer)).toEqual({
        accuracy: count('R') / 4,
        correct: count('R'),
        older: count('O'),
        foreign: count('F'),
        missing: count('M'),
      })
      // Key by key, too.
      for (const [at, [key, value]] of Object.entries(golden.last).entries()) {
        const alone = piScore({ last: { [key]: value }, earlier: golden.earlier }, answer)
        const [letter] = (['R', 'O', 'F', 'M'] as const).filter(
          (_, index) => [alone.correct, alone.older, alone.foreign, alone.missing][index] === 1,
        )
        expect(letter, key).toBe(verdict[at])
      }
    },
  )

  it('has at least fifty answers to compare', () => {
    expect(golden.answers.length).toBeGreaterThanOrEqual(50)
    expect(new Set(golden.answers.map(({ answer }) => answer)).size).toBe(golden.answers.length)
  })

  it('takes samples as well as recorded truths', () => {
    const answer =
      'The current value of bird is goldharbor. The current value of metal is ashfield. The current value of fig tree is x.'
    expect(piScore(sample, answer)).toEqual({ accuracy: 1 / 3, correct: 1, older: 1, foreign: 1, missing: 0 })
  })

  it('scores answers in the requested form with the share of right keys', () => {
    const words = ownWords()
    fc.assert(
      fc.property(
        fc.nat(),
        fc.integer({ min: 2, max: 6 }),
        fc.array(fc.constantFrom('right', 'older', 'foreign', 'missing'), { minLength: 46, maxLength: 46 }),
        (seed, updates, fates) => {
          const made = piSample({ words, updates, seed })
          const count = { right: 0, older: 0, foreign: 0, missing: 0 }
          const lines = made.answer.split('\n').map((line, at) => {
            const fate = fates[at] ?? 'right'
            count[fate]++
            const key = made.keys[at]
            const other =
              fate === 'older'
                ? made.updates.find((update) => update.key === key)
                : made.updates.find((update) => update.key !== key)
            return fate === 'right' ? line : fate === 'missing' ? '' : `The current value of ${key} is ${other?.value}.`
          })
          expect(piScore(made, lines.join('\n'))).toEqual({
            accuracy: count.right / 46,
            correct: count.right,
            missing: count.missing,
            older: count.older,
            foreign: count.foreign,
          })
        },
      ),
      { numRuns: 40 },
    )
  })

  it('reads endless answers quickly', () => {
    const started = performance.now()
    for (const answer of [
      'The current value of '.repeat(50_000),
      `bird${' '.repeat(200_000)}:${'. '.repeat(100_000)}`,
      `The current value of bird is x${' '.repeat(200_000)}x`,
      `The current value of bird ${'is '.repeat(100_000)}`,
    ])
      piScore(sample, answer)
    expect(performance.now() - started).toBeLessThan(3_000)
  })
})
