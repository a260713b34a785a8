/**
 * Collects trajectories: each is one try at a prompt of a source, divided into snapshots for training. Complete trajectories are appended
 * to a file, from which a later run with the same options resumes.
 */
import { existsSync, rmSync } from 'node:fs'
import { isDeepStrictEqual } from 'node:util'
import { messageUnits, modelTokens, engineTokens, snapshots, type StepWording } from '../agents/snapshots.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import { checked, inWords } from '../../runtime/core/schema.js'
import type { Sampling } from '../../runtime/engine/engine.js'
import { type UnwrittenSnapshot, type Format, formatOf, needsTokens, rowOf, TrajectoryRecord, writeParquet } from './formats.js'
import { type Acting, cancelled, type TrajectorySource } from './sources.js'
import { bad, JsonLines } from '../run/json-lines.js'
import { outcomesOf, rewardOf, TRAJECTORY_VERSION, TrajectoryFacts } from './trajectory.js'

interface CollectOptions {
  readonly source: TrajectorySource
  readonly acting: Acting
  readonly format: Format
  /** What provides the snapshots' tokens, if the format needs tokens: a model loaded here, or the engine's reports (`engine`). */
  readonly tokens: StepWording | 'engine'
  readonly model: TrajectoryFacts['model']
  /** Number of tries per sample. A script acts the same way in every try. */
  readonly rollouts: number
  readonly signal?: AbortSignal
}

/**
 * One try at one sample. `number`: its index over all tries, from 0: first all tries at the first sample, then all tries at the second, and
 * so on.
 */
export interface Collected {
  readonly number: number
  /** One row per snapshot, in order. Each becomes a line of the file. */
  readonly rows: readonly object[]
  readonly points: number
  /** `tokens`: tokens in all snapshots. `learned`: those of them with loss. Both are 0 if the units are messages. */
  readonly tokens: number
  readonly learned: number
}

/**
 * Yields the trajectories from index `from` on. Each is made when it is asked for.
 * @throws KvfoldError any error of source, teacher and engine; engine/cancelled
 */
export async function* collect(options: CollectOptions, from = 0): AsyncGenerator<Collected> {
  const { source, rollouts, signal } = options
  for (let number = from; number < source.size * rollouts; number++) {
    if (signal?.aborted === true) throw cancelled()
    yield await trajectory(options, number)
  }
}

async function trajectory(options: CollectOptions, number: number): Promise<Collected> {
  const { source, acting, format, tokens, model, rollouts, signal } = options
  const [index, rollout] = [Math.floor(number / rollouts), number % rollouts]
  const now = seeded(acting, number)
  const { steps, outcomes, score, parts, context, truth } = await source.play(index, now, `collect-${number}`, signal)
  const counted = tokens !== 'engine' ? modelTokens(tokens) : needsTokens(format) ? engineTokens : messageUnits()
  const made = snapshots(steps, counted)
  const shared = {
    version: TRAJECTORY_VERSION,
    task: source.task,
    ...(await source.about(index)),
    rollout,
    agent: source.agent,
    teacher: acting.teacher,
    ...(now.teacher === 'model' ? { sampling: settings(now.sampling) } : {}),
    model,
    snapshots: made.length,
    points: score.points,
    reward: rewardOf(parts),
    parts,
    calls: callsIn(outcomes),
    context,
  } as const
  const cuts = made.map((snapshot, at): UnwrittenSnapshot => ({
    facts: {
      ...shared,
      snapshot: at,
      steps: snapshot.learned.map(({ step }) => step),
      outcomes: snapshot.learned.map(({ step }) => [...outcomes[step]!]),
    },
    snapshot,
    steps,
    truth,
  }))
  const isCounted = counted !== engineTokens && tokens === 'engine' ? 0 : 1
  return {
    number,
    rows: cuts.map((cut) => rowOf(format, cut)),
    points: score.points,
    tokens: isCounted * made.reduce((sum, one) => sum + one.tokens.length, 0),
    learned: isCounted * made.flatMap(({ learned }) => learned).reduce((sum, { span: { start, end } }) => sum + end - start, 0),
  }
}

/** Returns `acting` for one trajectory. A model gets another seed for each trajectory. */
function seeded(acting: Acting, number: number): Acting {
  if (acting.teacher === 'script') return acting
  return { ...acting, sampling: { ...acting.sampling, seed: ((acting.sampling.seed ?? 0) + number) % 2 ** 32 } }
}

