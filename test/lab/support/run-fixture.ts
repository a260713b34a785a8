/** A small task and agents for tests of the runner: sums, which a scripted engine answers. */
import { conversationId } from '../../../src/runtime/core/ids.js'
import type { EngineRequest } from '../../../src/runtime/engine/engine.js'
import { ScriptedEngine } from '../../support/scripted.js'
import type { AgentKind, EvalAgent } from '../../../src/lab/agent.js'
import type { LogHeader } from '../../../src/lab/log.js'
import { headerOf } from '../../../src/lab/run/plan.js'
import { openBench } from '../../../src/lab/run/pool.js'
import type { RunLog, RunOptions } from '../../../src/lab/run/runner.js'
import type { Task, TaskSample } from '../../../src/lab/task.js'

/** A task with cells of 1, 2, 3 ... numbers to add. The engine's answer is off by one for every third sum. */
export function sums(cells: number, samples: number, options: Readonly<Record<string, unknown>> = {}): Task {
  const sampleOf = (index: number): TaskSample => {
    const numbers = Array.from({ length: (index % cells) + 1 }, (_, at) => index * 7 + at)
    const question = `Add ${numbers.join(' and ')}`
    const truth = numbers.reduce((sum, one) => sum + one, 0)
    return {
      id: `sum-${index}`,
      cell: { numbers: numbers.length },
      messages: [{ role: 'user', content: question }],
      context: numbers.join(' '),
      question: 'Add them',
      truth,
    }
  }
  return {
    spec: { task: 'pi-llm', options: { cells, samples, ...options } },
    title: 'Sums',
    prompt: 'general',
    maxTokens: 16,
    temperature: 0,
    differs: [],
    size: cells * samples,
    sample: (index) => Promise.resolve(sampleOf(index)),
    score: ({ truth }, answer) => ({
      points: answer === String(truth) ? 1 : 0,
      outcome: answer === String(truth) ? 'right' : 'wrong',
      details: { asked: 1 },
    }),
  }
}

export const adder = (pause?: () => Promise<void>): ScriptedEngine =>
  new ScriptedEngine(async ({ messages }: EngineRequest) => {
    await pause?.()
    const numbers = [...(messages.at(-1)?.content ?? '').matchAll(/\d+/g)].map(([text]) => Number(text))
    const sum = numbers.reduce((total, one) => total + one, 0)
    return { content: String(sum % 3 === 0 ? sum + 1 : sum) }
  })

/** An agent that asks `steps` times and then once more for the answer. */
export const asker = (kind: AgentKind, steps = 0, before: (name: string) => void = () => undefined): EvalAgent => ({
  kind,
  title: kind,
  options: { steps },
  answer: async ({ engine, task: { maxTokens }, sample, name, signal }) => {
    before(name)
    const conversation = conversationId(`${name}/turn`)
    const ask = () =>
      engine.respond({ conversation, messages: sample.messages, maxTokens, ...(signal === undefined ? {} : { signal }) }).reply
    for (let step = 0; step < steps; step++) await ask()
    const { message, finish } = await ask()
    return {
      answer: message.content,
      end: finish === 'cancelled' ? 'cancelled' : 'stop',
      calls: [],
      refusedCalls: 0,
      details: { steps },
    }
  },
})

export const settings = (tasks: readonly Task[], agents: readonly EvalAgent[], log: RunLog): RunOptions => ({
  tasks,
  agents,
  contracts: ['exact', 'splice'],
  engines: [adder()],
  slots: 2,
  cells: null,
  embedder: null,
  judge: null,
  seed: 1,
  bench: openBench(tasks, 0),
  log,
  signal: new AbortController().signal,
})

export const headerFor = (tasks: readonly Task[], agents: readonly EvalAgent[], seed = 1): Promise<LogHeader> =>
  headerOf({
    command: 'kvfold eval sums',
    engine: adder().info,
    fingerprint: null,
    embedder: null,
    judge: null,
    seed,
    sampling: { temperature: 0 },
    contracts: ['exact', 'splice'],
    tasks,
    agents,
    trained: null,
  })
