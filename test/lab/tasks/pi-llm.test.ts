import { join } from 'node:path'
import fc from 'fast-check'
import { beforeAll, describe, expect, it } from 'vitest'
import type { PiTruth } from '../../../src/lab/pi-llm.js'
import { openTask } from '../../../src/lab/tasks/open.js'
import { publicWords, writePublicWords } from '../support/public-words.js'
import { temporaryFolder } from '../../support/temporary-folder.js'

const open = (options: Record<string, unknown>) => openTask({ task: 'pi-llm', options })
const answerOf = (truth: unknown) =>
  Object.entries((truth as PiTruth).last)
    .map(([key, value]) => `The current value of ${key} is ${value}.`)
    .join('\n')

const folder = temporaryFolder('pi-task')
beforeAll(() => {
  writePublicWords(join(folder, 'words.json'))
})

describe('pi-llm', () => {
  it('takes one sample of every cell before the next, and labels each with its cell', async () => {
    const task = await open({ updates: [2, 5, 3], samples: 2, keys: 4, seed: 1 })
    expect(task.size).toBe(6)
    const samples = await Promise.all(Array.from({ length: 6 }, (_, index) => task.sample(index)))
    expect(samples.map(({ cell }) => cell)).toEqual([2, 5, 3, 2, 5, 3].map((updates) => ({ updates })))
    expect(new Set(samples.map(({ id }) => id)).size).toBe(6)
    expect(new Set(samples.map(({ messages }) => messages[0]!.content)).size).toBe(6)
    await expect(task.sample(6)).rejects.toThrow('Sample 6 does not exist; this task has 6, counted from 0.')
  })

  it('makes the same sample for the same spec, with other cells or alone, and writes the defaults into the spec', async () => {
    const one = await open({ updates: [2, 7], samples: 3, seed: 5 })
    const other = await openTask(JSON.parse(JSON.stringify(one.spec)) as typeof one.spec)
    const alone = await open({ updates: [7], samples: 3, seed: 5 })
    expect(await other.sample(3)).toEqual(await one.sample(3))
    expect(await alone.sample(1)).toEqual(await one.sample(3))
    expect(one.spec.options).toMatchObject({ samples: 3, order: 'shuffled', tail: 1 })
  })

  it('gives retrieving agents the stream and the question', async () => {
    const task = await open({ updates: [3], keys: 5 })
    const { messages, context, question } = await task.sample(0)
    const [framing, ...rest] = messages[0]!.content.split('\n\n')
    expect(rest).toEqual([context, question])
    expect(framing).toContain('for 5 keys')
    expect(question).toMatch(/Write one sentence for every key: The current value of <key> is <value>\.$/u)
    expect(task.prompt).toBe('pi-llm')
  })

  it('distinguishes interference from other mistakes', async () => {
    const task = await open({ updates: [3], keys: 3 })
    const sample = await task.sample(0)
    const { last, earlier } = sample.truth as PiTruth
    const [one = '', two = ''] = Object.keys(last)
    expect(task.score(sample, answerOf(sample.truth))).toEqual({
      points: 1,
      outcome: 'right',
      details: { asked: 3, correct: 3, missing: 0, older: 0, foreign: 0 },
    })
    expect(
      task.score(sample, `The current value of ${one} is ${earlier[one]![0]}. The current value of ${two} is ${last[two]}.`),
    ).toEqual({
      points: 1 / 3,
      outcome: 'partial',
      details: { asked: 3, correct: 1, missing: 1, older: 1, foreign: 0 },
    })
    expect(task.score(sample, 'The current value of nothing is clear.')).toMatchObject({ points: 0, outcome: 'unparsed' })
    expect(task.score(sample, `The current value of ${one} is wrong.`)).toMatchObject({ points: 0, outcome: 'wrong' })
  })

  it('reads a file of the public form: every category has its own values, and the answer is the last value in the stream', async () => {
    const words = publicWords()
    expect(Object.keys(words)).toHaveLength(46)
    expect(Object.values(words).every((values) => values.length === 400)).toBe(true)
    const task = await open({ words: join(folder, 'words.json'), updates: [2, 16, 400], samples: 2, seed: 3 })
    for (const index of [0, 1, 2, 4]) {
      const sample = await task.sample(index)
      const updates = Number(sample.cell['updates'])
      const pairs = sample.context
        .split('\n')[1]!
        .replace(/;$/u, '')
        .split('; ')
        .map((pair) => pair.split(': ') as [string, string])
      expect(pairs).toHaveLength(46 * updates)
      expect(new Set(pairs.map(([, value]) => value)).size).toBe(pairs.length)
      for (const [at, [key, value]] of pairs.entries()) {
        expect(words[key]).toContain(value)
        if (at > 0) expect(key).not.toBe(pairs[at - 1]![0])
      }
      const last = Object.fromEntries(pairs)
      expect((sample.truth as PiTruth).last).toEqual(last)
      expect(task.score(sample, answerOf(sample.truth)).points).toBe(1)
    }
    expect(task.differs.join(' ')).not.toContain('own words')
  })

  it('reports how it differs when the keys that count are not at the end, or only the end is shown', async () => {
    const task = await open({ updates: [4], order: 'start-last', tail: 0.2 })
    expect(task.differs.join(' ')).toMatch(/first third of the stream.*shows only the last 20 % of the updates/u)
    expect((await task.sample(0)).cell).toEqual({ updates: 4, order: 'start-last', tail: 0.2 })
  })

  it('counts only visible older values as interference', async () => {
    await fc.assert(
      fc.asyncProperty(fc.integer(), fc.constantFrom(0.1, 0.3), async (seed, tail) => {
        const task = await open({ updates: [6], keys: 8, seed, tail })
        const { context, truth } = await task.sample(0)
        for (const values of Object.values((truth as PiTruth).earlier))
          for (const value of values) expect(context).toContain(`: ${value};`)
      }),
      { numRuns: 20 },
    )
  })

  it.each([
    [{ updates: [0] }, /pi-llm cannot use these options: updates\.0: /u],
    [{ updates: [4, 4] }, /updates: must not have a value twice/u],
    [{ updates: [] }, /updates: /u],
    [{ update: [4] }, /options: has unknown fields: update; it may have: .*updates/u],
    [{ order: 'end-last' }, /order: /u],
    [{ tail: 0 }, /tail: /u],
    [{ updates: [4, 500] }, /needs 23000 different values/u],
    [{ updates: [4], keys: 47 }, /47 keys, but the list of words has 46/u],
    [{ words: '/nowhere.json' }, /The words in .*nowhere\.json cannot be read/u],
  ])('refuses %j before the first sample', async (options, message) => {
    await expect(open(options)).rejects.toThrow(message)
    await expect(open(options)).rejects.toMatchObject({ code: 'eval/bad-data' })
  })
})
