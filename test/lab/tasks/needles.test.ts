import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { beforeAll, describe, expect, it } from 'vitest'
import { boxed, elderRelations, kinships, type NeedlesTruth } from '../../../src/lab/tasks/needles.js'
import { openTask } from '../../../src/lab/tasks/open.js'
import { temporaryFolder } from '../../support/temporary-folder.js'

const open = (options: Record<string, unknown>) => openTask({ task: 'needles', options })

/** Returns the kinship that a line states, from its words alone; null for other lines. */
function kinshipIn(line: string, people: readonly string[]): { elder: string; younger: string } | null {
  for (const elder of people)
    for (const younger of people)
      if (elder !== younger && kinships.some((say) => elderRelations.some((relation) => say(elder, younger, relation) === line)))
        return { elder, younger }
  return null
}

describe('needles', () => {
  it('hides one chain that leads from the person in the question to the eldest, and no other', async () => {
    const options = fc.record({
      needles: fc.integer({ min: 1, max: 6 }),
      length: fc.integer({ min: 900, max: 3000 }),
      seed: fc.integer(),
    })
    await fc.assert(
      fc.asyncProperty(options, async ({ needles, length, seed }) => {
        const task = await open({ needles: [needles], lengths: [length], seed, samples: 1 })
        const { context, question, truth } = await task.sample(0)
        const { eldest, chain } = truth as NeedlesTruth
        expect(chain).toHaveLength(needles + 1)
        expect(new Set(chain.flatMap((name) => name.split(' '))).size).toBe(2 * (needles + 1))
        const links = context.split('\n').flatMap((line) => kinshipIn(line, chain) ?? [])
        expect(links).toHaveLength(needles)
        const elderOf = new Map(links.map(({ elder, younger }) => [younger, elder]))
        const asked = /eldest relative of '([^']+)'/u.exec(question)![1]!
        let person = asked
        for (let next = elderOf.get(person); next !== undefined; next = elderOf.get(person)) person = next
        expect(person).toBe(eldest)
        expect(asked).toBe(chain.at(-1))
        // No person of the chain is named anywhere else.
        const rest = context
          .split('\n')
          .filter((line) => kinshipIn(line, chain) === null)
          .join('\n')
        for (const name of chain.flatMap((full) => full.split(' '))) expect(rest).not.toContain(name)
      }),
      { numRuns: 25 },
    )
  })

  it('puts the needles at their depths, ten percent apart, each on its own line', async () => {
    const task = await open({ needles: [5], lengths: [8000], seed: 2, samples: 10 })
    for (let index = 0; index < 10; index++) {
      const { context, truth } = await task.sample(index)
      const { chain } = truth as NeedlesTruth
      const lines = context.split('\n')
      const needles = lines.filter((line) => kinshipIn(line, chain) !== null)
      const text = lines.filter((line) => !needles.includes(line)).join('\n').length
      for (const [at, needle] of needles.entries()) {
        const before = context.indexOf(needle) - needles.slice(0, at).join('').length
        expect(Math.abs(before / text - (0.4 + 0.1 * at))).toBeLessThan(0.02)
      }
    }
  })

  it('keeps needles in order when they would go beyond the end', async () => {
    const task = await open({ needles: [4], lengths: [1000], depth: 95, seed: 2, samples: 1 })
    const { context, truth } = await task.sample(0)
    expect(context.split('\n').filter((line) => kinshipIn(line, (truth as NeedlesTruth).chain) !== null)).toHaveLength(4)
    expect(context.trimEnd().split('\n').at(-1)).toMatch(/\.$/u)
  })

  it('is as long as requested, at the given number of characters per token', async () => {
    for (const charsPerToken of [4, 1.7]) {
      const task = await open({ needles: [2, 5], lengths: [1500, 16_000], charsPerToken, samples: 1 })
      for (let index = 0; index < task.size; index++) {
        const { cell, messages } = await task.sample(index)
        expect(messages[0]!.content).toHaveLength(Math.round(Number(cell['length']) * charsPerToken))
      }
    }
  })

  it('is the same for the same options, in any order of requests', async () => {
    const one = await open({ needles: [2, 3], lengths: [1000, 2000], samples: 2 })
    const other = await openTask(JSON.parse(JSON.stringify(one.spec)) as typeof one.spec)
    for (let index = one.size - 1; index >= 0; index--) expect(await other.sample(index)).toEqual(await one.sample(index))
    const texts = await Promise.all(Array.from({ length: one.size }, async (_, index) => (await one.sample(index)).context))
    expect(new Set(texts).size).toBe(8)
    expect((await one.sample(2)).cell).toEqual({ needles: 3, length: 1000 })
    expect((await one.sample(4)).cell).toEqual({ needles: 2, length: 1000 })
  })

  describe('a text of the user', () => {
    const folder = temporaryFolder('filler')
    const essay = Array.from({ length: 60 }, (_, at) => `Essay sentence number ${at} is about nothing. `).join('')
    beforeAll(() => {
      writeFileSync(join(folder, 'essay.txt'), essay)
      const rows = ['first', 'second', 'third'].map((name) => JSON.stringify({ text: `The ${name} essay. ${essay}` }))
      writeFileSync(join(folder, 'essays.jsonl'), rows.join('\n'))
      writeFileSync(join(folder, 'names.txt'), essay.replaceAll('nothing', 'Ada Abel, Tilda Sato and everybody else'))
    })

    it('is cut between sentences, or assembled from rows in a random order', async () => {
      const plain = await (await open({ filler: join(folder, 'essay.txt'), needles: [2], lengths: [700] })).sample(0)
      expect(plain.context.startsWith('Essay sentence number 0 is about nothing. Essay sentence number 1')).toBe(true)
      const firsts = new Set<string>()
      const rows = await open({ filler: join(folder, 'essays.jsonl'), needles: [2], lengths: [1500] })
      for (let index = 0; index < 12; index++) firsts.add((await rows.sample(index)).context.slice(0, 12))
      expect(firsts).toEqual(new Set(['The first es', 'The second e', 'The third es']))
      expect(rows.differs.join(' ')).not.toContain('own sentences')
    })

    it('is refused when it is too short or missing', async () => {
      const short = await open({ filler: join(folder, 'essay.txt'), needles: [2], lengths: [4000] })
      await expect(short.sample(0)).rejects.toThrow(/essay\.txt has \d+ characters, but this length needs \d+/u)
      await expect(open({ filler: join(folder, 'nowhere.txt') })).rejects.toThrow(
        /The text .*nowhere\.txt cannot be read: ENOENT/u,
      )
    })
  })

  it.each([
    [{ needles: [41] }, /needles\.0: /u],
    [{ depth: 101 }, /depth: /u],
    [{ count: 3 }, /options: has unknown fields: count; it may have: /u],
  ])('refuses %j', async (options, message) => {
    await expect(open(options)).rejects.toThrow(message)
  })

  it('refuses a length without room for the needles, when it makes the sample', async () => {
    const task = await open({ needles: [20], lengths: [300] })
    await expect(task.sample(0)).rejects.toThrow('20 needles and the question leave no room for a text in 300 tokens')
  })
})

