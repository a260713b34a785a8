import { appendFile, mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { plain } from '../../../src/runtime/agents/sculptor.js'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { ScriptedEngine } from '../../support/scripted.js'
import { type Actor, type Environment, EpisodeFile, runEpisode, singleTurn } from '../../../src/lab/episode/episode.js'
import type { TurnRecord } from '../../../src/lab/log.js'
import { Recorder } from '../../../src/lab/recorder.js'

let folder: string
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'kvfold-episode-'))
})
afterEach(() => rm(folder, { recursive: true, force: true }))

const TURNS = 4

/** An environment that counts up: each turn asks for the number after the one in the last answer. */
function counting(from: { next: number } = { next: 1 }): Environment {
  let { next } = from
  return {
    ask: () => (next > TURNS ? null : { messages: [{ role: 'user', content: `what comes after ${next - 1}` }] }),
    score: ({ answer }) => {
      const right = answer === String(next++)
      return { points: right ? 1 : 0, outcome: right ? 'right' : 'wrong', details: {} }
    },
    get state() {
      return { next }
    },
  }
}

/** An engine that says the number; in the turn after `upTo` it fails instead. */
const engineUpTo = (upTo = Infinity) =>
  new ScriptedEngine(({ messages }) => {
    const said = Number(/\d+$/.exec(messages.at(-1)?.content ?? '')?.[0]) + 1
    if (said > upTo) throw new Error('the machine went away')
    return { content: String(said) }
  })

function speaker(recorder: Recorder, messages: readonly ChatMessage[] = []): Actor {
  const session = plain({ engine: recorder, id: conversationId('episode') })
  for (const message of messages) session.conversation.add(message)
  return {
    act: async (ask) => {
      const outcome = await session.ask(ask.messages.at(-1)!.content)
      return {
        answer: outcome.answer,
        end: 'stop',
        calls: [],
        refusedCalls: 0,
        details: { messages: session.conversation.messages.length },
      }
    },
    get state() {
      return session.conversation.messages
    },
  }
}

const withoutTimes = (turns: readonly TurnRecord[]) => turns.map(({ milliseconds: _, ...turn }) => turn)

test('every turn is scored and has the cost of its own steps', async () => {
  const recorder = new Recorder(engineUpTo())
  const turns = await runEpisode({ environment: counting(), actor: speaker(recorder), recorder })
  expect(turns.map(({ turn, answer, score }) => [turn, answer, score.points])).toEqual([
    [0, '1', 1],
    [1, '2', 1],
    [2, '3', 1],
    [3, '4', 1],
  ])
  expect(turns.reduce((sum, { work }) => sum + work.submitted, 0)).toBe(recorder.cost().work.submitted)
  expect(turns.map(({ work }) => work.steps)).toEqual([1, 1, 1, 1])
  for (const { work } of turns) expect(work.reused + work.recomputed + work.fresh).toBe(work.shown)
})

test('an interrupted episode continues at its turn and ends like one that ran through', async () => {
  const path = join(folder, 'episode.jsonl')
  const about = { task: 'counting', seed: 1 }
  const through = async (engine: ScriptedEngine) => {
    const file = await EpisodeFile.open(path, about, 'test')
    try {
      const recorder = new Recorder(engine)
      const { environment, actor } = file.checkpoint ?? { environment: undefined, actor: undefined }
      return await runEpisode({
        environment: counting(environment as { next: number } | undefined),
        actor: speaker(recorder, actor as ChatMessage[] | undefined),
        recorder,
        before: file.before,
        onTurn: (turn, checkpoint) => file.add(turn, checkpoint),
      })
    } finally {
      await file.close()
    }
  }
  await expect(through(engineUpTo(2))).rejects.toThrow('the machine went away')
  // The lines of a process that died before its checkpoint, and half a line.
  const lines = (await readFile(path, 'utf8')).trim().split('\n')
  await appendFile(path, `${lines.at(-1)!.replace('"turn":1', '"turn":2')}\n{"kind":"tu`)
  const engine = engineUpTo()
  const resumed = await through(engine)
  expect(engine.requests).toHaveLength(2)

  const recorder = new Recorder(engineUpTo())
  const whole = await runEpisode({ environment: counting(), actor: speaker(recorder), recorder })
  const said = (turns: readonly TurnRecord[]) =>
    turns.map(({ turn, asked, answer, details, tokens }) => ({ turn, asked, answer, details, tokens }))
  expect(said(resumed)).toEqual(said(whole))

  const other = EpisodeFile.open(path, { ...about, seed: 2 }, 'test')
  await expect(other).rejects.toMatchObject({ code: 'eval/other-run' })
  const again = await EpisodeFile.open(path, about, 'test')
  expect(withoutTimes(again.before)).toEqual(withoutTimes(resumed))
  await again.close()
})

test('a sample of a task is an episode of one turn', async () => {
  const recorder = new Recorder(new ScriptedEngine([{ content: '1' }]))
  const score = () => ({ points: 0, outcome: 'wrong', details: {} }) as const
  const environment = singleTurn([{ role: 'user', content: 'what comes after 0' }], score)
  const turns = await runEpisode({ environment, actor: speaker(recorder), recorder })
  expect(turns).toHaveLength(1)
})
