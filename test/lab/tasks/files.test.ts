import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Task, TaskName } from '../../../src/lab/task.js'
import { babilongQuestions, babilongTasks } from '../../../src/lab/tasks/babilong.js'
import { middleCut } from '../../../src/lab/tasks/prose.js'
import { openTask } from '../../../src/lab/tasks/open.js'
import { temporaryFolder } from '../../support/temporary-folder.js'

const folder = temporaryFolder('tasks')
const write = (name: string, content: string): string => {
  const path = join(folder, name)
  writeFileSync(path, content)
  return path
}
const open = (task: TaskName, options: Record<string, unknown>): Promise<Task> => openTask({ task, options })

describe('longbench-v2', () => {
  const row = (at: number) => ({
    _id: `id${at}`,
    domain: 'Novels',
    sub_domain: 'Detective',
    difficulty: at % 2 === 0 ? 'easy' : 'hard',
    length: ['short', 'medium', 'long'][at % 3],
    question: ` Who did it in case ${at}? `,
    choice_A: 'the butler',
    choice_B: 'the gardener',
    choice_C: 'nobody',
    choice_D: 'everybody',
    answer: 'ABCD'.charAt(at % 4),
    context: `Beginning of case ${at}. ${'Nothing happens. '.repeat(400)}End of case ${at}.`,
  })
  const data = () =>
    write(
      'longbench.json',
      JSON.stringify(
        Array.from({ length: 5 }, (_, at) => row(at)),
        null,
        2,
      ),
    )

  it('asks with the choices and the pattern, and keeps the beginning and the end of a text that is too long', async () => {
    const task = await open('longbench-v2', { data: data() })
    expect([task.size, task.temperature, task.maxTokens]).toEqual([5, 0.1, 128])
    const { id, cell, messages, context, question, truth } = await task.sample(3)
    expect({ id, cell, truth }).toEqual({ id: 'longbench-v2-id3', cell: { difficulty: 'hard', length: 'short' }, truth: 'D' })
    expect(context).toBe(row(3).context)
    expect(question).toContain('Who did it in case 3?\n\n(A) the butler\n(B) the gardener\n(C) nobody\n(D) everybody\n\n')
    expect(messages).toHaveLength(1)
    expect(messages[0]!.content.endsWith(`${context}\n\n${question}`)).toBe(true)
    const small = await (await open('longbench-v2', { data: data(), window: 1000, charsPerToken: 3 })).sample(3)
    expect(small.messages[0]!.content).toHaveLength(3000)
    expect(small.context.startsWith('Beginning of case 3. Nothing')).toBe(true)
    expect(small.context.endsWith('End of case 3.')).toBe(true)
    expect(small.question).toBe(question)
  })

  it.each([
    ['The correct answer is (D).', 'right'],
    ['The correct answer is D', 'right'],
    ['**The correct answer is (D)**', 'right'],
    ['The correct answer is **(D)** everybody', 'right'],
    ['I think. The correct answer is (D). Not: The correct answer is (A).', 'right'],
    // An answer in brackets counts first, wherever it stands; otherwise the first answer counts.
    ['The correct answer is A. The correct answer is (D).', 'right'],
    ['The correct answer is A. The correct answer is D.', 'wrong'],
    ['The correct answer is (A) or (D)', 'wrong'],
    ['The correct answer is (Dog)', 'unparsed'],
    ['The correct answer is Dog', 'right'],
    ['The correct answer is (E)', 'unparsed'],
    ['the correct answer is (D)', 'unparsed'],
    ['The correct answer is: (D)', 'unparsed'],
    ['The correct answer is "(D)"', 'unparsed'],
    ['(D)', 'unparsed'],
    ['D', 'unparsed'],
    ['', 'unparsed'],
  ])('scores %j as %s', async (answer, outcome) => {
    const task = await open('longbench-v2', { data: data() })
    expect(task.score(await task.sample(3), answer)).toEqual({ points: outcome === 'right' ? 1 : 0, outcome, details: {} })
  })

  it('reports which row lacks which field', async () => {
    const task = await open('longbench-v2', {
      data: write('bad.jsonl', `${JSON.stringify(row(0))}\n{"_id": "x", "answer": "E"}\n`),
    })
    await expect(task.sample(1)).rejects.toThrow(/bad\.jsonl, line 2 is not a row of this task: difficulty: .*answer: /u)
    await expect(task.sample(2)).rejects.toThrow('Sample 2 does not exist; this task has 2')
  })
})

