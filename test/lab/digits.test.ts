/**
 * Numbers keep their digits and objects their key order, as a model, a tool or a record wrote them, in all records of runs and sessions.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { messageUnits, snapshots, type TrajectoryStep } from '../../src/lab/agents/snapshots.js'
import type { ChatMessage } from '../../src/runtime/chat/message.js'
import { conversationId } from '../../src/runtime/core/ids.js'
import { readJson, writeJson } from '../../src/runtime/core/written-json.js'
import { rowOf } from '../../src/lab/collect/formats.js'
import type { TrajectoryFacts } from '../../src/lab/collect/trajectory.js'
import { EpisodeFile, runEpisode, singleTurn } from '../../src/lab/episode/episode.js'
import type { RecordedConversation } from '../../src/lab/log.js'
import { lookupsIn } from '../../src/lab/memtool/retrieval.js'
import { Recorder } from '../../src/lab/recorder.js'
import { openRunLog } from '../../src/lab/run/log-file.js'
import { readLog } from './support/read-log.js'
import { readDialogues, replayScenarios } from '../../src/lab/service/replay.js'
import { ScriptedEngine } from '../support/scripted.js'
import { asker, headerFor, sums } from './support/run-fixture.js'
import { temporaryFolder } from '../support/temporary-folder.js'

const GIVEN = '{"zeta":[9007199254740993,1e400,1.50],"id":12345678901234567890,"7":{"b":1.0,"3":"x"}}'
/** The same value in JavaScript, but another number. */
const OTHER = GIVEN.replace('993', '992')

const folder = temporaryFolder('digits')

const call = (json: string, id = 'c') => ({ id, name: 'look', arguments: readJson(json) as Record<string, unknown> })
const asks = (json: string): ChatMessage => ({ role: 'assistant', content: '', toolCalls: [call(json)] })
const user: ChatMessage = { role: 'user', content: 'Look.' }
const argumentsIn = (messages: readonly Pick<ChatMessage, 'toolCalls'>[]) =>
  messages.flatMap(({ toolCalls = [] }) => toolCalls.map(({ arguments: args }) => writeJson(args)))

it('the log of a run keeps digits, in the file and when it is read back', async () => {
  const engine = new ScriptedEngine([{ calls: [call(GIVEN)] }, { content: 'Done.' }])
  const recorder = new Recorder(engine)
  const ask = (messages: readonly ChatMessage[]) => recorder.respond({ conversation: conversationId('one'), messages }).reply
  await ask([user])
  await ask([user, asks(OTHER)])
  const path = join(folder, 'log.jsonl')
  const log = await openRunLog(path, await headerFor([sums(1, 1)], [asker('plain')]))
  const talks: RecordedConversation[] = [
    ...recorder.talks,
    { messages: [user, asks(GIVEN)] as RecordedConversation['messages'], steps: [] },
  ]
  await log.add({
    ...{ kind: 'sample', task: 0, agent: 'plain', contract: 'exact', index: 0, id: 'x', cell: {}, truth: null },
    ...{ answer: '', end: 'stop', score: { points: 0, outcome: 'wrong', details: {} }, calls: [], refusedCalls: 0, details: {} },
    ...{ talks, ...recorder.cost() },
  })
  await log.close()
  expect(readFileSync(path, 'utf8')).toContain(`"arguments":${GIVEN}`)
  const [record] = (await readLog(path)).records
  expect(record?.kind === 'sample' && record.talks.map(({ messages }) => argumentsIn(messages as ChatMessage[]))).toEqual([
    [OTHER],
    [GIVEN],
  ])
})

it('a recorder keeps messages apart that differ in a digit', async () => {
  const recorder = new Recorder(new ScriptedEngine(() => ({ content: 'Done.' })))
  for (const json of [GIVEN, OTHER])
    await recorder.respond({ conversation: conversationId('one'), messages: [user, asks(json)] }).reply
  expect(recorder.talks.map(({ messages }) => argumentsIn(messages as ChatMessage[]))).toEqual([[GIVEN], [OTHER]])
})

