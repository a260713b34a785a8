import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { piSample } from '../../src/eval/pi-llm.js'
import { piScore } from '../../src/eval/pi-score.js'
import { ownWords } from '../../src/eval/pi-words.js'

const sample = {
  keys: ['bird', 'metal', 'fig tree'],
  updates: [
    { key: 'bird', value: 'goldharbor' },
    { key: 'metal', value: 'ashfield' },
    { key: 'bird', value: 'Calmpath' },
    { key: 'fig tree', value: 'two words' },
  ],
}
const correct = (answer: string) => piScore(sample, answer).correct

describe('piScore', () => {
  it.each([
    [
      'sentences',
      'The current value of bird is Calmpath.\nThe current value of metal is ashfield.\nThe current value of fig tree is two words.',
    ],
    [
      'sentences on one line',
      'The current value of bird is calmpath. The current value of metal is ashfield. The current value of fig tree is two words.',
    ],
    [
      'sentences in one',
      'The current value of bird is calmpath, the current value of metal is ashfield, and the current value of fig tree is two words.',
    ],
    [
      'any case',
      'THE CURRENT VALUE OF BIRD IS CALMPATH. the current value of Metal is AshField. The current value of FIG TREE is Two Words',
    ],
    [
      'emphasis and escapes',
      'The current value of **bird** is **calmpath**.\nThe current value of *metal* is ash\\field.\n**fig tree**: *two words*',
    ],
    ['lines', 'Here they are:\nbird: Calmpath\n- metal: ashfield.\n3. fig tree : two  words,'],
    [
      'a colon after is',
      'The current value of bird is: calmpath.\nThe current value of metal is: ashfield\nThe current value of fig tree is:  two words;',
    ],
    ['Windows line ends', 'bird: Calmpath\r\nmetal: ashfield\r\nfig tree: two words\r\n'],
    ['words around', 'Sure! The current value of bird is calmpath. I think.\nmetal: ashfield\nfig tree: two words\nDone.'],
  ])('reads %s', (_, answer) => {
    expect(piScore(sample, answer)).toEqual({ accuracy: 1, correct: 3, missing: 0, older: 0, foreign: 0 })
  })

  it('takes the last value for a key', () => {
    expect(correct('bird: goldharbor\nThe current value of bird is Calmpath.')).toBe(1)
    expect(correct('The current value of bird is Calmpath.\nbird: goldharbor')).toBe(0)
    expect(correct('The current value of bird is Calmpath. The current value of bird is nothing.')).toBe(0)
  })

  it('tells older values from foreign and missing ones', () => {
    expect(piScore(sample, 'bird: goldharbor\nmetal: goldharbor\nfig tree:')).toEqual({
      accuracy: 0,
      correct: 0,
      missing: 1,
      older: 1,
      foreign: 1,
    })
    expect(piScore(sample, 'The current value of bird is .')).toMatchObject({ missing: 3 })
    expect(piScore(sample, '')).toMatchObject({ accuracy: 0, missing: 3 })
  })

  it('knows only the keys that were asked for', () => {
    expect(piScore(sample, 'The current value of <key> is <value>.\nbirds: Calmpath\nthe bird: Calmpath')).toMatchObject({
      missing: 3,
    })
  })

  it('scores what the prompt asks for with the share of keys that are right', () => {
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

  it('reads answers that run away in no time', () => {
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