describe('middleCut', () => {
  it('is never longer than requested, keeps both ends and splits no character', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary', maxLength: 40 }), fc.nat(45), (text, room) => {
        const cut = middleCut(text, room)
        expect(cut.length).toBeLessThanOrEqual(Math.max(room, text.length <= room ? text.length : 0))
        expect(cut.length).toBeGreaterThanOrEqual(Math.min(room, text.length) - 2)
        expect(/\p{Surrogate}/u.test(cut)).toBe(false)
        let head = 0
        while (head < cut.length && cut[head] === text[head]) head++
        expect(text.endsWith(cut.slice(head))).toBe(true)
      }),
    )
    expect(middleCut('abcdefghij', 4)).toBe('abij')
    expect(middleCut('abcdefghij', 5)).toBe('abhij')
    expect(middleCut('abcdefghij', 0)).toBe('')
  })
})

describe('babilong', () => {
  const pattern = () => {
    for (const task of ['qa1', 'qa8'])
      for (const length of ['0k', '4k']) {
        const rows = Array.from({ length: length === '0k' ? 4 : 3 }, (_, at) => ({
          input: ` ${task} ${length} text ${at}. John moved to the kitchen. `,
          question: 'Where is John? ',
          target: task === 'qa1' ? 'kitchen' : 'apple,milk',
        }))
        mkdirSync(join(folder, task), { recursive: true })
        write(join(task, `${length}.json`), JSON.stringify(rows))
      }
    return join(folder, '{task}', '{length}.json')
  }

  it('takes samples from the files of all tasks and lengths in turn', async () => {
    const task = await open('babilong', { data: pattern(), tasks: ['qa1', 'qa8'], lengths: ['0k', '4k'] })
    expect(task.size).toBe(12)
    const samples = await Promise.all(Array.from({ length: 12 }, (_, at) => task.sample(at)))
    expect(samples.slice(0, 5).map(({ id }) => id)).toEqual([
      'babilong-qa1-0k-0',
      'babilong-qa1-4k-0',
      'babilong-qa8-0k-0',
      'babilong-qa8-4k-0',
      'babilong-qa1-0k-1',
    ])
    expect(samples[7]).toMatchObject({
      cell: { task: 'qa8', length: '4k' },
      context: 'qa8 4k text 1. John moved to the kitchen.',
    })
    expect(samples[7]!.messages[0]!.content).toContain('<context>\nqa8 4k text 1. John moved to the kitchen.\n</context>')
    expect(samples[7]!.messages[0]!.content).toContain('Question: Where is John?\n')
    await expect(open('babilong', { data: pattern(), tasks: ['qa1', 'qa8'], lengths: ['0k'] })).resolves.toMatchObject({
      size: 8,
    })
    await expect(open('babilong', { data: join(folder, 'qa1', '0k.json'), tasks: ['qa1', 'qa8'] })).rejects.toThrow(
      'names one file for several cells. Write {task} and {length} where the names of the files differ',
    )
  })

  it('has an example for every task, which its own labels do not give away, and a form for the answer', () => {
    expect(Object.keys(babilongQuestions)).toEqual([...babilongTasks])
    for (const { labels, example, form } of Object.values(babilongQuestions)) {
      expect(new Set(labels).size).toBe(labels.length)
      expect(form).toMatch(/^Answer .*\.$/u)
      expect(example).toMatch(/\? /u)
    }
  })

  const verdict = async (task: string, question: string, target: string, answer: string) => {
    const data = write('one.json', JSON.stringify([{ input: 'x', question, target }]))
    const opened = await open('babilong', { data, tasks: [task] })
    return opened.score(await opened.sample(0), answer).outcome
  }

  it.each([
    ['qa1', 'Where is John?', 'kitchen', 'The most recent location of John is kitchen.', 'right'],
    ['qa1', 'Where is John?', 'kitchen', 'KITCHEN', 'right'],
    ['qa1', 'Where is John?', 'kitchen', 'kitchen or garden', 'wrong'],
    ['qa1', 'Where is John?', 'kitchen', 'kitchen. Not the garden.', 'right'],
    ['qa1', 'Where is John?', 'kitchen', 'Kitchens', 'right'],
    ['qa1', 'Where is John?', 'kitchen', 'He was in the garden. Now the kitchen.', 'wrong'],
    ['qa1', 'Where is John?', 'kitchen', 'Mr. John is in the kitchen', 'unparsed'],
    ['qa1', 'Where is John?', 'kitchen', 'kitchen<example>garden', 'right'],
    ['qa1', 'Where is John?', 'kitchen', 'kitchen <context> garden', 'right'],
    ['qa1', 'Where is John?', 'kitchen', 'the cellar', 'unparsed'],
    ['qa1', 'Where is John?', 'kitchen', '', 'unparsed'],
    // Labels in the question are not answers.
    ['qa3', 'Where was the milk before the garden?', 'office', 'Before the garden the milk was in the office.', 'right'],
    ['qa4', 'What is the bedroom east of?', 'bedroom', 'bedroom', 'unparsed'],
    ['qa6', 'Is John in the kitchen?', 'no', 'No', 'right'],
    // A label also counts inside other words: the authors' rule.
    ['qa6', 'Is John in the kitchen?', 'yes', 'I do not know, yes', 'wrong'],
    ['qa7', 'How many objects is Mary carrying?', 'none', 'none', 'wrong'],
    ['qa8', 'What is Daniel carrying?', 'apple,milk', 'apple,milk', 'right'],
    ['qa8', 'What is Daniel carrying?', 'apple,milk', 'milk and an apple', 'right'],
    ['qa8', 'What is Daniel carrying?', 'apple,milk', 'apple', 'wrong'],
    ['qa8', 'What is Daniel carrying?', 'apple,milk', 'apple, milk, football', 'wrong'],
    ['qa8', 'What is Daniel carrying?', 'apple', 'apple', 'right'],
    ['qa8', 'What is Daniel carrying?', 'nothing', 'nothing', 'right'],
    ['qa5', 'Who gave the milk to Bill?', 'Jeff', 'Jeff gave the milk to Bill', 'right'],
    ['qa19', 'How do you go from the kitchen to the garden?', 's,e', 's,e', 'right'],
    ['qa19', 'How do you go from the kitchen to the garden?', 's,e', 's, e', 'unparsed'],
    ['qa19', 'How do you go from the kitchen to the garden?', 's,e', 'e,s', 'wrong'],
  ])('scores in %s %j (%s): %j is %s', async (task, question, target, answer, outcome) => {
    expect(await verdict(task, question, target, answer)).toBe(outcome)
  })
})

