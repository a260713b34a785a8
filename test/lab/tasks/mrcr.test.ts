import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { parquetWriteBuffer } from 'hyparquet-writer'
import { beforeAll, describe, expect, it } from 'vitest'
import type { TaskSample } from '../../../src/lab/task.js'
import type { MrcrTruth } from '../../../src/lab/tasks/mrcr.js'
import { openTask } from '../../../src/lab/tasks/open.js'
import { temporaryFolder } from '../../support/temporary-folder.js'

const open = (options: Record<string, unknown>) => openTask({ task: 'mrcr', options })
const ordinals = ['first', 'second', 'third', 'fourth', 'fifth', 'sixth', 'seventh', 'eighth', 'ninth', 'tenth']

/** Reads the asks, the texts, and the request of the last message from the messages alone. */
function read({ messages }: TaskSample) {
  const question = messages.at(-1)!.content
  const [, of, what, which, prefix] =
    /^Of the (\d+) times I asked for (.+?), repeat the (\w+) one that you wrote, word for word\. Put (\w+) directly/u.exec(
      question,
    )!
  const turns = messages.slice(0, -1)
  const asks = turns.filter((_, at) => at % 2 === 0).map(({ content }) => content.slice(content.lastIndexOf('\n') + 1))
  const texts = turns.filter((_, at) => at % 2 === 1).map(({ content }) => content)
  const alike = texts.filter((_, at) => asks[at] === `Write ${what}.`)
  return { of: Number(of), which: ordinals.indexOf(which!) + 1, prefix: prefix!, asks, texts, alike }
}

describe('mrcr, generated', () => {
  it('asks for the k-th of several texts that answer the same request, among other texts', async () => {
    const options = fc.record({
      needles: fc.integer({ min: 1, max: 8 }),
      length: fc.integer({ min: 2500, max: 9000 }),
      seed: fc.integer(),
    })
    await fc.assert(
      fc.asyncProperty(options, async ({ needles, length, seed }) => {
        const task = await open({ needles: [needles], lengths: [length], seed, samples: 1 })
        const sample = await task.sample(0)
        const { messages, truth } = sample
        expect(messages.map(({ role }) => role)).toEqual(messages.map((_, at) => (at % 2 === 0 ? 'user' : 'assistant')))
        const { of, which, prefix, asks, texts, alike } = read(sample)
        expect([of, alike.length]).toEqual([needles, needles])
        expect(new Set(alike).size).toBe(needles)
        expect(asks.length).toBeGreaterThanOrEqual(2 * needles)
        expect(truth).toEqual({ prefix, answer: prefix + alike[which - 1]! })
        expect(prefix).toMatch(/^[A-Za-z0-9]{10}$/u)
        // They begin alike and then differ.
        const titles = new Set(alike.map((text) => text.split('\n')[0]))
        expect(titles.size).toBe(1)
        expect(texts.filter((text) => titles.has(text.split('\n')[0]))).toHaveLength(needles)
        const characters = messages.reduce((sum, { content }) => sum + content.length, 0)
        expect(characters).toBeLessThanOrEqual(length * 4)
        expect(characters).toBeGreaterThan(length * 4 * 0.75)
      }),
      { numRuns: 40 },
    )
  })

  it('asks for each of the texts now and then, at different places', async () => {
    const task = await open({ needles: [4], lengths: [3000], samples: 60 })
    const which = new Map<number, number>()
    const places: number[] = []
    for (let index = 0; index < 60; index++) {
      const sample = await task.sample(index)
      const asked = read(sample)
      which.set(asked.which, (which.get(asked.which) ?? 0) + 1)
      places.push(asked.texts.indexOf(asked.alike[0]!) / asked.texts.length)
    }
    expect([...which.keys()].sort()).toEqual([1, 2, 3, 4])
    for (const count of which.values()) expect(count).toBeGreaterThan(5)
    expect(new Set(places).size).toBeGreaterThan(3)
  })

  it('is the same for the same options, and gives retrieving agents the conversation and the question', async () => {
    const one = await open({ needles: [2, 4], lengths: [2000], samples: 2, seed: 9 })
    const other = await openTask(JSON.parse(JSON.stringify(one.spec)) as typeof one.spec)
    for (let index = 3; index >= 0; index--) expect(await other.sample(index)).toEqual(await one.sample(index))
    const { messages, context, question, cell } = await one.sample(1)
    expect(cell).toEqual({ needles: 4, length: 2000 })
    expect(question).toBe(messages.at(-1)!.content)
    expect(context.startsWith(`User: ${messages[0]!.content}\n\nAssistant: ${messages[1]!.content}\n\nUser: `)).toBe(true)
    expect(context.endsWith(messages.at(-2)!.content)).toBe(true)
    expect(one.prompt).toBe('similar')
  })

  it('refuses lengths that are too short for the texts', async () => {
    const task = await open({ needles: [8], lengths: [500] })
    await expect(task.sample(0)).rejects.toThrow('8 similar texts and as many others do not fit into 2000 characters')
  })
})

