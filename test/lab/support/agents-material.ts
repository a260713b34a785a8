/** Material for tests of agents: a small task, and a transcript of their requests to a scripted engine. */
import type { EngineRequest } from '../../../src/runtime/engine/engine.js'
import { ScriptedEngine } from '../../support/scripted.js'
import type { ScriptedReply } from '../../../src/lab/taught-engine.js'
import type { AgentSetting, TextEmbedder } from '../../../src/lab/agent.js'
import { wordsOf } from '../../../src/lab/agents/rag.js'
import type { Task, TaskSample } from '../../../src/lab/task.js'

const colours = ['red', 'green', 'blue', 'white', 'black', 'amber', 'violet', 'grey']
const things = ['hat', 'boat', 'lamp', 'tree', 'house', 'horse', 'door', 'flag', 'cup', 'bridge']

/** Forty different sentences. */
export const TEXT = Array.from({ length: 40 }, (_, at) => {
  const thing = things[at % things.length]
  return at === 17
    ? 'The lighthouse keeper is called Orla. '
    : `In the year ${1800 + at} the ${thing} of the town was ${colours[at % 8]}. `
}).join('')

export const sample: TaskSample = {
  id: 'sample-1',
  cell: {},
  messages: [{ role: 'user', content: `${TEXT}\n\nWhat is the lighthouse keeper called?` }],
  context: TEXT,
  question: 'What is the lighthouse keeper called?',
  truth: 'Orla',
}

export const task: Task = {
  spec: { task: 'needles', options: {} },
  title: 'Names',
  prompt: 'needles',
  maxTokens: 64,
  temperature: 0.5,
  differs: [],
  size: 1,
  sample: () => Promise.resolve(sample),
  score: () => ({ points: 0, outcome: 'wrong', details: {} }),
}

export const settingOn = (engine: AgentSetting['engine'], change: Partial<AgentSetting> = {}): AgentSetting => ({
  engine,
  task,
  sample,
  name: 'run-0',
  seed: 11,
  window: engine.info.context,
  ...change,
})

/** Counts of words as vectors, so that texts are similar when they share words. */
export const wordEmbedder: TextEmbedder = {
  name: 'words',
  embed: (texts) =>
    Promise.resolve(
      texts.map((text) => {
        const vector = new Float32Array(64)
        for (const word of wordsOf(text)) vector[place(word)]! += 1
        const length = Math.hypot(...vector) || 1
        return vector.map((value) => value / length)
      }),
    ),
}

const place = (word: string): number => Array.from(word).reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)!) % 64, 7)

/** Returns the engine's requests as text, one after the other, with the replies. */
export function transcript(engine: ScriptedEngine, said: readonly ScriptedReply[]): string {
  const step = (request: EngineRequest, at: number) => {
    const { conversation, messages, edits = [], tools = [], toolChoice, maxTokens, schema, contract, sampling, kind } = request
    const head = [
      conversation,
      `at most ${maxTokens}`,
      JSON.stringify(sampling),
      ...(contract === undefined ? [] : [contract]),
      ...(tools.length === 0 ? [] : [`${tools.length} tools, ${toolChoice}`]),
      ...(schema === undefined ? [] : ['JSON schema']),
      ...(kind === undefined ? [] : [kind]),
      ...(edits.length === 0 ? [] : [`${edits.length} edits`]),
    ]
    const lines = messages.map(({ role, content, toolCalls = [] }) =>
      [`<${role}>`, content, ...toolCalls.map((call) => `${call.name} ${JSON.stringify(call.arguments)}`)].join('\n'),
    )
    const reply = said[at]
    return [
      `=== step ${at}: ${head.join('; ')}`,
      ...lines,
      '<said>',
      reply?.content ?? '',
      ...(reply?.calls ?? []).map((call) => JSON.stringify(call)),
    ].join('\n')
  }
  return `${engine.requests.map(step).join('\n\n')}\n`
}
