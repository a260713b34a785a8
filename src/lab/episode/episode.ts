/**
 * Runs episodes: sessions of many turns in an environment, with a record of each turn. The records go to a file, from which a stopped
 * episode resumes.
 */
import { existsSync } from 'node:fs'
import { readFile, writeFile } from 'node:fs/promises'
import type { ChatMessage } from '../../runtime/chat/message.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import { writeWhole } from '../../runtime/core/whole-file.js'
import { mappedJson, readJson, writeJson } from '../../runtime/core/written-json.js'
import { type Engine, EngineAround, type EngineRequest, type Generation } from '../../runtime/engine/engine.js'
import type { Answered } from '../agent.js'
import { EPISODE_VERSION, episodeLog, type TurnRecord } from '../log.js'
import { Recorder, type RecorderOptions } from '../recorder.js'
import { bad, codeOf } from '../run/json-lines.js'
import { playAll } from '../run/loop.js'
import { LogFile } from '../run/log-file.js'
import { occasion } from '../run/plan.js'
import { SpokenEngine, type Teacher } from '../taught-engine.js'
import type { Score } from '../task.js'
import { type HeldPrompt, HoldingEngine } from './held-prompts.js'

/** The messages that begin a turn. The last one is the user's. */
export interface TurnAsk {
  readonly messages: readonly ChatMessage[]
}

/**
 * The user who talks to the agent, and the world in which the agent works. The environment owns the tools that act on this world; give them
 * to the actor when you make it. The same environment and the same answers give the same episode.
 */
export interface Environment {
  /** Begins the next turn. `before`: the outcome of the previous turn, null at the start. Returns null when the session is over. */
  ask(before: Pick<Answered, 'answer' | 'end'> | null): TurnAsk | null
  /** Scores a turn. The runner calls it once after each turn. */
  score(turn: Answered): Score | Promise<Score>
  /**
   * Everything on which later turns depend, as plain JSON (Int32Array allowed). A new environment made from it continues after the last
   * turn.
   */
  readonly state: unknown
}

/** The agent in an episode. It may compute only on the episode's recorder, so that the records include all its costs. */
export interface Actor {
  /** Runs one turn. @throws KvfoldError any error of the engine */
  act(ask: TurnAsk, signal?: AbortSignal): Promise<Answered>
  /** Everything on which later turns depend, in the same form as the environment's state. */
  readonly state: unknown
}

/** The states of environment, actor and cache after a turn, from which the episode can resume. */
export interface Checkpoint {
  /** Number of finished turns. */
  readonly turns: number
  readonly environment: unknown
  readonly actor: unknown
  /** The prompts whose cells are in the engine's cache. Absent: unknown, so the next turn begins with an empty cache. */
  readonly held?: readonly HeldPrompt[]
}

export interface EpisodeOptions {
  readonly environment: Environment
  readonly actor: Actor
  /** The engine on which the actor computes. */
  readonly recorder: Recorder
  /** The finished turns of an earlier run. Environment and actor must have their states after the last of them. Default: none. */
  readonly before?: readonly TurnRecord[]
  /** Called after every turn. The next turn begins when the returned promise resolves. */
  readonly onTurn?: (turn: TurnRecord, checkpoint: Checkpoint) => Promise<void> | void
  readonly signal?: AbortSignal
}

/**
 * Runs the episode to its end.
 * @returns all turns, including `before`
 * @throws KvfoldError any error of the actor; engine/cancelled when `signal` stopped it (each turn passed to `onTurn` is complete)
 */