describe('mrcr, scored', () => {
  it('needs the prefix, and then scores how similar the rest is', async () => {
    const task = await open({ needles: [2], lengths: [2000] })
    const sample = await task.sample(0)
    const { prefix, answer } = sample.truth as MrcrTruth
    const text = answer.slice(prefix.length)
    const score = (said: string) => task.score(sample, said)
    expect(score(answer)).toEqual({ points: 1, outcome: 'right', details: { prefix: 1 } })
    expect(score(text)).toEqual({ points: 0, outcome: 'unparsed', details: { prefix: 0 } })
    expect(score(` ${answer}`)).toMatchObject({ points: 0, outcome: 'unparsed' })
    expect(score(prefix)).toEqual({ points: 0, outcome: 'wrong', details: { prefix: 1 } })
    const half = score(prefix + text.slice(0, text.length / 2))
    expect(half.outcome).toBe('partial')
    expect(half.points).toBeGreaterThan(0.5)
    expect(half.points).toBeLessThan(0.8)
    const { alike, which } = read(sample)
    expect(score(prefix + alike[which === 1 ? 1 : 0]!).points).toBeLessThan(0.7)
    // The order of the arguments matters: response first, answer second.
    const diet = { ...sample, truth: { prefix: 'H', answer: 'Hdiet' } }
    expect(task.score(diet, 'Htide').points).toBe(0.25)
    expect(task.score({ ...diet, truth: { prefix: 'H', answer: 'Htide' } }, 'Hdiet').points).toBe(0.5)
  })
})

describe('mrcr, from rows in the form of OpenAI', () => {
  const folder = temporaryFolder('mrcr')
  const row = (at: number) => ({
    prompt: JSON.stringify([
      { role: 'user', content: `Write a poem about rain ${at}` },
      { role: 'assistant', content: `It rains ${at}.` },
      { role: 'user', content: 'Prepend abc123 to the 1st poem about rain.' },
    ]),
    answer: `abc123It rains ${at}.`,
    random_string_to_prepend: 'abc123',
    n_needles: [2, 4, 8][at % 3]!,
    desired_msg_index: 1,
    total_messages: 3,
    n_chars: [1000, 40_000, 500_000][at % 3]!,
  })
  const rows = Array.from({ length: 7 }, (_, at) => row(at))
  beforeAll(() => {
    writeFileSync(join(folder, 'rows.jsonl'), rows.map((one) => JSON.stringify(one)).join('\n'))
    const columns = Object.keys(rows[0]!) as (keyof (typeof rows)[0])[]
    const columnData = columns.map((name) => ({
      name,
      data: rows.map((one) => (typeof one[name] === 'number' ? BigInt(one[name]) : one[name])),
      type: typeof rows[0]![name] === 'number' ? ('INT64' as const) : ('STRING' as const),
    }))
    writeFileSync(join(folder, 'rows.parquet'), Buffer.from(parquetWriteBuffer({ columnData, rowGroupSize: 3 })))
    writeFileSync(
      join(folder, 'wrong.jsonl'),
      [JSON.stringify({ ...row(0), answer: 'no prefix' }), JSON.stringify({ prompt: [] })].join('\n'),
    )
  })

  it.each(['jsonl', 'parquet'])('reads %s', async (kind) => {
    const task = await open({ data: join(folder, `rows.${kind}`) })
    expect(task.size).toBe(7)
    const samples = await Promise.all(rows.map((_, at) => task.sample(6 - at)))
    for (const [at, sample] of samples.reverse().entries()) {
      expect(sample.messages).toEqual(JSON.parse(row(at).prompt))
      expect(sample.truth).toEqual({ prefix: 'abc123', answer: row(at).answer })
      expect(sample.question).toBe('Prepend abc123 to the 1st poem about rain.')
      expect(task.score(sample, row(at).answer).points).toBe(1)
    }
    expect(samples.map(({ cell }) => cell).slice(0, 3)).toEqual([
      { needles: 2, length: 8192 },
      { needles: 4, length: 16_384 },
      { needles: 8, length: 131_072 },
    ])
    expect(task.differs.join(' ')).toMatch(/^Samples get their cells by characters \/ 4/u)
  })

  it('takes the first rows only when a limit is given', async () => {
    const task = await open({ data: join(folder, 'rows.parquet'), limit: 4 })
    expect(task.size).toBe(4)
    await expect(task.sample(4)).rejects.toThrow('Sample 4 does not exist; this task has 4')
  })

  it('reports which row is wrong, and how', async () => {
    const task = await open({ data: join(folder, 'wrong.jsonl') })
    await expect(task.sample(0)).rejects.toThrow(/wrong\.jsonl, line 1: answer does not begin with random_string_to_prepend/u)
    await expect(task.sample(1)).rejects.toThrow(/wrong\.jsonl, line 2 is not a row of this task: .*prompt: .*answer: /u)
    await expect(open({ data: join(folder, 'rows.jsonl'), needles: [2] })).rejects.toThrow(
      'options: has unknown fields: needles; it may have: data, limit',
    )
  })
})
