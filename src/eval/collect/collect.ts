/** Owns collecting trajectories: a task's samples put to an agent, what it did cut into snapshots that a model can learn from, and the file of them. */
import type { TurnOutcome } from '../../agents/events.js'
import { plain, sculptor } from '../../agents/sculptor.js'
import { snapshots, type Wording, Tape } from '../../agents/snapshots.js'
import { KvfoldError } from '../../core/errors.js'
import { conversationId } from '../../core/ids.js'
import type { Engine, Sampling } from '../../engine/engine.js'
import { TaughtEngine, type TaughtModel } from '../../engine/taught.js'
import type { Score, Task, TaskSample } from '../task.js'
import { type TaughtAgent, TRAJECTORY_VERSION, TrajectoryRecord } from './record.js'
import { teacherOf } from './teachers.js'
import { appendFileSync, existsSync, readFileSync, truncateSync } from 'node:fs'
import { isDeepStrictEqual } from 'node:util'

interface CollectOptions {
  readonly task: Task
  readonly agent: TaughtAgent
  /** Whose chat format and tokens the snapshots are in; `isEndOfGeneration` is the vocabulary's. */
  readonly model: TaughtModel & Wording & { readonly fingerprint: string }
  /** Who acts: our script, or the model behind `engine`. */
  readonly acting:
    { readonly teacher: 'script' } | { readonly teacher: 'model'; readonly engine: Engine; readonly sampling: Sampling }
  /** Tries at every sample. A script acts the same way every time. */
  readonly rollouts: number
  readonly signal?: AbortSignal
}

/** One try at one sample, by its number: all rollouts of a sample, then the next sample. */
interface Collected {
  readonly number: number
  /** Snapshots in order; they are the file's lines. */
  readonly records: readonly TrajectoryRecord[]
  readonly points: number
  readonly calls: number
}

/** Trajectories from number `from` on, made as they are asked for. @throws KvfoldError what task, teacher and engine throw; engine/cancelled */
export async function* collect(options: CollectOptions, from = 0): AsyncGenerator<Collected> {
  const { task, rollouts, signal } = options
  for (let number = from; number < task.size * rollouts; number++) {
    if (signal?.aborted === true) throw new KvfoldError('engine/cancelled', 'Collecting was interrupted.')
    const sample = await task.sample(Math.floor(number / rollouts))
    yield await trajectory(options, sample, number)
  }
}

async function trajectory(options: CollectOptions, sample: TaskSample, number: number): Promise<Collected> {
  const { task, agent, acting, model, rollouts, signal } = options
  const rollout = number % rollouts
  const tape = new Tape(
    acting.teacher === 'model' ? acting.engine : new TaughtEngine(model, teacherOf(task.spec.task, agent, sample)),
  )
  const sampling = acting.teacher === 'model' ? { ...acting.sampling, seed: (acting.sampling.seed ?? 0) + number } : {}
  const common = { engine: tape, id: conversationId(`collect-${number}`), generation: { sampling, maxTokens: task.maxTokens } }
  const session = agent === 'plain' ? plain(common) : sculptor({ ...common, prompt: task.prompt })
  try {
    for (const message of sample.messages) session.conversation.add(message)
    const outcome = await session.resume(signal === undefined ? {} : { signal })
    if (outcome.end === 'cancelled') throw new KvfoldError('engine/cancelled', 'Collecting was interrupted.')
    const made = snapshots(tape.trajectory(outcome), model)
    const score = task.score(sample, outcome.answer)
    const shared = {
      version: TRAJECTORY_VERSION,
      task: task.spec.task,
      id: sample.id,
      cell: { ...sample.cell },
      rollout,
      agent,
      teacher: acting.teacher,
      model: { name: model.info.model, fingerprint: model.fingerprint },
      snapshots: made.length,
      points: score.points,
      reward: rewardOf(score, outcome),
    } as const
    const records = made.map(({ tokens, learned }, snapshot): TrajectoryRecord => ({
      ...shared,
      snapshot,
      tokens: [...tokens],
      loss: learned.map(({ span: { start, end } }) => [start, end]),
      steps: learned.map(({ step }) => step),
    }))
    return { number, records, points: score.points, calls: outcome.calls }
  } finally {
    session.forget()
  }
}

/** Sculptor, appendix F: what was cut off counts as too long. */
function rewardOf({ outcome }: Score, { steps, refusedCalls, end }: TurnOutcome): 1 | 0 | -1 {
  const failed = steps.some(({ calls }) => calls.some((call) => call.failed))
  if (failed || refusedCalls > 0 || end === 'length') return -1
  return outcome === 'right' ? 1 : 0
}

/** What a run must share with the file that it goes on in. */
interface FileTerms {
  readonly task: Task
  readonly rollouts: number
  readonly agent: TrajectoryRecord['agent']
  readonly teacher: TrajectoryRecord['teacher']
  readonly fingerprint: string
}

export class TrajectoryFile {
  private constructor(
    readonly path: string,
    /** Whole trajectories in it when it was opened: where the run goes on. */
    readonly begun: number,
  ) {}

  /**
   * A trajectory whose last lines are missing, as after a stop, is cut off and made again.
   * @throws KvfoldError eval/bad-log for another run's file, or one that holds something else
   */
  static async open(path: string, terms: FileTerms): Promise<TrajectoryFile> {
    if (!existsSync(path)) return new TrajectoryFile(path, 0)
    const { whole, end, last } = wholeOf(path)
    if (last !== null) await refuseOther(path, last, whole - 1, terms)
    truncateSync(path, end)
    return new TrajectoryFile(path, whole)
  }

  add({ records }: Collected): void {
    appendFileSync(this.path, records.map((record) => `${JSON.stringify(record)}\n`).join(''))
  }
}

/** How many whole trajectories the file has, where the last one ends (bytes), and its last record. */
function wholeOf(path: string): { whole: number; end: number; last: TrajectoryRecord | null } {
  const lines = readFileSync(path, 'utf8').split('\n')
  let [whole, end, at] = [0, 0, 0]
  let last: TrajectoryRecord | null = null
  // What follows the last line feed was not written to its end.
  for (const [index, line] of lines.slice(0, -1).entries()) {
    const record = parsed(line, path, index + 1)
    at += Buffer.byteLength(line) + 1
    if (record.snapshot + 1 < record.snapshots) continue
    whole++
    end = at
    last = record
  }
  return { whole, end, last }
}

function parsed(line: string, path: string, number: number): TrajectoryRecord {
  try {
    return TrajectoryRecord.parse(JSON.parse(line))
  } catch (cause) {
    throw new KvfoldError('eval/bad-log', `${path}, line ${number}, is no trajectory of kvfold; name another file.`, { cause })
  }
}

async function refuseOther(path: string, last: TrajectoryRecord, number: number, terms: FileTerms): Promise<void> {
  const { task, agent, rollouts, teacher, fingerprint } = terms
  const other = (what: string) =>
    new KvfoldError('eval/bad-log', `${path} holds trajectories of another ${what}; name another file, or give the same options.`)
  if (last.model.fingerprint !== fingerprint) throw other('model')
  if (last.agent !== agent) throw other('agent')
  if (last.teacher !== teacher) throw other('teacher')
  const sample = number < task.size * rollouts ? await task.sample(Math.floor(number / rollouts)) : null
  const isSame = last.id === sample?.id && isDeepStrictEqual(last.cell, sample.cell)
  if (last.task !== task.spec.task || !isSame || last.rollout !== number % rollouts) throw other('run')
}