describe('boxed', () => {
  it.each([
    ['So it is \\boxed{Ada Abel}.', 'Ada Abel'],
    ['\\boxed{Hugo Berg} or rather \\boxed{Ada Abel}', 'Ada Abel'],
    ['$\\boxed{\\text{Ada Abel}}$', 'Ada Abel'],
    ["\\boxed{'Ada Abel'}", 'Ada Abel'],
    ['\\boxed{"Ada  Abel"}', 'Ada Abel'],
    ['\\boxed{Ada~Abel}', 'Ada Abel'],
    ['\\boxed{Ada\\ Abel}', 'Ada Abel'],
    ['\\boxed{{Ada Abel}}', 'Ada Abel'],
    ['\\boxed{ Ada Abel }', 'Ada Abel'],
    ['\\\\boxed{Ada Abel}', 'Ada Abel'],
    ['\\boxed{Ada Abel\\\\}', 'Ada Abel'],
    ['\\boxed{Ada Abel.}', 'Ada Abel.'],
    ['\\boxed{the eldest is Ada Abel}', 'the eldest is Ada Abel'],
    ['\\boxed{ada abel}', 'ada abel'],
    ['\\boxed{\\mathrm{Ada Abel}}', 'mathrm{Ada Abel}'],
    ['Ada Abel', null],
    ['\\boxed Ada Abel', null],
    ['\\boxed{Ada Abel', null],
    ['\\boxed{}', null],
    ['\\fbox{Ada Abel}', null],
    ['boxed{Ada Abel}', null],
    ['', null],
  ])('reads %j as %j', (answer, name) => {
    expect(boxed(answer)).toBe(name)
  })

  it('decides: the name must match exactly, and a wrong answer is rated by its distance', async () => {
    const task = await open({ needles: [3], lengths: [1000] })
    const sample = await task.sample(0)
    const [eldest, second, third, asked] = (sample.truth as NeedlesTruth).chain
    const score = (answer: string) => task.score(sample, answer)
    expect(score(`It is \\boxed{${eldest}}.`)).toEqual({ points: 1, outcome: 'right', details: { links: 3, outOf: 3 } })
    expect(score(`\\boxed{${second}}`)).toEqual({ points: 0, outcome: 'wrong', details: { links: 2, outOf: 3 } })
    expect(score(`\\boxed{${third}}`)).toMatchObject({ details: { links: 1 } })
    expect(score(`\\boxed{${asked}}`)).toMatchObject({ outcome: 'wrong', details: { links: 0 } })
    expect(score(`\\boxed{${eldest!.toLowerCase()}}`)).toMatchObject({ points: 0, outcome: 'wrong' })
    expect(score(`${eldest}`)).toEqual({ points: 0, outcome: 'unparsed', details: { links: 0, outOf: 3 } })
  })
})
