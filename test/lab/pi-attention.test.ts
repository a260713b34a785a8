/** Values in PI-LLM prompts and answers: their places, which of them count, and which are missing. */
import { describe, expect, it } from 'vitest'
import { valuesSaid, watchedPairs } from '../../src/lab/pi-attention.js'
import { lastValues, ownWords, piSample } from '../../src/lab/pi-llm.js'
import type { Span } from '../../src/runtime/core/span.js'

const cut = (text: string, { start, end }: Span) => text.slice(start, end)

describe('watchedPairs', () => {
  it('has every value of every key, with the last one as the current value', () => {
    const sample = piSample({ words: ownWords(), updates: 5, seed: 3 })
    const pairs = watchedPairs(sample)
    expect(pairs.map(({ key }) => key)).toEqual(sample.keys)
    for (const { key, value, current, older } of pairs) {
      const own = sample.updates.filter((update) => update.key === key).map((update) => update.value)
      expect([...older, current].map(({ chars }) => cut(sample.prompt, chars))).toEqual(own)
      expect(value).toBe(lastValues(sample.updates).get(key))
    }
  })

  it('distinguishes the occurrences of a value', () => {
    const updates = ['a', 'b', 'a', 'b', 'a'].map((key, index) => ({ key, value: index === 3 ? 'y' : 'x' }))
    const stream = updates.map(({ key, value }) => `${key}: ${value};`).join(' ')
    const prompt = `x x.\n\nThe stream of updates starts here.\n${stream}\n\nThe stream of updates ends here.`
    const [a, b] = watchedPairs({ keys: ['a', 'b'], updates, shown: updates, prompt, answer: '' })
    const first = prompt.indexOf(stream)
    const at = (index: number) => first + index * 'a: x; '.length + 3
    expect([a!.current, ...a!.older].map(({ chars }) => chars.start)).toEqual([at(4), at(0), at(2)])
    expect([b!.current, ...b!.older].map(({ chars }) => chars.start)).toEqual([at(3), at(1)])
  })
})

describe('valuesSaid', () => {
  const pairs = [
    { key: 'herb', value: 'velvetbrook' },
    { key: 'boat (old)', value: 'two words' },
  ]
  const said = (answer: string) => [...valuesSaid(pairs, answer)].map(([key, chars]) => [key, chars.start, cut(answer, chars)])

  it('finds every value of the right answer', () => {
    const sample = piSample({ words: ownWords(), updates: 3, seed: 4 })
    const found = valuesSaid(watchedPairs(sample), sample.answer)
    expect([...found].map(([key, chars]) => [key, cut(sample.answer, chars)])).toEqual(
      [...lastValues(sample.updates)].sort(by(sample.keys)),
    )
  })

  it('reads sentences, lines and emphasis, in any case', () => {
    expect(said('The current value of Herb is **Velvetbrook**.\n- boat (old): two words')).toEqual([
      ['herb', 31, 'Velvetbrook'],
      ['boat (old)', 60, 'two words'],
    ])
  })

  it('takes the last of several, and leaves out values that are missing, wrong or longer than the value', () => {
    expect(said('herb is noblefield. No: herb is velvetbrook.')).toEqual([['herb', 32, 'velvetbrook']])
    expect(said('herb is velvetbrook. No: herb is noblefield.')).toEqual([])
    expect(said('herb is velvetbrooks. boat (old) is two wordsmiths.')).toEqual([])
    expect(said('Values: velvetbrook, two words.')).toEqual([])
    expect(said('potherb is velvetbrook')).toEqual([])
    expect(said('')).toEqual([])
  })
})

const by = (keys: readonly string[]) => (a: readonly [string, string], b: readonly [string, string]) =>
  keys.indexOf(a[0]) - keys.indexOf(b[0])
