/**
 * Runs one sample with one agent, and returns the record for the log, also after an error. If the task needs a judge, a model judges the
 * answer.
 */
import { invariant, isContextFull, KvfoldError } from '../../runtime/core/errors.js'
import { definedFields } from '../../runtime/core/json.js'
import { mix } from '../../runtime/core/random.js'
import type { Engine } from '../../runtime/engine/engine.js'
import { type AgentSetting, type Answered, type CalledTool, type EvalAgent, OVERFLOWED } from '../agent.js'
import { playEpisode, singleTurn } from '../episode/episode.js'
import type { ErrorRecord, LogRecord, SampleRecord } from '../log.js'
import type { Recorder, RecorderOptions } from '../recorder.js'
import type { Task, TaskSample } from '../task.js'
import type { Item } from './plan.js'
import type { Bench } from './pool.js'
import { conversationId } from '../../runtime/core/ids.js'

export interface TrialOptions extends Pick<AgentSetting, 'embedder' | 'window'> {
  readonly item: Item
  readonly task: Task
  readonly agent: EvalAgent
  readonly engine: Engine
  readonly bench: Bench
  readonly judge: Judge | null
  /** The run's seed. Each sample's own seed is derived from it, and is the same for all agents. */
  readonly seed: number
  /**
   * Conversations are named after it, so it must be unique in this process. For caches that outlive the process, it must be unique among
   * all processes.
   */
  readonly name: string
  /** Whether the cache holds no other conversations, so that only the agent itself can fill it. */
  readonly alone: boolean
  readonly signal: AbortSignal
  readonly onStep?: RecorderOptions['onStep']
}

/** Answers and scores the sample. An error becomes an error record. Returns null if `signal` stopped the sample. */
export async function trial(sample: TaskSample, options: TrialOptions): Promise<LogRecord | null> {
  const { signal, item } = options
  try {
    const record = await recordOf(sample, options)
    return signal.aborted ? null : record
  } catch (error) {
    return signal.aborted ? null : failed(item, sample, error)
  }
}

/** Returns the record of a sample that could not be answered, or not even made (`sample` null). */
export const failed = (item: Item, sample: Pick<TaskSample, 'id' | 'cell'> | null, error: unknown): ErrorRecord => ({
  kind: 'error',
  ...item,
  id: sample?.id ?? `${item.index}`,
  cell: sample?.cell ?? {},
  code: error instanceof KvfoldError ? error.code : 'unexpected',
  message: error instanceof Error ? error.message : String(error),
})

/** Runs the sample as an episode of one turn, and returns its record. */
async function recordOf(sample: TaskSample, options: TrialOptions): Promise<SampleRecord> {
  const { item, task, bench, judge, name, signal, engine, onStep } = options
  let judgement: SampleRecord['judgement']
  const environment = singleTurn(sample.messages, async ({ answer }) => {
    if (task.judging === undefined || judge === null) return bench.score(item.task, sample, answer)
    judgement = await judged(task.judging, sample, answer, judge, name, signal)
    return bench.score(item.task, sample, answer, judgement.verdict)
  })
  const cast = (on: Recorder) => ({ act: () => answered(sample, on, options), state: null })
  const {
    turns: [turn],
    recorder,
  } = await playEpisode({ engine, name, environment, cast, ...definedFields({ onStep }) })
  invariant(turn !== undefined, 'A sample ended without a turn.')
  const { answer, end, score, calls, refusedCalls, details } = turn
  return {
    kind: 'sample',
    ...item,
    id: sample.id,
    cell: sample.cell,
    truth: sample.truth,
    ...{ answer, end, score },
    ...(judgement === undefined ? {} : { judgement }),
    ...{ calls, refusedCalls, details },
    talks: recorder.talks,
    ...recorder.cost(),
  }
}

/**
 * Lets the agent answer. If the first step fits and the agent overflows the context later, the result is OVERFLOWED with the calls so far.
 * It counts as wrong, because the agent failed; an error record would leave the sample out of the agent's accuracy.
 */
async function answered(sample: TaskSample, recorder: Recorder, options: TrialOptions): Promise<Answered> {
  const { item, task, agent, seed, name, signal, window, embedder, alone } = options
  const calls: CalledTool[] = []
  let refusedCalls = 0
  try {
    return await agent.answer({
      engine: recorder,
      task,
      sample,
      name,
      contract: item.contract,
      // The sample's own seed, the same for every agent and engine.
      seed: mix(seed ^ mix(item.index + 1)),
      window,
      signal,
      onCall: (call, isRefused) => {
        if (isRefused) refusedCalls++
        else calls.push(call)
      },
      ...(embedder === undefined ? {} : { embedder }),
    })
  } catch (error) {
    if (!isContextFull(error) || !alone || recorder.done.length === 0) throw error
    return { ...OVERFLOWED, calls, refusedCalls }
  }
}

// Below: asks a model to judge an answer, for tasks whose authors do so too.

export interface Judge {
  readonly name: string
  readonly engine: Engine
}

/** The most tokens of the judge's answer: some reasons, and then the verdict in one word. */
const LONGEST = 512

/** Returns the judge's answer, generated at temperature 0, with its verdict. @throws KvfoldError any error of the judge's engine */
export async function judged(
  judging: NonNullable<Task['judging']>,
  sample: TaskSample,
  answer: string,
  { engine }: Judge,
  name: string,
  signal: AbortSignal,
): Promise<NonNullable<SampleRecord['judgement']>> {
  const { prompt, verdict } = judging(sample, answer)
  const conversation = conversationId(`${name}.judge`)
  try {
    const { reply } = engine.respond({
      conversation,
      tenant: conversation,
      messages: [{ role: 'user', content: prompt }],
      sampling: { temperature: 0 },
      maxTokens: LONGEST,
      signal,
    })
    const { content } = (await reply).message
    return { said: content, verdict: verdict(content) }
  } finally {
    engine.forget(conversation)
  }
}