describe('gsm-infinite', () => {
  const messages = [{ role: 'user', content: 'Problem: many things.\nQuestion: how many?' }]
  const story = {
    messages,
    problem: 'many things',
    question: 'how many?',
    op: 3,
    length: '8k',
    solution: 'So x = 7. Answer: 12.',
  }
  const symbolic = { ...story, solution: 'V1 = 3', answer_q: 3, answer_list: ['V1', 'V24'] }
  const one = async (row: object) => {
    const task = await open('gsm-infinite', { data: write('gsm.jsonl', JSON.stringify(row)) })
    return { task, sample: await task.sample(0) }
  }

  it('asks the questions of its rows, at the temperature of its authors', async () => {
    const told = await one(story)
    expect(told.sample).toEqual({
      id: 'gsm-infinite-3-0',
      cell: { operations: 3, length: '8k' },
      messages,
      context: 'many things',
      question: 'how many?',
      truth: 12,
    })
    expect([told.task.temperature, told.task.maxTokens, told.task.differs.length]).toEqual([0, 4096, 0])
    const formal = await one(symbolic)
    expect(formal.sample.truth).toEqual(['V1', 'V24'])
    expect(formal.task.temperature).toBe(1)
    await expect(one({ ...story, solution: 'So x = 7.' })).rejects.toThrow('its solution does not say "Answer: <number>."')
  })

  it('reads one file for each number of operations', async () => {
    for (const op of [2, 5])
      write(`ops_${op}.jsonl`, [0, 1].map((at) => JSON.stringify({ ...story, op, question: `${op} ${at}?` })).join('\n'))
    const task = await open('gsm-infinite', { data: join(folder, 'ops_{op}.jsonl'), ops: [5, 2] })
    const samples = await Promise.all([0, 1, 2, 3].map((at) => task.sample(at)))
    expect(samples.map(({ question }) => question)).toEqual(['5 0?', '2 0?', '5 1?', '2 1?'])
    expect(new Set(samples.map(({ id }) => id)).size).toBe(4)
  })

  it.each([
    ['So x = 7. Answer: 12.', 'right'],
    ['answer: 12', 'right'],
    ['Answer: ١٢.', 'right'],
    ['Answer: 𝟭𝟮.', 'right'],
    ['Answer: ١٣.', 'wrong'],
    ['\\text{Answer: } १२ apples', 'right'],
    ['Answer: 12.0', 'right'],
    ['Answer: -12.', 'wrong'],
    ['Answer: 13. Answer: 12.', 'wrong'],
    ['The total is 13. So it is 12.', 'right'],
    ['It is 12. I am sure this is right.', 'unparsed'],
    ['$\\boxed{12}$', 'right'],
    ['\\boxed{13} rather \\boxed{12}', 'right'],
    ['\\boxed{12 apples}', 'unparsed'],
    ['**Answer:** 12.', 'right'],
    ['**Answer: 12**', 'right'],
    ['Answer: twelve. Solution: 12.', 'right'],
    ['Answer: 12\nThat is all.', 'right'],
    ['Answer: 12 apples.', 'unparsed'],
    ['Answer: 1 2.', 'unparsed'],
    ['\\text{Answer: } 12 apples', 'right'],
    ['Answer:12.', 'unparsed'],
    ['12', 'unparsed'],
    ['', 'unparsed'],
    ['The number is 12', 'right'],
    ['\\\boxed{12}', 'right'],
  ])('scores a story: %j is %s', async (answer, outcome) => {
    const { task, sample } = await one(story)
    expect(task.score(sample, answer)).toEqual({ points: outcome === 'right' ? 1 : 0, outcome, details: {} })
  })

  it.each([
    ['The variables equal to 3 are V1 and V24.', 'right'],
    ['V24, V1', 'right'],
    ['V1, V1, V24', 'right'],
    ['V1 = V5 + 1 = 3.\n\nTherefore, **V1** and **V24**.', 'right'],
    ['V1 and V24 are 3. Those are all variables.', 'right'],
    ['$V_{1}$ and $V_{24}$', 'right'],
    ['<think>Only V9.</think> V1, V24', 'right'],
    ['V2 is 4. The variables equal to 3 are:\n- V1\n- V24', 'right'],
    ['So:\n\n1. **V1**\n2. **V24**\n', 'right'],
    ['V2 is 4.\nV1,\nand V24.', 'right'],
    ['V1 = 3\nV24', 'wrong'],
    ['V3\nV1\nV24', 'wrong'],
    ['V1 and V2', 'wrong'],
    ['V1', 'wrong'],
    ['V1, V24 and V3', 'wrong'],
    ['V124', 'wrong'],
    ['V1 is 3. No variables are equal to 3.', 'wrong'],
    ['v1, v24', 'unparsed'],
    ['I cannot say.', 'unparsed'],
  ])('scores variables: %j is %s', async (answer, outcome) => {
    const { task, sample } = await one(symbolic)
    expect(task.score(sample, answer).outcome).toBe(outcome)
  })

  it('accepts that there may be no such variable', async () => {
    const { task, sample } = await one({ ...symbolic, answer_list: [] })
    expect(task.score(sample, 'No variable is equal to 3.').outcome).toBe('right')
    expect(task.score(sample, 'None').outcome).toBe('right')
    expect(task.score(sample, 'V1').outcome).toBe('wrong')
  })
})

