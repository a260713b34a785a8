import { readFileSync } from 'node:fs'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { piSample, ownWords } from '../../src/eval/pi-llm.js'
import { piScore, type PiTruth } from '../../src/eval/pi-score.js'

/** Our own answers; verdicts by hand from the authors' rule, a letter for each key: Right, Older, Foreign, Missing. */
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

  it('has fifty answers and more to agree on', () => {
    expect(golden.answers.length).toBeGreaterThanOrEqual(50)
    expect(new Set(golden.answers.map(({ answer }) => answer)).size).toBe(golden.answers.length)
  })

  it('takes samples as well as recorded truths', () => {
    const answer =
      'The current value of bird is goldharbor. The current value of metal is ashfield. The current value of fig tree is x.'
    expect(piScore(sample, answer)).toEqual({ accuracy: 1 / 3, correct: 1, older: 1, foreign: 1, missing: 0 })
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
