import { mkdtemp } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { frameworkNames } from '../../../src/lab/service/frameworks.js'
import { readDialogues, replayScenarios } from '../../../src/lab/service/replay.js'
import { rowsOf } from '../../../src/lab/service/run.js'
import { scriptedRun } from './support/scripted-run.js'

const result = JSON.stringify(
  { flights: Array.from({ length: 12 }, (_, at) => ({ number: `HAT${100 + at}`, price: 90 + at })) },
  null,
  1,
)

/** A record in the form of tau-bench's historical trajectories, where ids of calls repeat. */
const trajectory = (turns: number) => ({
  task_id: turns,
  reward: 1,
  info: {},
  trial: 0,
  traj: [
    { role: 'system', content: 'Policy: be brief.' },
    ...Array.from({ length: turns }, (_, at) => [
      { role: 'user', content: `What does flight HAT${100 + at} cost?` },
      {
        role: 'assistant',
        content: null,
        tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'search', arguments: `{"day": ${at}}` } }],
      },
      { role: 'tool', tool_call_id: 'call_1', name: 'search', content: `${at}: ${result}` },
      { role: 'assistant', content: `HAT${100 + at} costs ${90 + at} dollars.` },
    ]).flat(),
    { role: 'user', content: 'Thanks. ###STOP###' },
  ],
})

describe('recorded dialogues', () => {
  it("are read from tau-bench's records and from tau2's results", () => {
    const [one] = readDialogues(JSON.stringify([trajectory(2)]), 'file')
    expect(one).toMatchObject({ name: '2.0', system: 'Policy: be brief.' })
    // The last input has no answer.
    expect(one!.turns.map(({ answer }) => answer)).toEqual(['HAT100 costs 90 dollars.', 'HAT101 costs 91 dollars.'])
    expect(one!.turns[1]!.steps[0]!.calls).toEqual([{ name: 'search', arguments: { day: 1 }, result: `1: ${result}` }])
    const messages = [
      { role: 'assistant', content: 'Hi! How can I help?' },
      { role: 'user', content: 'Is my phone on?' },
      { role: 'user', content: null, tool_calls: [{ id: 'u1', name: 'look', arguments: {}, requestor: 'user' }] },
      { role: 'tool', id: 'u1', content: 'on', requestor: 'user' },
      {
        role: 'assistant',
        content: null,
        tool_calls: [
          { id: 'a', name: 'line', arguments: { id: 7 } },
          { id: 'b', name: 'plan', arguments: {} },
        ],
      },
      { role: 'tool', id: 'a', content: 'line 7' },
      { role: 'tool', id: 'b', content: 'plan B' },
      { role: 'assistant', content: 'It is on.', tool_calls: null },
    ]
    const results = { info: { environment_info: { policy: 'Rules.' } }, simulations: [{ task_id: '4', trial: 1, messages }] }
    const [other] = readDialogues(JSON.stringify(results), 'file')
    expect(other).toMatchObject({ name: '4.1', system: 'Rules.', turns: [{ says: 'Is my phone on?', answer: 'It is on.' }] })
    expect(other!.turns[0]!.steps[0]!.calls.map(({ name, result: said }) => [name, said])).toEqual([
      ['line', 'line 7'],
      ['plan', 'plan B'],
    ])
  })

  it.each([['nonsense'], ['{}'], ['[]'], ['[{"task_id": 1}]'], ['[{"traj": [{"role": "user", "content": "x"}]}]']])(
    'are refused with the reason: %s',
    (text) => {
      expect(() => readDialogues(text, 'the file')).toThrow(expect.objectContaining({ code: 'eval/bad-data' }))
    },
  )

  it.each(frameworkNames)('are played to their end by %s', async (name) => {
    const scenarios = replayScenarios(readDialogues(JSON.stringify([trajectory(9)]), 'file'))
    const [row] = rowsOf(await scriptedRun(scenarios, { frameworks: [name] }))
    expect(row).toMatchObject({ name, turns: 12, reward: 1, overflowed: 0 })
    // One search is enough, because the tool is used in every turn.
    expect(row?.toolCalls).toBe(name === 'memtool' ? 10 : 9)
    if (name === 'u-fold') expect(row!.folds).toBeGreaterThan(0)
  })

  it('of two files with the same names are two runs in the same folder', async () => {
    const log = await mkdtemp(join(tmpdir(), 'replay-'))
    const asked = async (words: string, tool: string) => {
      const file = JSON.stringify([trajectory(2)])
        .replaceAll('What does', words)
        .replaceAll('"search"', `"${tool}"`)
      const [dialogue] = await scriptedRun(replayScenarios(readDialogues(file, 'file')), { log })
      return { path: dialogue!.path, asked: dialogue!.turns[0]!.asked }
    }
    const first = await asked('What does', 'search')
    const second = await asked('Tell me what', 'search')
    expect([first.asked, second.asked]).toEqual(['What does flight HAT100 cost?', 'Tell me what flight HAT100 cost?'])
    const paths = [first.path, second.path, (await asked('What does', 'find')).path]
    expect(new Set(paths).size).toBe(3)
    expect(await asked('What does', 'search')).toEqual(first)
  })
})