const settings = ({ temperature = 0, topK = 0, topP = 1, minP = 0, seed = 0 }: Sampling) => ({
  temperature,
  topK,
  topP,
  minP,
  seed,
})

function callsIn(outcomes: ReturnType<typeof outcomesOf>): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const { name } of outcomes.flat()) counts[name] = (counts[name] ?? 0) + 1
  return counts
}

/** The facts that a run must share with the file from which it resumes. */
interface FileTerms {
  readonly source: TrajectorySource
  readonly rollouts: number
  readonly acting: Acting
  readonly model: TrajectoryFacts['model']
  readonly format: Format
}

export class TrajectoryFile {
  private constructor(
    /** The file that gets the rows as lines of JSON. */
    private readonly lines: JsonLines,
    /** The path of the Parquet file that replaces the lines at the end; null for formats that stay JSON Lines. */
    private readonly parquet: string | null,
    /** Number of complete trajectories in the file when it was opened. The run resumes after them. */
    readonly begun: number,
  ) {}

  /**
   * Creates the file, or opens it to resume. Removes an incomplete last trajectory, which the run makes again. For Parquet, the rows are in
   * `<path>.jsonl` until the run is finished.
   * @throws KvfoldError eval/bad-log when the file has rows of another run, or is a finished Parquet file; eval/log-busy
   */
  static async open(path: string, terms: FileTerms): Promise<TrajectoryFile> {
    const parquet = terms.format === 'verl' ? path : null
    if (parquet !== null && existsSync(path))
      throw new KvfoldError('eval/bad-log', `${path} exists, and a Parquet file cannot be continued; name another file.`)
    const rows = parquet === null ? path : `${path}.jsonl`
    let whole = 0
    const lines = await JsonLines.open(rows, async (written) => {
      let [end, last] = [0, null as TrajectoryFacts | null]
      for await (const { value, number, end: at } of written) {
        const record = factsIn(value, rows, number, terms.format)
        if (record.snapshot + 1 < record.snapshots) continue
        whole++
        ;[end, last] = [at, record]
      }
      if (last !== null) await refuseOther(rows, last, whole - 1, terms)
      return end
    })
    return new TrajectoryFile(lines, parquet, whole)
  }

  add({ rows }: Collected): Promise<void> {
    return this.lines.add(...rows)
  }

  /**
   * Closes the file after the last trajectory. For Parquet, writes the final file and removes the lines.
   * @throws KvfoldError eval/bad-log when the Parquet file cannot be written; the lines then stay
   */
  async finish(): Promise<void> {
    await this.close()
    if (this.parquet === null) return
    await writeParquet(this.lines.path, this.parquet)
    rmSync(this.lines.path)
  }

  /** Resolves when all added rows are on disk. Idempotent. */
  close(): Promise<void> {
    return this.lines.close()
  }
}

function factsIn(value: unknown, path: string, number: number, format: Format): TrajectoryFacts {
  const there = typeof value === 'object' && value !== null ? formatOf(value) : null
  const read = checked(there === 'tokens' ? TrajectoryRecord : TrajectoryFacts, value)
  if (!read.ok)
    throw bad(path, `has a line ${number} that is not a trajectory of kvfold (${inWords(read.faults[0])}); name another file`)
  if (there !== format)
    throw new KvfoldError(
      'eval/bad-log',
      `${path} holds rows in ${there === null ? 'another' : `the ${there}`} format; name another file, or give its --format.`,
    )
  return read.value
}

async function refuseOther(path: string, last: TrajectoryFacts, number: number, terms: FileTerms): Promise<void> {
  const { source, rollouts, model } = terms
  const acting = seeded(terms.acting, number)
  const other = (what: string) =>
    new KvfoldError('eval/bad-log', `${path} holds trajectories of another ${what}; name another file, or give the same options.`)
  if (last.model.fingerprint !== model.fingerprint) throw other('model')
  if (!isDeepStrictEqual(last.model.settings, model.settings))
    throw other('contract, chat template, type of the cache, endpoint, or limit of tokens or calls')
  if (last.agent !== source.agent) throw other('agent')
  if (last.teacher !== acting.teacher) throw other('teacher')
  if (!isDeepStrictEqual(last.sampling, acting.teacher === 'model' ? settings(acting.sampling) : undefined))
    throw other('temperature or seed')
  const about = number < source.size * rollouts ? await source.about(Math.floor(number / rollouts)) : null
  const { id, cell, group } = last
  if (last.task !== source.task || last.rollout !== number % rollouts || !isDeepStrictEqual({ id, cell, group }, about))
    throw other('run')
}