export async function runEpisode(options: EpisodeOptions): Promise<readonly TurnRecord[]> {
  const { environment, actor, recorder, before = [], onTurn, signal } = options
  const turns = [...before]
  for (;;) {
    const asked = environment.ask(turns.at(-1) ?? null)
    if (asked === null) return turns
    const [done, begun] = [recorder.done.length, performance.now()]
    const acted = await actor.act(asked, signal)
    if (acted.end === 'cancelled')
      throw new KvfoldError('engine/cancelled', `Turn ${turns.length + 1} was cancelled; the record has the turns before it.`)
    const score = await environment.score({ ...acted, answer: recorder.saidIn(acted.answer) })
    const { tokens, work, milliseconds } = recorder.cost(done)
    const turn: TurnRecord = {
      kind: 'turn',
      turn: turns.length,
      asked: asked.messages.at(-1)?.content ?? '',
      answer: acted.answer,
      end: acted.end,
      score: { ...score, details: { ...score.details } },
      calls: [...acted.calls],
      refusedCalls: acted.refusedCalls,
      details: { ...acted.details },
      ...{ tokens, work },
      milliseconds: { ...milliseconds, total: performance.now() - begun },
    }
    turns.push(turn)
    await onTurn?.(turn, { turns: turns.length, environment: environment.state, actor: actor.state })
  }
}

export interface PlayOptions extends Omit<EpisodeOptions, 'actor' | 'recorder' | 'before'>, RecorderOptions {
  /** The engine that all episodes share. */
  readonly engine: Engine
  /** A name that no other tenant of the engine has. The episode then shares no cells, and its cost does not depend on other episodes. */
  readonly name: string
  /** The script that speaks for the model. Default: the model itself answers. */
  readonly teacher?: Teacher | null
  /** Makes the actor, which must compute on the recorder. */
  readonly cast: (recorder: Recorder) => Actor | Promise<Actor>
  /** The finished turns of an earlier run, and the checkpoint after them. Default: the episode begins with its first turn. */
  readonly start?: EpisodeStart
}

/** Where an episode continues; an `EpisodeFile` provides it. */
export interface EpisodeStart {
  readonly before: readonly TurnRecord[]
  readonly checkpoint: Checkpoint | null
}

/** Sets up an episode on a shared engine and runs it to its end. @returns all turns and the recorder @throws the errors of runEpisode */
export async function playEpisode(
  options: PlayOptions,
): Promise<{ readonly turns: readonly TurnRecord[]; readonly recorder: Recorder }> {
  const { engine, name, teacher = null, cast, start, ...episode } = options
  const alone = new HoldingEngine(new IsolatedEngine(engine, name), start?.checkpoint?.held)
  const recorder = new Recorder(teacher === null ? alone : new SpokenEngine(alone, teacher), options)
  const actor = await cast(recorder)
  const onTurn: EpisodeOptions['onTurn'] = (turn, checkpoint) => options.onTurn?.(turn, { ...checkpoint, held: alone.held })
  return { turns: await runEpisode({ ...episode, onTurn, actor, recorder, before: start?.before ?? [] }), recorder }
}

/** The engine of one episode. Its conversations share cells among themselves, and with no other episode. */
class IsolatedEngine extends EngineAround {
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

/** Makes an environment with one turn, for example from a task's sample. */
export function singleTurn(messages: readonly ChatMessage[], score: Environment['score']): Environment {
  return {
    ask: (before) => (before === null ? { messages } : null),
    score,
    state: null,
  }
}

// Below: the two files of an episode: its log, and the checkpoint after its last turn. A killed process loses at most one turn.

export class EpisodeFile {
  private constructor(
    private readonly log: LogFile<TurnRecord, TurnRecord>,
    /** The checkpoint after the turns in `before`; null at the start of an episode. */
    readonly checkpoint: Checkpoint | null,
  ) {}

  /**
   * Creates the files, or opens those of the same episode to continue it. Removes turns after the checkpoint.
   * @throws KvfoldError eval/other-run when the log belongs to another episode; eval/log-busy; eval/bad-log when a file cannot be read or
   * holds no episode
   */
  static async open(path: string, about: Readonly<Record<string, unknown>>, command: string): Promise<EpisodeFile> {
    const header = { kind: 'episode', version: EPISODE_VERSION, ...occasion(command), about: { ...about } } as const
    const checkpoint = existsSync(path) ? await checkpointAt(path) : null
    const { turns } = checkpoint ?? { turns: 0 }
    const log = await LogFile.open(path, header, episodeLog, (turn) => turn, turns)
    if (log.before.length === turns) return new EpisodeFile(log, checkpoint)
    await log.close()
    throw bad(path, `has ${log.before.length} turns, but its checkpoint has ${turns}; delete both to begin again`)
  }

