/** Owns one sample put to one agent: from the sample to the record of the log, whatever happens between, judged by a model where a task's authors do so. */
import { invariant, isContextFull, KvfoldError } from '../../runtime/core/errors.js'
import { mix } from '../../runtime/core/random.js'
import { type Engine, EngineAround, type EngineRequest, type Generation } from '../../runtime/engine/engine.js'
import { type AgentSetting, type Answered, type EvalAgent, OVERFLOWED } from '../agent.js'
import { runEpisode, singleTurn } from '../episode/episode.js'
import type { ErrorRecord, LogRecord, SampleRecord } from '../log.js'
import { Recorder } from '../recorder.js'
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
  /** Of the run; each sample gets one of its own, the same for all agents. */
  readonly seed: number
  /** Unique in this process and, for caches that outlive it, among all. */
  readonly name: string
  /** Whether the cache holds nobody else's conversations: when it is full then, the agent has filled it. */
  readonly alone: boolean
  readonly signal: AbortSignal
}

/** Answers and scores the sample. Errors become records; null when `signal` stopped it. */
export async function trial(sample: TaskSample, options: TrialOptions): Promise<LogRecord | null> {
  const recorder = new Recorder(new IsolatedEngine(options.engine, options.name))
  try {
    const record = await recordOf(sample, recorder, options)
    return options.signal.aborted ? null : record
  } catch (error) {
    return options.signal.aborted ? null : failed(options.item, sample, error)
  }
}

/** The record of a sample that could not be answered, or not even made. */
export const failed = (item: Item, sample: Pick<TaskSample, 'id' | 'cell'> | null, error: unknown): ErrorRecord => ({
  kind: 'error',
  ...item,
  id: sample?.id ?? `${item.index}`,
  cell: sample?.cell ?? {},
  code: error instanceof KvfoldError ? error.code : 'unexpected',
  message: error instanceof Error ? error.message : String(error),
})

/** A sample is an episode of one turn. */
async function recordOf(sample: TaskSample, recorder: Recorder, options: TrialOptions): Promise<SampleRecord> {
  const { item, task, bench, judge, name, signal } = options
  let judgement: SampleRecord['judgement']
  const environment = singleTurn(sample.messages, async ({ answer }) => {
    if (task.judging === undefined || judge === null) return bench.score(item.task, sample, answer)
    judgement = await judged(task.judging, sample, answer, judge, name, signal)
    return bench.score(item.task, sample, answer, judgement.verdict)
  })
  const actor = { act: () => answered(sample, recorder, options), state: null }
  const [turn] = await runEpisode({ environment, actor, recorder })
  invariant(turn !== undefined, 'A sample came to no turn.')
  const { answer, end, score, calls, refusedCalls, details } = turn
  const { talks, tokens, work, milliseconds } = recorder
  return {
    kind: 'sample',
    ...item,
    id: sample.id,
    cell: sample.cell,
    truth: sample.truth,
    ...{ answer, end, score },
    ...(judgement === undefined ? {} : { judgement }),
    ...{ calls, refusedCalls, details },
    ...{ talks, tokens, work, milliseconds },
  }
}

/**
 * An agent whose first step fitted, and that then filled the context by what it said and called, has not answered: that is its failure, no
 * error of the run, which would leave the sample out of its accuracy.
 */
async function answered(sample: TaskSample, recorder: Recorder, options: TrialOptions): Promise<Answered> {
  const { item, task, agent, seed, name, signal, window, embedder, alone } = options
  try {
    return await agent.answer({
      engine: recorder,
      task,
      sample,
      name,
      contract: item.contract,
      // Unsigned, and the same whoever answers the sample.
      seed: mix(seed ^ mix(item.index + 1)),
      window,
      signal,
      ...(embedder === undefined ? {} : { embedder }),
    })
  } catch (error) {
    if (!isContextFull(error) || !alone || recorder.work.steps === 0) throw error
    return OVERFLOWED
  }
}

// That samples of a run share no cells: what one cost must not depend on which others ran before or beside it.

/** The engine for one sample: its conversations share cells with each other and with nobody else's. */
export class IsolatedEngine extends EngineAround {
  constructor(
    engine: Engine,
    private readonly tenant: string,
  ) {
    super(engine)
  }

  respond(request: EngineRequest): Generation {
    return this.engine.respond({ ...request, tenant: this.tenant })
  }
}

// Having an answer judged by a model, for tasks whose authors do so.

export interface Judge {
  /** What the log calls it. */
  readonly name: string
  readonly engine: Engine
}

/** A verdict is a word; some reason first. */
const LONGEST = 512

/** Greedy. @throws KvfoldError what the judge's engine throws */
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