it('an episode continues with the numbers of its checkpoint', async () => {
  const path = join(folder, 'episode.jsonl')
  const state = { messages: [user, { ...asks(GIVEN), sampled: { text: '', tokens: Int32Array.of(1, 2) } }] }
  const file = await EpisodeFile.open(path, {}, 'test')
  await runEpisode({
    environment: singleTurn([user], () => ({ points: 1, outcome: 'right', details: {} })),
    actor: { act: () => Promise.resolve({ answer: '', end: 'stop', calls: [], refusedCalls: 0, details: {} }), state },
    recorder: new Recorder(new ScriptedEngine([])),
    onTurn: (turn, checkpoint) => file.add(turn, checkpoint),
  })
  await file.close()
  const again = await EpisodeFile.open(path, {}, 'test')
  await again.close()
  expect(again.checkpoint?.actor).toEqual(state)
  expect(argumentsIn((again.checkpoint?.actor as typeof state).messages)).toEqual([GIVEN])
})

it('collected trajectories have arguments and tools as text, and separate steps that differ in a digit', () => {
  const tools = [{ name: 'look', description: '', parameters: readJson(GIVEN) as Record<string, unknown> }]
  const step = (messages: readonly ChatMessage[], completion: ChatMessage): TrajectoryStep => ({
    ...{ messages, edits: [], tools, completion, finish: 'stop', calls: [] },
  })
  const steps = [step([user], asks(GIVEN)), step([user, asks(OTHER)], { role: 'assistant', content: 'Done.' })]
  const made = snapshots(steps, messageUnits())
  expect(made).toHaveLength(2)
  const [first] = made.map((snapshot) =>
    rowOf('messages', { facts: {} as TrajectoryFacts, snapshot, steps, truth: readJson('{"n":1.0}') }),
  ) as { messages: { tool_calls?: [{ function: { arguments: string } }] }[]; tools: string; truth: string }[]
  // As templates write it.
  expect(first?.messages[1]?.tool_calls?.[0].function.arguments).toBe(GIVEN.replaceAll(/[,:](?=["{[\d])/gu, '$& '))
  expect(first?.tools).toBe(`[{"type":"function","function":{"name":"look","description":"","parameters":${GIVEN}}}]`)
  expect(first?.truth).toBe('{"n":1.0}')
})

it('recorded dialogues keep digits, with arguments as text and as an object', () => {
  const spoken = [JSON.stringify(GIVEN), GIVEN].flatMap((args) => [
    '{"role":"user","content":"Look."}',
    `{"role":"assistant","tool_calls":[{"id":"c","name":"look","arguments":${args}}]}`,
    '{"role":"tool","content":"R"}',
    '{"role":"assistant","content":"Done."}',
  ])
  const dialogues = readDialogues(`[{"task_id":1,"traj":[${spoken.join(',')}]}]`, 'file')
  const calls = dialogues.flatMap(({ turns }) => turns.flatMap(({ steps }) => steps.flatMap((step) => step.calls)))
  expect(calls.map(({ arguments: args }) => writeJson(args))).toEqual([GIVEN, GIVEN])
  const { tools } = replayScenarios(dialogues)[0]!.open(null)
  expect(tools.map(({ definition }) => writeJson(definition.parameters))).toEqual([
    '{"type":"object","properties":{"zeta":{"type":"array"},"id":{"type":"number"},"7":{"type":"object"}}}',
  ])
})

it('catalogues of tools keep digits', () => {
  const tool = `{"name":"look","inputSchema":${GIVEN}}`
  const parametersIn = (text: string) => lookupsIn(text, 'file').tools.map(({ parameters }) => writeJson(parameters))
  expect(parametersIn(`[${tool}]`)).toEqual([GIVEN])
  expect(parametersIn(`${tool}\n${tool}`)).toEqual([GIVEN, GIVEN])
  const descriptionsIn = (text: string) => lookupsIn(text, 'file').tools.map(({ description }) => description)
  expect(descriptionsIn(`[{"id":"a","documentation":${GIVEN}},{"id":"b","documentation":${JSON.stringify(GIVEN)}}]`)).toEqual([
    GIVEN,
    GIVEN,
  ])
})
