import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { openAgent } from '../../../src/lab/agents/open.js'
import type { SampleRecord } from '../../../src/lab/log.js'
import { openBench } from '../../../src/lab/run/pool.js'
import { trial } from '../../../src/lab/run/trial.js'
import type { TaskSample } from '../../../src/lab/task.js'
import { logKinds, logPlaces, type LogTruth } from '../../../src/lab/tasks/logbook.js'
import { openTask } from '../../../src/lab/tasks/open.js'
import { ScriptedEngine } from '../../support/scripted.js'

const open = (options: Record<string, unknown>) => openTask({ task: 'logbook', options })
const truthOf = ({ truth }: TaskSample) => truth as LogTruth

/** The values of each room as the log tells them, oldest first, each with the number of its part from 0. */
function toldIn({ messages }: TaskSample): Map<string, { part: number; value: string }[]> {
  const told = new Map<string, { part: number; value: string }[]>()
  const parts = messages.filter(({ role }) => role === 'tool')
  for (const [part, { content }] of parts.entries())
    for (const [, room = '', value = ''] of content.matchAll(/The password of the ([a-z ]+?) (?:is|was changed to) ([a-z]+)\./gu))
      told.set(room, [...(told.get(room) ?? []), { part, value }])
  return told
}

const roomIn = (question: string): string => /password of the ([a-z ]+) now/u.exec(question)![1]!