  /** The finished turns, up to the checkpoint, that the log held when it was opened. */
  get before(): readonly TurnRecord[] {
    return this.log.before
  }

  /**
   * Writes the turn, then its checkpoint. If the process dies between the two, the next run repeats the turn.
   * @throws KvfoldError eval/bad-log
   */
  async add(turn: TurnRecord, checkpoint: Checkpoint): Promise<void> {
    await this.log.add(turn)
    const path = checkpointOf(this.log.path)
    try {
      await writeWhole(path, (temporary) => writeFile(temporary, writeJson(mappedJson(checkpoint, outgoing))))
    } catch (cause) {
      throw bad(path, `cannot be written (${codeOf(cause)})`, cause)
    }
  }

  close(): Promise<void> {
    return this.log.close()
  }
}

const checkpointOf = (path: string): string => `${path}.checkpoint`

async function checkpointAt(path: string): Promise<Checkpoint | null> {
  const file = checkpointOf(path)
  const text = await readFile(file, 'utf8').catch((cause: unknown) => {
    if (codeOf(cause) === 'ENOENT') return null
    throw bad(file, `cannot be read (${codeOf(cause)})`, cause)
  })
  try {
    return text === null ? null : (mappedJson(readJson(text), incoming) as Checkpoint)
  } catch (cause) {
    throw bad(file, 'is damaged; delete it and the log to begin again', cause)
  }
}

// Below: a loop that runs several episodes, each with its turns in a file.

export interface KeptEpisode<Result> {
  readonly path: string
  /** The facts that identify the episode. A file with different facts belongs to another episode. */
  readonly about: Readonly<Record<string, unknown>>
  readonly play: (setting: Required<Pick<PlayOptions, 'start' | 'onTurn' | 'signal'>>) => Promise<Result>
}

export interface KeptOptions<Episode> {
  /** The command line that the logs record as their origin. */
  readonly command: string
  readonly signal: AbortSignal
  /** Called when an episode resumes from its file. `turns`: the number of turns in the file. */
  readonly onResumed?: (episode: Episode, turns: number) => void
  readonly onTurn?: (episode: Episode, turn: TurnRecord) => void
}

/**
 * Runs the episodes one after another. Each continues after the last turn in its file.
 * @throws KvfoldError any error of the engine or the files; engine/cancelled when `signal` stopped it (the files keep all finished turns)
 */
export async function playKept<Result, Episode extends KeptEpisode<Result>>(
  episodes: readonly Episode[],
  { command, signal, onResumed, onTurn }: KeptOptions<Episode>,
): Promise<Result[]> {
  const results: Result[] = []
  const stopped = (path: string) => new KvfoldError('engine/cancelled', `The run was stopped; ${path} has the finished turns.`)
  await playAll(episodes, [null], signal, async (episode, _, either) => {
    const file = await EpisodeFile.open(episode.path, episode.about, command)
    if (file.before.length > 0) onResumed?.(episode, file.before.length)
    try {
      const keep: PlayOptions['onTurn'] = async (turn, checkpoint) => {
        await file.add(turn, checkpoint)
        onTurn?.(episode, turn)
      }
      results.push(await episode.play({ start: file, onTurn: keep, signal: either }))
    } catch (error) {
      throw signal.aborted ? stopped(episode.path) : error
    } finally {
      await file.close()
    }
  })
  const next = episodes[results.length]
  if (next !== undefined) throw stopped(next.path)
  return results
}

// Of the values in a state, JSON cannot hold only sampled tokens (Int32Array). The file has them as { int32: [...] }.

const outgoing = (value: unknown): unknown => (value instanceof Int32Array ? { int32: [...value] } : value)

const incoming = (value: unknown): unknown =>
  typeof value === 'object' && value !== null && 'int32' in value && Array.isArray(value.int32)
    ? Int32Array.from(value.int32 as number[])
    : value
