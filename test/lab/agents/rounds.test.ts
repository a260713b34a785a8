import { expect, it } from 'vitest'
import { COMPRESS, compressed, BaselineAgent } from '../../../src/lab/agents/rounds.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import type { EngineRequest } from '../../../src/runtime/engine/engine.js'
import { ScriptedEngine } from '../../support/scripted.js'

const look = {
  definition: { name: 'look', description: 'Looks.', parameters: { type: 'object', properties: {} } },
  execute: ({ at }: Readonly<Record<string, unknown>>) => `found ${String(at)}`,
}

/** Returns the text that each step was shown, without the calls and results of the last step. */
async function shownBy(directives: readonly string[]) {
  const requests: EngineRequest[] = []
  const engine = new ScriptedEngine((request) => {
    requests.push(request)
    const content = directives[requests.length - 1]
    return content === undefined
      ? { content: 'Done.' }
      : { content, calls: [{ name: 'look', arguments: { at: requests.length } }] }
  })
  const rounds = new BaselineAgent({ engine, id: conversationId('folding'), kind: 'agentfold', clientTools: [look] })
  expect(await rounds.ask('What is there?')).toMatchObject({ answer: 'Done.', end: 'stop' })
  expect(requests.every(({ messages }) => messages.filter(({ role }) => role === 'tool').length <= 1)).toBe(true)
  return requests.map(({ messages }) => (messages[0]!.content.match(/^\[.*$|^->.*$/gm) ?? []).join(' '))
}

const range = (from: number, to: number, text: string) =>
  `${COMPRESS}{"compress_range": [${from}, ${to}], "compress_text": "${text}"}</compress>`

it('AgentFold shows its last step in full, and a range of earlier steps as one text', async () => {
  const shown = await shownBy(['', '', range(1, 1, 'one'), range(1, 2, 'both')])
  expect(shown).toEqual([
    '',
    '',
    '[Step 1] look {"at":1} -> found 1',
    '[Step 1] one [Step 2] look {"at":2} -> found 2',
    '[Compressed Step 1 to 2] both [Step 3] look {"at":3} -> found 3',
  ])
})

it.each([
  ['no JSON', `${COMPRESS}1 to 2</compress>`],
  ['steps that are not there', range(2, 9, 'x')],
  ['the wrong way round', range(2, 1, 'x')],
])('AgentFold continues when a directive is %s', async (_, directive) => {
  const shown = await shownBy(['', '', '', directive])
  expect(shown.at(-1)).toBe(
    '[Step 1] look {"at":1} -> found 1 [Step 2] look {"at":2} -> found 2 [Step 3] look {"at":3} -> found 3',
  )
})

it('AgentFold does not split steps that one text stands for', async () => {
  const shown = await shownBy(['', '', '', range(1, 2, 'both'), range(2, 3, 'x')])
  expect(shown.at(-1)).toMatch(/^\[Compressed Step 1 to 2\] both \[Step 3\] look/)
})

it('an agent made from the state of another goes on, with the count of its restarts', async () => {
  const engine = new ScriptedEngine((_, step) =>
    step % 2 === 0 ? { content: 'Look.', calls: [{ name: 'look', arguments: { at: step } }] } : { content: 'Done.' },
  )
  const options = { engine, id: conversationId('resumed'), kind: 'agentfold', clientTools: [look] } as const
  const before = new BaselineAgent(options)
  await before.ask('What is there?')
  const after = new BaselineAgent(options, JSON.parse(JSON.stringify(before.state)) as typeof before.state)
  await after.ask('And there?')
  expect([before.restarts, after.restarts]).toEqual([1, 2])
})

it('ReSum drops its oldest turns when the request for its summary does not fit', async () => {
  const summarised: string[][] = []
  const engine = new ScriptedEngine(
    ({ kind, messages }) => {
      if (kind !== 'summary') return { content: 'word '.repeat(1100) }
      summarised.push(messages.slice(0, -1).map(({ role, content }) => (role === 'user' ? content : role)))
      return { content: 'All.' }
    },
    { context: 2000 },
  )
  const rounds = new BaselineAgent({ engine, id: conversationId('full'), kind: 'resum' })
  for (const turn of ['one', 'two', 'three']) await rounds.ask(turn)
  expect(summarised).toEqual([['two', 'assistant', 'three']])
  expect(rounds.state.shown[0]!.content).toMatch(/^Question: 1. one\n2. two\n3. three\n[^]*<summary>All.<\/summary>$/)
})

it('a script tells all steps that it is shown', () => {
  expect(compressed('[Compressed Step 1 to 4] a\n[Step 5] b', 'all')).toBe(
    range(1, 5, 'all').replaceAll(': ', ':').replace('[1, 5]', '[1,5]').replace('], "', '],"'),
  )
  expect(compressed('No steps yet.', 'all')).toBe('')
})