describe('frames', () => {
  const table = () =>
    write(
      'frames.tsv',
      [
        '\tPrompt\tAnswer\twikipedia_link_1\treasoning_types\twiki_links',
        "0\tWhich is taller?\tThe first one\tx\tNumerical reasoning\t['https://en.wikipedia.org/wiki/First_Tower', 'https://en.wikipedia.org/wiki/Caf%C3%A9_(shop)#History']",
        '1\t"Who ""won"", and when?"\tA, in 1990\tx\tMultiple constraints\thttps://en.wikipedia.org/wiki/Alpha,_Beta, https://en.wikipedia.org/wiki/AC/DC',
      ].join('\n'),
    )
  const articles = () => {
    mkdirSync(join(folder, 'articles'), { recursive: true })
    write('articles/First Tower.txt', 'The first tower is tall.\n')
    write('articles/Café_(shop).md', `A shop. ${'It sells things. '.repeat(300)}The end.`)
    write('articles/Alpha%2C_Beta.txt', 'Alpha won in 1990.')
    write('articles/AC%2FDC.txt', 'A band.')
    return join(folder, 'articles')
  }

  it('puts the articles before the question, and finds them under any spelling of their names', async () => {
    const task = await open('frames', { data: table(), articles: articles() })
    const { messages, context, question, truth, cell } = await task.sample(0)
    expect(context.startsWith('# First Tower\n\nThe first tower is tall.\n\n# Café (shop)\n\nA shop. ')).toBe(true)
    expect(question).toContain('Which is taller?')
    expect(messages[0]!.content.endsWith(`${context}\n\n${question}`)).toBe(true)
    expect(truth).toEqual({ question: 'Which is taller?', answer: 'The first one' })
    expect(cell).toEqual({ articles: 2, reasoning: 'Numerical reasoning' })
    const other = await task.sample(1)
    expect(other.context).toBe('# Alpha, Beta\n\nAlpha won in 1990.\n\n# AC/DC\n\nA band.')
    expect(other.question).toContain('Who "won", and when?')
  })

  it('drops the middle of long articles only', async () => {
    const task = await open('frames', { data: table(), articles: articles(), window: 500 })
    const { messages, context } = await task.sample(0)
    expect(messages[0]!.content).toHaveLength(2000)
    expect(context).toContain('The first tower is tall.')
    expect(context).toMatch(/# Café \(shop\)\n\nA shop\. It sells[^]*The end\.$/u)
  })

  it('takes articles from rows', async () => {
    const rows = [
      { url: 'https://en.wikipedia.org/wiki/First_Tower', text: 'tall' },
      { title: 'Café (shop)', text: 'small' },
    ]
    const task = await open('frames', {
      data: table(),
      articles: write('articles.jsonl', rows.map((row) => JSON.stringify(row)).join('\n')),
    })
    expect((await task.sample(0)).context).toBe('# First Tower\n\ntall\n\n# Café (shop)\n\nsmall')
    await expect(task.sample(1)).rejects.toThrow(
      /frames\.tsv, line 3 needs https:\/\/en\.wikipedia\.org\/wiki\/Alpha,_Beta, https:\/\/en\.wikipedia\.org\/wiki\/AC\/DC, which .*articles\.jsonl does not have; add a row/u,
    )
  })

  it('finds articles whose names have quotes, question marks or hashes, where it says to put them', async () => {
    const links = `["https://en.wikipedia.org/wiki/Schindler's_List", 'https://en.wikipedia.org/wiki/Who%3F?a=b#c','https://en.wikipedia.org/wiki/C%23_(x)']`
    const row = { Prompt: 'Which?', Answer: 'One', wiki_links: links, reasoning_types: 'x' }
    const articles = join(folder, 'odd')
    mkdirSync(articles, { recursive: true })
    const task = await open('frames', { data: write('odd.jsonl', JSON.stringify(row)), articles })
    await expect(task.sample(0)).rejects.toThrow("put the article there as Schindler's_List.txt")
    for (const name of ["Schindler's_List", 'Who?', 'C#_(x)']) write(`odd/${name}.txt`, 'Text.')
    const again = await open('frames', { data: join(folder, 'odd.jsonl'), articles })
    expect((await again.sample(0)).context).toBe("# Schindler's List\n\nText.\n\n# Who?\n\nText.\n\n# C# (x)\n\nText.")
  })

  it('says where to put a missing article', async () => {
    mkdirSync(join(folder, 'none'), { recursive: true })
    const task = await open('frames', { data: table(), articles: join(folder, 'none') })
    await expect(task.sample(0)).rejects.toThrow(/does not have; put the article there as First_Tower\.txt/u)
    await expect(task.sample(0)).rejects.toMatchObject({ code: 'eval/bad-data' })
    await expect(open('frames', { data: table() })).rejects.toThrow(/articles: /u)
    await expect(open('frames', { data: table(), articles: join(folder, 'no') })).rejects.toThrow(
      /The folder .* does not exist; give a folder/u,
    )
  })

  it('is judged by a model, which says true or false', async () => {
    const task = await open('frames', { data: table(), articles: articles() })
    const sample = await task.sample(0)
    const { prompt, verdict } = task.judging!(sample, ' The first tower. ')
    expect(prompt).toContain('Question: Which is taller?\nRight answer: The first one\nAnswer to be judged: The first tower.\n')
    const cases: [string, boolean | null][] = [
      ['It says the same. Decision: TRUE', true],
      ['Decision: FALSE', false],
      ['**Decision:** "TRUE"', true],
      ['Decision: FALSE. No, wait. Decision: TRUE.', true],
      ['It is true that it is tall. Decision: false', false],
      ['TRUE', true],
      ['False.', false],
      ['True or false? I cannot say.', null],
      ['Right!', null],
      ['Untrue', null],
      ['', null],
    ]
    for (const [said, expected] of cases) expect(verdict(said), said).toBe(expected)
    expect(task.score(sample, '', true)).toEqual({ points: 1, outcome: 'right', details: {} })
    expect(task.score(sample, '', false)).toEqual({ points: 0, outcome: 'wrong', details: {} })
    expect(task.score(sample, '', null)).toEqual({ points: 0, outcome: 'unparsed', details: {} })
    expect(() => task.score(sample, '')).toThrow('needs the verdict of a judge')
  })
})
