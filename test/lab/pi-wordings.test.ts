/** Tests PI-LLM in other wordings: the file, the prompts, what a teacher quotes of them, and how answers are scored. */
import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { openTask } from '../../src/lab/tasks/open.js'
import type { PiTruth } from '../../src/lab/pi-llm.js'
import { nearScore, wordedParts, wordedTruth, wordingsIn } from '../../src/lab/pi-wordings.js'

const SHIPPED = ['scripts/training/wordings.json', 'bench/lab/wordings.json']

function written(value: unknown): string {
  const path = join(mkdtempSync(join(tmpdir(), 'kvfold-wordings-')), 'wordings.json')
  writeFileSync(path, typeof value === 'string' ? value : JSON.stringify(value))
  return path
}

const wording = {
  name: 'moves',
  before: 'Intro. The moves:\n',
  update: '{key} -> {value}',
  between: '\n',
  after: '\n\nWhere are {keys}, all {count}?',
  answer: '{key} -> {value}',
}
const shown = [
  { key: 'lamp', value: 'oak' },
  { key: 'cup', value: 'elm' },
  { key: 'lamp', value: 'ash' },
]
const last = { lamp: 'ash', cup: 'elm' }

describe('a wording', () => {
  it('fills in the updates, the keys and their number', () => {
    const parts = wordedParts(wording, ['lamp', 'cup'], shown)
    expect(parts.join('')).toBe('Intro. The moves:\nlamp -> oak\ncup -> elm\nlamp -> ash\n\nWhere are lamp, cup, all 2?')
  })

  it('says what stands around the stream: the sentence before it, or its first update, and the sentence after it', () => {
    const truth = (of: typeof wording) => wordedTruth(of, wordedParts(of, ['lamp', 'cup'], shown), shown, last)
    expect(truth(wording)).toEqual({
      start: 'The moves:',
      end: 'Where are lamp, cup, all 2?',
      update: '{key} -> {value}',
      answer: 'lamp -> ash\ncup -> elm',
    })
    expect(() => truth({ ...wording, after: '\ncup' })).toThrow('do not mark the border of its stream')
    const bare = { ...wording, before: '', after: '. \n---\nNow say it. And so on.' }
    expect(truth(bare)).toMatchObject({ start: 'lamp -> oak', end: 'Now say it.' })
  })

  it.each(SHIPPED)('of %s has markers whose first places are around the whole stream', async (path) => {
    const names = wordingsIn(path).map(({ name }) => name)
    const task = await openTask({ task: 'pi-llm', options: { updates: [6, 12], keys: 5, samples: 1, seed: 3, wordings: path } })
    expect(task.size).toBe(2 * names.length)
    for (let index = 0; index < task.size; index++) {
      const sample = await task.sample(index)
      const { cell, messages, truth, context } = sample
      const { worded, last: values } = truth as PiTruth
      const prompt = messages[0]!.content
      const start = prompt.indexOf(worded!.start)
      const end = prompt.indexOf(worded!.end, start + worded!.start.length)
      expect(start, `${cell['wording']} from`).toBeLessThanOrEqual(prompt.indexOf(context))
      expect(end, `${cell['wording']} to`).toBeGreaterThanOrEqual(prompt.indexOf(context) + context.length)
      expect(task.score(sample, worded!.answer)).toMatchObject({ points: 1, outcome: 'right' })
      expect(Object.keys(values)).toHaveLength(5)
    }
  })

  it('of lessons is none of those that the bench asks in', () => {
    const [lessons, asked] = SHIPPED.map((path) => new Set(wordingsIn(path).map(({ update, between }) => update + between)))
    for (const each of asked!) expect(lessons).not.toContain(each)
  })
})

it('answers are scored by the first value behind the last mention of each key', () => {
  const truth: PiTruth = { last: { art: 'oakland', cup: 'elm' }, earlier: { art: ['oak', 'ash'], cup: ['fir'] } }
  const score = (answer: string) => {
    const { correct, older, foreign, missing } = nearScore(truth, answer)
    return { correct, older, foreign, missing }
  }
  expect(score('Art: OAKLAND, cup = elm')).toEqual({ correct: 2, older: 0, foreign: 0, missing: 0 })
  expect(score('art is oak. No, art is oakland. cup was fir')).toEqual({ correct: 1, older: 1, foreign: 0, missing: 0 })
  expect(score('the party has oakland; cup: ash')).toEqual({ correct: 0, older: 0, foreign: 1, missing: 1 })
  expect(score('')).toEqual({ correct: 0, older: 0, foreign: 0, missing: 2 })
})

describe('a file of wordings', () => {
  it.each([
    ['no JSON', '{', 'cannot be read'],
    ['an empty list', [], 'must'],
    ['a missing field', [{ ...wording, after: undefined }], 'after'],
    ['an unknown field', [{ ...wording, afterwards: 'x' }], 'afterwards'],
    ['an update without its value', [{ ...wording, update: '{key}' }], 'update of moves must contain {key} and {value}.'],
    ['a value before its key', [{ ...wording, answer: '{value} is the {key}' }], 'must have {value} behind {key}'],
    ['no question', [{ ...wording, after: ' ?\n' }], 'after of moves must ask for the values in words.'],
    ['a name twice', [wording, wording], 'two wordings have the name moves.'],
  ])('with %s is refused', (_, value, words) => {
    const path = written(value)
    expect(() => wordingsIn(path)).toThrow(words)
    expect(() => wordingsIn(path)).toThrow(path)
  })

  it('is not taken beside the prompts of a checkout', async () => {
    const options = { updates: [2], keys: 2, wordings: written([wording]), prompts: '/nowhere' }
    await expect(openTask({ task: 'pi-llm', options })).rejects.toThrow('give one of them')
  })
})