describe('logbook', () => {
  it('asks for a value that the log tells last, and knows what it told before', async () => {
    const options = fc.record({
      kind: fc.constantFrom(...logKinds),
      place: fc.constantFrom(...logPlaces),
      parts: fc.integer({ min: 3, max: 11 }),
      length: fc.integer({ min: 1200, max: 3000 }),
      seed: fc.integer(),
    })
    await fc.assert(
      fc.asyncProperty(options, async ({ kind, place, parts, length, seed }) => {
        const task = await open({ kinds: [kind], places: [place], parts, lengths: [length], seed, samples: 1 })
        const sample = await task.sample(0)
        const { current, outdated, others, rule } = truthOf(sample)
        const told = toldIn(sample)
        const own = told.get(roomIn(sample.messages.at(-1)!.content))!
        expect(own.map(({ value }) => value)).toEqual([...outdated, current])
        expect(outdated.length > 0).toBe(kind === 'stale')
        expect(rule === null).toBe(kind !== 'rules')
        const half = Math.ceil(parts / 2)
        expect(own.at(-1)!.part).toBe({ late: parts - 1, middle: half, early: half - 1 }[place])
        // Every value occurs once, and the truth has each of them.
        const values = [...told.values()].flat().map(({ value }) => value)
        expect([...values].sort()).toEqual([current, ...outdated, ...others].sort())
        expect(new Set(values).size).toBe(4 * parts)
        const characters = sample.messages.reduce((sum, { content }) => sum + content.length, 0)
        expect(characters).toBeLessThanOrEqual(4 * length)
        expect(characters).toBeGreaterThan(4 * length - 200 * parts)
      }),
      { numRuns: 40 },
    )
  })

  it('is a session of calls and results, and gives retrieving agents the parts and the question', async () => {
    const task = await open({ kinds: ['rules'], samples: 1 })
    const { messages, context, question, ...sample } = await task.sample(0)
    const { rule } = sample.truth as LogTruth
    expect(messages.map(({ role }) => role)).toEqual([
      'user',
      ...Array.from({ length: 6 }, () => ['assistant', 'tool']).flat(),
      'assistant',
      'user',
    ])
    for (const [at, { role, toolCallId }] of messages.entries())
      if (role === 'tool') expect(messages[at - 1]!.toolCalls).toMatchObject([{ id: toolCallId, name: 'read_log' }])
    expect(context).toBe(messages.flatMap(({ role, content }) => (role === 'tool' ? [content] : [])).join('\n\n'))
    expect(messages[0]!.content).toContain(rule)
    expect(question).toContain(rule)
    expect(messages.slice(1).some(({ content }) => content.includes(rule!))).toBe(false)
  })

  it('takes one sample of every cell before the next; a rule needs one place', async () => {
    const task = await open({ samples: 2, lengths: [600, 900] })
    const samples = await Promise.all(Array.from({ length: task.size }, (_, index) => task.sample(index)))
    const places = ['stale late', 'stale middle', 'stale early', 'unrelated late', 'unrelated middle', 'unrelated early']
    const cells = [...places, 'rules late'].flatMap((cell) => [`${cell} 600`, `${cell} 900`])
    expect(samples.map(({ cell }) => Object.values(cell).join(' '))).toEqual([...cells, ...cells])
    expect(new Set(samples.map(({ id }) => id)).size).toBe(28)
    expect(new Set(samples.map(({ context }) => context)).size).toBe(28)
    const again = await openTask(JSON.parse(JSON.stringify(task.spec)) as typeof task.spec)
    expect(await again.sample(9)).toEqual(samples[9])
    await expect(task.sample(28)).rejects.toThrow('Sample 28 does not exist; this task has 28, counted from 0.')
  })

  it('counts an answer right when it names the current value alone, and says whether a wrong one is outdated', async () => {
    const task = await open({ kinds: ['stale'], samples: 1 })
    const sample = await task.sample(0)
    const { current, outdated, others } = truthOf(sample)
    const score = (answer: string) => task.score(sample, answer)
    const right = { points: 1, outcome: 'right', details: { correct: 1, outdated: 0, foreign: 0 } }
    expect(score(`The password is **${current.toUpperCase()}**.`)).toEqual(right)
    const wrong = (details: object) => ({
      points: 0,
      outcome: 'wrong',
      details: { correct: 0, outdated: 0, foreign: 0, ...details },
    })
    for (const old of outdated) expect(score(`It is ${old}.`)).toEqual(wrong({ outdated: 1 }))
    expect(score(`It was changed from ${outdated[0]} to ${current}.`)).toEqual(wrong({ outdated: 1 }))
    expect(score(others[0]!)).toEqual(wrong({ foreign: 1 }))
    for (const answer of ['', 'I do not know.', `${current}s`])
      expect(score(answer)).toMatchObject({ points: 0, outcome: 'unparsed' })
  })

  it('gives no points to an edit that the model writes as its answer when it can call no more', async () => {
    const task = await open({ kinds: ['stale'], samples: 1 })
    const sample = await task.sample(0)
    const { current } = truthOf(sample)
    const edit = (line: string) => `{"name": "replace_lines", "arguments": {"from": 1, "to": 1, "line": "${line}"}}`
    const calls = [{ name: 'delete_lines', arguments: { from: 1, to: 1 } }]
    const bench = openBench([task], 0)
    const scoreOf = async (content: string) => {
      const engine = new ScriptedEngine([{ calls }, { content }])
      const record = await trial(sample, {
        item: { task: 0, agent: 'edit-text', contract: 'exact', index: 0 },
        ...{ task, engine, bench, agent: openAgent('edit-text', { maxCalls: 1 }), judge: null },
        ...{ seed: 1, name: 'trial', window: engine.info.context, alone: true, signal: new AbortController().signal },
      })
      expect(record).toMatchObject({ kind: 'sample', answer: content })
      return (record as SampleRecord).score
    }
    for (const looping of [
      edit(current),
      `<tool_call name="replace_lines" arguments={"from": 1, "to": 1, "line": "${current}"}}`,
      `${edit(current)}\n${edit(current).slice(0, -4)}`,
      `\`\`\`json\n${edit(current)}\n\`\`\``,
    ])
      expect(await scoreOf(looping)).toMatchObject({ points: 0, outcome: 'unparsed' })
    expect(await scoreOf(`${edit('a line')} It is ${current}.`)).toMatchObject({ points: 1, outcome: 'right' })
  })

  it('with a rule, gives points to an answer that begins with the code word, right or not', async () => {
    const task = await open({ kinds: ['rules'], samples: 1 })
    const sample = await task.sample(0)
    const { current, others, rule } = truthOf(sample)
    const score = (answer: string) => task.score(sample, answer)
    expect(score(`"${rule!.toLowerCase()}": it is ${current}.`)).toMatchObject({
      outcome: 'right',
      details: { kept: 1, correct: 1 },
    })
    expect(score(`${rule}, ${others[0]}`)).toMatchObject({
      points: 1,
      outcome: 'right',
      details: { kept: 1, correct: 0, foreign: 1 },
    })
    expect(score(`It is ${current}, ${rule}.`)).toMatchObject({ points: 0, outcome: 'wrong', details: { kept: 0, correct: 1 } })
    expect(score(' ')).toMatchObject({ points: 0, outcome: 'unparsed' })
  })

  it.each([
    [{ parts: 2 }, /logbook cannot use these options: parts: /u],
    [{ parts: 13 }, /parts: /u],
    [{ kinds: ['old'] }, /kinds\.0: /u],
    [{ places: [] }, /places: /u],
    [{ lengths: [600, 200] }, /6 parts and the question do not fit into 200 tokens/u],
  ])('refuses %j before the first sample', async (options, message) => {
    await expect(open(options)).rejects.toThrow(message)
    await expect(open(options)).rejects.toMatchObject({ code: 'eval/bad-data' })
  })
})
